"""Targets: the files of a store."""

from __future__ import annotations

import contextlib
from functools import cache, partial
from random import Random
from typing import Any, NamedTuple

from msgspec import Struct

from fuzz.inputs import choose
from small_stores import all_records
from sparrowmq.broker.broker import Broker
from sparrowmq.broker.config import BrokerConfig
from sparrowmq.broker.config_saving import SavedTables
from sparrowmq.broker.journal_records import decode_changes
from sparrowmq.broker.queue_lock_file import LockTable
from sparrowmq.errors import StoreError
from sparrowmq.nameserver.name_server import KVConfig
from sparrowmq.protocol.bodies import (
    ConsumerOffsetTable,
    DelayOffsetTable,
    SubscriptionGroupTable,
    TopicConfigTable,
    decode_body,
)
from sparrowmq.protocol.record import Record
from sparrowmq.simulation.faulty_disk import SimulatedStorage
from sparrowmq.store import MessageStore, PutStatus, StoreConfig
from sparrowmq.store.checkpoint import (
    CHECKPOINT_PATH,
    CHECKPOINT_SIZE,
    decode_checkpoint,
    encode_checkpoint,
)
from sparrowmq.store.config_file import read_config

CONFIG = StoreConfig(
    commit_log_file_size=2_048,
    consume_queue_file_size=200,
    index_slot_count=16,
    index_entry_count=64,
)
MESSAGE_COUNT = 24
# What stands behind the body of each message, up to its checksum.
_CHECKSUMMED = b"\x01T\x00\x1bTAGS\x01A\x02__CRC32#\x01"
_PATCH_HEAD = 3


class Files(NamedTuple):
    """The files of a store that was stopped, and the bodies it holds."""

    contents: dict[str, bytes]
    bodies: list[bytes]


@cache
def healthy() -> Files:
    """Return a small store of two log files."""
    storage = SimulatedStorage(Random(1))
    store = MessageStore(storage, CONFIG)
    store.load(timestamp_ms=1)
    bodies = [b"%d " % n + b"x" * (n * 13 % 60) for n in range(MESSAGE_COUNT)]
    for n, body in enumerate(bodies):
        record = Record(topic="T", queue_id=n % 2, body=body, properties="TAGS\x01A")
        store.put(record, timestamp_ms=n)
    store.close()
    contents = {path: _content(storage, path) for path in _paths(storage)}
    assert all(body + _CHECKSUMMED in _log(contents) for body in bodies)
    return Files(contents, bodies)


def _log(contents: dict[str, bytes]) -> bytes:
    return b"".join(contents[path] for path in sorted(contents) if path.startswith("commitlog/"))


def _paths(storage: SimulatedStorage, directory: str = "") -> list[str]:
    found: list[str] = []
    for name in storage.list_names(directory):
        path = f"{directory}/{name}" if directory else name
        below = _paths(storage, path)
        found += below or [path]
    return found


def _content(storage: SimulatedStorage, path: str) -> bytes:
    file = storage.open(path)
    return file.read(0, file.size)


def _disk(contents: dict[str, bytes]) -> SimulatedStorage:
    storage = SimulatedStorage(Random(1))
    for path, content in contents.items():
        storage.create(path, size=len(content)).write(0, content)
    return storage


def _patched(content: bytes, patches: bytes) -> bytes:
    """Put bytes over others, again and again: position (2 bytes), count (1), the bytes."""
    changed = bytearray(content)
    at = 0
    while at + _PATCH_HEAD <= len(patches):
        position = int.from_bytes(patches[at : at + 2], "big") % max(1, len(changed))
        end = at + _PATCH_HEAD + patches[at + 2] % 32
        new = patches[at + _PATCH_HEAD : end][: len(changed) - position]
        changed[position : position + len(new)] = new
        at = end
    return bytes(changed)


def _damaged(content: bytes, data: bytes) -> bytes:
    """Patch a file, cut or extend it, or have it hold the input itself."""
    way, rest = choose(data, ("patch", "patch", "cut", "extend", "replace"))
    if way == "patch":
        return _patched(content, rest)
    if way == "cut":
        return content[: int.from_bytes(rest[:2], "big") % (len(content) + 1)]
    if way == "extend":
        return content + rest
    return rest


def _check_store(contents: dict[str, bytes], *, keeps_all: bool) -> None:
    """Open a store: it refuses, or serves what it has and goes on."""
    storage = _disk(contents)
    store = MessageStore(storage, CONFIG)
    try:
        report = store.load(timestamp_ms=1)
    except StoreError:
        return
    found, bodies = [record.body for record in all_records(store)], healthy().bodies
    if keeps_all:
        assert bodies == found
    # Without its checksum a record passes for one of Apache's: nothing tells that its flags, which
    # may keep it out of its queue, are damaged.
    log = _log(contents)
    bodies = [body for body in bodies if body in found or body + _CHECKSUMMED in log]
    # What was written at the end of the log by somebody else may be whole records, too.
    assert bodies[: len(found)] == found[: len(bodies)] or report.lost_synced_bytes > 0
    put = store.put(Record(topic="T", queue_id=0, body=b"new"), timestamp_ms=99)
    assert put.status is PutStatus.PUT_OK
    store.close()
    again = MessageStore(storage, CONFIG)
    assert again.load(timestamp_ms=2).is_clean
    assert [*found, b"new"] == [record.body for record in all_records(again)]
    again.close()


def _choose_path(data: bytes, prefix: str) -> tuple[str, bytes]:
    paths = sorted(path for path in healthy().contents if path.startswith(prefix))
    return choose(data, paths)


def check_commit_log(data: bytes) -> None:
    """A damaged commit log is refused, or what is whole is served and what is lost is reported."""
    is_abort, rest = choose(data, (False, True))
    has_checkpoint, rest = choose(rest, (True, False))
    path, rest = _choose_path(rest, "commitlog/")
    contents = dict(healthy().contents)
    contents[path] = _damaged(contents[path], rest)
    if is_abort:
        contents["abort"] = b""
    if not has_checkpoint:
        del contents[CHECKPOINT_PATH]
    _check_store(contents, keeps_all=False)


def check_consume_queue(data: bytes) -> None:
    """A damaged consume queue is put right from the commit log."""
    is_abort, rest = choose(data, (False, True))
    path, rest = _choose_path(rest, "consumequeue/")
    contents = dict(healthy().contents)
    contents[path] = _damaged(contents[path], rest)
    if is_abort:
        contents["abort"] = b""
    _check_store(contents, keeps_all=True)


def check_checkpoint(data: bytes) -> None:
    """A checkpoint survives encoding, and a wrong one loses no message silently."""
    contents = dict(healthy().contents)
    content = _damaged(contents[CHECKPOINT_PATH], data)
    checkpoint = decode_checkpoint(content)
    if checkpoint.mark is not None:
        encoded = encode_checkpoint(checkpoint).ljust(CHECKPOINT_SIZE, b"\0")
        assert checkpoint == decode_checkpoint(encoded)
    contents[CHECKPOINT_PATH] = content
    _check_store(contents, keeps_all=True)


_TABLES: tuple[tuple[str, type[Struct]], ...] = (
    ("topics", TopicConfigTable),
    ("groups", SubscriptionGroupTable),
    ("offsets", ConsumerOffsetTable),
    ("delays", DelayOffsetTable),
    ("locks", LockTable),
)


def _saved(name: str, table: Any) -> SavedTables:
    return SavedTables()._replace(**{name: table})


def check_config_files(data: bytes) -> None:
    """A broker refuses a table that it cannot read, and serves with any that it can."""
    (name, table_type), content = choose(data, _TABLES)
    storage = _disk({"config/x.json": content})
    try:
        table = read_config(storage, "config/x.json", partial(decode_body, table_type)).value
    except StoreError:
        return
    store = MessageStore(SimulatedStorage(Random(1)), CONFIG)
    store.load(timestamp_ms=1)
    broker = Broker(
        BrokerConfig(address="127.0.0.1:10911"),
        store,
        random_below=lambda count: count - 1,
        saved=_saved(name, table),
        now_ms=0,
        timestamp_ms=0,
    )
    list(broker.tick(now_ms=10_000, timestamp_ms=10_000))
    journal = broker.journal_work(now_ms=10_000)
    if journal is not None:
        assert decode_changes(journal.encode())
        broker.journaled(journal, None)
    broker.ask_last_save()
    save = broker.save_work(now_ms=10_000)
    if save is not None:
        assert all(content for _, content in save.encode())
    store.close()


def check_kv_config(data: bytes) -> None:
    """A name server's table is read or refused, and survives writing."""
    storage = _disk({"kvConfig.json": data})
    with contextlib.suppress(StoreError):
        table = read_config(storage, "kvConfig.json", KVConfig.decode).value
        if table is not None:
            assert table.encode() == KVConfig.decode(table.encode()).encode()

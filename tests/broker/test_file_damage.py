"""Each byte of each file that servers keep beside messages damaged: they start or say which file.

RocketMQ's files have no checksum. A file whose JSON is cut off, zeroed or overwritten can no longer
be understood, and its backup holds instead; a flipped bit may make another digit or another name of
one, which nothing shows. What has a checksum of its own shows any damage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.broker.disk_machine import Machine

from small_stores import SMALL, all_records, flush, open_store
from sparrowmq.broker import queue_lock_file
from sparrowmq.broker.audit_log import AuditTable
from sparrowmq.broker.config_files import CONFIG_DIRECTORY, read_tables
from sparrowmq.broker.config_saving import (
    AUDIT_FILE,
    DELAYS_FILE,
    GROUPS_FILE,
    LOCKS_FILE,
    MODES_FILE,
    OFFSETS_FILE,
    PLANS_FILE,
    POPS_FILE,
    TOPICS_FILE,
)
from sparrowmq.broker.journal_records import LockChange, encode_changes
from sparrowmq.broker.pop_changes import Flight, PopTable, SavedQueue
from sparrowmq.broker.timer_check_file import TIMER_CHECK_FILE, encode_timer_check
from sparrowmq.broker.timer_messages import TimerTable
from sparrowmq.broker.topic_configs import plain
from sparrowmq.errors import ConfigError, StoreError
from sparrowmq.hosting.settings import SETTINGS
from sparrowmq.hosting.settings_file import read_settings
from sparrowmq.model import MessageQueue
from sparrowmq.nameserver.name_server import KVConfig
from sparrowmq.nameserver.server import KV_CONFIG_FILE
from sparrowmq.protocol.bodies import (
    AuditRecord,
    ConsumerOffsetTable,
    DelayOffsetTable,
    GroupPlan,
    GroupPlanTable,
    RequestMode,
    RequestModeTable,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfigTable,
    encode_body,
)
from sparrowmq.protocol.record import Record, encode_host
from sparrowmq.serving.access_file import AccessFile
from sparrowmq.simulation.faulty_disk import PowerCut, SimulatedStorage
from sparrowmq.store import MessageStore
from sparrowmq.store.checkpoint import CHECKPOINT_PATH
from sparrowmq.store.clean_stop import STOP_PATH
from sparrowmq.store.config_file import read_config, write_config
from sparrowmq.store.journal import Journal

pytestmark = pytest.mark.slow

# Of longer files, only each seventh byte is damaged.
WHOLE_BYTES_MAX = 400
HOST = encode_host("10.0.0.1:1")
QUEUE = MessageQueue("T", "broker-a", 0)


def damages(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the content cut off, zeroed or overwritten from each byte on, and a bit flipped."""
    rng = Random(len(content))
    for at in range(0, len(content), 1 if len(content) <= WHOLE_BYTES_MAX else 7):
        yield "truncate", content[:at]
        yield "zero", content[:at] + bytes(len(content) - at)
        yield "noise", content[:at] + rng.randbytes(len(content) - at)
        flipped = bytearray(content)
        flipped[at] ^= 1 << rng.randrange(8)
        yield "flip", bytes(flipped)


def json_files(n: int) -> dict[str, bytes]:
    """Return the content of each JSON file of a broker; `n` makes another one."""
    kv_config = KVConfig({"orders": {"T": f"broker-a:{n}"}})
    topic = plain("T", queue_count=n)
    group = SubscriptionGroupConfig(group_name="GID_c", retry_max_times=n)
    plan = GroupPlan(epoch=n, client_ids=["a"], owners={"a": [QUEUE]})
    mode = RequestMode(topic="T", consumer_group="GID_c", mode="POP", pop_share_queue_num=n)
    flights = {n: Flight(n, 1_000, 0)}
    queue = SavedQueue(group="GID_c", topic="T", queue_id=0, next_offset=n + 1, flights=flights)
    audit = AuditRecord(
        timestamp_ms=n,
        since_timestamp_ms=n,
        kind="settings",
        group="GID_c",
        topic="T",
        address="10.0.0.1:1",
    )
    tables: dict[str, Any] = {
        TOPICS_FILE: TopicConfigTable(topic_config_table={"T": topic}),
        GROUPS_FILE: SubscriptionGroupTable(subscription_group_table={"GID_c": group}),
        OFFSETS_FILE: ConsumerOffsetTable(offset_table={"T@GID_c": {0: n}}),
        DELAYS_FILE: DelayOffsetTable(offset_table={1: n}),
        PLANS_FILE: GroupPlanTable(plans={"GID_c": plan}),
        MODES_FILE: RequestModeTable(message_request_mode_map={"T": {"GID_c": mode}}),
        POPS_FILE: PopTable(log_offset=n, queues=[queue]),
        AUDIT_FILE: AuditTable(records=[audit]),
    }
    return {name: encode_body(table, pretty=True) for name, table in tables.items()} | {
        LOCKS_FILE: queue_lock_file.encode([LockChange("GID_c", QUEUE, "a", n * 1_000)]),
        KV_CONFIG_FILE: kv_config.encode(),
    }


# How each is read at a start: what it says and what was logged about it.
def read_of_broker(disk: SimulatedStorage) -> tuple[object, str]:
    tables, losses = read_tables(disk)
    assert len(tables.damaged) <= len(losses)
    return tables._replace(damaged=frozenset()), "; ".join(losses)


def read_of_name_server(disk: SimulatedStorage) -> tuple[object, str]:
    value, damage = read_config(disk, KV_CONFIG_FILE, KVConfig.decode)
    return value and value.table("orders"), damage or ""


def reader(name: str) -> tuple[str, Callable[[SimulatedStorage], tuple[object, str]]]:
    """Return a file's path, and what reads it."""
    if name == KV_CONFIG_FILE:
        return name, read_of_name_server
    return f"{CONFIG_DIRECTORY}/{name}", read_of_broker


def starts(disk: SimulatedStorage) -> None:
    """Start a broker over what the disk says, however odd its numbers are."""
    Machine(disk.copy()).pass_time(200)


@pytest.mark.parametrize("name", sorted(json_files(1)))
def test_backup_holds_where_a_json_file_is_damaged_and_a_flipped_bit_may_not_be_seen(
    name: str,
) -> None:
    path, read = reader(name)
    old, new = json_files(3)[name], json_files(4)[name]
    disk = SimulatedStorage(Random(0))
    write_config(disk, path, old)
    former, _ = read(disk)
    write_config(disk, path, new)
    present, _ = read(disk)
    assert former != present

    for kind, damaged in damages(new):
        disk.inodes[path].replace(damaged)
        found, said = read(disk)

        if found == present or (kind == "flip" and not said):
            if read is read_of_broker and found != present:
                starts(disk)
        else:
            assert (found, path in said, "\n" in said) == (former, True, False), damaged


@pytest.mark.parametrize("name", [OFFSETS_FILE, TOPICS_FILE])
def test_broker_that_began_with_a_backup_has_a_whole_file_wherever_it_is_killed(name: str) -> None:
    machine = Machine(SimulatedStorage(Random(0)))
    machine.commit(1)
    machine.stop()
    disk, kills = machine.storage, 0
    disk.inodes[f"{CONFIG_DIRECTORY}/{name}"].replace(b"{")

    for changes in range(100):
        disk = machine.storage.copy()
        disk.changes_left = changes
        try:
            killed = Machine(disk)
            killed.commit(2)
            killed.stop()
        except PowerCut:
            kills += 1
        disk.changes_left = None
        disk.kill()
        read_tables(disk)
    assert 10 < kills < 90
    assert read_tables(disk).losses == []


@pytest.mark.parametrize("name", sorted(json_files(1)))
def test_start_is_refused_or_says_what_begins_anew_where_the_backup_is_damaged_too(
    name: str,
) -> None:
    path, read = reader(name)
    content = json_files(4)[name]
    disk = SimulatedStorage(Random(0))
    for _ in range(2):
        write_config(disk, path, content)
    present, _ = read(disk)

    for kind, damaged in damages(content):
        for each in (path, f"{path}.bak"):
            disk.inodes[each].replace(damaged)
        is_refused = False
        try:
            found, said = read(disk)
        except StoreError as error:
            found, said, is_refused = None, str(error), True

        if found != present and not (kind == "flip" and not said):
            # Without the record of changes by operators no message is lost.
            assert is_refused is (name != AUDIT_FILE), damaged
            assert (path in said, f"{path}.bak" in said, "\n" in said) == (True, True, False)


def test_broker_starts_whatever_is_in_the_file_of_its_timers() -> None:
    path = f"{CONFIG_DIRECTORY}/{TIMER_CHECK_FILE}"
    table = TimerTable(begin=3, read=5, delivered_ms=1_700_000_000_000)
    content = encode_timer_check(table)
    disk = SimulatedStorage(Random(0))
    write_config(disk, path, content)
    present, _ = read_of_broker(disk)
    del disk.inodes[f"{path}.bak"]
    seen = set()

    # RocketMQ's file of numbers: only what cannot be a number of its kind is seen.
    for _, damaged in damages(content[:40]):
        disk.inodes[path].replace(damaged + content[40:])
        found, said = read_of_broker(disk)

        seen.add(bool(said))
        if said:
            assert path in said
        elif found != present:
            starts(disk)
    assert seen == {True, False}


def test_journal_gives_whole_changes_alone_and_names_a_damage_between_two() -> None:
    disk = SimulatedStorage(Random(0))
    journal = Journal(disk, CONFIG_DIRECTORY)
    changes = [LockChange(f"GID_{n}", QUEUE, "a", 1_000) for n in range(4)]
    for change in changes:
        journal.append(1, encode_changes([change]))
    path = f"{CONFIG_DIRECTORY}/journal.00000001"
    content = bytes(disk.inodes[path].data).rstrip(b"\0")

    for kind, damaged in damages(content):
        disk.inodes[path].replace(damaged)
        tables, losses = read_tables(disk)
        found = list(tables.changes)

        assert [change for change in changes if change in found] == found, damaged
        # A damaged end looks like that of a change that nobody was answered about.
        has_hole = found != changes[: len(found)]
        assert [path in loss for loss in losses] == [True] * has_hole, (kind, losses)
        assert len(found) == 3 or kind != "flip"


@pytest.mark.parametrize(
    ("path", "is_killed"), [(CHECKPOINT_PATH, True), (CHECKPOINT_PATH, False), (STOP_PATH, False)]
)
def test_store_has_all_messages_whatever_is_in_a_file_that_shortens_its_start(
    path: str, is_killed: bool
) -> None:
    disk = SimulatedStorage(Random(0))
    store = open_store(disk)
    for n in range(30):
        body = b"body %d" % n * 20
        record = Record(topic="T", queue_id=n % 2, body=body, born_host=HOST, store_host=HOST)
        store.put(record, timestamp_ms=1_000 * n + 5)
        flush(store)
    wanted = [record.body for record in all_records(store)]
    killed = disk.copy()
    store.close()
    if is_killed:
        killed.inodes[path] = disk.inodes[path]
        disk = killed
    whole = bytes(disk.inodes[path].data)
    written, rest = whole[:WHOLE_BYTES_MAX], whole[WHOLE_BYTES_MAX:]
    assert len(wanted) == 30

    for kind, damaged in damages(written):
        copy = disk.copy()
        copy.inodes[path].replace(damaged if kind == "truncate" else damaged + rest)
        again = MessageStore(copy, SMALL)
        again.load(timestamp_ms=60_000)

        assert [record.body for record in all_records(again)] == wanted, (kind, damaged)


ACCESS = """\
globalWhiteRemoteAddresses:
  - 10.10.103.*
accounts:
  - accessKey: rocketmq2
    secretKey: 12345678
    admin: true
"""
CONFIG = "flush = sync\nlog-file-mib = 16\nretention-hours = 72\n"


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (ACCESS, lambda path: AccessFile(path, own=None)),
        (CONFIG, lambda path: read_settings(path, SETTINGS)),
    ],
    ids=["accounts", "settings"],
)
def test_damaged_file_that_people_write_is_refused_by_its_name_or_understood(
    text: str, read: Callable[[Path], object], tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    read(path)
    refusals = []

    for _, damaged in damages(text.encode()):
        path.write_bytes(damaged)
        try:
            read(path)
        except ConfigError as error:
            refusals.append(str(error))
    assert refusals
    assert [each for each in refusals if str(path) not in each] == []

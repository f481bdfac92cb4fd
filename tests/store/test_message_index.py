"""The index: what queries find, when it is built, and what becomes of it when the disk fails."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from small_stores import all_records, find_records, open_store
from sparrowmq.protocol.record import Record
from sparrowmq.simulation.faulty_disk import PowerCut, SimulatedFile, SimulatedStorage
from sparrowmq.store import MessageStore, PutStatus, StoreConfig
from sparrowmq.store.checkpoint import (
    Checkpoint,
    IndexMark,
    Mark,
    decode_checkpoint,
    encode_checkpoint,
    read_checkpoint,
)
from sparrowmq.store.file_storage import FileStorage
from sparrowmq.store.index_file import HEADER_SIZE, IndexHeader, index_file_size
from sparrowmq.store.store_check import Soundness, StoreCheck
from steps import run_steps

CONFIG = StoreConfig(
    commit_log_file_size=16384,
    index_slot_count=7,
    index_entry_count=6,
    consume_queue_file_size=200,
)
NewRecord = Callable[..., Record]
pytestmark = pytest.mark.usefixtures("both_ways")


def put(store: MessageStore, record: Record, *, timestamp_ms: int) -> None:
    assert store.put(record, timestamp_ms=timestamp_ms).status is PutStatus.PUT_OK
    work = store.flush_work()
    if work is not None:
        work.run()
        store.flush_done(work, None)
    store.dispatch()


def query(store: MessageStore, key: str, *, topic: str = "T", **limits: int) -> list[bytes]:
    return [record.body for record in find_records(store, topic, key, **limits)]


@pytest.fixture
def store(storage: Any, new_record: NewRecord) -> MessageStore:
    """A store with 12 messages, a second apart, in several index files."""
    store = open_store(storage, CONFIG)
    for number in range(12):
        properties = f"UNIQ_KEY\x01U{number}\x02KEYS\x01all mod{number % 3}"
        record = new_record(b"%d" % number, properties=properties)
        put(store, record, timestamp_ms=1_000_000 + 1000 * number)
    return store


def test_messages_are_found_by_id_and_by_each_key(store: MessageStore) -> None:
    assert query(store, "U7") == [b"7"]
    assert query(store, "mod1") == [b"1", b"4", b"7", b"10"]
    assert [b"%d" % number for number in range(12)] == query(store, "all")
    assert query(store, "none") == []


def test_a_key_counts_within_its_topic(storage: Any, new_record: NewRecord) -> None:
    store = open_store(storage, CONFIG)
    for topic in ("T", "U"):
        put(store, new_record(topic.encode(), topic=topic, properties="KEYS\x01k"), timestamp_ms=1)

    assert (query(store, "k"), query(store, "k", topic="U")) == ([b"T"], [b"U"])


def test_a_query_returns_the_latest_and_those_of_its_time(store: MessageStore) -> None:
    assert query(store, "all", count_max=3) == [b"9", b"10", b"11"]
    assert query(store, "all", begin_timestamp_ms=1_004_000, end_timestamp_ms=1_005_999) == [
        b"4",
        b"5",
    ]
    assert query(store, "all", bytes_max=1) == [b"11"]


def test_a_message_that_has_a_key_twice_counts_once(storage: Any, new_record: NewRecord) -> None:
    store = open_store(storage, CONFIG)
    for body in (b"1", b"2"):
        put(store, new_record(body, properties="UNIQ_KEY\x01k\x02KEYS\x01k"), timestamp_ms=1)

    size = store.appended_position
    assert query(store, "k", count_max=2, bytes_max=size) == [b"1", b"2"]
    assert query(store, "k", bytes_max=size - 1) == [b"2"]


def test_messages_of_one_millisecond_are_found_in_all_files(
    storage: Any, new_record: NewRecord
) -> None:
    store = open_store(storage, CONFIG)
    for number in range(12):
        put(store, new_record(b"%d" % number, properties="KEYS\x01all"), timestamp_ms=1_000)

    assert len(query(store, "all", begin_timestamp_ms=1_000, end_timestamp_ms=1_000)) == 12
    assert len(storage.list_names("index")) > 1


@pytest.mark.parametrize(
    ("properties", "keys"),
    [
        ("KEYS\x01a\x02KEYS\x01b", {"b"}),
        ("KEYS\x01a\x02KEYS\x01", {"a"}),
        ("MYKEYS\x01a\x02X\x01KEYS\x01b", set()),
        ("KEYS\x01 a  b ", {"a", "b"}),
        ("UNIQ_KEY\x01a\x02", {"a"}),
        ("KEYS\x01 schlüssel 鍵", {"schlüssel", "鍵"}),
        (f"KEYS\x01{'k' * 200}", {"k" * 200}),
        ("", set()),
    ],
)
def test_keys_are_those_that_java_reads(
    storage: Any, new_record: NewRecord, properties: str, keys: set[str]
) -> None:
    store = open_store(storage, CONFIG)
    put(store, new_record(b"x", properties=properties), timestamp_ms=1)

    candidates = {"", "a", "b", "KEYS\x01b", *keys}
    assert keys == {key for key in candidates if query(store, key)}


@pytest.mark.parametrize(("sys_flag", "is_found"), [(0x4, True), (0x8, True), (0xC, False)])
def test_a_rolled_back_message_has_no_key(
    storage: Any, new_record: NewRecord, sys_flag: int, is_found: bool
) -> None:
    store = open_store(storage, CONFIG)
    put(store, new_record(b"x", properties="KEYS\x01a", sys_flag=sys_flag), timestamp_ms=1)

    assert is_found is bool(query(store, "a"))


def test_records_of_ipv6_hosts_and_long_records_are_indexed(
    storage: Any, new_record: NewRecord
) -> None:
    config = replace(CONFIG, commit_log_file_size=1 << 20)
    store = open_store(storage, config)
    record = new_record(b"x" * 300_000, properties="KEYS\x01long")
    put(store, record, timestamp_ms=5_000)
    record = new_record(b"v6", properties="KEYS\x01v6")
    record.born_host = record.store_host = bytes(15) + b"\x01" + bytes(4)
    put(store, record, timestamp_ms=9_000)

    assert [len(body) for body in query(store, "long")] == [300_000]
    assert query(store, "v6", begin_timestamp_ms=8_000) == [b"v6"]


def test_an_index_survives_a_clean_stop_without_another_look_at_the_log(
    store: MessageStore, storage: Any
) -> None:
    store.close()
    again = open_store(storage, CONFIG)

    assert len(query(again, "all")) == 12
    assert again.appended_position == again._index.built_position


def check_all_keys(store: MessageStore) -> None:
    """Each message is found by each of its keys, and counts once."""
    bodies = [b"%d" % number for number in range(12)]
    for number, body in enumerate(bodies):
        assert query(store, f"U{number}", count_max=1) == [body]
    assert query(store, "all", count_max=5) == bodies[-5:]
    assert [query(store, f"mod{n}", count_max=4) for n in range(3)] == [
        bodies[n::3] for n in range(3)
    ]


@pytest.mark.parametrize("timestamp_ms", range(1_000_000, 1_012_000, 1_000))
def test_files_that_another_broker_has_left_after_a_crash_are_built_anew(
    store: MessageStore, storage: Any, timestamp_ms: int
) -> None:
    """A file has five entries and a message three keys: a file ends amid the keys of a message."""
    store.close()
    # Apache's broker writes the three timestamps alone; it was killed later.
    sector = b"".join(each.to_bytes(8, "big") for each in (1_011_000, 1_011_000, timestamp_ms))
    storage.open("checkpoint").write(0, sector)
    storage.create("abort", size=0)
    names = storage.list_names("index")

    again = open_store(storage, CONFIG)

    kept = storage.list_names("index")
    assert kept == names[: len(kept)]
    assert (len(kept) == len(names)) is (timestamp_ms == 1_011_000)
    check_all_keys(again)


def cut(file: Any) -> None:
    file.resize(60)


def count_too_many(file: Any) -> None:
    file.write(38, b"\1")


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("damage", [cut, count_too_many])
@pytest.mark.parametrize("at", range(8))
def test_a_damaged_file_and_the_files_after_it_are_built_anew(
    store: MessageStore, storage: Any, at: int, damage: Callable[[Any], None], is_clean: bool
) -> None:
    store.close()
    names = storage.list_names("index")
    damage(storage.open(f"index/{names[at]}"))
    if not is_clean:
        storage.create("abort", size=0)

    again = open_store(storage, CONFIG)

    assert storage.list_names("index") == names[:at]
    check_all_keys(again)


@pytest.mark.parametrize("ends", [SimulatedStorage.kill, SimulatedStorage.lose_power])
@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("at", [0, 2, 6])
def test_a_crash_while_damaged_files_are_removed_takes_no_keys(
    store: MessageStore, storage: Any, at: int, is_clean: bool, ends: Callable[[Any], Any]
) -> None:
    store.close()
    cut(storage.open(f"index/{storage.list_names('index')[at]}"))
    if not is_clean:
        storage.create("abort", size=0)

    for changes in range(16):
        disk = storage.copy()
        disk.changes_left = changes
        with suppress(PowerCut):
            open_store(disk, CONFIG)
        check_all_keys(open_store(ends(disk), CONFIG))


@pytest.mark.parametrize("slot_count", [7, 8_192])
def test_keys_of_records_that_the_log_has_lost_go_with_them(
    storage: Any, new_record: NewRecord, slot_count: int
) -> None:
    config = replace(CONFIG, index_slot_count=slot_count)
    store = open_store(storage, config)
    for number in range(12):
        properties = f"UNIQ_KEY\x01U{number}\x02KEYS\x01all mod{number % 3}"
        put(store, new_record(b"%d" % number, properties=properties), timestamp_ms=number)
    entry = store.queues.entry("T", 0, 2)
    assert entry is not None
    store.close()
    log = storage.inodes["commitlog/00000000000000000000"]
    log.data[entry[0] :] = bytes(len(log.data) - entry[0])

    again = open_store(storage, config)
    assert query(again, "all") == [b"0", b"1"]
    put(again, new_record(b"new", properties="KEYS\x01all"), timestamp_ms=2_000_000)

    assert query(again, "all") == [b"0", b"1", b"new"]
    again.close()
    findings = [f for f in StoreCheck(storage, config).run() if f.path.startswith("index")]
    assert {finding.state for finding in findings} == {Soundness.SOUND}


@pytest.mark.parametrize("counts", [(100, 6), (7, 40), (30, 33)])
def test_a_store_keeps_the_numbers_of_its_first_index_file(
    storage: Any, new_record: NewRecord, counts: tuple[int, int]
) -> None:
    """A broker of Apache's with another maxHashSlotNum, another maxIndexNum, or both."""
    theirs = replace(CONFIG, index_slot_count=counts[0], index_entry_count=counts[1])
    store = open_store(storage, theirs)
    for number in range(2):
        properties = f"UNIQ_KEY\x01U{number}\x02KEYS\x01all"
        put(store, new_record(b"%d" % number, properties=properties), timestamp_ms=1)
    store.close()
    # Apache's broker writes no mark of the index.
    storage.open("checkpoint").write(0, bytes(storage.open("checkpoint").size))
    ours = replace(CONFIG, index_slot_count=100, index_entry_count=40)

    store = open_store(storage, ours)
    for number in range(2, 40):
        properties = f"UNIQ_KEY\x01U{number}\x02KEYS\x01all"
        put(store, new_record(b"%d" % number, properties=properties), timestamp_ms=1 + number)
    store.close()

    sizes = {storage.open(f"index/{name}").size for name in storage.list_names("index")}
    assert sizes == {index_file_size(*counts)}
    for config in (theirs, ours):
        again = open_store(storage, config)
        assert [query(again, f"U{number}") for number in range(40)] == [
            [b"%d" % number] for number in range(40)
        ]
        again.close()
    findings = [f for f in StoreCheck(storage, ours).run() if f.path.startswith("index")]
    assert {finding.state for finding in findings} == {Soundness.SOUND}
    # Each key once: two of 40 messages.
    assert sum(int(finding.text.split()[0]) for finding in findings) == 80


def test_a_log_without_an_index_gets_one_in_idle_moments(
    store: MessageStore, storage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.close()
    for name in storage.list_names("index"):
        storage.remove(f"index/{name}")
    storage.remove("checkpoint")
    monkeypatch.setattr("sparrowmq.store.message_index._CHUNK_BYTES", 400)
    monkeypatch.setattr("sparrowmq.store.message_store._INDEX_STEP_BYTES", 400)
    monkeypatch.setattr("sparrowmq.store.message_store._INDEX_REST_BYTES_MAX", 400)
    again = open_store(storage, CONFIG)

    found, _ = run_steps(
        again.query(
            "T", "all", count_max=9, bytes_max=1, begin_timestamp_ms=0, end_timestamp_ms=1 << 62
        )
    )
    assert 0 < found.unindexed_bytes < again.appended_position
    for _ in range(20):
        again.build_index()

    assert len(query(again, "all")) == 12


@pytest.mark.parametrize("at", [2, 4, 6], ids=["size", "magic", "end of the magic"])
def test_a_damaged_record_keeps_none_behind_it_from_the_index(
    store: MessageStore, storage: Any, at: int
) -> None:
    entry = store.queues.entry("T", 0, 5)
    assert entry is not None
    storage.inodes["commitlog/00000000000000000000"].data[entry[0] + at] ^= 0x40

    assert query(store, "all") == [b"%d" % number for number in range(12) if number != 5]


@pytest.mark.parametrize("long_size", [1, 300_000])
@pytest.mark.parametrize("page_count", [1, 3])
def test_pages_of_the_log_that_the_disk_has_lost_keep_none_behind_them_from_the_index(
    storage: Any,
    new_record: NewRecord,
    monkeypatch: pytest.MonkeyPatch,
    page_count: int,
    long_size: int,
) -> None:
    store = open_store(storage, replace(CONFIG, commit_log_file_size=1 << 20))
    sizes = [long_size, *[1_500] * 19]
    for number, size in enumerate(sizes):
        record = new_record(b"x" * size, properties=f"UNIQ_KEY\x01U{number}")
        put(store, record, timestamp_ms=number)
    records = all_records(store)
    begin = records[5].position if long_size == 1 else 270_000
    lost = range(begin - begin % 4096, begin - begin % 4096 + 4096 * page_count)
    whole = [
        record.position + record.size <= lost.start or record.position >= lost.stop
        for record in records
    ]
    read = SimulatedFile.read

    def fail(file: SimulatedFile, position: int, size: int) -> bytes:
        if (
            file.path.startswith("commitlog/")
            and position < lost.stop
            and lost.start < position + size
        ):
            raise OSError(errno.EIO, "unreadable")
        return read(file, position, size)

    monkeypatch.setattr(SimulatedFile, "read", fail)

    assert 0 < whole.count(False) < 12
    assert [query(store, f"U{number}") != [] for number in range(20)] == whole


def test_a_disk_that_does_not_answer_for_a_while_takes_no_keys(
    store: MessageStore, storage: Any
) -> None:
    storage.read_error = OSError(errno.EIO, "the disk does not answer")
    for _ in range(9):
        store.build_index()
    storage.mend()

    check_all_keys(store)


def test_the_index_lags_by_a_bound_at_most(
    storage: Any, new_record: NewRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparrowmq.store.message_store.LAG_BYTES_MAX", 1000)
    monkeypatch.setattr("sparrowmq.store.message_index._CHUNK_BYTES", 200)
    store = open_store(storage, CONFIG)
    lags = []
    for number in range(50):
        put(store, new_record(b"x", properties=f"KEYS\x01k{number}"), timestamp_ms=1)
        lags.append(store.appended_position - store._index.built_position)

    assert max(lags) + 200 > 1000
    assert max(lags) <= 1000
    assert query(store, "k49") == [b"x"]


def test_a_full_disk_stops_the_index_and_not_the_messages(
    storage: Any, new_record: NewRecord
) -> None:
    store = open_store(storage, CONFIG)
    put(store, new_record(b"x", properties="KEYS\x01a"), timestamp_ms=1)
    assert query(store, "a") == [b"x"]

    for body in (b"y1", b"y2"):
        put(store, new_record(body, properties="KEYS\x01a"), timestamp_ms=2)
    storage.bytes_left = 0
    store.build_index()
    storage.bytes_left = None
    put(store, new_record(b"z", properties="KEYS\x01a"), timestamp_ms=3)

    assert query(store, "a") == [b"x", b"y1", b"y2", b"z"]


def checkpoint_work(store: MessageStore, new_record: NewRecord, *, timestamp_ms: int) -> Any:
    """Return a flush that includes a checkpoint and a part of the index."""
    put(store, new_record(b"w", properties="KEYS\x01a"), timestamp_ms=1)
    store.build_index()
    store.put(new_record(b"w", properties="KEYS\x01a"), timestamp_ms=timestamp_ms)
    work = store.flush_work()
    assert work is not None
    assert work.index is not None
    return work


def test_slots_that_a_full_disk_does_not_take_are_written_later(
    storage: Any, new_record: NewRecord
) -> None:
    store = open_store(storage, CONFIG)
    work = checkpoint_work(store, new_record, timestamp_ms=1_000_000)
    storage.open = of_the_index(storage.open, "write", OSError(errno.ENOSPC, "no space"))
    work.run()
    store.flush_done(work, None)
    del storage.open
    assert store.is_writable
    mark = read_checkpoint(storage).index
    assert mark is not None
    assert mark.position == 0

    store.close()

    after = open_store(storage.copy(), CONFIG)
    assert len(query(after, "a")) == 2


def test_slots_of_several_pages_that_a_full_disk_does_not_take_are_written_later(
    storage: Any, new_record: NewRecord
) -> None:
    config = replace(CONFIG, index_slot_count=3_000, index_entry_count=100)
    keys = [f"k{number}" for number in range(60)]
    store = open_store(storage, config)
    put(store, new_record(b"x", properties=f"KEYS\x01{' '.join(keys)}"), timestamp_ms=1)
    work = checkpoint_work(store, new_record, timestamp_ms=1_000_000)
    storage.open = of_the_index(storage.open, "write", OSError(errno.ENOSPC, "no space"))
    work.run()
    store.flush_done(work, None)
    del storage.open
    store.close()

    again = open_store(storage, config)
    assert [query(again, key) for key in keys] == [[b"x"]] * 60


def of_the_index(open_file: Any, step: str, error: OSError, *, at: int | None = None) -> Any:
    """Return an `open` that gives files of the index which fail at a step, or at a position."""

    def open_failing(path: str, **how: bool) -> Any:
        file = open_file(path, **how)
        if path.startswith("index/"):
            whole = getattr(file, step)

            def fail(*arguments: Any) -> None:
                if at in (None, *arguments[:1]):
                    raise error
                whole(*arguments)

            setattr(file, step, fail)
        return file

    return open_failing


def test_a_sync_of_the_index_that_lacks_memory_is_made_again(
    storage: Any, new_record: NewRecord
) -> None:
    store = open_store(storage, CONFIG)
    work = checkpoint_work(store, new_record, timestamp_ms=1_000_000)
    storage.open = of_the_index(storage.open, "sync", OSError(errno.ENOMEM, "no memory"))
    work.run()
    store.flush_done(work, None)
    del storage.open

    assert store.index_failure is None
    store.close()
    assert not storage.has("abort")
    assert len(query(open_store(storage, CONFIG), "a")) == 2


NO_CHECKPOINTS = replace(CONFIG, index_entry_count=99, checkpoint_interval_ms=1 << 40)


def reopened_store(storage: Any, new_record: NewRecord, *, step_ms: int = 0) -> MessageStore:
    """Return a store of twelve messages with keys, which was stopped and opened after the sixth."""
    store = open_store(storage, NO_CHECKPOINTS)
    for number in range(12):
        if number == 6:
            store.close()
            store = open_store(storage, NO_CHECKPOINTS)
        properties = f"UNIQ_KEY\x01U{number}\x02KEYS\x01all mod{number % 3}"
        record = new_record(b"%d" % number, properties=properties)
        put(store, record, timestamp_ms=1_000_000 + step_ms * number)
    store.build_index()
    return store


@pytest.mark.parametrize("seed", range(12))
def test_a_power_cut_while_the_index_is_written_takes_no_keys(
    new_storage: Callable[..., Any], new_record: NewRecord, seed: int
) -> None:
    storage = new_storage(Random(seed))
    store = reopened_store(storage, new_record)
    work = store._index.take_flush()
    assert work is not None
    # During a sync of the entries, a write of slots, that of the header, a sync of the slots.
    storage.changes_left = seed % 4
    with pytest.raises(PowerCut):
        work.run()

    check_all_keys(open_store(storage.lose_power(), NO_CHECKPOINTS))


def test_one_entry_that_no_checkpoint_knows_hides_none_before_it(
    storage: Any, new_record: NewRecord
) -> None:
    store = open_store(storage, NO_CHECKPOINTS)
    put(store, new_record(b"1", properties="KEYS\x01k"), timestamp_ms=1)
    store.close()
    store = open_store(storage, NO_CHECKPOINTS)
    put(store, new_record(b"2", properties="KEYS\x01k"), timestamp_ms=2)
    store.build_index()
    work = store._index.take_flush()
    assert work is not None
    work.run()

    assert query(open_store(storage.kill(), NO_CHECKPOINTS), "k") == [b"1", b"2"]


def test_damaged_entries_that_lead_in_a_circle_end_a_search_and_a_start(
    storage: Any, new_record: NewRecord
) -> None:
    store = open_store(storage, NO_CHECKPOINTS)
    for number in (1, 2):
        put(store, new_record(b"%d" % number, properties="KEYS\x01k"), timestamp_ms=1)
    store.build_index()
    work = store._index.take_flush()
    assert work is not None
    work.run()
    (name,) = storage.list_names("index")
    # The second entry names itself as the one before it.
    at = HEADER_SIZE + 4 * NO_CHECKPOINTS.index_slot_count + 20 * 2 + 16
    storage.open(f"index/{name}").write(at, (2).to_bytes(4, "big"))

    assert query(store, "k") == [b"2"]
    assert query(open_store(storage.kill(), NO_CHECKPOINTS), "k") == [b"1", b"2"]


def test_slots_that_were_not_written_are_those_of_their_file(
    store: MessageStore, storage: Any, new_record: NewRecord
) -> None:
    work = checkpoint_work(store, new_record, timestamp_ms=2_000_000)
    work.run()
    store.flush_done(work, None)
    work = checkpoint_work(store, new_record, timestamp_ms=3_000_000)
    storage.open = of_the_index(storage.open, "write", OSError(errno.ENOSPC, "no space"))
    work.run()
    store.flush_done(work, None)

    written = {each.path for each in work.index.writes}
    assert {f._file.path for f in store._index._files if f.is_dirty} == written
    assert len(written) < len(store._index._files)


def test_a_stop_on_a_full_disk_takes_no_keys(storage: Any, new_record: NewRecord) -> None:
    store = reopened_store(storage, new_record, step_ms=1)
    # The slots fit, and the header does not.
    storage.open = of_the_index(storage.open, "write", OSError(errno.ENOSPC, "no space"), at=0)
    store.close()
    del storage.open
    assert storage.has("abort")

    again = open_store(storage, NO_CHECKPOINTS)
    put(again, new_record(b"later", properties="KEYS\x01later"), timestamp_ms=2_000_000)
    check_all_keys(again)
    assert query(again, "later") == [b"later"]


def test_a_damaged_count_of_entries_is_that_of_the_last_stop(
    storage: Any, new_record: NewRecord
) -> None:
    store = open_store(storage, CONFIG)
    put(store, new_record(b"x", properties="KEYS\x01a b c"), timestamp_ms=1)
    store.close()
    (name,) = storage.list_names("index")
    storage.open(f"index/{name}").write(39, b"\2")

    again = open_store(storage, CONFIG)
    put(again, new_record(b"y", properties="KEYS\x01y"), timestamp_ms=2)

    assert [query(again, key) for key in "abcy"] == [[b"x"], [b"x"], [b"x"], [b"y"]]


def test_the_index_is_written_while_readers_use_up_the_descriptors(
    tmp_path: Path, new_record: NewRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(CONFIG, index_entry_count=99, queue_tail_bytes_max=0)
    store = open_store(FileStorage(tmp_path, open_files_max=1), config)
    for number in range(8):
        put(store, new_record(b"x", queue_id=number % 2, properties="KEYS\x01k"), timestamp_ms=1)
    store.build_index()
    store.put(new_record(b"x", properties="KEYS\x01k"), timestamp_ms=1_000_000)
    work = store.flush_work()
    assert work is not None
    assert work.index is not None
    write = os.pwrite

    def read_and_write(descriptor: int, data: bytes, position: int) -> int:
        for queue_id in range(2):
            store.queues.get("T", queue_id, queue_offset=0, count_max=9, bytes_max=9_999)
        return write(descriptor, data, position)

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", read_and_write)
        work.run()
    store.flush_done(work, None)
    store.dispatch()

    assert work.index.error is None
    assert len(all_records(store)) == 9
    store.close()
    assert {f.state for f in StoreCheck(FileStorage(tmp_path), config).run()} == {Soundness.SOUND}


def test_files_of_a_clock_that_is_set_back_stay_in_order(
    storage: Any, new_record: NewRecord
) -> None:
    store = open_store(storage, CONFIG)
    for number in range(12):
        record = new_record(b"%d" % number, properties=f"KEYS\x01k{number} all")
        put(store, record, timestamp_ms=1_000_000 - 1000 * number)
    store.close()
    again = open_store(storage, CONFIG)

    assert [query(again, f"k{number}") for number in range(12)] == [[b"%d" % n] for n in range(12)]


def test_an_index_that_cannot_be_synced_waits_for_the_next_start(
    storage: Any, new_record: NewRecord
) -> None:
    store = open_store(storage, CONFIG)
    work = checkpoint_work(store, new_record, timestamp_ms=1_000_000)
    storage.open = of_the_index(storage.open, "sync", OSError(errno.EIO, "the disk is silent"))
    work.run()
    store.flush_done(work, None)
    del storage.open
    put(store, new_record(b"later", properties="KEYS\x01a"), timestamp_ms=1_000_001)
    found, _ = run_steps(
        store.query(
            "T", "a", count_max=9, bytes_max=1, begin_timestamp_ms=0, end_timestamp_ms=1 << 62
        )
    )

    assert found.unindexed_bytes
    assert isinstance(found.failure, OSError)
    store.close()
    assert storage.has("abort")
    assert query(open_store(storage, CONFIG), "a") == [b"w", b"w", b"later"]


def test_an_index_whose_slots_the_disk_has_lost_is_built_again_at_the_next_start(
    storage: Any, new_record: NewRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(storage, CONFIG)
    put(store, new_record(b"x", properties="KEYS\x01a"), timestamp_ms=1)
    store.close()
    read, create, lost = SimulatedFile.read, storage.create, set[str]()

    def fail_for_slots(file: SimulatedFile, position: int, size: int) -> bytes:
        if file.path in lost and position <= HEADER_SIZE < position + size:
            raise OSError(errno.EIO, "a lost sector")
        return read(file, position, size)

    def make(path: str, **settings: Any) -> Any:
        lost.discard(path)
        return create(path, **settings)

    lost.update(path for path in storage.inodes if path.startswith("index/"))
    monkeypatch.setattr(SimulatedFile, "read", fail_for_slots)
    monkeypatch.setattr(storage, "create", make)
    store = open_store(storage, CONFIG)
    put(store, new_record(b"y", properties="KEYS\x01a"), timestamp_ms=2)
    store.build_index()
    found, _ = run_steps(
        store.query(
            "T", "a", count_max=9, bytes_max=1, begin_timestamp_ms=0, end_timestamp_ms=1 << 62
        )
    )

    assert str(found.failure) == "[Errno 5] a lost sector"
    store.close()
    assert query(open_store(storage, CONFIG), "a") == [b"x", b"y"]


def test_a_checkpoint_without_the_index_is_still_understood() -> None:
    header = IndexHeader(1, 2, 3, 4, 5, 6)
    whole = Checkpoint(
        physic_timestamp_ms=7,
        logics_timestamp_ms=8,
        index_timestamp_ms=2,
        mark=Mark(1, 2, True, None),
        index=IndexMark(9, 20260101000000000, header),
    )
    data = encode_checkpoint(whole)
    # As a version that knew of no index wrote it.
    older = data[:324].ljust(512, b"\0")

    assert whole == decode_checkpoint(data)
    assert replace(whole, index=None) == decode_checkpoint(older)
    assert decode_checkpoint(data[:330] + b"\1" + data[331:]).index is None

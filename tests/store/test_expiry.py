"""Old messages go, file by file; what is kept is read as before, whatever happens meanwhile."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import Mock

import pytest

from small_stores import find_records, open_store, split_records
from sparrowmq.errors import ConfigError
from sparrowmq.protocol.record import Record
from sparrowmq.protocol.subscription import tags_code
from sparrowmq.simulation.faulty_disk import PowerCut, SimulatedFile, SimulatedStorage
from sparrowmq.store import FlushMode, GetStatus, MessageStore, PutStatus, StoreConfig
from sparrowmq.store.expiry import ExpiryWork
from sparrowmq.store.file_storage import FileStorage
from sparrowmq.store.results import QueryResult
from sparrowmq.store.retention import HOUR_MS, Retention, RetentionConfig
from sparrowmq.store.store_check import Soundness, StoreCheck
from steps import run_steps

CONFIG = StoreConfig(
    flush=FlushMode.SYNC,
    commit_log_file_size=4096,
    index_slot_count=7,
    index_entry_count=8,
    consume_queue_file_size=100,
    checkpoint_interval_ms=20,
)
NewRecord = Callable[..., Record]
# A second of a day whose hour is not one at which messages are removed.
NOON_MS = 1_700_000_000_000


def fill(
    store: MessageStore,
    new_record: NewRecord,
    bodies: range,
    *,
    topic: str = "T",
    step_ms: int = 10,
) -> None:
    """Put messages, one every 10 ms from 0 on, with their numbers as bodies and keys."""
    for number in bodies:
        record = new_record(
            b"%d" % number, topic=topic, properties=f"KEYS\x01k{number}\x02FILL\x01{'x' * 300}"
        )
        assert store.put(record, timestamp_ms=number * step_ms).status is PutStatus.PUT_OK
    flush(store)


def flush(store: MessageStore) -> None:
    """Sync all messages, make them visible, and write the checkpoint if it is due."""
    for _ in range(2):
        while (work := store.flush_work()) is not None:
            work.run()
            store.flush_done(work, None)
        store.dispatch()


def expire(store: MessageStore, **arguments: Any) -> ExpiryWork | None:
    given: dict[str, Any] = {
        "before_timestamp_ms": None,
        "files_max": 100,
        "reason": "",
        "timestamp_ms": 1 << 62,
    }
    work = store.expire(**given | arguments)
    if work is not None:
        work.run()
        store.sweep(1000, has_topic=lambda _: True)
    return work


def sweep(store: MessageStore, *, deleted: str = "") -> None:
    store.ask_sweep()
    store.sweep(1000, has_topic=lambda topic: topic != deleted)


def read(store: MessageStore, topic: str = "T") -> Iterator[Record]:
    offset = store.queues.min_offset(topic, 0)
    while offset < store.queues.max_offset(topic, 0):
        got = store.queues.get(topic, 0, queue_offset=offset, count_max=5, bytes_max=1 << 20)
        assert got.status is GetStatus.FOUND
        for record in split_records(got.records):
            assert (record.topic, record.queue_offset) == (topic, offset)
            yield record
            offset += 1


def query(store: MessageStore, key: str) -> int:
    found, _ = run_steps(start_query(store, key))
    return len(found.records)


def start_query(store: MessageStore, key: str) -> Generator[None, None, QueryResult]:
    return store.query(
        "T", key, count_max=999, bytes_max=1 << 20, begin_timestamp_ms=0, end_timestamp_ms=1 << 60
    )


def test_queue_whose_offsets_jump_keeps_its_next_offset_when_all_its_messages_have_expired(
    storage: SimulatedStorage, new_record: NewRecord
) -> None:
    config = replace(CONFIG, consume_queue_file_size=1_000)
    store = open_store(storage, config)
    fill(store, new_record, range(5))
    # As the log of a broker of 5.x jumps that has stored batches as one message each.
    for number in range(3):
        store.put(new_record(b"%d" % number, topic="G"), timestamp_ms=number)
        store.queues.by_key["G", 0].next_offset += 3
    store.write()
    for path in [path for path in storage.inodes if not path.startswith("commitlog/")]:
        storage.remove(path)
    store = open_store(storage.kill(), config)
    assert store.queues.max_offset("G", 0) == 9
    fill(store, new_record, range(5, 60))

    assert expire(store) is not None
    flush(store)
    for _ in range(2):
        store = open_store(storage.kill(), config)
        assert (store.queues.min_offset("G", 0), store.queues.max_offset("G", 0)) == (9, 9)
        assert store.queues.max_offset("T", 0) == 60


def test_files_go_whose_messages_are_all_older_and_everything_follows(
    storage: SimulatedStorage, new_record: NewRecord
) -> None:
    store = open_store(storage, CONFIG)
    fill(store, new_record, range(60))
    assert query(store, "k0") > 0
    first_files = sorted(name for name in storage.inodes if "/" in name)

    (second,) = [record for record in read(store) if record.position == 4096]
    assert expire(store, before_timestamp_ms=second.store_timestamp_ms) is None
    work = expire(store, before_timestamp_ms=300)

    assert work is not None
    kept = list(read(store))
    low = store.queues.min_offset("T", 0)
    # The file that holds message 29, stored at 290 ms, holds younger ones as well.
    assert 30 - 4096 // 400 < low <= 30
    assert [b"%d" % number for number in range(low, 60)] == [record.body for record in kept]
    assert work.position == kept[0].position == 4096 * (kept[0].position // 4096)
    too_small = store.queues.get("T", 0, queue_offset=low - 1, count_max=1, bytes_max=1)
    assert (too_small.status, too_small.next_offset) == (GetStatus.OFFSET_TOO_SMALL, low)
    assert store.records.read(0) is None
    assert [query(store, "k0"), query(store, f"k{low - 1}")] == [0, 0]
    assert query(store, f"k{low}") > 0
    assert low == store.queues.offset_by_time("T", 0, 0)
    left = {name for name in storage.inodes if "/" in name}
    gone = [name for name in first_files if name not in left]
    assert {name.partition("/")[0] for name in gone} == {"commitlog", "consumequeue", "index"}
    assert expire(store, before_timestamp_ms=300) is None
    for _ in range(2):
        store.close()
        store = open_store(storage, CONFIG)
        assert (store.queues.min_offset("T", 0), store.queues.max_offset("T", 0)) == (low, 60)
        assert kept == list(read(store))
    # Not stopped cleanly.
    store = open_store(storage.kill(), CONFIG)
    assert (store.queues.min_offset("T", 0), store.queues.max_offset("T", 0)) == (low, 60)


def test_queue_whose_messages_have_all_expired_is_searched_at_its_end(
    storage: SimulatedStorage, new_record: NewRecord
) -> None:
    store = open_store(storage, CONFIG)
    for number in range(3):
        store.put(new_record(b"x", topic="quiet"), timestamp_ms=number)
    fill(store, new_record, range(60))

    assert expire(store) is not None

    queues, times = store.queues, (0, 1, 99_999)
    assert (queues.min_offset("quiet", 0), queues.max_offset("quiet", 0)) == (3, 3)
    assert [queues.offset_by_time("quiet", 0, time_ms) for time_ms in times] == [3, 3, 3]
    assert [queues.boundary("quiet", 0, time_ms) for time_ms in times] == [3, 3, 3]


def test_a_query_goes_on_while_what_it_looks_at_expires(
    tmp_path: Path, new_record: NewRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparrowmq.store.index_file.ENTRIES_PER_STEP", 2)
    store = open_store(FileStorage(tmp_path), CONFIG)
    for number in range(60):
        record = new_record(b"%d" % number, properties=f"KEYS\x01all\x02F\x01{'x' * 300}")
        store.put(record, timestamp_ms=number)
    flush(store)
    # The slots are no longer in memory.
    store.close()
    store = open_store(FileStorage(tmp_path), CONFIG)
    whole = query(store, "all")
    steps = start_query(store, "all")
    next(steps)

    expire(store)
    found, _ = run_steps(steps)

    assert 0 < query(store, "all") == len(found.records) < whole
    store.close()


def test_the_disk_gets_the_room_of_expired_files(tmp_path: Path, new_record: NewRecord) -> None:
    store = open_store(FileStorage(tmp_path), CONFIG)
    fill(store, new_record, range(60))
    assert query(store, "k0") > 0

    assert expire(store) is not None

    opened = set[str]()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            opened.add(os.readlink(f"/proc/self/fd/{name}"))
    of_store = {path for path in opened if path.startswith(str(tmp_path))}
    store.close()
    # A file that is removed has its room until nobody has it open.
    assert of_store
    assert {path for path in of_store if path.endswith(" (deleted)")} == set()


def test_the_file_written_to_stays_and_so_does_what_is_not_on_the_disk(
    storage: SimulatedStorage, new_record: NewRecord
) -> None:
    store = open_store(storage, CONFIG)
    fill(store, new_record, range(5))
    assert expire(store) is None
    for number in range(30):
        store.put(new_record(b"x" * 400), timestamp_ms=100 + number)

    assert expire(store) is None

    flush(store)
    expire(store)
    last_file = 4096 * (store.appended_position // 4096)
    assert [int(name) for name in storage.list_names("commitlog")] == [last_file]


def store_at(store: MessageStore, new_record: NewRecord, *times_ms: int) -> None:
    """Fill a file of the log at each of these times."""
    for time_ms in times_ms:
        store.put(new_record(b"x" * 3_800), timestamp_ms=time_ms)
    flush(store)


@pytest.mark.parametrize("wrong_ms", [1_000, NOON_MS + 9_000 * HOUR_MS], ids=["behind", "ahead"])
def test_files_that_were_begun_by_a_wrong_clock_say_nothing_about_those_before_them(
    storage: SimulatedStorage, new_record: NewRecord, wrong_ms: int
) -> None:
    """As of a machine that starts without the time, and gets it some minutes later."""
    store = open_store(storage, CONFIG)
    store_at(store, new_record, NOON_MS, *[wrong_ms] * 12, NOON_MS + HOUR_MS, NOON_MS + 2 * HOUR_MS)
    retention = Retention(RetentionConfig(retention_hours=10), store)
    removed = []
    for hours in (9, 11, 12):
        retention.ask()
        while work := retention.work(now_ms=hours, timestamp_ms=NOON_MS + hours * HOUR_MS + 1)[0]:
            work.run()
            retention.done(work, None)
        removed.append(store.begin_position // 4096)

    # The first file's messages may be as old as those of the first later file with the right time.
    assert removed == [0, 13, 14]


def test_a_clock_that_is_set_back_makes_no_message_old(
    storage: SimulatedStorage, new_record: NewRecord
) -> None:
    store = open_store(storage, CONFIG)
    hours = [0, 9, 4, 5, 6, 12]
    store_at(store, new_record, *[NOON_MS + hour * HOUR_MS for hour in hours])

    begins = []
    for hour in (5, 10, 13):
        expire(store, before_timestamp_ms=NOON_MS + hour * HOUR_MS)
        begins.append(store.begin_position // 4096)

    assert begins == [0, 1, 5]


def test_first_message_that_is_kept_is_found_by_its_tag(
    storage: SimulatedStorage, new_record: NewRecord
) -> None:
    store = open_store(storage, CONFIG)
    for number in range(30):
        record = new_record(b"x" * 300, properties=f"TAGS\x01{number}")
        store.put(record, timestamp_ms=number)
    flush(store)
    assert expire(store, files_max=1) is not None

    low = store.queues.min_offset("T", 0)
    codes = frozenset({tags_code(str(low))})
    got = store.queues.get(
        "T", 0, queue_offset=low, count_max=5, bytes_max=1 << 20, tags_codes=codes
    )
    assert [record.queue_offset for record in split_records(got.records)] == [low]
    assert low > 0


def test_removal_that_an_operator_has_asked_for_is_done_once(
    storage: SimulatedStorage, new_record: NewRecord
) -> None:
    store = open_store(storage, CONFIG)
    store_at(store, new_record, *[NOON_MS - hours * HOUR_MS for hours in (20, 15, 5, 3, 0)])
    other_hour = f"{(datetime.fromtimestamp(NOON_MS / 1000).hour + 12) % 24:02d}"
    retention = Retention(RetentionConfig(retention_hours=10, delete_when=other_hour), store)

    begins = []
    for check, is_asked in enumerate((True, False, True)):
        if is_asked:
            retention.ask()
        while work := retention.work(now_ms=20_000 * check, timestamp_ms=NOON_MS)[0]:
            work.run()
            retention.done(work, None)
        begins.append(store.begin_position // 4096)
        # From now on more messages are old.
        retention.config = RetentionConfig(retention_hours=1, delete_when=other_hour)

    assert begins == [1, 1, 3]


def test_removal_that_an_operator_has_asked_for_waits_for_no_round(
    storage: SimulatedStorage, new_record: NewRecord
) -> None:
    store = open_store(storage, CONFIG)
    store_at(store, new_record, *[NOON_MS - hours * HOUR_MS for hours in (20, 15, 0)])
    other_hour = f"{(datetime.fromtimestamp(NOON_MS / 1000).hour + 12) % 24:02d}"
    retention = Retention(RetentionConfig(retention_hours=10, delete_when=other_hour), store)
    assert retention.work(now_ms=0, timestamp_ms=NOON_MS) == (None, [])

    retention.ask()

    assert retention.work(now_ms=1, timestamp_ms=NOON_MS)[0] is not None


def of_file(position: int, message: str) -> Callable[[SimulatedFile, int, int], bytes]:
    """Return a `read` that fails in the log's file at a position, as of a disk that has lost it."""
    read = SimulatedFile.read

    def fail(file: SimulatedFile, at: int, size: int) -> bytes:
        if file.path == f"commitlog/{position:020d}":
            raise OSError(errno.EIO, message)
        return read(file, at, size)

    return fail


def test_a_disk_that_cannot_be_read_expires_nothing(
    storage: SimulatedStorage, new_record: NewRecord
) -> None:
    store = open_store(storage, CONFIG)
    fill(store, new_record, range(60))
    storage.read_error = OSError(errno.EIO, "the disk does not answer")

    with pytest.raises(OSError, match="does not answer"):
        expire(store, before_timestamp_ms=1 << 60)

    storage.mend()
    assert store.begin_position == 0
    assert len(list(read(store))) == 60
    expire(store)
    assert len(storage.list_names("commitlog")) == 1


def test_the_time_of_a_damaged_message_expires_nothing(
    storage: SimulatedStorage, new_record: NewRecord
) -> None:
    store = open_store(storage, CONFIG)
    fill(store, new_record, range(60))
    firsts = [each for each in read(store) if each.position % 4096 == 0]
    # The store time.
    storage.inodes["commitlog/00000000000000004096"].data[56:64] = bytes(7) + b"\x01"

    assert expire(store, before_timestamp_ms=firsts[1].store_timestamp_ms) is None
    # It keeps the files before it only until a later one says that they are old.
    assert expire(store, before_timestamp_ms=firsts[2].store_timestamp_ms) is None
    assert expire(store, before_timestamp_ms=firsts[2].store_timestamp_ms + 1) is not None
    assert store.begin_position == 2 * 4096


def test_files_go_though_the_disk_has_lost_the_first_message_of_one(
    storage: SimulatedStorage, new_record: NewRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(storage, CONFIG)
    fill(store, new_record, range(60))
    firsts = [each for each in read(store) if each.position % 4096 == 0]
    monkeypatch.setattr(SimulatedFile, "read", of_file(4096, "lost"))

    with pytest.raises(OSError, match="lost"):
        expire(store, before_timestamp_ms=firsts[2].store_timestamp_ms)
    assert store.begin_position == 0
    assert expire(store, before_timestamp_ms=firsts[2].store_timestamp_ms + 1) is not None
    assert store.begin_position == 2 * 4096


def test_a_file_of_the_index_is_not_removed_while_it_is_written(
    storage: SimulatedStorage, new_record: NewRecord
) -> None:
    store = open_store(storage, CONFIG)
    fill(store, new_record, range(60))
    assert query(store, "k0") > 0
    store.put(new_record(b"x"), timestamp_ms=1_000_000)
    flushing = store.flush_work()
    assert flushing is not None
    assert flushing.index is not None
    names = storage.list_names("index")

    assert expire(store, before_timestamp_ms=300) is not None
    flushing.run()
    store.flush_done(flushing, None)

    assert flushing.index.error is None
    assert names == storage.list_names("index")
    killed = storage.copy()
    assert expire(store, before_timestamp_ms=500) is not None
    assert names[0] not in storage.list_names("index")
    open_store(killed, CONFIG)
    assert names[0] not in killed.list_names("index")


def test_an_oldest_file_before_an_empty_one_goes_on_a_full_disk(
    storage: SimulatedStorage, new_record: NewRecord
) -> None:
    store = open_store(storage, CONFIG)
    fill(store, new_record, range(9))
    # A disk with no room for the first record of the next file.
    storage.bytes_left = 8
    refused = store.put(new_record(b"x" * 900), timestamp_ms=100)
    storage.bytes_left = None
    assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert (store.appended_position, len(storage.list_names("commitlog"))) == (4096, 2)

    flush(store)
    assert expire(store) is None
    # The checkpoint that the first file waits for.
    flush(store)
    assert expire(store, before_timestamp_ms=1 << 60) is None
    assert expire(store) is not None

    assert store.begin_position == store.appended_position == 4096
    for is_clean in (True, False):
        if is_clean:
            store.close()
        store = open_store(storage.kill(), CONFIG)
        assert (store.queues.min_offset("T", 0), store.queues.max_offset("T", 0)) == (9, 9)
    fill(store, new_record, range(9, 10))
    assert [record.body for record in read(store)] == [b"9"]


def test_a_queue_without_messages_keeps_its_next_offset(
    storage: SimulatedStorage, new_record: NewRecord
) -> None:
    store = open_store(storage, CONFIG)
    fill(store, new_record, range(12), topic="quiet")
    fill(store, new_record, range(12, 60))
    expire(store)

    bounds = []
    for _ in range(3):
        bounds.append((store.queues.min_offset("quiet", 0), store.queues.max_offset("quiet", 0)))
        store.close()
        # As a file manager leaves it in each directory that it shows.
        for directory in ("commitlog", "consumequeue/quiet/0", "index"):
            storage.create(f"{directory}/.DS_Store", size=5)
        # And as an operator, or a tool that copies.
        storage.create("consumequeue/quiet/0/notes.txt", size=5)
        assert {each.state for each in StoreCheck(storage, CONFIG).run()} == {Soundness.SOUND}
        store = open_store(storage, CONFIG)

    assert bounds == [(12, 12)] * 3
    store = open_store(storage.kill(), CONFIG)
    assert (store.queues.min_offset("quiet", 0), store.queues.max_offset("quiet", 0)) == (12, 12)
    fill(store, new_record, range(60, 62), topic="quiet")
    assert [record.queue_offset for record in read(store, "quiet")] == [12, 13]
    names = storage.list_names("consumequeue/quiet/0")
    assert names == [".DS_Store", "00000000000000000200", "notes.txt"]


def test_the_queues_of_a_deleted_topic_go_with_its_last_message(
    tmp_path: Path, new_record: NewRecord
) -> None:
    store = open_store(FileStorage(tmp_path), CONFIG)
    fill(store, new_record, range(10), topic="deleted")
    store.put(new_record(b"x", topic="deleted", queue_id=1), timestamp_ms=100)
    fill(store, new_record, range(10, 20))
    sweep(store, deleted="deleted")
    assert list(store.queues) == [("T", 0), ("deleted", 0), ("deleted", 1)]
    fill(store, new_record, range(20, 60))

    work = store.expire(before_timestamp_ms=None, files_max=100, reason="", timestamp_ms=1 << 62)
    assert work is not None
    work.run()
    sweep(store, deleted="deleted")

    assert list(store.queues) == [("T", 0)]
    assert [path.name for path in (tmp_path / "consumequeue").iterdir()] == ["T"]
    flush(store)
    fill(store, new_record, range(60, 62), topic="deleted")
    assert [record.queue_offset for record in read(store, "deleted")] == [0, 1]
    store.close()


def test_a_queue_of_a_deleted_topic_stays_while_its_directory_is_synced(
    tmp_path: Path, new_record: NewRecord
) -> None:
    store = open_store(FileStorage(tmp_path), CONFIG)
    fill(store, new_record, range(12), topic="deleted")
    fill(store, new_record, range(12, 60))
    assert expire(store, files_max=1) is not None
    store.put(new_record(b"x"), timestamp_ms=1_000_000)
    flushing = store.flush_work()
    assert flushing is not None
    assert "consumequeue/deleted/0" in flushing.directories

    assert expire(store) is not None
    sweep(store, deleted="deleted")
    flushing.run()
    store.flush_done(flushing, None)

    sweep(store, deleted="deleted")
    assert list(store.queues) == [("T", 0)]
    store.close()


def test_a_queue_of_a_deleted_topic_stays_for_a_message_that_is_not_readable_yet(
    storage: SimulatedStorage, new_record: NewRecord
) -> None:
    store = open_store(storage, CONFIG)
    fill(store, new_record, range(3), topic="deleted")
    fill(store, new_record, range(3, 60))
    expire(store)
    flush(store)
    assert expire(store) is not None
    store.put(new_record(b"late", topic="deleted"), timestamp_ms=600)

    sweep(store, deleted="deleted")
    flush(store)

    assert [(r.queue_offset, r.body) for r in read(store, "deleted")] == [(3, b"late")]


def test_a_queue_that_begins_anew_outlives_its_old_entries_coming_back(
    storage: SimulatedStorage, new_record: NewRecord
) -> None:
    store = open_store(storage, CONFIG)
    fill(store, new_record, range(3), topic="again")
    fill(store, new_record, range(3, 60))
    store.close()
    store = open_store(storage, replace(CONFIG, checkpoint_interval_ms=1 << 40))
    entries = bytes(storage.inodes["consumequeue/again/0/00000000000000000000"].data)
    expire(store)
    sweep(store, deleted="again")
    fill(store, new_record, range(60, 62), topic="again")
    storage.inodes["consumequeue/again/0/00000000000000000000"].replace(entries)

    store = open_store(storage.kill(), CONFIG)

    assert [record.body for record in read(store, "again")] == [b"60", b"61"]


@pytest.mark.parametrize("ends", [SimulatedStorage.kill, SimulatedStorage.lose_power])
@pytest.mark.parametrize("is_begun", [False, True])
def test_a_queue_of_a_deleted_topic_stays_until_the_disk_has_removed_its_messages(
    is_begun: bool,
    ends: Callable[[SimulatedStorage], SimulatedStorage],
    storage: SimulatedStorage,
    new_record: NewRecord,
) -> None:
    store = open_store(storage, CONFIG)
    fill(store, new_record, range(60), topic="again")
    fill(store, new_record, range(60, 90))
    work = store.expire(before_timestamp_ms=None, files_max=100, reason="", timestamp_ms=1 << 62)
    assert work is not None
    if is_begun:
        storage.changes_left = 3
        with pytest.raises(PowerCut):
            work.run()
        storage.changes_left = None
    sweep(store, deleted="again")
    fill(store, new_record, range(90, 92), topic="again")

    store = open_store(ends(storage), CONFIG)

    assert [record.body for record in read(store, "again")][-2:] == [b"90", b"91"]


def test_a_record_stays_until_its_entry_is_on_the_disk(
    storage: SimulatedStorage, new_record: NewRecord
) -> None:
    store = open_store(storage, replace(CONFIG, checkpoint_interval_ms=500))
    fill(store, new_record, range(3), topic="quiet")
    fill(store, new_record, range(3, 45))
    assert store.begin_position == 0

    assert expire(store) is None
    storage.lose_power()
    store = open_store(storage, CONFIG)

    assert store.queues.max_offset("quiet", 0) == 3
    flush(store)
    expire(store)
    storage.lose_power()
    store = open_store(storage, CONFIG)
    assert (store.queues.min_offset("quiet", 0), store.queues.max_offset("quiet", 0)) == (3, 3)


@pytest.mark.parametrize("seed", range(5))
def test_an_offset_found_after_a_kill_outlives_expiry_and_a_power_cut(
    seed: int, new_record: NewRecord
) -> None:
    storage = SimulatedStorage(Random(seed))
    store = open_store(storage, replace(CONFIG, checkpoint_interval_ms=1 << 40))
    fill(store, new_record, range(3), topic="quiet")
    fill(store, new_record, range(3, 45))
    store = open_store(storage.kill(), CONFIG)
    assert expire(store) is not None

    store = open_store(storage.lose_power(), CONFIG)

    assert (store.queues.min_offset("quiet", 0), store.queues.max_offset("quiet", 0)) == (3, 3)


@pytest.mark.parametrize("seed", range(20))
def test_an_offset_outlives_a_power_cut_while_its_queue_loses_files(
    seed: int, new_record: NewRecord
) -> None:
    storage = SimulatedStorage(Random(seed))
    store = open_store(storage, CONFIG)
    fill(store, new_record, range(22), topic="quiet")
    fill(store, new_record, range(22, 60))
    assert expire(store) is not None
    assert storage.list_names("consumequeue/quiet/0") == ["00000000000000000400"]

    store = open_store(storage.lose_power(), CONFIG)

    assert (store.queues.min_offset("quiet", 0), store.queues.max_offset("quiet", 0)) == (22, 22)
    fill(store, new_record, range(60, 62), topic="quiet")
    store = open_store(storage.lose_power(), CONFIG)
    assert [record.queue_offset for record in read(store, "quiet")] == [22, 23]


@pytest.mark.parametrize("expired_count", [10, 12])
@pytest.mark.parametrize("new_count", [1, 20])
@pytest.mark.parametrize("seed", range(20))
def test_an_offset_outlives_the_loss_of_all_messages_since_the_checkpoint(
    seed: int, new_count: int, expired_count: int, new_record: NewRecord
) -> None:
    storage = SimulatedStorage(Random(seed))
    config = replace(CONFIG, flush=FlushMode.ASYNC, queue_tail_bytes_max=0)
    store = open_store(storage, config)
    fill(store, new_record, range(expired_count), topic="quiet")
    fill(store, new_record, range(expired_count, 60))
    for number in range(new_count):
        store.put(new_record(b"%d" % number, topic="quiet"), timestamp_ms=600)
    store.dispatch()
    assert expire(store) is not None

    store = open_store(storage.lose_power(), config)

    low, high = store.queues.min_offset("quiet", 0), store.queues.max_offset("quiet", 0)
    assert low == expired_count
    assert high - low == len(list(read(store, "quiet")))


@pytest.mark.parametrize("seed", range(60))
def test_power_cuts_lose_nothing_that_was_kept(seed: int, new_record: NewRecord) -> None:
    rng = Random(seed)
    storage = SimulatedStorage(rng)
    kept: dict[bytes, str] = {}
    expired: set[bytes] = set()
    next_offset = 0
    number = 0
    for _ in range(6):
        storage.changes_left = rng.randrange(400)
        try:
            store = MessageStore(storage, CONFIG)
            report = store.load(timestamp_ms=1)
            assert report.conflict_count == 0
            found = {r.body: r.topic for topic, _ in store.queues for r in read(store, topic)}
            assert kept.items() <= found.items()
            assert found.keys() <= kept.keys() | expired
            assert store.queues.max_offset("quiet", 0) >= next_offset
            for body in rng.sample(sorted(kept), min(len(kept), 20)):
                key = f"k{body.decode()}"
                assert [r.body for r in find_records(store, kept[body], key)] == [body]
            # What recovery found is on the disk.
            work: ExpiryWork | None = None
            while True:
                topic = "deleted" if rng.random() < 0.1 else "T"
                if rng.random() < 0.05:
                    topic = "quiet"
                fill(store, new_record, range(number, number + 3), topic=topic)
                kept.update((b"%d" % n, topic) for n in range(number, number + 3))
                number += 3
                next_offset = store.queues.max_offset("quiet", 0)
                if rng.random() < 0.3 and work is None:
                    work = store.expire(
                        before_timestamp_ms=number * 10 - rng.choice((100, 500)),
                        files_max=rng.choice((1, 9)),
                        reason="",
                        timestamp_ms=1 << 62,
                    )
                    left = {r.body for topic, _ in store.queues for r in read(store, topic)}
                    expired.update(kept.keys() - left)
                    kept = {body: topic for body, topic in kept.items() if body in left}
                # A disk may take its time, or remove nothing for a while.
                if work is not None and rng.random() < 0.5:
                    work.run()
                    work = None
                store.sweep(rng.randrange(3), has_topic=lambda topic: topic != "deleted")
        except PowerCut:
            # Messages under way may have come through.
            expired.update(b"%d" % n for n in range(number, number + 3))
            number += 3
            storage.lose_power() if rng.random() < 0.8 else storage.kill()
    assert len(expired) > 6 * 3


def test_a_file_that_cannot_be_removed_is_tried_again(
    storage: SimulatedStorage, new_record: NewRecord
) -> None:
    store = open_store(storage, CONFIG)
    fill(store, new_record, range(60))
    retention = Retention(RetentionConfig(retention_hours=1), store)
    retention.ask()
    work, _ = retention.work(now_ms=1, timestamp_ms=NOON_MS)
    assert work is not None
    assert retention.work(now_ms=20_000, timestamp_ms=NOON_MS) == (None, [])
    storage.fail()
    with pytest.raises(OSError, match="does not answer"):
        work.run()

    facts = retention.done(work, OSError(errno.EIO, "it does not"))

    assert [fact.warning for fact in facts] == [True]
    assert retention.work(now_ms=2, timestamp_ms=NOON_MS) == (None, [])
    assert work == retention.work(now_ms=20_000, timestamp_ms=NOON_MS)[0]


def test_a_disk_whose_use_is_unknown_expires_nothing_and_is_asked_again(
    storage: SimulatedStorage, new_record: NewRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(storage, CONFIG)
    fill(store, new_record, range(60))
    retention = Retention(RetentionConfig(retention_hours=1), store)
    retention.ask()
    with monkeypatch.context() as patched:
        patched.setattr(storage, "disk_space", Mock(side_effect=OSError(errno.EIO, "broken")))
        work, facts = retention.work(now_ms=1, timestamp_ms=NOON_MS)

    assert (work, [fact.warning for fact in facts]) == (None, [True])
    assert retention.work(now_ms=20_000, timestamp_ms=NOON_MS)[0] is not None


@pytest.mark.parametrize(("percent", "is_forced"), [(85, False), (86, True)])
def test_a_file_whose_age_cannot_be_read_goes_only_on_a_full_disk(
    storage: SimulatedStorage,
    new_record: NewRecord,
    monkeypatch: pytest.MonkeyPatch,
    percent: int,
    is_forced: bool,
) -> None:
    store = open_store(storage, CONFIG)
    fill(store, new_record, range(15))
    retention = Retention(RetentionConfig(retention_hours=1), store)
    retention.ask()
    storage.percent_used = percent
    with monkeypatch.context() as patched:
        patched.setattr(SimulatedFile, "read", of_file(4096, "lost"))
        work, facts = retention.work(now_ms=0, timestamp_ms=NOON_MS)

    assert len(storage.list_names("commitlog")) == 2
    assert ((work is not None), [fact.warning for fact in facts]) == (
        (True, []) if is_forced else (False, [True])
    )
    # What an operator has asked for is done once the disk can be read.
    storage.percent_used = 0
    later, _ = retention.work(now_ms=20_000, timestamp_ms=NOON_MS)
    assert is_forced or later is not None


def test_that_no_message_is_taken_is_said_though_the_oldest_cannot_be_read(
    storage: SimulatedStorage, new_record: NewRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(storage, CONFIG)
    fill(store, new_record, range(15))
    config = RetentionConfig(retention_hours=1, disk_force_percent=100)
    retention = Retention(config, store)
    said = []
    with monkeypatch.context() as patched:
        patched.setattr(SimulatedFile, "read", of_file(4096, "lost"))
        for now_ms, percent in ((0, 91), (20_000, 80)):
            storage.percent_used = percent
            work, facts = retention.work(now_ms=now_ms, timestamp_ms=NOON_MS)
            said.append([fact.text.partition(":")[0] for fact in facts])
            assert work is None

    unread = "old messages cannot be looked for"
    assert said == [["no message is taken", unread], ["messages are taken again", unread]]


def test_queue_file_that_cannot_be_removed_goes_with_the_next_sweep(
    storage: SimulatedStorage, new_record: NewRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(storage, CONFIG)
    fill(store, new_record, range(60))
    work = store.expire(before_timestamp_ms=None, files_max=100, reason="", timestamp_ms=1 << 62)
    assert work is not None
    work.run()
    count = len(storage.list_names("consumequeue/T/0"))
    with monkeypatch.context() as patched:
        patched.setattr(storage, "remove", Mock(side_effect=OSError(errno.EIO, "broken")))
        sweep(store)
    kept = len(storage.list_names("consumequeue/T/0"))
    sweep(store)

    assert (count, kept, len(storage.list_names("consumequeue/T/0"))) == (12, 12, 2)


def test_a_start_removes_the_files_of_queues_that_a_kill_has_left(
    storage: SimulatedStorage, new_record: NewRecord
) -> None:
    store = open_store(storage, CONFIG)
    fill(store, new_record, range(60))
    work = store.expire(before_timestamp_ms=None, files_max=100, reason="", timestamp_ms=1 << 62)
    assert work is not None
    work.run()
    count = len(storage.list_names("consumequeue/T/0"))

    store = open_store(storage.kill(), CONFIG)
    store.sweep(1000, has_topic=lambda _: True)

    assert (count, len(storage.list_names("consumequeue/T/0"))) == (12, 2)
    assert store.queues.max_offset("T", 0) == 60


def hour_of(text: str) -> Callable[[int], int]:
    """Return what makes a time in that local hour of a day, so many days later."""
    return lambda day: round(datetime(2024, 5, 1 + day, int(text), 30).timestamp() * 1000)


@pytest.fixture
def eastern_clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let local time be nine hours ahead of UTC."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "JST-9")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("eastern_clock")
def test_messages_go_at_the_local_hour_once_they_are_old(
    storage: SimulatedStorage, new_record: NewRecord
) -> None:
    store = open_store(storage, CONFIG)
    at_four, at_noon = hour_of("04"), hour_of("12")
    for number in range(60):
        store.put(new_record(b"x" * 400), timestamp_ms=at_noon(0) + number)
    flush(store)
    retention = Retention(RetentionConfig(), store)
    assert retention.retention_hours == 72

    def removed(now_ms: int, timestamp_ms: int) -> bool:
        work, _ = retention.work(now_ms=now_ms, timestamp_ms=timestamp_ms)
        return work is not None

    assert not removed(10_000, at_four(3))
    assert not removed(20_000, at_noon(4))
    assert removed(30_000, at_four(4))


@pytest.mark.usefixtures("eastern_clock")
@pytest.mark.parametrize("hour", ["04", "16", "10"])
def test_messages_go_at_each_of_the_hours(
    storage: SimulatedStorage, new_record: NewRecord, hour: str
) -> None:
    store = open_store(storage, CONFIG)
    fill(store, new_record, range(60))
    retention = Retention(RetentionConfig(retention_hours=1, delete_when="16; 4"), store)

    work, _ = retention.work(now_ms=0, timestamp_ms=hour_of(hour)(0))

    assert (work is not None) is (hour != "10")


@pytest.mark.parametrize(
    ("percent", "fraction_left", "is_taken"),
    [
        (75, 1.0, True),
        (76, 0.5, True),
        (85, 0.5, True),
        (86, 0.0, True),
        (90, 0.0, True),
        (91, 0.0, False),
    ],
)
def test_a_full_disk_expires_then_forces_then_refuses(
    storage: SimulatedStorage,
    new_record: NewRecord,
    percent: int,
    fraction_left: float,
    is_taken: bool,
) -> None:
    store = open_store(storage, CONFIG)
    at_noon = hour_of("12")
    for number in range(60):
        old_or_new = at_noon(0) if number < 30 else at_noon(10)
        store.put(new_record(b"x" * 400), timestamp_ms=old_or_new)
    flush(store)
    count = len(storage.list_names("commitlog"))
    storage.percent_used = percent
    retention = Retention(RetentionConfig(), store)

    now_ms = 0
    facts = []
    while True:
        now_ms += 1
        work, said = retention.work(now_ms=now_ms, timestamp_ms=at_noon(10))
        facts += said
        if work is None:
            break
        if work.reason.startswith("the disk"):
            assert sum(path.startswith("commitlog/") for path in work.paths) == 1
        work.run()
        retention.done(work, None)

    left = len(storage.list_names("commitlog"))
    assert abs(left - max(1, fraction_left * count)) <= 1
    assert is_taken is (store.put(new_record(b"y"), timestamp_ms=1).status is PutStatus.PUT_OK)
    assert is_taken is (facts == [])
    storage.percent_used = 50
    _, facts = retention.work(now_ms=now_ms + 20_000, timestamp_ms=at_noon(10))
    assert store.put(new_record(b"y"), timestamp_ms=1).status is PutStatus.PUT_OK
    assert is_taken is (facts == [])


@pytest.mark.parametrize("is_asked", [False, True], ids=["full disk", "asked"])
def test_files_that_wait_for_a_checkpoint_go_soon_after_it(
    storage: SimulatedStorage, new_record: NewRecord, is_asked: bool
) -> None:
    store = open_store(storage, replace(CONFIG, checkpoint_interval_ms=1 << 40))
    fill(store, new_record, range(45))
    retention = Retention(RetentionConfig(), store)
    if is_asked:
        retention.ask()
    else:
        storage.percent_used = 76

    assert retention.work(now_ms=0, timestamp_ms=NOON_MS) == (None, [])
    flush(store)

    assert retention.work(now_ms=499, timestamp_ms=NOON_MS) == (None, [])
    work, _ = retention.work(now_ms=500, timestamp_ms=NOON_MS)
    assert work is not None
    assert len(work.paths) > 2


def test_a_store_from_before_keeps_all_until_it_is_said(
    storage: SimulatedStorage, new_record: NewRecord
) -> None:
    store = open_store(storage, CONFIG)
    fill(store, new_record, range(60))
    assert Retention(RetentionConfig(), store).retention_hours == 72
    store.close()
    storage.remove("expiring")
    store = open_store(storage, CONFIG)
    storage.percent_used = 89
    unasked = Retention(RetentionConfig(), store)

    assert unasked.retention_hours == 0
    unasked.ask()
    assert unasked.work(now_ms=1, timestamp_ms=NOON_MS) == (None, [])
    asked = Retention(RetentionConfig(retention_hours=NOON_MS // HOUR_MS - 1), store)
    asked.ask()
    assert asked.work(now_ms=1, timestamp_ms=NOON_MS)[0] is not None


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"retention_hours": -1}, "retention_hours is -1; it must be a whole number from 0"),
        ({"delete_when": "24"}, "'24'; give hours"),
        ({"delete_when": ""}, "''; give hours"),
        pytest.param({"delete_when": "9" * 5_000}, "9'; give hours", id="long hours"),
        ({"disk_full_percent": 101}, "disk_full_percent is 101"),
        ({"disk_force_percent": -1}, "disk_force_percent is -1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(arguments: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        RetentionConfig(**arguments)

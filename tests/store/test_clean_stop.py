"""A start after a clean stop looks at no record, and believes nothing that may have changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any
from zlib import crc32

import pytest

from small_stores import SMALL, find_records, flush
from sparrowmq.errors import CorruptRecord
from sparrowmq.protocol.record import Record
from sparrowmq.simulation.faulty_disk import PowerCut
from sparrowmq.store import FlushMode, MessageStore, PutStatus, RecoveryReport, StoreConfig

NewRecord = Callable[..., Record]
Disk = Any
CONFIG = replace(SMALL, verify_bytes=2000)
COUNT = 120


def opened(disk: Disk, config: StoreConfig = CONFIG) -> tuple[MessageStore, RecoveryReport]:
    store = MessageStore(disk, config)
    return store, store.load(timestamp_ms=1)


def fill(disk: Disk, make: NewRecord, *, count: int = COUNT) -> None:
    store, _ = opened(disk)
    for n in range(count):
        result = store.put(make(b"%d" % n, queue_id=n % 3), timestamp_ms=100 + n)
        assert result.status is PutStatus.PUT_OK
    store.close()


def look(store: MessageStore) -> dict[tuple[str, int], tuple[int, int, bytes]]:
    """All that readers can see."""
    found = {}
    for key in store.queues:
        low, high = store.queues.min_offset(*key), store.queues.max_offset(*key)
        got = store.queues.get(*key, queue_offset=low, count_max=999, bytes_max=1 << 20)
        found[key] = (low, high, got.records)
    return found


@pytest.mark.parametrize("mode", FlushMode)
def test_no_record_is_walked_and_all_is_as_it_was(
    mode: FlushMode, storage: Disk, new_record: NewRecord
) -> None:
    config = StoreConfig(commit_log_file_size=4096, consume_queue_file_size=200, flush=mode)
    store, _ = opened(storage, config)
    for n in range(COUNT):
        store.put(new_record(b"%d" % n, queue_id=n % 3), timestamp_ms=100 + n)
    flush(store)
    seen, end, last = look(store), store.appended_position, store.dispatched_record_position
    store.close()
    again, report = opened(storage, config)

    assert (report.is_clean, report.record_count, report.walked_from) == (True, 0, end)
    assert (again.appended_position, again.flushed_position) == (end, end)
    assert seen == look(again)
    assert last == again.dispatched_record_position
    assert report.last_timestamp_ms == 100 + COUNT - 1
    put = again.put(new_record(b"next", queue_id=1), timestamp_ms=1000)
    assert put.queue_offset == COUNT // 3
    assert end <= put.position < end + 200


def test_stop_of_an_empty_store_is_believed(storage: Disk, new_record: NewRecord) -> None:
    fill(storage, new_record, count=0)
    store, report = opened(storage)

    assert (report.is_clean, report.record_count, report.max_position) == (True, 0, 0)
    assert store.put(new_record(b"first"), timestamp_ms=5).position == 0


def test_first_files_that_expired_stay_expired(storage: Disk, new_record: NewRecord) -> None:
    fill(storage, new_record)
    store, _ = opened(storage)
    work = store.expire(before_timestamp_ms=None, files_max=2, reason="", timestamp_ms=99)
    assert work is not None
    work.run()
    store.sweep(3, has_topic=lambda _: True)
    seen = look(store)
    store.close()
    again, report = opened(storage)

    assert report.record_count == 0
    assert report.min_position == 8192
    assert all(low > 0 for low, _, _ in seen.values())
    assert seen == look(again)


def test_a_crash_after_a_clean_stop_is_walked(storage: Disk, new_record: NewRecord) -> None:
    fill(storage, new_record)
    store, _ = opened(storage)
    store.put(new_record(b"more"), timestamp_ms=500)
    flush(store)
    seen = look(store)
    disk = storage.kill()
    again, report = opened(disk)

    assert disk.has("stopped")
    assert not report.is_clean
    assert report.record_count > 0
    assert seen == look(again)


def test_a_start_is_known_after_a_power_cut(new_storage: Callable[..., Disk]) -> None:
    for seed in range(9):
        disk = new_storage(Random(seed))
        opened(disk)[0].close()
        opened(disk)

        assert disk.lose_power().has("abort")


def new_checkpoint(disk: Disk) -> None:
    # As a broker of RocketMQ, which stored a message.
    disk.inodes["checkpoint"].data[7] ^= 1


def later_version(disk: Disk) -> None:
    head, _, content = bytes(disk.inodes["stopped"].data).partition(b"\n")
    assert head == b"%08x" % crc32(content)
    changed = json.dumps({**json.loads(content), "queues": "elsewhere"}).encode()
    disk.inodes["stopped"].replace(b"%08x\n" % crc32(changed) + changed)


def torn_stop(disk: Disk) -> None:
    inode = disk.inodes["stopped"]
    inode.replace(inode.data[:-9])


def no_stop(disk: Disk) -> None:
    disk.remove("stopped")


def one_more_queue(disk: Disk) -> None:
    disk.create("consumequeue/other/0/00000000000000000000", size=200)


def one_queue_less(disk: Disk) -> None:
    for name in disk.list_names("consumequeue/T/1"):
        disk.remove(f"consumequeue/T/1/{name}")


def flipped_entry(disk: Disk) -> None:
    disk.inodes["consumequeue/T/1/00000000000000000200"].data[27] ^= 4


def entry_behind_the_end(disk: Disk) -> None:
    last = max(path for path in disk.inodes if path.startswith("consumequeue/T/2/"))
    inode = disk.inodes[last]
    disk.create(f"consumequeue/T/2/{int(last[-20:]) + 200:020d}", size=200)
    disk.inodes[f"consumequeue/T/2/{int(last[-20:]) + 200:020d}"].replace(bytes(inode.data))


def record_behind_the_end(disk: Disk) -> None:
    last = max(path for path in disk.inodes if path.startswith("commitlog/"))
    disk.inodes[last].data[-1] = 7


def first_log_file_gone(disk: Disk) -> None:
    disk.remove("commitlog/00000000000000000000")


@pytest.mark.parametrize(
    "change",
    [
        new_checkpoint,
        later_version,
        torn_stop,
        no_stop,
        one_more_queue,
        one_queue_less,
        flipped_entry,
        entry_behind_the_end,
        record_behind_the_end,
        first_log_file_gone,
    ],
    ids=lambda change: change.__name__,
)
def test_what_changed_since_the_stop_is_found(
    change: Callable[[Disk], None], storage: Disk, new_record: NewRecord
) -> None:
    fill(storage, new_record)
    before, _ = opened(storage.copy())
    change(storage)
    store, report = opened(storage)

    assert report.is_clean
    assert report.record_count > 0
    assert before.appended_position == store.appended_position
    ends = {key: high for key, (_, high, _) in look(before).items()}
    assert ends == {key: high for key, (_, high, _) in look(store).items() if high}


@pytest.mark.parametrize("at", [2_300, 3_000])
def test_bytes_of_the_logs_end_are_checked(
    at: int, storage: Disk, new_record: NewRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    # They are read in pieces.
    monkeypatch.setattr("sparrowmq.store.clean_stop._CHUNK_SIZE", 512)
    fill(storage, new_record)
    last = max(path for path in storage.inodes if path.startswith("commitlog/"))
    storage.inodes[last].data[at] ^= 1

    with pytest.raises(CorruptRecord, match=last):
        opened(storage)


def test_flipped_bit_of_the_checkpoint_costs_nothing(storage: Disk, new_record: NewRecord) -> None:
    fill(storage, new_record)
    before, _ = opened(storage.copy())
    for at in range(384):
        disk = storage.copy()
        disk.inodes["checkpoint"].data[at] ^= 1 << at % 8
        store, report = opened(disk)

        assert report.describe_loss() is None, at
        assert look(before) == look(store), at
        assert before.appended_position == store.appended_position, at
        assert len(find_records(store, "T", "0001")) == COUNT, at


def test_bytes_of_a_log_are_checked_that_is_shorter_than_the_part_to_check(
    storage: Disk, new_record: NewRecord
) -> None:
    config = replace(CONFIG, verify_bytes=1 << 20)
    store, _ = opened(storage, config)
    for n in range(3):
        store.put(new_record(b"%d" % n), timestamp_ms=n)
    store.close()
    storage.inodes[f"commitlog/{0:020d}"].data[90] ^= 1

    with pytest.raises(CorruptRecord):
        opened(storage, config)


def test_power_cut_at_any_moment_of_a_stop_and_a_start_loses_nothing(
    new_storage: Callable[..., Disk], new_record: NewRecord
) -> None:
    walked = set()
    for changes in range(60):
        disk = new_storage(Random(changes))
        store, _ = opened(disk)
        for n in range(20):
            store.put(new_record(b"%d" % n, queue_id=n % 3), timestamp_ms=100 + n)
        flush(store)
        seen = look(store)
        disk.changes_left = changes
        try:
            store.close()
            store, _ = opened(disk)
            store.put(new_record(b"later"), timestamp_ms=300)
            flush(store)
            is_cut = False
        except PowerCut:
            is_cut = True
        disk.lose_power()
        disk.changes_left = None
        again, report = opened(disk)
        walked.add((is_cut, report.record_count > 0))

        found = look(again)
        assert seen.keys() == found.keys()
        for key, (low, high, records) in seen.items():
            assert low == found[key][0]
            assert high <= found[key][1]
            assert found[key][2].startswith(records), changes
    assert walked == {(True, True), (True, False), (False, True)}

"""The end of the log damaged at every byte: it opens, and what was whole before is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from small_stores import SMALL, all_records, flush, open_store
from sparrowmq.errors import CorruptRecord
from sparrowmq.protocol.record import Record
from sparrowmq.store import MessageStore

LOG = "commitlog/00000000000000000000"
# What the queues' files know of the log's end tells that it is lost.
CONFIG = replace(SMALL, queue_tail_bytes_max=0)
KEPT_COUNT = 3
LAST_COUNT = 3


def write_log(storage: Any, make: Callable[..., Record], *, is_last_synced: bool) -> list[Record]:
    store = open_store(storage, CONFIG)
    records = [
        make(b"body %d " % n * (1 + n), queue_id=n % 2, properties=f"TAGS\x01T{n}\x02KEYS\x01k{n}")
        for n in range(KEPT_COUNT + LAST_COUNT)
    ]
    for record in records[:KEPT_COUNT]:
        store.put(record, timestamp_ms=5)
    flush(store)
    for record in records[KEPT_COUNT:]:
        store.put(record, timestamp_ms=6)
    if is_last_synced:
        flush(store)
    return records


def damages(log: bytes, begin: int, end: int) -> Iterator[tuple[str, int, bytes]]:
    rng = Random(1)
    for at in range(begin, end):
        yield "truncate", at, log[:at]
        yield "zero", at, log[:at] + bytes(len(log) - at)
        noise = rng.randbytes(rng.choice((end - at, end - at + 300)))
        yield "noise", at, log[:at] + noise + log[at + len(noise) :]
        flipped = bytearray(log)
        flipped[at] ^= 1 << rng.randrange(8)
        yield "flip", at, bytes(flipped)


def whole_before(records: list[Record], kind: str, at: int, log: bytes, damaged: bytes) -> int:
    """Return how many records the damage at byte `at` has left whole."""
    for count, record in enumerate(records):
        end = record.position + record.size
        if log[:end] != damaged[:end].ljust(end, b"\0"):
            return count
    return len(records)


def is_checksum_name(records: list[Record], at: int) -> bool:
    """Return whether a byte belongs to the name of a record's checksum, which nothing covers."""
    ends = [record.position + record.size for record in records]
    return any(end - 20 <= at < end - 11 for end in ends)


@pytest.mark.parametrize("last_ms", [8, 9])
def test_older_records_behind_the_end_of_apaches_log_are_no_part_of_it(
    storage: Any, new_record: Callable[..., Record], last_ms: int
) -> None:
    store = open_store(storage, CONFIG)
    records = [new_record(b"%d" % n) for n in range(3)]
    for record, timestamp_ms in zip(records, (9, 9, last_ms), strict=True):
        store.put(record, timestamp_ms=timestamp_ms)
    store.close()
    storage.inodes[LOG].data[records[1].position] ^= 1
    # Apache's broker writes no mark.
    storage.inodes["checkpoint"].replace(bytes(4096))

    if last_ms == 9:
        with pytest.raises(CorruptRecord, match=f"the first at log position {records[2].position}"):
            open_store(storage, CONFIG)
    else:
        assert [record.body for record in all_records(open_store(storage, CONFIG))] == [b"0"]


def test_damage_before_records_of_a_clock_that_was_set_back_is_refused(
    storage: Any, new_record: Callable[..., Record]
) -> None:
    store = open_store(storage, CONFIG)
    records = [new_record(b"%d" % n) for n in range(3)]
    for record, timestamp_ms in zip(records, (9, 9, 8), strict=True):
        store.put(record, timestamp_ms=timestamp_ms)
    store.close()
    storage.inodes[LOG].data[records[1].position] ^= 1

    with pytest.raises(CorruptRecord, match=f"the first at log position {records[2].position}"):
        open_store(storage, CONFIG)


@pytest.mark.slow
def test_any_damage_to_what_was_not_synced_is_cut_off(
    new_storage: Callable[[], Any], new_record: Callable[..., Record]
) -> None:
    storage = new_storage()
    records = write_log(storage, new_record, is_last_synced=False)
    log = bytes(storage.inodes[LOG].data)
    begin, end = records[KEPT_COUNT].position, records[-1].position + records[-1].size

    for kind, at, damaged in damages(log, begin, end):
        if kind == "flip" and is_checksum_name(records, at):
            continue
        disk = storage.copy()
        disk.inodes[LOG].replace(damaged)
        store = MessageStore(disk, CONFIG)
        report = store.load(timestamp_ms=7)

        count = whole_before(records, kind, at, log, damaged)
        assert count >= KEPT_COUNT
        assert [(r.position, r.body) for r in records[:count]] == [
            (r.position, r.body) for r in all_records(store)
        ], (kind, at)
        assert report.lost_synced_bytes == 0
        assert not any(disk.inodes[LOG].durable[store.appended_position :]), (kind, at)


@pytest.mark.slow
def test_damage_to_what_was_synced_is_refused_or_reported(
    new_storage: Callable[[], Any], new_record: Callable[..., Record]
) -> None:
    storage = new_storage()
    records = write_log(storage, new_record, is_last_synced=True)
    log = bytes(storage.inodes[LOG].data)
    begin, end = records[KEPT_COUNT].position, records[-1].position + records[-1].size

    for kind, at, damaged in damages(log, begin, end):
        if kind == "flip" and is_checksum_name(records, at):
            continue
        count = whole_before(records, kind, at, log, damaged)
        disk = storage.copy()
        disk.inodes[LOG].replace(damaged)
        store = MessageStore(disk, CONFIG)
        if kind == "flip" and count < len(records) - 1:
            with pytest.raises(CorruptRecord, match=LOG) as caught:
                store.load(timestamp_ms=7)
            assert records[count].position == caught.value.position
            continue
        report = store.load(timestamp_ms=7)

        assert [r.body for r in records[:count]] == [r.body for r in all_records(store)], (kind, at)
        assert (report.lost_synced_bytes > 0) is (count < len(records)), (kind, at)


def test_a_torn_record_right_behind_the_checkpoint_is_cut_off_with_those_behind_it(
    storage: Any, new_record: Callable[..., Record]
) -> None:
    store = open_store(storage, CONFIG)
    store.put(new_record(b"0"), timestamp_ms=5)
    store.close()
    store = open_store(storage, CONFIG)
    torn, whole = new_record(b"torn"), new_record(b"whole")
    for record in (torn, whole):
        store.put(record, timestamp_ms=6)
    storage.inodes[LOG].data[torn.position : whole.position] = bytes(torn.size)

    store = MessageStore(storage.kill(), CONFIG)
    report = store.load(timestamp_ms=7)

    assert [record.body for record in all_records(store)] == [b"0"]
    assert (store.appended_position, report.lost_synced_bytes) == (torn.position, 0)


@pytest.mark.parametrize("queue_ids", [(0, 1), (1, 0)])
def test_damage_is_refused_though_only_one_entry_tells_that_its_record_was_synced(
    storage: Any, new_record: Callable[..., Record], queue_ids: tuple[int, int]
) -> None:
    store = open_store(storage)
    store.put(new_record(b"first"), timestamp_ms=5)
    flush(store)
    # The first entry of a queue is written to its file at once, and further ones are gathered.
    records = [new_record(b"record", queue_id=queue_id) for queue_id in queue_ids]
    for record in records:
        store.put(record, timestamp_ms=6)
        flush(store)
    storage.inodes[LOG].data[records[0].position + 90] ^= 1

    with pytest.raises(CorruptRecord, match=f"the first at log position {records[1].position}"):
        open_store(storage.kill())


def test_a_damaged_checksum_name_does_no_harm(
    new_storage: Callable[[], Any], new_record: Callable[..., Record]
) -> None:
    storage = new_storage()
    records = write_log(storage, new_record, is_last_synced=True)
    last = records[-1]
    storage.inodes[LOG].data[last.position + last.size - 20] ^= 1
    store = open_store(storage.kill(), CONFIG)

    assert [r.body for r in records] == [r.body for r in all_records(store)]


@pytest.mark.parametrize("count", [3, 40])
def test_a_cut_off_record_never_comes_back(
    count: int, new_storage: Callable[[], Any], new_record: Callable[..., Record]
) -> None:
    storage = new_storage()
    store = open_store(storage, CONFIG)
    old = [new_record(b"old %d" % n, queue_id=n % 2) for n in range(count)]
    for record in old:
        store.put(record, timestamp_ms=2)
    damaged = old[count // 2]
    base = damaged.position // 4096 * 4096
    storage.inodes[f"commitlog/{base:020d}"].data[damaged.position - base + 90] ^= 1
    storage = storage.kill()

    store = open_store(storage, CONFIG)
    new = new_record(b"n", queue_id=0)
    store.put(new, timestamp_ms=4)
    flush(store)
    storage.lose_power()

    store = open_store(storage, CONFIG)
    assert [*(r.body for r in old[: count // 2]), b"n"] == [r.body for r in all_records(store)]


def test_a_whole_record_at_another_place_than_it_says_is_none(
    new_storage: Callable[[], Any], new_record: Callable[..., Record]
) -> None:
    storage = new_storage()
    records = write_log(storage, new_record, is_last_synced=True)
    last = records[-1]
    end = last.position + last.size
    data = storage.inodes[LOG].data
    data[end : end + last.size] = data[last.position : end]
    store = MessageStore(storage.kill(), CONFIG)
    report = store.load(timestamp_ms=7)

    assert report.is_torn
    assert end == store.appended_position
    assert [r.body for r in records] == [r.body for r in all_records(store)]

"""Bits that flip in data that was synced: never a silent loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from small_stores import SMALL, all_records, flush, open_store
from sparrowmq.errors import CorruptRecord
from sparrowmq.protocol.record import Record
from sparrowmq.store import FlushMode, MessageStore, PutStatus, RecoveryReport
from sparrowmq.store.recovery import LostFile

FLIPS = 400


def fill(storage: Any, make: Callable[..., Record]) -> list[bytes]:
    store = open_store(storage)
    bodies = [b"%d " % n + b"x" * (n * 13 % 200) for n in range(60)]
    for n, body in enumerate(bodies):
        store.put(make(body, queue_id=n % 2), timestamp_ms=n)
    store.close()
    return bodies


def end_of_log(storage: Any) -> int:
    store = open_store(storage.copy())
    return store.appended_position


def load(store: MessageStore) -> RecoveryReport | CorruptRecord:
    try:
        return store.load(timestamp_ms=1)
    except CorruptRecord as error:
        return error


@pytest.mark.slow
@pytest.mark.parametrize("is_abort", [True, False])
def test_a_flipped_bit_in_the_log_is_never_a_silent_loss(
    is_abort: bool, new_storage: Callable[[], Any], new_record: Callable[..., Record]
) -> None:
    storage, rng = new_storage(), Random(7)
    bodies = fill(storage, new_record)
    if is_abort:
        storage.create("abort", size=0)
    logs = storage.list_names("commitlog")
    assert len(logs) > 3
    refused = readable = reported = 0
    for _ in range(FLIPS):
        disk = storage.copy()
        path, at = f"commitlog/{rng.choice(logs)}", rng.randrange(4096)
        disk.inodes[path].data[at] ^= 1 << rng.randrange(8)
        disk.inodes[path].replace(bytes(disk.inodes[path].data))
        store = MessageStore(disk, SMALL)
        outcome = load(store)
        if isinstance(outcome, CorruptRecord):
            assert path in str(outcome)
            assert 0 <= int(path[-20:]) + at - outcome.position < 4096
            refused += 1
            continue
        found = [record.body for record in all_records(store)]
        if found == bodies:
            readable += 1
        else:
            assert bodies[: len(found)] == found
            assert outcome.lost_synced_bytes > 0
            assert len(bodies) - len(found) == sum(count for _, count in outcome.lost_messages)
            reported += 1

    assert min(refused, readable) > FLIPS // 20
    assert refused + readable + reported == FLIPS


@pytest.mark.slow
def test_a_flipped_bit_in_a_queue_is_put_right(
    new_storage: Callable[[], Any], new_record: Callable[..., Record]
) -> None:
    storage, rng = new_storage(), Random(8)
    bodies = fill(storage, new_record)
    original = {p: bytes(i.data) for p, i in storage.inodes.items() if p.startswith("consume")}
    for _ in range(FLIPS // 4):
        disk = storage.copy()
        path, at = rng.choice(sorted(original)), rng.randrange(200)
        disk.inodes[path].data[at] ^= 1 << rng.randrange(8)
        store = open_store(disk)

        assert bodies == [record.body for record in all_records(store)]
        assert original == {p: bytes(disk.inodes[p].data) for p in original}


def test_a_missing_log_file_is_refused(storage: Any, new_record: Callable[..., Record]) -> None:
    fill(storage, new_record)
    storage.remove("commitlog/00000000000000004096")

    with pytest.raises(CorruptRecord, match="commitlog/00000000000000004096") as caught:
        MessageStore(storage, SMALL).load(timestamp_ms=1)
    assert caught.value.position == 4096


def test_records_that_apache_wrote_are_refused_if_damaged_in_the_middle(
    storage: Any, new_record: Callable[..., Record]
) -> None:
    fill(storage, new_record)
    storage.remove("checkpoint")
    storage.create("abort", size=0)
    storage.inodes["commitlog/00000000000000000000"].data[100] ^= 1

    with pytest.raises(CorruptRecord) as caught:
        MessageStore(storage, SMALL).load(timestamp_ms=1)
    assert caught.value.position == 0


@pytest.mark.parametrize("name", ["checkpoint", "consumequeue/T/0/00000000000000000000"])
def test_salvage_without_a_checkpoint_or_a_queue_reports_the_loss(
    name: str, storage: Any, new_record: Callable[..., Record]
) -> None:
    fill(storage, new_record)
    log_end = end_of_log(storage)
    storage.remove(name)
    storage.create("abort", size=0)
    storage.inodes["commitlog/00000000000000004096"].data[100] ^= 1
    report = MessageStore(storage, replace(SMALL, salvage=True)).load(timestamp_ms=1)

    assert report.lost_synced_bytes == log_end - 4096
    assert f"{log_end - 4096} bytes" in (report.describe_loss() or "")


def test_a_store_that_lost_nothing_says_so(storage: Any, new_record: Callable[..., Record]) -> None:
    fill(storage, new_record)
    storage.create("abort", size=0)

    assert MessageStore(storage, SMALL).load(timestamp_ms=1).describe_loss() is None


@pytest.mark.parametrize("bit", [4, 20, 31, 40, 62, 63])
def test_queue_offset_that_cannot_be_is_damage(
    bit: int, storage: Any, new_record: Callable[..., Record]
) -> None:
    """Entries for all offsets before it would fill the memory, or the disk."""
    config = replace(SMALL, append_crc=False)
    store = open_store(storage, config)
    for n in range(9):
        store.put(new_record(b"%d" % n), timestamp_ms=n)
    size = store.appended_position // 9
    store.close()
    storage.remove("checkpoint")
    storage.create("abort", size=0)
    storage.inodes["commitlog/00000000000000000000"].data[3 * size + 27 - bit // 8] ^= 1 << bit % 8

    with pytest.raises(CorruptRecord) as caught:
        MessageStore(storage, config).load(timestamp_ms=1)
    assert caught.value.position == 3 * size


def test_an_end_that_an_asynchronous_store_had_synced_is_reported(
    storage: Any, new_record: Callable[..., Record]
) -> None:
    config = replace(SMALL, flush=FlushMode.ASYNC)
    store = open_store(storage, config)
    records = [new_record(b"%d" % number) for number in range(3)]
    for record in records:
        store.put(record, timestamp_ms=1)
    store.close()
    last = records[-1]
    storage.inodes["commitlog/00000000000000000000"].data[last.position :] = bytes(
        4096 - last.position
    )

    report = MessageStore(storage, config).load(timestamp_ms=1)

    assert report.lost_synced_bytes == last.size
    assert report.lost_messages == ((("T", 0), 1),)


def test_a_record_with_the_offset_of_an_earlier_one_moves_no_later_one(
    storage: Any, new_record: Callable[..., Record]
) -> None:
    store = open_store(storage)
    for number, offset in enumerate((0, 0, 1)):
        if number > 0:
            store.queues.by_key["T", 0].next_offset = offset
        store.put(new_record(b"%d" % number), timestamp_ms=1)
    flush(store)

    store = MessageStore(storage.kill(), SMALL)
    loss = store.load(timestamp_ms=1).describe_loss()

    assert loss is not None
    assert "1 records have the queue offset of an earlier record" in loss
    assert [(each.queue_offset, each.body) for each in all_records(store)] == [(0, b"0"), (1, b"2")]


def test_salvage_cuts_the_log_at_the_damage(
    storage: Any, new_record: Callable[..., Record]
) -> None:
    bodies, log_end = fill(storage, new_record), end_of_log(storage)
    storage.inodes["commitlog/00000000000000004096"].data[100] ^= 1
    with pytest.raises(CorruptRecord, match="salvage"):
        MessageStore(storage, SMALL).load(timestamp_ms=1)
    store = MessageStore(storage, replace(SMALL, salvage=True))
    report = store.load(timestamp_ms=1)

    assert report.lost_synced_bytes == log_end - 4096
    found = [record.body for record in all_records(store)]
    assert bodies[: len(found)] == found
    lost = dict(report.lost_messages)
    assert lost.keys() == {("T", 0), ("T", 1)}
    assert len(bodies) - len(found) == sum(lost.values())
    loss = report.describe_loss()
    assert loss is not None
    assert (
        f"damaged at position 4096 and was cut off there: at least {log_end - 4096} bytes" in loss
    )
    assert f"entries: {len(bodies) - len(found)} (" in loss
    assert f"T:0 {lost['T', 0]}, T:1 {lost['T', 1]}" in loss
    assert store.appended_position == 4096
    assert store.put(new_record(b"new"), timestamp_ms=1).status is PutStatus.PUT_OK


@pytest.mark.parametrize("is_abort", [True, False])
@pytest.mark.parametrize("size", [None, 1000], ids=["missing", "cut"])
def test_start_names_a_file_that_the_log_lost_and_the_others_are_read(
    size: int | None, is_abort: bool, storage: Any, new_record: Callable[..., Record]
) -> None:
    config = replace(SMALL, verify_bytes=0)
    store = open_store(storage, config)
    for number in range(60):
        store.put(new_record(b"%d" % number + b"x" * 100), timestamp_ms=number)
    flush(store)
    records = all_records(store)
    store.close()
    if is_abort:
        storage.create("abort", size=0)
    path = "commitlog/00000000000000004096"
    if size is None:
        storage.remove(path)
    else:
        storage.inodes[path].data = storage.inodes[path].data[:size]
    # Of a cut file the records before the cut are kept.
    lost = range(4096 + (size or 0) + 1, 8192 + 1)
    kept = [each for each in records if each.position + each.size not in lost]
    assert len(kept) < len(records)

    store = MessageStore(storage, config)
    report = store.load(timestamp_ms=1)

    in_file = [each.queue_offset for each in records if 4096 <= each.position < 8192]
    first, last = in_file[0], in_file[-1]
    assert report.lost_files == (LostFile(path, ((("T", 0), first, last + 1),)),)
    assert f"{path} of the log was missing or cut" in (report.describe_loss() or "")
    assert f"T:0 {first} to {last};" in (report.describe_loss() or "")
    again = MessageStore(storage.kill(), config)
    assert again.load(timestamp_ms=1).describe_loss() is None
    for each in (store, again):
        found = [each.records.read_message("T", 0, offset) for offset in range(len(records))]
        assert [record.body for record in found if record] == [record.body for record in kept]

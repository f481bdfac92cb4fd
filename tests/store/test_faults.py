"""Disks that are full, and disks whose sync fails."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from small_stores import SMALL, all_records, find_records, flush, open_store, split_records
from sparrowmq.errors import StoreError
from sparrowmq.protocol.record import Record
from sparrowmq.simulation.faulty_disk import SimulatedFile
from sparrowmq.store import MessageStore, PutStatus
from sparrowmq.store.checkpoint import CHECKPOINT_PATH, read_checkpoint
from sparrowmq.store.storage import Bytes

NewRecord = Callable[..., Record]


@pytest.fixture
def store(storage: Any) -> MessageStore:
    return open_store(storage)


def bodies(store: MessageStore, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    got = store.queues.get(topic, queue_id, queue_offset=0, count_max=999, bytes_max=1 << 30)
    return [record.body for record in split_records(got.records)]


@pytest.mark.parametrize("left", [0, 1, 50, 150])
def test_full_disk_refuses_and_recovers_when_space_returns(
    left: int, storage: Any, store: MessageStore, new_record: NewRecord
) -> None:
    store.put(new_record(b"a"), timestamp_ms=1)
    end = store.appended_position
    storage.bytes_left = left

    refused = store.put(new_record(b"lost" * 50), timestamp_ms=1)

    assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert "no space" in refused.remark
    assert end == store.appended_position
    assert not any(storage.inodes["commitlog/00000000000000000000"].data[end:])
    assert store.is_writable
    storage.bytes_left = None
    stored = store.put(new_record(b"b"), timestamp_ms=1)
    assert (stored.status, stored.queue_offset) == (PutStatus.PUT_OK, 1)
    flush(store)
    assert bodies(store) == [b"a", b"b"]
    again = open_store(storage.kill())
    assert bodies(again) == [b"a", b"b"]


def test_full_disk_at_every_byte_loses_nothing(
    new_storage: Callable[[], Any], new_record: NewRecord
) -> None:
    for left in range(0, 12_000, 97):
        storage = new_storage()
        store = open_store(storage)
        storage.bytes_left = left
        stored: list[bytes] = []
        for n in range(60):
            body = b"%d " % n + b"x" * (n * 7 % 300)
            put = store.put(new_record(body), timestamp_ms=1)
            if put.status is PutStatus.PUT_OK:
                assert len(stored) == put.queue_offset
                stored.append(body)
            work = store.flush_work()
            if work is not None:
                work.run()
                store.flush_done(work, None)
            store.dispatch()
            storage.bytes_left += n
        storage.bytes_left = None
        store.dispatch()

        assert stored == bodies(store), left
        again = open_store(storage.kill())
        assert stored == bodies(again), left


def test_queue_entries_that_find_no_space_are_written_later(
    storage: Any, new_record: NewRecord
) -> None:
    store = open_store(storage, replace(SMALL, queue_tail_bytes_max=0))
    for n in range(4):
        store.put(new_record(b"%d" % n, queue_id=n % 2), timestamp_ms=1)
    work = store.flush_work()
    assert work is not None
    work.run()
    store.flush_done(work, None)
    storage.bytes_left = 40 + 5

    first = store.dispatch()
    storage.bytes_left = None
    second = store.dispatch()

    assert [(d.queue_id, d.next_offset) for d in first] == [(0, 1), (0, 2)]
    assert [(d.queue_id, d.next_offset) for d in second] == [(1, 1), (1, 2)]
    assert bodies(store, queue_id=1) == [b"1", b"3"]


def test_gathered_queue_entries_that_find_no_space_put_the_checkpoint_off(
    storage: Any, store: MessageStore, new_record: NewRecord
) -> None:
    interval_ms = 2 * SMALL.checkpoint_interval_ms
    for n in range(4):
        store.put(new_record(b"%d" % n), timestamp_ms=interval_ms)
        flush(store)
    storage.bytes_left = 5

    assert store.flush_work() is None
    assert bodies(store) == [b"0", b"1", b"2", b"3"]
    storage.bytes_left = None
    work = store.flush_work()
    assert work is not None
    assert work.checkpoint is not None
    work.run()
    store.flush_done(work, None)

    again = MessageStore(storage.copy(), SMALL)
    assert again.load(timestamp_ms=interval_ms).is_clean is False
    assert bodies(again) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_checkpoint_that_finds_no_room_is_written_with_a_later_flush(
    code: int,
    storage: Any,
    store: MessageStore,
    new_record: NewRecord,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    interval_ms = 2 * SMALL.checkpoint_interval_ms
    written = read_checkpoint(storage)
    write = SimulatedFile.write

    def refuse(file: SimulatedFile, position: int, data: Bytes) -> None:
        if file.path == CHECKPOINT_PATH:
            raise OSError(code, "injected")
        write(file, position, data)

    sent = [b"%d" % number * 3_000 for number in range(3)]
    with monkeypatch.context() as patch:
        patch.setattr(SimulatedFile, "write", refuse)
        for number, body in enumerate(sent[:2]):
            store.put(new_record(body), timestamp_ms=1 + number * interval_ms)
            flush(store)
        killed = storage.copy()
        # Only what a checkpoint covers may expire.
        expired = store.expire(before_timestamp_ms=None, files_max=1, reason="", timestamp_ms=99)
    assert (bodies(store), store.is_writable, expired) == (sent[:2], True, None)
    assert read_checkpoint(storage) == written
    assert bodies(open_store(killed)) == sent[:2]

    store.put(new_record(sent[2]), timestamp_ms=1 + 2 * interval_ms)
    flush(store)
    assert read_checkpoint(storage) != written
    assert (
        store.expire(before_timestamp_ms=None, files_max=1, reason="", timestamp_ms=99) is not None
    )
    assert bodies(open_store(storage.copy())) == sent


def test_store_that_was_killed_asks_for_room_to_start_on_a_full_disk(
    storage: Any, store: MessageStore, new_record: NewRecord
) -> None:
    for n in range(4):
        store.put(new_record(b"%d" % n), timestamp_ms=1)
        flush(store)
    killed = storage.copy()
    killed.bytes_left = 5

    with pytest.raises(StoreError, match="; make room on the disk and start again"):
        MessageStore(killed, SMALL).load(timestamp_ms=1)

    killed.bytes_left = None
    assert bodies(open_store(killed)) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EROFS])
def test_failed_sync_makes_the_store_read_only_until_it_is_loaded_again(
    code: int, storage: Any, store: MessageStore, new_record: NewRecord
) -> None:
    store.put(new_record(b"a"), timestamp_ms=1)
    flush(store)
    store.put(new_record(b"b"), timestamp_ms=1)
    work = store.flush_work()
    assert work is not None
    storage.sync_error = OSError(code, "injected")
    with pytest.raises(OSError, match="injected") as caught:
        work.run()
    store.flush_done(work, caught.value)

    storage.sync_error = None
    assert store.put(new_record(b"c"), timestamp_ms=1).status is PutStatus.SERVICE_NOT_AVAILABLE
    assert store.flush_work() is None
    assert store.dispatch() == []
    assert bodies(store) == [b"a"]
    assert (False, caught.value) == (store.is_writable, store.failure)
    store.close()
    assert storage.has("abort")
    again = open_store(storage)
    assert again.put(new_record(b"d"), timestamp_ms=1).status is PutStatus.PUT_OK
    flush(again)
    assert bodies(again) == [b"a", b"b", b"d"]


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR])
def test_sync_that_lacks_a_descriptor_or_memory_is_made_again(
    code: int, storage: Any, store: MessageStore, new_record: NewRecord
) -> None:
    store.put(new_record(b"a"), timestamp_ms=1)
    work = store.flush_work()
    assert work is not None
    storage.sync_error = OSError(code, "injected")
    with pytest.raises(OSError, match="injected") as caught:
        work.run()
    store.flush_done(work, caught.value)
    assert store.dispatch() == []
    storage.sync_error = None

    assert store.put(new_record(b"b"), timestamp_ms=1).status is PutStatus.PUT_OK
    flush(store)
    assert bodies(store) == [b"a"]
    flush(store)
    assert bodies(store) == [b"a", b"b"]


def test_shortage_at_the_last_flush_loses_nothing_when_the_store_closes(
    storage: Any, store: MessageStore, new_record: NewRecord
) -> None:
    store.put(new_record(b"a"), timestamp_ms=1)
    work = store.flush_work()
    assert work is not None
    store.flush_done(work, OSError(errno.EMFILE, "injected"))

    store.close()

    assert not storage.has("abort")
    assert not storage.inodes["commitlog/00000000000000000000"].dirty
    again = open_store(storage.kill())
    assert bodies(again) == [b"a"]


def test_a_turn_that_cannot_be_written_is_lost_as_a_whole_and_its_places_are_used_again(
    storage: Any, store: MessageStore, new_record: NewRecord
) -> None:
    store.put(new_record(b"a"), timestamp_ms=1)
    storage.bytes_left = 100
    taken = [store.append(new_record(b"lost" * 20), timestamp_ms=1) for _ in range(2)]
    other = store.append(new_record(b"lost", queue_id=1), timestamp_ms=1)

    written = store.write()

    assert [each.status for each in [*taken, other]] == [PutStatus.PUT_OK] * 3
    assert written.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert store.written_position == store.appended_position == taken[0].position
    storage.bytes_left = None
    again = store.put(new_record(b"b"), timestamp_ms=1)
    assert (again.status, again.queue_offset) == (PutStatus.PUT_OK, 1)
    assert list(store.queues) == [("T", 0)]


def test_nothing_is_taken_between_a_write_that_failed_on_its_way_and_its_report(
    storage: Any, store: MessageStore, new_record: NewRecord
) -> None:
    lost = store.append(new_record(b"x" * 2000), timestamp_ms=1)
    storage.bytes_left = 10

    # The file is full, so what was taken has to be written first.
    refused = store.append(new_record(b"y" * 2100), timestamp_ms=1)

    storage.bytes_left = None
    between = store.append(new_record(b"z"), timestamp_ms=1)
    assert [each.status for each in (lost, refused, between, store.write())] == [
        PutStatus.PUT_OK,
        *[PutStatus.SERVICE_NOT_AVAILABLE] * 3,
    ]
    assert store.put(new_record(b"z"), timestamp_ms=1).status is PutStatus.PUT_OK


def test_records_of_a_failed_sync_are_on_the_disk_before_a_restart_serves_them(
    storage: Any, new_record: NewRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel takes pages for written that a failed sync has lost: a later sync skips them."""
    # The end is written anew in pieces.
    monkeypatch.setattr("sparrowmq.store.file_series._REWRITE_BYTES", 500)
    store = open_store(storage)
    store.put(new_record(b"a" * 600), timestamp_ms=1)
    flush(store)
    store.put(new_record(b"b" * 600), timestamp_ms=1)
    work = store.flush_work()
    assert work is not None
    storage.fail()
    with pytest.raises(OSError, match="does not answer") as raised:
        work.run()
    storage.mend()
    store.flush_done(work, raised.value)
    store.close()

    again = open_store(storage)
    again.put(new_record(b"c" * 600), timestamp_ms=1)
    flush(again)
    served = bodies(again)
    after = open_store(storage.lose_power())

    assert [body[:1] for body in served] == [b"a", b"b", b"c"]
    assert bodies(after) == served


@pytest.mark.parametrize("size", [600, 3_900], ids=["same file", "new file"])
@pytest.mark.parametrize("seed", range(4))
def test_records_of_a_killed_process_are_on_the_disk_before_a_restart_serves_them(
    new_storage: Callable[..., Any], new_record: NewRecord, seed: int, size: int
) -> None:
    storage, config = new_storage(Random(seed)), replace(SMALL, verify_bytes=0)
    store = open_store(storage, config)
    for body in (b"0", b"1", b"2"):
        store.put(new_record(body), timestamp_ms=1)
    store.close()
    # It is written, and the process is killed before the sync.
    open_store(storage, config).put(new_record(b"3" * size), timestamp_ms=1)

    store = MessageStore(storage.kill(), config)
    report = store.load(timestamp_ms=1)
    served = bodies(store)

    assert report.walked_from > 0
    assert served == [b"0", b"1", b"2", b"3" * size]
    assert bodies(open_store(storage.lose_power(), config)) == served


@pytest.mark.parametrize("part", ["stopped", "checkpoint", "consumequeue/T/1/", "index/"])
@pytest.mark.parametrize("is_killed", [False, True])
def test_store_has_all_messages_where_the_disk_has_lost_sectors_of_what_the_log_implies(
    part: str,
    is_killed: bool,
    storage: Any,
    new_record: NewRecord,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = open_store(storage)
    for n in range(60):
        record = new_record(b"%d" % n, queue_id=n % 3, properties=f"KEYS\x01k{n % 2}")
        store.put(record, timestamp_ms=1_000 * n)
        flush(store)
        store.build_index()
    wanted = [record.body for record in all_records(store)]
    killed = storage.copy()
    store.close()
    disk = killed if is_killed else storage
    read = SimulatedFile.read
    lost = [inode for path, inode in disk.inodes.items() if path.startswith(part)]

    def fail(file: SimulatedFile, position: int, size: int) -> bytes:
        if size and file._inode in lost:
            raise OSError(errno.EIO, "unreadable")
        return read(file, position, size)

    monkeypatch.setattr(SimulatedFile, "read", fail)
    again = open_store(disk)
    assert lost or (part, is_killed) == ("stopped", True)

    assert [record.body for record in all_records(again)] == wanted
    assert [record.body for record in find_records(again, "T", "k1")] == wanted[1::2]

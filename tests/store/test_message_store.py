from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from zlib import crc32

import pytest

from small_stores import SMALL, flush, open_store, split_records
from sparrowmq.errors import StoreError, UsageError
from sparrowmq.model.names import SCHEDULE_TOPIC
from sparrowmq.protocol.record import (
    TRANSACTION_COMMIT,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    BatchEntry,
    Record,
    decode_record,
    encode_batch,
    encode_host,
)
from sparrowmq.protocol.subscription import tags_code
from sparrowmq.store import FlushMode, GetStatus, MessageStore, PutStatus, StoreConfig
from sparrowmq.store.message_batch import MessageBatch, read_messages
from sparrowmq.store.stored_record import add_attempts

NewRecord = Callable[..., Record]
SMALL_ASYNC = replace(SMALL, flush=FlushMode.ASYNC)


@pytest.fixture
def store(storage: Any) -> MessageStore:
    return open_store(storage)


def test_put_fills_in_the_place_and_get_returns_the_record(
    store: MessageStore, new_record: NewRecord
) -> None:
    record = new_record(b"hello", flag=7, born_timestamp_ms=3)

    put = store.put(record, timestamp_ms=1000)

    assert put.status is PutStatus.PUT_OK
    assert (0, record.size, 0, (0,)) == (
        put.position,
        put.end_position,
        put.queue_offset,
        put.positions,
    )
    assert (record.queue_offset, record.position, record.store_timestamp_ms) == (0, 0, 1000)
    flush(store)
    got = store.queues.get("T", 0, queue_offset=0, count_max=32, bytes_max=1 << 20)
    assert (
        got.status,
        got.next_offset,
        got.min_offset,
        got.max_offset,
        got.count,
    ) == (GetStatus.FOUND, 1, 0, 1, 1)
    (read,) = split_records(got.records)
    assert read.body == b"hello"
    assert (
        read.flag,
        read.born_timestamp_ms,
        read.store_timestamp_ms,
        read.queue_offset,
    ) == (7, 3, 1000, 0)


def test_sync_store_shows_nothing_before_it_is_on_the_disk(
    store: MessageStore, new_record: NewRecord
) -> None:
    put = store.put(new_record(b"a"), timestamp_ms=1)
    assert store.dispatch() == []
    assert store.queues.max_offset("T", 0) == 0
    assert store.records.read(0) is None
    work = store.flush_work()
    assert work is not None
    late = store.put(new_record(b"b"), timestamp_ms=1)
    work.run()
    assert store.dispatch() == []
    store.flush_done(work, None)

    assert put.end_position == store.flushed_position
    assert [(d.topic, d.queue_id, d.next_offset) for d in store.dispatch()] == [("T", 0, 1)]
    assert store.queues.max_offset("T", 0) == 1
    assert late.position == store.flushed_position
    assert [d.next_offset for d in flush(store)] == [2]


def test_async_store_shows_everything_at_once(storage: Any, new_record: NewRecord) -> None:
    store = open_store(storage, SMALL_ASYNC)
    store.put(new_record(b"a"), timestamp_ms=1)

    assert [d.next_offset for d in store.dispatch()] == [1]
    assert store.queues.get("T", 0, queue_offset=0, count_max=9, bytes_max=9).count == 1
    assert store.flushed_position == 0


def test_one_flush_is_under_way_at_a_time(store: MessageStore, new_record: NewRecord) -> None:
    assert store.flush_work() is None
    store.put(new_record(b"a"), timestamp_ms=1)
    work = store.flush_work()
    assert work is not None
    store.put(new_record(b"b"), timestamp_ms=1)

    assert store.flush_work() is None
    work.run()
    store.flush_done(work, None)
    assert store.flush_work() is not None
    with pytest.raises(UsageError):
        store.flush_done(work, None)


def test_get_answers_by_offset_as_rocketmq(store: MessageStore, new_record: NewRecord) -> None:
    def status(queue_offset: int, queue_id: int = 0) -> tuple[GetStatus, int]:
        got = store.queues.get(
            "T", queue_id, queue_offset=queue_offset, count_max=9, bytes_max=9999
        )
        return got.status, got.next_offset

    assert status(3) == (GetStatus.NO_MATCHED_LOGIC_QUEUE, 0)
    for n in range(3):
        store.put(new_record(b"%d" % n), timestamp_ms=1)
    store.put(new_record(b"x", queue_id=1), timestamp_ms=1)
    assert status(1, queue_id=1) == (GetStatus.NO_MESSAGE_IN_QUEUE, 0)
    flush(store)

    assert status(1) == (GetStatus.FOUND, 3)
    assert status(3) == (GetStatus.OFFSET_OVERFLOW_ONE, 3)
    assert status(4) == (GetStatus.OFFSET_OVERFLOW_BADLY, 3)
    assert status(-1) == (GetStatus.OFFSET_TOO_SMALL, 0)


def test_get_keeps_its_bounds_but_returns_one_message(
    store: MessageStore, new_record: NewRecord
) -> None:
    size = 0
    for n in range(10):
        store.put(new_record(b"%d" % n), timestamp_ms=1)
        size = store.put(new_record(b"%d" % n, queue_id=1), timestamp_ms=1).end_position
    flush(store)
    size //= 20

    def count(count_max: int, bytes_max: int) -> int:
        got = store.queues.get("T", 0, queue_offset=2, count_max=count_max, bytes_max=bytes_max)
        assert got.next_offset == 2 + got.count
        assert [b"%d" % n for n in range(2, 2 + got.count)] == [
            r.body for r in split_records(got.records)
        ]
        return got.count

    assert [
        count(1, 99999),
        count(3, 99999),
        count(8, 99999),
        count(99, 99999),
        count(99, 2 * size),
        count(99, 2 * size - 1),
        count(99, 1),
    ] == [1, 3, 8, 8, 2, 1, 1]


def test_contiguous_records_are_one_read_of_the_log(
    storage: Any, store: MessageStore, new_record: NewRecord
) -> None:
    for n in range(9):
        store.put(new_record(b"%d" % n), timestamp_ms=1)
    flush(store)
    before = storage.read_count

    assert store.queues.get("T", 0, queue_offset=0, count_max=32, bytes_max=9999).count == 9
    assert storage.read_count - before == 2


def test_get_by_tags_skips_others_and_goes_past_them(
    store: MessageStore, new_record: NewRecord
) -> None:
    for n in range(10):
        tag = "abc"[n % 3]
        store.put(new_record(b"%d" % n, properties=f"TAGS\x01{tag}"), timestamp_ms=1)
    flush(store)
    codes = frozenset({tags_code("a"), tags_code("c")})

    got = store.queues.get("T", 0, queue_offset=1, count_max=3, bytes_max=9999, tags_codes=codes)
    none = store.queues.get(
        "T", 0, queue_offset=1, count_max=3, bytes_max=9999, tags_codes=frozenset({5})
    )

    assert [r.body for r in split_records(got.records)] == [b"2", b"3", b"5"]
    assert (got.count, got.next_offset) == (3, 6)
    assert (none.status, none.next_offset, none.count) == (GetStatus.NO_MATCHED_MESSAGE, 10, 0)


def test_batch_stays_together(store: MessageStore, new_record: NewRecord) -> None:
    store.put(new_record(b"x" * 3000), timestamp_ms=1)
    bodies = [b"%d" % n + b"y" * 200 for n in range(5)]
    body = encode_batch([BatchEntry(0, each, "") for each in bodies])
    batch = MessageBatch(
        topic="T",
        queue_id=0,
        messages=read_messages(body),
        added="CLUSTER\x01c",
        sys_flag=0,
        born_timestamp_ms=1,
        store_timestamp_ms=1,
        born_host=bytes(8),
        store_host=bytes(8),
        reconsume_times=0,
    )

    put = store.append_batch(batch)

    assert store.write().status is PutStatus.PUT_OK
    assert put.position == 4096
    assert (put.queue_offset, len(put.positions)) == (1, 5)
    flush(store)
    got = store.queues.get("T", 0, queue_offset=0, count_max=9, bytes_max=99999)
    found = split_records(got.records)[1:]
    assert bodies == [record.body for record in found]
    assert put.positions == tuple(record.position for record in found)
    assert put.end_position == found[-1].position + found[-1].size


def test_record_leaves_room_for_a_blank_at_the_end_of_the_file(
    storage: Any, store: MessageStore, new_record: NewRecord
) -> None:
    overhead = store.put(new_record(b"x"), timestamp_ms=1).end_position - 1
    fits = 4096 - (overhead + 1) - 8 - overhead

    exact = store.put(new_record(b"x" * fits), timestamp_ms=1)
    assert exact.end_position == 4096 - 8
    after = store.put(new_record(b"x"), timestamp_ms=1)
    assert after.position == 4096
    blank = storage.inodes["commitlog/00000000000000000000"].data[-8:]
    assert bytes.fromhex("00000008cbd43194") == blank
    too_long = store.put(new_record(b"x" * 4096), timestamp_ms=1)
    assert too_long.status is PutStatus.MESSAGE_ILLEGAL


def test_illegal_messages_are_refused_and_change_nothing(
    store: MessageStore, new_record: NewRecord
) -> None:
    cases = [
        new_record(b"x", topic="a/b"),
        new_record(b"x", topic=".."),
        new_record(b"x", topic=""),
        new_record(b"x", topic="t" * 128),
        new_record(b"x", queue_id=-1),
        new_record(b"x", queue_id=1 << 31),
        new_record(b"x", properties="k" * 32768),
        new_record(b"x", flag=1 << 40),
        new_record(b"x" * ((4 << 20) + 1)),
    ]
    for record in cases:
        assert store.put(record, timestamp_ms=1).status is PutStatus.MESSAGE_ILLEGAL
        assert store.appended_position == 0
    assert list(store.queues) == []


def test_half_and_rolled_back_messages_get_no_queue_entry(
    store: MessageStore, new_record: NewRecord
) -> None:
    kinds = [TRANSACTION_PREPARED, 0, TRANSACTION_ROLLBACK, TRANSACTION_COMMIT]
    puts = [store.put(new_record(b"%d" % kind, sys_flag=kind), timestamp_ms=1) for kind in kinds]
    dispatched = flush(store)

    assert [put.queue_offset for put in puts] == [0, 0, 0, 1]
    assert [puts[1].position, puts[3].position] == [d.position for d in dispatched]
    assert store.queues.max_offset("T", 0) == 2
    assert store.records.read(puts[0].position) is not None


def test_delayed_messages_carry_their_delivery_time(
    store: MessageStore, new_record: NewRecord
) -> None:
    for level in ("1", "18", "99", "0", "-3", "x"):
        properties = f"DELAY\x01{level}\x02TAGS\x01t"
        record = new_record(b"x", topic=SCHEDULE_TOPIC, queue_id=0, properties=properties)
        store.put(record, timestamp_ms=1000)

    codes = [code for d in flush(store) for code in d.tags_codes]

    assert codes[:3] == [2000, 1000 + 7_200_000, 1000 + 7_200_000]
    assert [tags_code("t")] * 3 == codes[3:]
    assert (0, codes[0]) == store.queues.entry(SCHEDULE_TOPIC, 0, 0)[::2]  # type: ignore[index]


def test_record_ends_with_the_checksum_of_apache_5(
    store: MessageStore, new_record: NewRecord
) -> None:
    store.put(new_record(b"x", properties="A\x01b"), timestamp_ms=1)
    flush(store)
    data = store.records.read(0)
    assert data is not None

    digits = f"{crc32(data[:-20]) & 0x7FFFFFFF:010d}"[::-1]
    assert b"A\x01b\x02__CRC32#\x01" + digits.encode() + b"\x02" == data[-24:]
    assert decode_record(data).properties == f"A\x01b\x02__CRC32#\x01{digits}\x02"


def test_record_read_back_and_put_again_has_one_checksum(
    store: MessageStore, new_record: NewRecord
) -> None:
    store.put(new_record(b"x", properties="A\x01b\x02"), timestamp_ms=1)
    flush(store)
    data = store.records.read(0)
    assert data is not None
    again = store.put(decode_record(data), timestamp_ms=2)
    flush(store)
    data = store.records.read(again.position)
    assert data is not None

    assert data.count(b"__CRC32#") == 1
    assert decode_record(data).properties.startswith("A\x01b\x02__CRC32#\x01")


@pytest.mark.parametrize("size", [32_746, 32_747, 32_767])
def test_longest_properties_are_stored_and_survive(
    size: int, storage: Any, new_record: NewRecord
) -> None:
    config = StoreConfig(
        commit_log_file_size=1 << 20,
        index_slot_count=64,
        index_entry_count=256,
        consume_queue_file_size=200,
    )
    store = open_store(storage, config)
    properties = "k\x01" + "\x03" * (size - 2)
    assert (
        PutStatus.PUT_OK
        is store.put(new_record(b"x", properties=properties), timestamp_ms=1).status
    )
    flush(store)
    store = open_store(storage.kill(), config)

    data = store.records.read(0)
    assert data is not None
    assert properties == decode_record(data).properties[:size]


@pytest.mark.parametrize(("append_crc", "filling"), [(False, 3), (True, 32_730)])
@pytest.mark.parametrize("digits", ["0000000000", "0123456789"])
def test_property_whose_name_ends_like_the_checksum_s_is_kept_and_damages_nothing(
    append_crc: bool, filling: int, digits: str, storage: Any, new_record: NewRecord
) -> None:
    config = StoreConfig(
        append_crc=append_crc, commit_log_file_size=1 << 20, consume_queue_file_size=200
    )
    store = open_store(storage, config)
    properties = f"k\x01{'v' * filling}\x02MY__CRC32#\x01{digits}\x02"
    store.put(new_record(b"x", properties=properties), timestamp_ms=1)
    flush(store)
    store = MessageStore(storage.kill(), config)
    report = store.load(timestamp_ms=1)

    data = store.records.read(0)
    assert (report.record_count, report.is_torn) == (1, False)
    assert data is not None
    assert properties == decode_record(data).properties


def test_read_record_finds_whole_records_only(store: MessageStore, new_record: NewRecord) -> None:
    put = store.put(new_record(b"abc"), timestamp_ms=1)
    flush(store)

    assert put.end_position == len(store.records.read(0) or b"")
    assert store.records.read(0, put.end_position) is not None
    assert [
        store.records.read(0, put.end_position - 1),
        store.records.read(1),
        store.records.read(put.end_position),
        store.records.read(-5),
    ] == [None] * 4


def test_ipv6_hosts_are_stored(storage: Any, store: MessageStore) -> None:
    host = encode_host("[2001:db8::1]:80")
    record = Record(
        topic="T",
        queue_id=0,
        body=b"x",
        properties="TAGS\x01q",
        born_host=host,
        store_host=host,
    )
    store.put(record, timestamp_ms=77)
    flush(store)
    store = MessageStore(storage.kill(), SMALL)
    report = store.load(timestamp_ms=1)

    assert report.record_count == 1
    assert store.queues.earliest_timestamp("T", 0) == 77
    data = store.records.read(0)
    assert data is not None
    assert host == decode_record(data).born_host
    assert (0, record.size, tags_code("q")) == store.queues.entry("T", 0, 0)


def test_attempts_are_added_up_to_the_largest_number(
    store: MessageStore, new_record: NewRecord
) -> None:
    store.put(new_record(b"x", reconsume_times=2**31 - 3), timestamp_ms=1)
    flush(store)
    data = store.records.read(0) or b""

    found = [decode_record(add_attempts(data, count)).reconsume_times for count in (1, 2, 3, 99)]
    assert found == [2**31 - 2, 2**31 - 1, 2**31 - 1, 2**31 - 1]


def test_offset_by_time_is_the_nearest_message(store: MessageStore, new_record: NewRecord) -> None:
    assert store.queues.offset_by_time("T", 0, 5) == 0
    for timestamp_ms in (100, 200, 200, 300, 310):
        store.put(new_record(b"x"), timestamp_ms=timestamp_ms)
    flush(store)

    times = [0, 100, 149, 150, 151, 199, 250, 251, 300, 306, 999]
    offsets = [0, 0, 0, 0, 1, 1, 2, 3, 3, 4, 4]
    assert offsets == [store.queues.offset_by_time("T", 0, t) for t in times]


def test_boundaries_of_a_time_among_messages_of_one_millisecond(
    store: MessageStore, new_record: NewRecord
) -> None:
    # Some runs of messages of one millisecond reach over the end of a queue's file.
    for n in range(35):
        store.put(new_record(b"x"), timestamp_ms=1000 + 10 * (n // 7))
    flush(store)
    lower = partial(store.queues.boundary, "T", 0)
    upper = partial(store.queues.boundary, "T", 0, is_upper=True)

    times = [1000 + 10 * n for n in range(5)]
    assert [lower(t) for t in times] == [0, 7, 14, 21, 28]
    assert [upper(t) for t in times] == [6, 13, 20, 27, 34]
    assert [lower(t - 5) for t in times] == [0, 7, 14, 21, 28]
    assert [upper(t - 5) for t in times] == [0, 6, 13, 20, 27]
    assert (lower(99_999), upper(99_999), upper(5)) == (35, 34, 0)
    assert store.queues.boundary("T", 9, 1000) == 0


def test_offsets_without_a_message_have_the_time_of_the_message_before_them(
    storage: Any, new_record: NewRecord
) -> None:
    store = open_store(storage)
    store.put(new_record(b"x", topic="Other"), timestamp_ms=1)
    for n in range(6):
        if n == 3:
            # Another broker may have left them out.
            store.queues.by_key["T", 0].next_offset = 8
        store.put(new_record(b"x" * 300), timestamp_ms=100 + 50 * n)
    store = open_store(storage.kill())
    assert store.queues.max_offset("T", 0) == 11

    times = [50, 100, 150, 201, 250, 300, 999]
    assert [store.queues.boundary("T", 0, t) for t in times] == [0, 0, 1, 8, 8, 9, 11]
    assert [store.queues.offset_by_time("T", 0, t) for t in (50, 100, 150, 250, 300)] == [
        *(0, 0, 1, 8, 9)
    ]


@pytest.mark.parametrize("is_gathered", [False, True])
def test_offset_by_time_over_several_queue_files(
    store: MessageStore, new_record: NewRecord, *, is_gathered: bool
) -> None:
    for n in range(35):
        store.put(new_record(b"x"), timestamp_ms=1000 + 10 * n)
        if n == 0 and is_gathered:
            # The entries of the messages behind it stay in memory, more than the file has room for.
            flush(store)
    flush(store)
    assert len(store.queues.by_key["T", 0].files.bases) == (1 if is_gathered else 4)

    assert list(range(35)) == [
        store.queues.offset_by_time("T", 0, 1000 + 10 * n) for n in range(35)
    ]
    assert store.queues.offset_by_time("T", 0, 99_999) == 34
    assert (
        store.queues.earliest_timestamp("T", 0),
        store.queues.earliest_timestamp("T", 9),
    ) == (1000, None)


def test_closed_store_refuses_and_a_clean_stop_is_noticed(
    storage: Any, store: MessageStore, new_record: NewRecord
) -> None:
    with pytest.raises(UsageError):
        store.load(timestamp_ms=1)
    store.put(new_record(b"a"), timestamp_ms=1)
    store.close()
    store.close()

    refused = store.put(new_record(b"b"), timestamp_ms=1)
    assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert not storage.has("abort")
    again = MessageStore(storage, SMALL)
    report = again.load(timestamp_ms=1)
    assert report.is_clean
    assert not report.is_torn
    assert report.rewritten_queues == ()
    assert storage.has("abort")
    assert again.queues.max_offset("T", 0) == 1
    with pytest.raises(StoreError, match="in use"):
        MessageStore(storage, SMALL).load(timestamp_ms=1)


def test_checkpoint_waits_for_an_idle_moment(storage: Any, new_record: NewRecord) -> None:
    store = open_store(storage)
    store.put(new_record(b"a"), timestamp_ms=12_000)
    first = store.flush_work()
    assert first is not None
    assert first.checkpoint is None
    first.run()
    store.flush_done(first, None)
    store.dispatch()

    idle = store.flush_work()
    assert idle is not None
    assert idle.checkpoint is not None
    assert idle.log_files == ()
    idle.run()
    store.flush_done(idle, None)
    assert store.flush_work() is None
    store.put(new_record(b"b"), timestamp_ms=50_000)
    busy = store.flush_work()
    assert busy is not None
    assert busy.checkpoint is None


def test_clock_that_is_set_back_by_an_hour_delays_no_checkpoint(
    storage: Any, new_record: NewRecord
) -> None:
    """Without one, a start after a kill would check an hour's messages one by one."""
    hour_ms = 3_600_000
    store = MessageStore(storage, SMALL)
    store.load(timestamp_ms=hour_ms)
    checkpoints = []
    for timestamp_ms in (hour_ms + 1, 2, 3, 20_000):
        store.put(new_record(b"a"), timestamp_ms=timestamp_ms)
        for _ in range(2):
            if (work := store.flush_work()) is not None:
                work.run()
                store.flush_done(work, None)
                store.dispatch()
                checkpoints += [timestamp_ms] if work.checkpoint else []

    assert checkpoints == [2, 20_000]


@pytest.mark.parametrize("count", [1, 40])
@pytest.mark.parametrize("size", [1024, 5000, 3 * 4096])
def test_a_store_keeps_the_size_of_its_first_log_file(
    storage: Any, new_record: NewRecord, size: int, count: int
) -> None:
    store = open_store(storage)
    for _ in range(count):
        store.put(new_record(b"x" * 100), timestamp_ms=1)
    store.close()

    other = open_store(storage, replace(SMALL, commit_log_file_size=size))
    for _ in range(40):
        other.put(new_record(b"x" * 100), timestamp_ms=1)
    other.close()

    names = storage.list_names("commitlog")
    assert other.log_file_size == SMALL.commit_log_file_size
    assert {storage.open(f"commitlog/{name}").size for name in names} == {4096}
    assert open_store(storage).queues.max_offset("T", 0) == count + 40


@pytest.mark.parametrize("count", [20, 400])
@pytest.mark.parametrize("size", [6_000, 6_000_000])
def test_a_store_keeps_the_size_of_its_first_queue_files(
    storage: Any, new_record: NewRecord, size: int, count: int
) -> None:
    first = replace(SMALL, consume_queue_file_size=60_020 if count == 20 else 2_000)
    put_all(MessageStore(storage, first), new_record, count=count)

    other = MessageStore(storage, replace(first, consume_queue_file_size=size))
    put_all(other, new_record, count=count, topics=("T", "new"))

    paths = [path for path in storage.inodes if path.startswith("consumequeue/")]
    assert {storage.open(path).size for path in paths} == {first.consume_queue_file_size}
    again = open_store(storage)
    assert [again.queues.max_offset(topic, 0) for topic in ("T", "new")] == [2 * count, count]


def put_all(
    store: MessageStore, new_record: NewRecord, *, count: int, topics: tuple[str, ...] = ("T",)
) -> None:
    store.load(timestamp_ms=1)
    for topic in topics:
        for _ in range(count):
            store.put(new_record(b"x", topic=topic), timestamp_ms=1)
    store.close()


@pytest.mark.parametrize("left", [0, 60, 4096, 20_480])
def test_a_cut_queue_file_sets_no_size(storage: Any, new_record: NewRecord, left: int) -> None:
    config = replace(SMALL, consume_queue_file_size=60_020)
    put_all(MessageStore(storage, config), new_record, count=20)
    path = next(path for path in storage.inodes if path.startswith("consumequeue/"))
    storage.open(path).resize(left)

    put_all(MessageStore(storage, config), new_record, count=20)

    assert storage.open(path).size == 60_020
    assert open_store(storage).queues.max_offset("T", 0) == 40


@pytest.mark.parametrize("count_max", [1, 2, 99])
def test_offsets_without_a_message_are_passed_over(
    count_max: int, storage: Any, new_record: NewRecord
) -> None:
    """As a broker of 5.x leaves them that has stored batches as one message each."""
    store = open_store(storage)
    for number in range(12):
        store.put(new_record(b"x", topic="other"), timestamp_ms=number)
    for number in range(3):
        store.put(new_record(b"%d" % number), timestamp_ms=number)
        store.queues.by_key["T", 0].next_offset += 3
    store.write()
    for path in [path for path in storage.inodes if not path.startswith("commitlog/")]:
        storage.remove(path)
    store = open_store(storage.kill())

    found: list[tuple[int, bytes]] = []
    offset = 0
    while offset < store.queues.max_offset("T", 0):
        got = store.queues.get("T", 0, queue_offset=offset, count_max=count_max, bytes_max=1 << 20)
        found += [(record.queue_offset, record.body) for record in split_records(got.records)]
        assert got.next_offset > offset
        offset = got.next_offset
    assert found == [(0, b"0"), (4, b"1"), (8, b"2")]

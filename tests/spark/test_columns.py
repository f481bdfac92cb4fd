from __future__ import annotations

import itertools
import json
import struct
import tracemalloc
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from golden import each_case
from sparrowmq.errors import RemoteProtocolError
from sparrowmq.model import CompressionType, MessageExt
from sparrowmq.model.namespace import NO_NAMESPACE, Namespace
from sparrowmq.protocol.compression import COMPRESSED, COMPRESSION_ZLIB, compress_body
from sparrowmq.protocol.record import (
    MAGIC_V2,
    Record,
    decode_messages,
    encode_record,
)
from sparrowmq.spark import columns
from sparrowmq.spark.body_reader import BodyReader
from sparrowmq.spark.columns import (
    Ints,
    arrow_schema,
    decode_columns,
    find_starts,
    plain_topics,
    queue_offsets,
    select_tags,
    store_timestamps_ms,
)
from sparrowmq.spark.row_encoding import NO_USER_PROPERTIES
from sparrowmq.spark.schema import BODY_COLUMNS, COLUMNS, PROFILES

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# RocketMQ's own wire times are within the years that Python's datetime knows.
timestamps = st.integers(0, 4_102_444_800_000)
hosts = st.one_of(st.binary(min_size=4, max_size=4), st.binary(min_size=16, max_size=16)).flatmap(
    lambda ip: st.integers(0, 65_535).map(lambda port: ip + port.to_bytes(4, "big"))
)
words = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\x01\x02"), max_size=6)
property_names = st.one_of(st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "WRITE_ID", "KEYX"]), words)
# Whatever a foreign client may have written: separators too many, parts missing, names twice.
property_texts = st.one_of(
    st.lists(st.tuples(property_names, words), max_size=5).map(
        lambda pairs: "\x02".join(f"{name}\x01{value}" for name, value in pairs)
    ),
    st.text(alphabet="\x01\x02AKEYST", max_size=20),
)
MIB = 1024 * 1024
int32 = st.integers(-(2**31), 2**31 - 1)


@st.composite
def records(draw: st.DrawFn) -> bytes:
    body = draw(st.binary(max_size=40))
    kind = draw(st.sampled_from([None, *CompressionType]))
    flags = draw(st.sampled_from([0, 0x2, 0x8]))
    stored = body
    if kind is not None:
        stored, compressed = compress_body(body, kind, level=1)
        flags |= compressed
        if kind is CompressionType.ZLIB:
            flags |= draw(st.sampled_from([0, COMPRESSION_ZLIB]))
    encoded = encode_record(
        Record(
            topic=draw(st.text(alphabet="aT9%|_-", min_size=1, max_size=9)),
            queue_id=draw(int32),
            body=stored,
            properties=draw(property_texts) + draw(st.sampled_from(["", "\x02"])),
            flag=draw(int32),
            sys_flag=flags,
            born_timestamp_ms=draw(timestamps),
            born_host=draw(hosts),
            store_timestamp_ms=draw(timestamps),
            store_host=draw(hosts),
            queue_offset=draw(st.integers(0, 2**63 - 1)),
            position=draw(st.integers(0, 2**63 - 1)),
            reconsume_times=draw(st.integers(0, 99)),
        )
    )
    return bytes(_to_v2(encoded) if draw(st.booleans()) else encoded)


def _to_v2(record: bytes) -> bytearray:
    """Rewrite a record with a topic length of two bytes."""
    born = 20 if record[39] & 0x10 else 8
    store = 20 if record[39] & 0x20 else 8
    body_at = 72 + born + store
    (body_size,) = struct.unpack_from(">i", record, body_at - 4)
    at = body_at + body_size
    wide = bytearray(record[:at] + b"\x00" + record[at:])
    struct.pack_into(">iI", wide, 0, len(wide), MAGIC_V2)
    return wide


def expected_row(message: MessageExt, partition: int) -> dict[str, Any]:
    keys = message.properties.get("KEYS")
    own = {n: text for n, text in message.properties.items() if n not in NO_USER_PROPERTIES}
    born = EPOCH + timedelta(milliseconds=message.born_timestamp_ms)
    return {
        "topic": message.topic,
        "brokerName": message.broker_name,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "commitLogOffset": message.commit_log_position,
        "msgId": message.msg_id,
        "offsetMsgId": message.offset_msg_id,
        "keys": keys,
        "tags": message.tags,
        "body": message.body,
        "flag": message.flag,
        "sysFlag": message.sys_flag,
        "bornTimestamp": born,
        "storeTimestamp": EPOCH + timedelta(milliseconds=message.store_timestamp_ms),
        "bornHost": message.born_host,
        "storeHost": message.store_host,
        "reconsumeTimes": message.reconsume_times,
        "storeSize": message.store_size,
        "properties": dict(message.properties),
        "userProperties": own,
        "key": None if keys is None else keys.encode(),
        "value": message.body,
        "partition": partition,
        "offset": message.queue_offset,
        "timestamp": born,
        "timestampType": 0,
        "headers": [{"key": n, "value": text.encode()} for n, text in own.items()] or None,
    }


def decode(
    buffer: bytes,
    starts: Ints,
    schema: pa.Schema,
    *,
    broker_name: str = "b",
    partition: int | Ints = 0,
    unreadable: list[tuple[int, str]] | None = None,
) -> list[pa.RecordBatch]:
    """Return the batches; a body that cannot be read is an error, or is noted in `unreadable`."""

    def note(start: int, reason: str) -> None:
        if unreadable is None:
            raise RemoteProtocolError(reason)
        unreadable.append((start, reason))

    return list(
        decode_columns(
            buffer,
            starts,
            schema=schema,
            broker_name=broker_name,
            partition=partition,
            on_unreadable=note,
        )
    )


def decode_all(buffer: bytes) -> list[dict[str, Any]]:
    names = [column.name for column in COLUMNS if column.name not in BODY_COLUMNS]
    schema = arrow_schema(names)
    (batch,) = decode(buffer, find_starts(buffer), schema, broker_name="broker-ß", partition=3)
    batch.validate(full=True)
    assert schema.equals(batch.schema)
    maps = ("properties", "userProperties")
    return [{**row, **{name: dict(row[name]) for name in maps}} for row in batch.to_pylist()]


@settings(max_examples=200, deadline=None)
@given(st.lists(records(), max_size=6))
def test_columns_equal_the_messages_of_the_protocol(parts: list[bytes]) -> None:
    buffer = b"".join(parts)
    messages = decode_messages(buffer, broker_name="broker-ß").messages
    assert len(parts) == len(messages)

    assert [expected_row(message, 3) for message in messages] == decode_all(buffer)


@each_case("message.jsonl", "msg-")
def test_columns_equal_the_messages_java_wrote(case: dict[str, Any]) -> None:
    buffer = bytes.fromhex(case["encodedHex"])
    messages = decode_messages(buffer, broker_name="broker-ß").messages

    # A case may be a damaged record, which the protocol leaves out.
    if messages:
        assert [expected_row(messages[0], 3)] == decode_all(buffer)


def test_times_that_are_none_are_null() -> None:
    """Any producer may write any number as the time of birth, such as one in nanoseconds."""
    last_ms = 253_402_300_799_999
    times = [0, last_ms, last_ms + 1, 1_700_000_000 * 10**9, 2**63 - 1, -1, -(2**63)]
    parts = [
        bytes(encode_record(Record(topic="T", queue_id=0, body=b"b", born_timestamp_ms=each)))
        for each in times
    ]

    rows = decode_all(b"".join(parts))

    assert [row["bornTimestamp"] for row in rows] == [row["timestamp"] for row in rows]
    assert [row["bornTimestamp"] for row in rows] == [
        EPOCH,
        datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC),
        *[None] * 3,
        datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC),
        None,
    ]


def test_properties_that_are_not_utf_8_are_read_as_java_reads_them() -> None:
    record = bytearray(
        encode_record(Record(topic="T", queue_id=0, body=b"b", properties="KEYS\x01ab"))
    )
    record[-1] = 0xFF

    (row,) = decode_all(bytes(record))

    assert row["keys"] == "a�"
    assert row["properties"] == {"KEYS": "a�"}


def test_a_part_of_the_records_is_decoded_alone() -> None:
    parts = [
        bytes(encode_record(Record(topic="T", queue_id=0, body=b"%d" % n, queue_offset=n)))
        for n in range(5)
    ]
    buffer = b"".join(parts)
    starts = find_starts(buffer)
    offsets = queue_offsets(buffer, starts)

    (batch,) = decode(buffer, starts[(offsets == 1) | (offsets == 3)], arrow_schema(["body"]))

    assert batch.column(0).to_pylist() == [b"1", b"3"]


def test_records_of_each_of_the_tags_are_selected() -> None:
    texts = ["TAGS\x01a\x02", "", "TAGS\x01b", "TAGS\x01ab", "TAGS\x01b\x02TAGS\x01c", "x\x01a"]
    parts = [
        bytes(encode_record(Record(topic="T", queue_id=0, body=b"b", properties=each)))
        for each in texts
    ]
    starts = find_starts(b"".join(parts))

    found = select_tags(b"".join(parts), starts, frozenset({"a", "b"}))

    assert found.tolist() == [starts[0], starts[2]]


def test_topics_are_those_of_the_namespace() -> None:
    names = ["ns%b", "ns%a", "%RETRY%ns%G", "ns%b", "plain"]
    parts = [bytes(encode_record(Record(topic=each, queue_id=0, body=b"b"))) for each in names]
    buffer = b"".join(parts)
    (batch,) = decode(buffer, find_starts(buffer), arrow_schema(["body", "topic"]))

    plain = plain_topics(batch, Namespace("ns"))

    assert plain.column(1).to_pylist() == ["b", "a", "%RETRY%G", "b", "plain"]
    assert plain.schema == batch.schema
    assert plain_topics(batch, NO_NAMESPACE) is batch


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_no_records_are_an_empty_batch(profile: str) -> None:
    (batch,) = decode(b"", find_starts(b""), arrow_schema(PROFILES[profile]))

    assert batch.num_rows == 0


@pytest.mark.parametrize("cut", [1, 3, 40, 90])
def test_a_cut_answer_is_refused(cut: int) -> None:
    record = bytes(encode_record(Record(topic="T", queue_id=0, body=b"body")))

    with pytest.raises(RemoteProtocolError):
        find_starts(record + record[:cut])


@pytest.mark.parametrize(
    "sizes",
    [[91], [200] * 3_000, list(range(100, 1_200)), [200] * 50 + [300] + [200] * 2_000 + [91, 92]],
)
def test_starts_are_found_whatever_the_sizes(sizes: list[int]) -> None:
    buffer = b"".join(size.to_bytes(4, "big") + bytes(size - 4) for size in sizes)

    assert [0, *itertools.accumulate(sizes)][:-1] == find_starts(buffer).tolist()


@settings(deadline=None)
@given(records(), st.data())
def test_a_damaged_record_is_an_error_and_no_crash(record: bytes, data: st.DataObject) -> None:
    damaged = bytearray(record)
    damaged[data.draw(st.integers(0, len(record) - 1))] ^= data.draw(st.integers(1, 255))
    buffer = bytes(damaged)
    schema = arrow_schema(PROFILES["full"])

    try:
        (batch,) = decode(buffer, find_starts(buffer), schema)
    except RemoteProtocolError:
        return

    batch.validate(full=True)
    assert batch.num_rows == 1


def compressed_record(body: bytes, offset: int) -> bytes:
    packed, sys_flag = compress_body(body, CompressionType.ZLIB, level=1)
    return plain_record(packed, offset, sys_flag)


def plain_record(body: bytes, offset: int, sys_flag: int = 0) -> bytes:
    record = Record(topic="T", queue_id=0, body=body, sys_flag=sys_flag, queue_offset=offset)
    return bytes(encode_record(record))


def test_a_body_that_cannot_be_read_leaves_its_row_out_and_no_other() -> None:
    parts = [
        plain_record(b"0", 0),
        plain_record(b"garbage", 1, COMPRESSED),
        compressed_record(b"2", 2),
        plain_record(b"3", 3),
    ]
    buffer = b"".join(parts)
    unreadable: list[tuple[int, str]] = []

    batches = decode(
        buffer,
        find_starts(buffer),
        arrow_schema(["offset", "body", "partition"]),
        partition=np.arange(4),
        unreadable=unreadable,
    )

    rows = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
    assert rows == [(0, b"0", 0), (2, b"2", 2), (3, b"3", 3)]
    ((start, reason),) = unreadable
    assert len(parts[0]) == start
    assert "not a zlib stream" in reason


def test_batch_that_is_stored_as_one_message_is_no_row() -> None:
    buffer = plain_record(b"0", 0) + plain_record(b"some messages", 1, 0xC0)
    unreadable: list[tuple[int, str]] = []

    batches = decode(
        buffer, find_starts(buffer), arrow_schema(["offset", "body"]), unreadable=unreadable
    )

    assert [row["offset"] for batch in batches for row in batch.to_pylist()] == [0]
    assert ["queue.type=BatchCQ" in reason for _, reason in unreadable] == [True]


def test_bodies_that_are_not_asked_for_are_not_inflated() -> None:
    buffer = plain_record(b"garbage", 1, COMPRESSED)

    (batch,) = decode(buffer, find_starts(buffer), arrow_schema(["offset"]))

    assert batch.column(0).to_pylist() == [1]


def test_a_body_that_was_inflated_is_in_no_row_of_the_next_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(columns, "BATCH_INFLATED_BYTES", 1)
    parts = [
        compressed_record(b"0", 0),
        plain_record(b"1", 1),
        compressed_record(b"2", 2),
        plain_record(b"3", 3),
    ]
    buffer = b"".join(parts)

    batches = decode(buffer, find_starts(buffer), arrow_schema(["offset", "body"]))

    rows = [[tuple(row.values()) for row in batch.to_pylist()] for batch in batches]
    assert rows == [[(0, b"0")], [(1, b"1"), (2, b"2")], [(3, b"3")]]


@pytest.mark.parametrize("more", [[], ["body"]], ids=["alone", "beside the bodies"])
def test_the_fields_of_compressed_bodies_are_read(more: list[str]) -> None:
    fields = [{"name": "n", "type": "integer", "nullable": False, "metadata": {}}]
    bodies = BodyReader(json.dumps({"type": "struct", "fields": fields}))
    parts = [
        plain_record(b'{"n": 0}', 0),
        compressed_record(b'{"n": 1}', 1),
        compressed_record(b"hello", 2),
        plain_record(b'{"n": 3}', 3),
    ]
    buffer = b"".join(parts)

    (batch,) = decode_columns(
        buffer,
        find_starts(buffer),
        schema=arrow_schema(["bodyFields", "bodyError", *more], bodies),
        broker_name="b",
        bodies=bodies,
        on_unreadable=lambda start, reason: pytest.fail(reason),
    )

    assert batch.column(0).to_pylist() == [{"n": 0}, {"n": 1}, None, {"n": 3}]
    assert batch.column(1).to_pylist() == [None, None, "not JSON", None]


def test_times_of_storing_are_read_behind_hosts_of_any_kind() -> None:
    short, long = bytes(8), bytes(20)
    stored_ms = dict(zip(itertools.product((short, long), repeat=2), range(4), strict=True))
    parts = [
        encode_record(
            Record(
                topic="T",
                queue_id=0,
                body=b"b",
                born_host=born,
                store_host=store,
                store_timestamp_ms=at_ms,
            )
        )
        for (born, store), at_ms in stored_ms.items()
    ]
    buffer = b"".join(parts)

    assert store_timestamps_ms(buffer, find_starts(buffer)).tolist() == [0, 1, 2, 3]


@pytest.mark.slow
@pytest.mark.parametrize("names", [["body"], ["value", "offset"]])
def test_a_bomb_is_dealt_out_in_batches_of_bounded_size(names: list[str]) -> None:
    """Messages of 16 MiB, which are 1.4 GB together, from a hundred kilobytes."""
    packed, sys_flag = compress_body(bytes(16 * MIB - 1), CompressionType.ZSTD, level=1)
    buffer = b"".join(plain_record(packed, n, sys_flag) for n in range(84))
    assert len(buffer) < 100_000
    before = pa.total_allocated_bytes()
    count = peak = 0
    pa.array([b""])  # PyArrow imports pandas with the first array.

    batches = decode_columns(
        buffer,
        find_starts(buffer),
        schema=arrow_schema(names),
        broker_name="b",
        on_unreadable=lambda start, reason: pytest.fail(reason),
    )
    tracemalloc.start()
    try:
        for batch in batches:
            count += batch.num_rows
            peak = max(peak, pa.total_allocated_bytes() - before)
            assert batch.nbytes <= 33 * MIB
            del batch
        _, python_peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert count == 84
    assert peak + python_peak <= 100 * MIB


def test_damage_names_the_queue_offset() -> None:
    damaged = bytearray(plain_record(b"body", 17))
    damaged[4] ^= 1
    buffer = plain_record(b"body", 16) + bytes(damaged)

    with pytest.raises(RemoteProtocolError, match="the record of queue offset 17 is damaged"):
        decode(buffer, find_starts(buffer), arrow_schema(["body"]))

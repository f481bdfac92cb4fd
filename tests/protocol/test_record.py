from __future__ import annotations

import contextlib
import hashlib
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batches import decode_batch
from golden import each_case
from sparrowmq.errors import LocalProtocolError, RemoteProtocolError
from sparrowmq.model import CompressionType, MessageExt
from sparrowmq.model.message import INFLATED_BYTES_MAX
from sparrowmq.protocol import record as records
from sparrowmq.protocol import speedups
from sparrowmq.protocol.compression import COMPRESSED, compress_body
from sparrowmq.protocol.message_id import encode_offset_msg_id
from sparrowmq.protocol.properties import (
    StoredProperties,
    encode_properties,
    parse_properties,
)
from sparrowmq.protocol.record import (
    HEAD_FIELDS,
    HEAD_SIZE,
    BatchEntry,
    Record,
    decode_host,
    decode_messages,
    decode_record,
    encode_batch,
    encode_host,
    encode_record,
    head_layout,
    head_position,
)

pytestmark = pytest.mark.usefixtures("both_ways")


def to_host(host: tuple[str, int]) -> bytes:
    return bytes.fromhex(host[0]) + host[1].to_bytes(4, "big")


def as_golden(message: MessageExt) -> dict[str, Any]:
    host, store_host = encode_host(message.born_host), encode_host(message.store_host)
    return {
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "commitLogOffset": message.commit_log_position,
        "storeSize": message.store_size,
        "flag": message.flag,
        "sysFlag": message.sys_flag,
        "bornTimestamp": message.born_timestamp_ms,
        "storeTimestamp": message.store_timestamp_ms,
        "bornHost": [host[:-4].hex(), int.from_bytes(host[-4:], "big")],
        "storeHost": [store_host[:-4].hex(), int.from_bytes(store_host[-4:], "big")],
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_position,
        "bodyCRC": message.body_crc,
        "properties": dict(message.properties),
        "bodyHex": message.body.hex(),
        "tags": message.tags,
        "keys": message.properties.get("KEYS"),
        "msgId": message.msg_id,
        "offsetMsgId": message.offset_msg_id,
    }


def assert_is_golden(expected: dict[str, Any], message: MessageExt) -> None:
    # Java tells a body or properties that are not there (null) from empty ones; we do not.
    expected = {
        **expected,
        "bodyHex": expected["bodyHex"] or "",
        "properties": expected["properties"] or {},
    }
    actual = as_golden(message)
    assert {name: actual[name] for name in expected} == expected


@each_case("message.jsonl", "msg-")
def test_record_of_java_decodes_to_what_java_decodes(case: dict[str, Any]) -> None:
    data = bytes.fromhex(case["encodedHex"])

    record = decode_record(data)
    (message,) = decode_messages(data, broker_name="b").messages

    expected = dict(case["decoded"])
    offset_msg_id = expected.pop("msgId")
    assert_is_golden(expected, message)
    assert offset_msg_id == message.offset_msg_id
    assert offset_msg_id == encode_offset_msg_id(record.store_host, record.position)
    assert case["storedBodySha256"] == hashlib.sha256(record.body).hexdigest()


@each_case("message.jsonl", "msg-")
def test_record_is_written_as_java_writes_it(case: dict[str, Any]) -> None:
    data = bytes.fromhex(case["encodedHex"])

    encoded = encode_record(decode_record(data))

    assert data == bytes(encoded)


@each_case("message.jsonl", "multi-")
def test_records_back_to_back_decode_as_in_java(case: dict[str, Any]) -> None:
    messages = decode_messages(bytes.fromhex(case["encodedHex"]), broker_name="b").messages

    assert len(case["decoded"]) == len(messages)
    for expected, message in zip(case["decoded"], messages, strict=True):
        assert_is_golden(expected, message)


@each_case("message.jsonl", "batch-")
def test_batch_is_written_and_read_as_in_java(case: dict[str, Any]) -> None:
    data = bytes.fromhex(case["encodedHex"])

    entries = decode_batch(data)

    decoded = [
        {
            "flag": entry.flag,
            "properties": parse_properties(entry.properties),
            "bodyHex": entry.body.hex(),
        }
        for entry in entries
    ]
    assert [{**entry, "bodyHex": entry["bodyHex"] or ""} for entry in case["decoded"]] == decoded
    assert data == encode_batch(entries)


HOSTS = st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
RECORDS = st.builds(
    Record,
    topic=st.text(st.characters(exclude_categories=["Cs"]), max_size=31),
    queue_id=INT32,
    body=st.binary(),
    properties=TEXTS,
    flag=INT32,
    sys_flag=st.integers(0, 0xF) | st.just(0x300),
    born_timestamp_ms=INT64,
    born_host=HOSTS,
    store_timestamp_ms=INT64,
    store_host=HOSTS,
    queue_offset=INT64,
    position=INT64,
    reconsume_times=INT32,
    prepared_transaction_position=INT64,
)


def test_layouts_of_some_fields_read_what_the_whole_head_has() -> None:
    head = bytes(range(HEAD_SIZE))
    whole = dict(zip(HEAD_FIELDS, head_layout().unpack(head), strict=True))

    for names in (("size", "magic"), ("sys_flag", "store_timestamp"), ("body_size",)):
        layout = head_layout(*names)
        assert layout.unpack(head[: layout.size]) == tuple(whole[name] for name in names)
    assert head_layout(born_host="20s").size == HEAD_SIZE + 12
    assert head[head_position("born_host") :][:8] == whole["born_host"]


@given(RECORDS)
def test_record_survives_encoding_and_decoding(record: Record) -> None:
    encoded = encode_record(record)

    decoded = decode_record(encoded)

    v6_bits = (len(record.born_host) == 20) << 4 | (len(record.store_host) == 20) << 5
    record.sys_flag |= v6_bits
    record.size = len(encoded)
    record.body_crc = zlib.crc32(record.body) & 0x7FFFFFFF
    assert record == decoded


@given(st.lists(RECORDS, min_size=1, max_size=3), st.data())
def test_damage_anywhere_raises_only_protocol_errors(
    originals: list[Record], data: st.DataObject
) -> None:
    damaged = bytearray().join(map(encode_record, originals))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    del damaged[data.draw(st.integers(0, len(damaged))) :]

    with contextlib.suppress(RemoteProtocolError):
        decode_record(damaged)
    found = decode_messages(damaged, broker_name="b")
    assert len(found.messages) <= len(originals)
    # Bytes have a quicker way for usual records.
    assert found == decode_messages(bytes(damaged), broker_name="b")


@given(st.lists(RECORDS, max_size=4))
def test_usual_records_are_read_as_all_others_are(originals: list[Record]) -> None:
    encoded = b"".join(map(encode_record, originals))

    found = decode_messages(encoded, broker_name="b")

    assert found == decode_messages(bytearray(encoded), broker_name="b")
    assert [message.offset_msg_id for message in found.messages] == [
        encode_offset_msg_id(decoded.store_host, decoded.position)
        for decoded in map(decode_record, map(encode_record, originals[: len(found.messages)]))
    ]


@pytest.mark.parametrize(
    ("begin", "count", "unusual_bits", "expected"),
    [(0, 3, 0, 3), (1, 2, 0, 3), (3, 0, 0, 3), (4, 0, 0, 4), (-1, 0, 0, -1), (0, 1, 4, 1)],
)
def test_extension_reads_usual_records_and_stops_at_others(
    built_speedups: speedups.Speedups, begin: int, count: int, unusual_bits: int, expected: int
) -> None:
    some = [
        encode_record(Record(topic=topic, queue_id=7, body=b"abc", sys_flag=flag))
        for topic, flag in (("T", 0), ("T", 4), ("Other", 0))
    ]
    ends = {
        0: 0,
        1: len(some[0]),
        2: len(some[0] + some[1]),
        3: len(b"".join(some)),
        4: 999,
        -1: -1,
    }
    buffer, messages = b"".join(some), list[MessageExt]()

    at = built_speedups.decode_messages(
        buffer, ends[begin], messages, MessageExt, StoredProperties, "b", unusual_bits
    )

    assert ends[expected] == at
    assert decode_messages(buffer, broker_name="b").messages[begin:][:count] == messages


@given(st.binary(max_size=300))
def test_arbitrary_bytes_raise_only_protocol_errors(data: bytes) -> None:
    for decode in (decode_record, decode_batch):
        with contextlib.suppress(RemoteProtocolError):
            decode(data)
    decode_messages(data, broker_name="b")


def test_record_after_a_damaged_one_is_not_read() -> None:
    whole = encode_record(Record(topic="T", queue_id=0, body=b"abc"))
    damaged = bytearray(whole)
    damaged[89] ^= 1

    messages = decode_messages(bytes(whole + damaged + whole), broker_name="b").messages

    assert [message.body for message in messages] == [b"abc"]


def test_crc_is_checked_unless_told_otherwise() -> None:
    encoded = bytearray(encode_record(Record(topic="T", queue_id=0, body=b"abc")))
    encoded[89] ^= 1

    with pytest.raises(RemoteProtocolError, match="CRC"):
        decode_record(encoded)
    assert decode_record(encoded, check_crc=False).body == b"acc"


def test_record_v2_of_rocketmq_5_is_read() -> None:
    topic = b"T" * 200
    v1 = bytearray(encode_record(Record(topic="", queue_id=3, body=b"abc", properties="a\x01b")))
    properties = v1[-5:]
    v2 = v1[: -len(properties) - 1] + (200).to_bytes(2, "big") + topic + properties
    v2[0:4] = len(v2).to_bytes(4, "big")
    v2[4:8] = records.MAGIC_V2.to_bytes(4, "big")

    record = decode_record(v2)

    assert (topic.decode(), b"abc", "a\x01b") == (record.topic, record.body, record.properties)


@pytest.mark.parametrize(
    "record",
    [
        Record(topic="T" * 128, queue_id=0, body=b""),
        Record(topic="T", queue_id=0, body=b"", properties="p" * 32_768),
        Record(topic="T", queue_id=2**31, body=b""),
        Record(topic="\ud800", queue_id=0, body=b""),
    ],
)
def test_record_that_does_not_fit_is_refused(record: Record) -> None:
    with pytest.raises(LocalProtocolError):
        encode_record(record)


def compressed(body: bytes, offset: int = 0) -> bytes:
    packed, sys_flag = compress_body(body, CompressionType.ZLIB, level=1)
    return record_at(offset, packed, sys_flag)


def record_at(offset: int, body: bytes, sys_flag: int = 0) -> bytes:
    record = Record(topic="T", queue_id=0, body=body, sys_flag=sys_flag, queue_offset=offset)
    return bytes(encode_record(record))


def test_message_that_cannot_be_inflated_is_handed_over_and_reading_goes_on_behind_it() -> None:
    poison = record_at(1, b"garbage", COMPRESSED)
    buffer = compressed(b"0") + poison + record_at(2, b"2")

    first = decode_messages(buffer, broker_name="b")
    rest = decode_messages(buffer, broker_name="b", at=first.end)

    assert [message.body for message in first.messages] == [b"0"]
    assert first.unreadable is not None
    assert (
        first.unreadable.message.queue_offset,
        first.unreadable.message.body,
    ) == (1, b"garbage")
    assert "its body is not a zlib stream" in str(first.failure)
    assert [message.body for message in rest.messages] == [b"2"]
    assert (len(buffer), None) == (rest.end, rest.failure)


def test_message_whose_checksum_differs_is_handed_over_too() -> None:
    damaged = bytearray(record_at(7, b"abc"))
    damaged[89] ^= 1

    found = decode_messages(bytes(damaged), broker_name="b")

    assert found.unreadable is not None
    assert (found.unreadable.message.queue_offset, found.unreadable.message.body) == (7, b"acc")
    assert found.failure == "its body does not match its CRC"
    assert len(damaged) == found.end


def test_bytes_that_are_no_record_are_a_fault_at_their_place() -> None:
    whole = record_at(0, b"abc")

    found = decode_messages(whole + b"garbage", broker_name="b")

    assert ([b"abc"], len(whole)) == ([m.body for m in found.messages], found.end)
    assert found.unreadable is None
    assert "ends early" in str(found.fault)


def test_message_that_inflates_beyond_16_mib_cannot_be_read() -> None:
    found = decode_messages(compressed(bytes(INFLATED_BYTES_MAX + 1)), broker_name="b")

    assert found.failure == "its body inflates beyond 16777216 bytes"


def test_message_for_which_there_is_no_room_is_left_for_later() -> None:
    buffer = compressed(bytes(600)) + compressed(bytes(600)) + record_at(2, b"plain")

    first = decode_messages(buffer, broker_name="b", room_bytes=1_000)
    none = decode_messages(buffer, broker_name="b", at=first.end, room_bytes=400)
    full = decode_messages(buffer, broker_name="b", at=first.end, room_bytes=0)

    assert ([len(m.body) for m in first.messages], first.failure) == ([600], None)
    for found in (none, full):
        assert ([], first.end, None) == (found.messages, found.end, found.failure)


def test_a_turn_ends_once_much_is_inflated() -> None:
    buffer = b"".join(compressed(bytes(3_000_000), n) for n in range(5))
    at, counts = 0, []
    while at < len(buffer):
        found = decode_messages(buffer, broker_name="b", at=at)
        counts.append(len(found.messages))
        at = found.end

    assert counts == [2, 2, 1]


@pytest.mark.parametrize("address", ["127.0.0.1:10911", "0.0.0.0:0", "[::1]:65535"])
def test_host_survives(address: str) -> None:
    assert address == decode_host(encode_host(address))


@pytest.mark.parametrize("address", ["", "127.0.0.1", "localhost:1", "1.2.3.4:70000", "1.2.3:x"])
def test_text_that_is_no_host_is_refused(address: str) -> None:
    with pytest.raises(LocalProtocolError, match="ip:port"):
        encode_host(address)


def test_batch_entry_that_does_not_fit_is_refused() -> None:
    with pytest.raises(LocalProtocolError):
        encode_batch([BatchEntry(2**31, b"", "")])
    with pytest.raises(LocalProtocolError):
        encode_batch([BatchEntry(0, b"", encode_properties({"a": "b" * 40_000}))])

from __future__ import annotations

import zlib
from typing import Any

import pytest

from golden import each_case
from sparrowmq.errors import RemoteProtocolError
from sparrowmq.model import MessageQueue
from sparrowmq.protocol import bodies, fastjson
from sparrowmq.protocol.bodies import decode_body, encode_body
from sparrowmq.protocol.register_body import (
    TOPICS_MAX,
    compute_body_crc,
    decode_register_body,
    encode_register_body,
)

OUR_NAMES = {
    "GetConsumerListByGroupResponseBody": "ConsumerListBody",
    "ConsumerOffsetSerializeWrapper": "ConsumerOffsetTable",
    "SubscriptionGroupWrapper": "SubscriptionGroupTable",
    "TopicConfigSerializeWrapper": "TopicConfigTable",
}
# These re-encoded texts are of another instance, or pretty-printed.
OTHER_INSTANCES = {"subgroup", "topicconfig"}


def body_type(case: dict[str, Any]) -> Any:
    return getattr(bodies, OUR_NAMES.get(case["class"], case["class"]))


def canonical(value: Any) -> Any:
    """Make sets of values, which Java writes in no order, comparable."""
    if isinstance(value, dict):
        return {key: canonical(item) for key, item in value.items()}
    if isinstance(value, list):
        return sorted((canonical(item) for item in value), key=repr)
    return value


@each_case("bodies.jsonl")
def test_body_of_java_survives_decoding_and_encoding(case: dict[str, Any]) -> None:
    body = decode_body(
        body_type(case), bytes.fromhex(case.get("hex") or case["text"].encode().hex())
    )

    encoded = encode_body(body)

    expected = canonical(fastjson.loads(case["text"]))
    actual = canonical(fastjson.loads(encoded))
    if case["id"].startswith("routeparse-"):
        expected = canonical(fastjson.loads(case["reEncoded"]))
        expected["filterServerTable"] = {}
    assert expected == actual
    assert body == decode_body(body_type(case), encoded)


@each_case("bodies.jsonl")
def test_body_is_equal_to_what_java_reads(case: dict[str, Any]) -> None:
    if "reEncoded" not in case or case["id"].split("-")[0] in OTHER_INSTANCES:
        return

    body = decode_body(body_type(case), case["text"].encode())

    read_by_java = decode_body(body_type(case), case["reEncoded"].encode())
    first, second = (fastjson.loads(encode_body(one)) for one in (body, read_by_java))
    assert canonical(first) == canonical(second)


@each_case("bodies.jsonl", "registerbroker-")
def test_register_body_is_read_and_written_in_both_forms(case: dict[str, Any]) -> None:
    plain, compressed = (bytes.fromhex(case[f"{form}Hex"]) for form in ("plain", "compressed"))

    from_plain = decode_register_body(plain)
    from_compressed = decode_register_body(compressed, compressed=True)

    assert from_plain == decode_body(bodies.RegisterBrokerBody, case["text"].encode())
    expected = decode_body(bodies.RegisterBrokerBody, case["decodedFromCompressed"].encode())
    assert expected == from_compressed
    assert [case["plainCrc32"], case["compressedCrc32"]] == [
        compute_body_crc(plain),
        compute_body_crc(compressed),
    ]
    assert from_plain == decode_register_body(encode_register_body(from_plain))
    again = encode_register_body(from_compressed, compressed=True)
    assert from_compressed == decode_register_body(again, compressed=True)
    assert case["topicConfigEncodings"] == [
        f"{topic.topic_name} {topic.read_queue_nums} {topic.write_queue_nums} {topic.perm} "
        f"{topic.topic_filter_type}"
        for topic in from_plain.topic_config_serialize_wrapper.topic_config_table.values()
    ]


@each_case("bodies.jsonl", "consumeroffset-", "subgroup-", "topicconfig-")
def test_config_file_is_laid_out_as_java_lays_it_out(case: dict[str, Any]) -> None:
    body = decode_body(body_type(case), case["reEncoded"].encode())

    assert case["reEncoded"] == encode_body(body, pretty=True).decode()


def test_queue_maps_are_written_with_objects_as_keys() -> None:
    body = bodies.ResetOffsetBody(offset_table={MessageQueue("T", "b", 1): 5})

    assert b'{"offsetTable":{{"brokerName":"b","queueId":1,"topic":"T"}:5}}' == encode_body(body)


def test_unknown_consumer_offset_is_none_here_and_minus_one_on_the_wire() -> None:
    body = bodies.OffsetWrapper(broker_offset=7, consumer_offset=-1)

    assert body.consumer_offset is None
    assert b'{"brokerOffset":7,"consumerOffset":-1,"lastTimestamp":0}' == encode_body(body)


@pytest.mark.parametrize(
    "data",
    [
        None,
        b"",
        b"[]",
        b"null",
        b"5",
        b"{}",
        b'{"clientID":5}',
        b'{"clientID":"c"',
        b'{"clientID":"c","consumerDataSet":[{"groupName":"g","consumeType":"OTHER"}]}',
        b"\xff",
    ],
)
def test_what_is_no_heartbeat_is_refused(data: bytes | None) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_body(bodies.HeartbeatData, data)


def test_null_and_absent_members_take_the_default() -> None:
    text = b'{"clientID":"c","consumerDataSet":null,"unknown":{"a":[1]}}'

    assert bodies.HeartbeatData(client_id="c") == decode_body(bodies.HeartbeatData, text)


@pytest.mark.slow
@pytest.mark.parametrize("is_compressed", [True, False])
def test_a_registration_of_too_many_topics_is_refused(is_compressed: bool) -> None:
    count = TOPICS_MAX + 1
    if is_compressed:
        texts = [b"T%d 1 1 6 S" % number for number in range(count)]
        blocks = [b"{}", *texts, b"[]"]
        parts = [len(block).to_bytes(4, "big") + block for block in blocks]
        data = zlib.compress(b"".join([parts[0], count.to_bytes(4, "big"), *parts[1:]]), 1)
    else:
        topics = b",".join(b'"T%d":{"topicName":"T%d"}' % (n, n) for n in range(count))
        data = b'{"topicConfigSerializeWrapper":{"topicConfigTable":{%s}}}' % topics

    with pytest.raises(RemoteProtocolError, match="100001 topics in one registration"):
        decode_register_body(data, compressed=is_compressed)

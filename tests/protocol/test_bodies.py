from __future__ import annotations

import json
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from golden import Case, GoldenDirectory, check_cases, each_case
from sparrowmq.errors import RemoteProtocolError
from sparrowmq.model import ConsumeFromWhere, ConsumeType, MessageModel, MessageQueue
from sparrowmq.protocol import bodies, fastjson
from sparrowmq.protocol.bodies import decode_body, decode_file, encode_body
from sparrowmq.protocol.register_body import (
    REGISTRATION_BYTES_MAX,
    TOPICS_MAX,
    compute_body_crc,
    decode_register_body,
    encode_register_body,
)
from steps import run_steps

OUR_NAMES = {
    "GetConsumerListByGroupResponseBody": "ConsumerListBody",
    "ConsumerOffsetSerializeWrapper": "ConsumerOffsetTable",
    "SubscriptionGroupWrapper": "SubscriptionGroupTable",
    "TopicConfigSerializeWrapper": "TopicConfigTable",
}
# These re-encoded texts are of another instance, or pretty-printed.
OTHER_INSTANCES = {"subgroup", "topicconfig"}


def body_type(case: dict[str, Any]) -> Any:
    name: str = case["class"]
    return getattr(bodies, OUR_NAMES.get(name, name))


def read_register_body(data: bytes, *, compressed: bool = False) -> bodies.RegisterBrokerBody:
    return run_steps(decode_register_body(data, compressed=compressed))[0]


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
    assert actual == expected
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

    from_plain = read_register_body(plain)
    from_compressed = read_register_body(compressed, compressed=True)

    assert from_plain == decode_body(bodies.RegisterBrokerBody, case["text"].encode())
    expected = decode_body(bodies.RegisterBrokerBody, case["decodedFromCompressed"].encode())
    assert from_compressed == expected
    assert [case["plainCrc32"], case["compressedCrc32"]] == [
        compute_body_crc(plain),
        compute_body_crc(compressed),
    ]
    assert from_plain == read_register_body(encode_register_body(from_plain))
    again = encode_register_body(from_compressed, compressed=True)
    assert from_compressed == read_register_body(again, compressed=True)
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

    assert encode_body(body) == b'{"offsetTable":{{"brokerName":"b","queueId":1,"topic":"T"}:5}}'


def test_unknown_consumer_offset_is_none_here_and_minus_one_on_the_wire() -> None:
    body = bodies.OffsetWrapper(broker_offset=7, consumer_offset=-1)

    assert body.consumer_offset is None
    assert encode_body(body) == b'{"brokerOffset":7,"consumerOffset":-1,"lastTimestamp":0}'


@pytest.mark.parametrize(
    "data",
    [
        None,
        b"",
        b"[]",
        b"null",
        b"5",
        b"{}",
        b'{"clientID":"c"',
        b'{"clientID":"c","consumerDataSet":[{"groupName":"g","consumeType":9}]}',
        b"\xff",
    ],
)
def test_what_is_no_heartbeat_is_refused(data: bytes | None) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_body(bodies.HeartbeatData, data)


def test_null_and_absent_members_take_the_default() -> None:
    text = b'{"clientID":"c","consumerDataSet":null,"unknown":{"a":[1]}}'

    assert decode_body(bodies.HeartbeatData, text) == bodies.HeartbeatData(client_id="c")


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

    with pytest.raises(RemoteProtocolError, match="65537 topics in one registration"):
        read_register_body(data, compressed=is_compressed)


@each_case("bodies.jsonl")
def test_reader_of_plain_json_and_reader_of_the_dialect_agree(case: dict[str, Any]) -> None:
    text = case["text"].encode()

    by_dialect = msgspec.convert(fastjson.loads(text), body_type(case), strict=False)

    assert by_dialect == decode_body(body_type(case), text)


def reworded(value: Any, how: Callable[[Any], Any]) -> Any:
    """Return a JSON value with other members; `how` changes each that is neither map nor list."""
    if isinstance(value, dict):
        return {key: reworded(item, how) for key, item in value.items()}
    if isinstance(value, list):
        return [reworded(item, how) for item in value]
    return how(value)


def as_text(value: Any) -> Any:
    """Return a number or a boolean as the text that Jackson and fastjson read it from."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def as_number(value: Any) -> Any:
    """Return an enumeration's name as its number, as clients in C++ write it."""
    return ENUM_NUMBERS.get(value, value) if isinstance(value, str) else value


def with_nulls(value: Any) -> Any:
    """Add members that nobody knows, with and without a value."""
    if isinstance(value, list):
        return [with_nulls(item) for item in value]
    if not isinstance(value, dict):
        return value
    added = {key: with_nulls(item) for key, item in value.items()}
    return {**added, "aClientsOwn": None, "another": [{"a": 1}]} if is_object(value) else added


def is_object(value: dict[Any, Any]) -> bool:
    """Return whether a map is an object with members, whose names stand in some Struct."""
    return bool(value) and all(key in MEMBERS for key in value)


ENUM_NUMBERS = {
    member.name: number
    for kind in (ConsumeFromWhere, ConsumeType, MessageModel)
    for number, member in enumerate(kind)
}
STRUCTS = [each for each in vars(bodies).values() if isinstance(each, type(msgspec.Struct))]
MEMBERS = {name for each in STRUCTS for name in each.__struct_encode_fields__}


@pytest.mark.parametrize("other", [as_text, as_number, with_nulls])
def test_body_is_read_as_the_clients_of_other_languages_write_it(
    golden: GoldenDirectory, other: Callable[[Any], Any]
) -> None:
    changed: set[str] = set()

    def check(case: Case) -> None:
        value = fastjson.loads(case["text"])
        if not all(isinstance(key, str | int) for key in keys_of(value)):
            # Keys that are objects are of fastjson alone.
            return
        written = with_nulls(value) if other is with_nulls else reworded(value, other)
        if written != value:
            changed.add(case["class"])
        assert decode_body(body_type(case), json.dumps(written).encode()) == decode_body(
            body_type(case), json.dumps(value).encode()
        )

    check_cases(golden.cases("bodies.jsonl"), check)
    assert changed


@each_case("bodies.jsonl")
def test_body_that_lacks_a_member_is_read_as_with_null_or_refused(case: dict[str, Any]) -> None:
    value = fastjson.loads(case["text"])
    if not all(isinstance(key, str | int) for key in keys_of(value)):
        return
    for name in value:
        read: list[Any] = []
        for written in (
            {key: item for key, item in value.items() if key != name},
            {**value, name: None},
        ):
            try:
                read.append(decode_body(body_type(case), json.dumps(written).encode()))
            except RemoteProtocolError:
                read.append(None)

        assert read[0] == read[1], name


def keys_of(value: Any) -> Iterator[Any]:
    """Return the keys of all maps in a value."""
    items = value if isinstance(value, list) else ()
    if isinstance(value, dict):
        yield from value
        items = list(value.values())
    for item in items:
        yield from keys_of(item)


def route(broker_count: int) -> bytes:
    """Return a route as RocketMQ writes it: its keys are numbers."""
    datas = [
        bodies.BrokerData(
            cluster="c", broker_name=f"b{n}", broker_addrs={0: "10.0.0.1:1", 1: "10.0.0.2:1"}
        )
        for n in range(broker_count)
    ]
    queues = [bodies.QueueData(broker_name=f"b{n}", read_queue_nums=8) for n in range(broker_count)]
    return encode_body(bodies.TopicRouteData(broker_datas=datas, queue_datas=queues))


def topics(count: int) -> bodies.TopicConfigTable:
    names = [f"a_topic_with_a_name_of_a_usual_length_{n}" for n in range(count)]
    return bodies.TopicConfigTable(
        topic_config_table={name: bodies.TopicConfig(topic_name=name) for name in names}
    )


def stats(queue_count: int) -> bytes:
    table = {MessageQueue("T", "b", n): bodies.OffsetWrapper() for n in range(queue_count)}
    return encode_body(bodies.ConsumeStats(offset_table=table))


def queues(count: int) -> bytes:
    queues = [MessageQueue("a_topic", "broker-a", n) for n in range(count)]
    request = bodies.LockBatchRequestBody(client_id="c", consumer_group="g", mq_set=queues)
    return encode_body(request)


def offsets(key_count: int) -> bytes:
    table = {f"a_topic{n}@GID_{n}": dict.fromkeys(range(8), n) for n in range(key_count)}
    return encode_body(bodies.ConsumerOffsetTable(offset_table=table))


def heartbeat(group_count: int) -> bytes:
    subscriptions = [bodies.SubscriptionData(topic=topic) for topic in "TU"]
    groups = [
        bodies.ConsumerData(group_name=f"G{n}", subscription_data_set=subscriptions)
        for n in range(group_count)
    ]
    return encode_body(bodies.HeartbeatData(client_id="c", consumer_data_set=groups))


# Made where they are read: `pytest` builds the parameters of all tests as it starts.
LARGEST: dict[Any, Callable[[], bytes]] = {
    bodies.TopicRouteData: lambda: route(1_000),
    bodies.ConsumerOffsetTable: lambda: offsets(50_000),
    bodies.TopicConfigTable: lambda: encode_body(topics(50_000)),
    bodies.RegisterBrokerBody: lambda: encode_body(bodies.RegisterBrokerBody()),
    bodies.TopicList: lambda: encode_body(bodies.TopicList(topic_list=["T" * 30] * 100_000)),
    bodies.ConsumeStats: lambda: stats(10_000),
    bodies.LockBatchRequestBody: lambda: queues(1_024),
    bodies.HeartbeatData: lambda: heartbeat(1_000),
}


@pytest.mark.parametrize("body_type", LARGEST, ids=lambda body_type: body_type.__name__)
def test_largest_body_of_a_large_cluster_is_read(body_type: Any) -> None:
    data = LARGEST[body_type]()

    assert data == encode_body(decode_body(body_type, data))


def test_text_that_looks_like_a_key_is_left_as_it_is() -> None:
    data = b'{"brokerDatas":[{"brokerAddrs":{0:"h:1",1:"h:2"},"brokerName":"a,5:b{6:"}]}'

    (broker,) = decode_body(bodies.TopicRouteData, data).broker_datas
    assert (broker.broker_name, broker.broker_addrs) == ("a,5:b{6:", {0: "h:1", 1: "h:2"})


MIB = 1 << 20
HOSTILE: dict[str, Callable[[], bytes]] = {
    "empty objects": lambda: b'{"brokerDatas":[' + b"{}," * 4_999_999 + b"{}]}",
    "brokers": lambda: route(1)[:-1] + b',"x":' + route(100_000) + b"}",
    "dialect": lambda: b"{x:[" + b"0," * (MIB // 4) + b"0]}",
    "one text": lambda: b'{"orderTopicConf":"' + b"x" * (15 * MIB) + b'"}',
    "escapes": lambda: b"{x:'" + b"\\u0041" * (2 * MIB) + b"'}",
    "references": lambda: b'{"x":[' + b'{"$ref":"$.x"},' * (MIB - 1) + b'{"$ref":"$.x"}]}',
    "depth": lambda: b'{"x":' * (2 * MIB),
    "blanks": lambda: b"{" + b" " * (15 * MIB) + b"}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_body_with_too_much_to_read_is_refused_before_it_is_read(name: str) -> None:
    data = HOSTILE[name]()
    tracemalloc.start()
    try:
        with pytest.raises(
            RemoteProtocolError, match=r"no TopicRouteData: JSON of .* the limit is"
        ):
            decode_body(bodies.TopicRouteData, data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < len(data) + MIB


def test_file_may_have_any_size() -> None:
    table = {f"topic{n}@group": dict.fromkeys(range(8), n) for n in range(20_000)}
    data = encode_body(bodies.ConsumerOffsetTable(offset_table=table), pretty=True)

    assert table == decode_file(bodies.ConsumerOffsetTable, data).offset_table


def test_register_body_that_inflates_to_too_much_is_refused() -> None:
    largest = bodies.RegisterBrokerBody(topic_config_serialize_wrapper=topics(50_000))

    again = read_register_body(encode_register_body(largest, compressed=True), compressed=True)

    assert largest == again
    with pytest.raises(RemoteProtocolError, match="inflates beyond"):
        read_register_body(zlib.compress(bytes(REGISTRATION_BYTES_MAX + 1)), compressed=True)

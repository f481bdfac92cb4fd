"""Rows become messages: by the task's code, without Spark, on a broker of ours."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark import cloudpickle

from batches import decode_batch
from sparrowmq import Admin, Message, MessageQueue
from sparrowmq.calling.effects import Operation, sleep
from sparrowmq.client.operations.send import send_encoded_batch
from sparrowmq.client.publisher import Publisher
from sparrowmq.errors import (
    ConfigError,
    ConnectFailed,
    SendFailed,
    SparrowError,
    TopicRouteNotFound,
    UsageError,
)
from sparrowmq.model import SendResult, SendStatus
from sparrowmq.protocol.properties import parse_properties
from sparrowmq.spark import writer
from sparrowmq.spark.batch_reader import RocketMQReader
from sparrowmq.spark.options import parse_options
from sparrowmq.spark.row_encoding import NO_USER_PROPERTIES, encode_rows
from sparrowmq.spark.sink_options import (
    SINK_COLUMNS,
    SINK_OPTIONS,
    check_columns,
    parse_sink_options,
)
from sparrowmq.spark.topic_queues import connect, disconnect
from sparrowmq.testing import EmbeddedCluster
from waiting import wait_until

pytestmark = pytest.mark.slow

GOOD = {"nameServer": "127.0.0.1:9876", "topic": "out"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(tmp_path_factory.mktemp("data")) as found:
        found.create_topic("out", queues=4)
        yield found
        disconnect()


def write(cluster: EmbeddedCluster, rows: pa.RecordBatch, **given: str) -> int:
    options = parse_sink_options({"nameServer": cluster.name_server, **given}, scope="batch")
    return writer.write_rows(connect(options), options, [rows], write_id="job/0")


def read(cluster: EmbeddedCluster, topic: str) -> list[dict[str, Any]]:
    given = {"nameServer": cluster.name_server, "topic": topic, "profile": "full"}
    reader = RocketMQReader(parse_options(given, scope="batch"))
    return [
        row
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]


def rows_of(**columns: Any) -> pa.RecordBatch:
    types = {
        "body": pa.binary(),
        "properties": pa.map_(pa.string(), pa.string()),
        "delayTimeLevel": pa.int32(),
        "flag": pa.int32(),
        "queueId": pa.int32(),
    }
    arrays = [
        values if isinstance(values, pa.Array) else pa.array(values, types.get(name, pa.string()))
        for name, values in columns.items()
    ]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def test_every_column_arrives(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("every", queues=4)
    cluster.create_topic("other", queues=4)
    rows = rows_of(
        body=[b"a", b"b", b"c" * 600_000],
        topic=["every", None, "other"],
        tags=["t", None, ""],
        keys=pa.array([["k1", "k2"], [], None], pa.list_(pa.string())),
        properties=[[("p", "é"), ("q", "")], None, [("p", "1")]],
        flag=[7, None, -9],
    )

    assert write(cluster, rows, topic="every", exactlyOnce="true") == 3

    out = sorted(read(cluster, "every"), key=lambda row: row["body"])
    (other,) = read(cluster, "other")
    assert [(row["tags"], row["keys"], row["flag"]) for row in out] == [
        ("t", "k1 k2", 7),
        (None, None, 0),
    ]
    assert dict(out[0]["properties"])["p"] == "é"
    assert out[0]["msgId"] != out[1]["msgId"]
    assert (other["body"], dict(other["properties"])["p"]) == (b"c" * 600_000, "1")
    assert other["flag"] == -9
    ids = [dict(row["properties"])["WRITE_ID"] for row in (*out, other)]
    assert len(set(ids)) == 3
    assert {(each[:5], each.rpartition("/")[2]) for each in ids} == {("job/0", "0")}


def test_rows_of_a_sharding_key_keep_their_order_in_one_queue(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("sharded", queues=4)
    numbers = range(3_000)
    rows = rows_of(
        body=[b"%d" % number for number in numbers],
        shardingKey=[f"key{number % 7}" for number in numbers],
    )

    write(cluster, rows, topic="sharded")

    found: dict[str, list[tuple[int, int, int]]] = {}
    for row in read(cluster, "sharded"):
        key = dict(row["properties"])["__SHARDINGKEY"]
        found.setdefault(key, []).append((row["queueId"], row["queueOffset"], int(row["body"])))
    assert {f"key{number}" for number in range(7)} == set(found)
    for key, places in found.items():
        assert len({queue_id for queue_id, _, _ in places}) == 1, key
        assert list(numbers[int(key[3:]) :: 7]) == [number for _, _, number in sorted(places)]


def test_rows_go_to_the_queue_they_name(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("named", queues=4)
    count = 2_000
    rows = rows_of(
        body=[b"%d" % number for number in range(count)],
        brokerName=["broker-a"] * count,
        queueId=[number % 3 for number in range(count)],
    )

    write(cluster, rows, topic="named", maxInFlight="8")

    found = sorted(
        (row["queueId"], row["queueOffset"], int(row["body"])) for row in read(cluster, "named")
    )
    assert [
        (queue, offset, queue + 3 * offset)
        for queue in range(3)
        for offset in range(len(range(queue, count, 3)))
    ] == found


def test_requests_to_one_queue_follow_one_another_and_few_are_under_way(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way: list[MessageQueue] = []
    counts: list[tuple[int, int]] = []

    def send(publisher: object, message: Message, *, queue: MessageQueue) -> Operation[SendResult]:
        under_way.append(queue)
        counts.append((len(under_way), under_way.count(queue)))
        yield from sleep(1)
        under_way.remove(queue)
        return SendResult(SendStatus.SEND_OK, "id", "", queue, 0)

    monkeypatch.setattr(writer, "send", send)
    # Each row is a request.
    monkeypatch.setattr(writer, "REQUEST_BYTES_MAX", 1)
    numbers = [0, 0, 1, 1, 0, 2, 2, 1]
    named = {"brokerName": ["broker-a"] * 8, "queueId": numbers}

    assert write(cluster, rows_of(body=[b"x"] * 8, **named), topic="out", maxInFlight="2") == 8

    assert [max(each) for each in zip(*counts, strict=True)] == [2, 1]


@pytest.mark.parametrize("status", [SendStatus.FLUSH_DISK_TIMEOUT, SendStatus.FLUSH_SLAVE_TIMEOUT])
def test_a_message_that_may_be_lost_fails_the_write_and_ends_its_other_requests(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch, status: SendStatus
) -> None:
    ended: list[bytes] = []

    def send(publisher: object, message: Message, *, queue: None) -> Operation[SendResult]:
        try:
            yield from sleep(0 if message.body == b"0" else 60_000)
        finally:
            ended.append(message.body)
        return SendResult(status, "id", "", MessageQueue("out", "broker-a", 0), 0)

    monkeypatch.setattr(writer, "send", send)
    monkeypatch.setattr(writer, "REQUEST_BYTES_MAX", 1)

    with pytest.raises(SendFailed, match=f"says {status.value}: it may be lost"):
        write(cluster, rows_of(body=[b"0", b"1", b"2"]), topic="out")

    assert ended == [b"0", b"1", b"2"]


def test_dead_letters_are_sent_alone(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Apache's brokers refuse it.
    monkeypatch.setattr(writer, "send_encoded_batch", lambda *_, **__: pytest.fail("a batch"))

    assert write(cluster, rows_of(body=[b"a", b"b"]), topic="%DLQ%G", createTopic="true") == 2

    assert sorted(row["body"] for row in read(cluster, "%DLQ%G")) == [b"a", b"b"]


def test_delayed_rows_wait(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("later", queues=1)
    delays, keys = [None, 18, 17], ["a b", "c", "d"]
    rows = rows_of(body=[b"now", b"later", b"too"], delayTimeLevel=delays, keys=keys)
    rows = rows.append_column("shardingKey", pa.array([None, "s", None]))

    write(cluster, rows, topic="later")

    assert [(row["body"], row["keys"]) for row in read(cluster, "later")] == [(b"now", "a b")]
    waiting = read(cluster, "SCHEDULE_TOPIC_XXXX")
    own = [row for row in waiting if dict(row["properties"])["REAL_TOPIC"] == "later"]
    later, too = sorted(own, key=lambda row: row["body"])
    assert [(row["body"], row["keys"]) for row in (later, too)] == [(b"later", "c"), (b"too", "d")]
    assert dict(later["properties"])["__SHARDINGKEY"] == "s"


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"body": [b"ok", None]}, "the body of row 1 is null"),
        ({"body": [b""]}, "the body of row 0 has 0 bytes"),
        ({"body": [b"x" * (4 * 1024 * 1024 + 1)]}, "has 4194305 bytes; it must have 1 to 4194304"),
        (
            {"body": [b"x"], "tags": ["a\x01b"]},
            "the TAGS of row 0, 'a\\x01b', has the character",
        ),
        (
            {"body": [b"x"], "properties": [[("KEYS", "k")]]},
            "property 'KEYS' of row 0 is RocketMQ's own",
        ),
        ({"body": [b"x"], "properties": [[("p", "y" * 40_000)]]}, "the limit is 32767"),
        ({"body": [b"x"], "topic": [None]}, "the topic of row 0 is null"),
        ({"body": [b"x"], "topic": ["SCHEDULE_TOPIC_XXXX"]}, "clients cannot send to it"),
        ({"body": [b"x"], "topic": ["a b"]}, "'a b'"),
        ({"body": [b"x"], "topic": ["missing"]}, "'missing'; create the topic, or check its name"),
        ({"body": [b"x"], "topic": ["missing"]}, "option 'createTopic' creates it"),
        ({"body": [b"x"], "topic": ["outt"]}, "; did you mean out?"),
        (
            {"body": [b"x"], "delayTimeLevel": [19], "topic": ["out"]},
            "the delayTimeLevel of row 0 is 19; it must be 0 to 18",
        ),
        ({"body": [b"x"], "topic": ["out"], "brokerName": ["nope"], "queueId": [0]}, "'nope'"),
        (
            {"body": [b"x"], "brokerName": pa.array([None], pa.string()), "queueId": [3]},
            "row 0 names queue 3 of no broker",
        ),
        (
            {"body": [b"x"], "brokerName": ["broker-a"], "queueId": pa.array([None], pa.int32())},
            "row 0 names broker 'broker-a' and no queue",
        ),
        (
            {"body": [b"x"], "brokerName": ["broker-a"], "queueId": pa.array([-1], pa.int32())},
            "row 0 names queue -1; queues are numbered from 0",
        ),
    ],
)
def test_a_row_that_cannot_be_sent_is_one_clear_error(
    cluster: EmbeddedCluster, columns: dict[str, Any], words: str
) -> None:
    given = {"retryTimes": "0"} | ({} if "topic" in columns else {"topic": "out"})

    with pytest.raises(SparrowError) as caught:
        write(cluster, rows_of(**columns), **given)

    expected = UsageError | ConfigError | SendFailed | TopicRouteNotFound
    assert isinstance(caught.value, expected)
    assert words in str(caught.value)


def test_rows_are_on_their_way_while_the_next_are_waited_for(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("slowly", queues=1)
    options = parse_sink_options(
        {"nameServer": cluster.name_server, "topic": "slowly"}, scope="batch"
    )
    arrived: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        yield rows_of(body=[b"a"] * 3)
        with Admin(name_server=cluster.name_server) as admin:
            queue = MessageQueue("slowly", "broker-a", 0)
            wait_until("the first rows are there", lambda: admin.max_offset(queue) == 3)
            arrived.append(admin.max_offset(queue))
        yield rows_of(body=[b"b"] * 2)

    assert writer.write_rows(connect(options), options, batches()) == 5
    assert arrived == [3]


def test_short_rows_are_no_more_in_a_request_than_brokers_take(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []

    def count(publisher: Publisher, topic: str, body: bytes, **given: Any) -> Any:
        counts.append(len(decode_batch(body)))
        return send_encoded_batch(publisher, topic, body, **given)

    monkeypatch.setattr(writer, "send_encoded_batch", count)

    write(cluster, rows_of(body=[b"x"] * 1_100), topic="out")

    assert counts == [512, 512, 76]


def test_a_broker_that_restarts_as_a_task_begins_is_waited_for(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [ConnectFailed("no name server answers", address="127.0.0.1:1")]
    look = writer.see_to_topic

    def see_to_topic(*args: Any, **given: Any) -> Operation[None]:
        if failures:
            raise failures.pop()
        yield from look(*args, **given)

    monkeypatch.setattr(writer, "see_to_topic", see_to_topic)

    assert write(cluster, rows_of(body=[b"x"]), topic="out") == 1
    assert not failures


def test_a_topic_is_created_only_if_asked_for(cluster: EmbeddedCluster) -> None:
    rows = rows_of(body=[b"a", b"b"], topic=["made", "made"])
    with pytest.raises(TopicRouteNotFound):
        write(cluster, rows, retryTimes="0")

    assert write(cluster, rows, createTopic="true") == 2
    with Admin(name_server=cluster.name_server) as admin:
        queues = admin.route("made").publish_queues

    assert len(queues) == 8
    assert len(read(cluster, "made")) == 2


def test_a_copy_of_a_topic_takes_the_users_properties(cluster: EmbeddedCluster) -> None:
    for topic in ("original", "copy"):
        cluster.create_topic(topic, queues=1)
    given = rows_of(body=[b"x"], tags=["t"], keys=["k"], properties=[[("p", "1"), ("q", "2")]])
    write(cluster, given, topic="original", exactlyOnce="true")
    names = ("body", "tags", "keys", "userProperties")
    options = {"nameServer": cluster.name_server, "columns": ",".join(names)}
    reader = RocketMQReader(parse_options({**options, "topic": "original"}, scope="batch"))

    (batch,) = [each for part in reader.partitions() for each in reader.read(part)]
    write(cluster, batch.rename_columns([*names[:3], "properties"]), topic="copy")

    (row,) = read(cluster, "copy")
    found = dict(row["properties"])
    assert {n: found[n] for n in found if n not in NO_USER_PROPERTIES} == {"p": "1", "q": "2"}
    assert "WRITE_ID" not in found
    assert (row["tags"], row["keys"], row["body"]) == ("t", "k", b"x")


def test_a_rows_number_counts_in_the_input_and_not_in_an_arrow_batch(
    cluster: EmbeddedCluster,
) -> None:
    options = parse_sink_options({"nameServer": cluster.name_server, "topic": "out"}, scope="batch")
    good = rows_of(body=[b"x"] * 3)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"body": [b"x", None]}, "the body of row 4 is null"),
        ({"body": [b"x", b"y"], "tags": ["t", "\x02"]}, "the TAGS of row 4, "),
        (
            {"body": [b"x", b"y"], "properties": [[("a", "b"), ("c", "d")], [("e", "\x01")]]},
            "a property of row 4, ",
        ),
        ({"body": [b"x", b"y"], "properties": [None, [("KEYS", "k")]]}, "'KEYS' of row 4 is"),
        (
            {"body": [b"x", b"y"], "brokerName": ["broker-a", None], "queueId": [0, 1]},
            "row 4 names queue 1 of no broker",
        ),
        ({"body": [b"x", b"y"], "delayTimeLevel": [18, -1]}, "the delayTimeLevel of row 4 is -1"),
    ]
    for columns, words in wrong:
        with pytest.raises(UsageError) as caught:
            writer.write_rows(connect(options), options, [good, rows_of(**columns)])

        assert words in str(caught.value)


def write_ids(cluster: EmbeddedCluster, topic: str) -> list[str]:
    return [dict(row["properties"])["WRITE_ID"] for row in read(cluster, topic)]


def test_ids_of_a_micro_batch_are_those_of_its_query_batch_and_partition(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create_topic("micro", queues=1)
    given = {"nameServer": cluster.name_server, "topic": "micro", "exactlyOnce": "true"}
    options = parse_sink_options(given, scope="batch")

    def write_batch(query: str, batch: str, partition: int) -> None:
        local = {"sql.streaming.queryId": query, "streaming.sql.batchId": batch}
        context = SimpleNamespace(partitionId=lambda: partition, getLocalProperty=local.get)
        monkeypatch.setattr(writer, "TaskContext", SimpleNamespace(get=lambda: context))
        writer.write_task(options, iter([rows_of(body=[b"x"])]), job=None)

    # The first one is repeated.
    for task in (("q", "1", 0), ("q", "1", 0), ("q", "2", 0), ("q", "1", 1), ("r", "1", 0)):
        write_batch(*task)

    found = Counter(
        each.rpartition("/")[0].rpartition("/")[0] for each in write_ids(cluster, "micro")
    )
    assert found == {"q/1/0": 2, "q/2/0": 1, "q/1/1": 1, "r/1/0": 1}


def test_attempts_of_a_batchs_task_have_the_same_ids_and_another_batch_has_others(
    cluster: EmbeddedCluster,
) -> None:
    cluster.create_topic("attempts", queues=1)
    given = {"nameServer": cluster.name_server, "topic": "attempts", "exactlyOnce": "true"}
    options = parse_sink_options(given, scope="batch")
    dumps: Callable[[object], bytes] = cloudpickle.dumps
    for made in (writer.RocketMQWriter(options), writer.RocketMQWriter(options)):
        shipped = dumps(made)
        for _ in range(2):
            cloudpickle.loads(shipped).write(iter([rows_of(body=[b"x", b"x"])]))

    assert sorted(Counter(write_ids(cluster, "attempts")).values()) == [2, 2, 2, 2]


def test_encoded_rows_are_what_the_protocol_reads() -> None:
    rows = rows_of(
        body=[b"x", b"yy", b"zzz", b"z"],
        properties=[[("c", "3")], [("a", "1"), ("b", "2")], [], None],
        flag=[1, 2, 3, 4],
        tags=["s", "t", None, None],
    )
    for part in (rows, rows.slice(0, 1), rows.slice(1, 2), rows.slice(1)):
        encoded = encode_rows(part, pa.array(["id"] * len(part)))
        entries = [decode_batch(each)[0] for each in encoded.entries.to_pylist()]
        expected = [
            (row["flag"], row["body"], {"UNIQ_KEY": "id"} | dict(row["properties"] or []))
            for row in part.to_pylist()
        ]
        assert [
            (flag, body, properties | ({"TAGS": row["tags"]} if row["tags"] else {}))
            for (flag, body, properties), row in zip(expected, part.to_pylist(), strict=True)
        ] == [(e.flag, e.body, parse_properties(e.properties)) for e in entries]


def properties_of(rows: pa.RecordBatch) -> list[dict[str, str]]:
    encoded = encode_rows(rows, pa.array(["id"] * len(rows)))
    return [dict(parse_properties(each.decode())) for each in encoded.properties.to_pylist()]


def test_a_property_without_a_value_is_left_out() -> None:
    rows = rows_of(body=[b"x"] * 2, properties=[[("p", None), ("q", "1"), ("r", None)], None])

    assert properties_of(rows) == [{"UNIQ_KEY": "id", "q": "1"}, {"UNIQ_KEY": "id"}]


def test_the_largest_row_is_taken_and_no_larger_one() -> None:
    largest = "v" * (32_767 - len("UNIQ_KEY:id;p:;"))
    body = b"x" * 4 * 1024 * 1024

    assert properties_of(rows_of(body=[body], properties=[[("p", largest)]]))[0]["p"] == largest
    with pytest.raises(UsageError, match="have 32768 bytes; the limit is 32767"):
        encode_rows(rows_of(body=[b"x"], properties=[[("p", f"{largest}v")]]), pa.array(["id"]))


@pytest.mark.parametrize("name", ["a\x01b", "\x02"])
def test_a_name_of_a_property_has_no_separator(name: str) -> None:
    rows = rows_of(body=[b"x"] * 3, properties=[[("p", "1"), ("q", "2")], None, [(name, "3")]])

    with pytest.raises(UsageError, match=r"a property's name of row 12, .* has the character 1 or"):
        encode_rows(rows, pa.array(["id"] * 3), first_row=10)


def test_a_key_that_is_null_is_left_out() -> None:
    kind = pa.list_(pa.string())
    keys = pa.array([["a", None, "b"], [None], [], None, ["c"]], kind)

    encoded = encode_rows(rows_of(body=[b"x"] * 5, keys=keys), pa.array(["id"] * 5))

    found = [parse_properties(each.decode()) for each in encoded.properties.to_pylist()]
    assert [each.get("KEYS") for each in found] == ["a b", None, None, None, "c"]


def test_key_of_a_list_has_no_blank() -> None:
    for blank in filter(str.isspace, map(chr, range(sys.maxunicode + 1))):
        keys = pa.array([[], None, ["a", "b"], ["c", f"d{blank}e"]], pa.list_(pa.string()))
        rows = rows_of(body=[b"x"] * 5, keys=pa.array([["z"], *keys.to_pylist()], keys.type))
        with pytest.raises(UsageError, match=r"the key .* of row 14 has a blank"):
            encode_rows(rows.slice(1), pa.array(["id"] * 4), first_row=11)


@pytest.mark.parametrize(
    ("keys", "stored"),
    [
        (["a\u3000b", None, " c\t d", "e f", ""], ["a b", None, "c d", "e f", None]),
        ([["a", "", None, "b"], None, [""], [], ["ä"]], ["a b", None, None, None, "ä"]),
    ],
    ids=["texts", "lists"],
)
@pytest.mark.parametrize("delay", [0, 18], ids=["in a batch", "alone"])
def test_keys_are_the_same_in_a_batch_and_alone(
    cluster: EmbeddedCluster, keys: list[Any], stored: list[str | None], delay: int
) -> None:
    topic = f"keys-{type(keys[0]).__name__}-{delay}"
    cluster.create_topic(topic, queues=1)
    bodies = [b"%d" % number for number in range(len(keys))]
    rows = rows_of(body=bodies, keys=pa.array(keys), delayTimeLevel=[delay] * 5)
    write(cluster, rows, topic=topic)

    stored_rows = read(cluster, "SCHEDULE_TOPIC_XXXX" if delay else topic)
    found = [
        row for row in stored_rows if not delay or dict(row["properties"])["REAL_TOPIC"] == topic
    ]
    assert [row["keys"] for row in sorted(found, key=lambda row: row["body"])] == stored


def test_large_texts_are_encoded_and_checked_as_usual_ones() -> None:
    # As Spark gives them by spark.sql.execution.arrow.useLargeVarTypes.
    text, large = pa.string(), pa.large_string()
    kinds = {"tags": (text, large), "keys": (text, large)}
    kinds["properties"] = pa.map_(text, text), pa.map_(large, large)
    good = {"tags": ["t"], "keys": ["a b"], "properties": [[("c", "d")]]}
    usual, unusual = (
        rows_of(
            body=pa.array([b"x"], body),
            **{name: pa.array(values, kinds[name][at]) for name, values in good.items()},
        )
        for at, body in enumerate((pa.binary(), pa.large_binary()))
    )
    ids = pa.array(["id"])

    assert encode_rows(usual, ids).entries == encode_rows(unusual, ids).entries
    for name, value in (("tags", "a\x02b"), ("properties", [("c", "a\x02b")])):
        rows = rows_of(body=[b"x"], **{name: pa.array([value], kinds[name][1])})
        with pytest.raises(UsageError, match="which RocketMQ puts between properties"):
            encode_rows(rows, ids)


@pytest.mark.parametrize("body", [b"x", bytes(600_000)], ids=["in a batch", "alone"])
def test_row_with_several_tags_is_refused_whatever_its_size(body: bytes) -> None:
    rows = rows_of(body=[body] * 3, tags=["a", None, "a || b"])

    with pytest.raises(UsageError, match=r"the tags of row 12 are 'a \|\| b', but a message has"):
        encode_rows(rows, pa.array(["id"] * 3), first_row=10)


@pytest.mark.parametrize(
    ("types", "words"),
    [
        ({"value": "binary"}, "takes no column 'value'; did you mean body?"),
        ({"headers": "array<binary>"}, "did you mean properties?"),
        ({"boddy": "binary"}, "did you mean body?"),
        ({"tags": "string"}, "column 'body' is missing; the rows have tags"),
        ({"body": "int"}, "column 'body' is int, but binary or string is needed"),
        ({"body": "binary", "queueId": "int"}, "give both"),
    ],
)
def test_wrong_columns_are_one_clear_error(types: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_columns(types, topic="out")

    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"topik": "T"}, "did you mean topic?"),
        ({"kafka.bootstrap.servers": "a:1"}, "it is 'nameServer' here"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, "clients cannot send to it"),
        ({"maxInFlight": "0"}, "it must be from 1 to 256"),
        ({"secretKey": "hush"}, "both options 'accessKey' and 'secretKey'"),
    ],
)
def test_wrong_options_are_one_clear_error(change: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_sink_options({**GOOD, **change}, scope="batch")

    assert words in str(caught.value)
    assert "hush" not in str(caught.value)


def test_the_tables_are_complete() -> None:
    assert all(option.help for option in SINK_OPTIONS)
    assert all(column.help for column in SINK_COLUMNS)
    with pytest.raises(ConfigError):
        check_columns({"body": "binary"}, topic=None)


def test_the_reference_describes_every_option_and_column() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "spark-sink.md"
    rows = page.read_text().splitlines()

    for option in SINK_OPTIONS:
        default = "–" if option.default is None else f"`{option.default}`"
        assert f"| `{option.name}` | {default} | {option.help} |" in rows
    for column in SINK_COLUMNS:
        types = " or ".join(f"`{each}`" for each in column.types)
        assert f"| `{column.name}` | {types} | {column.help} |" in rows

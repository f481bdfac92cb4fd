"""Conditions over properties: Apache's brokers choose the messages that ours chooses."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from sparrowmq import (
    Admin,
    Message,
    MessageQueue,
    MessageSelector,
    PollConsumer,
    Producer,
    PushConsumer,
)
from sparrowmq.protocol import fastjson
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.framing import FrameDecoder, encode_frame
from waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

TOPIC = "sql92"
QUEUE = MessageQueue(TOPIC, "broker-a", 0)
GROUP = "GID_sql92"
MESSAGE_COUNT = 96
EXPRESSION_COUNT = 400
TEXTS = (
    *("0", "5", "-5", "+4", "007", "12", "2147483647", "3000000000", "9223372036854775807"),
    *("3.5", "5.0", "-0.0", ".5", "5.", "1e3", "1E-2", "0x1.8p1", "NaN", "Infinity", "5L", "5d"),
    *("x", "it's", "true", "TRUE", "false", " 7", "7 ", "1_0", "٣", "null"),
)
NAMES = ("a", "b", "c", "d_1", "$e", "A", "missing")
NUMBERS = (
    *("0", "5", "12", "5L", "12l", "2147483647", "2147483648", "3000000000"),
    *("9223372036854775807", "3.5", "5.0", ".5", "5.", "1e3", "1E-2", "0.25", "-5", "-3.5", "+4"),
    *("- 2147483648", "-(5)", "- -5"),
)
STRINGS = ("'x'", "'5'", "'it''s'", "''", "'true'", "' 7'", "'TRUE'")
# What no generator thinks of, and what must be refused.
BY_HAND = (
    *("a", "NOT a", "TRUE", "FALSE", "NULL", "not true", "a = 5 = TRUE", "TRUE = a", "(a = 5) = b"),
    *("a = missing", "missing = absent", "missing <> absent", "a <> missing", "NOT (missing = 5)"),
    *("5 < a", "5 = a", "'x' = a", "3.5 >= a", "a > b", "a = b", "-a > 3", "+a > 3", "5 = 5.0"),
    *("5 = 'x'", "'5' = 5", "5L = 5", "TRUE = FALSE", "a IS NULL IS NOT NULL", "a > (b)"),
    *("/* c */ a = 5", "a = 5 -- c\n", "-- c\na = 5", "a=5and b='x'", "a = 5\tOR\nb = 'x'"),
    *("", " ", "a >", "a > 'x'", "a > TRUE", "a = NULL", "5", "'x'", "a AND 5", "TRUE = 1"),
    *("a BETWEEN 5 AND 3", "a BETWEEN 'a' AND 'b'", "a BETWEEN 5 AND -3", "a BETWEEN b AND c"),
    *("a IN ()", "a IN (5)", "'x' IN ('x')", "(a) IN ('x')", "a NOT IN ('x', 'x')", "(a = 1"),
    *("a > 0.0", "a > 1e400", "a = 9223372036854775808", "a # 3", "a = 'x", "a IS 5", "IN = 5"),
    *("a ! = 5", "a != 5", "a == 5", "* ", "a > 1 > 2", "NOT 5", "- TRUE = a"),
    *("a IN ('1', '2', '3', '4', '5', 'x')", "TAGS = 'even'", "KEYS IS NOT NULL", "a > -b"),
)

# Apache's brokers stop reading where a condition could end, and ignore what follows.
ENDS_EARLY = ("a > 1 b", "a LIKE 'x'", "a > 007")


def any_condition(rng: random.Random, depth: int = 0) -> str:
    kind = rng.random()
    if depth < 3 and kind < 0.5:
        left, right = any_condition(rng, depth + 1), any_condition(rng, depth + 1)
        joined = f"{left} {rng.choice(('AND', 'OR', 'and', '=', '<>'))} {right}"
        return joined if rng.random() < 0.3 else f"({joined})"
    if depth < 3 and kind < 0.6:
        return f"NOT ({any_condition(rng, depth + 1)})"
    name, other = rng.choice(NAMES), rng.choice(NAMES)
    no = rng.choice(("", "NOT "))
    number = rng.choice(NUMBERS)
    return rng.choice(
        (
            f"{name} {rng.choice(('>', '>=', '<', '<=', '=', '<>'))} {number}",
            f"{number} {rng.choice(('>', '>=', '<', '<=', '=', '<>'))} {name}",
            f"{name} {rng.choice(('>', '<=', '=', '<>'))} {other}",
            f"{name} {rng.choice(('=', '<>'))} {rng.choice(STRINGS)}",
            f"{name} {rng.choice(('=', '<>'))} {rng.choice(('TRUE', 'FALSE'))}",
            f"{name} {no}BETWEEN {number} AND {rng.choice(NUMBERS)}",
            f"{name} {no}IN ({', '.join(rng.choices(STRINGS, k=rng.randint(1, 6)))})",
            f"{name} IS {no}NULL",
        )
    )


@pytest.fixture(scope="module")
def apache(java: Any, rig: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    store = tmp_path_factory.mktemp("sql92") / "store"
    cluster = rig.ApacheCluster(java, store, enablePropertyFilter="true")
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.kill()


@pytest.fixture
def either(request: pytest.FixtureRequest, apache: Any, our_cluster: Any) -> Any:
    return {"apache": apache, "ours": our_cluster}[request.param]


def fill(name_server: str) -> list[dict[str, str]]:
    """Send messages with many kinds of properties; returns what each has, by offset."""
    rng = random.Random(92)
    rows: list[dict[str, str]] = []
    with Admin(name_server=name_server) as admin:
        admin.create_topic(TOPIC, queues=1)
    with Producer("GID_feed", name_server=name_server) as producer:
        for number in range(MESSAGE_COUNT):
            names = rng.sample(NAMES[:-1], rng.randint(0, 6))
            properties = {name: rng.choice(TEXTS) for name in names}
            tags = "even" if number % 2 == 0 else None
            message = Message(TOPIC, b"%d" % number, tags=tags, properties=properties)
            assert number == producer.send(message, queue=QUEUE).queue_offset
            rows.append(properties)
    return rows


class Asking:
    """One connection that asks whether subscriptions can be served."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=30)
        self._decoder = FrameDecoder()

    def check(self, condition: str) -> tuple[int, str | None]:
        data = {"topic": TOPIC, "subString": condition, "expressionType": "SQL92", "subVersion": 1}
        body = fastjson.dumps({"clientId": "c", "group": GROUP, "subscriptionData": data})
        request = RemotingCommand(code=RequestCode.CHECK_CLIENT_CONFIG, body=body)
        self._socket.sendall(encode_frame(request))
        while True:
            for reply in self._decoder.receive_data(self._socket.recv(1 << 16)):
                return reply.code, reply.remark

    def close(self) -> None:
        self._socket.close()


def chosen(consumer: PollConsumer, condition: str) -> list[int]:
    """Return the offsets of all messages that the broker gives for a condition."""
    offsets: list[int] = []
    at = 0
    while at < MESSAGE_COUNT:
        selector = MessageSelector.by_sql(condition)
        result = consumer.pull(QUEUE, at, MESSAGE_COUNT, expression=selector)
        assert result.next_offset > at
        offsets += [message.queue_offset for message in result.messages]
        at = result.next_offset
    return offsets


def test_same_conditions_choose_the_same_messages(apache: Any, our_cluster: Any) -> None:
    rng = random.Random(2192)
    generated = [any_condition(rng) for _ in range(EXPRESSION_COUNT)]
    assert fill(apache.name_server) == fill(our_cluster.name_server)
    wrong: list[tuple[object, ...]] = []
    hits = 0
    theirs, ours = Asking(apache.broker), Asking(our_cluster.broker)
    with (
        PollConsumer(GROUP, name_server=apache.name_server) as of_apache,
        PollConsumer(GROUP, name_server=our_cluster.name_server) as of_ours,
    ):
        for condition in (*BY_HAND, *generated):
            their_code, their_remark = theirs.check(condition)
            our_code, _ = ours.check(condition)
            if their_code != our_code:
                wrong.append((condition, their_code, our_code, their_remark))
            elif our_code == 0:
                expected, found = chosen(of_apache, condition), chosen(of_ours, condition)
                hits += len(found)
                if expected != found:
                    wrong.append((condition, expected, found))
    early = [(theirs.check(condition)[0], ours.check(condition)[0]) for condition in ENDS_EARLY]
    theirs.close()
    ours.close()

    assert wrong == []
    assert [(0, 23)] * len(ENDS_EARLY) == early
    assert hits > MESSAGE_COUNT


@pytest.mark.parametrize("either", ["apache", "ours"], indirect=True)
def test_members_of_a_group_get_what_fulfils_the_condition(either: Any) -> None:
    topic = "sql92push"
    received: list[int] = []
    with Admin(name_server=either.name_server) as admin:
        admin.create_topic(topic, queues=4)
    with Producer("GID_feed", name_server=either.name_server) as producer:
        consumer = PushConsumer(
            "GID_sql92_push",
            listener=lambda messages, context: received.extend(int(m.body) for m in messages),
            name_server=either.name_server,
        )
        consumer.subscribe(topic, MessageSelector.by_sql("n > 10 AND kind IN ('a', 'b')"))
        consumer.start()
        try:
            wait_until("assignment", lambda: len(consumer.assignment()) == 4, timeout_s=60)
            for n in range(40):
                properties = {"n": str(n), "kind": "abcd"[n % 4]}
                producer.send(Message(topic, b"%d" % n, properties=properties))
            expected = [n for n in range(11, 40) if n % 4 < 2]
            wait_until("messages", lambda: len(received) >= len(expected), timeout_s=60)
        finally:
            consumer.close()

    assert sorted(received) == expected


def test_java_consumer_subscribes_by_condition_on_our_broker(
    our_cluster: Any, java_push_consumer: Callable[..., Any]
) -> None:
    topic = our_cluster.create_topic("sql92java", queues=4)
    consumer = java_push_consumer(our_cluster, topic=topic, group="GID_sql92_java", sql="n > 10")
    with Producer("GID_feed", name_server=our_cluster.name_server) as producer:
        for n in range(20):
            producer.send(Message(topic, b"%d" % n, properties={"n": str(n)}))

    consumer.wait_for("messages", lambda: len(consumer.named("message")) >= 9)

    assert sorted(range(11, 20)) == sorted(int(e["body"]) for e in consumer.named("message"))

"""Apache's transactional producer on our broker, and half messages that move to another broker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sparrowmq import (
    Admin,
    Message,
    MessageExt,
    MessageQueue,
    TransactionProducer,
    TransactionState,
)
from waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

COMMIT, ROLLBACK, UNKNOWN = "COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"
# On a busy machine many rounds of questions pass before a producer or consumer is there.
TIMEOUT_MS, INTERVAL_MS, QUESTIONS_MAX = 500, 1_500, 1_000
OPTIONS = (
    *("--flush", "sync", "--transaction-timeout-ms", str(TIMEOUT_MS)),
    *("--transaction-check-interval-ms", str(INTERVAL_MS)),
    *("--transaction-check-max", str(QUESTIONS_MAX)),
)


@pytest.fixture
def clusters(java: Any, rig: ModuleType, tmp_path: Path) -> Iterator[Any]:
    """Our cluster and Apache's on one data directory, and Apache's that asks for no outcome."""
    data = tmp_path / "data"
    settings = {
        "flushDiskType": "SYNC_FLUSH",
        "transactionTimeOut": TIMEOUT_MS,
        "transactionCheckInterval": INTERVAL_MS,
        "transactionCheckMax": QUESTIONS_MAX,
    }
    found = {
        "ours": rig.OurCluster(java, data, options=OPTIONS),
        "apache": rig.ApacheCluster(java, data / "store", **settings),
    }
    yield found
    for cluster in found.values():
        cluster.kill()


@pytest.fixture
def transact(start_peer: Callable[..., Any]) -> Callable[..., Any]:
    """Start Apache's transactional producer; it has sent everything when this returns."""
    return partial(start_peer, "transact")


def bodies(events: list[dict[str, Any]]) -> Counter[str]:
    return Counter(event["body"] for event in events)


def count_of(cluster: Any, topic: str) -> int:
    with Admin(name_server=cluster.name_server) as admin:
        queues = (MessageQueue(topic, "broker-a", number) for number in range(4))
        return sum(admin.max_offset(queue) for queue in queues)


def test_outcomes_of_java_s_producer_count_and_unknown_ones_are_asked_for(
    clusters: Any, transact: Callable[..., Any], java_push_consumer: Callable[..., Any]
) -> None:
    cluster = clusters["ours"]
    cluster.start()
    topic = cluster.create_topic("transact", queues=4)
    consumer = java_push_consumer(cluster, topic=topic, group="GID_transact")

    outcomes = ",".join((COMMIT, ROLLBACK, UNKNOWN))
    producer = transact(cluster, topic=topic, group="GID_tx", count=3, outcomes=outcomes)
    consumer.wait_for("6 messages", lambda: len(consumer.named("message")) >= 6)
    wait_until("its rounds", lambda: len(bodies(producer.named("check"))) == 3)

    expected = Counter(f"{outcome}-{n}" for outcome in (COMMIT, UNKNOWN) for n in range(3))
    assert bodies(consumer.named("message")) == expected
    assert {f"{UNKNOWN}-{n}" for n in range(3)} == set(bodies(producer.named("check")))
    ids = {event["body"]: event["msgId"] for event in producer.named("sent")}
    for event in producer.named("check"):
        assert (topic, "A", ids[event["body"]]) == (
            event["topic"], event["tags"], event["transactionId"]
        )  # fmt: skip
    for event in consumer.named("message"):
        assert ids[event["body"]] == event["msgId"] == event["transactionId"]
    assert producer.stop() == 0
    assert consumer.stop() == 0


@pytest.mark.parametrize(
    ("first", "second"), [("ours", "ours"), ("ours", "apache"), ("apache", "ours")]
)
def test_what_is_half_when_a_broker_is_killed_is_asked_for_by_the_next(
    java: Any, clusters: Any, transact: Callable[..., Any], first: str, second: str
) -> None:
    old, new = clusters[first], clusters[second]
    old.start()
    topic = old.create_topic("handed-over", queues=4)
    outcomes = ",".join((COMMIT, ROLLBACK, UNKNOWN))
    producer = transact(
        old, topic=topic, group="GID_tx", count=3, outcomes=outcomes, checked=UNKNOWN
    )
    producer.wait_for("rounds", lambda: len(producer.named("check")) >= 6)
    wait_until("three commits", lambda: count_of(old, topic) == 3)
    producer.kill()
    old.kill()

    new.start()
    # 5.x knows only the brokers of topics to which it has sent.
    heir = transact(new, topic=topic, group="GID_tx", outcomes=ROLLBACK, checked=COMMIT)
    unknown = {f"{UNKNOWN}-{n}" for n in range(3)}
    heir.wait_for("three questions", lambda: unknown <= bodies(heir.named("check")).keys())
    wait_until("three more commits", lambda: count_of(new, topic) >= 6)

    # What was ended before is not asked for. Brokers of 5.x note ends late, and forget some.
    if java.version.startswith("4"):
        assert unknown == bodies(heir.named("check")).keys()


@pytest.mark.parametrize("kind", ["apache", "ours"])
def test_our_producer_s_outcomes_count_and_its_unknown_ones_are_asked_for(
    java: Any, clusters: Any, java_push_consumer: Callable[..., Any], kind: str
) -> None:
    cluster = clusters[kind]
    cluster.start()
    topic = cluster.create_topic("of-python", queues=4)
    consumer = java_push_consumer(cluster, topic=topic, group="GID_of_python")
    ends: dict[str, TransactionState] = {}
    asked: Counter[bytes] = Counter()

    def check(message: MessageExt) -> TransactionState:
        asked[message.body] += 1
        assert (message.topic, message.tags) == (topic, "A")
        return ends.get(message.msg_id, TransactionState.UNKNOWN)

    def make() -> TransactionProducer:
        return TransactionProducer("GID_tx", name_server=cluster.name_server, check=check)

    with make() as producer:
        halves = {
            name: producer.send_half(Message(topic, name.encode(), tags="A"))
            for name in ("committed", "rolled back", "kept", "dropped", "left")
        }
        assert producer.commit(halves["committed"]) is TransactionState.COMMIT
        assert producer.rollback(halves["rolled back"]) is TransactionState.ROLLBACK
        unknown = {b"kept", b"dropped", b"left"}
        wait_until("three questions", lambda: unknown <= asked.keys(), timeout_s=60)
        ends[halves["kept"].msg_id] = TransactionState.COMMIT
        ends[halves["dropped"].msg_id] = TransactionState.ROLLBACK
        consumer.wait_for("two messages", lambda: len(consumer.named("message")) >= 2)
    ends[halves["left"].msg_id] = TransactionState.COMMIT
    with make():
        consumer.wait_for("the third", lambda: "left" in bodies(consumer.named("message")))

    # Brokers of 5.x forget some ends, here the rollback, and ask for what has ended.
    if kind == "ours" or java.version.startswith("4"):
        assert unknown == asked.keys()
    assert bodies(consumer.named("message")).keys() == {"committed", "kept", "left"}
    for event in consumer.named("message"):
        assert halves[event["body"]].msg_id == event["msgId"] == event["transactionId"]
    assert consumer.stop() == 0

"""One group with a Java and a Python member: each queue has exactly one owner, on both brokers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sparrowmq import Message, MessageExt, Producer, PushConsumer
from sparrowmq.model import ConsumeContext, ConsumeFromWhere, ConsumeStatus

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

EVERY_QUEUE = {f"broker-a:{queue_id}" for queue_id in range(8)}


class PythonMember:
    """Our push consumer and what it got so far."""

    def __init__(self, cluster: Any, group: str, topic: str, strategy: str) -> None:
        self.bodies: list[str] = []
        self._lock = threading.Lock()
        self._topic = topic
        self._consumer = PushConsumer(
            group,
            name_server=cluster.name_server,
            listener=self._take,
            strategy=strategy,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        )
        self._consumer.subscribe(topic, "*")
        self._consumer.start()

    def _take(self, messages: list[MessageExt], context: ConsumeContext) -> ConsumeStatus | None:
        with self._lock:
            self.bodies += [message.body.decode() for message in messages]
        return None

    @property
    def queues(self) -> set[str]:
        return {
            f"{queue.broker_name}:{queue.queue_id}"
            for queue in self._consumer.assignment()
            if queue.topic == self._topic
        }

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture
def python_member() -> Iterator[Callable[..., PythonMember]]:
    members: list[PythonMember] = []

    def start(cluster: Any, *, group: str, topic: str, strategy: str) -> PythonMember:
        members.append(PythonMember(cluster, group, topic, strategy))
        return members[-1]

    yield start
    for member in members:
        member.close()


def java_queues(member: Any) -> set[str]:
    told = member.named("assignment")
    return set(told[-1]["queues"]) if told else set()


def is_shared(java: Any, python: PythonMember, *, each: int | None) -> bool:
    theirs, ours = java_queues(java), python.queues
    if theirs | ours != EVERY_QUEUE or theirs & ours:
        return False
    return bool(theirs and ours) and (each is None or len(theirs) == len(ours) == each)


@pytest.mark.parametrize("strategy", ["AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH"])
@pytest.mark.parametrize("leaver", ["java", "python"])
def test_every_queue_has_one_owner_before_and_after_a_member_leaves(
    cluster: Any,
    strategy: str,
    leaver: str,
    java_push_consumer: Callable[..., Any],
    python_member: Callable[..., PythonMember],
) -> None:
    name = f"mixed-{strategy}-{leaver}"
    topic = cluster.create_topic(name, queues=8)
    java = java_push_consumer(cluster, topic=topic, group=f"GID-{name}", strategy=strategy)
    java.wait_for("all queues at the only member", lambda: java_queues(java) == EVERY_QUEUE)
    python = python_member(cluster, group=f"GID-{name}", topic=topic, strategy=strategy)

    each = None if strategy == "CONSISTENT_HASH" else 4
    java.wait_for("8 queues shared", lambda: is_shared(java, python, each=each))
    with Producer("GID_mixed_producer", name_server=cluster.name_server) as producer:
        for number in range(160):
            producer.send(Message(topic, f"m-{number}".encode()))
    java.wait_for("160 messages", lambda: len(java.named("message")) + len(python.bodies) >= 160)

    got = sorted([event["body"] for event in java.named("message")] + python.bodies)
    assert sorted(f"m-{number}" for number in range(160)) == got
    assert java.named("message")
    assert python.bodies
    if leaver == "python":
        python.close()
        java.wait_for("all queues at Java's", lambda: java_queues(java) == EVERY_QUEUE)
        assert set() == python.queues
    else:
        java.stop()
        wait_until("all queues at ours", lambda: python.queues == EVERY_QUEUE)


def wait_until(what: str, is_so: Callable[[], bool], *, timeout_s: float = 60.0) -> None:
    pause = threading.Event()
    for _ in range(int(timeout_s / 0.05)):
        if is_so():
            return
        pause.wait(0.05)
    pytest.fail(f"not {what} within {timeout_s} s")

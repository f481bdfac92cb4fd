"""One group with Java and Python members: nothing is lost, and failures come again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

import waiting
from sparrowmq import (
    ConsumeContext,
    ConsumeStatus,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
)

wait_until = partial(waiting.wait_until, timeout_s=60)

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

QUEUE_COUNT = 8


class PythonMember:
    """Our push consumer and what it got so far."""

    def __init__(self, cluster: Any, *, group: str, topic: str, strategy: Any) -> None:
        # Body and re-consume times of each delivery.
        self.deliveries: list[tuple[str, int]] = []
        self._lock = threading.Lock()
        self._topic = topic
        self._consumer = PushConsumer(
            group,
            name_server=cluster.name_server,
            listener=self._take,
            strategy=strategy,
            start="first",
        )
        self._consumer.subscribe(topic, "*")
        self._consumer.start()

    def _take(self, messages: list[MessageExt], context: ConsumeContext) -> ConsumeStatus:
        with self._lock:
            self.deliveries += [(m.body.decode(), m.reconsume_times) for m in messages]
        context.delay_level = 1
        fails = any(m.body.startswith(b"bad") and m.reconsume_times < 1 for m in messages)
        return ConsumeStatus.RECONSUME_LATER if fails else ConsumeStatus.CONSUME_SUCCESS

    @property
    def client_id(self) -> str:
        return str(self._consumer.client_id)

    @property
    def queue_ids(self) -> list[int]:
        queues = self._consumer.assignment()
        return sorted(queue.queue_id for queue in queues if queue.topic == self._topic)

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture
def python_member() -> Iterator[Callable[..., PythonMember]]:
    members: list[PythonMember] = []

    def start(cluster: Any, **options: str) -> PythonMember:
        members.append(PythonMember(cluster, **options))
        return members[-1]

    yield start
    for member in members:
        member.close()


def java_deliveries(member: Any) -> list[tuple[str, int]]:
    return [(event["body"], event["reconsumeTimes"]) for event in member.named("message")]


def produce(cluster: Any, topic: str, bodies: list[str], *, pause_s: float = 0.0) -> None:
    pause = threading.Event()
    with Producer("GID_mixed_producer", name_server=cluster.name_server) as producer:
        for body in bodies:
            producer.send(Message(topic, body.encode()))
            pause.wait(pause_s)


def test_nothing_is_lost_while_members_join_and_die_under_load(
    cluster: Any,
    java_push_consumer: Callable[..., Any],
    python_member: Callable[..., PythonMember],
) -> None:
    topic = cluster.create_topic("mixed-load", queues=QUEUE_COUNT)
    options = {"topic": topic, "group": "GID-mixed-load", "strategy": "AVG"}
    bodies = [f"m-{number}" for number in range(1500)]
    java = java_push_consumer(cluster, **options)
    sender = threading.Thread(
        target=produce, args=(cluster, topic, bodies), kwargs={"pause_s": 0.003}
    )
    sender.start()
    java.wait_for("first messages", lambda: len(java_deliveries(java)) > 100)
    first = python_member(cluster, **options)
    wait_until("a share for the first of ours", lambda: len(first.queue_ids) == 4)
    second = python_member(cluster, **options)
    wait_until("a share for the second of ours", lambda: len(second.queue_ids) >= 2)
    java.kill()
    wait_until(
        "all queues at ours",
        lambda: sorted(first.queue_ids + second.queue_ids) == list(range(QUEUE_COUNT)),
    )
    first.close()
    sender.join()

    def delivered() -> set[str]:
        told = java_deliveries(java) + first.deliveries + second.deliveries
        return {body for body, _ in told}

    wait_until("every message", lambda: delivered() == set(bodies))
    assert second.queue_ids == list(range(QUEUE_COUNT))


def test_failed_messages_come_again_to_whoever_owns_the_retry_queue(
    cluster: Any,
    java_push_consumer: Callable[..., Any],
    python_member: Callable[..., PythonMember],
) -> None:
    topic = cluster.create_topic("mixed-retry", queues=QUEUE_COUNT)
    # The group's first heartbeat makes this topic; Java's 5.x looks for it anew after 40 s only.
    cluster.create_retry_topic("GID-mixed-retry")
    options = {"topic": topic, "group": "GID-mixed-retry", "strategy": "AVG"}
    java = java_push_consumer(cluster, failPrefix="bad", failTimes=1, **options)
    python = python_member(cluster, **options)
    wait_until("a share for ours", lambda: len(python.queue_ids) == 4)
    java.wait_for("a share for Java's", lambda: len(java.queue_ids()) == 4)

    bodies = [f"bad-{number}" for number in range(16)]
    produce(cluster, topic, bodies)
    wait_until("32 deliveries", lambda: len(java_deliveries(java)) + len(python.deliveries) >= 32)

    assert sorted((body, times) for body in bodies for times in (0, 1)) == sorted(
        java_deliveries(java) + python.deliveries
    )

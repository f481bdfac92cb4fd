"""One group in order with Java and Python members: no queue's order is ever broken."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

import waiting
from sparrowmq import (
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
)
from steady_traffic import breaks_in

wait_until = partial(waiting.wait_until, timeout_s=60)

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

QUEUE_COUNT = 4
# Apache's broker gives a dead member's locks away after 60 s.
LOCK_TIMEOUT_S = 120.0


class PythonMember:
    """Our consumer in order: when it was given which offset of which queue, how often."""

    def __init__(self, cluster: Any, *, group: str, topic: str) -> None:
        # Wall-clock milliseconds, queue, offset, times consumed before.
        self.deliveries: list[tuple[float, int, int, int]] = []
        self._lock = threading.Lock()
        self._consumer = PushConsumer(
            group,
            name_server=cluster.name_server,
            listener=self._take,
            orderly=True,
            start="first",
        )
        self._consumer.subscribe(topic)
        self._consumer.start()

    def _take(
        self, messages: list[MessageExt], context: ConsumeOrderlyContext
    ) -> ConsumeOrderlyStatus:
        at_ms = time.time() * 1000
        with self._lock:
            self.deliveries += [
                (at_ms, m.queue_id, m.queue_offset, m.reconsume_times) for m in messages
            ]
        context.suspend_ms = 50
        if any(m.body.startswith(b"bad") and m.reconsume_times < 2 for m in messages):
            return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
        return ConsumeOrderlyStatus.SUCCESS

    @property
    def queue_count(self) -> int:
        return len(self._consumer.assignment())

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


class Load:
    """Sends to every queue in turn until it is told to stop."""

    def __init__(self, cluster: Any, topic: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.count = 0
        self._thread.start()

    def _run(self) -> None:
        with Producer("GID_load", name_server=self._cluster.name_server) as producer:
            queues = producer.fetch_publish_queues(self._topic)
            while not self._stopping.wait(0.005):
                for queue in queues:
                    producer.send(Message(self._topic, b"%d" % self.count), queue=queue)
                self.count += 1

    def stop(self) -> int:
        """Return how many messages each queue has."""
        self._stopping.set()
        self._thread.join()
        return self.count


def java_deliveries(member: Any) -> list[tuple[float, int, int, int]]:
    return [
        (event["at"], event["queueId"], event["offset"], event["reconsumeTimes"])
        for event in member.named("message")
    ]


def offsets_by_queue(*told: list[tuple[float, int, int, int]]) -> dict[int, list[int]]:
    """Return what each queue's owners were given, in time's order."""
    found: dict[int, list[int]] = defaultdict(list)
    for _, queue_id, offset, _ in sorted(delivery for member in told for delivery in member):
        found[queue_id].append(offset)
    return dict(found)


def has_all(count: int, *told: list[tuple[float, int, int, int]]) -> bool:
    found = offsets_by_queue(*told)
    return [set(range(count))] * QUEUE_COUNT == [set(o) for _, o in sorted(found.items())]


def test_order_survives_joins_and_leaves_of_both(
    cluster: Any,
    java_push_consumer: Callable[..., Any],
    python_member: Callable[..., PythonMember],
) -> None:
    topic = cluster.create_topic("orderly-joins", queues=QUEUE_COUNT)
    options = {"topic": topic, "group": "GID-orderly-joins"}
    java = java_push_consumer(cluster, orderly=True, **options)
    load = Load(cluster, topic)
    java.wait_for("first messages", lambda: len(java.named("message")) > 50, timeout_s=120)
    first = python_member(cluster, **options)
    wait_until("messages at ours", lambda: len(first.deliveries) > 50, timeout_s=120)
    second = python_member(cluster, **options)
    wait_until("messages at both of ours", lambda: len(second.deliveries) > 50, timeout_s=120)
    first.close()
    count_before = len(second.deliveries)
    wait_until("more at ours", lambda: len(second.deliveries) > count_before + 50)
    assert java.stop() == 0
    wait_until("all queues at ours", lambda: second.queue_count == QUEUE_COUNT)
    count = load.stop()

    told = (java_deliveries(java), first.deliveries, second.deliveries)
    wait_until("every message", lambda: has_all(count, *told), timeout_s=LOCK_TIMEOUT_S)
    assert {
        queue_id: breaks_in(offsets)
        for queue_id, offsets in offsets_by_queue(*told).items()
        if breaks_in(offsets)
    } == {}


def test_order_survives_the_kill_of_the_java_member(
    cluster: Any,
    java_push_consumer: Callable[..., Any],
    python_member: Callable[..., PythonMember],
) -> None:
    topic = cluster.create_topic("orderly-kill", queues=QUEUE_COUNT)
    options = {"topic": topic, "group": "GID-orderly-kill"}
    java = java_push_consumer(cluster, orderly=True, **options)
    python = python_member(cluster, **options)
    load = Load(cluster, topic)
    java.wait_for("first messages", lambda: len(java.named("message")) > 50, timeout_s=120)
    wait_until("messages at ours", lambda: len(python.deliveries) > 50, timeout_s=120)
    java.kill()
    count = load.stop()

    told = (java_deliveries(java), python.deliveries)
    wait_until("every message", lambda: has_all(count, *told), timeout_s=LOCK_TIMEOUT_S)
    assert [breaks_in(o) for o in offsets_by_queue(*told).values()] == [[]] * QUEUE_COUNT


def test_a_message_that_fails_holds_its_queue_at_both(
    cluster: Any,
    java_push_consumer: Callable[..., Any],
    python_member: Callable[..., PythonMember],
) -> None:
    topic = cluster.create_topic("orderly-fail", queues=QUEUE_COUNT)
    options = {"topic": topic, "group": "GID-orderly-fail"}
    java = java_push_consumer(cluster, orderly=True, failPrefix="bad", failTimes=2, **options)
    python = python_member(cluster, **options)
    java.wait_for(
        "a share for Java's",
        lambda: java.named("assignment") and len(java.named("assignment")[-1]["queues"]) == 2,
        timeout_s=120,
    )
    with Producer("GID_load", name_server=cluster.name_server) as producer:
        for queue in producer.fetch_publish_queues(topic):
            for body in (b"good", b"bad", b"good"):
                producer.send(Message(topic, body), queue=queue)
    wait_until(
        "all deliveries",
        lambda: len(java_deliveries(java)) + len(python.deliveries) >= 5 * QUEUE_COUNT,
        timeout_s=LOCK_TIMEOUT_S,
    )

    by_queue: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for _, queue_id, offset, times in sorted(java_deliveries(java) + python.deliveries):
        by_queue[queue_id].append((offset, times))
    expected = [(0, 0), (1, 0), (1, 1), (1, 2), (2, 0)]
    assert [by_queue[n] for n in range(QUEUE_COUNT)] == [expected] * QUEUE_COUNT
    assert java_deliveries(java)
    assert python.deliveries

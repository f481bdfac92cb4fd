"""Queues change hands while members come and go under load: on no broker comes anything twice."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

from sparrowmq import ConsumeContext, Message, MessageExt, Producer, PushConsumer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

QUEUE_COUNT = 8
ROUNDS = 10


class Seen:
    """What all listeners got."""

    def __init__(self) -> None:
        self.bodies: Counter[bytes] = Counter()
        self._changed = threading.Condition()

    def __call__(self, messages: list[MessageExt], _: ConsumeContext) -> None:
        with self._changed:
            self.bodies.update(message.body for message in messages)
            self._changed.notify_all()

    def has(self, count: int) -> bool:
        return len(self.bodies) >= count

    def wait_for(self, what: str, is_so: Callable[[], bool], *, timeout_s: float = 60.0) -> None:
        with self._changed:
            assert self._changed.wait_for(is_so, timeout_s), f"not within {timeout_s} s: {what}"


@pytest.mark.usefixtures("java")
def test_joins_and_leaves_under_load_redeliver_nothing(cluster: Any) -> None:
    topic, group = "THandover", "GID_handover"
    cluster.create_topic(topic, queues=QUEUE_COUNT)
    seen, stop = Seen(), threading.Event()
    sent: list[bytes] = []

    def produce() -> None:
        with Producer("GID_handover_p", name_server=cluster.name_server) as producer:
            while not stop.wait(0.002):
                sent.append(b"%d" % len(sent))
                producer.send(Message(topic, sent[-1]))

    def make() -> PushConsumer:
        consumer = PushConsumer(
            group,
            name_server=cluster.name_server,
            listener=seen,
            start="first",
        )
        consumer.subscribe(topic)
        consumer.start()
        return consumer

    def is_shared(members: list[PushConsumer]) -> bool:
        counts = [len(member.assignment()) for member in members]
        return sum(counts) == QUEUE_COUNT and min(counts) > 0

    load = threading.Thread(target=produce)
    with ExitStack() as stack:
        stack.callback(load.join)
        stack.callback(stop.set)
        staying = [stack.enter_context(make()) for _ in range(2)]
        load.start()
        seen.wait_for("two share", lambda: is_shared(staying))
        for _ in range(ROUNDS):
            with make() as third:
                seen.wait_for("three share", partial(is_shared, [*staying, third]))
                goal = len(sent) + 50
                seen.wait_for("some work", partial(seen.has, goal))
            seen.wait_for("two share", lambda: is_shared(staying))
        stop.set()
        load.join()
        seen.wait_for("everything", lambda: len(seen.bodies) == len(sent))

    assert set(seen.bodies.values()) == {1}

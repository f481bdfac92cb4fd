"""Listeners that never return: told once, when there is nobody left to consume."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from sparrowmq import ConsumeFromWhere, Message, MessageExt, MessageQueue, Producer, PushConsumer
from sparrowmq.client.listener_calls import ListenerCalls, ListenersStuck, Pace
from sparrowmq.client.running_info import describe
from sparrowmq.membership.actions import Deliver
from sparrowmq.testing.embedded import EmbeddedCluster
from waiting import wait_until

QUEUE = MessageQueue("T", "b", 3)


def delivery(number: int) -> Deliver:
    message = MessageExt(
        topic="T",
        body=b"x",
        properties={},
        broker_name="b",
        queue_id=3,
        queue_offset=number,
        commit_log_position=number,
    )
    return Deliver(QUEUE, 1, number, [message])


@pytest.fixture
def calls() -> ListenerCalls:
    """Two calls, begun at 0 and at 500."""
    made = ListenerCalls()
    made.begin(delivery(1), 0)
    made.begin(delivery(2), 500)
    return made


def find(calls: ListenerCalls, now_ms: int, *, count: int = 2) -> ListenersStuck | None:
    return calls.find_stuck(now_ms, call_count_max=count, timeout_ms=1_000)


def test_all_must_have_run_too_long(calls: ListenerCalls) -> None:
    assert find(calls, 1_500) is None
    assert find(calls, 9_000, count=3) is None
    assert find(calls, 1_501) == ListenersStuck(2, 1_001, 1_501, ("T/b/3/1", "T/b/3/2"))


def test_pace_is_of_this_minute_and_the_one_before(calls: ListenerCalls) -> None:
    calls.end(delivery(1), 2_000, done_count=1)
    calls.end(delivery(2), 1_500, done_count=0)

    assert Pace(1_500.0, 0.1, 0.1) == calls.pace("T", 10_000)
    calls.begin(delivery(3), 64_000)
    calls.end(delivery(3), 70_000, done_count=1)
    assert Pace(3_000.0, 2 / 80, 1 / 80) == calls.pace("T", 80_000)
    # The first minute is too long ago.
    assert Pace(6_000.0, 1 / 70, 0.0) == calls.pace("T", 130_000)
    assert Pace() == calls.pace("T", 190_000) == calls.pace("other", 80_000)


def test_it_is_told_once_until_one_returns(calls: ListenerCalls) -> None:
    assert find(calls, 5_000) is not None
    assert find(calls, 6_000) is None

    calls.end(delivery(1), 6_000, done_count=1)
    assert find(calls, 7_000) is None
    calls.begin(delivery(3), 7_000)
    assert find(calls, 8_000) is None
    again = find(calls, 8_001)

    assert again is not None
    assert ("T/b/3/2", "T/b/3/3") == again.messages
    assert (2, 500) == (len(calls), calls.begun_ms)


def test_nothing_is_stuck_where_nothing_may_run() -> None:
    calls = ListenerCalls()

    assert find(calls, 9_000, count=0) is None
    assert (0, None) == (len(calls), calls.begun_ms)


@pytest.fixture
def free() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.slow
@pytest.mark.parametrize(("orderly", "call_count"), [(False, 2), (True, 1)])
def test_consumer_warns_goes_on_when_one_returns_and_loses_nothing(
    cluster: EmbeddedCluster,
    producer: Producer,
    group: str,
    free: threading.Event,
    caplog: pytest.LogCaptureFixture,
    *,
    orderly: bool,
    call_count: int,
) -> None:
    caplog.set_level(logging.WARNING, "sparrowmq.client")
    topic = f"T_{group}"
    cluster.create_topic(topic, queues=1)
    done: set[bytes] = set()

    def listen(messages: list[MessageExt], _: object) -> None:
        free.wait(60)
        done.update(message.body for message in messages)

    consumer = PushConsumer(
        group,
        name_server=cluster.name_server,
        listener=listen,
        orderly=orderly,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        consume_thread_count=2,
        consume_timeout_ms=1_000,
    )
    sent = {b"%d" % n for n in range(6)}
    with consumer:
        consumer.subscribe(topic)
        consumer.start()
        for body in sorted(sent):
            producer.send(Message(topic, body))
        wait_until("the warning", lambda: "without returning" in caplog.text)
        info = describe(consumer._subscriber, now_ms=1 << 40, timestamp_ms=1 << 50)
        told = [r.getMessage() for r in caplog.records if "without returning" in r.getMessage()]
        free.set()
        wait_until("all messages", lambda: sent == done)

    assert [f"all {call_count} calls of the listener"] == [
        text[text.index("all ") : text.index(" that may")] for text in told
    ]
    assert f"{topic}/broker-a/0/0" in told[0]
    assert f"consumer group {group}" in told[0]
    assert f"--pid {os.getpid()}" in told[0]
    assert str(call_count) == info.properties["listenerCalls"]
    assert int(info.properties["listenerCallsLongestMs"]) > 1_000


@pytest.mark.slow
def test_message_of_a_listener_that_never_returns_comes_again_elsewhere(
    cluster: EmbeddedCluster,
    producer: Producer,
    group: str,
    free: threading.Event,
) -> None:
    """Closing a consumer whose listener hangs takes as long as it says, and loses nothing."""
    topic = f"T_{group}"
    cluster.create_topic(topic, queues=1)
    hangs, done = threading.Event(), threading.Event()
    settings: Any = {
        "name_server": cluster.name_server,
        "drain_timeout_ms": 200,
        "consume_from_where": ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    }

    def hang(_: object, __: object) -> None:
        hangs.set()
        free.wait(60)

    first = PushConsumer(group, listener=hang, **settings)
    second = PushConsumer(group, listener=lambda *_: done.set(), **settings)
    with second, first:
        for consumer in (first, second):
            consumer.subscribe(topic)
        first.start()
        producer.send(Message(topic, b"x"))
        assert hangs.wait(20)
        closing = threading.Thread(target=first.close)
        begun_s = time.monotonic()
        closing.start()
        second.start()
        assert done.wait(20)
        closing.join(20)

        assert not closing.is_alive()
        assert time.monotonic() - begun_s < 18

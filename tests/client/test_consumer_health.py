"""The health of consumers of both faces, as readiness and liveness probes ask for it."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

from hostile import HANG_UP, HostileCluster
from sparrowmq import (
    AsyncPushConsumer,
    ConsumerHealth,
    Message,
    PollConsumer,
    Producer,
    PushConsumer,
)
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.testing.embedded import EmbeddedCluster
from waiting import wait_until


class HangingListener:
    """A listener whose call lasts until it may go on."""

    def __init__(self) -> None:
        self.called, self.goes_on = threading.Event(), threading.Event()

    def __call__(self, messages: Any, context: Any) -> None:
        self.called.set()
        self.goes_on.wait(60)


def test_consumer_is_ready_between_its_start_and_its_end(
    cluster: EmbeddedCluster, topic: str, group: str
) -> None:
    consumer = PushConsumer(
        group, topic, name_server=cluster.name_server, listener=lambda messages, context: None
    )
    before = consumer.health()
    with consumer:
        wait_until("ready", lambda: consumer.health().is_ready)
        running = consumer.health()
    after = consumer.health()

    assert before == ConsumerHealth("not started")
    assert running.state == "running"
    assert running.assigned_count == running.consumed_count >= 8
    assert running.since_heartbeat is not None
    assert running.since_heartbeat >= timedelta()
    assert running.oldest_unfinished is None
    assert after == ConsumerHealth("closed")


def test_listener_that_hangs_is_seen(
    cluster: EmbeddedCluster, producer: Producer, topic: str, group: str
) -> None:
    hang = HangingListener()

    def unfinished() -> timedelta:
        return consumer.health().oldest_unfinished or timedelta()

    with PushConsumer(group, topic, name_server=cluster.name_server, listener=hang) as consumer:
        producer.send(Message(topic, b"x"))
        wait_until("the call", hang.called.is_set)
        first = unfinished()
        wait_until("a longer call", lambda: unfinished() > first + timedelta(milliseconds=20))
        hang.goes_on.set()
        wait_until("the end of the call", lambda: consumer.health().oldest_unfinished is None)


def test_polled_message_is_unfinished_until_the_next_poll(
    cluster: EmbeddedCluster, producer: Producer, topic: str, group: str
) -> None:
    with PollConsumer(group, topic, name_server=cluster.name_server) as consumer:
        producer.send(Message(topic, b"x"))
        assert consumer.getone(20_000) is not None
        with_message = consumer.health()
        assert consumer.getmany(1, 0) == []
        wait_until("the end of the message", lambda: not consumer.health().oldest_unfinished)

    assert with_message.oldest_unfinished is not None


async def test_asyncio_consumer_is_asked_alike(
    cluster: EmbeddedCluster, topic: str, group: str
) -> None:
    async def listen(messages: Any, context: Any) -> None: ...

    async with AsyncPushConsumer(
        group, topic, name_server=cluster.name_server, listener=listen
    ) as consumer:
        health = await consumer.health()

    assert (health.state, health.is_ready) == ("running", True)


def test_consumer_by_messages_is_ready_once_it_asks_for_messages(
    cluster: EmbeddedCluster, producer: Producer, topic: str, group: str
) -> None:
    hang = HangingListener()
    consumer = PushConsumer(
        group,
        topic,
        name_server=cluster.name_server,
        listener=hang,
        balance="messages",
    )
    assert not consumer.health().is_ready
    with consumer:
        # Entering has waited for that: a new group that begins at the end gets what is sent now.
        ready = consumer.health()
        producer.send(Message(topic, b"x"))
        wait_until("the call", hang.called.is_set)
        working = consumer.health()
        hang.goes_on.set()
        wait_until("its end", lambda: consumer.health().oldest_unfinished is None)

    assert (ready.is_ready, ready.oldest_unfinished) == (True, None)
    assert working.oldest_unfinished is not None


def test_consumer_by_messages_that_no_broker_answers_is_not_ready(hostile: HostileCluster) -> None:
    hostile.broker.lies[RequestCode.POP_MESSAGE] = lambda request, honest: HANG_UP
    with PushConsumer(
        "GID_c",
        name_server=hostile.address,
        listener=lambda messages, context: None,
        balance="messages",
    ) as consumer:
        consumer.subscribe(hostile.topic)
        consumer.start()
        wait_until("a pop", lambda: hostile.broker.count(RequestCode.POP_MESSAGE))
        assert not consumer.health().is_ready

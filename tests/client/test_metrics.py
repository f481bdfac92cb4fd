"""Series of the clients, on our broker."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from sparrowmq import (
    AsyncProducer,
    ConsumeContext,
    ConsumeStatus,
    Message,
    MessageExt,
    PollConsumer,
    Producer,
    PushConsumer,
)
from sparrowmq.client.assembly import make_subscriber
from sparrowmq.client.sight.series import CLIENT_SERIES
from sparrowmq.client.subscriber import RebalanceCallbacks
from sparrowmq.errors import ConfigError, UsageError
from sparrowmq.testing import EmbeddedCluster
from waiting import wait_until


def test_sends_and_deliveries_are_counted_and_timed(
    cluster: EmbeddedCluster, topic: str, group: str
) -> None:
    registry = CollectorRegistry()
    settings: dict[str, Any] = {"name_server": cluster.name_server, "metrics_registry": registry}

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"sparrowmq_client_{name}", labels)

    def take(messages: Any, context: Any) -> ConsumeStatus:
        if messages[0].body == b"raise":
            context.delay_level = -1
            raise RuntimeError
        return ConsumeStatus.CONSUME_SUCCESS

    with Producer("GID_p", **settings) as producer, Producer("GID_q", **settings) as other:
        producer.send(Message(topic, b"a"))
        producer.send_batch([Message(topic, b"b"), Message(topic, b"c")])
        producer.send_nowait(Message(topic, b"raise")).result()
        with pytest.raises(UsageError):
            producer.send(Message(topic, b""))
        other.send_oneway(Message(topic, b"d"))
    with PushConsumer(group, topic, listener=take, start="first", **settings) as consumer:
        counters = consumer.counters
        wait_until("consumed", lambda: (counters.succeeded, counters.failed) == (4, 1))
        assert value("queues", group=group, topic=topic, client_id=consumer.client_id) == 8

    assert value("sent_messages_total", group="GID_p", topic=topic, outcome="ok") == 4
    assert value("sent_messages_total", group="GID_p", topic=topic, outcome="failed") == 1
    assert value("sent_messages_total", group="GID_q", topic=topic, outcome="ok") == 1
    assert value("send_seconds_count", group="GID_p", topic=topic) == 4
    assert value("process_seconds_count", group=group, topic=topic, outcome="ok") == 4
    assert value("process_seconds_count", group=group, topic=topic, outcome="failed") == 1
    assert value("events_total", group=group, event="ListenerFailed") == 1
    assert value("consumed_messages_total", group=group, outcome="succeeded") == 4
    assert {series.name for series in CLIENT_SERIES} == {each.name for each in registry.collect()}
    del consumer
    gc.collect()
    assert value("consumed_messages_total", group=group, outcome="succeeded") == 4


async def test_asyncio_producer_and_poll_consumer_are_counted(
    cluster: EmbeddedCluster, topic: str, group: str
) -> None:
    registry = CollectorRegistry()
    settings: dict[str, Any] = {"name_server": cluster.name_server, "metrics_registry": registry}
    async with AsyncProducer("GID_p", **settings) as producer:
        await producer.send(Message(topic, b"a"))
    with PollConsumer(group, topic, start="first", **settings) as consumer:
        wait_until("polled", lambda: bool(consumer.poll(timeout_ms=1_000)))

        labels = {"group": group, "outcome": "pulled"}
        name = "sparrowmq_client_consumed_messages_total"
        assert registry.get_sample_value(name, labels) == 1
    labels = {"group": "GID_p", "topic": topic, "outcome": "ok"}
    assert registry.get_sample_value("sparrowmq_client_sent_messages_total", labels) == 1


def test_what_is_no_registry_is_refused() -> None:
    wrong: Any = "yes"

    with pytest.raises(ConfigError, match="metrics_registry is 'yes'; it must be a Collector"):
        Producer("GID_p", name_server="127.0.0.1:1", metrics_registry=wrong)


def test_call_that_leaves_messages_undone_counts_as_failed() -> None:
    registry = CollectorRegistry()
    outcomes = iter((None, ConsumeStatus.RECONSUME_LATER, ConsumeStatus.CONSUME_SUCCESS))
    subscriber = make_subscriber(
        "GID_w",
        name_server="ns:1",
        listener=lambda messages, context: next(outcomes),
        callbacks=RebalanceCallbacks(),
        is_async=False,
        metrics_registry=registry,
    )
    message = MessageExt("T", b"x", {}, "a", 0, 0, 0)
    for _ in range(3):
        context = ConsumeContext(message.queue, messages=(message,))
        subscriber.listener([message], context)  # type: ignore[arg-type]

    labels = {"group": "GID_w", "topic": "T"}
    name = "sparrowmq_client_process_seconds_count"
    outcomes_counted = [
        registry.get_sample_value(name, {**labels, "outcome": each}) for each in ("ok", "failed")
    ]
    assert outcomes_counted == [2, 1]

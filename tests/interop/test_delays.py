"""Delays by level and by time, and recalls, on Apache's broker of both versions, and on ours."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest

from sparrowmq import (
    Admin,
    AsyncProducer,
    BrokerError,
    Message,
    MessageExt,
    Producer,
    UsageError,
)
from waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

# No level is near: 30 s after 10 s.
DELAY = timedelta(seconds=15)


def has_timer(cluster: Any, java: Any) -> bool:
    return bool(cluster.name == "ours" or java.version.startswith("5"))


def waited_ms(message: MessageExt) -> int:
    return message.store_timestamp_ms - message.born_timestamp_ms


def read(cluster: Any, topic: str, count: int) -> list[MessageExt]:
    with Admin(name_server=cluster.name_server) as admin:
        found: list[MessageExt] = []

        def has_come() -> bool:
            found[:] = admin.messages_since(topic, 0, count + 1)
            return len(found) >= count

        wait_until(f"{count} messages of {topic}", has_come, timeout_s=60)
        return found


def test_message_comes_after_its_delay(
    java: Any, cluster: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "sparrowmq.client")
    topic = cluster.create_topic("delayed-by-python", queues=1)
    with Producer("GID_delays", name_server=cluster.name_server) as producer:
        by_time = producer.send(Message(topic, b"by time", delay=DELAY))
        producer.send(Message(topic, b"by level", delay_level=2))
        producer.send(Message(topic, b"at once"))
        if has_timer(cluster, java):
            assert by_time.recall_handle is not None
        else:
            assert by_time.recall_handle is None
            with pytest.raises(UsageError, match="asks for a delay of 3:00:00, but the broker at"):
                producer.send(Message(topic, b"never", delay=timedelta(hours=3)))

    messages = read(cluster, topic, 3)

    assert [message.body for message in messages] == [b"at once", b"by level", b"by time"]
    by_level, by_delay = messages[1:]
    assert 5_000 <= waited_ms(by_level) < 9_000
    if has_timer(cluster, java):
        # RocketMQ's timer wheel goes by seconds, and rounds down.
        least_ms = 15_000 if cluster.name == "ours" else 13_000
        assert least_ms <= waited_ms(by_delay) < 20_000
        assert by_delay.properties["TIMER_DELAY_MS"] == "15000"
        assert caplog.records == []
    else:
        assert 30_000 <= waited_ms(by_delay) < 34_000
        (record,) = caplog.records
        assert "with a delay of 0:00:15 are delivered after 0:00:30" in record.getMessage()


async def test_delay_of_days_is_taken_by_5_and_by_ours(java: Any, cluster: Any) -> None:
    topic = cluster.create_topic("delayed-for-days", queues=2)
    async with AsyncProducer("GID_delays", name_server=cluster.name_server) as producer:
        message = Message(topic, b"x", delay=timedelta(days=2))
        if has_timer(cluster, java):
            assert (await producer.send(message)).recall_handle
            assert (await producer.send_nowait(message)).recall_handle
            with pytest.raises(BrokerError, match="timer message illegal"):
                await producer.send(Message(topic, b"x", delay=timedelta(days=30)))
        else:
            with pytest.raises(UsageError, match="longer than 2:00:00"):
                await producer.send(message)


@pytest.mark.parametrize("java", ["5.5.0"], indirect=True, scope="session")
async def test_recalled_message_is_never_delivered(java: Any, apache_cluster: Any) -> None:
    topic = apache_cluster.create_topic("recalled-by-python", queues=1)
    name_server = apache_cluster.name_server
    with (
        Admin(name_server=name_server) as admin,
        Producer("GID_recall", name_server=name_server) as producer,
    ):
        (broker,) = admin.list_brokers()
        handle = producer.send(Message(topic, b"no", delay=timedelta(seconds=6))).recall_handle
        assert handle is not None
        # As brokers come.
        with pytest.raises(BrokerError, match="set recallMessageEnable=true at the broker"):
            producer.recall(handle)
        admin.update_broker_config(broker.name, {"recallMessageEnable": "true"})
        producer.recall(handle)
        async with AsyncProducer("GID_recall", name_server=name_server) as other:
            sent = await other.send(Message(topic, b"no", delay=timedelta(seconds=7)))
            assert sent.recall_handle is not None
            await other.recall(sent.recall_handle)
        late = producer.send(Message(topic, b"yes", delay=timedelta(seconds=9)))
        (message,) = read(apache_cluster, topic, 1)

        assert (b"yes", late.msg_id) == (message.body, message.msg_id)
        assert late.recall_handle is not None
        with pytest.raises(BrokerError, match="the message is due, or delivered already"):
            producer.recall(late.recall_handle)

"""Consumers of single messages by both faces against a running broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from sparrowmq import (
    AsyncSimpleConsumer,
    BrokerError,
    ConfigError,
    Message,
    MessageExt,
    MessageSelector,
    Producer,
    SimpleConsumer,
    TopicRouteNotFound,
    UsageError,
)
from sparrowmq.calling import clock
from sparrowmq.model.message import (
    PROPERTY_POP_CK,
    RESERVED_PROPERTIES,
)
from sparrowmq.protocol.codes import ResponseCode
from sparrowmq.testing.embedded import EmbeddedCluster
from waiting import wait_until

SECOND = timedelta(seconds=1)
NOW = timedelta()


@pytest.fixture
def producer(cluster: EmbeddedCluster) -> Iterator[Producer]:
    with Producer("GID_p", name_server=cluster.name_server) as opened:
        yield opened


@pytest.fixture
def consumer(cluster: EmbeddedCluster, topic: str, group: str) -> Iterator[SimpleConsumer]:
    with SimpleConsumer(group, name_server=cluster.name_server) as opened:
        opened.subscribe(topic)
        yield opened


def send(producer: Producer, topic: str, *bodies: str, **fields: Any) -> None:
    for body in bodies:
        producer.send(Message(topic, body.encode(), **fields))


def receive(consumer: SimpleConsumer, count: int, **given: Any) -> list[MessageExt]:
    """Receive until there are so many messages."""
    found: list[MessageExt] = []

    def is_found() -> bool:
        found.extend(consumer.receive(**given))
        return len(found) >= count

    wait_until(f"{count} messages", is_found)
    return found


def bodies(messages: list[MessageExt]) -> list[str]:
    return sorted(message.body.decode() for message in messages)


def test_acknowledged_messages_are_done_and_others_come_again(
    consumer: SimpleConsumer, producer: Producer, topic: str
) -> None:
    send(producer, topic, "a", "b", "c")
    first = receive(consumer, 3, invisible=SECOND)
    assert (bodies(first), {each.reconsume_times for each in first}) == (["a", "b", "c"], {0})
    consumer.ack(*(each for each in first if each.body != b"b"))

    (again,) = receive(consumer, 1)
    assert (again.body, again.reconsume_times) == (b"b", 1)
    assert again.msg_id == next(each.msg_id for each in first if each.body == b"b")
    consumer.ack(again)
    assert consumer.receive(wait=NOW) == []


@pytest.mark.parametrize("ahead_ms", [-3_600_000, 3_600_000])
def test_consumer_whose_clock_is_wrong_receives(
    consumer: SimpleConsumer,
    producer: Producer,
    topic: str,
    ahead_ms: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    send(producer, topic, "a")
    real_ms = clock.timestamp_ms
    monkeypatch.setattr(clock, "timestamp_ms", lambda: real_ms() + ahead_ms)

    (first,) = receive(consumer, 1)
    consumer.ack(first)
    assert consumer.receive(wait=NOW) == []


def test_one_request_acknowledges_several_and_names_what_came_again(
    consumer: SimpleConsumer, producer: Producer, topic: str
) -> None:
    send(producer, topic, "a", "b", "c")
    late, *others = receive(consumer, 3)
    changed = consumer.change_invisible(late, SECOND)

    with pytest.raises(BrokerError, match="1 of 3 messages came again meanwhile: ") as raised:
        consumer.ack(late, *others)
    assert raised.value.code == ResponseCode.NO_MESSAGE
    (again,) = receive(consumer, 1)
    assert again.body == late.body
    consumer.ack(again, *others)
    assert changed.msg_id == again.msg_id
    assert consumer.receive(wait=NOW) == []


def test_more_consumers_than_queues_share_a_topic_without_owners(
    cluster: EmbeddedCluster, producer: Producer, group: str
) -> None:
    cluster.create_topic(topic := f"T_{group}", queues=1)
    send(producer, topic, *map(str, range(6)))
    consumers = [SimpleConsumer(group, name_server=cluster.name_server) for _ in range(3)]
    found: list[MessageExt] = []
    for each in consumers:
        with each:
            each.subscribe(topic)
            mine = each.receive(2)
            assert len(mine) == 2
            each.ack(*mine)
            found += mine
    assert bodies(found) == list("012345")


def test_longer_time_keeps_a_message_and_no_time_gives_it_back(
    consumer: SimpleConsumer, producer: Producer, topic: str
) -> None:
    send(producer, topic, "a")
    (first,) = receive(consumer, 1, invisible=SECOND)
    longer = consumer.change_invisible(first, timedelta(minutes=5))
    with pytest.raises(BrokerError) as late:
        consumer.ack(first)
    assert late.value.code == ResponseCode.NO_MESSAGE
    assert consumer.receive(wait=1.5 * SECOND) == []
    consumer.change_invisible(longer, NOW)
    (again,) = receive(consumer, 1)
    assert again.reconsume_times == 1
    consumer.ack(again)


def test_rejected_message_is_a_dead_letter(
    consumer: SimpleConsumer, producer: Producer, cluster: EmbeddedCluster, topic: str, group: str
) -> None:
    send(producer, topic, "a")
    (first,) = receive(consumer, 1, invisible=SECOND)
    consumer.reject(first)

    assert consumer.receive(wait=1.5 * SECOND) == []
    with SimpleConsumer(f"{group}_dead", name_server=cluster.name_server) as letters:
        letters.subscribe(f"%DLQ%{group}")
        assert bodies(receive(letters, 1)) == ["a"]


def test_several_topics_and_filters_are_received_together(
    consumer: SimpleConsumer, producer: Producer, cluster: EmbeddedCluster, topic: str
) -> None:
    cluster.create_topic(other := f"{topic}_other", queues=2)
    consumer.subscribe(topic, "x")
    consumer.subscribe(other, MessageSelector.by_sql("v > 1"))
    send(producer, topic, "wanted", tags="x")
    send(producer, topic, "unwanted", tags="y")
    send(producer, other, "two", properties={"v": "2"})
    send(producer, other, "one", properties={"v": "1"})

    found = receive(consumer, 2)
    assert bodies(found) == ["two", "wanted"]
    consumer.ack(*found)
    consumer.unsubscribe(other)
    assert consumer.receive(wait=NOW) == []


def test_iteration_gives_one_message_after_another(
    consumer: SimpleConsumer, producer: Producer, topic: str
) -> None:
    send(producer, topic, "a", "b", "c")
    found: list[MessageExt] = []
    for message in consumer:
        consumer.ack(message)
        found.append(message)
        if len(found) == 3:
            break
    assert bodies(found) == ["a", "b", "c"]


def test_asyncio_face_waits_for_a_message_and_acknowledges_it(
    cluster: EmbeddedCluster, producer: Producer, topic: str, group: str
) -> None:
    async def consume() -> list[MessageExt]:
        async with AsyncSimpleConsumer(group, name_server=cluster.name_server) as consumer:
            consumer.subscribe(topic)
            waiting = asyncio.create_task(consumer.receive(wait=timedelta(seconds=20)))
            await asyncio.to_thread(send, producer, topic, "a")
            found = await waiting
            await consumer.ack(*found)
            await asyncio.to_thread(send, producer, topic, "b")
            async for message in consumer:
                await consumer.ack(message)
                return [*found, message]
        raise AssertionError

    assert bodies(asyncio.run(consume())) == ["a", "b"]


async def test_close_ends_an_iteration_that_waits(
    cluster: EmbeddedCluster, producer: Producer, topic: str, group: str
) -> None:
    consumer = AsyncSimpleConsumer(group, topic, name_server=cluster.name_server)
    found: list[MessageExt] = []
    has_come = asyncio.Event()

    async def consume() -> None:
        async for message in consumer:
            await consumer.ack(message)
            found.append(message)
            has_come.set()

    consuming = asyncio.create_task(consume())
    await asyncio.to_thread(send, producer, topic, "a")
    # The consumer waits for the next one then.
    await has_come.wait()
    await consumer.close()
    await consuming

    assert bodies(found) == ["a"]


async def test_close_closes_the_connections() -> None:
    with SimpleConsumer("GID_c", name_server="127.0.0.1:1") as consumer:
        pass
    async with AsyncSimpleConsumer("GID_c", name_server="127.0.0.1:1") as asyncio_consumer:
        pass

    for opened in (consumer, asyncio_consumer):
        with pytest.raises(UsageError, match="this client is closed"):
            opened._driver.check_usable()


def test_mistakes_are_named(consumer: SimpleConsumer, cluster: EmbeddedCluster) -> None:
    fraction: Any = 2.5
    for count in (0, 33, fraction):
        with pytest.raises(ConfigError, match="count_max"):
            consumer.receive(count)
    with pytest.raises(ConfigError, match="wait"):
        consumer.receive(wait=timedelta(minutes=1))
    with pytest.raises(ConfigError, match="invisible"):
        consumer.receive(invisible=timedelta(hours=13))
    foreign = MessageExt("T", b"", {}, "broker-a", 0, 0, 0)
    with pytest.raises(UsageError, match="no handle"):
        consumer.ack(foreign)
    with SimpleConsumer("GID_none", name_server=cluster.name_server) as empty:
        with pytest.raises(UsageError, match="subscribe"):
            empty.receive()
        empty.subscribe("missing")
        with pytest.raises(TopicRouteNotFound):
            empty.receive()
    with pytest.raises(UsageError, match="closed"):
        empty.receive()


def test_message_names_its_handle_as_javas_client_does(
    consumer: SimpleConsumer, producer: Producer, topic: str
) -> None:
    send(producer, topic, "a")
    (message,) = receive(consumer, 1)
    assert len(message.properties[PROPERTY_POP_CK].split(" ")) == 8
    consumer.ack(message)


def test_copy_of_a_received_message_has_a_handle_of_its_own(
    consumer: SimpleConsumer, producer: Producer, cluster: EmbeddedCluster, topic: str
) -> None:
    send(producer, topic, "a")
    (first,) = receive(consumer, 1)
    # As a service does that passes on all that it may.
    copied = {n: v for n, v in first.properties.items() if n not in RESERVED_PROPERTIES}
    copied.setdefault(PROPERTY_POP_CK, first.properties[PROPERTY_POP_CK])
    cluster.create_topic(other := f"{topic}_copies", queues=8)
    consumer.subscribe(other)
    send(producer, other, "b", properties=copied)
    (copy,) = receive(consumer, 1, invisible=SECOND)
    consumer.ack(copy)

    assert consumer.receive(wait=1.5 * SECOND) == []
    consumer.ack(first)


async def test_receive_that_is_given_up_gives_its_messages_back(
    cluster: EmbeddedCluster, producer: Producer, topic: str, group: str
) -> None:
    async with AsyncSimpleConsumer(group, topic, name_server=cluster.name_server) as opened:
        assert await opened.receive(wait=NOW) == []
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(opened.receive(wait=30 * SECOND), 0.2)
        await asyncio.to_thread(send, producer, topic, "a")

        (message,) = await opened.receive(wait=10 * SECOND)
        assert (bodies([message]), message.reconsume_times) == (["a"], 0)
        await opened.ack(message)


async def test_receive_that_is_cancelled_when_its_messages_have_come_gives_them_back(
    cluster: EmbeddedCluster, producer: Producer, topic: str, group: str
) -> None:
    await asyncio.to_thread(send, producer, topic, "a")
    async with AsyncSimpleConsumer(group, topic, name_server=cluster.name_server) as opened:
        receiving = opened.receive(wait=10 * SECOND)
        # As a task that is cancelled between the end of what it awaits and its own next step.
        await asyncio.wait({receiving.send(None)})
        with pytest.raises(asyncio.CancelledError):
            receiving.throw(asyncio.CancelledError)

        (message,) = await opened.receive(wait=10 * SECOND)
        assert (bodies([message]), message.reconsume_times) == (["a"], 0)
        await opened.ack(message)

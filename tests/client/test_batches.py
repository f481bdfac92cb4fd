"""Messages that are handed over, against a real broker: each gets its result or its error."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from concurrent.futures import Future
from typing import Any

import pytest

from sparrowmq import (
    Admin,
    AsyncProducer,
    LitePullConsumer,
    Message,
    MessageQueue,
    Producer,
    SendResult,
    SendStatus,
)
from sparrowmq.errors import BufferFull, ConfigError, ConnectFailed, UsageError
from sparrowmq.testing.embedded import EmbeddedCluster

pytestmark = pytest.mark.slow

PATIENCE_S = 20
COUNT = 2_000


def stored(cluster: EmbeddedCluster, topic: str) -> dict[MessageQueue, list[bytes]]:
    """Return what the queues hold."""
    found: dict[MessageQueue, list[bytes]] = {}
    with LitePullConsumer("GID_look", name_server=cluster.name_server) as reader:
        for queue in reader.fetch_subscribe_queues(topic):
            found[queue], offset = [], 0
            while messages := reader.pull(queue, offset, 1_000).messages:
                found[queue] += [message.body for message in messages]
                offset = messages[-1].queue_offset + 1
    return found


def check(results: list[SendResult], cluster: EmbeddedCluster, topic: str) -> None:
    """Each message stands where its result says, and those of a key in their order."""
    held = stored(cluster, topic)
    by_key: dict[int, list[int]] = defaultdict(list)
    for bodies in held.values():
        for body in bodies:
            by_key[int(body) % 10].append(int(body))

    assert sum(map(len, held.values())) == COUNT
    assert [b"%d" % number for number in range(COUNT)] == [
        held[result.queue][result.queue_offset] for result in results
    ]
    assert {result.status for result in results} == {SendStatus.SEND_OK}
    assert len({result.msg_id for result in results}) == COUNT
    assert len({result.offset_msg_id for result in results}) == COUNT
    assert all(sorted(numbers) == numbers for numbers in by_key.values())


def messages_of(topic: str) -> list[Message]:
    return [Message(topic, b"%d" % n, sharding_key=str(n % 10)) for n in range(COUNT)]


def test_each_message_gets_its_own_result(cluster: EmbeddedCluster, topic: str) -> None:
    with Producer("GID_p", name_server=cluster.name_server) as producer:
        futures = [producer.send_nowait(message) for message in messages_of(topic)]
        producer.flush()
        assert all(future.done() for future in futures)
        results = [future.result() for future in futures]

    check(results, cluster, topic)


async def test_so_it_is_with_asyncio(cluster: EmbeddedCluster, topic: str) -> None:
    async with AsyncProducer("GID_p", name_server=cluster.name_server, linger_ms=0) as producer:
        results = await asyncio.gather(*map(producer.send_nowait, messages_of(topic)))

    await asyncio.to_thread(check, results, cluster, topic)


def test_threads_share_batches(cluster: EmbeddedCluster, topic: str) -> None:
    futures: list[list[Future[SendResult]]] = [[] for _ in range(4)]
    with Producer("GID_p", name_server=cluster.name_server, batch_count_max=50) as producer:

        def hand_over(number: int) -> None:
            for index in range(500):
                body = b"%d-%d" % (number, index)
                futures[number].append(producer.send_nowait(Message(topic, body)))

        threads = [threading.Thread(target=hand_over, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        results = [f.result(PATIENCE_S) for own in futures for f in own]

    assert len({(result.queue, result.queue_offset) for result in results}) == 2_000
    assert sum(map(len, stored(cluster, topic).values())) == 2_000


def test_wrong_message_alone_gets_the_error(cluster: EmbeddedCluster, topic: str) -> None:
    with Producer("GID_p", name_server=cluster.name_server) as producer:
        good = [producer.send_nowait(Message(topic, b"%d" % number)) for number in range(3)]
        wrong = producer.send_nowait(Message(topic, b"x", properties={"KEYS": "reserved"}))
        good += [producer.send_nowait(Message(topic, b"%d" % number)) for number in range(3)]
        nowhere = producer.send_nowait(Message("bad topic", b"x"))
        elsewhere = producer.send_nowait(
            Message(topic, b"x"), queue=MessageQueue("other", "broker-a", 0)
        )
        producer.flush()

    assert all(future.result().status is SendStatus.SEND_OK for future in good)
    assert isinstance(wrong.exception(), UsageError)
    assert isinstance(nowhere.exception(), ConfigError)
    assert "cannot go to a queue of 'other'" in str(elsewhere.exception())


def test_delayed_messages_and_large_ones_are_sent_by_themselves(
    cluster: EmbeddedCluster, topic: str, admin: Admin
) -> None:
    with Producer("GID_p", name_server=cluster.name_server) as producer:
        futures = [
            producer.send_nowait(Message(topic, b"late", delay_level=1)),
            producer.send_nowait(Message(topic, bytes(1_000_000))),
            producer.send_nowait(Message(topic, b"small")),
        ]
        producer.flush()

    assert {future.result().status for future in futures} == {SendStatus.SEND_OK}


def test_close_sends_what_lingers(cluster: EmbeddedCluster, topic: str) -> None:
    producer = Producer("GID_p", name_server=cluster.name_server, linger_ms=30_000)
    futures = [producer.send_nowait(Message(topic, b"%d" % number)) for number in range(10)]
    producer.close()

    assert len({future.result(0).offset_msg_id for future in futures}) == 10
    with pytest.raises(UsageError, match="is closed"):
        producer.send_nowait(Message(topic, b"x"))


def test_full_buffer_refuses_until_there_is_room(cluster: EmbeddedCluster, topic: str) -> None:
    with Producer(
        "GID_p", name_server=cluster.name_server, buffer_bytes_max=100, linger_ms=30_000
    ) as producer:
        producer.send_nowait(Message(topic, bytes(60)))
        with pytest.raises(
            BufferFull, match="60 bytes of messages wait to be sent, and buffer_bytes_max is 100"
        ):
            producer.send_nowait(Message(topic, bytes(60)))
        producer.flush()
        producer.send_nowait(Message(topic, bytes(60)))


async def test_every_message_gets_the_error_where_nobody_answers() -> None:
    settings: dict[str, Any] = {"name_server": "127.0.0.1:1", "send_timeout_ms": 300}
    with Producer("GID_p", **settings) as producer:
        futures = [producer.send_nowait(Message("T", b"x")) for _ in range(5)]
        errors = [future.exception(PATIENCE_S) for future in futures]
    async with AsyncProducer("GID_p", **settings) as asyncio_producer:
        waiting = [asyncio_producer.send_nowait(Message("T", b"x")) for _ in range(5)]
        errors += await asyncio.gather(*waiting, return_exceptions=True)  # type: ignore[arg-type]

    assert [type(error) for error in errors] == [ConnectFailed] * 10


async def test_cancelled_future_holds_up_nothing(cluster: EmbeddedCluster, topic: str) -> None:
    async with AsyncProducer("GID_p", name_server=cluster.name_server) as producer:
        first, second = (producer.send_nowait(Message(topic, b"x")) for _ in range(2))
        first.cancel()

        assert (await second).status is SendStatus.SEND_OK

"""Clients in a namespace, on our broker: plain names for users, prefixed ones on the wire."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from sparrowmq import (
    Admin,
    AsyncProducer,
    ConsumeStatus,
    Message,
    MessageQueue,
    PollConsumer,
    Producer,
    PushConsumer,
)
from sparrowmq.errors import ConfigError, TopicRouteNotFound
from sparrowmq.testing import EmbeddedCluster
from waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(tmp_path_factory.mktemp("namespace")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def inside(cluster: EmbeddedCluster) -> dict[str, Any]:
    settings: dict[str, Any] = {"name_server": cluster.name_server, "namespace": "ns"}
    with Admin(**settings) as admin:
        route = admin.create_topic("orders", 2)
    assert (route.topic, {queue.topic for queue in route.publish_queues}) == ("orders", {"orders"})
    return settings


def test_producer_names_plain_and_sends_prefixed(
    cluster: EmbeddedCluster, inside: dict[str, Any]
) -> None:
    with (
        Admin(name_server=cluster.name_server) as outside,
        Producer("GID_p", **inside) as producer,
    ):
        queues = producer.fetch_publish_queues("orders")
        on_wire = [queue._replace(topic="ns%orders") for queue in queues]
        # Another test sends to the topic too.
        before = sum(map(outside.max_offset, on_wire))
        sent = producer.send(Message("orders", b"x"), queue=queues[1])
        batch = producer.send_batch([Message("orders", b"y"), Message("orders", b"z")])
        chosen = producer.select_queue(Message("orders", b"x"))
        stored = sum(map(outside.max_offset, on_wire)) - before
        with pytest.raises(TopicRouteNotFound):
            outside.route("orders")

    assert [MessageQueue("orders", "broker-a", number) for number in (0, 1)] == queues
    assert queues[1] == sent.queue
    assert {batch.queue.topic, chosen.topic} == {"orders"}
    assert stored == 3


def test_push_consumer_gets_plain_names_also_of_what_comes_again(
    cluster: EmbeddedCluster, inside: dict[str, Any]
) -> None:
    got: list[tuple[str, str, int]] = []
    assigned: list[MessageQueue] = []
    lock = threading.Lock()

    def take(messages: list[Any], context: Any) -> ConsumeStatus:
        context.delay_level = 1
        with lock:
            for message in messages:
                got.append((message.topic, context.queue.topic, message.reconsume_times))
        is_done = all(message.reconsume_times for message in messages)
        return ConsumeStatus.CONSUME_SUCCESS if is_done else ConsumeStatus.RECONSUME_LATER

    with (
        Admin(**inside) as admin,
        Producer("GID_p", **inside) as producer,
        PushConsumer(
            "GID_again",
            listener=take,
            start="first",
            on_assign=assigned.extend,
            **inside,
        ) as consumer,
    ):
        admin.create_topic("again", 1)
        consumer.subscribe("again")
        consumer.start()
        producer.send(Message("again", b"x"))
        wait_until("delivered again", lambda: len(got) >= 2)
        ids = admin.consumer_ids("GID_again")
        queue = MessageQueue("again", "broker-a", 0)
        wait_until("committed", lambda: admin.committed_offset("GID_again", queue) == 1)
        lag = admin.group_lag("GID_again", "again")
        group, assignment, client_id = consumer.group, consumer.assignment(), consumer.client_id
    with Admin(name_server=cluster.name_server) as outside:
        retry = outside.route("%RETRY%ns%GID_again")

    assert got == [("again", "again", 0), ("again", "%RETRY%GID_again", 1)]
    assert ("GID_again", [queue], [queue]) == (group, assignment, assigned)
    assert ids == [client_id]
    assert [tuple(each) for each in lag] == [(queue, 1, 1, 0)]
    assert len(retry.publish_queues) == 1


def test_poll_consumer_names_queues_plainly(inside: dict[str, Any]) -> None:
    with Admin(**inside) as admin, Producer("GID_p", **inside) as producer:
        admin.create_topic("lite", 1)
        for number in range(5):
            producer.send(Message("lite", b"%d" % number))
    queue = MessageQueue("lite", "broker-a", 0)
    with PollConsumer("GID_lite", start="first", **inside) as consumer:
        assert consumer.fetch_subscribe_queues("lite") == [queue]
        consumer.assign([queue])
        consumer.start()
        first = consumer.getmany(5, timeout_ms=20_000)
        consumer.seek(queue, 3)
        second = consumer.getmany(1, timeout_ms=20_000)
        consumer.commit({queue: 4})
        committed, assignment = consumer.committed_offset(queue), consumer.assignment()
        pulled = consumer.pull(queue, 2)

    assert (first[0].topic, first[0].body) == ("lite", b"0")
    assert [message.body for message in second] == [b"3"]
    assert (4, [queue]) == (committed, assignment)
    assert (pulled.messages[0].topic, pulled.messages[0].body) == ("lite", b"2")


async def test_asyncio_face_has_it_too(inside: dict[str, Any]) -> None:
    async with AsyncProducer("GID_p", **inside) as producer:
        sent = await producer.send(Message("orders", b"x"))

    assert sent.queue.topic == "orders"


def test_namespace_with_a_percent_sign_is_refused() -> None:
    with pytest.raises(ConfigError, match="namespace"):
        Producer("GID_p", name_server="127.0.0.1:9876", namespace="a%b")

"""Our producer and push consumer on Apache's name server and broker."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import pytest

from sparrowmq import Admin, Message, MessageExt, Producer, PushConsumer
from sparrowmq.model import ConsumeContext, ConsumeStatus, SendStatus

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]


class Inbox:
    """A listener that keeps what it gets; messages of `failing` bodies fail so many times."""

    def __init__(self, *, failing: str = "", times: int = 0) -> None:
        self.messages: list[MessageExt] = []
        self._failing = failing
        self._times = times
        self._changed = threading.Condition()

    def __call__(self, messages: list[MessageExt], context: ConsumeContext) -> ConsumeStatus | None:
        with self._changed:
            self.messages += messages
            self._changed.notify_all()
        context.delay_level = 1
        fails = any(
            message.body.decode() == self._failing and message.reconsume_times < self._times
            for message in messages
        )
        return ConsumeStatus.RECONSUME_LATER if fails else None

    def wait_for(self, count: int, *, timeout_s: float = 60.0) -> list[MessageExt]:
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.messages) >= count, timeout_s):
                pytest.fail(f"{len(self.messages)} of {count} messages within {timeout_s} s")
            return list(self.messages)


@contextmanager
def consuming(
    cluster: Any, name: str, inbox: Inbox, *, queues: int, tags: str = "*"
) -> Generator[tuple[str, Producer]]:
    """Consume a new topic of a name, in the group of this name; yield the topic and a producer."""
    with Admin(name_server=cluster.name_server) as admin:
        admin.create_topic(name, queues=queues)
    settings: dict[str, Any] = {"name_server": cluster.name_server}
    with (
        PushConsumer(f"GID_{name}", {name: tags}, listener=inbox, start="first", **settings),
        Producer("GID_p", **settings) as producer,
    ):
        yield name, producer


def bodies(messages: list[MessageExt]) -> list[str]:
    return sorted(message.body.decode() for message in messages)


def test_every_message_arrives_once_and_is_committed(apache_cluster: Any) -> None:
    inbox = Inbox()
    with consuming(apache_cluster, "python-all", inbox, queues=8) as (topic, producer):
        sent = [
            producer.send(
                Message(
                    topic,
                    f"m-{n}".encode(),
                    tags="A",
                    keys=(f"k{n}",),
                    properties={"n": f"{n}"},
                )
            )
            for n in range(200)
        ]
        got = inbox.wait_for(200)

    assert {result.status for result in sent} == {SendStatus.SEND_OK}
    assert sorted(f"m-{n}" for n in range(200)) == bodies(got)
    assert {(result.queue, result.queue_offset, result.msg_id) for result in sent} == {
        (message.queue, message.queue_offset, message.msg_id) for message in got
    }
    assert {(f"m-{n}", "A", (f"k{n}",), f"{n}") for n in range(200)} == {
        (message.body.decode(), message.tags, message.keys, message.properties["n"])
        for message in got
    }
    with Admin(name_server=apache_cluster.name_server) as admin:
        lags = admin.group_lag("GID_python-all", topic)
    assert [lag.lag for lag in lags] == [0] * 8
    assert sum(lag.committed_offset or 0 for lag in lags) == 200


def test_a_failing_message_comes_again_from_the_retry_topic(apache_cluster: Any) -> None:
    inbox = Inbox(failing="m-3", times=2)
    with consuming(apache_cluster, "python-retry", inbox, queues=4) as (topic, producer):
        for n in range(10):
            producer.send(Message(topic, f"m-{n}".encode()))
        got = inbox.wait_for(12)

    again = [m for m in got if m.body == b"m-3"]
    assert [message.reconsume_times for message in again] == [0, 1, 2]
    assert {message.topic for message in again} == {topic}
    assert len(got) == 12


def test_one_sharding_key_stays_in_one_queue_in_order(apache_cluster: Any) -> None:
    inbox = Inbox()
    with consuming(apache_cluster, "python-sharding", inbox, queues=8) as (topic, producer):
        for n in range(100):
            producer.send(Message(topic, f"{n}".encode(), sharding_key=f"N{n % 10}"))
        got = inbox.wait_for(100)

    by_key = defaultdict(list)
    for message in sorted(got, key=lambda message: message.queue_offset):
        by_key[message.properties["__SHARDINGKEY"]].append(message)
    for key, messages in by_key.items():
        assert len({message.queue for message in messages}) == 1
        assert [n for n in range(100) if f"N{n % 10}" == key] == [int(m.body) for m in messages]


def test_only_subscribed_tags_arrive(apache_cluster: Any) -> None:
    inbox = Inbox()
    with consuming(apache_cluster, "python-tags", inbox, queues=4, tags="A || C") as (
        topic,
        producer,
    ):
        for n in range(30):
            producer.send(Message(topic, f"m-{n}".encode(), tags="ABC"[n % 3]))
        got = inbox.wait_for(20)

    assert sorted("AC" * 10) == sorted(message.tags or "" for message in got)


def test_batches_and_one_way_messages_arrive(apache_cluster: Any) -> None:
    inbox = Inbox()
    with consuming(apache_cluster, "python-batch", inbox, queues=2) as (topic, producer):
        producer.send_batch([Message(topic, f"batch-{n}".encode()) for n in range(10)])
        producer.send_oneway(Message(topic, b"oneway"))
        producer.send(Message(topic, b"x" * 100_000))
        got = inbox.wait_for(12)

    assert sorted([f"batch-{n}" for n in range(10)] + ["oneway", "x" * 100_000]) == bodies(got)


def test_what_java_compresses_and_batches_is_read(
    apache_cluster: Any, java_producer: Callable[..., Any]
) -> None:
    inbox = Inbox()
    with consuming(apache_cluster, "python-reads-java", inbox, queues=2) as (topic, _):
        java_producer(apache_cluster, topic=topic, count=3, prefix="large-", padding=50_000)
        java_producer(apache_cluster, topic=topic, count=10, prefix="batch-", batch=True)
        got = inbox.wait_for(13)

    assert sorted(
        [f"large-{n}" + "x" * 50_000 for n in range(3)] + [f"batch-{n}" for n in range(10)]
    ) == bodies(got)


def test_java_reads_what_our_producer_sends(
    apache_cluster: Any, java_push_consumer: Callable[..., Any]
) -> None:
    topic = apache_cluster.create_topic("java-reads-python", queues=4)
    consumer = java_push_consumer(apache_cluster, topic=topic, group="GID_java_reads_python")
    with Producer("GID_p", name_server=apache_cluster.name_server) as producer:
        sent = [
            producer.send(Message(topic, f"m-{n}".encode(), tags="T", keys=("a", "b")))
            for n in range(50)
        ]
        sent_batch = producer.send_batch([Message(topic, f"b-{n}".encode()) for n in range(5)])
    consumer.wait_for("55 messages", lambda: len(consumer.named("message")) >= 55)

    got = consumer.named("message")
    assert {result.msg_id for result in sent} | set(sent_batch.msg_id.split(",")) == {
        event["msgId"] for event in got
    }
    assert {(event["tags"], event["keys"]) for event in got if event["body"].startswith("m")} == {
        ("T", "a b")
    }

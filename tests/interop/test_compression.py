"""Bodies that Java's clients compress are read by ours, and ours by theirs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from poison import send_stored
from sparrowmq import (
    Admin,
    CompressionType,
    Message,
    MessageQueue,
    PollConsumer,
    Producer,
    UnreadablePolicy,
)
from waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

Events = list[dict[str, Any]]
# The bits that Java's clients set: COMPRESSED and the type.
JAVA_SYS_FLAGS = {
    CompressionType.ZLIB: 0x301,
    CompressionType.LZ4: 0x101,
    CompressionType.ZSTD: 0x201,
}
PADDING = 6_000


@pytest.mark.parametrize("kind", CompressionType)
def test_what_java_compresses_is_read(
    our_cluster: Any,
    java_producer: Callable[..., Events],
    monkeypatch: pytest.MonkeyPatch,
    kind: CompressionType,
) -> None:
    topic = our_cluster.create_topic(f"java-packs-{kind.name}", queues=1)
    # The name that clients of 4.9.4 and later know.
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Drocketmq.message.compressType={kind.name}")
    java_producer(our_cluster, topic=topic, count=3, padding=PADDING)

    with PollConsumer("GID_look", name_server=our_cluster.name_server) as reading:
        found = reading.pull(MessageQueue(topic, "broker-a", 0), 0).messages

    assert [b"m-%d" % n + b"x" * PADDING for n in range(3)] == [m.body for m in found]
    assert [JAVA_SYS_FLAGS[kind]] * 3 == [message.sys_flag & 0x701 for message in found]
    assert all(message.store_size < 1_000 for message in found)


def test_java_reads_what_we_compress(
    our_cluster: Any, java_push_consumer: Callable[..., Any]
) -> None:
    topic = our_cluster.create_topic("java-unpacks", queues=1)
    bodies = {kind.name + "x" * PADDING for kind in CompressionType}
    consumer = java_push_consumer(our_cluster, topic=topic, group="GID_java_unpacks")

    for kind in CompressionType:
        with Producer(
            "GID_packing", name_server=our_cluster.name_server, compress_type=kind
        ) as producer:
            producer.send(Message(topic, (kind.name + "x" * PADDING).encode()))
    consumer.wait_for("3 messages", lambda: len(consumer.named("message")) >= 3)

    assert bodies == {event["body"] for event in consumer.named("message")}
    assert consumer.stop() == 0


def test_apaches_broker_takes_a_message_that_cannot_be_read_as_a_dead_letter(
    apache_cluster: Any,
) -> None:
    queue = MessageQueue("unreadable", "broker-a", 0)
    with Admin(name_server=apache_cluster.name_server) as admin:
        admin.create_topic(queue.topic, queues=1)
    with (
        Producer("GID_unreadable_p", name_server=apache_cluster.name_server) as producer,
        PollConsumer(
            "GID_unreadable",
            name_server=apache_cluster.name_server,
            start="first",
            unreadable_policy=UnreadablePolicy.DEAD_LETTER,
        ) as consumer,
    ):
        send_stored(apache_cluster.broker, queue, b"no zlib stream", msg_id="POISON")
        producer.send(Message(queue.topic, b"1"))
        consumer.subscribe(queue.topic)
        consumer.start()
        message = consumer.getone(30_000)

    assert message is not None
    assert message.body == b"1"
    with Admin(name_server=apache_cluster.name_server) as admin:
        dead_letters = MessageQueue("%DLQ%GID_unreadable", "broker-a", 0)
        wait_until("the dead letter", lambda: admin.max_offset(dead_letters) == 1)

"""Requests and replies, Java's and ours, by way of Apache's broker and of ours."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sparrowmq import (
    AsyncProducer,
    AsyncPushConsumer,
    ConsumeContext,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PushConsumer,
)

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


def test_java_s_requests_are_answered(java: Any, our_cluster: Any) -> None:
    topic = our_cluster.create_topic("questions", queues=4)
    options = {"nameServer": our_cluster.name_server, "topic": topic}
    replier = java.peer("reply", group="GID_repliers", **options)
    try:
        replier.wait_for("started", lambda: replier.named("started"))
        told = java.run_peer("request", group="GID_askers", count=3, **options)
    finally:
        replier.kill()

    assert [f"re: question-{n}" for n in range(3)] == [
        event["body"] for event in told if event["event"] == "answer"
    ]
    assert len([event for event in replier.named("replied") if event["status"] == "SEND_OK"]) == 3


async def test_each_request_gets_its_own_reply(java: Any, cluster: Any) -> None:
    topic = "asked-by-python"
    cluster.create_topic(topic, queues=4)
    settings: dict[str, Any] = {"name_server": cluster.name_server}
    seen: list[MessageQueue] = []
    async with AsyncProducer("GID_py_responder", **settings) as producer:

        async def answer(messages: list[MessageExt], context: ConsumeContext) -> None:
            for message in messages:
                seen.append(message.queue)
                await producer.reply(message, message.body * 1_000)

        async with (
            AsyncPushConsumer("GID_py_asked", listener=answer, **settings) as consumer,
            AsyncProducer("GID_py_asker", **settings) as asker,
        ):
            await consumer.subscribe(topic)
            await consumer.start()
            assert await consumer.wait_assigned()
            replies = await asyncio.gather(
                *(
                    asker.request(
                        Message(topic, b"m%d" % number),
                        queue=lambda queues, message: queues[-1],
                        timeout_ms=20_000,
                    )
                    for number in range(20)
                )
            )

    assert [b"m%d" % number * 1_000 for number in range(20)] == [reply.body for reply in replies]
    assert {queue.queue_id for queue in seen} == {3}


def test_java_answers_our_requests(java: Any, cluster: Any) -> None:
    topic = cluster.create_topic("asked-of-java", queues=4)
    options = {"nameServer": cluster.name_server, "topic": topic}
    replier = java.peer("reply", group="GID_java_repliers", **options)
    try:
        replier.wait_for("started", lambda: replier.named("started"))
        with Producer("GID_py_asker", name_server=cluster.name_server) as producer:
            replies = [
                producer.request(Message(topic, b"m%d" % number), timeout_ms=30_000).body
                for number in range(3)
            ]
    finally:
        replier.kill()

    assert [b"re: m%d" % number for number in range(3)] == replies


def test_we_answer_java_s_requests(java: Any, cluster: Any) -> None:
    topic = cluster.create_topic("asked-by-java", queues=4)
    settings: dict[str, Any] = {"name_server": cluster.name_server}
    with Producer("GID_py_replies", **settings) as producer:

        def answer(messages: list[MessageExt], context: ConsumeContext) -> None:
            for message in messages:
                producer.reply(message, b"py: " + message.body)

        with PushConsumer(
            "GID_py_repliers", topic, listener=answer, start="first", **settings
        ) as consumer:
            assert consumer.wait_assigned()
            told = java.run_peer(
                "request",
                group="GID_java_askers",
                count=3,
                nameServer=cluster.name_server,
                topic=topic,
            )

    assert [f"py: question-{n}" for n in range(3)] == [
        event["body"] for event in told if event["event"] == "answer"
    ]

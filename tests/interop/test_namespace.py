"""Java's and our clients in one namespace, on Apache's broker and on ours."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from sparrowmq import Admin, Message, Producer, PushConsumer
from waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

COUNT, NAMESPACE, TOPIC = 40, "ns-interop", "namespaced"


def test_members_of_both_kinds_share_a_group_of_a_namespace(
    cluster: Any,
    java_producer: Callable[..., list[dict[str, Any]]],
    java_push_consumer: Callable[..., Any],
) -> None:
    group = "GID_namespaced"
    settings: dict[str, Any] = {"name_server": cluster.name_server, "namespace": NAMESPACE}
    got: list[tuple[str, bytes]] = []
    lock = threading.Lock()

    def take(messages: list[Any], _context: Any) -> None:
        with lock:
            got.extend((message.topic, message.body) for message in messages)

    with Admin(**settings) as admin:
        admin.create_topic(TOPIC, 4)
    with PushConsumer(group, TOPIC, listener=take, start="first", **settings) as ours:
        theirs = java_push_consumer(cluster, topic=TOPIC, group=group, namespace=NAMESPACE)
        with Admin(**settings) as admin:
            wait_until(
                "both are members", lambda: len(admin.consumer_ids(group)) == 2, timeout_s=60
            )
        wait_until("two queues each", lambda: len(ours.assignment()) == 2, timeout_s=60)
        java_producer(cluster, topic=TOPIC, count=COUNT, prefix="j-", namespace=NAMESPACE)
        with Producer("GID_namespaced_p", **settings) as producer:
            for number in range(COUNT):
                producer.send(Message(TOPIC, b"p-%d" % number))
        wait_until(
            "all consumed",
            lambda: len(got) + len(theirs.named("message")) >= 2 * COUNT,
            timeout_s=60,
        )
        assert theirs.stop() == 0

    told = theirs.named("message")
    bodies = [body.decode() for _, body in got] + [event["body"] for event in told]
    assert {f"{kind}-{number}" for kind in "jp" for number in range(COUNT)} == set(bodies)
    assert {TOPIC} == {topic for topic, _ in got} == {event["topic"] for event in told}

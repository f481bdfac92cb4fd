"""What Apache's `mqadmin` asks of a member of ours, through a broker."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from sparrowmq import Message, Producer, PushConsumer
from waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


def test_mqadmin_shows_what_our_member_holds(apache_cluster: Any, java: Any) -> None:
    topic, group, seen = "TStatus", "GID_status", threading.Event()
    apache_cluster.create_topic(topic, queues=4)
    with (
        Producer("GID_status_p", name_server=apache_cluster.name_server) as producer,
        PushConsumer(
            group,
            topic,
            name_server=apache_cluster.name_server,
            listener=lambda *_: seen.set(),
            start="first",
        ) as consumer,
    ):
        producer.send(Message(topic, b"x"))
        assert seen.wait(30)
        asked = ("consumerStatus", "-g", group, "-i", consumer.client_id)
        lines = java.mqadmin(apache_cluster, *asked)

    shown = "\n".join(lines.lines)
    assert "#Consumer MQ Detail#" in shown, shown + lines._tail()
    # Not where offsets are listed, but where queues are.
    queues = [line for line in lines.lines if "ProcessQueueInfo [" in line]
    assert sum(line.startswith(f"{topic} ") for line in queues) == 4, shown


def test_mqadmin_has_our_listener_consume_a_message(java: Any, cluster: Any) -> None:
    topic, group = "TDirectly", "GID_directly"
    cluster.create_topic(topic, queues=1)
    got: list[tuple[bytes, str]] = []
    with (
        Producer("GID_directly_p", name_server=cluster.name_server) as producer,
        PushConsumer(
            group,
            topic,
            name_server=cluster.name_server,
            listener=lambda messages, _: got.extend((m.body, m.broker_name) for m in messages),
            start="first",
        ) as consumer,
    ):
        sent = producer.send(Message(topic, b"again"))
        wait_until("the message", lambda: len(got) == 1)
        lines = java.mqadmin(
            cluster,
            *("queryMsgById", "-i", sent.offset_msg_id, "-g", group, "-d", consumer.client_id),
            *(() if java.version.startswith("4.") else ("-t", topic)),
        )

    shown = "\n".join(lines.lines)
    assert "consumeResult=CR_SUCCESS" in shown, shown + lines._tail()
    assert [(b"again", sent.queue.broker_name)] * 2 == got

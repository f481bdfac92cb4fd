"""Our trace as Apache's tools read it, on Apache's broker, which has the index of keys."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from sparrowmq import Admin, Message, Producer, PushConsumer
from waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

TOPIC = "traced-interop"


def test_mqadmin_finds_where_a_message_was_sent_and_consumed(
    java: Any, apache_cluster: Any
) -> None:
    settings: dict[str, Any] = {"name_server": apache_cluster.name_server, "trace": True}
    consumed: list[str] = []
    lock = threading.Lock()

    def take(messages: list[Any], _context: Any) -> None:
        with lock:
            consumed.extend(message.msg_id for message in messages)

    with Admin(name_server=apache_cluster.name_server) as admin:
        admin.create_topic(TOPIC, 2)
    with Producer("GID_traced_p", **settings) as producer:
        sent = [
            producer.send(Message(TOPIC, b"%d" % number, tags="paid", keys=(f"k{number}",)))
            for number in range(20)
        ]
    with PushConsumer("GID_traced_c", TOPIC, listener=take, start="first", **settings):
        wait_until("all consumed", lambda: len(consumed) >= 20, timeout_s=60)
    chosen = sent[7]
    printed = ""

    def is_complete() -> bool:
        nonlocal printed
        told = java.mqadmin(apache_cluster, "queryMsgTraceById", "-i", chosen.msg_id)
        printed = "\n".join(told.lines)
        return "GID_traced_p" in printed and "GID_traced_c" in printed

    # The broker's index of keys follows its log.
    wait_until("trace that is complete", is_complete, timeout_s=90)

    producers = [line.split() for line in printed.splitlines() if "GID_traced_p" in line]
    consumers = [line.split() for line in printed.splitlines() if "GID_traced_c" in line]
    (produced,), (was_consumed,) = producers, consumers
    assert produced[0] == "Pub"
    assert "success" in produced[-1].lower()
    assert "success" in was_consumed[-1].lower()

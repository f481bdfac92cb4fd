"""Our consumer of single messages on Apache's broker of 5.x, and on ours as the same program."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest

from sparrowmq import Admin, Message, MessageExt, Producer, SimpleConsumer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

SHORT = timedelta(seconds=3)
# Apache's broker looks for what is to be delivered again some seconds late.
PATIENCE_S = 60


def receive(consumer: SimpleConsumer, count: int, **given: Any) -> list[MessageExt]:
    found: list[MessageExt] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} messages"
        found += consumer.receive(wait=timedelta(seconds=5), **given)
    return found


def test_messages_are_received_acknowledged_and_given_again(cluster: Any, java: Any) -> None:
    if cluster.name != "ours" and not java.version.startswith("5"):
        pytest.skip("brokers of 4.x know no pops")
    with Admin(name_server=cluster.name_server) as admin:
        admin.create_topic("simple", queues=4)
    with Producer("GID_p", name_server=cluster.name_server) as producer:
        for number in range(8):
            producer.send(Message("simple", str(number).encode(), tags="A"))
    with SimpleConsumer("GID_simple", name_server=cluster.name_server) as consumer:
        consumer.subscribe("simple", "A || B")
        first = receive(consumer, 8, invisible=timedelta(seconds=60))
        assert sorted(each.body for each in first) == [b"%d" % number for number in range(8)]
        consumer.ack(*first[2:])
        kept = consumer.change_invisible(first[0], timedelta(minutes=5))
        consumer.change_invisible(first[1], SHORT)

        (again,) = receive(consumer, 1)
        assert (again.body, again.reconsume_times) == (first[1].body, 1)
        consumer.reject(again)
        consumer.ack(kept)
    with SimpleConsumer("GID_letters", name_server=cluster.name_server) as letters:
        letters.subscribe("%DLQ%GID_simple")
        (letter,) = receive(letters, 1)
        assert letter.body == again.body

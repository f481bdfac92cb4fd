"""Our consumer of single messages on Apache's broker of 5.x, and on ours as the same program."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest

from sparrowmq import (
    Admin,
    ConsumeContext,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
    SimpleConsumer,
)
from waiting import wait_until

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


@pytest.mark.parametrize("java", ["5.5.0"], indirect=True, scope="session")
def test_a_listener_gets_messages_again_and_then_dead_letters_them(cluster: Any, java: Any) -> None:
    del java
    cluster.create_topic("listened", queues=2)
    attempts: dict[bytes, list[int]] = {}

    def listen(messages: list[MessageExt], context: ConsumeContext) -> None:
        for message in messages:
            attempts.setdefault(message.body, []).append(message.reconsume_times)
            if message.body == b"3":
                context.retry(message, delay=timedelta(seconds=1))

    with Producer("GID_p", name_server=cluster.name_server) as producer:
        for number in range(8):
            producer.send(Message("listened", str(number).encode()))
    with PushConsumer(
        "GID_listening",
        "listened",
        name_server=cluster.name_server,
        listener=listen,
        balance="messages",
        start="first",
        max_reconsume_times=1,
    ):
        wait_until("all attempts", lambda: sum(map(len, attempts.values())) == 9, timeout_s=120)
    assert attempts == {b"%d" % number: [0] for number in range(8)} | {b"3": [0, 1]}
    with SimpleConsumer("GID_listening_letters", name_server=cluster.name_server) as letters:
        letters.subscribe("%DLQ%GID_listening")
        (letter,) = receive(letters, 1)
        assert letter.body == b"3"

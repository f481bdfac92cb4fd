"""A queue's broker is at another address, and without the group's offsets, while members live on.

So are the slaves of RocketMQ 5.5.0 that a controller makes the master.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparrowmq import Admin, Message, MessageQueue, PollConsumer, Producer, PushConsumer
from sparrowmq.testing.embedded import EmbeddedCluster
from waiting import wait_until

TOPIC, GROUP = "Orders", "GID_moved"
QUEUE = MessageQueue(TOPIC, "broker-a", 0)
COUNT = 20


class Member:
    """A consumer of a kind, and the offsets that it got."""

    def __init__(self, kind: str, name_server: str) -> None:
        self._offsets: list[int] = []
        self._polls, self._by_hand = kind.startswith("poll"), kind == "poll by hand"
        self.consumer: Any
        if self._polls:
            self.consumer = PollConsumer(
                GROUP, TOPIC, name_server=name_server, auto_commit=not self._by_hand
            )
        else:
            self.consumer = PushConsumer(
                GROUP,
                TOPIC,
                name_server=name_server,
                listener=self._note,
                orderly=kind == "push in order",
            )

    def _note(self, messages: Any, _: object = None) -> None:
        self._offsets += [message.queue_offset for message in messages]

    def got(self) -> list[int]:
        if self._polls:
            messages = self.consumer.poll(timeout_ms=50)
            self._note(messages)
            if messages and self._by_hand:
                self.consumer.commit()
        return self._offsets


@pytest.mark.parametrize("kind", ["push", "push in order", "poll", "poll by hand"])
@pytest.mark.parametrize("is_taken_anew", [False, True], ids=["goes on", "taken anew"])
def test_member_begins_where_it_had_ended(tmp_path: Path, kind: str, is_taken_anew: bool) -> None:
    # The last option holds: each start of the broker is at a free port, the name server stays.
    with EmbeddedCluster(tmp_path, options=("--broker-port", "0")) as cluster:
        cluster.create_topic(TOPIC, queues=1)
        member = Member(kind, cluster.name_server)
        with member.consumer as consumer:
            send(cluster)
            wait_until("all is consumed", lambda: member.got() == list(range(COUNT)))
            wait_until("committed", lambda: member.got() and committed(cluster) == COUNT)
            if is_taken_anew:
                consumer.unsubscribe(TOPIC)
                wait_until("it is given up", lambda: not consumer.assignment())
            before = cluster.broker
            cluster.stop()
            (tmp_path / "store" / "config" / "consumerOffset.json").unlink()
            cluster.start()
            assert cluster.broker != before
            send(cluster)
            if is_taken_anew:
                consumer.subscribe(TOPIC)
            wait_until("what came meanwhile", lambda: len(member.got()) >= 2 * COUNT)
            send(cluster)
            wait_until("what comes now", lambda: len(member.got()) >= 3 * COUNT)
            assert member.got() == list(range(3 * COUNT))


def send(cluster: EmbeddedCluster) -> None:
    with Producer("GID_p", name_server=cluster.name_server) as producer:
        producer.send_batch([Message(TOPIC, b"m")] * COUNT)


def committed(cluster: EmbeddedCluster) -> int | None:
    with Admin(name_server=cluster.name_server) as admin:
        return admin.committed_offset(GROUP, QUEUE)

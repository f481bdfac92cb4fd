"""Two groups on one client instance of ours, at Apache's broker and at ours."""

from __future__ import annotations

from typing import Any

import pytest

from sparrowmq import Admin, Message, Producer, PushConsumer
from sparrowmq.errors import BrokerError
from waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

GROUPS = ("GID_instance_1", "GID_instance_2")


def test_two_groups_share_a_connection_and_one_leaves_alone(java: Any, cluster: Any) -> None:
    topic = cluster.create_topic("TInstance", queues=4)
    got: dict[str, set[bytes]] = {group: set() for group in GROUPS}

    def make(group: str) -> PushConsumer:
        made = PushConsumer(
            group,
            name_server=cluster.name_server,
            listener=lambda messages, _: got[group].update(m.body for m in messages),
            start="first",
            instance_name="shared",
        )
        made.subscribe(topic)
        made.start()
        return made

    def addresses(group: str) -> set[str]:
        try:
            connections = admin.consumer_connections(group).connection_set
        except BrokerError:
            return set()
        return {c.client_addr for c in connections}

    with (
        Admin(name_server=cluster.name_server) as admin,
        Producer("GID_instance_p", name_server=cluster.name_server) as producer,
        make(GROUPS[0]) as first,
        make(GROUPS[1]) as second,
    ):
        producer.send(Message(topic, b"1"))
        wait_until("the message in both", lambda: all(b"1" in bodies for bodies in got.values()))
        one, other = (addresses(group) for group in GROUPS)
        first.close()
        wait_until("the first to be gone", lambda: not addresses(GROUPS[0]))
        producer.send(Message(topic, b"2"))
        wait_until("the next message", lambda: b"2" in got[GROUPS[1]])

        assert len(one) == 1
        assert one == other == addresses(GROUPS[1])
        assert first.client_id == second.client_id
        assert b"2" not in got[GROUPS[0]]

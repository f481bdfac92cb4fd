"""SparrowMQ's marker in the connection list of either broker, beside a member of Java's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sparrowmq import Admin, PushConsumer
from sparrowmq.coordination.member_marker import is_marked

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]


def test_members_that_run_sparrowmq_are_told_from_java(
    cluster: Any, java_push_consumer: Callable[..., Any]
) -> None:
    topic, group = "TMarker", "GID_marker"
    cluster.create_topic(topic, queues=4)
    java_push_consumer(cluster, topic=topic, group=group)
    with (
        PushConsumer(group, name_server=cluster.name_server, listener=lambda *_: None) as ours,
        Admin(name_server=cluster.name_server) as admin,
    ):
        ours.subscribe(topic)
        ours.start()
        connections: dict[str, bool] = {}
        for _ in range(500):
            found = admin.consumer_connections(group).connection_set
            connections = {c.client_id: is_marked(c.version) for c in found}
            if len(connections) == 2 and ours.assignment():
                break

    assert connections.pop(ours.client_id)
    assert list(connections.values()) == [False]

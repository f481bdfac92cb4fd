"""Snapshots of a live group: whom they ask."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from foreign_member import ForeignMember
from sparrowmq import MessageQueue
from sparrowmq.calling.blocking_driver import BlockingDriver
from sparrowmq.client.directory_setup import make_directory
from sparrowmq.client.operations import snapshot
from sparrowmq.doctor.group_view import examine
from sparrowmq.protocol.bodies import ConsumerRunningInfo, ProcessQueueInfo, SubscriptionData
from sparrowmq.testing.embedded import EmbeddedCluster


@pytest.mark.parametrize(
    ("strategy", "asked_count"),
    [("AllocateMachineRoomNearby", 3), ("AllocateMessageQueueAveragely", 1)],
)
def test_all_members_of_a_large_group_are_asked_where_nobody_can_compute_its_owners(
    cluster: EmbeddedCluster,
    topic: str,
    group: str,
    monkeypatch: pytest.MonkeyPatch,
    strategy: str,
    asked_count: int,
) -> None:
    monkeypatch.setattr(snapshot, "RUNNING_INFO_MEMBERS_MAX", 1)
    name = f"{topic}-of-three"
    cluster.create_topic(name, queues=3)
    queues = [MessageQueue(name, "broker-a", n) for n in range(3)]
    driver = BlockingDriver()
    with ExitStack() as held:
        held.callback(driver.close)
        for number, queue in enumerate(queues):
            says = ConsumerRunningInfo(
                properties={"allocateMessageQueueStrategy": f"a.rebalance.{strategy}@1f"},
                subscription_set=[SubscriptionData(topic=name)],
                mq_table={queue: ProcessQueueInfo()},
            )
            client_id = f"10.0.0.{number}@1"
            member = ForeignMember(cluster.broker, group, name, client_id=client_id, says=says)
            held.callback(member.close)
        directory = make_directory(cluster.name_server, timeout_ms=10_000)
        seen = driver.run(snapshot.take_snapshot(directory, group))

    assert len(seen.reports) == asked_count
    owners = examine(seen).queues
    assert [owners[queue].owner_ids for queue in queues] == [
        ("10.0.0.0@1",),
        ("10.0.0.1@1",),
        ("10.0.0.2@1",),
    ]

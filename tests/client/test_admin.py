"""What administrators list and change, by both faces."""

from __future__ import annotations

import pytest

from sparrowmq import Admin, AsyncAdmin, Message, MessageQueue, Producer
from sparrowmq.client.operations.reset import Target
from sparrowmq.errors import TopicRouteNotFound
from sparrowmq.testing.embedded import EmbeddedCluster


def test_topics_and_groups_are_listed_and_a_group_moved(
    admin: Admin, producer: Producer, topic: str, group: str
) -> None:
    queue = MessageQueue(topic, "broker-a", 3)
    for _ in range(4):
        producer.send(Message(topic, b"x"), queue=queue)
    admin.update_offset(group, queue, 1)

    assert topic in admin.list_topics()
    assert group in admin.list_groups()
    assert "TOOLS_CONSUMER" not in admin.list_groups()
    status = admin.topic_status(topic)
    assert ((group,), 4) == (status.groups, status.queues[3].max_offset)
    seen = admin.overview()
    assert [3] == [each.lag for each in seen.groups if each.group == group]

    planned = admin.reset_offsets(group, topic, Target(is_latest=True), dry_run=True)
    assert ([1], [4]) == ([planned.queues[3].before], [planned.queues[3].after])
    assert 1 == admin.committed_offset(group, queue)
    admin.reset_offsets(group, topic, Target(is_latest=True))
    assert 4 == admin.committed_offset(group, queue)

    admin.delete_group(group)
    assert group not in admin.list_groups()
    with pytest.raises(TopicRouteNotFound):
        admin.topic_status("no-such-topic")


async def test_the_asyncio_face_does_the_same(
    cluster: EmbeddedCluster, topic: str, group: str
) -> None:
    async with AsyncAdmin(name_server=cluster.name_server) as admin:
        assert topic in await admin.list_topics()
        await admin.update_offset(group, MessageQueue(topic, "broker-a", 0), 0)
        assert group in await admin.list_groups()
        assert topic in [each.topic for each in (await admin.overview()).topics]
        plan = await admin.reset_offsets(group, topic, Target(is_earliest=True))
        assert 8 == len(plan.queues)
        await admin.delete_group(group)
        assert group not in await admin.list_groups()

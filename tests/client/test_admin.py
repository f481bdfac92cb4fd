"""What administrators list and change, by both faces."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sparrowmq import Admin, AsyncAdmin, Message, MessageQueue, Producer, PushConsumer
from sparrowmq.errors import BrokerError, ConfigError, TopicRouteNotFound, UsageError
from sparrowmq.testing.embedded import EmbeddedCluster


def test_topics_and_groups_are_listed_and_a_group_moved(
    admin: Admin, producer: Producer, topic: str, group: str
) -> None:
    queue = MessageQueue(topic, "broker-a", 3)
    for _ in range(4):
        producer.send(Message(topic, b"x"), queue=queue)
    admin.update_committed_offset(group, queue, 1)

    assert topic in admin.list_topics()
    assert group in admin.list_groups()
    assert "TOOLS_CONSUMER" not in admin.list_groups()
    status = admin.topic_status(topic)
    assert (status.groups, status.queues[3].max_offset) == ((group,), 4)
    seen = admin.overview()
    assert [each.lag for each in seen.groups if each.group == group] == [3]

    planned = admin.reset_offsets(group, topic, to="latest", dry_run=True)
    assert ([planned.queues[3].before], [planned.queues[3].after]) == ([1], [4])
    assert admin.committed_offset(group, queue) == 1
    admin.reset_offsets(group, topic, to="latest")
    assert admin.committed_offset(group, queue) == 4
    # The other queues are empty, and 0 is their end.
    admin.reset_offsets(group, topic, offset=0)
    assert admin.committed_offset(group, queue) == 0

    admin.delete_group(group)
    assert group not in admin.list_groups()
    with pytest.raises(TopicRouteNotFound):
        admin.topic_status("no-such-topic")


async def test_the_asyncio_face_does_the_same(
    cluster: EmbeddedCluster, topic: str, group: str
) -> None:
    async with AsyncAdmin(name_server=cluster.name_server) as admin:
        assert topic in await admin.list_topics()
        await admin.update_committed_offset(group, MessageQueue(topic, "broker-a", 0), 0)
        assert group in await admin.list_groups()
        assert topic in [each.topic for each in (await admin.overview()).topics]
        plan = await admin.reset_offsets(group, topic, to="earliest")
        assert len(plan.queues) == 8
        await admin.delete_group(group)
        assert group not in await admin.list_groups()


def test_messages_are_read_by_offset_and_by_time(
    cluster: EmbeddedCluster, admin: Admin, producer: Producer, numbers: Iterator[int]
) -> None:
    topic = f"T{next(numbers)}"
    cluster.create_topic(topic, queues=2)
    for n in range(100):
        producer.send(Message(topic, b"%d" % n), queue=MessageQueue(topic, "broker-a", n % 2))
    queue = MessageQueue(topic, "broker-a", 1)

    assert [m.body for m in admin.messages_at(queue, 3)] == [b"7"]
    assert list(range(10, 50)) == [m.queue_offset for m in admin.messages_at(queue, 10, 1_000)]
    assert admin.messages_at(queue, 50) == []
    everything = admin.messages_since(topic, 0, 1_000)
    assert len(everything) == 100
    times = [message.store_timestamp_ms for message in everything]
    assert sorted(times) == times
    assert len(admin.messages_since(topic, 0, 5)) == 5
    assert admin.messages_since(topic, times[-1] + 60_000) == []
    with pytest.raises(ConfigError, match="count_max"):
        admin.messages_at(queue, 0, 0)


def test_topics_and_groups_are_changed_after_a_look_at_what_changes(
    admin: Admin, topic: str, group: str
) -> None:
    (planned,) = admin.update_topic(topic, read_queues=12, perm="r", dry_run=True)
    assert (
        planned.before.read_queue_nums,
        planned.after.read_queue_nums,
        planned.after.perm,
    ) == (8, 12, 4)
    assert admin.topic_status(topic).places[0].read_queue_nums == 8
    admin.update_topic(topic, read_queues=12)
    assert admin.topic_status(topic).places[0].read_queue_nums == 12
    with pytest.raises(ConfigError, match="are none of r, w, rw, none"):
        admin.update_topic(topic, perm="RWX")

    admin.update_group(group, max_reconsume_times=3)
    (change,) = admin.update_group(group, is_enabled=False, dry_run=True)
    assert change.before is not None
    assert (
        change.before.retry_max_times,
        change.before.consume_enable,
        change.after.consume_enable,
    ) == (3, True, False)


def test_offsets_are_cloned_to_a_group_without_members(
    admin: Admin, cluster: EmbeddedCluster, topic: str, group: str
) -> None:
    queues = [MessageQueue(topic, "broker-a", n) for n in (1, 3)]
    for queue in queues:
        admin.update_committed_offset(group, queue, 0)
    copy = f"{group}_copy"

    cloned = admin.clone_offsets(group, copy, topic)

    assert set(queues) <= set(cloned)
    assert admin.committed_offset(copy, queues[0]) == 0
    with PushConsumer(copy, topic, name_server=cluster.name_server, listener=take) as consumer:
        consumer.wait_assigned()
        snapshot = admin.group_snapshot(copy)
        with pytest.raises(UsageError, match="has 1 members, which would go on where they are"):
            admin.clone_offsets(group, copy, topic)
    assert [consumer.client_id] == [report.client_id for report in snapshot.reports]


def test_brokers_tell_what_they_are_and_take_settings(admin: Admin, topic: str) -> None:
    (broker,) = admin.list_brokers()
    assert (broker.name, broker.cluster) == ("broker-a", "DefaultCluster")
    assert float(admin.broker_stats("broker-a")["commitLogDiskRatio"]) >= 0
    assert admin.broker_config(broker.address)["brokerName"] == "broker-a"
    known = admin.broker_config("broker-a")["fileReservedTime"]
    admin.update_broker_config("broker-a", {"fileReservedTime": "99"})
    assert admin.broker_config("broker-a")["fileReservedTime"] == "99"
    admin.update_broker_config("broker-a", {"fileReservedTime": known})
    try:
        assert admin.set_broker_writable("broker-a", is_writable=False) > 0
    finally:
        assert admin.set_broker_writable("broker-a", is_writable=True) > 0
    with pytest.raises(UsageError, match="did you mean broker-a"):
        admin.broker_stats("broker-b")


def test_accounts_need_access_control(admin: Admin) -> None:
    with pytest.raises(BrokerError):
        admin.list_accounts()


def take(messages: object, context: object) -> None: ...

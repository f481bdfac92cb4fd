"""What administrators do, at Apache's broker."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

import pytest

from sparrowmq import Admin, Message, MessageQueue, Producer, PushConsumer
from sparrowmq.calling.blocking_driver import BlockingDriver
from sparrowmq.client.operations.request import ask
from sparrowmq.errors import BrokerError
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.header_codec import decode_header
from sparrowmq.protocol.headers import SearchOffsetRequestHeader, SearchOffsetResponseHeader
from waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

TOPIC = "administered"


def test_brokers_topics_messages_and_offsets_at_apaches_broker(apache_cluster: Any) -> None:
    with Admin(name_server=apache_cluster.name_server) as admin:
        admin.create_topic(TOPIC, 2)
        (broker,) = admin.list_brokers()
        queue = MessageQueue(TOPIC, broker.name, 1)
        with Producer("GID_p", name_server=apache_cluster.name_server) as producer:
            # More than one request takes.
            messages = [Message(TOPIC, b"%d" % n + bytes(9_000)) for n in range(600)]
            result = producer.send_batch(messages, queue=queue)

        assert len(set(result.msg_id.split(","))) == 600
        # Apache's brokers list a message a moment after it is stored.
        wait_until("the last message", lambda: admin.messages_at(queue, 599))
        (found,) = admin.messages_at(queue, 599)
        assert found.body.startswith(b"599\x00")
        recent = admin.messages_since(TOPIC, 0, 40)
        assert list(range(40)) == [message.queue_offset for message in recent]

        def tells_stats() -> bool:
            try:
                return "commitLogDiskRatio" in admin.broker_stats(broker.name)
            except BrokerError:
                # 4.9.7 fails with this until it has taken its first sample.
                return False

        wait_until("figures of the broker", tells_stats, timeout_s=60)
        assert broker.name == admin.broker_config(broker.name)["brokerName"]
        (change,) = admin.update_topic(TOPIC, read_queues=3)
        assert (change.before.read_queue_nums, change.after.read_queue_nums) == (2, 3)
        # From 5.x on, a group must be known before offsets of it are.
        for group in ("GID_first", "GID_second"):
            admin.update_group(group, max_reconsume_times=3)
        admin.update_committed_offset("GID_first", queue, 7)
        assert admin.clone_offsets("GID_first", "GID_second", TOPIC)[queue] == 7
        assert admin.committed_offset("GID_second", queue) == 7


def test_what_a_live_group_does_is_seen(java: Any, cluster: Any) -> None:
    topic, group = cluster.create_topic("administered-live", queues=2), "GID_administered"
    with (
        Admin(name_server=cluster.name_server) as admin,
        Producer("GID_p", name_server=cluster.name_server) as producer,
        PushConsumer(
            group, {topic: "A || B"}, name_server=cluster.name_server, listener=lambda *_: None
        ) as consumer,
    ):
        assert len(consumer.wait_assigned(60_000)) == 2
        sent = producer.send(Message(topic, b"x", tags="A", keys=("key-7",)))
        assert consumer.wait_idle(60_000)

        assert topic in admin.list_topics()
        assert group in admin.list_groups()
        assert {queue.broker_name for queue in admin.route(topic).subscribe_queues} == {"broker-a"}
        assert [consumer.client_id] == admin.consumer_ids(group)
        connected = admin.consumer_connections(group)
        assert [consumer.client_id] == [each.client_id for each in connected.connection_set]
        snapshot = admin.group_snapshot(group)
        assert [consumer.client_id] == [report.client_id for report in snapshot.reports]
        status = admin.topic_status(topic)
        assert sum(each.max_offset - each.min_offset for each in status.queues) == 1
        assert (admin.min_offset(sent.queue), admin.max_offset(sent.queue)) == (0, 1)
        wait_until("the commit", lambda: admin.committed_offset(group, sent.queue) == 1)
        (lag,) = (each for each in admin.group_lag(group, topic) if each.queue == sent.queue)
        assert (lag.max_offset, lag.committed_offset, lag.lag) == (1, 1, 0)
        wait_until("the index", lambda: admin.query_message(topic, "key-7"), timeout_s=60)
        found = admin.view_message(topic, sent.msg_id)
        assert found is not None
        assert (sent.queue, b"x") == (found.queue, found.body)
        assert topic in {each.topic for each in admin.overview().topics}
    with Admin(name_server=cluster.name_server) as admin:
        admin.delete_group(group)
        admin.delete_topic(topic)
        wait_until("its end", lambda: topic not in admin.list_topics(), timeout_s=60)


def test_offsets_of_a_time_are_those_of_apaches_broker(
    java: Any, cluster: Any, request: pytest.FixtureRequest
) -> None:
    queue = MessageQueue(cluster.create_topic("searched", queues=1), "broker-a", 0)
    is_apaches = cluster is request.getfixturevalue("apache_cluster")
    with (
        closing(BlockingDriver()) as driver,
        Admin(name_server=cluster.name_server) as admin,
        Producer("GID_p", name_server=cluster.name_server) as producer,
    ):
        for _ in range(4):
            # A batch is stored in one millisecond, the next in another.
            producer.send_batch([Message(queue.topic, b"x")] * 5, queue=queue)
            time.sleep(0.01)
        wait_until("the last message", lambda: admin.messages_at(queue, 19))
        stored = [message.store_timestamp_ms for message in admin.messages_at(queue, 0, 20)]
        assert len(set(stored)) == 4
        for at_ms in {each + after for each in stored for after in (-1, 0, 1)}:
            lower = sum(each < at_ms for each in stored)
            upper = max(0, sum(each <= at_ms for each in stored) - 1)
            found = admin.search_offset(queue, at_ms)
            if java.version == "4.9.7" and is_apaches:
                # It knows no boundaries, and finds a message that is as near as any.
                distances = [abs(each - at_ms) for each in stored]
                assert distances[found] == min(distances)
                continue
            header = SearchOffsetRequestHeader(
                topic=queue.topic,
                queue_id=queue.queue_id,
                timestamp_ms=at_ms,
                boundary_type="UPPER",
            )
            asked = ask(cluster.broker, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
            fields = driver.run(asked).ext_fields
            answered = decode_header(SearchOffsetResponseHeader, fields).offset
            assert (found, answered) == (lower, upper)

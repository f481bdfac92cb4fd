"""What administrators do, at Apache's broker."""

from __future__ import annotations

from typing import Any

import pytest

from sparrowmq import Admin, Message, MessageQueue, Producer
from sparrowmq.errors import BrokerError
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

        assert 600 == len(set(result.msg_id.split(",")))
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
        assert (2, 3) == (change.before.read_queue_nums, change.after.read_queue_nums)
        # From 5.x on, a group must be known before offsets of it are.
        for group in ("GID_first", "GID_second"):
            admin.update_group(group, max_reconsume_times=3)
        admin.update_committed_offset("GID_first", queue, 7)
        assert 7 == admin.clone_offsets("GID_first", "GID_second", TOPIC)[queue]
        assert 7 == admin.committed_offset("GID_second", queue)

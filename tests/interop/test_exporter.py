"""The series of Apache's cluster: the exporter asks only what every RocketMQ answers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from sparrowmq import Admin, Message, Producer, PushConsumer
from sparrowmq.calling.async_driver import AsyncDriver
from sparrowmq.client.directory_setup import make_directory
from sparrowmq.exporter.cluster_series import CLUSTER_SERIES
from sparrowmq.exporter.watch import ClusterWatch

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

TOPIC, GROUP = "exported", "GID_exported"


async def test_owners_and_lag_of_a_group_at_apaches_broker(apache_cluster: Any) -> None:
    registry = CollectorRegistry()

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, labels)

    settings: dict[str, Any] = {"name_server": apache_cluster.name_server}
    with Admin(**settings) as admin:
        admin.create_topic(TOPIC, 4)
    with Producer("GID_p", **settings) as producer:
        for number in range(8):
            producer.send(Message(TOPIC, b"%d" % number))
    async with AsyncDriver() as driver:
        directory = make_directory(apache_cluster.name_server)
        watch = ClusterWatch(directory, driver, interval_s=1.0)
        registry.register(watch)
        with PushConsumer(
            GROUP, TOPIC, listener=lambda messages, context: None, start="first", **settings
        ) as consumer:
            await asyncio.to_thread(consumer.wait_idle)
            async with asyncio.timeout(120):
                while value("sparrowmq_group_lag", group=GROUP, topic=TOPIC) != 0:
                    await watch.look()

    queues = [
        sample.labels
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "sparrowmq_queue_owner" and sample.labels["group"] == GROUP
    ]
    assert {consumer.client_id} == {labels["client_id"] for labels in queues}
    assert {labels["queue"] for labels in queues} == {"0", "1", "2", "3"}
    assert value("sparrowmq_unowned_queues", group=GROUP) == 0
    assert value("sparrowmq_group_members", group=GROUP) == 1
    assert value("sparrowmq_topic_end_offset", topic=TOPIC, broker="broker-a") == 8
    # Nothing has rebalanced since the first look, no member shares by load, and Apache's brokers
    # say rates only once they have run for a while, and never what is in flight.
    quiet = {
        "sparrowmq_rebalance",
        "sparrowmq_member_load",
        "sparrowmq_broker_puts_per_second",
        "sparrowmq_broker_gets_per_second",
        "sparrowmq_group_in_flight",
        "sparrowmq_group_oldest_in_flight_seconds",
        "sparrowmq_group_renewals",
    }
    found = {family.name for family in registry.collect()}
    assert {series.name for series in CLUSTER_SERIES} - found <= quiet

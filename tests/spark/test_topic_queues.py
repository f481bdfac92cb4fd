"""What a plan costs: routes and bounds of many queues, and where a broker gives no table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from sparrowmq.errors import BrokerError
from sparrowmq.model import MessageQueue
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.spark.bounds import QueueBounds
from sparrowmq.spark.topic_queues import Cluster

if TYPE_CHECKING:
    from .conftest import FakeCluster
else:
    FakeCluster = Any


@pytest.fixture
def cluster(fake_cluster: FakeCluster) -> Iterator[Cluster]:
    found = Cluster((fake_cluster.address,), request_timeout_ms=5_000)
    yield found
    found.driver.close()


def plan(cluster: Cluster, *topics: str) -> dict[MessageQueue, QueueBounds]:
    cluster.run(cluster.refresh(topics))
    return cluster.run(cluster.fetch_bounds(cluster.find_queues(topics)))


def test_a_thousand_queues_take_a_request_for_each_topic_of_a_broker(
    fake_cluster: FakeCluster, cluster: Cluster
) -> None:
    topics = [f"T{number}" for number in range(20)]
    for topic in topics:
        fake_cluster.create_topic(topic, queues=50)
    fake_cluster.append("T7", 49, 3)

    bounds = plan(cluster, *topics)

    assert len(bounds) == 1_000
    assert bounds[MessageQueue("T7", "broker-a", 49)] == QueueBounds(0, 3)
    assert Counter(fake_cluster.request_codes) == {
        RequestCode.GET_ROUTEINFO_BY_TOPIC: 20,
        RequestCode.GET_TOPIC_STATS_INFO: 20,
    }


def test_queues_that_the_table_leaves_out_are_asked_for_one_by_one(
    fake_cluster: FakeCluster, cluster: Cluster
) -> None:
    fake_cluster.create_topic("T", queues=4)
    fake_cluster.append("T", 3, 5)
    fake_cluster.table_queues_max = 3

    bounds = plan(cluster, "T")

    assert [bounds[queue].max_offset for queue in sorted(bounds)] == [0, 0, 0, 5]
    assert Counter(fake_cluster.request_codes)[RequestCode.GET_MAX_OFFSET] == 1


def test_a_broker_that_gives_no_table_is_asked_queue_by_queue(
    fake_cluster: FakeCluster, cluster: Cluster
) -> None:
    fake_cluster.create_topic("T", queues=2)
    fake_cluster.append("T", 1, 7)
    fake_cluster.table_refusal = ResponseCode.NO_PERMISSION

    assert [found.max_offset for found in plan(cluster, "T").values()] == [0, 7]


def test_a_broker_that_is_busy_is_not_asked_queue_by_queue(
    fake_cluster: FakeCluster, cluster: Cluster
) -> None:
    fake_cluster.create_topic("T", queues=2)
    fake_cluster.table_refusal = ResponseCode.SYSTEM_BUSY

    with pytest.raises(BrokerError):
        plan(cluster, "T")
    assert RequestCode.GET_MAX_OFFSET not in fake_cluster.request_codes

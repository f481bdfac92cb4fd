"""What a plan costs: routes and bounds of many queues, and where a broker gives no table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from sparrowmq.calling import clock
from sparrowmq.calling.effects import Now, Operation, Sleep
from sparrowmq.errors import BrokerError, ConnectFailed
from sparrowmq.model import MessageQueue
from sparrowmq.model.namespace import Namespace
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.signatures import Credentials
from sparrowmq.spark import topic_queues
from sparrowmq.spark.bounds import QueueBounds
from sparrowmq.spark.connection_options import TlsFiles
from sparrowmq.spark.options import parse_options
from sparrowmq.spark.topic_queues import (
    CLUSTERS_MAX,
    RETRY_PAUSE_MS_MAX,
    Cluster,
    connect,
    disconnect,
    persist,
)

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


def test_a_plan_knows_of_a_queue_that_came_in_the_millisecond_of_the_last_one(
    fake_cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = clock.monotonic_ms()
    monkeypatch.setattr(clock, "monotonic_ms", lambda: now_ms)
    cluster = Cluster((fake_cluster.address,), request_timeout_ms=5_000)
    counts = []
    for queues in (1, 2):
        fake_cluster.create_topic("T", queues=queues)
        counts.append(len(plan(cluster, "T")))
    cluster.driver.close()

    assert counts == [1, 2]


def test_a_queue_whose_messages_are_all_gone_is_empty(
    fake_cluster: FakeCluster, cluster: Cluster
) -> None:
    fake_cluster.create_topic("T", queues=1)
    fake_cluster.append("T", 0, 3)
    fake_cluster.topics["T"]["broker-a", 0].min_offset = 5

    assert list(plan(cluster, "T").values()) == [QueueBounds(3, 3)]


def test_a_process_keeps_connections_to_few_clusters_and_to_each_account_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = parse_options({"nameServer": "127.0.0.1:1", "topic": "T"}, scope="batch")
    account = Credentials(access_key="me", secret_key="hush")
    others = [
        replace(options, credentials=account),
        replace(options, namespace=Namespace("n")),
        replace(options, tls=TlsFiles(None, None, None, check_hostname=False)),
        replace(options, name_servers=("127.0.0.1:2",)),
    ]
    # Tests before this one may have left some open.
    disconnect()
    try:
        found = [connect(each) for each in (options, *others)]

        assert len({*map(id, found)}) == len(found)
        assert [connect(each) for each in (options, *others)] == found
        with monkeypatch.context() as child:
            child.setattr("os.getpid", lambda: -1)
            assert connect(options) not in found
        for number in range(CLUSTERS_MAX):
            connect(replace(options, request_timeout_ms=1 + number))
            assert len(topic_queues._CLUSTERS) <= CLUSTERS_MAX
    finally:
        disconnect()


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


def run_virtually(operation: Operation[str], passed_ms: list[int]) -> str:
    """Run an operation in virtual time."""
    answer: int | None = None
    while True:
        try:
            effect = operation.send(answer)
        except StopIteration as stop:
            found: str = stop.value
            return found
        if isinstance(effect, Sleep):
            passed_ms[0] += effect.duration_ms
        answer = passed_ms[0] if isinstance(effect, Now) else None


@pytest.mark.parametrize("away_ms", [0, 60_000, 295_000])
def test_a_broker_that_is_away_is_waited_for_by_time(
    away_ms: int, caplog: pytest.LogCaptureFixture
) -> None:
    passed_ms = [0]

    def attempt() -> Operation[str]:
        if passed_ms[0] < away_ms:
            raise ConnectFailed("broker 127.0.0.1:10911 refuses the connection")
        yield from ()
        return "here"

    found = run_virtually(persist(300_000, attempt), passed_ms)

    assert found == "here"
    assert passed_ms[0] - away_ms <= RETRY_PAUSE_MS_MAX
    # One line that says for whom, and one at the end.
    assert len(caplog.messages) == (2 if away_ms else 0)
    assert not away_ms or "waits up to 300 s: broker 127.0.0.1:10911" in caplog.messages[0]


def test_the_wait_for_a_broker_ends() -> None:
    passed_ms = [0]

    def attempt() -> Operation[str]:
        raise ConnectFailed("broker 127.0.0.1:10911 refuses the connection")
        yield

    with pytest.raises(ConnectFailed):
        run_virtually(persist(300_000, attempt), passed_ms)

    assert passed_ms[0] == 300_000

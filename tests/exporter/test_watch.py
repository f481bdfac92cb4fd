"""The series of a cluster as Prometheus reads them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from prometheus_client import CollectorRegistry

from group_stage import GroupStage
from group_views import view_at
from server_processes import Servers
from sparrowmq import Admin, Message, Producer
from sparrowmq.calling.async_driver import AsyncDriver
from sparrowmq.calling.effects import Operation, sleep
from sparrowmq.client.directory_setup import make_directory
from sparrowmq.client.operations.groups import GroupChange, update_group
from sparrowmq.client.operations.routes import find_brokers
from sparrowmq.doctor.group_view import examine
from sparrowmq.errors import InvokeTimeout
from sparrowmq.exporter import watch
from sparrowmq.exporter.cluster_series import CLUSTER_SERIES
from sparrowmq.exporter.group_counts import GroupCounts
from sparrowmq.exporter.watch import ClusterWatch
from sparrowmq.protocol.bodies import SubscriptionGroupConfig
from sparrowmq.testing import EmbeddedCluster

pytestmark = pytest.mark.slow


class Scraped:
    """A watch, and its samples by name and labels."""

    def __init__(self, watch: ClusterWatch) -> None:
        self.watch = watch
        self.registry = CollectorRegistry()
        self.registry.register(watch)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)

    def owners(self, group: str) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for family in self.registry.collect():
            for sample in family.samples:
                if sample.name == "sparrowmq_queue_owner" and sample.labels["group"] == group:
                    ids = found.setdefault(sample.labels["queue"], set())
                    ids.add(sample.labels["client_id"])
        return found


@pytest_asyncio.fixture
async def scraped(cluster: EmbeddedCluster) -> AsyncIterator[Scraped]:
    directory = make_directory(cluster.name_server)
    async with AsyncDriver() as driver:
        yield Scraped(ClusterWatch(directory, driver, interval_s=1.0))


@pytest.mark.parametrize("is_broadcasting", [False, True])
def test_a_wait_is_shown_where_brokers_know_what_is_consumed(*, is_broadcasting: bool) -> None:
    view = view_at(1_000, lag=1, is_broadcasting=is_broadcasting)
    sample = view.snapshot.last
    progress = tuple(each._replace(wait_ms=20_000 * bool(each.lag)) for each in sample.progress)
    snapshot = replace(view.snapshot, samples=(replace(sample, progress=progress),))
    counts = GroupCounts()
    counts.note(examine(snapshot), ())

    shown = watch.make_families(None, {"G": counts}, is_up=True)

    waits = [s.value for f in shown for s in f.samples if s.name == "sparrowmq_group_lag_seconds"]
    assert waits == ([] if is_broadcasting else [20.0])


async def test_groups_beyond_the_bound_have_the_lag_alone(
    stage: GroupStage, scraped: Scraped, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.send([b"a"])
    stage.join("one")
    while scraped.value("sparrowmq_group_members", group=stage.group) != 1:
        await scraped.watch.look()
    monkeypatch.setattr(watch, "GROUPS_MAX", 0)

    await scraped.watch.look()

    assert scraped.value("sparrowmq_group_members", group=stage.group) is None
    assert scraped.value("sparrowmq_group_retry_lag", group=stage.group) is not None


async def test_a_group_with_too_many_queues_leaves_the_series_to_others(
    stage: GroupStage, scraped: Scraped, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Admin(name_server=stage.cluster.name_server) as admin:
        admin.create_topic("T_wide", queues=1_000)
        # What is abandoned with a lag stands before groups with members.
        with Producer("GID_p", name_server=stage.cluster.name_server) as producer:
            sent = producer.send(Message("T_wide", b"x"))
        admin.update_committed_offset("GID_wide", sent.queue, 0)
    stage.join("one")
    # The cluster's other groups have fewer queues together.
    monkeypatch.setattr(watch, "QUEUES_MAX", 999)

    while scraped.value("sparrowmq_group_members", group=stage.group) != 1:
        await scraped.watch.look()

    names = list(scraped.watch._groups)
    assert names.index("GID_wide") < names.index(stage.group)
    assert len(scraped.owners(stage.group)) == 4
    assert (scraped.value("sparrowmq_queues_left_out") or 0) >= 1_000


async def test_every_series_has_a_sample_and_owners_are_named(
    stage: GroupStage, scraped: Scraped
) -> None:
    stage.send([b"a", b"b", b"c", b"d", b"e"])
    stage.join("one")
    group, topic = stage.group, stage.topic
    await scraped.watch.look()
    stage.join("two")
    while not scraped.value("sparrowmq_rebalance_total", group=group, reason="joined"):
        await scraped.watch.look()
    while scraped.value("sparrowmq_rebalance_seconds_count", group=group) != 1:
        await scraped.watch.look()
    while scraped.value("sparrowmq_group_lag", group=group, topic=topic) != 0:
        await scraped.watch.look()

    owners = scraped.owners(group)
    assert owners.keys() == {"0", "1", "2", "3"}
    assert {each for ids in owners.values() for each in ids} == {"172.17.0.1@one", "172.17.0.1@two"}
    labels = {"group": group, "topic": topic, "broker": "broker-a", "queue": "3"}
    assert scraped.value("sparrowmq_queue_owners", **labels) == 1
    assert scraped.value("sparrowmq_group_members", group=group) == 2
    # Growth is counted from here on.
    assert scraped.value("sparrowmq_rebalance_total", group=group, reason="twin") == 0
    assert scraped.value("sparrowmq_unowned_queues", group=group) == 0
    assert scraped.value("sparrowmq_duplicate_client_ids", group=group) == 0
    assert scraped.value("sparrowmq_topic_end_offset", topic=topic, broker="broker-a") == 5
    assert scraped.value("sparrowmq_broker_up", broker="broker-a", cluster="DefaultCluster") == 1
    families = {family.name for family in scraped.registry.collect()}
    # Groups that divide by load, or consume by message: see doctor/test_plans.py, test_by_message.
    assert {series.name for series in CLUSTER_SERIES} - families == {
        "sparrowmq_member_load",
        "sparrowmq_group_in_flight",
        "sparrowmq_group_oldest_in_flight_seconds",
        "sparrowmq_group_renewals",
    }


async def test_twins_and_the_queues_that_they_leave_unowned_are_shown(
    stage: GroupStage, scraped: Scraped
) -> None:
    stage.start_process("twin")
    stage.start_process("twin")
    group = stage.group

    while scraped.value("sparrowmq_duplicate_client_ids", group=group) != 1:
        await scraped.watch.look()
    while not scraped.value("sparrowmq_unowned_queues", group=group):
        await scraped.watch.look()

    assert scraped.value("sparrowmq_group_members", group=group) == 2
    assert (scraped.value("sparrowmq_findings", group=group, severity="error") or 0) > 0


async def test_looks_that_a_silent_broker_delays_do_not_wait_for_each_other(
    stage: GroupStage, scraped: Scraped, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{stage.group}_{number}" for number in range(3)]
    with Admin(name_server=stage.cluster.name_server) as admin:
        stage.send([b"a"])
        (queue, *_) = admin.route(stage.topic).publish_queues
        for name in names:
            admin.update_committed_offset(name, queue, 0)
    begun: set[str] = set()

    def look(_: object, group: str, **_options: bool) -> Operation[None]:
        begun.add(group)
        while not begun.issuperset(names):
            yield from sleep(10)
        raise InvokeTimeout("the broker did not answer")

    monkeypatch.setattr(watch, "take_snapshot", look)
    async with asyncio.timeout(20):
        await scraped.watch.look()

    assert begun.issuperset(names)


async def test_cluster_that_is_not_there_is_down_and_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    directory = make_directory("127.0.0.1:1", timeout_ms=200)
    async with AsyncDriver() as driver:
        silent = Scraped(ClusterWatch(directory, driver, interval_s=1.0))
        assert silent.value("sparrowmq_up") == 0
        await silent.watch.look()
        await silent.watch.look()

    assert silent.value("sparrowmq_up") == 0
    assert len([line for line in caplog.messages if "cannot be looked at" in line]) == 1


async def test_a_silent_broker_is_down_and_the_others_are_looked_at(tmp_path: Path) -> None:
    servers = Servers(tmp_path / "data")
    try:
        with (
            Admin(name_server=servers.name_server) as admin,
            Producer("GID_p", name_server=servers.name_server) as producer,
        ):
            admin.create_topic("T", queues=1)
            first, second = admin.route("T").publish_queues
            producer.send(Message("T", b"x"), queue=second)
            for queue in (first, second):
                admin.update_committed_offset("GID_g", queue, 0)
        directory = make_directory(servers.name_server, timeout_ms=500)
        async with AsyncDriver() as driver:
            scraped = Scraped(ClusterWatch(directory, driver, interval_s=1.0))

            def seen() -> list[float | None]:
                names = (first.broker_name, second.broker_name)
                brokers = [{"broker": name, "cluster": "DefaultCluster"} for name in names]
                found = [scraped.value("sparrowmq_broker_up", **labels) for labels in brokers]
                return [scraped.value("sparrowmq_up"), *found]

            def growing() -> list[tuple[float | None, ...]]:
                names = (first.broker_name, second.broker_name)
                return [
                    (
                        scraped.value("sparrowmq_topic_end_offset", topic="T", broker=name),
                        scraped.value("sparrowmq_group_retried", group="GID_g", broker=name),
                        scraped.value("sparrowmq_group_dead_letters", group="GID_g", broker=name),
                    )
                    for name in names
                ]

            await scraped.watch.look()
            assert seen() == [1, 1, 1]
            assert growing() == [(0, 0, 0), (1, 0, 0)]
            os.kill(servers.children()["store"], signal.SIGSTOP)
            await scraped.watch.look()
            assert seen() == [1, 0, 1]
            # A sum over brokers would fall now, and grow later by what is no news.
            assert growing() == [(None, None, None), (1, 0, 0)]
            assert scraped.value("sparrowmq_group_lag", group="GID_g", topic="T") == 1
            brokers = await driver.run(find_brokers(directory.name_servers))
            new = SubscriptionGroupConfig(group_name="GID_new")
            await driver.run(update_group(directory, [GroupChange(brokers[1], None, new)]))
            await scraped.watch.look()
            assert scraped.value("sparrowmq_group_members", group="GID_new") == 0
            os.kill(servers.children()["store-2"], signal.SIGSTOP)
            await scraped.watch.look()
            assert seen() == [0, 0, 0]
            for pid in servers.children().values():
                os.kill(pid, signal.SIGCONT)
            while seen() != [1, 1, 1]:
                await scraped.watch.look()
    finally:
        for pid in servers.children().values():
            os.kill(pid, signal.SIGCONT)
        servers.end()

"""The way out of one machine: Apache's brokers come, are drained and go, and change their master.

Messages come without a break, to members of one group; none may be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sparrowmq import Admin
from steady_traffic import TWICE_MAX, steady_traffic
from waiting import JVM_LIMIT_S, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

QUEUES = 4
TOPIC, GROUP = "changing", "GID_changing"
LANGUAGES = [("python",) * 3, ("python", "python", "java")]


def queues_of(*brokers: str) -> list[str]:
    return [f"{broker}:{queue_id}" for broker in brokers for queue_id in range(QUEUES)]


@pytest.fixture
def start() -> Iterator[Callable[..., Any]]:
    """Start a cluster, or its broker alone under a name server; all are killed at the end."""
    clusters: list[Any] = []

    def start(cluster: Any, *, name_server: str = "") -> Any:
        clusters.append(cluster)
        cluster.start(name_server=name_server)
        return cluster

    yield start
    for each in reversed(clusters):
        each.kill()


def master(java: Any, rig: Any, tmp_path: Path, name: str) -> Any:
    settings = {"brokerName": name, "flushDiskType": "SYNC_FLUSH"}
    return rig.ApacheCluster(java, tmp_path / name / "store", **settings)


def wipe_write_permission(java: Any, first: Any) -> None:
    """Have the name server say that broker-a takes no messages.

    A registration that is under way gives the permission back, so it is taken until it stays away.
    """

    def is_drained() -> bool:
        drained = java.mqadmin(first, "wipeWritePerm", "-b", "broker-a")
        assert "wipe write perm of broker[broker-a]" in "\n".join(drained.lines)
        return {queue.broker_name for queue in admin.route(TOPIC).publish_queues} == {"broker-b"}

    with Admin(name_server=first.name_server) as admin:
        wait_until("broker-b alone is written to", is_drained, timeout_s=JVM_LIMIT_S)


@pytest.mark.parametrize("languages", LANGUAGES)
def test_a_broker_is_added_and_another_drained(
    java: Any,
    rig: Any,
    start: Callable[..., Any],
    start_member: Callable[..., Any],
    tmp_path: Path,
    languages: tuple[str, ...],
) -> None:
    def add(name: str, *, name_server: str = "") -> Any:
        return start(master(java, rig, tmp_path, name), name_server=name_server)

    # The name server stands alone here, as it stays when the first broker goes.
    first = add("broker-a")
    first.create_topic(TOPIC, queues=QUEUES)
    members = (java, first, start_member, languages)
    with steady_traffic(*members, topic=TOPIC, group=GROUP) as traffic:
        traffic.wait_shared(queues_of("broker-a"))
        traffic.send_more(300)
        add("broker-b", name_server=first.name_server).create_topic(TOPIC, queues=QUEUES)
        traffic.wait_shared(queues_of("broker-a", "broker-b"))
        traffic.send_more(300)

        wipe_write_permission(java, first)
        # Producers read routes anew every 30 s.
        traffic.send_more(3_500)
        traffic.wait_consumed("from the drained broker")
        first.kill_broker()
        traffic.send_more(300)
        traffic.wait_shared(queues_of("broker-b"))
        told = traffic.stop()
    print(f"\n{java.version}, {languages}, broker added and drained: {told}")
    assert "java" in languages or traffic.twice_count <= TWICE_MAX


@pytest.mark.parametrize("languages", LANGUAGES)
def test_keys_stay_in_order_while_a_broker_is_drained(
    java: Any,
    rig: Any,
    start: Callable[..., Any],
    start_member: Callable[..., Any],
    tmp_path: Path,
    languages: tuple[str, ...],
) -> None:
    first = start(master(java, rig, tmp_path, "broker-a"))
    second = start(master(java, rig, tmp_path, "broker-b"), name_server=first.name_server)
    for broker in (first, second):
        broker.create_topic(TOPIC, queues=QUEUES)
    members = (java, first, start_member, languages)
    # A key leaves a drained queue for another one: a message each 0.2 s finds the one before
    # consumed.
    with steady_traffic(*members, topic=TOPIC, group=GROUP, orderly=True, keys=20) as traffic:
        traffic.wait_shared(queues_of("broker-a", "broker-b"))
        traffic.send_more(300)
        wipe_write_permission(java, first)
        # Producers read routes anew every 30 s.
        traffic.send_more(3_500)
        traffic.wait_consumed("from the drained broker")
        closed = java.mqadmin(first, "updateTopicPerm", "-t", TOPIC, "-b", first.broker, "-p", "0")
        assert f"to 0 in {first.broker} success" in "\n".join(closed.lines)
        traffic.wait_shared(queues_of("broker-b"))
        traffic.send_more(300)
        told = traffic.stop()
        traffic.assert_in_order()
        traffic.assert_keys_in_order()
    wait_ms = traffic.longest_wait_ms()
    print(f"\n{java.version}, {languages}, in order: {told}; waited at most {wait_ms:.0f} ms")
    # A send that failed may have been stored, and is sent again.
    failed_count = len(traffic.producer.named("failed"))
    assert traffic.twice_count <= TWICE_MAX + failed_count


@pytest.mark.parametrize("java", ["5.5.0"], indirect=True, scope="session")
@pytest.mark.parametrize("orderly", [False, True], ids=["", "orderly"])
@pytest.mark.parametrize("languages", LANGUAGES)
def test_the_controller_makes_the_other_replica_the_master(
    java: Any,
    rig: Any,
    start: Callable[..., Any],
    start_member: Callable[..., Any],
    tmp_path: Path,
    languages: tuple[str, ...],
    orderly: bool,
) -> None:
    def add(name: str, *, name_server: str = "", controller: str | None = None) -> Any:
        settings = {"flushDiskType": "SYNC_FLUSH"}
        store = tmp_path / name / "store"
        cluster = rig.ControlledCluster(java, store, controller=controller, **settings)
        return start(cluster, name_server=name_server)

    def replicas() -> dict[int, str]:
        with Admin(name_server=first.name_server) as admin:
            return dict(admin.route(TOPIC).brokers["broker-a"])

    def wait_for_master(wanted: Any) -> None:
        wait_until(
            "the new master", lambda: replicas().get(0) == wanted.broker, timeout_s=JVM_LIMIT_S
        )

    first = add("first")
    first.create_topic(TOPIC, queues=QUEUES)
    second = add("second", name_server=first.name_server, controller=first.controller)
    wait_until("two replicas", lambda: len(replicas()) == 2, timeout_s=JVM_LIMIT_S)
    members = (java, first, start_member, languages)
    with steady_traffic(*members, topic=TOPIC, group=GROUP, orderly=orderly) as traffic:
        traffic.wait_shared(queues_of("broker-a"))
        traffic.send_more(300)
        for master, other in ((first, second), (second, first)):
            wait_until("both in sync", lambda: in_sync(java, first) == 2, timeout_s=JVM_LIMIT_S)
            master.kill_broker()
            wait_for_master(other)
            traffic.send_more(300)
            traffic.wait_consumed("from the new master")
            master.start_broker()
            wait_until("the old one is back", lambda: len(replicas()) == 2, timeout_s=JVM_LIMIT_S)
            traffic.send_more(300)
        traffic.wait_shared(queues_of("broker-a"))
        told = traffic.stop()
        if orderly:
            traffic.assert_in_order()
    # A new master of 5.5.0 has no offsets, or those of its last time as a master: its slaves cannot
    # read what the master sends them. Our members go on where they were.
    print(f"\n{java.version}, {languages}, {orderly=}, two new masters: {told}")
    assert "java" in languages or traffic.twice_count <= TWICE_MAX


def in_sync(java: Any, cluster: Any) -> int:
    """Return how many replicas have all that the master has, as the controller sees it."""
    command = ("getSyncStateSet", "-a", cluster.controller, "-b", "broker-a")
    return sum(line.startswith("InSyncReplica:") for line in java.mqadmin(cluster, *command).lines)

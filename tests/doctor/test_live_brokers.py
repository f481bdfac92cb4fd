"""The doctor on live groups of several brokers and clusters: one of them fails, or knows less."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from contextlib import ExitStack
from typing import Any

import pytest

from foreign_member import ForeignMember
from server_processes import Servers
from sparrowmq import Admin, PushConsumer
from sparrowmq.calling.blocking_driver import BlockingDriver
from sparrowmq.client.assembly import make_directory
from sparrowmq.client.operations.groups import take_snapshots
from sparrowmq.doctor import Finding, Severity, diagnose
from sparrowmq.model import MessageQueue
from sparrowmq.protocol.bodies import ConsumerRunningInfo, ProcessQueueInfo, SubscriptionData
from sparrowmq.testing import EmbeddedCluster
from waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

# The doctor's pause between its looks, and its patience.
INTERVAL_MS, TIMEOUT_MS = 6_000, 3_000
BROKERS = ("broker-a", "broker-a-2")


def look(name_server: str, group: str) -> list[Finding]:
    driver = BlockingDriver()
    try:
        directory = make_directory(name_server, timeout_ms=TIMEOUT_MS)
        found, failures = driver.run(
            take_snapshots(directory, [group], interval_ms=INTERVAL_MS),
        )
    finally:
        driver.close()
    assert not failures
    return diagnose(found[0])


def alarms(findings: list[Finding]) -> list[str]:
    return [each.rule for each in findings if each.severity > Severity.INFO]


@pytest.fixture
def held() -> Generator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Generator[Servers]:
    servers = Servers(tmp_path_factory.mktemp("servers") / "data")
    yield servers
    assert servers.end() == 0


def make_topic(servers: Servers, topic: str) -> None:
    with Admin(name_server=servers.name_server) as admin:
        admin.create_topic(topic, queues=2)


def register(held: ExitStack, servers: Servers, topic: str, number: int, *places: int) -> None:
    """Have the member of a number send heartbeats to some of the brokers."""
    queues = [MessageQueue(topic, broker, n) for broker in BROKERS for n in range(2)]
    for place in places:
        member = ForeignMember(
            servers.brokers[place],
            f"GID_{topic}",
            topic,
            client_id=f"10.0.0.{number}@1",
            says=ConsumerRunningInfo(
                subscription_set=[SubscriptionData(topic=topic)],
                mq_table={queue: ProcessQueueInfo() for queue in queues[number::2]},
            ),
        )
        held.callback(member.close)


def consume(held: ExitStack, name_server: str, topic: str, *more: str) -> PushConsumer:
    member = held.enter_context(
        PushConsumer(f"GID_{topic}", name_server=name_server, listener=lambda *_: None)
    )
    for each in (topic, *more):
        member.subscribe(each)
    member.start()
    return member


def test_r08_a_broker_that_knows_no_member(held: ExitStack, servers: Servers) -> None:
    make_topic(servers, "unknown")
    for number in (0, 1):
        register(held, servers, "unknown", number, 0)

    (found,) = look(servers.name_server, "GID_unknown")

    assert (found.rule, found.severity) == ("R08", Severity.ERROR)
    assert f"broker-a-2 at {servers.brokers[1]} lists no member" in found.evidence


def test_r09_a_broker_that_misses_one_member(held: ExitStack, servers: Servers) -> None:
    make_topic(servers, "missed")
    register(held, servers, "missed", 0, 0, 1)
    register(held, servers, "missed", 1, 0)

    (found,) = look(servers.name_server, "GID_missed")

    assert (found.rule, found.severity) == ("R09", Severity.ERROR)
    assert found.members == ("10.0.0.1@1",)


def test_members_at_all_brokers_raise_no_alarm(held: ExitStack, servers: Servers) -> None:
    make_topic(servers, "known")
    for number in (0, 1):
        register(held, servers, "known", number, 0, 1)

    assert look(servers.name_server, "GID_known") == []


def test_q03_half_of_the_brokers_do_not_answer(held: ExitStack, servers: Servers) -> None:
    make_topic(servers, "silent")
    member = consume(held, servers.name_server, "silent")
    wait_until("all queues", lambda: len(member.assignment()) == 4, timeout_s=60)
    second = servers.children()["store-2"]
    os.kill(second, signal.SIGSTOP)
    held.callback(os.kill, second, signal.SIGCONT)

    found = look(servers.name_server, "GID_silent")

    assert alarms(found) == ["Q03"]
    assert found[0].title == "broker broker-a-2 does not answer"


@pytest.fixture(scope="module")
def clusters() -> Generator[tuple[EmbeddedCluster, EmbeddedCluster]]:
    options = ("--broker-name", "broker-x")
    with (
        EmbeddedCluster(flush="async") as here,
        EmbeddedCluster(flush="async", options=options) as there,
    ):
        yield here, there


def test_r03_members_that_are_connected_to_another_cluster(held: ExitStack, clusters: Any) -> None:
    here, there = clusters
    here.create_topic("here", queues=2)
    there.create_topic("there", queues=2)
    # As a client that shares one connection between two clusters.
    member = consume(held, here.name_server, "here", "there")
    wait_until("its queues", member.assignment, timeout_s=60)

    found = look(f"{here.name_server};{there.name_server}", "GID_here")

    assert alarms(found) == ["R03"]
    assert f"{here.name_server} knows no broker of the topic" in found[0].evidence


def test_r33_name_servers_that_disagree(held: ExitStack, clusters: Any) -> None:
    here, there = clusters
    here.create_topic("both", queues=2)
    member = consume(held, here.name_server, "both")
    wait_until("its queues", member.assignment, timeout_s=60)
    name_servers = f"{here.name_server};{there.name_server}"

    found = look(name_servers, "GID_both")

    assert alarms(found) == ["R33"], found
    assert f"{there.name_server} knows no broker of the topic" in found[0].evidence

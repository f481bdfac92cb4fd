"""Two name servers: one is away, or behind, or forgets, and brokers and clients find each other."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from mistakes import CALM, Mistakes, run_calm
from sparrowmq.broker.host import BrokerHost
from sparrowmq.broker.registration import Registrar
from sparrowmq.calling.effects import Operation, now
from sparrowmq.client.name_servers import NameServers
from sparrowmq.simulation.cluster import SimulatedCluster
from sparrowmq.simulation.faults import NAME_SERVER_FAULTS, Faults

pytestmark = pytest.mark.slow

FORGETFUL = Faults(
    member_join=10.0,
    member_leave=10.0,
    **dict.fromkeys(NAME_SERVER_FAULTS, 4.0),  # type: ignore[arg-type]
)
AWAY = Faults(name_server_away=6.0)
TWO: dict[str, Any] = {"name_server_count": 2, "fault_ms": 60_000}
LATE = "no broker lists member-"
mistake = Mistakes()


def test_members_come_and_go_while_one_name_server_fails() -> None:
    reached: Counter[str] = Counter()
    for outcome in run_calm(FORGETFUL, seeds=5, **TWO, broker_count=2):
        assert outcome.violation is None, "\n".join(outcome.trace)
        reached.update(outcome.reached)

    assert {*NAME_SERVER_FAULTS, "name servers changed", "old routes given"} <= set(reached)


def test_broker_stays_in_the_route_if_the_name_server_missed_that_its_connection_ended() -> None:
    cluster = SimulatedCluster(CALM, lambda purpose: Random(purpose))
    cluster.start()
    timeline, name_server, broker = cluster.timeline, cluster.name_servers[0], cluster.brokers[0]
    cluster.run(until_ms=timeline.now_ms + 10_000)
    (end,) = (
        end
        for link in cluster.network.open_links()
        for end in (link, link.peer)
        if (end.process, end.peer.process) == (broker.process, name_server.process)
    )

    cluster.network.half_open(end, noticed_by=end, mute_ms=0)

    # The name server closes the connection when it has been idle for two minutes.
    for _ in range(300):
        cluster.run(until_ms=timeline.now_ms + 500)
        assert cluster.find_old_route() is None


@mistake(NameServers, "in_order", FORGETFUL, LATE, **TWO)
def client_that_stays_with_a_silent_name_server(in_order: Any, servers: NameServers) -> Any:
    return in_order(servers)[:1]


@mistake(BrokerHost, "_try_again", AWAY, " gives an old route of ", **TWO)
def silent_name_server_that_is_not_tried_again(*_: object) -> Operation[None]:
    yield from now()


@mistake(BrokerHost, "connection_lost", FORGETFUL, LATE, seeds=20, tried_first=5, **TWO)
def lost_name_server_that_waits_for_the_next_registration(*_: object) -> None:
    pass


@mistake(Registrar, "_has_version", FORGETFUL, LATE, seeds=20, tried_first=1, **TWO)
def name_server_that_is_trusted_with_what_it_has_forgotten(*_: object) -> Operation[bool]:
    yield from now()
    return True


test_mistake_is_caught = mistake.make_test()

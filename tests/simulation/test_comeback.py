"""What a member knows of its queues when it, or its broker, comes back after standing still."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from sparrowmq.simulation.cluster import SimulatedCluster
from sparrowmq.simulation.faults import Faults

pytestmark = pytest.mark.slow

# Bursts of messages all the time, so that commits are under way whenever something stops.
BUSY = {"member_count": 1, "message_count": 600, "pause_ms_max": 100, "fault_ms": 90_000}


def begin(calm: Any, seed: int, **settings: Any) -> SimulatedCluster:
    """Start a busy group of one member, and let it consume for some seconds."""
    scenario = replace(calm, faults=Faults(member_freeze=1e-9), **(BUSY | settings))
    cluster = SimulatedCluster(scenario, lambda purpose: Random(f"{seed} {purpose}"))
    cluster.start()
    cluster.run(until_ms=cluster.timeline.now_ms + 8_000 + 37 * seed)
    return cluster


def finish(cluster: SimulatedCluster) -> int:
    """Let the group consume every message; return how many were delivered twice."""
    checkers, timeline = cluster.checkers, cluster.timeline
    end_ms = timeline.now_ms + 120_000
    while not cluster.are_producers_done() or checkers.find_unfinished() is not None:
        cluster.run(until_ms=timeline.now_ms + 500)
        assert checkers.violation is None
        assert timeline.now_ms < end_ms, checkers.find_unfinished()
    return checkers.duplicates


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("is_orderly", [False, True], ids=["concurrent", "orderly"])
def test_broker_away_for_30_s_repeats_no_message(calm: Any, seed: int, is_orderly: bool) -> None:
    cluster = begin(calm, seed, is_orderly=is_orderly)
    broker = cluster.brokers[0]

    broker.kill()
    cluster.run(until_ms=cluster.timeline.now_ms + 30_000)
    broker.start()

    assert finish(cluster) == 0


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("is_orderly", [False, True], ids=["concurrent", "orderly"])
@pytest.mark.parametrize("still_ms", [10_000, 14_000])
def test_process_that_stood_still_repeats_no_message(
    calm: Any, seed: int, is_orderly: bool, still_ms: int
) -> None:
    cluster = begin(calm, seed, is_orderly=is_orderly)
    process = cluster.members[0].process

    process.freeze()
    cluster.run(until_ms=cluster.timeline.now_ms + still_ms)
    process.thaw()

    assert finish(cluster) == 0

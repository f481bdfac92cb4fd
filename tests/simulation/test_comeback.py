"""What a member knows of its queues when it, or its broker, comes back after standing still."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from mistakes import CALM
from sparrowmq.broker.processors import offsets
from sparrowmq.membership.queue_lease import QueueLease
from sparrowmq.simulation.checkers import Checkers
from sparrowmq.simulation.cluster import SimulatedCluster
from sparrowmq.simulation.faults import Faults

pytestmark = pytest.mark.slow

# Bursts of messages all the time, so that commits are under way whenever something stops.
BUSY = {"member_count": 1, "message_count": 600, "pause_ms_max": 100, "fault_ms": 90_000}

# Longer than a lease; the broker forgets a member that is silent for 15 s.
STILL_MS = 13_000


def begin(seed: int, **settings: Any) -> SimulatedCluster:
    """Start a busy group of one member, and let it consume for some seconds."""
    scenario = replace(CALM, faults=Faults(member_freeze=1e-9), **(BUSY | settings))
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
def test_broker_away_for_30_s_repeats_no_message(seed: int, is_orderly: bool) -> None:
    cluster = begin(seed, is_orderly=is_orderly)
    broker = cluster.brokers[0]

    broker.kill()
    cluster.run(until_ms=cluster.timeline.now_ms + 30_000)
    broker.start()

    assert finish(cluster) == 0


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("is_orderly", [False, True], ids=["concurrent", "orderly"])
@pytest.mark.parametrize("still_ms", [10_000, 14_000])
def test_process_that_stood_still_repeats_no_message(
    seed: int, is_orderly: bool, still_ms: int
) -> None:
    cluster = begin(seed, is_orderly=is_orderly)
    process = cluster.members[0].process

    process.freeze()
    cluster.run(until_ms=cluster.timeline.now_ms + still_ms)
    process.thaw()

    assert finish(cluster) == 0


# --- a member that consumes without its lock, and stands still --------------------------------


def wake_without_a_lock(seed: int) -> str | None:
    """Return what is wrong once a member wakes that took a dead one's queues without their locks.

    It stands still for longer than a lease, and is listed all the time. A newcomer gets queues of
    it meanwhile, with the locks, since the dead one's have run out.
    """
    cluster = begin(seed, member_count=2, message_count=2_000)
    timeline = cluster.timeline
    # By its id, the newcomer gets the share that the dead one had.
    frozen, dead = cluster.live_members
    dead.kill()
    cluster.run(until_ms=timeline.now_ms + 300)
    assert any(not owned.lease.is_held for owned in frozen.subscriber.member.owned_queues())

    frozen.process.freeze()
    cluster.add_member()
    cluster.run(until_ms=timeline.now_ms + STILL_MS)
    frozen.process.thaw()
    cluster.run(until_ms=timeline.now_ms + 10_000)
    return cluster.checkers.violation


def trust_old_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let members without a lock trust old answers, as Java's concurrent members do."""
    go_without = QueueLease.go_without

    def go_without_end(lease: QueueLease, sent_ms: int) -> None:
        go_without(lease, sent_ms)
        lease.until_ms = None

    monkeypatch.setattr(QueueLease, "go_without", go_without_end)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6))
def test_member_that_wakes_without_a_lock_asks_first(seed: int) -> None:
    assert wake_without_a_lock(seed) is None


@pytest.mark.planted
def test_member_that_wakes_without_a_lock_and_asks_nobody_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trust_old_answers(monkeypatch)

    found = (wake_without_a_lock(seed) for seed in range(6))

    assert any(text is not None and text.endswith("did not ask") for text in found)


@pytest.mark.planted
def test_late_commit_is_ignored_and_is_caught_where_it_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trust_old_answers(monkeypatch)
    # Java's members need not ask.
    monkeypatch.setattr(Checkers, "check_asked", lambda *_, **__: None)
    ignored = [wake_without_a_lock(seed) for seed in range(6)]

    monkeypatch.setattr(offsets, "_find_lateness", lambda *_: None)
    taken = (wake_without_a_lock(seed) for seed in range(6))

    assert ignored == [None] * 6
    assert any(text is not None and " committed after " in text for text in taken)

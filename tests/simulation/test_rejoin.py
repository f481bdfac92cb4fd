"""How long queues stand still when a member joins right after another was killed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from mistakes import CALM, as_at_apaches_broker
from sparrowmq.broker.broker import Broker
from sparrowmq.client.operations import handover
from sparrowmq.membership.queue_state import QueueState
from sparrowmq.model import MessageQueue
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.simulation.cluster import GROUP, SimulatedCluster
from sparrowmq.simulation.faults import Faults

STEP_MS = 5
# Of each moved queue, and of each member the list; heartbeats and pulls go on anyway.
OF_A_HANDOVER = (
    RequestCode.GET_CONSUMER_LIST_BY_GROUP,
    RequestCode.LOCK_BATCH_MQ,
    RequestCode.UNLOCK_BATCH_MQ,
    RequestCode.QUERY_CONSUMER_OFFSET,
)


def consumed(cluster: SimulatedCluster) -> list[MessageQueue]:
    """Return every queue of the topic that a live member pulls, once for each."""
    return sorted(
        owned.queue
        for member in cluster.live_members
        for owned in member.subscriber.member.owned_queues()
        if owned.state is QueueState.CONSUMING and owned.queue in cluster.queues
    )


def run_until_shared(cluster: SimulatedCluster, *, within_ms: int) -> int:
    """Let time pass until each queue has one owner among all; return how long that took."""
    timeline = cluster.timeline
    begun_ms = timeline.now_ms
    while consumed(cluster) != sorted(cluster.queues) or not all(
        member.assigned for member in cluster.live_members
    ):
        cluster.run(until_ms=timeline.now_ms + STEP_MS)
        assert cluster.checkers.violation is None
        assert timeline.now_ms - begun_ms < within_ms
    return timeline.now_ms - begun_ms


def members_known(cluster: SimulatedCluster) -> int:
    """Return how many members the broker lists."""
    group = cluster.brokers[0].broker.state.consumers.find(GROUP)
    return 0 if group is None else len(group.members)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("is_apaches", [False, True], ids=["stand-in", "questions"])
@pytest.mark.parametrize("is_noticed", [True, False], ids=["kill", "power cut"])
def test_join_right_after_a_kill_waits_for_no_dead_lock(
    monkeypatch: pytest.MonkeyPatch, seed: int, is_noticed: bool, is_apaches: bool
) -> None:
    if is_apaches:
        monkeypatch.setattr(handover, "lock_batch", as_at_apaches_broker)
    else:
        # As in a group that is too large for questions to its members.
        monkeypatch.setattr(handover, "IN_HAND_MEMBERS_MAX", 0)
    scenario = replace(CALM, message_count=20, faults=Faults(), fault_ms=60_000)
    cluster = SimulatedCluster(scenario, lambda purpose: Random(f"{seed} {purpose}"))
    cluster.start()
    cluster.run(until_ms=cluster.timeline.now_ms + 8_000)
    run_until_shared(cluster, within_ms=1_000)
    dead = cluster.live_members[seed % 3]

    if is_noticed:
        dead.kill()
    else:
        # Nobody tells the broker, which forgets it after some time.
        dead.power_off()
        while members_known(cluster) != 2:
            cluster.run(until_ms=cluster.timeline.now_ms + STEP_MS)
    cluster.add_member()

    assert run_until_shared(cluster, within_ms=20_000) <= 300


@pytest.mark.parametrize("seed", range(3))
def test_a_rejoin_sends_what_a_join_sends(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    sent: Counter[int] = Counter()
    handle = Broker.handle

    def count(broker: Broker, command: Any, *more: Any, **how: Any) -> Any:
        is_renewal = command.code == RequestCode.LOCK_BATCH_MQ and not (command.ext_fields or {})
        if not is_renewal:
            sent[command.code] += 1
        return handle(broker, command, *more, **how)

    monkeypatch.setattr(Broker, "handle", count)
    scenario = replace(
        CALM, queue_count=8, member_count=6, message_count=0, faults=Faults(), fault_ms=60_000
    )
    cluster = SimulatedCluster(scenario, lambda purpose: Random(f"{seed} {purpose}"))
    cluster.start()
    cluster.run(until_ms=cluster.timeline.now_ms + 8_000)

    def join() -> Counter[int]:
        sent.clear()
        cluster.add_member()
        cluster.run(until_ms=cluster.timeline.now_ms + 1_000)
        run_until_shared(cluster, within_ms=100)
        return Counter({code: sent[code] for code in OF_A_HANDOVER})

    joined = join()
    cluster.live_members[-1].kill()
    cluster.run(until_ms=cluster.timeline.now_ms + 2_000)

    assert join() == joined
    assert joined[RequestCode.UNLOCK_BATCH_MQ] >= 1

"""AVG_BY_LOAD under faults: lost offers, split views, dead proposers, brokers and clocks that fail.

`PlanLedger.check_share` holds the invariant: members that follow one plan never share a queue.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest
from msgspec import structs

from sparrowmq.broker import broker
from sparrowmq.broker.plan_register import PlanRegister
from sparrowmq.calling.effects import Operation
from sparrowmq.client.operations import plan_answers, plans
from sparrowmq.client.subscriber import NoPlanRegister, PlanKnown, Subscriber
from sparrowmq.protocol.bodies import GroupPlan
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.simulation.cluster import Scenario, SimulatedCluster
from sparrowmq.simulation.faults import Faults
from sparrowmq.simulation.run import RunOutcome, run_scenario
from sparrowmq.strategies import by_load

QUEUES = 8


def scenario_of(seed: int, faults: Faults, **changes: Any) -> Scenario:
    """Return a scenario of slow listeners, whose members are busy enough for queues to move."""
    dice = Random(f"{seed} plans")
    brokers = dice.choice((1, 2))
    settings: dict[str, Any] = {
        "broker_count": brokers,
        "queue_count": QUEUES // brokers,
        "member_count": dice.choice((2, 3, 4)),
        "producer_count": 1,
        "message_count": 150,
        "pause_ms_max": 2_400,
        "fault_ms": 150_000,
        "probe_count": 5,
        "batch_size": 1,
        "pull_batch_size": 8,
        "consume_thread_count": 1,
        "strategy": "AVG_BY_LOAD",
        "sync_flush": True,
        "faults": faults,
        "is_orderly": seed % 4 == 0,
        "listener_ms_max": 3_000,
        **changes,
    }
    return Scenario(**settings)


def draw_faults(seed: int) -> Faults:
    dice = Random(f"{seed} faults")
    return Faults(
        # Offers and answers are late or lost, and members see different lists.
        delay=0.02,
        reset=dice.choice((0.0, 4.0)),
        half_open=dice.choice((0.0, 2.0)),
        partition=dice.choice((0.0, 2.0)),
        # Whoever has the loads may die.
        member_crash=2.0,
        member_freeze=dice.choice((0.0, 1.0)),
        member_join=2.0,
        member_leave=1.0,
        broker_kill=dice.choice((0.0, 2.0)),
        broker_power_cut=dice.choice((0.0, 1.0)),
    )


@dataclass
class Offers:
    """What registers answered to offers."""

    outcomes: Counter[str] = field(default_factory=Counter)
    moved: int = 0


@pytest.fixture
def offers(monkeypatch: pytest.MonkeyPatch) -> Offers:
    """Count offers, and let each broker's wall clock jump at each of them."""
    seen, dice = Offers(), Random(24)
    offer = PlanRegister.offer

    def counting(self: PlanRegister, group: str, plan: GroupPlan, **given: Any) -> str | None:
        given["timestamp_ms"] += dice.randrange(-86_400_000, 86_400_000)
        refusal = offer(self, group, plan, **given)
        seen.outcomes["taken" if refusal is None else "refused"] += 1
        seen.moved += 0 if refusal else len(plan.moved)
        return refusal

    monkeypatch.setattr(PlanRegister, "offer", counting)
    return seen


# Within so many seeds each mistake must be caught.
SEEDS_MAX = 20


# Connections break while members come, and nothing else ends a run before an offer is lost.
LOST_ANSWERS = {
    "reset": 12.0,
    "half_open": 4.0,
    "partition": 4.0,
    "member_join": 4.0,
    "member_crash": 0.5,
    "broker_kill": 0.0,
    "broker_power_cut": 0.0,
}


def run_seeds(seeds: range, **rates: Any) -> Iterator[RunOutcome]:
    for seed in seeds:
        yield run_scenario(seed, scenario_of(seed, replace(draw_faults(seed), **rates)))


@pytest.mark.long
@pytest.mark.slow
def test_plans_keep_every_queue_with_one_owner_whatever_fails(offers: Offers) -> None:
    found = [(run.seed, run.violation) for run in run_seeds(range(12)) if run.violation]

    assert found == []
    assert offers.outcomes["taken"] > 20
    assert offers.moved > 10


@pytest.mark.long
def test_moves_for_load_deliver_no_message_twice(offers: Offers) -> None:
    """`Checkers` fails at the second delivery where members only come and go."""
    faults = Faults(member_join=1.0, member_leave=1.0)
    runs = [run_scenario(seed, scenario_of(seed, faults)) for seed in range(6)]

    assert [(run.seed, run.violation) for run in runs if run.violation] == []
    assert [run.duplicate_count for run in runs] == [0] * 6
    assert offers.moved > 3


def number_all_plans_alike(patch: pytest.MonkeyPatch) -> None:
    offer = PlanRegister.offer

    def numbered(self: PlanRegister, group: str, plan: GroupPlan, **given: Any) -> str | None:
        refusal = offer(self, group, plan, **given)
        if refusal is None:
            notes = self._groups[group]
            assert notes.plan is not None
            notes.plan = structs.replace(notes.plan, epoch=1)
        return refusal

    patch.setattr(PlanRegister, "offer", numbered)


def forget_plans_and_epochs_at_a_restart(patch: pytest.MonkeyPatch) -> None:
    offer = PlanRegister.offer
    patch.setattr(PlanRegister, "restore", lambda *args, **given: None)
    patch.setattr(
        PlanRegister, "offer", lambda *args, **given: offer(*args, **given | {"timestamp_ms": 0})
    )


def follow_ones_offer_before_the_answer(patch: pytest.MonkeyPatch) -> None:
    send = plans._offer

    def offer(subscriber: Subscriber, register: str, plan: GroupPlan) -> Operation[None]:
        subscriber.plan = PlanKnown(register, plan.epoch + 1, plan_answers.followed(plan))
        yield from send(subscriber, register, plan)

    patch.setattr(plans, "_offer", offer)
    offered = PlanRegister.offer
    # So that the epoch can be told beforehand.
    patch.setattr(
        PlanRegister, "offer", lambda *args, **given: offered(*args, **given | {"timestamp_ms": 0})
    )


def shift_the_owners_at_each_question(patch: pytest.MonkeyPatch) -> None:
    follow, turns = by_load.follow, itertools.count(1)

    def selfish(plan: Any, plan_cids: Any, queues: Any, cids: Any) -> Any:
        turn, ring = next(turns), sorted(cids)
        owners = follow(plan, plan_cids, queues, cids)
        return {q: ring[(ring.index(cid) + turn) % len(ring)] for q, cid in owners.items()}

    patch.setattr(by_load, "follow", selfish)


@pytest.mark.planted
@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutate", "words", "rates"),
    [
        pytest.param(number_all_plans_alike, "stands for two plans", {}, id="epochs"),
        pytest.param(
            forget_plans_and_epochs_at_a_restart, "stands for two plans", {}, id="broker restarts"
        ),
        pytest.param(
            follow_ones_offer_before_the_answer,
            "stands for two plans",
            LOST_ANSWERS,
            id="lost offers",
        ),
        pytest.param(shift_the_owners_at_each_question, "by the plan", {}, id="own plans"),
    ],
)
def test_a_mistake_with_plans_is_caught(
    monkeypatch: pytest.MonkeyPatch,
    mutate: Callable[[pytest.MonkeyPatch], None],
    words: str,
    rates: dict[str, float],
) -> None:
    mutate(monkeypatch)

    runs = run_seeds(range(SEEDS_MAX), **rates)
    assert any(words in (run.violation or "") for run in runs)


def start_pair(**changes: Any) -> SimulatedCluster:
    """Start two members of one broker, and let them settle."""

    def make_dice(purpose: str) -> Random:
        return Random(f"7 {purpose}")

    scenario = scenario_of(1, Faults(), broker_count=1, queue_count=6, member_count=2, **changes)
    cluster = SimulatedCluster(scenario, make_dice)
    cluster.start()
    cluster.run(until_ms=cluster.timeline.now_ms + 5_000)
    assert cluster.checkers.violation is None
    return cluster


def run_until(cluster: SimulatedCluster, is_done: Callable[[], bool], *, within_ms: int) -> int:
    """Run until something is so; return the time that it took."""
    begun_ms = cluster.timeline.now_ms
    while not is_done():
        cluster.run(until_ms=cluster.timeline.now_ms + 100)
        assert cluster.checkers.violation is None
        assert cluster.timeline.now_ms - begun_ms <= within_ms, cluster.ownership()
    return cluster.timeline.now_ms - begun_ms


def test_a_slow_member_gives_queues_to_a_quick_one(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = start_pair(message_count=400, pause_ms_max=300)
    slow, quick = cluster.live_members
    capacities = {
        id(slow.subscriber.listener_calls): 1.0,
        id(quick.subscriber.listener_calls): 8.0,
    }
    monkeypatch.setattr(
        type(slow.subscriber.listener_calls),
        "capacity_per_s",
        lambda self, now_ms, call_count_max: capacities[id(self)],
    )
    before = len(slow.assigned)

    run_until(
        cluster,
        lambda: len(slow.assigned) <= before - 2 and cluster.ownership().is_exact,
        within_ms=90_000,
    )

    assert slow.subscriber.plan == quick.subscriber.plan
    assert slow.subscriber.plan is not None


def test_a_broker_without_a_register_is_reported_once_and_queues_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on Apache's brokers."""
    codes = (RequestCode.GET_GROUP_PLAN, RequestCode.OFFER_GROUP_PLAN)
    served = {code: each for code, each in broker.PROCESSORS.items() if code not in codes}
    monkeypatch.setattr(broker, "PROCESSORS", served)
    said: list[object] = []
    cluster = start_pair()
    first = cluster.live_members[0]
    assert first.subscriber.has_no_register

    first.subscriber.report = said.append
    cluster.run(until_ms=cluster.timeline.now_ms + 90_000)

    assert not any(isinstance(notice, NoPlanRegister) for notice in said)
    assert cluster.checkers.violation is None
    # Six queues and the retry topic's.
    assert sorted(len(member.assigned) for member in cluster.live_members) == [3, 4]

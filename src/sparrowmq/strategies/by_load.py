"""AVG_BY_LOAD: evens out the members' measured loads, a few queues at a time.

Queues are not alike, and neither are members. A queue's *demand* is the rate of its messages plus
its lag, as if the lag were to be consumed within `DRAIN_S`. A member's *capacity* is the rate that
it could consume. Its *load* U is the demand of its queues over its capacity: above 1 its lag grows.

**The aim** is the least Σ c·U² over members with capacity c. For loads w it is Σ w²/c, and with
Σ w given it is least exactly if all members have one load, U* = Σ w / Σ c. Without the factor c,
ΣU² would give a member with four times the capacity sixteen times the demand. *Excess* is what the
sum has above that least, Σ c·(U − U*)².

**A move** of a demand w from U₁, c₁ to U₂, c₂ lowers the sum by 2w(U₁ − U₂) − w²(1/c₁ + 1/c₂). A
period makes at most `moves_max` moves, each the one that lowers the sum most, from one of the two
fullest members. All of them together are kept only if they are worth their cost (`_is_worth_it`);
tested one by one, moves would stop in states that only two moves leave. Noise moves no queue: a
load that harms nobody stays as it is, and a queue that has moved rests. (Rates rounded to steps of
2^¼ made more moves, not fewer: near the edge of a step, noise becomes a change of 19 %.)

Members measure at different times, so that they would compute different plans. The broker's plan
register therefore takes one plan, and every member follows that plan. Between plans, `follow` gives
every queue an owner if members or queues have changed since, by the numbers of queues in the plan.
Tests: test_by_load.py.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sparrowmq.model import MessageQueue
from sparrowmq.model.queue import queue_order
from sparrowmq.strategies.group_strategy import (
    NO_OWNERS,
    Owners,
    TopicView,
    WholeGroupStrategy,
    unique,
)
from sparrowmq.strategies.minimal_move import divide, divide_together, together

# The lag of a queue counts as if it were to be consumed within this time.
DRAIN_S = 300.0
# A member this busy has too little room for a burst; it is relieved if the others are less busy.
BUSY_LOAD = 0.85
BUSY_RATIO = 1.2
# A member that is this much busier than the mean, and at least `IDLE_LOAD`, is worth relieving.
UNEVEN_RATIO = 1.5
IDLE_LOAD = 0.3
# The least part of the excess that a period's moves must remove.
GAIN_MIN = 0.1
# Takers stay below this part of the fullest giver's load. Otherwise members only change places, as
# where queues are too few for equal shares; then noise would move queues to and fro.
PLACES_RATIO = 0.9
# A period moves one of this many queues, and at least `MOVES_MIN`.
QUEUES_PER_MOVE = 16
MOVES_MIN = 2


class FollowedPlan(NamedTuple):
    """The owner of each queue by a plan, and the members for which it was computed."""

    owners: Owners
    client_ids: Sequence[str]


class QueueLoad(NamedTuple):
    """The messages that come into a queue a second, and those that a group has not consumed."""

    rate_per_s: float
    lag: int

    @property
    def demand_per_s(self) -> float:
        """The rate at which the queue's messages want to be consumed."""
        return self.rate_per_s + self.lag / DRAIN_S


NO_LOAD = QueueLoad(0.0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLoads:
    """What was measured of a group.

    Args:
        capacities: the messages a second that each member could consume; a member that has not
            measured its capacity yet counts as the mean of the others.
        resting: the queues that moved a short time ago and stay.
    """

    queues: Mapping[MessageQueue, QueueLoad]
    capacities: Mapping[str, float]
    resting: Collection[MessageQueue] = frozenset()

    def capacities_of(self, cids: Sequence[str]) -> dict[str, float]:
        """Return the capacity of each member; empty if none has measured its own."""
        known = [c for cid in cids if (c := self.capacities.get(cid, 0.0)) > 0]
        if not known:
            return {}
        mean = sum(known) / len(known)
        return {cid: self.capacities.get(cid, 0.0) or mean for cid in cids}

    def member_loads(self, owners: Owners, cids: Sequence[str]) -> dict[str, float]:
        """Return the load U of each member under a division; empty if no capacity is known."""
        capacities = self.capacities_of(cids)
        loads = dict.fromkeys(capacities, 0.0)
        for queue, owner in owners.items():
            if owner in loads:
                demand = self.queues.get(queue, NO_LOAD).demand_per_s
                loads[owner] += demand / capacities[owner]
        return loads


class Gain(NamedTuple):
    """The loads of the fullest member before and after a period's moves, and the moved queues."""

    load_before: float
    load_after: float
    moved: tuple[MessageQueue, ...]


NOTHING = Gain(0.0, 0.0, ())


def rebalance_loads(
    owners: Owners, cids: Sequence[str], loads: GroupLoads
) -> tuple[dict[MessageQueue, str], Gain]:
    """Return the division after one period's moves, and what they gain.

    Args:
        owners: a listed member for every queue.
        cids: the members, each once.
        loads: what was measured.
    """
    capacities = loads.capacities_of(cids)
    now = dict(owners)
    if not capacities:
        return now, NOTHING
    before = loads.member_loads(owners, cids)
    demands = {queue: loads.queues.get(queue, NO_LOAD).demand_per_s for queue in owners}
    after = dict(before)
    # In one order on every machine, whatever the order of the tables.
    movable = [queue for queue in sorted(owners, key=queue_order) if queue not in loads.resting]
    held: dict[str, list[_Held]] = {cid: [] for cid in cids}
    for place, queue in enumerate(movable):
        if demands[queue] > 0:
            insort(held[owners[queue]], _Held(demands[queue], place))
    moved: dict[MessageQueue, None] = {}
    for _ in range(moves_max(len(owners))):
        best = _best_move(held, after, capacities)
        if best is None:
            break
        each, giver, taker = best
        after[giver] -= each.demand / capacities[giver]
        after[taker] += each.demand / capacities[taker]
        held[giver].remove(each)
        insort(held[taker], each)
        now[movable[each.place]] = taker
        moved[movable[each.place]] = None
    final = tuple(queue for queue in moved if now[queue] != owners[queue])
    if not final or not _is_worth_it(before, after, capacities):
        return dict(owners), NOTHING
    givers, takers = {owners[queue] for queue in final}, {now[queue] for queue in final}
    if max(after[cid] for cid in takers) > PLACES_RATIO * max(before[cid] for cid in givers):
        return dict(owners), NOTHING
    return now, Gain(max(before.values()), max(after.values()), final)


def moves_max(queue_count: int) -> int:
    """Return how many queues may move in one period."""
    return max(MOVES_MIN, queue_count // QUEUES_PER_MOVE)


class _Held(NamedTuple):
    """A queue that may move: its demand, and its place in the order of the queues."""

    demand: float
    place: int


def _best_move(
    held: Mapping[str, Sequence[_Held]],
    loads: Mapping[str, float],
    capacities: Mapping[str, float],
) -> tuple[_Held, str, str] | None:
    """Return the move from one of the two fullest members that lowers Σ c·U² most, or None.

    Args:
        held: the queues of each member by demand.

    Returns: the queue, its giver and its taker.
    """
    fullest = sorted(loads, key=lambda cid: (-loads[cid], cid))[:2]
    best, best_fall = None, 0.0
    for giver in fullest:
        for taker, load in loads.items():
            gap, weight = loads[giver] - load, 1 / capacities[giver] + 1 / capacities[taker]
            # The fall is a parabola in the demand: one of the two queues beside its top is best.
            top = bisect_left(held[giver], _Held(gap / weight, 0))
            for each in held[giver][max(0, top - 1) : top + 1]:
                fall = 2 * each.demand * gap - each.demand**2 * weight
                # A fall of rounding's size is none; the first of equal moves counts.
                if fall > best_fall * (1 + 1e-9) + 1e-9:
                    best, best_fall = (each, giver, taker), fall
    return best


def _is_worth_it(
    before: Mapping[str, float], after: Mapping[str, float], capacities: Mapping[str, float]
) -> bool:
    """Return whether moves relieve a member that needs it, and remove enough of the excess."""
    total = sum(capacities.values())
    mean = sum(before[cid] * capacities[cid] for cid in capacities) / total
    highest = max(before.values())
    is_busy = highest > BUSY_LOAD and highest > BUSY_RATIO * mean
    is_uneven = highest > IDLE_LOAD and highest > UNEVEN_RATIO * mean
    if not is_busy and not is_uneven:
        return False
    excess_before, excess_after = (
        sum(capacities[cid] * (load - mean) ** 2 for cid, load in loads.items())
        for loads in (before, after)
    )
    return excess_after <= (1 - GAIN_MIN) * excess_before


class AllocateMessageQueueByLoad(WholeGroupStrategy):
    """Follows the group's plan; without one, loads are within one and few queues move."""

    name = "AVG_BY_LOAD"

    def divide_group(
        self, topics: Sequence[TopicView], owners: Owners = NO_OWNERS
    ) -> dict[MessageQueue, str]:
        """Return the owner of every queue of all topics, without a plan."""
        return divide_together(topics, owners)

    def follow_plan(
        self,
        current_cid: str,
        topics: Sequence[TopicView],
        owners: Owners,
        plan: FollowedPlan | None,
    ) -> list[MessageQueue]:
        """Return this member's share of all topics by a plan."""
        now = divide_by_plan(topics, plan, owners)
        return [queue for queue, owner in now.items() if owner == current_cid]


def divide_by_plan(
    topics: Sequence[TopicView], plan: FollowedPlan | None, owners: Owners
) -> dict[MessageQueue, str]:
    """Return the owner of every queue: by a plan, or by the fewest moves from the present owners.

    Topics with the same subscribers are divided together.
    """
    if plan is None:
        return divide_together(topics, owners)
    now: dict[MessageQueue, str] = {}
    for (_, cids), queues in together(topics).items():
        given = follow(plan.owners, plan.client_ids, queues, cids)
        now.update((queue, given[queue]) for queue in queues)
    return now


def plan_next(
    topics: Sequence[TopicView], plan: FollowedPlan | None, owners: Owners, loads: GroupLoads
) -> tuple[FollowedPlan, Gain] | None:
    """Return the plan to follow the present one; None if that one is to stay.

    While brokers return different lists of members, the present plan stays.
    """
    cids = {tuple(unique(view.cid_all)) for view in topics}
    if len(cids) != 1:
        return None
    (members,) = cids
    base = divide_by_plan(topics, plan, owners)
    now, gain = rebalance_loads(base, members, loads)
    is_same = plan is not None and now == plan.owners and set(members) == set(plan.client_ids)
    return None if is_same else (FollowedPlan(now, members), gain)


def follow(
    plan: Owners, plan_cids: Collection[str], queues: Sequence[MessageQueue], cids: Sequence[str]
) -> dict[MessageQueue, str]:
    """Return the owner of every queue by a plan, also if members or queues have changed since.

    Each member keeps the part of the queues that the plan gave it. A new member gets the mean part;
    the others give up queues in proportion. The fewest queues move. With the plan's own members and
    queues the result is the plan.

    Args:
        plan: the owner of each queue; other queues and other members have no effect.
        plan_cids: the plan's members.
        queues: the queues in any order, each once.
        cids: the members, each once, at least one.
    """
    mine = set(queues)
    counts = Counter(owner for queue, owner in plan.items() if queue in mine)
    known = [cid for cid in plan_cids if cid in cids]
    if not any(counts[cid] for cid in known):
        return divide(queues, cids, plan)
    # A new member weighs the mean number of queues; all are multiplied by the number of members.
    mean = sum(counts[cid] for cid in plan_cids)
    weights = {cid: counts[cid] * len(plan_cids) if cid in known else mean for cid in cids}
    total = sum(weights.values())
    floors = {cid: len(queues) * weight // total for cid, weight in weights.items() if weight}
    return divide(queues, cids, plan, floors=floors)

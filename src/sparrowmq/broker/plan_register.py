"""The plan register: for each group, one division of its queues that all members follow.

Members that divide by measured load measure at different times, so that each would compute another
division. The register takes one: a member offers a plan that it computed from the loads in the
broker's answer, and the register takes the offer if nobody changed the plan since (compare and set
on the epoch and the list of ids). The first offer wins, and all members follow it. There is no
leader. If the member that got the loads dies, the next one gets them `LOADS_AGAIN_MS` later.

- A plan's *epoch* is above the last one and not below the wall clock, so that a broker that lost
  its files gives no epoch twice. Nothing else depends on a wall clock: ages are measured here.
- A plan stays for `PERIOD_MS`. If members join or leave, they follow the plan in proportion
  (`strategies/by_load.py`), until the next plan has their ids.
- A queue that moved rests for two periods: the loads name the resting queues.
- A member without messages measures no capacity: its last one holds for `CAPACITY_KEPT_MS`. After
  that it counts as any other's, so that a member that was slow for a while gets queues again once
  the others are full.
- Rates are the growth of queues over the last `RATE_WINDOW_MS`, by notes that the members' own
  questions cause. Nothing is measured for groups that ask for no plan.

Plans are journalled and filed as queue locks are; rates, capacities and rests are not.
Tests: broker/test_plan_register.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from msgspec import structs

from sparrowmq.broker.journal_records import PlanChange
from sparrowmq.model import MessageQueue
from sparrowmq.protocol.bodies import (
    GroupLoadsBody,
    GroupPlan,
    GroupPlanAnswer,
    GroupPlanTable,
    QueueLoadBody,
)

PERIOD_MS = 20_000
LOADS_AGAIN_MS = 5_000
REST_MS = 2 * PERIOD_MS
RATE_WINDOW_MS = 30_000
# Notes are at least this far apart, and rates need notes this far apart.
NOTE_INTERVAL_MS = 5_000
CAPACITY_KEPT_MS = 300_000
RATE_SPAN_MIN_MS = 10_000
# The plan of a group without members is kept for this long.
KEPT_MS = 600_000
# Bounds over all groups of a broker.
PLANS_MAX = 10_000
PLANNED_QUEUES_MAX = 200_000
# A plan of one group.
PLAN_QUEUES_MAX = 16_384
PLAN_MEMBERS_MAX = 4_096

# The end of each queue of a group, and the group's lag in it.
Progress: TypeAlias = Mapping[MessageQueue, tuple[int, int]]


@dataclass(slots=True)
class _GroupNotes:
    """What is known of a group's plan and loads."""

    plan: GroupPlan | None = None
    # When the plan was taken, or read from the disk.
    taken_ms: int = 0
    asked_ms: int = 0
    loads_given_ms: int | None = None
    moved_ms: dict[MessageQueue, int] = field(default_factory=dict)
    # When each member told its capacity, and the capacity.
    capacities: dict[str, tuple[int, float]] = field(default_factory=dict)
    # The ends of the queues at some instants, the oldest first.
    ends: deque[tuple[int, dict[MessageQueue, int]]] = field(default_factory=deque)


class PlanRegister:
    """The plans of all groups that divide by load at one broker."""

    def __init__(self) -> None:
        self._groups: dict[str, _GroupNotes] = {}
        self._queue_count = 0
        # Groups with changes for the next batch of the journal; a failed write puts them back.
        self.unwritten: dict[str, None] = {}

    def look(
        self,
        group: str,
        *,
        client_id: str | None,
        capacity_per_s: float,
        known_epoch: int,
        needs_loads: bool,
        listed: Sequence[str],
        progress: Callable[[], Progress],
        now_ms: int,
    ) -> GroupPlanAnswer:
        """Answer a member: the plan, unless it knows it, and the loads, if it is to plan now.

        Args:
            client_id: the member; None for a tool, which never plans.
            capacity_per_s: what the member could consume; 0 if it does not know.
            needs_loads: whether the member plans at another broker and needs this broker's loads.
            listed: the group's client ids.
            progress: returns the ends of the group's queues, and its lags.
        """
        notes = self._groups.get(group)
        if notes is None:
            if len(self._groups) >= PLANS_MAX:
                return GroupPlanAnswer()
            notes = self._groups[group] = _GroupNotes()
        notes.asked_ms = now_ms
        if client_id is not None and capacity_per_s > 0:
            notes.capacities[client_id] = now_ms, capacity_per_s
        if len(notes.capacities) > len(listed):
            known = set(listed)
            notes.capacities = {c: each for c, each in notes.capacities.items() if c in known}
        is_noted = bool(notes.ends) and now_ms - notes.ends[-1][0] < NOTE_INTERVAL_MS
        is_due = needs_loads or (client_id is not None and _is_due(notes, now_ms))
        loads = None
        if is_due or not is_noted:
            now = progress()
            if not is_noted:
                _note_ends(notes, now, now_ms)
            if is_due:
                loads = _loads_of(notes, now, now_ms)
        if loads is not None and not needs_loads:
            notes.loads_given_ms = now_ms
        epoch = 0 if notes.plan is None else notes.plan.epoch
        return GroupPlanAnswer(
            epoch=epoch, plan=None if epoch == known_epoch else notes.plan, loads=loads
        )

    def find(self, group: str) -> GroupPlan | None:
        """Return a group's plan, or None."""
        notes = self._groups.get(group)
        return None if notes is None else notes.plan

    def offer(
        self,
        group: str,
        offer: GroupPlan,
        *,
        listed: Iterable[str],
        now_ms: int,
        timestamp_ms: int,
    ) -> str | None:
        """Take a plan if it follows the present one; return why it is refused, None if taken.

        Args:
            listed: the group's client ids.
        """
        notes = self._groups.get(group, _GroupNotes())
        fault = _find_fault(notes, offer, sorted(set(listed)), now_ms)
        before = 0 if notes.plan is None else _count(notes.plan)
        count = self._queue_count - before + _count(offer)
        is_full = len(self._groups) >= PLANS_MAX and group not in self._groups
        if fault is not None or is_full or count > PLANNED_QUEUES_MAX:
            return fault or f"the plans of all groups may have {PLANNED_QUEUES_MAX} queues"
        notes.plan = structs.replace(offer, epoch=max(offer.epoch + 1, timestamp_ms))
        notes.taken_ms = notes.asked_ms = now_ms
        notes.moved_ms = {q: at for q, at in notes.moved_ms.items() if now_ms - at <= REST_MS}
        notes.moved_ms |= dict.fromkeys(offer.moved, now_ms)
        self._groups[group] = notes
        self._queue_count = count
        self.unwritten[group] = None
        return None

    def forget(self, group: str) -> None:
        """Remove a group's plan."""
        notes = self._groups.pop(group, None)
        if notes is not None and notes.plan is not None:
            self._queue_count -= _count(notes.plan)
            self.unwritten[group] = None

    def drop_unasked(self, now_ms: int) -> bool:
        """Remove plans that nobody has asked for in `KEPT_MS`; return whether there were any."""
        idle = [name for name, each in self._groups.items() if now_ms - each.asked_ms > KEPT_MS]
        for group in idle:
            self.forget(group)
        return bool(idle)

    def take_changes(self) -> list[PlanChange]:
        """Return the changes since the last call, for the journal."""
        names, self.unwritten = self.unwritten, {}
        return [PlanChange(name, self.find(name)) for name in names]

    def table(self) -> GroupPlanTable:
        """Return all plans, for the file."""
        return GroupPlanTable(
            plans={name: each.plan for name, each in self._groups.items() if each.plan is not None}
        )

    def restore(self, group: str, plan: GroupPlan | None, *, now_ms: int) -> None:
        """Put back a plan of the file or the journal; its age begins anew."""
        self.forget(group)
        self.unwritten.pop(group, None)
        if plan is None:
            return
        self._groups[group] = _GroupNotes(plan=plan, taken_ms=now_ms, asked_ms=now_ms)
        self._queue_count += _count(plan)


def _count(plan: GroupPlan) -> int:
    return sum(map(len, plan.owners.values()))


def _find_fault(
    notes: _GroupNotes, offer: GroupPlan, ids: Sequence[str], now_ms: int
) -> str | None:
    """Return why a group does not take a plan, or None."""
    epoch = 0 if notes.plan is None else notes.plan.epoch
    if offer.epoch != epoch:
        return f"the plan has epoch {epoch}, not {offer.epoch}"
    if offer.client_ids != ids:
        return "the group has other members now"
    if notes.plan is not None and notes.plan.client_ids == ids:
        age_ms = now_ms - notes.taken_ms
        if age_ms < PERIOD_MS:
            return f"the plan is {age_ms / 1000:g} s old; it stays for {PERIOD_MS // 1000} s"
    if not offer.owners.keys() <= set(ids):
        return "a queue's owner is not a member"
    count = _count(offer)
    if len({queue for queues in offer.owners.values() for queue in queues}) != count:
        return "a queue has two owners"
    if count > PLAN_QUEUES_MAX or len(ids) > PLAN_MEMBERS_MAX or len(offer.moved) > count:
        return f"the limit is {PLAN_QUEUES_MAX} queues and {PLAN_MEMBERS_MAX} members"
    return None


def _is_due(notes: _GroupNotes, now_ms: int) -> bool:
    """Return whether a plan is due, and no member has the loads to compute it."""
    if notes.plan is not None and now_ms - notes.taken_ms < PERIOD_MS:
        return False
    return notes.loads_given_ms is None or now_ms - notes.loads_given_ms >= LOADS_AGAIN_MS


def _note_ends(notes: _GroupNotes, progress: Progress, now_ms: int) -> None:
    notes.ends.append((now_ms, {queue: end for queue, (end, _) in progress.items()}))
    # One note older than the window stays, so that notes 20 s apart still span a rate.
    while len(notes.ends) > 2 and notes.ends[1][0] <= now_ms - RATE_WINDOW_MS:
        notes.ends.popleft()


def _loads_of(notes: _GroupNotes, progress: Progress, now_ms: int) -> GroupLoadsBody | None:
    """Return the measured loads; None while the notes span too little for a rate."""
    begun_ms, first = notes.ends[0]
    span_ms = now_ms - begun_ms
    if span_ms < RATE_SPAN_MIN_MS:
        return None
    queues = [
        QueueLoadBody(
            queue=queue,
            rate_per_s=round(max(0, end - first.get(queue, end)) * 1000 / span_ms, 3),
            lag=lag,
        )
        for queue, (end, lag) in progress.items()
    ]
    resting = [queue for queue, at_ms in notes.moved_ms.items() if now_ms - at_ms <= REST_MS]
    capacities = {
        client_id: capacity
        for client_id, (at_ms, capacity) in notes.capacities.items()
        if now_ms - at_ms <= CAPACITY_KEPT_MS
    }
    return GroupLoadsBody(queues=queues, capacities=capacities, resting=resting)

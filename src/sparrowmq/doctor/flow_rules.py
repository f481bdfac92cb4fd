"""Q06, Q07, Q08: how messages flow, when every queue has its owner. Pure.

The rebalance is not to blame for these; they are what stands behind most backlogs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sparrowmq.doctor.case import Case
from sparrowmq.doctor.finding import (
    Finding,
    Severity,
    count_of,
    describe_age,
    describe_queues,
)
from sparrowmq.doctor.membership_rules import user_loads
from sparrowmq.model import MessageQueue

# A member this little behind is not behind: messages are on their way.
BEHIND_MIN = 100
# Nor is one that would be done with it this soon.
BEHIND_S_MIN = 10


def find_standstill(case: Case) -> list[Finding]:
    """Q06: members are there, messages are there, and no offset of the group moves."""
    queues = _owned_backlog(case)
    moves = any(rate.consumed_per_s for rate in case.rates.values())
    if not queues or moves or not all(case.stands_still(queue) for queue in queues):
        return []
    owners = sorted({s.client_id for queue in queues for s in case.ownership.owners[queue]})
    silent = {report.client_id for report in case.snapshot.reports if report.is_silent}
    if silent.issuperset(owners):
        # None of them answers: R28 says so of each.
        return []
    return [
        Finding(
            rule="Q06",
            severity=Severity.ERROR,
            title="the group consumes nothing, though every member is connected",
            evidence=(
                f"no offset moved within {case.snapshot.interval_ms / 1000:.1f} s",
                *(_describe_hands(case, client_id) for client_id in owners),
            ),
            consequence=f"{describe_queues(queues)}: {case.describe_backlog(queues)}",
            remedy=(
                "a member with messages in hand waits for its listener: look at what that calls (a "
                "database, a service that is down) and at its threads; one with none in hand does "
                "not pull: see whether it is suspended, and its log for refusals of the broker"
            ),
            members=tuple(owners),
        )
    ]


def find_slow_members(case: Case) -> list[Finding]:
    """Q07: members work, and messages come faster; or a backlog is being worked off."""
    paces = {client_id: _pace(case, mine) for client_id, mine in user_loads(case).items()}
    behind = {c: pace for c, pace in paces.items() if pace is not None and pace.is_behind}
    if not behind or case.snapshot.is_broadcasting:
        return []
    produced = sum(pace.produced_per_s for pace in behind.values())
    consumed = sum(pace.consumed_per_s for pace in behind.values())
    lag = sum(pace.lag for pace in behind.values())
    growth = produced - consumed
    severity = Severity.INFO if growth < -0.05 * consumed else Severity.WARN
    if growth > 0.05 * consumed:
        what = "messages come faster than"
        means = f"{count_of(round(growth * 3600), 'message')} more behind every hour"
    elif severity is Severity.INFO:
        what = "a backlog is being worked off by"
        means = f"at this pace they have caught up in {describe_age(lag / -growth)}"
    else:
        what = "a backlog is not worked off by"
        means = "it stays as it is"
    return [
        Finding(
            rule="Q07",
            severity=severity,
            title=f"{what} {len(behind)} of {count_of(len(paces), 'member')}",
            evidence=tuple(_describe_pace(case, c, paces[c]) for c in paces),
            consequence=f"{count_of(lag, 'message')} behind: {means}",
            remedy=_pace_remedy(case, are_all=len(behind) == len(paces)),
            members=tuple(behind),
        )
    ]


def find_offsets_gone_back(case: Case) -> list[Finding]:
    """Q08: an offset is lower than it was a moment ago."""
    before = {
        progress.queue: progress.consumer_offset or 0 for progress in case.snapshot.first.progress
    }
    back = [
        progress
        for progress in case.snapshot.last.progress
        if (progress.consumer_offset or 0) < before.get(progress.queue, 0)
    ]
    if not back:
        return []
    count = sum(before[p.queue] - (p.consumer_offset or 0) for p in back)
    return [
        Finding(
            rule="Q08",
            severity=Severity.WARN,
            title=f"the offset of {count_of(len(back), 'queue')} went back",
            evidence=tuple(
                f"{describe_queues([p.queue])}: from {before[p.queue]:,} "
                f"to {p.consumer_offset or 0:,}"
                for p in back
            ),
            consequence=f"{count_of(count, 'message')} may be consumed again",
            remedy=(
                "somebody reset the offsets, or two processes commit in turn for the same queue: "
                "see R01, R02 and R13"
            ),
        )
    ]


def _owned_backlog(case: Case) -> list[MessageQueue]:
    """Return the queues of the group's topics that have an owner and messages."""
    if case.snapshot.is_broadcasting:
        return []
    topics = {topic.topic for topic in case.snapshot.user_topics}
    return [
        queue
        for queue, seats in case.ownership.owners.items()
        if seats and queue.topic in topics and case.lag([queue])
    ]


def _describe_hands(case: Case, client_id: str) -> str:
    report = case.snapshot.find_report(client_id)
    if report is None:
        return f"{client_id} does not tell what it has in hand"
    cached = sum(held.cached_count for held in report.held)
    text = f"{client_id} has {count_of(cached, 'message')} in hand"
    pulled = max((held.last_pull_timestamp_ms for held in report.held), default=0)
    if pulled:
        age_s = (case.snapshot.last.timestamp_ms - pulled) / 1000
        text += f", pulled last {describe_age(age_s)} ago"
    return text


class _Pace(NamedTuple):
    """What goes into a member's queues and what comes out; without those that stand still."""

    produced_per_s: float
    consumed_per_s: float
    lag: int

    @property
    def is_behind(self) -> bool:
        return self.consumed_per_s > 0 and self.lag >= max(
            BEHIND_MIN, BEHIND_S_MIN * self.consumed_per_s
        )


def _pace(case: Case, queues: Iterable[MessageQueue]) -> _Pace | None:
    mine = [queue for queue in queues if queue in case.rates and not case.stands_still(queue)]
    if not mine:
        return None
    return _Pace(
        produced_per_s=sum(case.rates[queue].produced_per_s for queue in mine),
        consumed_per_s=sum(case.rates[queue].consumed_per_s for queue in mine),
        lag=case.lag(mine),
    )


def _describe_pace(case: Case, client_id: str, pace: _Pace | None) -> str:
    if pace is None:
        return f"{client_id}: nothing"
    text = (
        f"{client_id}: in {pace.produced_per_s:,.1f} a second, out {pace.consumed_per_s:,.1f}, "
        f"{pace.lag:,} behind"
    )
    report = case.snapshot.find_report(client_id)
    if report is not None:
        text += f", {count_of(sum(h.cached_count for h in report.held), 'message')} in hand"
    return text


def _pace_remedy(case: Case, *, are_all: bool) -> str:
    faster = "give listeners more threads, or make them faster (batches, fewer remote calls)"
    if not are_all:
        return (
            "compare these members with the others: machine, version, what their listeners call; "
            f"queues are divided by number, so the rebalance does not relieve them; {faster}"
        )
    spare = sum(len(topic.subscribe_queues) for topic in case.snapshot.user_topics) - len(
        user_loads(case)
    )
    if spare > 0:
        return f"start more members ({spare} more can get a queue), or {faster}"
    return f"{faster}; more members need more queues first"

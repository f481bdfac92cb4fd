"""Q06, Q07, Q08: how messages flow, when every queue has its owner. Pure.

The rebalance is not to blame for these; they are what stands behind most backlogs.
"""

from __future__ import annotations

from collections.abc import Iterable

from sparrowmq.model import MessageQueue
from sparrowmq.rebalance.diagnosis.case import Case
from sparrowmq.rebalance.diagnosis.finding import (
    Finding,
    Severity,
    count_of,
    describe_age,
    describe_queues,
)
from sparrowmq.rebalance.diagnosis.membership_rules import user_loads

# A group this little behind is not behind: messages are on their way.
BEHIND_MIN = 1_000
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


def find_slow_group(case: Case) -> list[Finding]:
    """Q07: members work, and messages come faster; or a backlog is being worked off."""
    queues = [queue for queue in _owned_backlog(case) if not case.stands_still(queue)]
    rates = [case.rates[queue] for queue in queues if queue in case.rates]
    produced = sum(rate.produced_per_s for rate in rates)
    consumed = sum(rate.consumed_per_s for rate in rates)
    lag = case.lag(queues)
    if consumed <= 0 or lag < max(BEHIND_MIN, BEHIND_S_MIN * consumed):
        return []
    growth = produced - consumed
    is_growing = growth > 0.05 * consumed
    evidence = [f"in {produced:,.1f} a second, out {consumed:,.1f} a second"]
    evidence += [
        _describe_pace(case, client_id, mine) for client_id, mine in user_loads(case).items()
    ]
    if is_growing:
        means = f"{count_of(round(growth * 3600), 'message')} more behind every hour"
    elif growth < -0.05 * consumed:
        means = f"at this pace the group has caught up in {describe_age(lag / -growth)}"
    else:
        means = "the backlog stays as it is"
    return [
        Finding(
            rule="Q07",
            severity=Severity.WARN if growth > -0.05 * consumed else Severity.INFO,
            title=(
                "members consume more slowly than messages come"
                if is_growing
                else "the group works off a backlog"
            ),
            evidence=tuple(evidence),
            consequence=f"{case.describe_backlog(queues)}: {means}",
            remedy=_pace_remedy(case),
            members=tuple(user_loads(case)),
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


def _describe_pace(case: Case, client_id: str, queues: Iterable[MessageQueue]) -> str:
    mine = [case.rates[queue] for queue in queues if queue in case.rates]
    pace = sum(rate.consumed_per_s for rate in mine)
    text = f"{client_id}: {pace:,.1f} a second from {count_of(len(mine), 'queue')}"
    report = case.snapshot.find_report(client_id)
    if report is not None:
        text += f", {count_of(sum(h.cached_count for h in report.held), 'message')} in hand"
    return text


def _pace_remedy(case: Case) -> str:
    queue_count = sum(len(topic.subscribe_queues) for topic in case.snapshot.user_topics)
    member_count = len(user_loads(case))
    faster = "give listeners more threads, or make them faster (batches, fewer remote calls)"
    if member_count < queue_count:
        return (
            f"start more members ({queue_count - member_count} more can get a queue), or {faster}"
        )
    return f"{faster}; more members need more queues first"

"""Reduces a look at a group to the owners of its queues, and compares two looks. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from sparrowmq.coordination.member_marker import is_marked
from sparrowmq.doctor.case import Case
from sparrowmq.doctor.ownership import OwnerState
from sparrowmq.model import MessageQueue


class SeenEventKind(StrEnum):
    """The kinds of events that may make a group rebalance."""

    JOINED = "joined"
    LEFT = "left"
    TWIN = "twin"
    QUEUES = "queues"
    STRATEGY = "strategy"
    SUBSCRIPTION = "subscription"


class SeenEvent(NamedTuple):
    """An event of a group, a member or a topic.

    `detail` is the number of processes that have the client id after the event, or a change such
    as `4 → 8`.
    """

    kind: SeenEventKind
    subject: str
    detail: str = ""


class OwnerChange(NamedTuple):
    """A change of a queue's owners.

    Args:
        at_risk: the uncommitted messages that the former owner held at the look before, which is
            the most that are consumed twice; 0 if members handed the queue over under its lock.
        offset: the group's committed offset at the change.
        gap_ms: the time since the look before; the change may be earlier by this much.
    """

    queue: MessageQueue
    before: tuple[str, ...]
    after: tuple[str, ...]
    at_risk: int = 0
    offset: int = 0
    gap_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The owners of a group's queues at a moment.

    Args:
        members: the number of connections that carry each client id.
        marked: the client ids of members that run SparrowMQ and so hand over under locks.
        owners: the client ids that hold each queue; an id twice if two processes carry it.
        in_hand: the number of uncommitted messages that each queue's owner holds.
        offsets: the group's committed offset in each queue.
        queue_counts: the number of queues of each topic.
        subscriptions: the group's subscription to each topic.
    """

    timestamp_ms: int
    members: Mapping[str, int]
    marked: frozenset[str]
    owners: Mapping[MessageQueue, tuple[str, ...]]
    in_hand: Mapping[MessageQueue, int]
    offsets: Mapping[MessageQueue, int]
    queue_counts: Mapping[str, int]
    subscriptions: Mapping[str, str]
    strategy: str
    lag: int
    unowned: int
    double: int


def look_of(case: Case) -> Look:
    """Reduce a case to the values that the timeline follows."""
    snapshot = case.snapshot
    ownership = case.ownership
    queues = [queue for topic in snapshot.user_topics for queue in topic.subscribe_queues]
    return Look(
        timestamp_ms=snapshot.last.timestamp_ms,
        members=Counter(c.client_id for c in case.ownership.connections),
        marked=frozenset(s.client_id for s in case.ownership.connections if is_marked(s.version)),
        owners={queue: ownership.owner_ids(queue) for queue in queues},
        in_hand=_in_hand(case),
        offsets={p.queue: p.committed_offset or 0 for p in snapshot.last.progress},
        queue_counts=Counter(queue.topic for queue in queues),
        subscriptions={
            s.topic: s.expression for view in snapshot.last.brokers for s in view.subscriptions
        },
        strategy=snapshot.strategy,
        lag=case.lag(snapshot.progress()),
        unowned=sum(ownership.state_of(q) is OwnerState.UNOWNED for q in queues),
        double=sum(ownership.state_of(q) is OwnerState.DOUBLE for q in queues),
    )


def _in_hand(case: Case) -> dict[MessageQueue, int]:
    known = case.snapshot.progress()
    found: dict[MessageQueue, int] = {}
    for report in case.snapshot.reports:
        for held in report.held:
            committed = known[held.queue].committed_offset if held.queue in known else None
            done = max(0, held.commit_offset - committed) if committed else 0
            found[held.queue] = max(found.get(held.queue, 0), held.cached_count + done)
    return found


def list_changes(before: Look, after: Look) -> list[OwnerChange]:
    """Return the queues whose owners changed; a new queue had no owner before."""
    found = []
    gap_ms = after.timestamp_ms - before.timestamp_ms
    for queue, owners in after.owners.items():
        was = before.owners.get(queue, ())
        if was != owners:
            at_risk = _at_risk(before, after, queue, set(was) - set(owners))
            offset = after.offsets.get(queue, 0)
            found.append(OwnerChange(queue, was, owners, at_risk, offset, gap_ms))
    return found


def _at_risk(before: Look, after: Look, queue: MessageQueue, lost: Iterable[str]) -> int:
    handed_over = before.marked & after.members.keys()
    return before.in_hand.get(queue, 0) if set(lost) - handed_over else 0


def list_events(before: Look, after: Look) -> list[SeenEvent]:
    """Return the events between two looks."""
    found = []
    for client_id in sorted(before.members.keys() | after.members.keys()):
        was, count = before.members.get(client_id, 0), after.members.get(client_id, 0)
        if not was:
            found.append(SeenEvent(SeenEventKind.JOINED, client_id))
        elif not count:
            found.append(SeenEvent(SeenEventKind.LEFT, client_id))
        elif count < was:
            found.append(SeenEvent(SeenEventKind.LEFT, client_id, f"{count}"))
        if count > max(1, was):
            found.append(SeenEvent(SeenEventKind.TWIN, client_id, f"{count}"))
    for topic in sorted(before.queue_counts.keys() & after.queue_counts.keys()):
        was, count = before.queue_counts[topic], after.queue_counts[topic]
        if was != count:
            found.append(SeenEvent(SeenEventKind.QUEUES, topic, f"{was} → {count}"))
    for topic in sorted(before.subscriptions.keys() | after.subscriptions.keys()):
        wanted, wants = before.subscriptions.get(topic), after.subscriptions.get(topic)
        # A group without members has no subscription; that is not a change of subscriptions.
        if wanted != wants and before.members and after.members:
            detail = f"{wanted or '–'} → {wants or '–'}"
            found.append(SeenEvent(SeenEventKind.SUBSCRIPTION, topic, detail))
    if before.strategy != after.strategy and before.members and after.members:
        found.append(SeenEvent(SeenEventKind.STRATEGY, "", f"{before.strategy} → {after.strategy}"))
    return found

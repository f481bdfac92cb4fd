"""The history of a group's owners: events, spans of owners, and rebalances. Pure.

Every view of a rebalance takes its durations from here. The owners come from one of two sources:
from the holdings that members log, which are exact (`measure`, `list_spans`), or from the
differences between successive views of the group (`list_seen`, `list_rebalances`,
`list_seen_spans`), which are as exact as the views are frequent: a change between two views is
dated by the second view. Tests: test_diagnosis_timeline.py, test_rebalances.py, test_looks.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import NamedTuple

from sparrowmq.doctor.finding import describe_runs
from sparrowmq.doctor.group_view import GroupView, changed_members
from sparrowmq.model import MessageQueue
from sparrowmq.model.queue import queue_order
from sparrowmq.words import Phrase, format_duration

# A settled rebalance is over after so long without a change.
QUIET_MS = 5_000
# A rebalance that leaves a queue without exactly one owner goes on for so long without a change:
# longer than a broker takes to drop a silent member.
UNSETTLED_MS = 150_000
# An event counts as the reason of a rebalance if it was seen so long before the first move.
CAUSE_MS = 10_000
# The fields with the durations of a rebalance, in each file.
DURATIONS = (
    "settled_ms",
    "longest_unowned_ms",
    "any_unowned_ms",
    "longest_double_ms",
    "any_double_ms",
)
# The titles of `describe_durations`.
DURATION_TITLES = ("one owner each", "no owner: one, any", "several: one, any")
# A group that rebalances so often in this time is flapping.
FLAPPING_COUNT, FLAPPING_MS = 5, 600_000


class SeenEventKind(StrEnum):
    """The kinds of events that may make a group rebalance."""

    JOINED = "joined"
    LEFT = "left"
    TWIN = "twin"
    QUEUES = "queues"
    STRATEGY = "strategy"
    SUBSCRIPTION = "subscription"
    LOAD = "load"


class SeenEvent(NamedTuple):
    """An event of a group, a member or a topic.

    `detail` is the number of processes that have the client id after the event, or a change such
    as `4 → 8`; of a plan, the load of the fullest member.
    """

    kind: SeenEventKind
    subject: str
    detail: str = ""


class OwnerChange(NamedTuple):
    """A change of a queue's owners.

    Args:
        at_risk: the uncommitted messages that the former owner held at the view before, which may
            be consumed twice; 0 if members handed the queue over under its lock.
        offset: the group's committed offset at the change.
        gap_ms: the time since the view before; the change may be earlier by this much.
        is_lost: whether a former owner did not hand the queue over under its lock.
    """

    queue: MessageQueue
    before: tuple[str, ...]
    after: tuple[str, ...]
    at_risk: int = 0
    offset: int = 0
    gap_ms: int = 0
    is_lost: bool = False


class At(NamedTuple):
    """An event or a change of owners, seen at a wall-clock time."""

    timestamp_ms: int
    what: SeenEvent | OwnerChange


class Holding(NamedTuple):
    """A member holds these queues from `at_ms` until its next holding."""

    at_ms: int
    member: str
    queues: frozenset[MessageQueue]


class OwnedSpan(NamedTuple):
    """A time in which a queue had these owners; None if nobody looked."""

    queue: MessageQueue
    start_ms: int
    end_ms: int
    owners: tuple[str, ...] | None


class QueueMove(NamedTuple):
    """A queue and its owners before and after a rebalance."""

    queue: MessageQueue
    before: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRebalance:
    """A time in which queues changed hands.

    Args:
        begun_ms, ended_ms: the first and the last event or change.
        events: the events during the rebalance or shortly before.
        reason: the first event, if it was not seen after the first change; None is unknown.
        moves: the queues with other owners after the rebalance.
        changed: the number of queues that changed hands, also of those that came back.
        settled_ms: the time until each of these queues had one owner, counted from the view before
            the first change; None if a queue had no owner or several in the end, or if no owner
            changed.
        longest_unowned_ms, longest_double_ms: the longest time that one queue had no owner, or
            several.
        any_unowned_ms, any_double_ms: the time in which at least one queue had no owner, or
            several.
        at_risk: the messages that may have been consumed twice: the uncommitted messages of former
            owners, and all messages that came through queues while they had several owners.
        gap_ms: the time between the first change and the view before; 0 for exact holdings.
        lost_gap_ms: the same for queues that were not handed over under locks, at most; None if all
            were.
    """

    begun_ms: int
    ended_ms: int
    events: tuple[SeenEvent, ...] = ()
    reason: SeenEventKind | None = None
    moves: tuple[QueueMove, ...] = ()
    changed: int = 0
    settled_ms: int | None = None
    longest_unowned_ms: int = 0
    any_unowned_ms: int = 0
    longest_double_ms: int = 0
    any_double_ms: int = 0
    at_risk: int = 0
    gap_ms: int = 0
    lost_gap_ms: int | None = None

    def is_over(self, now_ms: int) -> bool:
        """Return whether a change now would begin another rebalance."""
        return now_ms - self.ended_ms > _quiet_ms(self.changed, self.settled_ms is not None)


def _quiet_ms(changed: int, is_settled: bool) -> int:
    """Return the time without a change after which a rebalance is over."""
    if not changed:
        return CAUSE_MS
    return QUIET_MS if is_settled else UNSETTLED_MS


# --- from the holdings of members -----------------------------------------------------------------


def list_spans(
    holdings: Iterable[Holding],
    queues: Sequence[MessageQueue],
    *,
    since_ms: int,
    until_ms: int,
) -> list[OwnedSpan]:
    """Return the spans of every queue, sorted by queue and time, without a gap within a queue."""
    in_order = sorted(holdings, key=lambda holding: holding.at_ms)
    held = {h.member: h.queues for h in in_order if h.at_ms < since_ms}
    begun = {queue: (since_ms, owners) for queue, owners in _owners_of(held, queues).items()}
    spans = []
    for holding in [h for h in in_order if since_ms <= h.at_ms <= until_ms]:
        held[holding.member] = holding.queues
        for queue, owners in _owners_of(held, queues).items():
            start_ms, before = begun[queue]
            if owners != before:
                begun[queue] = (holding.at_ms, owners)
                if start_ms < holding.at_ms:
                    spans.append(OwnedSpan(queue, start_ms, holding.at_ms, before))
    spans += [OwnedSpan(queue, at_ms, until_ms, owners) for queue, (at_ms, owners) in begun.items()]
    return sorted(spans, key=lambda span: span[:2])


def measure(
    holdings: Sequence[Holding],
    queues: Sequence[MessageQueue],
    *,
    since_ms: int,
    until_ms: int,
) -> GroupRebalance:
    """Follow the owners of queues from an event to the end.

    Args:
        holdings: the members' holdings, in any order; those before the event give its start.
        queues: the queues that should have one owner each.
        since_ms, until_ms: the event and the end, monotonic.
    """
    spans = list_spans(holdings, queues, since_ms=since_ms, until_ms=until_ms)
    in_order = sorted(holdings, key=lambda holding: holding.at_ms)
    held = {h.member: h.queues for h in in_order if h.at_ms < since_ms}
    return _summarize(spans, _owners_of(held, queues), begun_ms=since_ms, ended_ms=until_ms)


def _owners_of(
    held: Mapping[str, frozenset[MessageQueue]], queues: Iterable[MessageQueue]
) -> dict[MessageQueue, tuple[str, ...]]:
    """Return the members that hold each queue, sorted by name."""
    return {
        queue: tuple(sorted(member for member, mine in held.items() if queue in mine))
        for queue in queues
    }


def _summarize(
    spans: Sequence[OwnedSpan],
    before: Mapping[MessageQueue, tuple[str, ...]],
    *,
    begun_ms: int,
    ended_ms: int,
    gap_ms: int = 0,
    at_risk: int = 0,
    lost_gap_ms: int | None = None,
    events: tuple[SeenEvent, ...] = (),
    reason: SeenEventKind | None = None,
) -> GroupRebalance:
    """Make a rebalance of the spans of its queues, which are in order of time for each queue."""
    last = {span.queue: span for span in spans}
    is_settled = bool(last) and all(len(span.owners or ()) == 1 for span in last.values())
    changed_ms = max((span.start_ms for span in last.values()), default=begun_ms)
    longest_unowned_ms, any_unowned_ms = _durations(span for span in spans if not span.owners)
    longest_double_ms, any_double_ms = _durations(s for s in spans if len(s.owners or ()) > 1)
    return GroupRebalance(
        begun_ms=begun_ms,
        ended_ms=ended_ms,
        events=events,
        reason=reason,
        moves=tuple(
            QueueMove(queue, before[queue], span.owners or ())
            for queue, span in sorted(last.items())
            if span.owners != before[queue]
        ),
        changed=len({span.queue for span in spans if span.owners != before[span.queue]}),
        settled_ms=changed_ms - begun_ms + gap_ms if is_settled else None,
        longest_unowned_ms=longest_unowned_ms,
        any_unowned_ms=any_unowned_ms,
        longest_double_ms=longest_double_ms,
        any_double_ms=any_double_ms,
        at_risk=at_risk,
        gap_ms=gap_ms,
        lost_gap_ms=lost_gap_ms,
    )


def _durations(spans: Iterable[OwnedSpan]) -> tuple[int, int]:
    """Return the longest time of one queue in these spans, and the time of any of them."""
    by_queue: Counter[MessageQueue] = Counter()
    any_ms = reached_ms = 0
    for span in sorted(spans, key=lambda span: span.start_ms):
        by_queue[span.queue] += span.end_ms - span.start_ms
        any_ms += max(0, span.end_ms - max(span.start_ms, reached_ms))
        reached_ms = max(reached_ms, span.end_ms)
    return max(by_queue.values(), default=0), any_ms


def describe_durations(rebalance: GroupRebalance) -> tuple[str, ...]:
    """Write the durations for the columns of `DURATION_TITLES`.

    Two times stand together: the longest time of one queue, and the time of any queue. Between two
    views, nobody saw how long a queue took.
    """
    settled: str = format_duration(rebalance.settled_ms, none=Phrase("never"))
    if rebalance.gap_ms and rebalance.settled_ms is not None:
        settled = Phrase("{time} at most", time=settled)
    pairs = (
        (rebalance.longest_unowned_ms, rebalance.any_unowned_ms),
        (rebalance.longest_double_ms, rebalance.any_double_ms),
    )
    return (
        settled,
        *(
            Phrase("{one}, {any}", one=format_duration(one), any=format_duration(several))
            if several or not rebalance.gap_ms
            else Phrase("not seen")
            for one, several in pairs
        ),
    )


def describe_reason(events: Sequence[SeenEvent], name: Callable[[str], str] = str) -> Phrase:
    """Describe the reason of a rebalance, as far as its events were seen.

    Args:
        name: returns the text by which a member is named.
    """

    def of(kind: SeenEventKind) -> list[SeenEvent]:
        return [event for event in events if event.kind is kind]

    def who(event: SeenEvent) -> str:
        return name(event.subject)

    parts = [Phrase("{who} joined", who=who(event)) for event in of(SeenEventKind.JOINED)]
    parts += [
        Phrase("one of the processes with the id of {who} left", who=who(event))
        if event.detail
        else Phrase("{who} left", who=who(event))
        for event in of(SeenEventKind.LEFT)
    ]
    parts += [
        Phrase("{n} processes have the id of {who}", who=who(event), n=event.detail)
        for event in of(SeenEventKind.TWIN)
    ]
    parts += [
        Phrase("topic {topic}: queues {change}", topic=event.subject, change=event.detail)
        for event in of(SeenEventKind.QUEUES)
    ]
    parts += [
        Phrase("subscription of {topic}: {change}", topic=event.subject, change=event.detail)
        for event in of(SeenEventKind.SUBSCRIPTION)
    ]
    parts += [Phrase("strategy {change}", change=e.detail) for e in of(SeenEventKind.STRATEGY)]
    parts += [Phrase("for load: {change}", change=e.detail) for e in of(SeenEventKind.LOAD)]
    if not parts:
        # What happened earlier stands there as an event of its own: a member that drains for long
        # releases its queues later.
        return Phrase(
            "no member came or went in the {time} before: members saw different lists, or released "
            "queues late",
            time=format_duration(CAUSE_MS),
        )
    return Phrase("{parts}", parts=tuple(parts))


def describe_moves(moves: Sequence[QueueMove], name: Callable[[Sequence[str]], str]) -> str:
    """Write moves by their owners: `A → C: broker-a:0-2`, with their topics if there are several.

    Args:
        name: returns the text by which a queue's owners are named.
    """
    by_owners: dict[tuple[str, str], list[MessageQueue]] = {}
    for move in moves:
        by_owners.setdefault((name(move.before), name(move.after)), []).append(move.queue)
    parts = []
    has_topics = len({move.queue.topic for move in moves}) > 1
    for (before, after), queues in by_owners.items():
        places = groupby(sorted(queues, key=queue_order), key=lambda q: (q.topic, q.broker_name))
        where = ", ".join(
            (f"{topic} " if has_topics else "")
            + f"{broker}:{describe_runs([queue.queue_id for queue in some])}"
            for (topic, broker), some in places
        )
        parts.append(f"{before} → {after}: {where}")
    return "; ".join(parts)


# --- from successive views ------------------------------------------------------------------------


def list_seen(before: GroupView, after: GroupView) -> list[At]:
    """Return the events between two views, and then the changes of owners."""
    seen: list[SeenEvent | OwnerChange] = [*list_events(before, after)]
    seen += list_changes(before, after)
    return [At(after.timestamp_ms, what) for what in seen]


def list_changes(before: GroupView, after: GroupView) -> list[OwnerChange]:
    """Return the queues whose owners changed; a new queue had no owner before.

    In a group that does not divide its queues, no queue changes hands. Nor does one of a topic
    whose brokers all missed a look: then nobody lists its owners.
    """
    found: list[OwnerChange] = []
    if not after.snapshot.divides_queues:
        return found
    unlisted = _find_unlisted(before) | _find_unlisted(after)
    gap_ms = after.timestamp_ms - before.timestamp_ms
    handed_over = before.marked & after.members.keys()
    for queue in after.user_queues:
        then, owners = before.queues.get(queue), after.queues[queue].owner_ids
        was = () if then is None else then.owner_ids
        if was != owners and queue.topic not in unlisted:
            is_lost = bool(set(was) - set(owners) - handed_over)
            at_risk = then.in_hand if then and is_lost else 0
            offset = after.offset_of(queue)
            found.append(OwnerChange(queue, was, owners, at_risk, offset, gap_ms, is_lost))
    return found


def count_at_risk(before: GroupView, after: GroupView) -> int:
    """Return the messages perhaps consumed twice between two views: `GroupRebalance.at_risk`."""
    if not after.snapshot.divides_queues:
        return 0
    through_several = sum(
        max(0, after.offset_of(queue) - before.offset_of(queue))
        for queue in before.user_queues
        if len(before.queues[queue].owners) > 1
    )
    return through_several + sum(change.at_risk for change in list_changes(before, after))


def list_events(before: GroupView, after: GroupView) -> list[SeenEvent]:
    """Return the events between two views."""
    found = []
    then, now = before.members, after.members
    for client_id in sorted((then.keys() | now.keys()) - _find_hidden(before, after)):
        was, count = then[client_id], now[client_id]
        if not was:
            found.append(SeenEvent(SeenEventKind.JOINED, client_id))
        elif not count:
            found.append(SeenEvent(SeenEventKind.LEFT, client_id))
        elif count < was:
            found.append(SeenEvent(SeenEventKind.LEFT, client_id, f"{count}"))
        if count > max(1, was):
            found.append(SeenEvent(SeenEventKind.TWIN, client_id, f"{count}"))
    sizes, new_sizes = (Counter(q.topic for q in view.user_queues) for view in (before, after))
    for topic in sorted(sizes.keys() & new_sizes.keys()):
        if sizes[topic] != new_sizes[topic]:
            detail = f"{sizes[topic]} → {new_sizes[topic]}"
            found.append(SeenEvent(SeenEventKind.QUEUES, topic, detail))
    # A group without members has no subscription and no strategy; that is not a change of them.
    if not then or not now:
        return found
    asked, asks = before.subscriptions, after.subscriptions
    for topic in sorted(asked.keys() | asks.keys()):
        if asked.get(topic) != asks.get(topic):
            detail = f"{asked.get(topic) or '–'} → {asks.get(topic) or '–'}"
            found.append(SeenEvent(SeenEventKind.SUBSCRIPTION, topic, detail))
    strategies = before.snapshot.strategy, after.snapshot.strategy
    if strategies[0] != strategies[1]:
        found.append(SeenEvent(SeenEventKind.STRATEGY, "", " → ".join(strategies)))
    old_plan, plan = before.snapshot.plan, after.snapshot.plan
    if old_plan and plan and plan.epoch != old_plan.epoch and plan.moved:
        found.append(SeenEvent(SeenEventKind.LOAD, "", plan.fall))
    return found


def _find_hidden(before: GroupView, after: GroupView) -> frozenset[str]:
    """Return the members of one view alone that only a broker without an answer would list."""
    came, went = changed_members(before.snapshot.last, after.snapshot.last)
    return frozenset(before.members.keys() ^ after.members.keys()) - came - went


def _find_unlisted(view: GroupView) -> set[str]:
    silent = {broker.broker_name for broker in view.snapshot.last.brokers if broker.cid_all is None}
    return {
        topic.topic
        for topic in view.snapshot.user_topics
        if topic.queues and silent.issuperset(at.broker_name for at in topic.queues)
    }


def list_rebalances(
    seen: Sequence[At], *, until_ms: int, offsets: Mapping[MessageQueue, int]
) -> list[GroupRebalance]:
    """Return the rebalances, the newest first.

    Args:
        seen: events and changes of owners, the oldest first.
        until_ms: the present wall-clock time.
        offsets: the group's committed offset in each queue.
    """
    clusters: list[list[At]] = []
    for at in seen:
        if clusters and _belongs(at, clusters[-1]):
            clusters[-1].append(at)
        else:
            clusters.append([at])
    # The time and offset of each queue's next change, from the newest change back.
    later = {queue: (until_ms, offset) for queue, offset in offsets.items()}
    return [_rebalance(cluster, later, until_ms=until_ms) for cluster in reversed(clusters)]


def _belongs(at: At, cluster: Sequence[At]) -> bool:
    """Return whether an event or change belongs to the rebalance before it."""
    last = {
        seen.what.queue: seen.what.after for seen in cluster if isinstance(seen.what, OwnerChange)
    }
    after_ms = at.timestamp_ms - cluster[-1].timestamp_ms
    # Once each queue has one owner, a join or leave begins another rebalance.
    is_settled = all(len(owners) == 1 for owners in last.values())
    if last and isinstance(at.what, SeenEvent):
        return after_ms <= QUIET_MS and not is_settled
    return after_ms <= _quiet_ms(len(last), is_settled)


def _rebalance(
    cluster: Sequence[At], later: dict[MessageQueue, tuple[int, int]], *, until_ms: int
) -> GroupRebalance:
    changes = [(at.timestamp_ms, at.what) for at in cluster if isinstance(at.what, OwnerChange)]
    events = tuple(at.what for at in cluster if isinstance(at.what, SeenEvent))
    first_ms, gap_ms = (changes[0][0], changes[0][1].gap_ms) if changes else (until_ms, 0)
    causes = [at.what for at in cluster if at.timestamp_ms <= first_ms]
    at_risk = sum(change.at_risk for _, change in changes)
    spans, before = [], {}
    for at_ms, change in reversed(changes):
        queue = change.queue
        end_ms, end_offset = later.get(queue, (until_ms, change.offset))
        later[queue] = (at_ms, change.offset)
        before[queue] = change.before
        spans.append(OwnedSpan(queue, at_ms, end_ms, change.after))
        if len(change.after) > 1:
            at_risk += max(0, end_offset - change.offset)
    return _summarize(
        spans[::-1],
        before,
        begun_ms=cluster[0].timestamp_ms,
        ended_ms=cluster[-1].timestamp_ms,
        gap_ms=gap_ms,
        at_risk=at_risk,
        lost_gap_ms=max((each.gap_ms for _, each in changes if each.is_lost), default=None),
        events=events,
        reason=next((each.kind for each in causes if isinstance(each, SeenEvent)), None),
    )


def list_seen_spans(
    queue: MessageQueue,
    owners: tuple[str, ...],
    seen: Sequence[At],
    watched: Sequence[tuple[int, int]],
    *,
    since_ms: int,
    until_ms: int,
) -> list[OwnedSpan]:
    """Return a queue's owners over time, without a gap.

    Args:
        owners: the present owners.
        seen: the events and changes since `since_ms`, the oldest first.
        watched: the times in which somebody looked, as (start, end), the oldest first.
        since_ms, until_ms: the wall-clock times at which the spans begin and end.
    """
    changes = [
        (at.timestamp_ms, at.what)
        for at in seen
        if isinstance(at.what, OwnerChange) and at.what.queue == queue
    ]
    steps = [(since_ms, changes[0][1].before if changes else owners)]
    steps += [(at_ms, change.after) for at_ms, change in changes]
    ends = [*(at_ms for at_ms, _ in steps[1:]), until_ms]
    spans: list[OwnedSpan] = []
    at_ms = since_ms
    for start_ms, end_ms in watched:
        begin, end = max(start_ms, since_ms), min(end_ms, until_ms)
        if begin >= end:
            continue
        if begin > at_ms:
            spans.append(OwnedSpan(queue, at_ms, begin, None))
        for (step_ms, after), step_end in zip(steps, ends, strict=True):
            low, high = max(step_ms, begin), min(step_end, end)
            if low < high:
                spans.append(OwnedSpan(queue, low, high, after))
        at_ms = end
    if at_ms < until_ms:
        spans.append(OwnedSpan(queue, at_ms, until_ms, None))
    return spans


def count_recent(rebalances: Sequence[GroupRebalance], *, until_ms: int) -> int:
    """Return the number of rebalances that moved queues in the last `FLAPPING_MS`.

    A plan may move queues for load every 20 s; the group is well.
    """
    return sum(
        bool(r.moves)
        and r.reason is not SeenEventKind.LOAD
        and until_ms - r.begun_ms <= FLAPPING_MS
        for r in rebalances
    )

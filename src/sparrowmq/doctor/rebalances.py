"""Makes rebalances of stored changes of owners: their reasons and costs. Pure.

Changes in quick succession are one rebalance. Times are as exact as the looks are frequent: an
event between two looks is dated by the second look.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sparrowmq.doctor.looks import OwnerChange, SeenEvent
from sparrowmq.model import MessageQueue

# A rebalance is over after so long without a change.
QUIET_MS = 5_000
# An event counts as the reason of a rebalance if it was seen so long before the first move.
CAUSE_MS = 10_000
# A group that rebalances so often in this time is flapping.
FLAPPING_COUNT, FLAPPING_MS = 5, 600_000


class At(NamedTuple):
    """An event or a change of owners, seen at a wall-clock time."""

    timestamp_ms: int
    what: SeenEvent | OwnerChange


class QueueMove(NamedTuple):
    """A queue and its owners before and after a rebalance."""

    queue: MessageQueue
    before: tuple[str, ...]
    after: tuple[str, ...]


class OwnerBand(NamedTuple):
    """A time in which a queue had these owners; None if nobody looked."""

    start_ms: int
    end_ms: int
    owners: tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRebalance:
    """A rebalance: a time in which queues moved.

    Args:
        events: the events during the rebalance or shortly before.
        moves: the queues with other owners after the rebalance.
        settled_ms: the time until each of these queues had one owner, counted from the look before
            the first change; None if a queue had no owner or several in the end, or if no owner
            changed.
        unowned_ms: the longest time that one of these queues had no owner.
        double_ms: the longest time that one of these queues had several owners.
        at_risk: the most messages that were consumed twice: the uncommitted messages of former
            owners, and all messages that came through queues while they had several owners.
    """

    begun_ms: int
    ended_ms: int
    events: tuple[SeenEvent, ...]
    moves: tuple[QueueMove, ...]
    settled_ms: int | None
    unowned_ms: int
    double_ms: int
    at_risk: int


def list_rebalances(
    seen: Sequence[At], *, until_ms: int, offsets: Mapping[MessageQueue, int]
) -> list[SeenRebalance]:
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
    later = {queue: _Next(until_ms, offset) for queue, offset in offsets.items()}
    return [_rebalance(cluster, later, until_ms=until_ms) for cluster in reversed(clusters)]


def _belongs(at: At, cluster: Sequence[At]) -> bool:
    """Return whether an event or change belongs to the rebalance before it."""
    last = {
        seen.what.queue: seen.what.after for seen in cluster if isinstance(seen.what, OwnerChange)
    }
    after_ms = at.timestamp_ms - cluster[-1].timestamp_ms
    if not last:
        return after_ms <= CAUSE_MS
    # Once each queue had one owner the rebalance was over; a join or leave begins another.
    is_over = after_ms > 0 and all(len(owners) == 1 for owners in last.values())
    return after_ms <= QUIET_MS and not (is_over and isinstance(at.what, SeenEvent))


class _Next(NamedTuple):
    """The time of a queue's next change of owners, and the group's committed offset then."""

    timestamp_ms: int
    offset: int


class _Stay(NamedTuple):
    """A time in which a queue had these owners, and the number of messages consumed from it."""

    owners: tuple[str, ...]
    duration_ms: int
    message_count: int


def _rebalance(
    cluster: Sequence[At], later: dict[MessageQueue, _Next], *, until_ms: int
) -> SeenRebalance:
    begun_ms, ended_ms = cluster[0].timestamp_ms, cluster[-1].timestamp_ms
    by_queue: dict[MessageQueue, list[tuple[int, OwnerChange]]] = {}
    for at in cluster:
        if isinstance(at.what, OwnerChange):
            by_queue.setdefault(at.what.queue, []).append((at.timestamp_ms, at.what))
    moves, unowned_ms, double_ms, settled_ms, at_risk = [], 0, 0, 0, 0
    is_settled = True
    for queue, course in by_queue.items():
        first, last = course[0][1].before, course[-1][1].after
        stays = _stays(course, later.get(queue) or _Next(until_ms, course[-1][1].offset))
        later[queue] = _Next(course[0][0], course[0][1].offset)
        unowned_ms = max(unowned_ms, sum(s.duration_ms for s in stays if not s.owners))
        double_ms = max(double_ms, sum(s.duration_ms for s in stays if len(s.owners) > 1))
        at_risk += sum(change.at_risk for _, change in course)
        at_risk += sum(s.message_count for s in stays if len(s.owners) > 1)
        is_settled = is_settled and len(last) == 1
        settled_ms = max(settled_ms, course[-1][0] - begun_ms + course[0][1].gap_ms)
        if first != last:
            moves.append(QueueMove(queue, first, last))
    return SeenRebalance(
        begun_ms=begun_ms,
        ended_ms=ended_ms,
        events=tuple(at.what for at in cluster if isinstance(at.what, SeenEvent)),
        moves=tuple(sorted(moves)),
        settled_ms=settled_ms if by_queue and is_settled else None,
        unowned_ms=unowned_ms,
        double_ms=double_ms,
        at_risk=at_risk,
    )


def _stays(course: Sequence[tuple[int, OwnerChange]], then: _Next) -> list[_Stay]:
    nexts = [*(_Next(at_ms, change.offset) for at_ms, change in course[1:]), then]
    return [
        _Stay(change.after, end.timestamp_ms - at_ms, max(0, end.offset - change.offset))
        for (at_ms, change), end in zip(course, nexts, strict=True)
    ]


def list_bands(
    queue: MessageQueue,
    owners: tuple[str, ...],
    seen: Sequence[At],
    watched: Sequence[tuple[int, int]],
    *,
    since_ms: int,
    until_ms: int,
) -> list[OwnerBand]:
    """Return a queue's owners over time, without a gap.

    Args:
        owners: the present owners.
        seen: the events and changes since `since_ms`, the oldest first.
        watched: the times in which the server looked, as (start, end), the oldest first.
        since_ms, until_ms: the wall-clock times at which the bands begin and end.
    """
    course = [
        (at.timestamp_ms, at.what)
        for at in seen
        if isinstance(at.what, OwnerChange) and at.what.queue == queue
    ]
    now = course[0][1].before if course else owners
    steps = [(since_ms, now), *((at, change.after) for at, change in course)]
    bands: list[OwnerBand] = []
    at_ms = since_ms
    for start_ms, end_ms in watched:
        begin, end = max(start_ms, since_ms), min(end_ms, until_ms)
        if begin >= end:
            continue
        if begin > at_ms:
            bands.append(OwnerBand(at_ms, begin, None))
        for index, (step_ms, after) in enumerate(steps):
            step_end = steps[index + 1][0] if index + 1 < len(steps) else until_ms
            low, high = max(step_ms, begin), min(step_end, end)
            if low < high:
                bands.append(OwnerBand(low, high, after))
        at_ms = end
    if at_ms < until_ms:
        bands.append(OwnerBand(at_ms, until_ms, None))
    return bands


def count_recent(rebalances: Sequence[SeenRebalance], *, until_ms: int) -> int:
    """Return the number of rebalances that moved queues in the last `FLAPPING_MS`."""
    return sum(bool(r.moves) and until_ms - r.begun_ms <= FLAPPING_MS for r in rebalances)

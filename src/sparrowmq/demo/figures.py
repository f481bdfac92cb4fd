"""From what was written down to figures. Pure: values in, values out.

Words used here:

- a *holding*: one member owned one queue from one instant to another, by its own logbook;
- a *span*: a time in which the set of a queue's owners did not change; the spans of one queue
  follow each other without a gap;
- an *event*: something that makes the group rebalance. Its *window* lasts until the next event.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]


class Holding(NamedTuple):
    """One member owned one queue from `start_ms` to `end_ms`."""

    member: str
    queue_id: int
    start_ms: int
    end_ms: int


class Span(NamedTuple):
    """A queue had these owners, sorted, from `start_ms` to `end_ms`."""

    queue_id: int
    start_ms: int
    end_ms: int
    owners: tuple[str, ...]

    @property
    def duration_ms(self) -> int:
        """How long the span lasted."""
        return self.end_ms - self.start_ms


@dataclass(frozen=True, slots=True)
class Recovery:
    """How a group came through an event.

    Args:
        settled_ms: from the event until every queue had exactly one owner and kept it until the
            next event; None if that never came.
        unowned_ms_max: the longest time in which a queue had no owner.
        double_ms_max: the longest time in which a queue had more than one.
        queues_moved: how many queues had another owner afterwards than before.
    """

    settled_ms: int | None
    unowned_ms_max: int
    double_ms_max: int
    queues_moved: int


class OrderCheck(NamedTuple):
    """Whether every aircraft's legs stand in one queue in the order they were produced."""

    aircraft: int
    legs: int
    aircraft_in_several_queues: int
    legs_out_of_order: int
    legs_unknown: int

    @property
    def holds(self) -> bool:
        """Whether nothing is wrong."""
        wrong = self.aircraft_in_several_queues + self.legs_out_of_order + self.legs_unknown
        return wrong == 0


def list_holdings(
    assignments: Mapping[str, Sequence[tuple[int, Iterable[int]]]],
    *,
    ends: Mapping[str, int],
    until_ms: int,
) -> list[Holding]:
    """Turn each member's assignments into holdings, sorted by member, queue and time.

    Args:
        assignments: for each member `(at_ms, all queues it owns from then on)`, by time.
        ends: when a member ended; one that was killed writes no last assignment.
        until_ms: the end of the time looked at; holdings that go on are cut there.
    """
    holdings = []
    for member in sorted(assignments):
        end_ms = min(ends.get(member, until_ms), until_ms)
        since: dict[int, int] = {}
        for at_ms, queue_ids in assignments[member]:
            now_ms, owned = min(at_ms, end_ms), set(queue_ids)
            for queue_id in sorted(since.keys() - owned):
                holdings.append(Holding(member, queue_id, since.pop(queue_id), now_ms))
            for queue_id in sorted(owned - since.keys()):
                since[queue_id] = now_ms
        holdings.extend(Holding(member, q, start_ms, end_ms) for q, start_ms in since.items())
    return sorted(holding for holding in holdings if holding.start_ms < holding.end_ms)


def list_spans(
    holdings: Sequence[Holding], *, queue_count: int, start_ms: int, until_ms: int
) -> list[Span]:
    """Return the spans of every queue from `start_ms` to `until_ms`, by queue and time."""
    spans = []
    for queue_id in range(queue_count):
        own = [holding for holding in holdings if holding.queue_id == queue_id]
        cuts = {start_ms, until_ms, *(h.start_ms for h in own), *(h.end_ms for h in own)}
        instants = sorted(cut for cut in cuts if start_ms <= cut <= until_ms)
        queue_spans: list[Span] = []
        for begin, end in itertools.pairwise(instants):
            owners = tuple(sorted({h.member for h in own if h.start_ms <= begin < h.end_ms}))
            if queue_spans and queue_spans[-1].owners == owners:
                queue_spans[-1] = queue_spans[-1]._replace(end_ms=end)
            else:
                queue_spans.append(Span(queue_id, begin, end, owners))
        spans.extend(queue_spans)
    return spans


def owners_at(spans: Sequence[Span], at_ms: int) -> dict[int, tuple[str, ...]]:
    """Return each queue's owners at an instant (the end of the last span counts to it)."""
    owners: dict[int, tuple[str, ...]] = {}
    for span in spans:
        if span.start_ms <= at_ms <= span.end_ms:
            owners[span.queue_id] = span.owners
    return owners


def has_one_owner_each(owners: Mapping[int, tuple[str, ...]], *, queue_count: int) -> bool:
    """Tell whether each of the queues is there and has exactly one owner."""
    return all(len(owners.get(queue_id, ())) == 1 for queue_id in range(queue_count))


def measure_recovery(
    spans: Sequence[Span], event_ms: int, *, until_ms: int, queue_count: int
) -> Recovery:
    """Measure the window from an event to `until_ms`, the instant of the next event."""
    window = [
        span._replace(start_ms=max(span.start_ms, event_ms), end_ms=min(span.end_ms, until_ms))
        for span in spans
        if span.start_ms < until_ms and span.end_ms > event_ms
    ]
    before = {span.queue_id: span.owners for span in window if span.start_ms == event_ms}
    after = {span.queue_id: span.owners for span in window if span.end_ms == until_ms}
    last_change_ms = max((span.start_ms for span in window), default=event_ms)
    settled = has_one_owner_each(after, queue_count=queue_count)
    unowned = [span.duration_ms for span in window if not span.owners]
    double = [span.duration_ms for span in window if len(span.owners) > 1]
    return Recovery(
        settled_ms=last_change_ms - event_ms if settled else None,
        unowned_ms_max=max(unowned, default=0),
        double_ms_max=max(double, default=0),
        queues_moved=sum(before.get(q) != after.get(q) for q in range(queue_count)),
    )


def find_duplicates(queue_ids: Integers, queue_offsets: Integers, at_ms: Integers) -> Integers:
    """Return the instants of all deliveries but the first of each message, sorted."""
    order = np.lexsort((at_ms, queue_offsets, queue_ids))
    same_queue = np.diff(queue_ids[order]) == 0
    same_offset = np.diff(queue_offsets[order]) == 0
    return np.sort(at_ms[order][1:][same_queue & same_offset])


def count_by_window(instants: Integers, starts_ms: Sequence[int]) -> list[int]:
    """Count the instants in each window; what comes before the first counts to the first."""
    if not starts_ms:
        return []
    window = np.searchsorted(np.array(starts_ms, dtype=np.int64), instants, side="right") - 1
    counts = np.bincount(np.maximum(window, 0), minlength=len(starts_ms))
    return [int(count) for count in counts]


def count_distinct(*columns: Integers) -> int:
    """Return how many different rows the columns have."""
    if not len(columns[0]):
        return 0
    order = np.lexsort(columns)
    differs = np.zeros(len(order) - 1, dtype=bool)
    for column in columns:
        differs |= np.diff(column[order]) != 0
    return int(differs.sum()) + 1


def count_per_queue(queue_ids: Integers, *, queue_count: int) -> list[int]:
    """Return how many rows each queue has."""
    return [int(count) for count in np.bincount(queue_ids, minlength=queue_count)]


def check_order(
    aircraft: Integers, queue_ids: Integers, *, queue_offsets: Integers, produced_index: Integers
) -> OrderCheck:
    """Check that each aircraft's legs are stored in the order they were produced.

    Args:
        aircraft: a number for each leg's sharding key.
        queue_ids: the queue in which the leg stands.
        queue_offsets: where it stands there.
        produced_index: the leg's place in the order of producing, -1 if it was never produced.
    """
    order = np.lexsort((queue_offsets, queue_ids, aircraft))
    same_aircraft = np.diff(aircraft[order]) == 0
    same_queue = np.diff(queue_ids[order]) == 0
    ascends = np.diff(produced_index[order]) > 0
    pairs = np.unique(np.stack((aircraft, queue_ids)), axis=1)[0]
    names, queues_of_aircraft = np.unique(pairs, return_counts=True)
    return OrderCheck(
        aircraft=len(names),
        legs=len(order),
        aircraft_in_several_queues=int((queues_of_aircraft > 1).sum()),
        legs_out_of_order=int((same_aircraft & same_queue & ~ascends).sum()),
        legs_unknown=int((produced_index < 0).sum()),
    )

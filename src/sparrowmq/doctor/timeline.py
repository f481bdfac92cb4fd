"""Measures how long a group took to agree again, from the queues that its members held. Pure.

Tests: test_diagnosis_timeline.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from sparrowmq.model import MessageQueue


class Holding(NamedTuple):
    """A member holds these queues from `at_ms` until its next holding."""

    at_ms: int
    member: str
    queues: frozenset[MessageQueue]


class Span(NamedTuple):
    """A time in which a queue had the same owners, which are sorted by name."""

    queue: MessageQueue
    start_ms: int
    end_ms: int
    owners: tuple[str, ...]


class Episode(NamedTuple):
    """The effect of an event on a group.

    Args:
        settled_ms: the time from the event to the last change of an owner; None if some queue had
            no owner, or several, in the end.
        unowned_ms: the time in which some queue had no owner.
        double_ms: the time in which some queue had several owners.
        moved: the number of queues with other owners in the end than before the event.
    """

    settled_ms: int | None
    unowned_ms: int
    double_ms: int
    moved: int


def measure(
    holdings: Iterable[Holding],
    queues: Sequence[MessageQueue],
    *,
    since_ms: int,
    until_ms: int,
) -> Episode:
    """Follow the owners of queues from an event to the end.

    Args:
        holdings: the members' holdings, in any order; those before the event give its start.
        queues: the queues that should have one owner each.
        since_ms, until_ms: the event and the end, monotonic.
    """
    in_order = sorted(holdings, key=lambda holding: holding.at_ms)
    held = {h.member: h.queues for h in in_order if h.at_ms < since_ms}
    before = owners_of(held, queues)
    now = before
    changed_ms = last_ms = since_ms
    unowned_ms = double_ms = 0
    for holding in [h for h in in_order if since_ms <= h.at_ms <= until_ms]:
        span_ms = holding.at_ms - last_ms
        unowned_ms += span_ms * any(not owners for owners in now.values())
        double_ms += span_ms * any(len(owners) > 1 for owners in now.values())
        last_ms = holding.at_ms
        held[holding.member] = holding.queues
        after = owners_of(held, queues)
        if after != now:
            changed_ms, now = holding.at_ms, after
    unowned_ms += (until_ms - last_ms) * any(not owners for owners in now.values())
    double_ms += (until_ms - last_ms) * any(len(owners) > 1 for owners in now.values())
    is_settled = all(len(owners) == 1 for owners in now.values())
    return Episode(
        settled_ms=changed_ms - since_ms if is_settled else None,
        unowned_ms=unowned_ms,
        double_ms=double_ms,
        moved=sum(now[queue] != before[queue] for queue in queues),
    )


def list_spans(
    holdings: Iterable[Holding],
    queues: Sequence[MessageQueue],
    *,
    since_ms: int,
    until_ms: int,
) -> list[Span]:
    """Return the spans of every queue, sorted by queue and time, without a gap within a queue."""
    in_order = sorted(holdings, key=lambda holding: holding.at_ms)
    held = {h.member: h.queues for h in in_order if h.at_ms <= since_ms}
    begun = {queue: (since_ms, owners) for queue, owners in owners_of(held, queues).items()}
    spans = []
    for holding in [h for h in in_order if since_ms < h.at_ms < until_ms]:
        held[holding.member] = holding.queues
        for queue, owners in owners_of(held, queues).items():
            start_ms, before = begun[queue]
            if owners != before:
                begun[queue] = (holding.at_ms, owners)
                if start_ms < holding.at_ms:
                    spans.append(Span(queue, start_ms, holding.at_ms, before))
    spans += [Span(queue, start, until_ms, owners) for queue, (start, owners) in begun.items()]
    return sorted(spans)


def owners_of(
    held: Mapping[str, frozenset[MessageQueue]], queues: Iterable[MessageQueue]
) -> dict[MessageQueue, tuple[str, ...]]:
    """Return the members that hold each queue, sorted by name."""
    return {
        queue: tuple(sorted(member for member, mine in held.items() if queue in mine))
        for queue in queues
    }

"""From what members held, and when, to how long a group took to agree again. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from sparrowmq.model import MessageQueue


class Holding(NamedTuple):
    """From a moment on a member holds these queues, until it holds others."""

    at_ms: int
    member: str
    queues: frozenset[MessageQueue]


class Span(NamedTuple):
    """A time in which a queue had the same owners, in the order of their names."""

    queue: MessageQueue
    start_ms: int
    end_ms: int
    owners: tuple[str, ...]


class Episode(NamedTuple):
    """What an event did to a group.

    Args:
        settled_ms: after how long queues changed hands for the last time; None if some queue had
            no owner, or several, in the end.
        unowned_ms: how long there was a queue without an owner.
        double_ms: how long there was one with several.
        moved: queues with another owner in the end than before the event.
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
    """Follow who held what from an event to the end.

    Args:
        holdings: in any order; those before the event say how it began.
        queues: those that should have one owner each.
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
    """Return every queue's spans, by queue and time; those of a queue follow without a gap."""
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
    """Return who holds each queue."""
    return {
        queue: tuple(sorted(member for member, mine in held.items() if queue in mine))
        for queue in queues
    }

"""The part of a batch that the conditions of a query leave: queues, offsets and store times. Pure.

Tests: test_pushed_filters.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from sparrowmq.spark.planning import QueueRange

# A start, included, and an end, excluded; None for no bound.
Interval: TypeAlias = tuple[int | None, int | None]

# A queue's messages are in the order of their store times, unless the broker's clock was set back:
# by no more than this, and a search by time misses none.
CLOCK_STEP_MS_MAX = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrowing:
    """What conditions leave.

    Args:
        topics, broker_names, queue_ids: the values to read; None for any.
        offsets: the offsets to read, in every queue.
        stored_us: the store times to read, in microseconds since 1970.
    """

    topics: frozenset[str] | None = None
    broker_names: frozenset[str] | None = None
    queue_ids: frozenset[int] | None = None
    offsets: Interval = (None, None)
    stored_us: Interval = (None, None)

    def among(self, field: str, values: frozenset[Any]) -> Narrowing:
        """Return what is left with these values of a field."""
        before: frozenset[Any] | None = getattr(self, field)
        changes: dict[str, Any] = {field: values if before is None else before & values}
        return replace(self, **changes)

    def within(self, field: str, start: int | None, end: int | None) -> Narrowing:
        """Return what is left within these bounds of a field."""
        before: Interval = getattr(self, field)
        starts = [each for each in (before[0], start) if each is not None]
        ends = [each for each in (before[1], end) if each is not None]
        changes: dict[str, Any] = {field: (max(starts, default=None), min(ends, default=None))}
        return replace(self, **changes)

    @property
    def since_ms(self) -> int | None:
        """The store time at which to begin, where a clock may have been set back."""
        start = self.stored_us[0]
        return None if start is None else max(0, start // 1000 - CLOCK_STEP_MS_MAX)

    @property
    def until_ms(self) -> int | None:
        """The store time at which to end, where a clock may have been set back."""
        end = self.stored_us[1]
        return None if end is None else max(0, -(-end // 1000) + CLOCK_STEP_MS_MAX)

    def narrow(self, ranges: Iterable[QueueRange]) -> list[QueueRange]:
        """Return the parts of ranges that are left by queue and offset; none is empty."""
        kept = [
            each.clip(*self.offsets)
            for each in ranges
            if (self.topics is None or each.queue.topic in self.topics)
            and (self.broker_names is None or each.queue.broker_name in self.broker_names)
            and (self.queue_ids is None or each.queue.queue_id in self.queue_ids)
        ]
        return [each for each in kept if each.rows > 0]


ALL = Narrowing()

"""The latency of recent puts, as RocketMQ's tools print it. Pure.

The latency of a message lasts from its request to its answer, which waits until the log is written
or flushed. All answers of one group commit are noted at once, with the latency of the group's first
message. The cost therefore does not grow with the number of messages, and the shown latency is an
upper bound.

Source: StoreStatsService.java, whose steps these are.
"""

from __future__ import annotations

import math
from bisect import bisect_left

WINDOW_MS = 60_000
# Durations up to each of these are counted together.
STEPS_MS: tuple[int, ...] = (
    *range(21),
    *range(22, 51, 2),
    *range(55, 101, 5),
    *range(110, 201, 10),
    *range(250, 501, 50),
    *range(600, 1_001, 100),
    *range(2_000, 10_001, 1_000),
)


class PutLatency:
    """The latencies of the current minute and of the minute before.

    Attributes:
        max_ms: the longest latency since the broker started.
    """

    __slots__ = ("_before", "_counts", "_until_ms", "max_ms")

    def __init__(self) -> None:
        # The last count is of all durations beyond the last step.
        self._counts = self._before = [0] * (len(STEPS_MS) + 1)
        self._until_ms = 0
        self.max_ms = 0

    def note(self, count: int, duration_ms: int, *, now_ms: int) -> None:
        """Note a number of answers that each took at most `duration_ms`."""
        if now_ms >= self._until_ms:
            self._turn(now_ms)
        self._counts[bisect_left(STEPS_MS, duration_ms)] += count
        if duration_ms > self.max_ms:
            self.max_ms = duration_ms

    def _turn(self, now_ms: int) -> None:
        empty = [0] * (len(STEPS_MS) + 1)
        has_just_ended = now_ms < self._until_ms + WINDOW_MS
        self._before = self._counts if has_just_ended else empty
        self._counts = empty.copy()
        self._until_ms = now_ms + WINDOW_MS

    def percentile_ms(self, share: float, *, now_ms: int) -> int:
        """Return the duration that this share of messages did not exceed; 0 without messages.

        Differs from RocketMQ: the current minute counts as well, and a step is shown by its upper
        end, not by a value between its ends.
        """
        if now_ms >= self._until_ms:
            self._turn(now_ms)
        counts = [now + before for now, before in zip(self._counts, self._before, strict=True)]
        left = math.ceil(sum(counts) * share)
        for step_ms, count in zip(STEPS_MS, counts, strict=False):
            left -= count
            if left <= 0:
                return min(step_ms, self.max_ms)
        return self.max_ms

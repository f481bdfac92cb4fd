"""A bound on repeated lines of a log: so many of a kind in a period; the others are counted. Pure.

A peer decides how often its faults occur, so no line that a peer can cause is written without a
bound.
"""

from __future__ import annotations

from collections.abc import Hashable

# The period of a bound, unless its owner chooses another.
PERIOD_MS = 10_000
# The most kinds that are counted separately; further kinds of the period share one bound.
KINDS_MAX = 1_000


class LineBound:
    """Bounds the lines of each kind.

    Args:
        lines_max: the most lines of a kind in a period.
        period_ms: the period; it begins with the kind's first line.
    """

    def __init__(self, *, lines_max: int = 1, period_ms: int = PERIOD_MS) -> None:
        self._lines_max = lines_max
        self._period_ms = period_ms
        # By kind: the end of its period, and the number of its lines since then.
        self._kinds: dict[Hashable, tuple[int, int]] = {}

    def admit(self, kind: Hashable, now_ms: int) -> int | None:
        """Count a line.

        Returns: None to leave the line out; else how many lines of its kind were left out before.
        """
        if kind not in self._kinds and len(self._kinds) >= KINDS_MAX:
            self._kinds = {one: (end, n) for one, (end, n) in self._kinds.items() if now_ms < end}
            if len(self._kinds) >= KINDS_MAX:
                kind = None
        end_ms, count = self._kinds.get(kind, (now_ms, 0))
        left_out = 0
        if now_ms >= end_ms:
            end_ms, left_out, count = now_ms + self._period_ms, max(0, count - self._lines_max), 0
        self._kinds[kind] = end_ms, count + 1
        return left_out if count < self._lines_max else None

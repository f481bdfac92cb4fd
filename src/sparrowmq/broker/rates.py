"""How many messages a second came and went lately, as RocketMQ's tools print it. Pure.

Totals are noted once a second for ten minutes; a rate is the difference between now and the oldest
note of its window. Before a window is full, the rate is that of the time there was.

Source: StoreStatsService.java.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

SAMPLE_INTERVAL_MS = 1_000
# printTPSInterval's three windows.
WINDOWS_MS = (10_000, 60_000, 600_000)
_SAMPLES_MAX = WINDOWS_MS[-1] // SAMPLE_INTERVAL_MS + 1


class _Sample(NamedTuple):
    at_ms: int
    puts: int
    gets: int


class Rates:
    """The totals of the last ten minutes."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque(maxlen=_SAMPLES_MAX)

    def note(self, now_ms: int, *, puts: int, gets: int) -> None:
        """Take the totals since the start, if a second has passed since the last time."""
        if not self._samples or now_ms >= self._samples[-1].at_ms + SAMPLE_INTERVAL_MS:
            self._samples.append(_Sample(now_ms, puts, gets))

    def puts_per_second(self, now_ms: int, *, puts: int) -> str:
        """Return three rates, each with one blank before the next: `12.5 8.25 3.0`."""
        return self._text(now_ms, [(s.at_ms, puts - s.puts) for s in self._samples])

    def gets_per_second(self, now_ms: int, *, gets: int) -> str:
        """Return the same of messages that were pulled."""
        return self._text(now_ms, [(s.at_ms, gets - s.gets) for s in self._samples])

    def _text(self, now_ms: int, since: list[tuple[int, int]]) -> str:
        return " ".join(str(_rate(now_ms, since, window_ms)) for window_ms in WINDOWS_MS)


def _rate(now_ms: int, since: list[tuple[int, int]], window_ms: int) -> float:
    for at_ms, count in since:
        if now_ms - window_ms <= at_ms < now_ms:
            return round(count * 1000 / (now_ms - at_ms), 3)
    return 0.0

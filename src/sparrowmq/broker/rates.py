"""The recent rates of stored and pulled messages, as RocketMQ's tools print them. Pure.

Totals are noted once a second for ten minutes. A rate is the difference between the current total
and the oldest note in its window, per second. Until a window is full, its rate covers the time
since the first note.

Source: StoreStatsService.java.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
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
        """Note the totals since the start, if a second has passed since the last note."""
        if not self._samples or now_ms >= self._samples[-1].at_ms + SAMPLE_INTERVAL_MS:
            self._samples.append(_Sample(now_ms, puts, gets))

    def puts_per_second(self, now_ms: int, *, puts: int) -> str:
        """Return the three rates of stored messages, separated by blanks: `12.5 8.25 3.0`."""
        return self._text(now_ms, [(s.at_ms, puts - s.puts) for s in self._samples])

    def gets_per_second(self, now_ms: int, *, gets: int) -> str:
        """Return the three rates of pulled messages, in the same form."""
        return self._text(now_ms, [(s.at_ms, gets - s.gets) for s in self._samples])

    def _text(self, now_ms: int, since: list[tuple[int, int]]) -> str:
        return " ".join(str(_rate(now_ms, since, window_ms)) for window_ms in WINDOWS_MS)


def _rate(now_ms: int, since: list[tuple[int, int]], window_ms: int) -> float:
    for at_ms, count in since:
        if now_ms - window_ms <= at_ms < now_ms:
            return round(count * 1000 / (now_ms - at_ms), 3)
    return 0.0


class RateWindow(NamedTuple):
    """A window of RocketMQ's statistics, and the interval at which totals are noted for it."""

    window_ms: int
    step_ms: int


# StatsItem's minute, hour and day, with its sampling intervals.
SPANS = (
    RateWindow(60_000, 10_000),
    RateWindow(3_600_000, 600_000),
    RateWindow(86_400_000, 3_600_000),
)


class Added(NamedTuple):
    """The count added within a window, or since the first note if the window is not full."""

    amount: int
    per_second: float


class TotalsByKey:
    """Totals by key, such as the messages of each topic, over a minute, an hour and a day.

    Source: StatsItem.java, BrokerStatsManager.java. Differs from RocketMQ: nothing is counted. The
    totals come from offsets, so a restart loses the earlier notes but no count.
    """

    __slots__ = ("_noted",)

    def __init__(self) -> None:
        self._noted: tuple[deque[tuple[int, Mapping[str, int]]], ...] = tuple(
            deque(maxlen=span.window_ms // span.step_ms + 1) for span in SPANS
        )

    def note(self, now_ms: int, totals: Callable[[], Mapping[str, int]]) -> None:
        """Note the totals if a note is due."""
        due = [
            noted
            for span, noted in zip(SPANS, self._noted, strict=True)
            if not noted or now_ms >= noted[-1][0] + span.step_ms
        ]
        if due:
            now = totals()
            for noted in due:
                noted.append((now_ms, now))

    def added(self, now_ms: int, key: str, total: int) -> tuple[Added, ...]:
        """Return the count added to a key's total within each of `SPANS`."""
        found = []
        for span, noted in zip(SPANS, self._noted, strict=True):
            since = next((n for n in noted if now_ms - span.window_ms <= n[0] < now_ms), None)
            # A key that is missing in the note began at 0. A total that fell was reset.
            count = 0 if since is None else max(0, total - since[1].get(key, 0))
            seconds = 0.0 if since is None else (now_ms - since[0]) / 1000
            found.append(Added(count, round(count / seconds, 3) if seconds else 0.0))
        return tuple(found)

"""The events of a run as lines; the last lines explain a failure. Tests: test_runs.py."""

from __future__ import annotations

from collections import deque
from zlib import crc32

from sparrowmq.simulation.virtual_time import START_MS, Timeline

LINES_MAX = 2_000


class Trace:
    """Keeps the last lines and a digest of all lines.

    Args:
        timeline: the clock of the lines.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._lines: deque[str] = deque(maxlen=LINES_MAX)
        self.digest = 0

    @property
    def now_ms(self) -> int:
        """The instant of the next line."""
        return self._timeline.now_ms

    def add(self, text: str) -> None:
        """Add a line."""
        line = f"{(self._timeline.now_ms - START_MS) / 1000:9.3f} {text}"
        self._lines.append(line)
        self.digest = crc32(line.encode(), self.digest)

    def lines(self) -> tuple[str, ...]:
        """Return the last lines, oldest first."""
        return tuple(self._lines)

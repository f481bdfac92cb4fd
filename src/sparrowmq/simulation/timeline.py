"""Virtual time: a heap of things that happen, one after the other.

Nothing waits and nothing runs beside anything else. Events of one instant happen in the order in
which they were planned.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import TypeAlias

Action: TypeAlias = Callable[[], None]

# Where monotonic time begins; not 0, so that nobody takes the two for each other.
START_MS = 1_000
# Where wall-clock time begins.
START_TIMESTAMP_MS = 1_700_000_000_000


class Timer:
    """Something planned."""

    __slots__ = ("_action",)

    def __init__(self, action: Action) -> None:
        self._action: Action | None = action

    def cancel(self) -> None:
        """Have it not happen."""
        self._action = None

    def fire(self) -> bool:
        """Have it happen; return whether it was still wanted."""
        action, self._action = self._action, None
        if action is None:
            return False
        action()
        return True


class Timeline:
    """The clock, and what is planned."""

    def __init__(self) -> None:
        self.now_ms = START_MS
        self.event_count = 0
        self._planned: list[tuple[int, int, Timer]] = []
        self._sequence = 0

    def call_at(self, at_ms: int, action: Action) -> Timer:
        """Plan something; an instant that has passed means now."""
        timer = Timer(action)
        self._sequence += 1
        heappush(self._planned, (max(at_ms, self.now_ms), self._sequence, timer))
        return timer

    def call_in(self, delay_ms: int, action: Action) -> Timer:
        """Plan something for a little later."""
        return self.call_at(self.now_ms + delay_ms, action)

    def next_ms(self) -> int | None:
        """Return when the next event is planned, None if nothing is."""
        return self._planned[0][0] if self._planned else None

    def step(self) -> None:
        """Have the next planned event happen."""
        at_ms, _, timer = heappop(self._planned)
        self.now_ms = at_ms
        if timer.fire():
            self.event_count += 1

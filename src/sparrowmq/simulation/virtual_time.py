"""Virtual time: a heap of events that happen one after another.

Nothing waits, and no two events run at once. Events of one instant happen in the order of planning.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import TypeAlias

Action: TypeAlias = Callable[[], None]

# The start of monotonic time; not 0, which code might mistake for unset.
START_MS = 1_000
# The start of wall-clock time.
START_TIMESTAMP_MS = 1_700_000_000_000


class Timer:
    """A planned event."""

    __slots__ = ("_action",)

    def __init__(self, action: Action) -> None:
        self._action: Action | None = action

    def cancel(self) -> None:
        """Cancel the event."""
        self._action = None

    def fire(self) -> bool:
        """Run the event unless it was cancelled; return whether it ran."""
        action, self._action = self._action, None
        if action is None:
            return False
        action()
        return True


class Timeline:
    """The clock and the planned events."""

    def __init__(self) -> None:
        self.now_ms = START_MS
        self.event_count = 0
        self._planned: list[tuple[int, int, Timer]] = []
        self._sequence = 0

    def call_at(self, at_ms: int, action: Action) -> Timer:
        """Plan an event; an instant in the past means now."""
        timer = Timer(action)
        self._sequence += 1
        heappush(self._planned, (max(at_ms, self.now_ms), self._sequence, timer))
        return timer

    def call_in(self, delay_ms: int, action: Action) -> Timer:
        """Plan an event after a delay."""
        return self.call_at(self.now_ms + delay_ms, action)

    def next_ms(self) -> int | None:
        """Return the instant of the next event, None for none."""
        return self._planned[0][0] if self._planned else None

    def step(self) -> bool:
        """Run the next event; return whether it ran, and was not cancelled."""
        at_ms, _, timer = heappop(self._planned)
        self.now_ms = at_ms
        has_run = timer.fire()
        self.event_count += has_run
        return has_run

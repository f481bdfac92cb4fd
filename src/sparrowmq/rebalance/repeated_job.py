"""Something that a member does again and again, one at a time. Pure.

One that never answers counts as lost after a bound, so that the next can begin.
"""

from __future__ import annotations

from dataclasses import dataclass

# An operation answers long before this; if it has not, it counts as lost.
LOST_MS = 60_000


@dataclass(slots=True)
class RepeatedJob:
    """When it is due, and since when it is under way."""

    due_ms: int
    started_ms: int | None = None
    is_wanted_again: bool = False

    def begin(self, now_ms: int) -> bool:
        """Begin if it is due and not under way; one that never answered counts as lost."""
        if self.started_ms is not None and now_ms - self.started_ms <= LOST_MS:
            return False
        if now_ms < self.due_ms:
            return False
        self.started_ms = now_ms
        return True

    def ask(self, now_ms: int) -> None:
        """Want it now, or once more when the one under way is done."""
        self.due_ms = min(self.due_ms, now_ms)
        self.is_wanted_again = self.started_ms is not None

    def end(self, now_ms: int, *, next_in_ms: int) -> None:
        """Note the end of the one under way."""
        self.started_ms = None
        self.due_ms = now_ms if self.is_wanted_again else now_ms + next_in_ms
        self.is_wanted_again = False

    def next_due_ms(self, now_ms: int) -> int:
        """Return when it begins next, if nothing comes between."""
        return now_ms + LOST_MS if self.started_ms is not None else self.due_ms

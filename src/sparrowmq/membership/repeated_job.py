"""Something that a member does again and again, one at a time. Pure.

One that never answers counts as lost after a bound, so that the next can begin.
"""

from __future__ import annotations

from dataclasses import dataclass

# An operation answers long before this; if it has not, it counts as lost.
LOST_MS = 60_000
# A failed request of a queue is repeated after the first, and then at doubled intervals up to the
# second; RocketMQ waits a fixed second (pullTimeDelayMillsWhenException).
RETRY_FIRST_MS = 100
RETRY_MAX_MS = 1_000


def backoff_ms(failures: int) -> int:
    """Return how long to wait after so many failures in a row (1 for the first)."""
    return min(RETRY_FIRST_MS << min(failures - 1, 10), RETRY_MAX_MS)


@dataclass(slots=True)
class RepeatedJob:
    """When it is due, and since when it is under way.

    Args:
        due_ms: when it may begin.
        lost_ms: for how long an answer is waited for.
    """

    due_ms: int
    lost_ms: int = LOST_MS
    started_ms: int | None = None
    is_wanted_again: bool = False

    def is_under_way(self, now_ms: int) -> bool:
        """Return whether it has begun, and an answer may still come."""
        return self.started_ms is not None and now_ms - self.started_ms <= self.lost_ms

    def may_begin(self, now_ms: int) -> bool:
        """Return whether it is due and not under way; one that never answered counts as lost."""
        return not self.is_under_way(now_ms) and now_ms >= self.due_ms

    def begin(self, now_ms: int) -> bool:
        """Begin if it may; returns whether it has begun."""
        if not self.may_begin(now_ms):
            return False
        self.started_ms = now_ms
        return True

    def join(self, now_ms: int) -> bool:
        """Begin, due or not, as it is being done for others too; False while it is under way."""
        if self.started_ms is not None:
            return False
        self.due_ms = now_ms
        return self.begin(now_ms)

    def hurry(self, now_ms: int) -> None:
        """Wait no longer before it begins."""
        self.due_ms = min(self.due_ms, now_ms)

    def ask(self, now_ms: int) -> None:
        """Want it now, or once more when the one under way is done."""
        self.hurry(now_ms)
        self.is_wanted_again = self.started_ms is not None

    def end(self, now_ms: int, *, next_in_ms: int) -> None:
        """Note the end of the one under way."""
        self.started_ms = None
        self.due_ms = now_ms if self.is_wanted_again else now_ms + next_in_ms
        self.is_wanted_again = False

    def next_due_ms(self, now_ms: int) -> int:
        """Return when it begins next, if nothing comes between."""
        return now_ms + self.lost_ms if self.started_ms is not None else self.due_ms

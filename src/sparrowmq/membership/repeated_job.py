"""A job that a member repeats, one run at a time. Pure.

A run that never answers counts as lost after a bound, so that the next run can begin.
Tests: test_member.py.
"""

from __future__ import annotations

from dataclasses import dataclass

# A run counts as lost after this; an operation answers long before.
LOST_MS = 60_000
# A queue's failed request is repeated after the first interval, and then at doubled intervals up to
# the longest. RocketMQ always waits one second (pullTimeDelayMillsWhenException).
RETRY_FIRST_MS = 100
RETRY_MAX_MS = 1_000


def backoff_ms(failures: int, *, max_ms: int = RETRY_MAX_MS) -> int:
    """Return how long to wait after a number of failures in a row (1 for the first)."""
    return min(RETRY_FIRST_MS << min(failures - 1, 10), max_ms)


@dataclass(slots=True)
class RepeatedJob:
    """When a job's next run is due, and since when a run is under way.

    Args:
        due_ms: when the first run may begin.
        lost_ms: how long a run may take before it counts as lost.
    """

    due_ms: int
    lost_ms: int = LOST_MS
    started_ms: int | None = None
    is_wanted_again: bool = False

    def is_under_way(self, now_ms: int) -> bool:
        """Return whether a run has begun and its answer may still come."""
        return self.started_ms is not None and now_ms - self.started_ms <= self.lost_ms

    def may_begin(self, now_ms: int) -> bool:
        """Return whether a run is due and no run is under way; a lost run does not count."""
        return now_ms >= self.due_ms and (
            self.started_ms is None or now_ms - self.started_ms > self.lost_ms
        )

    def begin(self, now_ms: int) -> bool:
        """Begin a run if one may begin; return whether it has begun."""
        if not self.may_begin(now_ms):
            return False
        self.started_ms = now_ms
        return True

    def join(self, now_ms: int) -> bool:
        """Begin a run, due or not, since others run the job too; False while one is under way."""
        if self.started_ms is not None:
            return False
        self.due_ms = now_ms
        return self.begin(now_ms)

    def hurry(self, now_ms: int) -> None:
        """Make the next run due now."""
        self.due_ms = min(self.due_ms, now_ms)

    def ask(self, now_ms: int) -> None:
        """Make a run due now, or as soon as the run under way has ended."""
        self.hurry(now_ms)
        self.is_wanted_again = self.started_ms is not None

    def end(self, now_ms: int, *, next_in_ms: int) -> None:
        """Note that the run under way has ended; the next is due in `next_in_ms`."""
        self.started_ms = None
        self.due_ms = now_ms if self.is_wanted_again else now_ms + next_in_ms
        self.is_wanted_again = False

    def next_due_ms(self, now_ms: int) -> int:
        """Return when the next run may begin if no event comes first."""
        if self.started_ms is None or now_ms - self.started_ms > self.lost_ms:
            return self.due_ms
        return self.started_ms + self.lost_ms + 1

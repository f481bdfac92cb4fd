"""Follows one group from look to look: its owners, its rebalances and their counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from sparrowmq.doctor import Finding
from sparrowmq.doctor.case import Case
from sparrowmq.doctor.looks import Look, list_changes, list_events
from sparrowmq.doctor.rebalances import CAUSE_MS

# The upper bounds of the histogram of rebalances, in seconds.
REBALANCE_BUCKETS_S = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)
# The reason of a rebalance without a known event.
UNKNOWN_REASON = "unknown"


@dataclass(slots=True)
class GroupCourse:
    """A group's last look, and its counts since the first look.

    Args:
        case, findings, look: the last look; None and empty before the first.
        rebalances: the number of rebalances that began, by reason.
        rebalance_s: the durations of ended rebalances: the count in each bucket (a duration counts
            in the first bucket whose bound is not below it), and their sum.
        possible_duplicates: the most messages that were consumed twice.
    """

    case: Case | None = None
    findings: tuple[Finding, ...] = ()
    look: Look | None = None
    rebalances: Counter[str] = field(default_factory=Counter)
    rebalance_s: Counter[float] = field(default_factory=Counter)
    rebalance_s_sum: float = 0.0
    possible_duplicates: int = 0
    _begun_ms: int | None = None
    # The last event that makes a group rebalance, and its time.
    _reason: tuple[str, int] = (UNKNOWN_REASON, 0)

    @property
    def is_moving(self) -> bool:
        """Whether a rebalance has begun and some queue does not have exactly one owner yet."""
        return self._begun_ms is not None

    def note(self, case: Case, findings: tuple[Finding, ...], look: Look) -> None:
        """Take another look, which must be later than the last."""
        before, self.look = self.look, look
        self.case, self.findings = case, findings
        if before is None:
            return
        now_ms = look.timestamp_ms
        events = list_events(before, look)
        if events:
            self._reason = (events[0].kind.value, now_ms)
        changes = list_changes(before, look)
        self.possible_duplicates += sum(change.at_risk for change in changes)
        if not case.snapshot.is_broadcasting:
            self.possible_duplicates += _came_through_several(before, look)
        if changes and self._begun_ms is None:
            self._begun_ms = before.timestamp_ms
            reason, seen_ms = self._reason
            self.rebalances[reason if now_ms - seen_ms <= CAUSE_MS else UNKNOWN_REASON] += 1
        if self._begun_ms is None:
            return
        if not look.members:
            # No member is left to take the queues, so this is not a handover.
            self._begun_ms = None
        elif not (look.unowned or look.double):
            self._observe((now_ms - self._begun_ms) / 1000)
            self._begun_ms = None

    def _observe(self, seconds: float) -> None:
        bucket = next((b for b in REBALANCE_BUCKETS_S if seconds <= b), float("inf"))
        self.rebalance_s[bucket] += 1
        self.rebalance_s_sum += seconds


def _came_through_several(before: Look, after: Look) -> int:
    """Return the number of messages consumed between the looks from queues with several owners."""
    return sum(
        max(0, after.offsets.get(queue, 0) - before.offsets.get(queue, 0))
        for queue, owners in before.owners.items()
        if len(owners) > 1
    )

"""What became of one group from look to look: who owns what, and rebalances as they are counted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from sparrowmq.dash.looks import Look, list_changes, list_events
from sparrowmq.dash.rebalances import CAUSE_MS
from sparrowmq.doctor import Finding
from sparrowmq.doctor.case import Case

# Bounds of the histogram of rebalances.
REBALANCE_BUCKETS_S = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)
# Queues moved, and nothing that was seen says why.
UNKNOWN_REASON = "unknown"


@dataclass(slots=True)
class GroupCourse:
    """A group as it was seen last, and what was counted of it since the first look.

    Args:
        case, findings, look: what was seen last; None and empty before the first look.
        rebalances: how many began, by reason.
        rebalance_s: how long each of the ended ones took, counted by bucket (the first whose bound
            is not below it), and in all.
        possible_duplicates: at most so many messages were consumed twice.
    """

    case: Case | None = None
    findings: tuple[Finding, ...] = ()
    look: Look | None = None
    rebalances: Counter[str] = field(default_factory=Counter)
    rebalance_s: Counter[float] = field(default_factory=Counter)
    rebalance_s_sum: float = 0.0
    possible_duplicates: int = 0
    _begun_ms: int | None = None
    # The last event that makes groups rebalance, and when it was seen.
    _reason: tuple[str, int] = (UNKNOWN_REASON, 0)

    @property
    def is_moving(self) -> bool:
        """Whether a rebalance has begun, and queues without one owner are left."""
        return self._begun_ms is not None

    def note(self, case: Case, findings: tuple[Finding, ...], look: Look) -> None:
        """Take another look, later than the last."""
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
            # Nobody is left to take the queues: that is no handover.
            self._begun_ms = None
        elif not (look.unowned or look.double):
            self._observe((now_ms - self._begun_ms) / 1000)
            self._begun_ms = None

    def _observe(self, seconds: float) -> None:
        bucket = next((b for b in REBALANCE_BUCKETS_S if seconds <= b), float("inf"))
        self.rebalance_s[bucket] += 1
        self.rebalance_s_sum += seconds


def _came_through_several(before: Look, after: Look) -> int:
    """Return how many messages came through queues that had several owners."""
    return sum(
        max(0, after.offsets.get(queue, 0) - before.offsets.get(queue, 0))
        for queue, owners in before.owners.items()
        if len(owners) > 1
    )

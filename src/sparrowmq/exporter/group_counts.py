"""Counts the rebalances of one group from view to view. Tests: test_group_counts.py."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from sparrowmq.doctor import Finding
from sparrowmq.doctor.group_view import GroupView
from sparrowmq.doctor.owner_history import (
    At,
    count_at_risk,
    list_rebalances,
    list_seen,
)

# The upper bounds of the histogram of rebalances, in seconds.
REBALANCE_BUCKETS_S = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)
# The reason of a rebalance without a known event.
UNKNOWN_REASON = "unknown"
# A group that never settles is counted anew after so many events and changes.
SEEN_MAX = 1_000


@dataclass(slots=True)
class GroupCounts:
    """A group's last view, and its counts since the first view.

    Args:
        view, findings: the last view; None and empty before the first.
        rebalances: the number of rebalances that began, by reason.
        rebalance_s: the durations of ended rebalances: the count in each bucket (a duration counts
            in the first bucket whose bound is not below it), and their sum.
        possible_duplicates: the messages that may have been consumed twice.
    """

    view: GroupView | None = None
    findings: tuple[Finding, ...] = ()
    rebalances: Counter[str] = field(default_factory=Counter)
    rebalance_s: Counter[float] = field(default_factory=Counter)
    rebalance_s_sum: float = 0.0
    possible_duplicates: int = 0
    # Whether a rebalance has begun and is not over.
    is_moving: bool = False
    # What was seen since the last rebalance was over, and how many rebalances of it are counted.
    _seen: list[At] = field(default_factory=list)
    _counted: int = 0

    def note(self, view: GroupView, findings: tuple[Finding, ...]) -> None:
        """Take another view, which must be later than the last."""
        before, self.view, self.findings = self.view, view, findings
        if before is None:
            return
        self._seen += list_seen(before, view)
        self.possible_duplicates += count_at_risk(before, view)
        now_ms = view.timestamp_ms
        found = list_rebalances(self._seen, until_ms=now_ms, offsets={})
        moved = [rebalance for rebalance in found if rebalance.changed]
        for rebalance in moved[: len(moved) - self._counted]:
            self.rebalances[rebalance.reason or UNKNOWN_REASON] += 1
        self._counted = len(moved)
        # Without a member nobody is left to take the queues, so this is not a handover.
        is_over = not found or found[0].is_over(now_ms) or not view.members
        self.is_moving = bool(found) and found[0].changed > 0 and not is_over
        if is_over or len(self._seen) > SEEN_MAX:
            for rebalance in moved:
                if rebalance.settled_ms is not None:
                    self._observe(rebalance.settled_ms / 1000)
            self._seen.clear()
            self._counted = 0

    def _observe(self, seconds: float) -> None:
        bucket = next((b for b in REBALANCE_BUCKETS_S if seconds <= b), float("inf"))
        self.rebalance_s[bucket] += 1
        self.rebalance_s_sum += seconds

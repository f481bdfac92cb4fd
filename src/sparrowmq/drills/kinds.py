"""The kinds and sizes of drills, apart from what stages them: a menu needs no more.

Tests: test_drill.py.
"""

from __future__ import annotations

from enum import StrEnum

# The numbers of queues that a drill's topic may have, and of messages that it may send a second.
QUEUE_COUNTS = range(3, 65)
RATES = range(1, 1001)


class DrillKind(StrEnum):
    """The kinds of drills."""

    KILL = "kill"
    JOIN = "join"
    LEAVE = "leave"
    DUPLICATE_ID = "duplicate-id"
    PARTITION = "partition"
    SLOW = "slow"

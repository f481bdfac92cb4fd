"""The kinds of drills, apart from what stages them: a menu needs no more. Tests: test_drill.py."""

from __future__ import annotations

from enum import StrEnum


class DrillKind(StrEnum):
    """The kinds of drills."""

    KILL = "kill"
    JOIN = "join"
    LEAVE = "leave"
    DUPLICATE_ID = "duplicate-id"
    PARTITION = "partition"
    SLOW = "slow"

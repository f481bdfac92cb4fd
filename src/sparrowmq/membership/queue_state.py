"""The life of a queue in a member's hand: its states, the events that move it, and the table. Pure.

`OwnedQueue` alone keeps a state. A pair that is missing in the table is a mistake of `OwnedQueue`.
The lock is not a state: whether the member may believe in the lock depends on the time alone
(`QueueLease.is_fenced`), also between two events. A queue that is CONSUMING and fenced is acquired
again; a queue that drains and is fenced ends. Tests: test_owned_queue.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType


class QueueState(Enum):
    """The stages of a queue's life at a member."""

    STARTING = "STARTING"
    """Given to the member; its lock or its start offset is not known yet."""
    CONSUMING = "CONSUMING"
    """Pulls, deliveries and commits go on while the lock is believed in."""
    DRAINING = "DRAINING"
    """No pull and no delivery begins; deliveries under way may finish and count, within a bound."""
    COMMITTING = "COMMITTING"
    """The deliveries have ended or their bound has passed; the last commit is tried."""
    UNLOCKING = "UNLOCKING"
    """The messages are dropped; the lock is given back, if the broker may have one for us."""
    RELEASED = "RELEASED"
    """Out of hand: late results have no effect."""


class QueueEvent(Enum):
    """The events that move a queue from state to state."""

    ACQUIRED = "ACQUIRED"
    """The start offset is known and the lock is held or waived; or the lock is held again."""
    REVOKED = "REVOKED"
    """The member's share no longer has the queue."""
    DRAINED = "DRAINED"
    """No delivery is waited for any more and `on_revoke` has returned."""
    ENDED = "ENDED"
    """The last commit was answered or given up, or the lock was lost meanwhile."""
    UNLOCKED = "UNLOCKED"
    """The broker has no lock for us any more, or has not answered within the bound."""
    LOST = "LOST"
    """The queue must begin anew: another member may own it, or its offset was moved."""


TRANSITIONS: Mapping[tuple[QueueState, QueueEvent], QueueState] = MappingProxyType(
    {
        (QueueState.STARTING, QueueEvent.ACQUIRED): QueueState.CONSUMING,
        (QueueState.STARTING, QueueEvent.REVOKED): QueueState.UNLOCKING,
        (QueueState.CONSUMING, QueueEvent.ACQUIRED): QueueState.CONSUMING,
        (QueueState.CONSUMING, QueueEvent.REVOKED): QueueState.DRAINING,
        (QueueState.CONSUMING, QueueEvent.LOST): QueueState.RELEASED,
        (QueueState.DRAINING, QueueEvent.DRAINED): QueueState.COMMITTING,
        (QueueState.DRAINING, QueueEvent.ENDED): QueueState.UNLOCKING,
        (QueueState.COMMITTING, QueueEvent.ENDED): QueueState.UNLOCKING,
        (QueueState.UNLOCKING, QueueEvent.UNLOCKED): QueueState.RELEASED,
    }
)

"""The queue locks as a config file, so that a broker's restart changes no owner.

Written at most every second while locks change, as offsets are. A lock keeps what it had left when
the file was written; the time the broker was away does not count against it.
"""

from __future__ import annotations

from msgspec import Struct

from sparrowmq.coordination.queue_lock_table import QueueLockTable, SavedLock
from sparrowmq.model import MessageQueue


class SavedLease(Struct, frozen=True, kw_only=True, rename="camel"):
    """One lock: who holds which queue for a group, and for how long yet."""

    group: str
    queue: MessageQueue
    client_id: str
    remaining_ms: int


class LockTable(Struct, frozen=True, kw_only=True, rename="camel"):
    """`config/queueLock.json`."""

    locks: list[SavedLease] = []


def table(locks: QueueLockTable, *, now_ms: int) -> LockTable:
    """Return all live locks."""
    return LockTable(
        locks=[
            SavedLease(
                group=lock.group,
                queue=lock.queue,
                client_id=lock.client_id,
                remaining_ms=lock.remaining_ms,
            )
            for lock in locks.save(now_ms=now_ms)
        ]
    )


def restore(locks: QueueLockTable, saved: LockTable, *, now_ms: int) -> None:
    """Put saved locks back."""
    locks.restore(
        [
            SavedLock(lease.group, lease.queue, lease.client_id, lease.remaining_ms)
            for lease in saved.locks
        ],
        now_ms=now_ms,
    )

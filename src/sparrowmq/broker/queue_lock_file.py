"""The queue locks as a config file, so that a broker's restart changes no owner.

A lock keeps the rest of its lease at the time of the write. The time between the broker's stop and
start does not count against the lease. Tests: test_config_saving.py, test_clients.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from sparrowmq.broker.journal_records import LockChange
from sparrowmq.broker.queue_lock_table import QueueLockTable
from sparrowmq.model import MessageQueue
from sparrowmq.model.queue import queue_order


class SavedLease(Struct, frozen=True, kw_only=True, rename="camel"):
    """One lock: a group's queue, its holder, and the rest of the lease."""

    group: str
    queue: MessageQueue
    client_id: str
    remaining_ms: int


class LockTable(Struct, frozen=True, kw_only=True, rename="camel"):
    """`config/queueLock.json`."""

    locks: list[SavedLease] = []


def encode(locks: Sequence[LockChange]) -> bytes:
    """Return the file's content in plain JSON, which is faster to write than RocketMQ's dialect."""
    leases = [
        SavedLease(
            group=lock.group,
            queue=lock.queue,
            client_id=lock.client_id,
            remaining_ms=lock.remaining_ms,
        )
        for lock in sorted(locks, key=lambda lock: (lock.group, queue_order(lock.queue)))
        if lock.client_id is not None
    ]
    return msgspec.json.format(msgspec.json.encode(LockTable(locks=leases)), indent=1)


def restore(locks: QueueLockTable, saved: LockTable, *, now_ms: int) -> None:
    """Put saved locks back."""
    locks.restore(
        [
            LockChange(lease.group, lease.queue, lease.client_id, lease.remaining_ms)
            for lease in saved.locks
        ],
        now_ms=now_ms,
    )

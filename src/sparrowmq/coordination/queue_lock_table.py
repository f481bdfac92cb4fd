"""The broker's queue locks: which member may consume a queue in order.

A lock is a lease. The member renews it every 20 s, holds itself to 30 s from the sending of its
last successful request, and the broker gives a silent member's queue away after 60 s: so the old
owner has stopped before a new one begins.

Differs from RocketMQ: the broker may say who can take a queue that it does not hold, and the number
of locks is bounded; when a member's connection closes, `shorten` cuts its locks to what its own
30 s (a SparrowMQ member's `MARKED_LEASE_MS`) may have left, so that a killed owner costs half as
long; and the table can be saved, its changes too, and restored, so that a broker's restart changes
no owner.

Source: RebalanceLockManager.java.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sparrowmq.model import MessageQueue
from sparrowmq.model.queue import queue_order

# RebalanceLockManager.REBALANCE_LOCK_MAX_LIVE_TIME, RebalanceLockManager.java.
QUEUE_LEASE_BROKER_MS = 60_000
# ProcessQueue.REBALANCE_LOCK_MAX_LIVE_TIME, ProcessQueue.java. Counted from *sending* the request.
QUEUE_LEASE_CLIENT_MS = 30_000
# ProcessQueue.REBALANCE_LOCK_INTERVAL, ProcessQueue.java.
QUEUE_LEASE_RENEWAL_MS = 20_000
# A member whose request was refused has asked again by then.
ASKED_AGAIN_MS = 5_000
# Of all groups of a broker together.
LOCKS_MAX = 200_000
# Otherwise two members of a group may consume one queue at once.
assert QUEUE_LEASE_CLIENT_MS < QUEUE_LEASE_BROKER_MS
# Otherwise an owner loses its lease between two renewals.
assert QUEUE_LEASE_RENEWAL_MS < QUEUE_LEASE_CLIENT_MS


@dataclass(slots=True)
class _Lease:
    client_id: str
    refreshed_ms: int
    expires_ms: int
    # The table's `changes` when it was granted; 0 for one that was restored.
    change: int = 0
    # The member that was refused last.
    asker: str | None = None

    @property
    def is_cut(self) -> bool:
        return self.expires_ms < self.refreshed_ms + QUEUE_LEASE_BROKER_MS


class SavedLock(NamedTuple):
    """Who holds a queue for a group, with what the lease has left; None for nobody."""

    group: str
    queue: MessageQueue
    client_id: str | None
    remaining_ms: int = 0


def _may_take_any(queue: MessageQueue) -> bool:
    del queue
    return True


@dataclass(slots=True)
class QueueLockTable:
    """Group and queue to the lease on it."""

    _leases: dict[str, dict[MessageQueue, _Lease]] = field(default_factory=dict)
    # Counts changes of who holds what, and the renewals of a lease that was cut; another renewal
    # is none.
    changes: int = 0
    _count: int = 0
    # Locks whose changes were not taken yet, to be written.
    _unwritten: dict[tuple[str, MessageQueue], None] = field(default_factory=dict)

    def __len__(self) -> int:
        return self._count

    def try_lock_batch(
        self,
        group: str,
        queues: Iterable[MessageQueue],
        client_id: str,
        *,
        now_ms: int,
        may_take: Callable[[MessageQueue], bool] = _may_take_any,
    ) -> list[MessageQueue]:
        """Lock the queues that are free, the member's own, or whose lease has run out.

        Args:
            may_take: says whether the member may hold a queue that it does not hold yet.

        Returns: the queues the member now holds, each once, in the order asked.
        """
        leases = self._leases.setdefault(group, {})
        locked: list[MessageQueue] = []
        for queue in dict.fromkeys(queues):
            lease = leases.get(queue)
            is_own = lease is not None and lease.client_id == client_id
            if not is_own and not may_take(queue):
                continue
            if lease is not None and not is_own and lease.expires_ms >= now_ms:
                lease.asker = client_id
                continue
            if lease is None:
                if self._count >= LOCKS_MAX:
                    continue
                self._count += 1
            change = 0 if lease is None else lease.change
            if lease is None or not is_own or lease.is_cut:
                change = self._note_change(group, queue)
            leases[queue] = _Lease(client_id, now_ms, now_ms + QUEUE_LEASE_BROKER_MS, change)
            locked.append(queue)
        if not leases:
            del self._leases[group]
        return locked

    def _note_change(self, group: str, queue: MessageQueue) -> int:
        self._unwritten[group, queue] = None
        self.changes += 1
        return self.changes

    def _drop(self, group: str, queues: Iterable[MessageQueue]) -> None:
        leases = self._leases[group]
        for queue in queues:
            del leases[queue]
            self._count -= 1
            self._note_change(group, queue)
        if not leases:
            del self._leases[group]

    def last_change(self, group: str, queues: Iterable[MessageQueue]) -> int:
        """Return what `changes` was when the last of these locked queues was granted."""
        leases = self._leases.get(group, {})
        return max((leases[queue].change for queue in queues), default=0)

    def unlock_batch(self, group: str, queues: Iterable[MessageQueue], client_id: str) -> None:
        """Release those of the queues that the member holds."""
        leases = self._leases.get(group, {})
        held = [
            queue
            for queue in dict.fromkeys(queues)
            if queue in leases and leases[queue].client_id == client_id
        ]
        if held:
            self._drop(group, held)

    def find_owner(self, group: str, queue: MessageQueue, *, now_ms: int) -> str | None:
        """Return the client id that holds the queue, or None."""
        lease = self._leases.get(group, {}).get(queue)
        return None if lease is None or lease.expires_ms < now_ms else lease.client_id

    def find_owners(
        self, group: str, listed: Collection[str], *, now_ms: int
    ) -> dict[str, list[MessageQueue]]:
        """Return who holds which queues, in queue order.

        A queue whose holder is not listed in the group any more is consumed without its lock by
        the member that asked for it since, which counts as its owner then.
        """
        owners: dict[str, list[MessageQueue]] = {}
        for queue, lease in sorted(
            self._leases.get(group, {}).items(), key=lambda item: queue_order(item[0])
        ):
            is_live = lease.expires_ms >= now_ms
            if is_live and lease.client_id in listed:
                owners.setdefault(lease.client_id, []).append(queue)
            elif lease.asker is not None and lease.asker in listed:
                # Also for the moment from the end of the lease until it asks again.
                owners.setdefault(lease.asker, []).append(queue)
            elif is_live:
                owners.setdefault(lease.client_id, []).append(queue)
        return owners

    def shorten(self, group: str, client_id: str, *, lease_ms: int, now_ms: int) -> None:
        """Cut the member's locks to its own side of the lease, since its connection is closed.

        Never to nothing: the member may be alive behind another connection to come, and believes
        in its lock for `lease_ms` from its last request.
        """
        for queue, lease in self._leases.get(group, {}).items():
            # A request reaches us after it was sent, so this is never too early.
            limit_ms = max(lease.refreshed_ms + lease_ms, now_ms)
            if lease.client_id == client_id and limit_ms < lease.expires_ms:
                lease.expires_ms = limit_ms
                self._unwritten[group, queue] = None

    def drop_expired(self, *, now_ms: int) -> None:
        """Forget leases that have run out, so that the table stays as small as its use."""
        for group in list(self._leases):
            leases = self._leases[group]
            # Whoever waits for one asks again within a moment, and is known by it until then.
            limit_ms = now_ms - ASKED_AGAIN_MS
            expired = [queue for queue, lease in leases.items() if lease.expires_ms < limit_ms]
            if expired:
                self._drop(group, expired)

    @property
    def is_unwritten(self) -> bool:
        """Whether there are changes that were not taken yet."""
        return bool(self._unwritten)

    def take_changes(self, *, now_ms: int) -> list[SavedLock]:
        """Return who holds each queue whose lock has changed since the last call."""
        keys, self._unwritten = self._unwritten, {}
        changes: list[SavedLock] = []
        for group, queue in keys:
            lease = self._leases.get(group, {}).get(queue)
            if lease is None or lease.expires_ms < now_ms:
                changes.append(SavedLock(group, queue, None))
            else:
                left_ms = lease.expires_ms - now_ms
                changes.append(SavedLock(group, queue, lease.client_id, left_ms))
        return changes

    def note_unwritten(self, group: str, queue: MessageQueue) -> None:
        """Have a lock's change taken again, since it was not written."""
        self._unwritten[group, queue] = None

    def save(self, *, now_ms: int) -> list[SavedLock]:
        """Return every live lock."""
        return [
            SavedLock(group, queue, lease.client_id, lease.expires_ms - now_ms)
            for group, leases in self._leases.items()
            for queue, lease in leases.items()
            if lease.expires_ms >= now_ms
        ]

    def restore(self, locks: Sequence[SavedLock], *, now_ms: int) -> None:
        """Take back what `save` gave, and then the changes since, one after the other.

        The time between does not count against the leases.
        """
        for group, queue, client_id, left_ms in locks:
            leases = self._leases.setdefault(group, {})
            self._count -= leases.pop(queue, None) is not None
            if client_id is not None and left_ms >= 0 and self._count < LOCKS_MAX:
                expires_ms = now_ms + min(left_ms, QUEUE_LEASE_BROKER_MS)
                leases[queue] = _Lease(client_id, now_ms, expires_ms)
                self._count += 1
            if not leases:
                del self._leases[group]

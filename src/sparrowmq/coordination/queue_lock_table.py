"""The broker's queue locks: which member may consume a queue in order.

A lock is a lease. The member renews it every 20 s, holds itself to 30 s from the sending of its
last successful request, and the broker gives a silent member's queue away after 60 s: so the old
owner has stopped before a new one begins. Nobody checks that the member belongs to the group or
that the queue exists.

Differs from RocketMQ: when a member's connection closes, `shorten` cuts its locks to what its own
30 s (a SparrowMQ member's `MARKED_LEASE_MS`) may have left, so that a killed owner costs half as
long; and the table can be saved and
restored, so that a broker's restart changes no owner.

Source: RebalanceLockManager.java.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

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


@dataclass(frozen=True, slots=True)
class SavedLock:
    """One lock as it is written to disk, with what it has left."""

    group: str
    queue: MessageQueue
    client_id: str
    remaining_ms: int


@dataclass(slots=True)
class QueueLockTable:
    """Group and queue to the lease on it."""

    _leases: dict[str, dict[MessageQueue, _Lease]] = field(default_factory=dict)
    # Counts changes of who holds what, and the renewals of a lease that was cut; another renewal
    # is none.
    changes: int = 0

    def try_lock_batch(
        self, group: str, queues: Iterable[MessageQueue], client_id: str, *, now_ms: int
    ) -> list[MessageQueue]:
        """Lock the queues that are free, the member's own, or whose lease has run out.

        Returns: the queues the member now holds, each once, in the order asked.
        """
        leases = self._leases.setdefault(group, {})
        locked: list[MessageQueue] = []
        for queue in dict.fromkeys(queues):
            lease = leases.get(queue)
            if lease is None or lease.client_id == client_id or lease.expires_ms < now_ms:
                change = 0 if lease is None else lease.change
                if lease is None or lease.client_id != client_id or lease.is_cut:
                    change = self.changes = self.changes + 1
                leases[queue] = _Lease(client_id, now_ms, now_ms + QUEUE_LEASE_BROKER_MS, change)
                locked.append(queue)
            else:
                lease.asker = client_id
        if not leases:
            del self._leases[group]
        return locked

    def last_change(self, group: str, queues: Iterable[MessageQueue]) -> int:
        """Return what `changes` was when the last of these locked queues was granted."""
        leases = self._leases.get(group, {})
        return max((leases[queue].change for queue in queues), default=0)

    def unlock_batch(self, group: str, queues: Iterable[MessageQueue], client_id: str) -> None:
        """Release those of the queues that the member holds."""
        leases = self._leases.get(group, {})
        for queue in queues:
            lease = leases.get(queue)
            if lease is not None and lease.client_id == client_id:
                del leases[queue]
                self.changes += 1
        if group in self._leases and not leases:
            del self._leases[group]

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

    def has_locks(self, group: str, *, now_ms: int) -> bool:
        """Tell whether any member of the group holds a queue."""
        return any(lease.expires_ms >= now_ms for lease in self._leases.get(group, {}).values())

    def shorten(self, group: str, client_id: str, *, lease_ms: int, now_ms: int) -> None:
        """Cut the member's locks to its own side of the lease, since its connection is closed.

        Never to nothing: the member may be alive behind another connection to come, and believes
        in its lock for `lease_ms` from its last request.
        """
        for lease in self._leases.get(group, {}).values():
            if lease.client_id == client_id:
                # A request reaches us after it was sent, so this is never too early.
                limit_ms = max(lease.refreshed_ms + lease_ms, now_ms)
                lease.expires_ms = min(lease.expires_ms, limit_ms)

    def drop_expired(self, *, now_ms: int) -> None:
        """Forget leases that have run out, so that the table stays as small as its use."""
        for group in list(self._leases):
            leases = self._leases[group]
            # Whoever waits for one asks again within a moment, and is known by it until then.
            limit_ms = now_ms - ASKED_AGAIN_MS
            for queue in [queue for queue, lease in leases.items() if lease.expires_ms < limit_ms]:
                del leases[queue]
            if not leases:
                del self._leases[group]

    def save(self, *, now_ms: int) -> list[SavedLock]:
        """Return every live lock, by group and queue order."""
        return [
            SavedLock(group, queue, lease.client_id, lease.expires_ms - now_ms)
            for group, leases in sorted(self._leases.items())
            for queue, lease in sorted(leases.items(), key=lambda item: queue_order(item[0]))
            if lease.expires_ms >= now_ms
        ]

    def restore(self, locks: Sequence[SavedLock], *, now_ms: int) -> None:
        """Take back what `save` gave; the time between does not count against the leases."""
        for lock in locks:
            remaining_ms = min(lock.remaining_ms, QUEUE_LEASE_BROKER_MS)
            if remaining_ms >= 0:
                self._leases.setdefault(lock.group, {})[lock.queue] = _Lease(
                    lock.client_id, now_ms, now_ms + remaining_ms
                )

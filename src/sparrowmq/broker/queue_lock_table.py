"""The broker's queue locks: which member may consume a queue in order.

A lock is a lease. The holder renews the lock every 20 s and believes in it for 30 s from the
sending of its last granted request. The broker gives a silent holder's queue away after 60 s. The
old owner has therefore stopped before a new owner begins.

Differs from RocketMQ:
- The broker may decide which member can take a queue (`may_take`).
- The number of locks is bounded.
- When a member's connection closes, or the member unregisters, `shorten` cuts its locks to the
  rest of the member's own 30 s (`MARKED_LEASE_MS` for a SparrowMQ member). A killed owner's queues
  wait half as long.
- Until then one listed member *stands in* for such a holder: it consumes the queue without the
  lock, as RocketMQ's members do, and gives its place back like a lock. So a member that joins
  knows whether a refused lock is a dead member's, or is followed by a drain.
- The table and its changes can be saved and restored, so that a broker's restart changes no owner.

Source: RebalanceLockManager.java.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from sparrowmq.broker.journal_records import LockChange
from sparrowmq.coordination.member_marker import QUEUE_LEASE_BROKER_MS
from sparrowmq.model import MessageQueue
from sparrowmq.model.queue import queue_order

# A stand-in has asked for the lock again within this.
ASKED_AGAIN_MS = 5_000
# The bound over all groups of a broker together.
LOCKS_MAX = 200_000


@dataclass(slots=True)
class _Lease:
    client_id: str
    refreshed_ms: int
    expires_ms: int
    # The table's `changes` when the lock was granted; 0 for a restored lock.
    change: int = 0
    # Whether the holder's connection was closed since its last request.
    is_orphaned: bool = False
    # The member that consumes the queue in the place of a holder that is not listed.
    stand_in: str | None = None

    @property
    def is_cut(self) -> bool:
        return self.expires_ms < self.refreshed_ms + QUEUE_LEASE_BROKER_MS


def _may_take_any(queue: MessageQueue) -> bool:
    del queue
    return True


def _lists_all(client_id: str) -> bool:
    del client_id
    return True


@dataclass(slots=True)
class QueueLockTable:
    """The queue locks of all groups at one broker: the lease of each group and queue."""

    _leases: dict[str, dict[MessageQueue, _Lease]] = field(default_factory=dict)
    # Counts the changes of holders and the renewals of leases that were cut. Other renewals do not
    # count.
    changes: int = 0
    _count: int = 0
    # Locks with changes for the next batch of the journal; a failed write puts them back.
    unwritten: dict[tuple[str, MessageQueue], None] = field(default_factory=dict)

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
        lists: Callable[[str], bool] = _lists_all,
    ) -> list[MessageQueue]:
        """Lock the queues that are free, the member's own, or whose lease has run out.

        Args:
            may_take: returns whether the member may lock a queue that it does not hold yet.
            lists: returns whether the group lists a client id.

        Returns: the queues whose lock the member now holds, each once, in the order of the request.
        """
        leases = self._leases.setdefault(group, {})
        locked: list[MessageQueue] = []
        for queue in dict.fromkeys(queues):
            lease = leases.get(queue)
            is_own = lease is not None and lease.client_id == client_id
            if not is_own and not may_take(queue):
                continue
            if lease is not None and not is_own and lease.expires_ms >= now_ms:
                has_stand_in = lease.stand_in is not None and lists(lease.stand_in)
                if lease.is_orphaned and not has_stand_in and not lists(lease.client_id):
                    lease.stand_in = client_id
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
        self.unwritten[group, queue] = None
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

    def stood_in(
        self, group: str, queues: Iterable[MessageQueue], client_id: str
    ) -> list[MessageQueue]:
        """Return the queues that the member may consume in the place of their locks' holders."""
        leases = self._leases.get(group, {})
        return [
            queue for queue in queues if queue in leases and leases[queue].stand_in == client_id
        ]

    def queues_of(self, group: str, client_id: str) -> list[MessageQueue]:
        """Return the queues whose locks a client id holds or held last."""
        leases = self._leases.get(group, {})
        return [queue for queue, lease in leases.items() if lease.client_id == client_id]

    def unlock_batch(self, group: str, queues: Iterable[MessageQueue], client_id: str) -> None:
        """Release the member's locks among those of the queues, and its places as a stand-in."""
        leases = self._leases.get(group, {})
        for queue in self.stood_in(group, queues, client_id):
            leases[queue].stand_in = None
        held = [
            queue
            for queue in dict.fromkeys(queues)
            if queue in leases and leases[queue].client_id == client_id
        ]
        if held:
            self._drop(group, held)

    def find_owner(self, group: str, queue: MessageQueue, *, now_ms: int) -> str | None:
        """Return the client id that holds the queue's lock, or None."""
        lease = self._leases.get(group, {}).get(queue)
        return None if lease is None or lease.expires_ms < now_ms else lease.client_id

    def find_owners(
        self, group: str, listed: Collection[str], *, now_ms: int
    ) -> dict[str, list[MessageQueue]]:
        """Return the queues of each owner, in queue order.

        If a lock's holder is no longer listed in the group, the member that stands in for it counts
        as the owner.
        """
        owners: dict[str, list[MessageQueue]] = {}
        for queue, lease in sorted(
            self._leases.get(group, {}).items(), key=lambda item: queue_order(item[0])
        ):
            is_live = lease.expires_ms >= now_ms
            if is_live and lease.client_id in listed:
                owners.setdefault(lease.client_id, []).append(queue)
            elif lease.stand_in is not None and lease.stand_in in listed:
                # It counts as well between the end of the lease and its next request.
                owners.setdefault(lease.stand_in, []).append(queue)
            elif is_live:
                owners.setdefault(lease.client_id, []).append(queue)
        return owners

    def shorten(self, group: str, client_id: str, *, lease_ms: int, now_ms: int) -> None:
        """Cut the member's locks to the member's own lease, since it is not listed any more.

        A lock is not released at once. The member may be alive: it may open another connection, or
        have unregistered while a listener of its still ran, which is why it unlocked nothing. It
        believes in its lock for `lease_ms` from its last request.
        """
        for queue, lease in self._leases.get(group, {}).items():
            # The broker gets a request after the member sent it, so this end is never too early.
            limit_ms = max(lease.refreshed_ms + lease_ms, now_ms)
            if lease.client_id != client_id:
                continue
            lease.is_orphaned = True
            if limit_ms < lease.expires_ms:
                lease.expires_ms = limit_ms
                self.unwritten[group, queue] = None

    def drop_expired(self, *, now_ms: int) -> None:
        """Forget expired leases, so that the table stays small."""
        for group in list(self._leases):
            leases = self._leases[group]
            # A stand-in asks for the lock again within this. Until then the expired lease is kept,
            # because it names the stand-in.
            limit_ms = now_ms - ASKED_AGAIN_MS
            expired = [queue for queue, lease in leases.items() if lease.expires_ms < limit_ms]
            if expired:
                self._drop(group, expired)

    def take_changes(self, *, now_ms: int) -> list[LockChange]:
        """Return the holder of each queue whose lock has changed since the last call."""
        keys, self.unwritten = self.unwritten, {}
        changes: list[LockChange] = []
        for group, queue in keys:
            lease = self._leases.get(group, {}).get(queue)
            if lease is None or lease.expires_ms < now_ms:
                changes.append(LockChange(group, queue, None))
            else:
                left_ms = lease.expires_ms - now_ms
                changes.append(LockChange(group, queue, lease.client_id, left_ms))
        return changes

    def save(self, *, now_ms: int) -> list[LockChange]:
        """Return every live lock."""
        return [
            LockChange(group, queue, lease.client_id, lease.expires_ms - now_ms)
            for group, leases in self._leases.items()
            for queue, lease in leases.items()
            if lease.expires_ms >= now_ms
        ]

    def restore(self, locks: Sequence[LockChange], *, now_ms: int) -> None:
        """Restore the locks of `save`, and then the changes since, one after the other.

        The time between saving and restoring does not count against the leases.
        """
        for lock in locks:
            leases = self._leases.setdefault(lock.group, {})
            self._count -= leases.pop(lock.queue, None) is not None
            left_ms = min(lock.remaining_ms, QUEUE_LEASE_BROKER_MS)
            if lock.client_id is not None and left_ms >= 0 and self._count < LOCKS_MAX:
                leases[lock.queue] = _Lease(lock.client_id, now_ms, now_ms + left_ms)
                self._count += 1
            if not leases:
                del self._leases[lock.group]

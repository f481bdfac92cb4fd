"""The group's offset of a queue at the broker, as far as a member knows it. Pure.

A broker that was killed may forget its last commits: ours writes offsets every second, RocketMQ's
every five. A member that comes back to its broker distinguishes three offsets:

- one between the lowest offset that the broker may have fallen back to and the member's own: the
  member goes on and commits its own;
- a higher one: another member has consumed further;
- a lower one: the group was reset meanwhile, and the reset holds.

At another address than before, a lower offset is an old one instead (`KnownOffsets`).
"""

from __future__ import annotations

from typing import NamedTuple

from sparrowmq.membership.actions import Stored
from sparrowmq.model import MessageQueue

# A commit older than this is on the broker's disk: twice RocketMQ's flushConsumerOffsetInterval.
WRITTEN_MS = 10_000
# The queues whose offsets are known; beyond it the one that was noted first is forgotten.
KNOWN_MAX = 10_000


class GroupOffset:
    """The last offset that the broker is known to have, and the lowest it may fall back to.

    Args:
        offset: where the member began.
        is_committed: whether the broker returned this offset.
    """

    __slots__ = ("_lowest", "_next_lowest", "_noted_ms", "_was_known", "known")

    def __init__(self, offset: int, *, is_committed: bool, now_ms: int) -> None:
        # None until one of our commits was answered or the broker returned an offset, and after
        # the broker was found without one.
        self.known: int | None = offset if is_committed else None
        self._was_known = is_committed
        self._lowest = self._next_lowest = offset
        self._noted_ms = now_ms

    def note(self, offset: int, now_ms: int) -> None:
        """Note that the broker has an offset."""
        self.known, self._was_known = offset, True
        if now_ms - self._noted_ms >= WRITTEN_MS:
            self._lowest, self._next_lowest, self._noted_ms = self._next_lowest, offset, now_ms

    def found_again(self, offset: int | None) -> None:
        """Note the offset that the broker has after a restart; it may have forgotten the last."""
        self.known = offset
        if offset is not None:
            self._lowest, self._next_lowest = (
                min(offset, lowest) for lowest in (self._lowest, self._next_lowest)
            )

    @property
    def may_fall_back(self) -> bool:
        """Whether the broker, if it is killed, may forget the last offset."""
        return self.known is not None and self._lowest < self.known

    def is_ours(self, found: int | None, *, own_offset: int) -> bool:
        """Return whether nobody but this member has moved the group to the offset found.

        Args:
            found: the offset at the broker, None if the broker has none.
            own_offset: up to where this member has finished.
        """
        if found is None or not self._was_known:
            # A start or a seek that was not committed yet is this member's alone.
            return True
        return self._lowest <= found <= own_offset


class UncommittedProgress(NamedTuple):
    """What a member had finished of a queue that it let go, and the broker may lack.

    Args:
        group_offset: what the member knew of the group's offset.
        own_offset: every message before this offset is finished.
        newest: the newest message that was pulled, None for none.
    """

    group_offset: GroupOffset
    own_offset: int
    newest: Stored | None


class KnownOffset(NamedTuple):
    """A group's offset of a queue, as a member read or committed it last.

    Args:
        address: the address of the queue's broker.
        offset: the offset that this broker had.
        newest: the newest message that the member had pulled, None for none.
    """

    address: str
    offset: int
    newest: Stored | None


class KnownOffsets:
    """What a member knows of the group's offsets in queues that it has or had, and of whom.

    A slave that becomes the master has old offsets or, as those of RocketMQ 5.5.0, none. So an
    offset behind the known one is an old one at another address, and a reset at the same address.
    """

    def __init__(self) -> None:
        self._known: dict[MessageQueue, KnownOffset] = {}

    def note(self, queue: MessageQueue, known: KnownOffset) -> None:
        """Note a queue's offset that a broker has.

        A newest message that was known there stays known if nothing was consumed behind it.
        """
        former = self._known.pop(queue, None)
        if known.newest is None and former is not None and former.address == known.address:
            newest = former.newest
            if newest is not None and known.offset <= newest.offset + 1:
                known = known._replace(newest=newest)
        self._known[queue] = known
        if len(self._known) > KNOWN_MAX:
            del self._known[next(iter(self._known))]

    def find(self, queue: MessageQueue, address: str) -> KnownOffset | None:
        """Return what is known of a queue at an address; None if no offset of it was there."""
        known = self._known.get(queue)
        return known if known is not None and known.address == address else None

    def forget(self, queue: MessageQueue) -> None:
        """Believe the next offset, wherever it is found: the group is reset."""
        self._known.pop(queue, None)

    def find_newer(
        self, queue: MessageQueue, address: str, found: int | None
    ) -> KnownOffset | None:
        """Return what is known of a queue if the offset found at an address, or none, is old."""
        known = self._known.get(queue)
        if known is None or known.address == address:
            return None
        return known if found is None or found < known.offset else None

"""CONSISTENT_HASH: a ring of hashed virtual nodes, so that few queues move when members change.

Each member puts `virtual_node_cnt` nodes on the ring, at the hashes of `<client id>-<k>`. A queue
belongs to the first node at or after the hash of its text. Loads are not balanced: a member may
get no queue. For a client id that is listed twice, the numbers k continue after the first entry's.
If two hashes collide, the later member keeps the node.

Source: AllocateMessageQueueConsistentHash.java, ConsistentHashRouter.java.
Tests: test_strategies.py, golden/test_allocation.py.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from hashlib import md5

from sparrowmq.model import MessageQueue
from sparrowmq.strategies.strategy import TopicStrategy, find_index

VIRTUAL_NODE_COUNT_DEFAULT = 10


def md5_hash(key: str) -> int:
    """Return the first four bytes of the key's MD5 as an unsigned number.

    A lone surrogate is encoded as "?", as in Java.
    """
    digest = md5(key.encode("utf-8", "replace"), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")


class ConsistentHashRing:
    """The ring, which finds the client id that owns a key.

    Args:
        cid_all: the client ids in list order, duplicates kept.
        virtual_node_cnt: the number of nodes of each entry of the list.
        hash_function: maps a text to a number; the same function on every member.
    """

    __slots__ = ("_hash", "_hashes", "_owners")

    def __init__(
        self,
        cid_all: Sequence[str],
        *,
        virtual_node_cnt: int,
        hash_function: Callable[[str], int] = md5_hash,
    ) -> None:
        self._hash = hash_function
        ring: dict[int, str] = {}
        counts: dict[str, int] = {}
        for cid in cid_all:
            # The number of this id's nodes on the ring, without those lost by collisions.
            existing = counts.get(cid, 0)
            for replica in range(existing, existing + virtual_node_cnt):
                key = hash_function(f"{cid}-{replica}")
                previous = ring.get(key)
                if previous is not None:
                    counts[previous] -= 1
                ring[key] = cid
                counts[cid] = counts.get(cid, 0) + 1
        self._hashes = sorted(ring)
        self._owners = [ring[key] for key in self._hashes]

    def find_owner(self, key: str) -> str | None:
        """Return the client id that owns the key; None if the ring is empty."""
        return self.owner_at(self._hash(key)) if self._owners else None

    def owner_at(self, key_hash: int) -> str:
        """Return the client id that owns a hash. The ring must not be empty."""
        return self._owners[bisect_left(self._hashes, key_hash) % len(self._owners)]

    def walk(self, key_hash: int) -> Iterator[str]:
        """Yield the owner of each node once round the ring, from a hash on, repetitions kept."""
        start = bisect_left(self._hashes, key_hash)
        for index in range(start, start + len(self._owners)):
            yield self._owners[index % len(self._owners)]


class AllocateMessageQueueConsistentHash(TopicStrategy):
    """Gives a member the queues that it owns on the ring, in the order of the list.

    Args:
        virtual_node_cnt: the number of nodes of each member; with 0 no member owns a queue.
        custom_hash_function: replaces the MD5 hash; must be the same on every member.

    Raises: ValueError if the number of nodes is negative.
    """

    name = "CONSISTENT_HASH"

    def __init__(
        self,
        virtual_node_cnt: int = VIRTUAL_NODE_COUNT_DEFAULT,
        custom_hash_function: Callable[[str], int] | None = None,
    ) -> None:
        if virtual_node_cnt < 0:
            raise ValueError(f"illegal virtualNodeCnt :{virtual_node_cnt}")
        self.virtual_node_cnt = virtual_node_cnt
        self.custom_hash_function = custom_hash_function
        # The last list and its ring: the topics of a group have the same members.
        self._last: tuple[tuple[str, ...], ConsistentHashRing] | None = None

    def __repr__(self) -> str:
        function = self.custom_hash_function
        end = "" if function is None else f", {function!r}"
        return f"{type(self).__name__}({self.virtual_node_cnt}{end})"

    def share(
        self, current_cid: str, queues: Sequence[MessageQueue], cids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return this member's queues; empty if the member is not in the list."""
        if find_index(cids, current_cid) is None:
            return []
        ring = self._ring_of(tuple(cids))
        return [queue for queue in queues if ring.find_owner(str(queue)) == current_cid]

    def _ring_of(self, cids: tuple[str, ...]) -> ConsistentHashRing:
        if self._last is None or self._last[0] != cids:
            ring = ConsistentHashRing(
                cids,
                virtual_node_cnt=self.virtual_node_cnt,
                hash_function=self.custom_hash_function or md5_hash,
            )
            self._last = (cids, ring)
        return self._last[1]

"""CONSISTENT_HASH_BOUNDED: consistent hashing in which no member gets much more than the mean.

The ring is that of CONSISTENT_HASH. A queue goes to the first member at or after its hash that
has fewer than ceil(load_factor * queues / members) queues. The nearer the factor is to 1, the more
evenly queues are spread, and the more queues move when members change. When a member joins or
leaves, the mean number of moves for each of its queues is of the order of 1 / (load_factor - 1)^2.

Source: Mirrokni, Thorup, Zadimoghaddam, Consistent Hashing with Bounded Loads, 2018.
Tests: test_sparrow_strategies.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain

from sparrowmq.model import MessageQueue
from sparrowmq.strategies.consistent_hash import (
    VIRTUAL_NODE_COUNT_DEFAULT,
    ConsistentHashRing,
    md5_hash,
)
from sparrowmq.strategies.group_strategy import unique
from sparrowmq.strategies.strategy import TopicStrategy

LOAD_FACTOR_DEFAULT = 1.25


class AllocateMessageQueueConsistentHashBounded(TopicStrategy):
    """Gives a member its queues on the ring until the member is full, in the order of the list.

    Args:
        load_factor: a member's greatest load as a multiple of the mean, rounded up; at least 1.
        virtual_node_cnt: the number of nodes of each member, at least 1.

    Raises: ValueError if a number is too small.
    """

    name = "CONSISTENT_HASH_BOUNDED"
    requires_sparrow = True

    def __init__(
        self,
        load_factor: float = LOAD_FACTOR_DEFAULT,
        virtual_node_cnt: int = VIRTUAL_NODE_COUNT_DEFAULT,
    ) -> None:
        if not (math.isfinite(load_factor) and load_factor >= 1):
            raise ValueError(f"load_factor is {load_factor}; it must be 1 or more")
        if virtual_node_cnt < 1:
            raise ValueError(f"virtual_node_cnt is {virtual_node_cnt}; it must be 1 or more")
        self.load_factor = load_factor
        self.virtual_node_cnt = virtual_node_cnt

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.load_factor}, {self.virtual_node_cnt})"

    def share(
        self, current_cid: str, queues: Sequence[MessageQueue], cids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return this member's queues; empty if the member is not in the list."""
        owners = self.divide(queues, unique(cids))
        return [queue for queue in queues if owners[queue] == current_cid]

    def divide(
        self, queues: Sequence[MessageQueue], cids: Sequence[str]
    ) -> dict[MessageQueue, str]:
        """Return the owner of every queue; `cids` are the members, each once, at least one."""
        ring = ConsistentHashRing(cids, virtual_node_cnt=self.virtual_node_cnt)
        # The order of hashes, unlike that of the list, puts an added queue at any place.
        hashed = sorted((md5_hash(str(queue)), queue) for queue in queues)
        return deal(hashed, ring, cids, load_factor=self.load_factor)


def deal(
    hashed: Sequence[tuple[int, MessageQueue]],
    ring: ConsistentHashRing,
    cids: Sequence[str],
    *,
    load_factor: float = LOAD_FACTOR_DEFAULT,
) -> dict[MessageQueue, str]:
    """Return the owner of every queue.

    Args:
        hashed: each queue after the hash of its text, in hash order.
        cids: the members, each once, at least one.
        load_factor: a member's greatest load as a multiple of the mean, rounded up.
    """
    load_max = math.ceil(load_factor * len(hashed) / len(cids))
    loads = dict.fromkeys(cids, 0)
    owners: dict[MessageQueue, str] = {}
    for key_hash, queue in hashed:
        # The members follow once more after the ring: a member that lost every node by collisions
        # is not on the ring, and may be the only one with room.
        for owner in chain(ring.walk(key_hash), cids):
            if loads[owner] < load_max:
                loads[owner] += 1
                owners[queue] = owner
                break
    return owners

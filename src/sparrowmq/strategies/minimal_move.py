"""MINIMAL_MOVE: loads differ by at most one, and as few queues as possible move.

**With known owners**, no division with loads within one moves fewer queues. Each member may have
`floors` queues; members that hold more than that get the surplus first. A member with more queues
than its part gives up the queues of the lowest scores. Free queues go to members with room, pair by
pair in the order of scores. A score is a hash of a pair (queue, member).

Members see the owners at different times while queues move, but they agree: from any state between
the old division and the new one, the rule yields the new one. There are three reasons. A member
above its part keeps the same best queues, however many of its other queues it has given up. The
members with a surplus stay the same while others give up or take queues. And the greedy matching
assigns the remaining queues to the same owners if some of its pairs are in place already. If lists
change again before queues arrive, members may compute different divisions for a moment. Then a
queue's lock still has one holder, which every member sees as the owner a second later.

**With unknown owners** the rule applies to a group that holds no queue: the division is a function
of the two lists. Usually few queues move, but there is no bound, and *there cannot be one*. Let a
rule divide n queues over n members, one queue each, by the set of ids alone. The rule colours every
n-set of ids with the permutation from the order of the ids to the queues. By Ramsey's theorem some
infinite set of ids has a single colour: in it queue i belongs to the id of rank p(i), for one p.
Take n + 1 of those ids; let the first id leave and the last join. Every rank has shifted, so all n
queues have moved in two events. The least number of moves, plus one for each event, is 4. So for
n > 4 every rule that keeps loads within one and depends on the lists only must, at some event, move
more queues than the least number plus one, whatever order of ids (or of joining) the rule uses.

Source of the scores: rendezvous hashing, Thaler and Ravishankar, 1998.
Tests: test_sparrow_strategies.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import md5
from typing import TypeAlias

from sparrowmq.model import MessageQueue
from sparrowmq.model.names import RETRY_GROUP_TOPIC_PREFIX
from sparrowmq.strategies.group_strategy import (
    NO_OWNERS,
    Owners,
    TopicView,
    WholeGroupStrategy,
    in_order,
    unique,
)

# The score of a queue and a member, as bytes, which sort like the number.
Pair: TypeAlias = tuple[bytes, str, MessageQueue]


class AllocateMessageQueueMinimalMove(WholeGroupStrategy):
    """Moves few queues; loads over topics with the same subscribers differ by at most one.

    The queues of a retry topic go to members that have fewer queues of the other topics.
    """

    name = "MINIMAL_MOVE"

    def divide_group(
        self, topics: Sequence[TopicView], owners: Owners = NO_OWNERS
    ) -> dict[MessageQueue, str]:
        """Return the owner of every queue of all topics."""
        return divide_together(topics, owners)


def divide_together(
    topics: Sequence[TopicView], owners: Owners = NO_OWNERS
) -> dict[MessageQueue, str]:
    """Return the owner of every queue; topics with the same subscribers are divided together.

    Retry topics come last, and even out the loads.
    """
    loads = {cid: 0 for view in topics for cid in view.cid_all}
    now: dict[MessageQueue, str] = {}
    for (is_retry, cids), queues in together(topics).items():
        floors = level(loads, cids, len(queues)) if is_retry else None
        given = divide(queues, cids, owners, floors=floors)
        for queue in queues:
            now[queue] = given[queue]
            loads[given[queue]] += 1
    return now


def together(topics: Sequence[TopicView]) -> dict[tuple[bool, tuple[str, ...]], list[MessageQueue]]:
    """Return the queues that are divided together: by their subscribers, those to retry apart.

    A queue of a retry topic has few messages: a member with nothing else would be idle. Members
    also see the topic at different times. The keys of retry topics are True, and come last.
    """
    found: dict[tuple[bool, tuple[str, ...]], list[MessageQueue]] = {}
    for view in in_order(topics):
        is_retry = view.topic.startswith(RETRY_GROUP_TOPIC_PREFIX)
        found.setdefault((is_retry, tuple(unique(view.cid_all))), []).extend(view.mq_all)
    return found


def level(loads: Mapping[str, int], cids: Sequence[str], count: int) -> dict[str, int]:
    """Return how many further queues each member gets at least, so that the loads become even.

    Members whose load is above the level that the others reach get none and are left out.
    """
    reached = 0
    ranked = sorted(loads[cid] for cid in cids)
    total = count
    for place, load in enumerate(ranked, start=1):
        total += load
        reached = total // place
        if place == len(ranked) or reached < ranked[place]:
            break
    return {cid: reached - loads[cid] for cid in cids if loads[cid] <= reached}


def divide(
    queues: Sequence[MessageQueue],
    cids: Sequence[str],
    owners: Owners = NO_OWNERS,
    *,
    floors: Mapping[str, int] | None = None,
) -> dict[MessageQueue, str]:
    """Return the owner of every queue.

    Args:
        queues: the queues in any order, each once.
        cids: the members, each once, at least one.
        owners: the present owners; other queues and other members have no effect.
        floors: the least number of queues of each member that may have any; some of these members
            get one more. By default all members get equally many.
    """
    if floors is None:
        floors = dict.fromkeys(cids, len(queues) // len(cids))
    surplus = len(queues) - sum(floors.values())
    assert 0 <= surplus <= len(floors)
    held: dict[str, list[tuple[int, MessageQueue]]] = {cid: [] for cid in cids}
    free: list[MessageQueue] = []
    for queue in queues:
        owner = owners.get(queue)
        if owner in held:
            held[owner].append((score(queue, owner), queue))
        else:
            free.append(queue)
    # Members that hold more than their floor get the surplus first; then the rank decides.
    ranked = sorted(floors, key=lambda cid: (len(held[cid]) <= floors[cid], score(None, cid), cid))
    room = dict.fromkeys(cids, 0)
    room |= {cid: floors[cid] + (place < surplus) for place, cid in enumerate(ranked)}
    now: dict[MessageQueue, str] = {}
    for cid, scored in held.items():
        scored.sort(reverse=True)
        kept, given_up = scored[: room[cid]], scored[room[cid] :]
        now.update((queue, cid) for _, queue in kept)
        free += [queue for _, queue in given_up]
        room[cid] -= len(kept)
    takers = [cid for cid in cids if room[cid]]
    return now | match(rank_pairs(free, takers), room)


def rank_pairs(queues: Sequence[MessageQueue], cids: Sequence[str]) -> list[Pair]:
    """Return every pair of a queue and a member, the pairs that fit best first."""
    texts = [(str(queue).encode("utf-8", "replace"), queue) for queue in queues]
    heads = [(f"{cid}\n".encode("utf-8", "replace"), cid) for cid in cids]
    pairs = [
        (md5(head + text, usedforsecurity=False).digest()[:8], cid, queue)
        for text, queue in texts
        for head, cid in heads
    ]
    return sorted(pairs, reverse=True)


def match(pairs: Iterable[Pair], room: dict[str, int]) -> dict[MessageQueue, str]:
    """Give queues to members pair by pair while members have room; lowers the counts in `room`."""
    owners: dict[MessageQueue, str] = {}
    for _, cid, queue in pairs:
        if room[cid] and queue not in owners:
            owners[queue] = cid
            room[cid] -= 1
    return owners


def score(queue: MessageQueue | None, cid: str) -> int:
    """Return how well a queue and a member fit; without a queue, the member's rank."""
    text = f"{cid}\n{'' if queue is None else queue}"
    digest = md5(text.encode("utf-8", "replace"), usedforsecurity=False).digest()
    return int.from_bytes(digest[:8], "big")

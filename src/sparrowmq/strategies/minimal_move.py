"""MINIMAL_MOVE: loads within one, and as few queues as possible change hands.

**With the present owners known**, no division within one moves fewer queues. Each member may
have `share` queues, and the surplus goes to members that hold more than that already. A member
with more than its part gives up those of the lowest score; what is free goes, pair by pair in
the order of scores, to members with room. A score is a hash of (queue, member).

Members look at owners at different times, while queues are on their way. This does no harm:
from any state between the old and the new one, the new one comes out again. For a member over its
part keeps the same best queues however many of the others it has given up; who gets the surplus
does not change as others give up or take; and the greedy matching gives the rest the same
owners when some of its pairs stand already. So members with equal lists agree. Where lists have
changed again before queues arrived, members may want different things for a moment: a queue's lock
has one holder, who shows as its owner at everybody's next look, a second later.

**With owners unknown** the same rule is applied to a group that holds nothing: the division is a
function of the two lists. Few queues move as a rule, but no bound holds, and *none can*:
let a rule divide n queues over n members, one each, by the set of ids alone. It colours every
n-set of ids with the permutation that leads from the ids' order to the queues. By Ramsey's theorem
some infinite set of ids has a single colour: there, queue i belongs to the id of rank p(i), for
one p. Take n + 1 of those ids; let the first leave and the last join. Every rank has shifted, so
all n queues have moved in two events. The least possible, plus one for each event, is 4. So for
n > 4 any rule that keeps loads within one and looks at the lists only must, at some event, move
more than the least plus one; whatever order of ids (of joining, too) it uses.

Source of the scores: rendezvous hashing, Thaler and Ravishankar, 1998.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import md5
from typing import TypeAlias

from sparrowmq.model import MessageQueue
from sparrowmq.strategies.group_strategy import NO_OWNERS, Owners, TopicView, in_order, unique
from sparrowmq.strategies.strategy import check_arguments

# The score of a queue and a member, as bytes, which sort as the number does.
Pair: TypeAlias = tuple[bytes, str, MessageQueue]


class AllocateMessageQueueMinimalMove:
    """Few moves at exact balance: within one over all topics that the same members subscribe."""

    name = "MINIMAL_MOVE"
    requires_sparrow = True

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def allocate(
        self,
        consumer_group: str,
        current_cid: str | None,
        mq_all: Sequence[MessageQueue] | None,
        cid_all: Sequence[str] | None,
    ) -> list[MessageQueue]:
        """Return this member's share of one topic, owners unknown.

        Raises: ValueError if an argument is empty.
        """
        current, queues, cids = check_arguments(current_cid, mq_all, cid_all)
        owners = divide(queues, unique(cids))
        return [queue for queue in queues if owners[queue] == current]

    def allocate_group(
        self,
        consumer_group: str,
        current_cid: str,
        topics: Sequence[TopicView],
        owners: Owners = NO_OWNERS,
    ) -> list[MessageQueue]:
        """Return this member's share of all topics; see `GroupStrategy`."""
        # Topics with the same subscribers are divided as one.
        together: dict[tuple[str, ...], list[MessageQueue]] = {}
        for view in in_order(topics):
            together.setdefault(tuple(unique(view.cid_all)), []).extend(view.mq_all)
        mine: list[MessageQueue] = []
        for cids, queues in together.items():
            now = divide(queues, cids, owners)
            mine += [queue for queue in queues if now[queue] == current_cid]
        return mine


def divide(
    queues: Sequence[MessageQueue], cids: Sequence[str], owners: Owners = NO_OWNERS
) -> dict[MessageQueue, str]:
    """Return the owner of every queue.

    Args:
        queues: in any order, each once.
        cids: the members, each once, at least one.
        owners: who holds which queue now; other queues and members in it do not matter.
    """
    share, surplus = divmod(len(queues), len(cids))
    held: dict[str, list[tuple[int, MessageQueue]]] = {cid: [] for cid in cids}
    free: list[MessageQueue] = []
    for queue in queues:
        owner = owners.get(queue)
        if owner in held:
            held[owner].append((score(queue, owner), queue))
        else:
            free.append(queue)
    # Who holds more than the share keeps the surplus; else the rank decides.
    ranked = sorted(cids, key=lambda cid: (len(held[cid]) <= share, score(None, cid), cid))
    room = {cid: share + (place < surplus) for place, cid in enumerate(ranked)}
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
    """Return every queue with every member, those that go together best first."""
    texts = [(str(queue).encode("utf-8", "replace"), queue) for queue in queues]
    heads = [(f"{cid}\n".encode("utf-8", "replace"), cid) for cid in cids]
    pairs = [
        (md5(head + text, usedforsecurity=False).digest()[:8], cid, queue)
        for text, queue in texts
        for head, cid in heads
    ]
    return sorted(pairs, reverse=True)


def match(pairs: Iterable[Pair], room: dict[str, int]) -> dict[MessageQueue, str]:
    """Give queues to members pair by pair, while a member has room; uses `room` up."""
    owners: dict[MessageQueue, str] = {}
    for _, cid, queue in pairs:
        if room[cid] and queue not in owners:
            owners[queue] = cid
            room[cid] -= 1
    return owners


def score(queue: MessageQueue | None, cid: str) -> int:
    """Return how well a queue and a member go together; without a queue, the member's rank."""
    text = f"{cid}\n{'' if queue is None else queue}"
    digest = md5(text.encode("utf-8", "replace"), usedforsecurity=False).digest()
    return int.from_bytes(digest[:8], "big")

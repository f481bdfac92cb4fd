"""What one strategy does to one consumer group: shares now, after a join, after a leave. Pure.

A group is looked at in three states, each computed as members would: as it is; with one more
member, whose id falls into the middle of the order; and without the member in the middle.

Cost: AVG, AVG_BY_CIRCLE and CONFIG see only places, so a topic's figures follow from how many
queues it has and where equal ids stand; Kafka's assignors see the counts of all topics. Both are
remembered by that *shape*, and in a large cluster few shapes differ. Strategies that see names
are computed for every group: linear in its queues and members.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from sparrowmq.model import MessageQueue
from sparrowmq.model.queue import java_order, queue_order
from sparrowmq.rebalance.across_topics import divide_topics
from sparrowmq.rebalance.by_config import AllocateMessageQueueByConfig
from sparrowmq.rebalance.consistent_hash import (
    VIRTUAL_NODE_COUNT_DEFAULT,
    ConsistentHashRing,
    md5_hash,
)
from sparrowmq.rebalance.consistent_hash_bounded import AllocateMessageQueueConsistentHashBounded
from sparrowmq.rebalance.group_strategy import Owners, TopicView, in_order, unique
from sparrowmq.rebalance.kafka_assignors import KAFKA_ASSIGNORS
from sparrowmq.rebalance.machine_room import AllocateMessageQueueByMachineRoom
from sparrowmq.rebalance.minimal_move import divide
from sparrowmq.rebalance.strategies import strategy_from
from sparrowmq.rebalance.strategy import AllocateMessageQueueStrategy
from sparrowmq.rebalance.whatif import ROCKETMQ_NAMES

_POSITIONAL = ("AVG", "AVG_BY_CIRCLE", "CONFIG")
_SHAPES_MAX = 65_536
_TEXTS_MAX = 262_144
# What a member that joins is called: after the id before it, and before every longer one.
_JOINED = "+"

Shares: TypeAlias = Mapping[str, Sequence[MessageQueue]]
Allocate: TypeAlias = Callable[[Sequence[MessageQueue], Sequence[str]], Shares]


class TopicLayout(NamedTuple):
    """A topic and how many queues it has on each broker."""

    topic: str
    queue_counts: tuple[tuple[str, int], ...]

    @property
    def queue_count(self) -> int:
        """All its queues."""
        return sum(count for _, count in self.queue_counts)

    @property
    def queues(self) -> list[MessageQueue]:
        """Its queues as members sort them."""
        found = [
            MessageQueue(self.topic, broker, queue_id)
            for broker, count in self.queue_counts
            for queue_id in range(count)
        ]
        return sorted(found, key=queue_order)


class Places(NamedTuple):
    """A group's members in three states, each in the order of ids, duplicates kept."""

    now: tuple[str, ...]
    joined: tuple[str, ...]
    left: tuple[str, ...]
    leaver: str


class Figures(NamedTuple):
    """What a strategy does to a group, or to one topic of it. Counts are queues.

    Args:
        loads: queues of each member now, in id order; members with one id have the same queues.
        unowned: nobody consumes them now.
        doubled: several members consume them now, for their ids are equal.
        join_moved: leave a member that stays when another joins.
        leave_moved: leave a member that stays when another leaves.
        leaver_queues: of the member that leaves.
    """

    loads: tuple[int, ...]
    unowned: int
    doubled: int
    join_moved: int
    leave_moved: int
    leaver_queues: int

    @property
    def skew(self) -> int:
        """The greatest load less the smallest."""
        return max(self.loads, default=0) - min(self.loads, default=0)

    @property
    def idle(self) -> int:
        """Members without a queue."""
        return sum(load == 0 for load in self.loads)


def known_strategies() -> dict[str, str]:
    """Return whose each strategy is, by name: RocketMQ's, ours, Kafka's."""
    return {
        **dict.fromkeys(ROCKETMQ_NAMES, "RocketMQ"),
        **dict.fromkeys(_DIVIDERS, "SparrowMQ"),
        **dict.fromkeys(KAFKA_ASSIGNORS, "Kafka"),
    }


def make_places(client_ids: Sequence[str]) -> Places:
    """Return the three states of a group with these members; there must be one at least."""
    now = tuple(sorted(client_ids, key=java_order))
    before = now[(len(now) + 1) // 2 - 1]
    leaver = len(now) // 2
    return Places(
        now=now,
        joined=tuple(sorted((*now, before + _JOINED), key=java_order)),
        left=now[:leaver] + now[leaver + 1 :],
        leaver=now[leaver],
    )


def evaluate(strategy: str, group: str, topics: Sequence[TopicLayout], places: Places) -> Figures:
    """Compute what a strategy does to a group.

    Raises: ValueError or TypeError if the strategy refuses, as it would in a member.
    """
    if strategy in KAFKA_ASSIGNORS:
        counts = tuple(t.queue_count for t in sorted(topics, key=lambda layout: layout.topic))
        return _of_kafka(strategy, counts, len(places.now))
    if strategy in _POSITIONAL:
        ranks = _ranks(places.now)
        return add_up([_of_places(strategy, topic.queue_count, ranks) for topic in topics])
    if strategy in _DIVIDERS:
        queues = [queue for topic in topics for queue in topic.queues]
        return _of_shares(queues, places, _allocate_at_once(_DIVIDERS[strategy], topics))
    allocate = _allocator(strategy, group, topics, places)
    return add_up([_of_shares(topic.queues, places, allocate) for topic in topics])


def add_up(parts: Sequence[Figures]) -> Figures:
    """Return a group's figures from those of its topics, of which there must be one at least."""
    return Figures(
        loads=tuple(map(sum, zip(*(part.loads for part in parts), strict=True))),
        unowned=sum(part.unowned for part in parts),
        doubled=sum(part.doubled for part in parts),
        join_moved=sum(part.join_moved for part in parts),
        leave_moved=sum(part.leave_moved for part in parts),
        leaver_queues=sum(part.leaver_queues for part in parts),
    )


def _ranks(ids: Sequence[str]) -> tuple[int, ...]:
    numbers = {client_id: number for number, client_id in enumerate(dict.fromkeys(ids))}
    return tuple(numbers[client_id] for client_id in ids)


@lru_cache(maxsize=_SHAPES_MAX)
def _of_places(strategy: str, queue_count: int, ranks: tuple[int, ...]) -> Figures:
    """Compute a topic's figures by places alone; names stand for all that sort alike."""
    places = make_places([f"m{rank:06d}" for rank in ranks])
    topic = TopicLayout("T", (("b", queue_count),))
    return _of_shares(topic.queues, places, _allocator(strategy, "G", [topic], places))


def _allocator(
    strategy: str, group: str, topics: Sequence[TopicLayout], places: Places
) -> Allocate:
    """Return what gives each distinct id its queues of one topic."""
    if strategy == "CONSISTENT_HASH":
        return _allocate_by_rings(places)
    made = {
        client_id: _configured(strategy, topics, places, client_id)
        for client_id in {*places.now, *places.joined}
    }

    def allocate(queues: Sequence[MessageQueue], cid_all: Sequence[str]) -> Shares:
        return {
            client_id: made[client_id].allocate(group, client_id, queues, cid_all) or ()
            for client_id in dict.fromkeys(cid_all)
        }

    return allocate


def _configured(
    strategy: str, topics: Sequence[TopicLayout], places: Places, client_id: str
) -> AllocateMessageQueueStrategy:
    """Return a strategy with the settings that a careful user would give it.

    CONFIG deals queues to the members that are there now, and nobody edits it when they change.
    """
    if strategy == "CONFIG":
        ids = list(dict.fromkeys(places.now))
        if client_id not in ids:
            return AllocateMessageQueueByConfig([])
        place = ids.index(client_id)
        return AllocateMessageQueueByConfig(
            [queue for topic in topics for queue in topic.queues[place :: len(ids)]]
        )
    if strategy == "MACHINE_ROOM":
        brokers = {broker for topic in topics for broker, _ in topic.queue_counts}
        rooms = {broker.partition("@")[0] for broker in brokers if "@" in broker}
        if not rooms:
            raise ValueError("no broker is named room@broker")
        return AllocateMessageQueueByMachineRoom(rooms)
    return strategy_from(strategy)


def _divide_minimal_move(topics: Sequence[TopicView]) -> Owners:
    queues = [queue for view in in_order(topics) for queue in view.mq_all]
    return divide(queues, unique(topics[0].cid_all))


def _divide_bounded(topics: Sequence[TopicView]) -> Owners:
    bounded = AllocateMessageQueueConsistentHashBounded()
    owners: dict[MessageQueue, str] = {}
    for view in topics:
        owners |= bounded.divide(view.mq_all, unique(view.cid_all))
    return owners


# Our own strategies, which tell everybody's share at once.
_DIVIDERS: Mapping[str, Callable[[Sequence[TopicView]], Owners]] = {
    "MINIMAL_MOVE": _divide_minimal_move,
    "CONSISTENT_HASH_BOUNDED": _divide_bounded,
    "AVG_ACROSS_TOPICS": divide_topics,
}


def _allocate_at_once(
    divide_all: Callable[[Sequence[TopicView]], Owners], topics: Sequence[TopicLayout]
) -> Allocate:
    by_topic = [(topic.topic, topic.queues) for topic in topics]

    def allocate(queues: Sequence[MessageQueue], cid_all: Sequence[str]) -> Shares:
        shares: dict[str, list[MessageQueue]] = {client_id: [] for client_id in cid_all}
        views = [TopicView(topic, mine, cid_all) for topic, mine in by_topic]
        for queue, owner in divide_all(views).items():
            shares[owner].append(queue)
        return shares

    return allocate


@lru_cache(maxsize=_TEXTS_MAX)
def _hash_once(text: str) -> int:
    return md5_hash(text)


def _allocate_by_rings(places: Places) -> Allocate:
    """Share out by one ring a state: each member of its own would build the same one."""
    rings = {
        cid_all: ConsistentHashRing(
            cid_all, virtual_node_cnt=VIRTUAL_NODE_COUNT_DEFAULT, hash_function=_hash_once
        )
        for cid_all in (places.now, places.joined, places.left)
    }

    def allocate(queues: Sequence[MessageQueue], cid_all: Sequence[str]) -> Shares:
        shares: dict[str, list[MessageQueue]] = {client_id: [] for client_id in cid_all}
        find_owner = rings[tuple(cid_all)].find_owner
        for queue in queues:
            owner = find_owner(str(queue))
            if owner is not None:
                shares[owner].append(queue)
        return shares

    return allocate


def _of_shares(queues: Sequence[MessageQueue], places: Places, allocate: Allocate) -> Figures:
    now = allocate(queues, places.now)
    owners = Counter(queue for cid in places.now for queue in now[cid])
    joined = allocate(queues, places.joined)
    left = allocate(queues, places.left) if places.left else {}
    return Figures(
        loads=tuple(len(now[client_id]) for client_id in places.now),
        unowned=len(queues) - len(owners),
        doubled=sum(count > 1 for count in owners.values()),
        join_moved=_moved(now, joined),
        leave_moved=_moved(now, left),
        leaver_queues=len(now[places.leaver]),
    )


def _moved(before: Shares, after: Shares) -> int:
    """Count the queues that a member which stays has no more."""
    return sum(len(set(share) - set(after[cid])) for cid, share in before.items() if cid in after)


@lru_cache(maxsize=_SHAPES_MAX)
def _of_kafka(assignor: str, queue_counts: tuple[int, ...], member_count: int) -> Figures:
    """Compute a whole group's figures; equal client ids are different members for Kafka."""
    places = make_places([f"m{number:06d}" for number in range(member_count)])
    topics = [f"t{number:06d}" for number in range(len(queue_counts))]
    queues = [
        MessageQueue(topic, "b", queue_id)
        for topic, count in zip(topics, queue_counts, strict=True)
        for queue_id in range(count)
    ]

    def assign(member_ids: Sequence[str], owned: Shares) -> Shares:
        subscribed = dict.fromkeys(member_ids, topics)
        claimed = {cid: owned.get(cid, ()) for cid in member_ids}
        shares = KAFKA_ASSIGNORS[assignor](queues, subscribed, claimed)
        if assignor == "cooperative-sticky":
            shares = KAFKA_ASSIGNORS[assignor](queues, subscribed, shares)
        return shares

    now = assign(places.now, {})
    return Figures(
        loads=tuple(len(now[client_id]) for client_id in places.now),
        unowned=len(queues) - sum(map(len, now.values())),
        doubled=0,
        join_moved=_moved(now, assign(places.joined, now)),
        leave_moved=_moved(now, assign(places.left, now)) if places.left else 0,
        leaver_queues=len(now[places.leaver]),
    )

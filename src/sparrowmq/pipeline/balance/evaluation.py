"""Evaluates one strategy for one consumer group: shares now, after a join, after a leave. Pure.

A group has three states, whose shares are computed as by members: the present; with one more
member, whose id falls into the middle of the order; and without the member in the middle.

Cost: AVG, AVG_BY_CIRCLE, CONFIG and Kafka's range depend on places only, so the number of a topic's
queues and the places of equal ids determine the topic's figures. Kafka's other assignors deal the
queues of all topics as one row, because all members subscribe the same topics. The figures of both
are cached by this *shape*, and a large cluster has few shapes. The strategies that hash names are
computed for every group, with each hash of a ring once for the three states.
Tests: pipeline/test_balance_group.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from operator import ne
from typing import NamedTuple, TypeAlias

from sparrowmq.doctor.whatif import ROCKETMQ_NAMES
from sparrowmq.model import MessageQueue
from sparrowmq.model.queue import java_order
from sparrowmq.strategies.by_config import AllocateMessageQueueByConfig
from sparrowmq.strategies.consistent_hash import (
    VIRTUAL_NODE_COUNT_DEFAULT,
    ConsistentHashRing,
    md5_hash,
)
from sparrowmq.strategies.consistent_hash_bounded import deal
from sparrowmq.strategies.group_strategy import Owners, unique
from sparrowmq.strategies.kafka_assignors import KAFKA_ASSIGNORS
from sparrowmq.strategies.machine_room import AllocateMessageQueueByMachineRoom
from sparrowmq.strategies.minimal_move import divide
from sparrowmq.strategies.registry import SPARROW_STRATEGIES, strategy_from
from sparrowmq.strategies.strategy import AllocateMessageQueueStrategy

_POSITIONAL = ("AVG", "AVG_BY_CIRCLE", "CONFIG")
# These strategies deal the queues of all topics as one row.
_IN_A_ROW = ("roundrobin", "sticky", "cooperative-sticky")
_SHAPES_MAX = 65_536
_TEXTS_MAX = 262_144
_GROUPS_MAX = 64
# The joining member's id is the id before it and this sign, which sorts before longer ids.
_JOINED = "+"

Shares: TypeAlias = Mapping[str, Sequence[MessageQueue]]
Allocate: TypeAlias = Callable[[Sequence[MessageQueue], Sequence[str]], Shares]


class TopicLayout(NamedTuple):
    """A topic and the number of its queues on each broker."""

    topic: str
    queue_counts: tuple[tuple[str, int], ...]

    @property
    def queue_count(self) -> int:
        """The number of the topic's queues."""
        return sum(count for _, count in self.queue_counts)

    @property
    def queues(self) -> list[MessageQueue]:
        """The topic's queues in the members' order."""
        return [
            MessageQueue(self.topic, broker, queue_id)
            for broker, count in sorted(self.queue_counts, key=lambda pair: java_order(pair[0]))
            for queue_id in range(count)
        ]


class Places(NamedTuple):
    """A group's members in three states, each in id order, duplicates kept."""

    now: tuple[str, ...]
    joined: tuple[str, ...]
    left: tuple[str, ...]
    joiner: str
    leaver: str

    @property
    def states(self) -> list[tuple[str, ...]]:
        """The members of each state, without a state that has none."""
        return [ids for ids in (self.now, self.joined, self.left) if ids]


class Figures(NamedTuple):
    """The effect of a strategy on a group, or on one of its topics, in numbers of queues.

    Args:
        loads: the present queues of each member, in id order; members with one id have the same.
        unowned: the queues that no member consumes now.
        doubled: the queues that several members consume now, because their ids are equal.
        join_moved: the queues that staying members lose by the join.
        leave_moved: the queues that staying members lose by the leave.
        leaver_queues: the queues of the leaving member.
        joiner_queues: the queues of the joining member after the join.
        leave_unowned: the queues that no member consumes after the leave, although members stay.
    """

    loads: tuple[int, ...]
    unowned: int
    doubled: int
    join_moved: int
    leave_moved: int
    leaver_queues: int
    joiner_queues: int
    leave_unowned: int

    @property
    def skew(self) -> int:
        """The largest load minus the smallest."""
        return max(self.loads, default=0) - min(self.loads, default=0)

    @property
    def idle(self) -> int:
        """The number of members without a queue."""
        return sum(load == 0 for load in self.loads)


def known_strategies() -> dict[str, str]:
    """Return each strategy's origin by name: RocketMQ, SparrowMQ or Kafka."""
    return {
        **dict.fromkeys(ROCKETMQ_NAMES, "RocketMQ"),
        **dict.fromkeys(SPARROW_STRATEGIES, "SparrowMQ"),
        **dict.fromkeys(KAFKA_ASSIGNORS, "Kafka"),
    }


def make_places(client_ids: Sequence[str]) -> Places:
    """Return the three states of a group with these members, of which there is at least one."""
    now = tuple(sorted(client_ids, key=java_order))
    before = now[(len(now) + 1) // 2 - 1]
    leaver, joiner = len(now) // 2, before + _JOINED
    return Places(
        now=now,
        joined=tuple(sorted((*now, joiner), key=java_order)),
        left=now[:leaver] + now[leaver + 1 :],
        joiner=joiner,
        leaver=now[leaver],
    )


def evaluate(strategy: str, group: str, topics: Sequence[TopicLayout], places: Places) -> Figures:
    """Compute the effect of a strategy on a group.

    Raises: ValueError or TypeError if the strategy refuses the group, as in a member.
    """
    if strategy in _HASHING:
        return _HASHING[strategy](tuple(topics), places)
    queue_counts = [topic.queue_count for topic in topics]
    if strategy in _IN_A_ROW:
        queue_counts = [sum(queue_counts)]
    if strategy in KAFKA_ASSIGNORS:
        return add_up([_of_kafka(strategy, count, len(places.now)) for count in queue_counts])
    if strategy in _POSITIONAL:
        ranks = _ranks(places.now)
        return add_up([_of_places(strategy, count, ranks) for count in queue_counts])
    allocate = _allocator(strategy, group, topics, places)
    return add_up([_of_shares(topic.queues, places, allocate) for topic in topics])


def add_up(parts: Sequence[Figures]) -> Figures:
    """Return a group's figures from those of its topics, of which there is at least one."""
    loads, *counts = zip(*parts, strict=True)
    return Figures(tuple(map(sum, zip(*loads, strict=True))), *map(sum, counts))


def _ranks(ids: Sequence[str]) -> tuple[int, ...]:
    numbers = {client_id: number for number, client_id in enumerate(dict.fromkeys(ids))}
    return tuple(numbers[client_id] for client_id in ids)


@lru_cache(maxsize=_SHAPES_MAX)
def _of_places(strategy: str, queue_count: int, ranks: tuple[int, ...]) -> Figures:
    """Compute a topic's figures from places alone, with generated names in the same order."""
    places = make_places([f"m{rank:06d}" for rank in ranks])
    topic = TopicLayout("T", (("b", queue_count),))
    return _of_shares(topic.queues, places, _allocator(strategy, "G", [topic], places))


def _allocator(
    strategy: str, group: str, topics: Sequence[TopicLayout], places: Places
) -> Allocate:
    """Return the function that computes the queues of one topic for each distinct id."""
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
    """Return a strategy with the settings of a careful user.

    The lists of CONFIG deal queues to the present members, and stay when members change.
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


@lru_cache(maxsize=_GROUPS_MAX)
def _hash_queues(
    topics: tuple[TopicLayout, ...],
) -> tuple[tuple[tuple[int, MessageQueue], ...], ...]:
    """Return each topic's queues with the hashes of their texts, in hash order."""
    return tuple(
        tuple(sorted((md5_hash(str(queue)), queue) for queue in topic.queues)) for topic in topics
    )


@lru_cache(maxsize=_TEXTS_MAX)
def _hash_once(text: str) -> int:
    return md5_hash(text)


@lru_cache(maxsize=_GROUPS_MAX)
def _make_ring(cid_all: tuple[str, ...]) -> ConsistentHashRing:
    return ConsistentHashRing(
        cid_all, virtual_node_cnt=VIRTUAL_NODE_COUNT_DEFAULT, hash_function=_hash_once
    )


def _by_ring(topics: tuple[TopicLayout, ...], places: Places) -> Figures:
    hashed = _hash_queues(topics)

    def find_owners(cid_all: tuple[str, ...]) -> Owners:
        ring = _make_ring(cid_all)
        return {queue: ring.owner_at(key) for mine in hashed for key, queue in mine}

    return _of_owners(places, *map(find_owners, places.states))


def _by_bounded_ring(topics: tuple[TopicLayout, ...], places: Places) -> Figures:
    hashed = _hash_queues(topics)

    def find_owners(cid_all: tuple[str, ...]) -> Owners:
        cids = tuple(unique(cid_all))
        ring = _make_ring(cids)
        owners: dict[MessageQueue, str] = {}
        for mine in hashed:
            owners |= deal(mine, ring, cids)
        return owners

    return _of_owners(places, *map(find_owners, places.states))


def _by_scores(topics: tuple[TopicLayout, ...], places: Places) -> Figures:
    # At a join or leave members know the present owners.
    queues = [queue for topic in topics for queue in topic.queues]
    now, *later = places.states
    held = divide(queues, unique(now))
    return _of_owners(places, held, *(divide(queues, unique(ids), held) for ids in later))


# The strategies that hash names, whose figures differ from group to group.
_HASHING: Mapping[str, Callable[[tuple[TopicLayout, ...], Places], Figures]] = {
    "CONSISTENT_HASH": _by_ring,
    "MINIMAL_MOVE": _by_scores,
    # The members of a group subscribe the same topics, and no load is known: all divide alike.
    "AVG_ACROSS_TOPICS": _by_scores,
    "AVG_BY_LOAD": _by_scores,
    "CONSISTENT_HASH_BOUNDED": _by_bounded_ring,
}


def _of_owners(places: Places, now: Owners, joined: Owners, left: Owners | None = None) -> Figures:
    """Return the figures of three states with one owner a queue; `left` is None without members."""
    loads = Counter(now.values())
    shared = {cid for cid, count in Counter(places.now).items() if count > 1}
    staying = frozenset(places.left)
    return Figures(
        loads=tuple(loads[client_id] for client_id in places.now),
        unowned=0,
        doubled=sum(loads[client_id] for client_id in shared),
        join_moved=sum(map(ne, now.values(), map(joined.get, now))),
        leave_moved=0
        if left is None
        else sum([owner in staying and left[queue] != owner for queue, owner in now.items()]),
        leaver_queues=loads[places.leaver],
        joiner_queues=sum(owner == places.joiner for owner in joined.values()),
        leave_unowned=0,
    )


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
        joiner_queues=len(joined[places.joiner]),
        leave_unowned=_unowned(queues, left),
    )


def _unowned(queues: Sequence[MessageQueue], shares: Shares) -> int:
    """Count the queues without an owner; 0 if the group has no member."""
    owned = {queue for share in shares.values() for queue in share}
    return len(queues) - len(owned) if shares else 0


def _moved(before: Shares, after: Shares) -> int:
    """Count the queues that a staying member has lost."""
    return sum(len(set(share) - set(after[cid])) for cid, share in before.items() if cid in after)


@lru_cache(maxsize=_SHAPES_MAX)
def _of_kafka(assignor: str, queue_count: int, member_count: int) -> Figures:
    """Compute the figures of a row of queues; for Kafka equal client ids are different members."""
    places = make_places([f"m{number:06d}" for number in range(member_count)])
    queues = [MessageQueue("T", "b", queue_id) for queue_id in range(queue_count)]

    def assign(member_ids: Sequence[str], owned: Shares) -> Shares:
        subscribed = dict.fromkeys(member_ids, ("T",))
        claimed = {cid: owned.get(cid, ()) for cid in member_ids}
        shares = KAFKA_ASSIGNORS[assignor](queues, subscribed, claimed)
        if assignor == "cooperative-sticky":
            shares = KAFKA_ASSIGNORS[assignor](queues, subscribed, shares)
        return shares

    now = assign(places.now, {})
    joined = assign(places.joined, now)
    left = assign(places.left, now) if places.left else {}
    return Figures(
        loads=tuple(len(now[client_id]) for client_id in places.now),
        unowned=len(queues) - sum(map(len, now.values())),
        doubled=0,
        join_moved=_moved(now, joined),
        leave_moved=_moved(now, left),
        leaver_queues=len(now[places.leaver]),
        joiner_queues=len(joined[places.joiner]),
        leave_unowned=_unowned(queues, left),
    )

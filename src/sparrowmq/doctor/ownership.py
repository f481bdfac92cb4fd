"""Computes to whom each queue falls, and finds out who owns it now. Pure.

Each member computes its own share from the list of one broker, which it picks at random. So it is
certain to whom a queue falls only if the lists of all brokers agree. Otherwise the queue is
*disputed*: depending on the brokers that members asked, one member, two or none take it.

The owner is the member that consumes the queue now. Members report which queues they have in hand
(GET_CONSUMER_RUNNING_INFO): if all members that may own a queue have reported, their reports count,
and a queue is unowned from its release by one member until the next member consumes it. Otherwise
the owner is the member to whom the queue falls. Every view of a group takes the owners from here.
Tests: test_diagnosis_members.py, test_one_owner.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import product
from typing import TypeAlias

from sparrowmq.coordination.owner_claims import Claim, owners_claimed
from sparrowmq.doctor.group_snapshot import (
    BrokerView,
    GroupSnapshot,
    MemberConnection,
    TopicSnapshot,
)
from sparrowmq.model import MessageQueue
from sparrowmq.model.names import retry_topic
from sparrowmq.model.queue import java_order
from sparrowmq.strategies.by_load import AllocateMessageQueueByLoad, divide_by_plan
from sparrowmq.strategies.group_strategy import Owners, TopicView, WholeGroupStrategy
from sparrowmq.strategies.registry import find_named
from sparrowmq.strategies.strategy import AllocateMessageQueueStrategy

# The ids that take each queue.
Shares: TypeAlias = dict[MessageQueue, tuple[str, ...]]


class OwnerState(StrEnum):
    """The states of a queue."""

    BROADCAST = "broadcast"
    """Every member reads the queue."""
    SHARED = "shared"
    """Any member may receive any message of the queue."""
    OWNED = "owned"
    UNOWNED = "unowned"
    DOUBLE = "double"
    """Several members consume the queue."""
    DISPUTED = "disputed"
    """The brokers' lists give different owners."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """To whom each queue of the group's topics falls, and who owns it.

    Args:
        connections: every known connection, in the members' order of client ids.
        falls_to: the connections that should consume each queue, by the list of the broker that
            lists most members; an id of two processes has both connections.
        owners: the connections that consume each queue now.
        shares: the client ids whose share contains each queue, whether they take it or not; empty
            where nothing can be computed.
        disputed: the queues for which brokers' lists give different owners.
        is_broadcasting: whether every member reads all queues.
        is_by_message: whether any member receives messages of any queue; no queue has an owner.
    """

    connections: tuple[MemberConnection, ...] = ()
    falls_to: Mapping[MessageQueue, tuple[MemberConnection, ...]]
    owners: Mapping[MessageQueue, tuple[MemberConnection, ...]]
    shares: Mapping[MessageQueue, tuple[str, ...]] = field(default_factory=dict)
    disputed: frozenset[MessageQueue] = frozenset()
    is_broadcasting: bool = False
    is_by_message: bool = False

    @property
    def unwanted(self) -> tuple[MessageQueue, ...]:
        """The queues that fall to no member."""
        return tuple(queue for queue, connections in self.falls_to.items() if not connections)

    def owner_ids(self, queue: MessageQueue) -> tuple[str, ...]:
        """Return the owners' client ids; an id twice if two processes have it."""
        return tuple(c.client_id for c in self.owners.get(queue, ()))

    def state_of(self, queue: MessageQueue) -> OwnerState:
        """Return a queue's state: what is seen before what is uncertain."""
        connections = self.owners[queue]
        if self.is_by_message:
            return OwnerState.SHARED
        if self.is_broadcasting:
            return OwnerState.BROADCAST
        is_computed = connections == self.falls_to[queue]
        if queue in self.disputed and (is_computed or len(connections) == 1):
            return OwnerState.DISPUTED
        if len(connections) == 1:
            return OwnerState.OWNED
        return OwnerState.DOUBLE if connections else OwnerState.UNOWNED


def sorted_ids(broker: BrokerView) -> list[str]:
    """Return the client ids that a broker lists, in the members' order, duplicates kept."""
    listed = broker.cid_all
    if listed is None:
        listed = tuple(c.client_id for c in broker.connections)
    return sorted(listed, key=java_order)


def connections_of(broker: BrokerView) -> list[MemberConnection]:
    """Return the connections that a broker lists, in id order, also those without an address."""
    waiting: dict[str, list[MemberConnection]] = {}
    for connection in sorted(broker.connections, key=lambda c: c.address):
        waiting.setdefault(connection.client_id, []).append(connection)
    found = []
    for client_id in sorted_ids(broker):
        known = waiting.get(client_id)
        found.append(known.pop(0) if known else MemberConnection(client_id, ""))
    return found


def allocate_all(
    snapshot: GroupSnapshot, strategy: AllocateMessageQueueStrategy, cid_all: Sequence[str]
) -> Shares:
    """Run a strategy for every distinct id of a list; return the ids that take each queue.

    An id that is listed twice appears once, although two processes take its queues. Where the
    strategy fails for a member, the member gets nothing, as in a real member.
    """
    topics = [topic for topic in snapshot.topics if topic.subscribe_queues]
    shares: Shares = {queue: () for topic in topics for queue in topic.subscribe_queues}
    if not cid_all:
        return shares
    if isinstance(strategy, WholeGroupStrategy):
        owners = _divide_group(snapshot, strategy, topics, cid_all)
        return {queue: (owners[queue],) for queue in shares}
    listed = [(topic.topic, topic.subscribe_queues) for topic in topics]
    for (topic, queues), client_id in product(listed, dict.fromkeys(cid_all)):
        try:
            share = strategy.allocate(snapshot.group, client_id, queues, cid_all)
        except (ValueError, TypeError):
            continue
        for queue in share or ():
            # The strategy CONFIG returns one list for all topics.
            if queue.topic == topic and queue in shares:
                shares[queue] += (client_id,)
    return shares


def _divide_group(
    snapshot: GroupSnapshot,
    strategy: WholeGroupStrategy,
    topics: Sequence[TopicSnapshot],
    cid_all: Sequence[str],
) -> Mapping[MessageQueue, str]:
    """Return the owner of every queue, as each member computes it."""
    views = [TopicView(topic.topic, topic.subscribe_queues, cid_all) for topic in topics]
    owners = holders_of(snapshot)
    if isinstance(strategy, AllocateMessageQueueByLoad) and snapshot.plan is not None:
        return divide_by_plan(views, snapshot.plan.followed, owners)
    return strategy.divide_group(views, owners)


def holders_of(snapshot: GroupSnapshot) -> Owners:
    """Return the owner of each queue, as members report them."""
    return owners_claimed(
        Claim(report.client_id, held.queue, held.is_locked, held.is_dropped)
        for report in snapshot.reports
        for held in report.held
    )


def views_of(snapshot: GroupSnapshot, topic: TopicSnapshot) -> Iterator[BrokerView]:
    """Yield the brokers of a topic that list members; members may ask each of them."""
    names = {at.broker_name for at in topic.queues}
    for broker in snapshot.last.brokers:
        if broker.broker_name in names and (broker.cid_all is not None or broker.connections):
            yield broker


def compute_ownership(snapshot: GroupSnapshot) -> Ownership:
    """Compute to whom each queue falls, and find its owners.

    A member that reports its subscriptions takes no queue of any other topic.
    """
    strategy = find_named(snapshot.strategy)
    falls_to: dict[MessageQueue, tuple[MemberConnection, ...]] = {}
    computed: dict[MessageQueue, tuple[str, ...]] = {}
    disputed: set[MessageQueue] = set()
    connections = _all_connections(snapshot)
    shares_by: dict[tuple[str, ...], Shares] = {}
    for topic in snapshot.topics:
        queues = topic.subscribe_queues
        if not snapshot.divides_queues:
            falls_to |= dict.fromkeys(queues, connections if snapshot.is_broadcasting else ())
            continue
        views = sorted(views_of(snapshot, topic), key=lambda view: -len(sorted_ids(view)))
        if strategy is None or not views:
            falls_to |= {queue: _reported_owners(snapshot, queue, connections) for queue in queues}
            continue
        lists = [tuple(sorted_ids(view)) for view in views]
        for cid_all in lists:
            if cid_all not in shares_by:
                shares_by[cid_all] = allocate_all(snapshot, strategy, cid_all)
        shares = [shares_by[cid_all] for cid_all in lists]
        computed |= {queue: shares[0][queue] for queue in queues}
        takers = [c for c in connections_of(views[0]) if takes(snapshot, c.client_id, topic)]
        for queue in queues:
            falls_to[queue] = tuple(c for c in takers if c.client_id in shares[0][queue])
            if any(share[queue] != shares[0][queue] for share in shares[1:]):
                disputed.add(queue)
    return Ownership(
        connections=connections,
        falls_to=falls_to,
        owners=_find_owners(snapshot, falls_to, connections),
        shares=computed,
        disputed=frozenset(disputed),
        is_broadcasting=snapshot.is_broadcasting,
        is_by_message=snapshot.is_by_message,
    )


def _find_owners(
    snapshot: GroupSnapshot,
    falls_to: Mapping[MessageQueue, tuple[MemberConnection, ...]],
    connections: tuple[MemberConnection, ...],
) -> Mapping[MessageQueue, tuple[MemberConnection, ...]]:
    if not snapshot.divides_queues:
        return falls_to
    counts = Counter(c.client_id for c in connections)
    connection_of = {c.client_id: c for c in connections}
    reporting = {report.client_id for report in snapshot.reports if not report.failure}
    holders: dict[MessageQueue, list[MemberConnection]] = {}
    for report in snapshot.reports:
        connection = connection_of.get(report.client_id) or MemberConnection(report.client_id, "")
        for held in report.held:
            if held.is_consumed:
                holders.setdefault(held.queue, []).append(connection)
    found: dict[MessageQueue, tuple[MemberConnection, ...]] = {}
    for queue, takers in falls_to.items():
        # Where the strategy fails, any member may have kept the queue.
        ids = {c.client_id for c in takers} or counts.keys()
        # A broker asks only one of two processes with one id; the other's queues stay unknown.
        is_reported = all(each in reporting and counts[each] == 1 for each in ids)
        found[queue] = tuple(holders.get(queue, ())) if ids and is_reported else takers
    return found


def takes(snapshot: GroupSnapshot, client_id: str, topic: TopicSnapshot) -> bool:
    """Return whether a member takes its share of a topic, as far as it reports its topics."""
    report = snapshot.find_report(client_id)
    # A member that holds queues without any subscription runs a client that never reports them.
    if report is None or (report.held and not report.subscriptions):
        return True
    # Every clustering member has the retry topic, whether it reports it or not.
    return topic.topic in report.topics or topic.topic == retry_topic(snapshot.group)


def _reported_owners(
    snapshot: GroupSnapshot, queue: MessageQueue, connections: tuple[MemberConnection, ...]
) -> tuple[MemberConnection, ...]:
    """Return the members that report holding the queue, for strategies that cannot be computed."""
    holders = {
        report.client_id
        for report in snapshot.reports
        if any(held.queue == queue and not held.is_dropped for held in report.held)
    }
    return tuple(c for c in connections if c.client_id in holders)


def _all_connections(snapshot: GroupSnapshot) -> tuple[MemberConnection, ...]:
    """Return one connection for each known process of the group.

    A member has one connection to each broker, each from another port. So the broker that lists a
    client id most often gives the number of its processes.
    """
    best: dict[str, list[MemberConnection]] = {}
    for broker in snapshot.last.brokers:
        at_broker: dict[str, list[MemberConnection]] = {}
        for connection in connections_of(broker):
            at_broker.setdefault(connection.client_id, []).append(connection)
        for client_id, found in at_broker.items():
            if len(found) > len(best.get(client_id, ())):
                best[client_id] = found
    return tuple(c for client_id in sorted(best, key=java_order) for c in best[client_id])

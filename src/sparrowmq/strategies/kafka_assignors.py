"""Kafka's four assignors as pure functions over a whole group, for comparison with RocketMQ's.

In RocketMQ every member computes its own share of one topic. In Kafka one member, the leader,
computes every member's share of all topics, and a coordinator distributes the shares. So these
functions take the whole group and return the whole assignment.

Every function takes:
    queues: every queue of every topic, in any order (Kafka calls queues partitions).
    members: the topics that each member subscribes, by member id.
    owned: the queues that each member owns now, by member id; queues of topics that the member does
        not subscribe are ignored.
and returns the queues of every member by member id, each list in queue order.

Members and topics are sorted by code point, as Kafka's clients sort their ASCII ids.
Source: KIP-54 (sticky), KIP-429 (cooperative), RangeAssignor.java, RoundRobinAssignor.java,
AbstractStickyAssignor.java of Apache Kafka 3.9.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeAlias

from sparrowmq.model import MessageQueue

Members: TypeAlias = Mapping[str, Collection[str]]
Assignment: TypeAlias = dict[str, list[MessageQueue]]
GroupAssignor: TypeAlias = Callable[
    [Collection[MessageQueue], Members, Mapping[str, Collection[MessageQueue]]], Assignment
]


def assign_range(
    queues: Collection[MessageQueue],
    members: Members,
    owned: Mapping[str, Collection[MessageQueue]],
) -> Assignment:
    """Give each topic's subscribers consecutive ranges; the first members get one queue more."""
    assignment: Assignment = {member: [] for member in sorted(members)}
    for topic, of_topic in _by_topic(queues).items():
        subscribers = [member for member in sorted(members) if topic in members[member]]
        if not subscribers:
            continue
        size, rest = divmod(len(of_topic), len(subscribers))
        start = 0
        for index, member in enumerate(subscribers):
            end = start + size + (index < rest)
            assignment[member] += of_topic[start:end]
            start = end
    return assignment


def assign_round_robin(
    queues: Collection[MessageQueue],
    members: Members,
    owned: Mapping[str, Collection[MessageQueue]],
) -> Assignment:
    """Deal the queues of all topics in turn; skip members that do not subscribe the topic."""
    ring = sorted(members)
    assignment: Assignment = {member: [] for member in ring}
    turn = 0
    for queue in sorted(queues):
        for step in range(len(ring)):
            member = ring[(turn + step) % len(ring)]
            if queue.topic in members[member]:
                assignment[member].append(queue)
                turn = (turn + step + 1) % len(ring)
                break
    return assignment


def assign_sticky(
    queues: Collection[MessageQueue],
    members: Members,
    owned: Mapping[str, Collection[MessageQueue]],
) -> Assignment:
    """Leave queues with their owners, and move only as many as balance needs.

    A queue that two members claim stays with the first of them. If all members subscribe the same
    topics, loads differ by at most one.
    """
    assignment = _kept(queues, members, owned)
    taken = {queue for mine in assignment.values() for queue in mine}
    for queue in sorted(set(queues) - taken):
        eligible = [member for member in assignment if queue.topic in members[member]]
        if eligible:
            _least_loaded(assignment, eligible).append(queue)
    _level(assignment, members)
    return {member: sorted(mine) for member, mine in assignment.items()}


def assign_cooperative_sticky(
    queues: Collection[MessageQueue],
    members: Members,
    owned: Mapping[str, Collection[MessageQueue]],
) -> Assignment:
    """Run one round of the incremental protocol: the sticky shares without queues of other owners.

    This round assigns a queue that changes its owner to nobody: the owner gives up the queue, and a
    second round, with the new `owned`, assigns it. Members go on consuming the queues that they
    keep.
    """
    owner = {queue: member for member in sorted(members) for queue in owned.get(member, ())}
    return {
        member: [queue for queue in mine if owner.get(queue, member) == member]
        for member, mine in assign_sticky(queues, members, owned).items()
    }


KAFKA_ASSIGNORS: Mapping[str, GroupAssignor] = {
    "range": assign_range,
    "roundrobin": assign_round_robin,
    "sticky": assign_sticky,
    "cooperative-sticky": assign_cooperative_sticky,
}


def _by_topic(queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
    topics: dict[str, list[MessageQueue]] = {}
    for queue in sorted(queues):
        topics.setdefault(queue.topic, []).append(queue)
    return topics


def _kept(
    queues: Collection[MessageQueue],
    members: Members,
    owned: Mapping[str, Collection[MessageQueue]],
) -> Assignment:
    """Return the existing queues that each member subscribes and is the first to claim."""
    free = set(queues)
    kept: Assignment = {}
    for member in sorted(members):
        mine = [
            q for q in sorted(owned.get(member, ())) if q in free and q.topic in members[member]
        ]
        free.difference_update(mine)
        kept[member] = mine
    return kept


def _least_loaded(assignment: Assignment, eligible: list[str]) -> list[MessageQueue]:
    return assignment[min(eligible, key=lambda member: (len(assignment[member]), member))]


def _level(assignment: Assignment, members: Members) -> None:
    """Move single queues from fuller to emptier members while this reduces the difference.

    Every move lowers the sum of squared loads, so the loop ends.
    """
    while True:
        for giver in sorted(assignment, key=lambda member: (-len(assignment[member]), member)):
            move = _move_from(giver, assignment, members)
            if move is not None:
                queue, taker = move
                assignment[giver].remove(queue)
                assignment[taker].append(queue)
                break
        else:
            return


def _move_from(
    giver: str, assignment: Assignment, members: Members
) -> tuple[MessageQueue, str] | None:
    for taker in sorted(assignment, key=lambda member: (len(assignment[member]), member)):
        if len(assignment[giver]) - len(assignment[taker]) <= 1:
            return None
        for queue in sorted(assignment[giver], reverse=True):
            if queue.topic in members[taker]:
                return queue, taker
    return None

"""Kafka's four assignors, as pure functions over a whole group. For comparison with RocketMQ's.

In RocketMQ every member computes its own share of one topic; in Kafka one member, the leader,
computes everybody's share of all topics, and a coordinator hands the shares out. So these functions
take the whole group and return the whole assignment.

Every function takes:
    queues: every queue of every topic, in any order (Kafka calls them partitions).
    members: member id -> topics it subscribes.
    owned: member id -> queues it owns now; what it claims of other topics is ignored.
and returns member id -> queues, for every member, each list in queue order.

Order: members and topics by code point, as Kafka's own clients sort their ASCII ids.
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
    """Give each topic's subscribers consecutive ranges; the first ones get one queue more."""
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
    """Deal all queues of all topics in turn, passing over members that do not subscribe."""
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
    """Keep what members own, and move only as many queues as balance needs.

    A queue that two members claim stays with the first of them. Loads differ by at most one
    where every member subscribes the same topics.
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
    """Do one round of the incremental protocol: the sticky target less what others still own.

    A queue that changes its owner is withheld in this round; its owner gives it up and a second
    round, with the new `owned`, hands it over. Nobody stops consuming what it keeps.
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
    """Return what every member may keep: queues that exist, subscribed, claimed by it first."""
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
    """Move single queues from fuller to emptier members while that lessens the difference.

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

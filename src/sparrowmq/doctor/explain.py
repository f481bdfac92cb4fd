"""Explains a queue's owner: the strategy's arithmetic in words, with the group's numbers.

Pure. The steps are those of a member: sort the queues, sort the ids, find its own place, compute.
Tests: test_diagnosis_queues.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparrowmq.doctor.finding import describe_queues, describe_runs
from sparrowmq.doctor.group_snapshot import GroupSnapshot
from sparrowmq.doctor.ownership import (
    allocate_all,
    find_strategy,
    holders_of,
    sorted_ids,
    views_of,
)
from sparrowmq.errors import UsageError
from sparrowmq.model import MessageQueue
from sparrowmq.strategies.consistent_hash import VIRTUAL_NODE_COUNT_DEFAULT, md5_hash
from sparrowmq.words import count_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The reason for a queue's owner, by one list of members.

    Args:
        broker_names: the brokers that give out this list.
        cid_all: the list in the members' order, duplicates kept.
        queues: the topic's queues in the members' order.
        owners: the client ids that take the queue; an id twice if two processes carry it.
        steps: the reasoning, one sentence a step.
    """

    queue: MessageQueue
    broker_names: tuple[str, ...]
    cid_all: tuple[str, ...]
    queues: tuple[MessageQueue, ...]
    owners: tuple[str, ...]
    steps: tuple[str, ...]


def explain(snapshot: GroupSnapshot, queue: MessageQueue) -> list[Explanation]:
    """Explain a queue's owner, once for each different member list that brokers give out.

    Raises: UsageError if the group does not divide this queue, or if its strategy depends on
        settings that members do not report.
    """
    topic = snapshot.find_topic(queue.topic)
    if topic is None or queue not in topic.subscribe_queues:
        raise UsageError(_unknown_queue(snapshot, queue))
    if snapshot.is_broadcasting:
        raise UsageError(f"group {snapshot.group} is BROADCASTING: every member has every queue")
    if snapshot.is_by_message:
        raise UsageError(
            f"group {snapshot.group} consumes by message: any member may receive any message"
        )
    strategy = find_strategy(snapshot)
    if strategy is None:
        raise UsageError(
            f"strategy {snapshot.strategy} depends on settings that members do not report; "
            f"name the members' strategy by --strategy"
        )
    by_list: dict[tuple[str, ...], list[str]] = {}
    for view in views_of(snapshot, topic):
        by_list.setdefault(tuple(sorted_ids(view)), []).append(view.broker_name)
    explanations = []
    for cid_all, names in by_list.items():
        queues = tuple(topic.subscribe_queues)
        shares = allocate_all(snapshot, strategy, cid_all)
        owners = tuple(
            client_id for client_id in shares[queue] for _ in range(cid_all.count(client_id))
        )
        explanations.append(
            Explanation(
                queue=queue,
                broker_names=tuple(names),
                cid_all=cid_all,
                queues=queues,
                owners=owners,
                steps=tuple(
                    _steps(
                        snapshot,
                        queue,
                        queues,
                        cid_all,
                        owners,
                        holder=holders_of(snapshot).get(queue),
                    )
                ),
            )
        )
    return explanations


def find_queue(snapshot: GroupSnapshot, text: str, *, topic: str | None = None) -> MessageQueue:
    """Return the queue that `BROKER:ID` names.

    Args:
        text: the queue, such as `broker-a:3`.
        topic: the queue's topic; None if the group has only one besides its retry topic.

    Raises: UsageError if the text is no such name, the topic is missing, or the group does not
        divide the queue.
    """
    broker_name, colon, number = text.rpartition(":")
    if not colon or not broker_name or not (number.isascii() and number.isdigit()):
        raise UsageError(f"queue {text!r}: write BROKER:ID, such as broker-a:3")
    names = [view.topic for view in snapshot.user_topics]
    if topic is None and len(names) != 1:
        listed = ", ".join(names) or "no topic"
        raise UsageError(f"group {snapshot.group} consumes {listed}: name one by --topic")
    queue = MessageQueue(topic or names[0], broker_name, int(number))
    view = snapshot.find_topic(queue.topic)
    if view is None or queue not in view.subscribe_queues:
        raise UsageError(_unknown_queue(snapshot, queue))
    return queue


def _unknown_queue(snapshot: GroupSnapshot, queue: MessageQueue) -> str:
    view = snapshot.find_topic(queue.topic)
    if view is None:
        known = ", ".join(topic.topic for topic in snapshot.topics) or "no topic"
        return f"group {snapshot.group} does not consume topic {queue.topic}; it consumes {known}"
    return (
        f"members do not divide queue {queue.broker_name}:{queue.queue_id}; they divide "
        f"{describe_queues(view.subscribe_queues)}"
    )


def _steps(
    snapshot: GroupSnapshot,
    queue: MessageQueue,
    queues: Sequence[MessageQueue],
    cid_all: Sequence[str],
    owners: Sequence[str],
    *,
    holder: str | None,
) -> list[str]:
    place, strategy = queues.index(queue), snapshot.strategy
    steps = [
        f"the topic has {count_of(len(queues), 'queue')} that can be read; sorted by topic, broker "
        f"and id, this queue stands at place {place}, counted from 0",
        f"the broker lists {count_of(len(cid_all), 'member')}"
        + ("; sorted as Java sorts text: " if cid_all else "")
        + ", ".join(f"{i}. {client_id}" for i, client_id in enumerate(cid_all)),
    ]
    if not cid_all:
        return [*steps, "so nobody takes the queue"]
    if strategy == "AVG":
        steps += _average_steps(place, len(queues), cid_all)
    elif strategy == "AVG_BY_CIRCLE":
        steps += _circle_steps(place, cid_all)
    elif strategy == "CONSISTENT_HASH":
        steps += _hash_steps(queue, cid_all)
    elif strategy == "MINIMAL_MOVE":
        held = (
            f"{holder} reports that it holds this queue"
            if holder
            else "no member reports that it holds this queue"
        )
        steps.append(
            "MINIMAL_MOVE leaves a queue with its holder if the broker lists the holder and the "
            "holder has no more than its share; other queues go to members with room, by a hash of "
            f"queue and id: {held}"
        )
    elif strategy == "AVG_BY_LOAD":
        steps += _plan_steps(snapshot, queue, cid_all)
    else:
        steps.append(f"strategy {strategy} computes the share of every member")
    return [*steps, _conclusion(owners)]


def _plan_steps(snapshot: GroupSnapshot, queue: MessageQueue, cid_all: Sequence[str]) -> list[str]:
    plan = snapshot.plan
    followed = None if plan is None else plan.followed
    if plan is None or followed is None:
        why = "the broker has no plan register" if plan is None else "no plan was taken yet"
        return [f"AVG_BY_LOAD without a plan moves the fewest queues, as MINIMAL_MOVE does: {why}"]
    steps = [
        f"AVG_BY_LOAD follows the group's plan {plan.epoch}, which gives the queue to "
        f"{followed.owners.get(queue, 'nobody')}"
    ]
    if queue in plan.moved:
        steps.append(
            f"that plan moved the queue for load: the fullest member's load {plan.fall}, over all "
            f"{count_of(len(plan.moved), 'queue')} that it moved"
        )
    load = plan.loads.queues.get(queue)
    if load is not None:
        steps.append(
            f"the queue's demand is {load.demand_per_s:.1f} messages a second: "
            f"{load.rate_per_s:.1f} come in, and {load.lag:,} wait"
        )
    if set(plan.client_ids) != set(cid_all):
        steps.append(
            "members have joined or left since: until the next plan, each keeps its part of the "
            "queues, and a new member gets the mean part"
        )
    return steps


def _average_steps(place: int, queue_count: int, cid_all: Sequence[str]) -> list[str]:
    share, surplus = divmod(queue_count, len(cid_all))
    runs = []
    start = 0
    for index in range(len(cid_all)):
        end = start + share + (index < surplus)
        runs.append(range(start, end))
        start = end
    taker = next(index for index, run in enumerate(runs) if place in run)
    queues, members = count_of(queue_count, "queue"), count_of(len(cid_all), "member")
    rule = f"AVG: {queues} over {members} are {share} each, remainder {surplus}" + (
        f": the first {surplus} take {share + 1}, the others {share}" if surplus else ""
    )
    return [
        rule,
        f"so place {place} falls to member {taker}, who takes places {describe_runs(runs[taker])}",
        *_second_place(cid_all, taker),
    ]


def _circle_steps(place: int, cid_all: Sequence[str]) -> list[str]:
    taker = place % len(cid_all)
    return [
        f"AVG_BY_CIRCLE: queues are dealt in turn: {place} mod {len(cid_all)} = {taker}",
        f"so place {place} falls to member {taker}",
        *_second_place(cid_all, taker),
    ]


def _second_place(cid_all: Sequence[str], taker: int) -> list[str]:
    first = cid_all.index(cid_all[taker])
    if first == taker:
        return []
    return [
        f"but a member looks for the first place of its id, and {cid_all[taker]} stands at place "
        f"{first} too: both processes take the share of place {first}, and nobody takes the share "
        f"of place {taker}"
    ]


def _hash_steps(queue: MessageQueue, cid_all: Sequence[str]) -> list[str]:
    count: dict[str, int] = {}
    nodes: dict[int, str] = {}
    for client_id in cid_all:
        start = count.get(client_id, 0)
        count[client_id] = start + VIRTUAL_NODE_COUNT_DEFAULT
        for number in range(start, count[client_id]):
            nodes[md5_hash(f"{client_id}-{number}")] = f"{client_id}-{number}"
    key = md5_hash(str(queue))
    following = [point for point in nodes if point >= key]
    at = min(following) if following else min(nodes)
    around = "" if following else ", the ring's first, since none follows"
    return [
        f"CONSISTENT_HASH: every place of the list has {VIRTUAL_NODE_COUNT_DEFAULT} nodes on a "
        f"ring of 2^32 points; the queue's text hashes to {key:,}",
        f"the next node is {nodes[at]} at {at:,}{around}",
    ]


def _conclusion(owners: Sequence[str]) -> str:
    if not owners:
        return "so nobody takes the queue"
    if len(owners) == 1:
        return f"so {owners[0]} takes the queue"
    if len(set(owners)) == 1:
        return f"so all {len(owners)} processes with the id {owners[0]} take the queue"
    return f"so {' and '.join(owners)} all take the queue"

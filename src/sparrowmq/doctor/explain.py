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
    holders_of,
    sorted_ids,
    takes,
    views_of,
)
from sparrowmq.errors import UsageError
from sparrowmq.model import MessageQueue
from sparrowmq.model.spelling import parse_queue, spell_queue
from sparrowmq.strategies.consistent_hash import VIRTUAL_NODE_COUNT_DEFAULT, md5_hash
from sparrowmq.strategies.registry import find_named
from sparrowmq.words import Phrase, count_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The reason for a queue's owner, by one list of members.

    Args:
        broker_names: the brokers that give out this list.
        cid_all: the list in the members' order, duplicates kept.
        queues: the topic's queues in the members' order.
        owners: the client ids that take the queue; an id twice if two processes carry it.
        steps: the reasoning, one sentence a step, which can be translated.
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
    strategy = find_named(snapshot.strategy)
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
        takers = allocate_all(snapshot, strategy, cid_all)[queue]
        owners = tuple(
            client_id
            for client_id in takers
            if takes(snapshot, client_id, topic)
            for _ in range(cid_all.count(client_id))
        )
        steps = _steps(snapshot, queue, queues, cid_all, holder=holders_of(snapshot).get(queue))
        steps += [
            Phrase(
                "but {member} does not subscribe the topic, and takes no queue of it",
                member=client_id,
            )
            for client_id in takers
            if client_id not in owners
        ]
        explanations.append(
            Explanation(
                queue=queue,
                broker_names=tuple(names),
                cid_all=cid_all,
                queues=queues,
                owners=owners,
                steps=(*steps, _conclusion(owners)),
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
    broker_name, queue_id = parse_queue(text)
    names = [view.topic for view in snapshot.user_topics]
    if topic is None and len(names) != 1:
        listed = ", ".join(names) or "no topic"
        raise UsageError(f"group {snapshot.group} consumes {listed}: name one by --topic")
    queue = MessageQueue(topic or names[0], broker_name, queue_id)
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
        f"members do not divide queue {spell_queue(queue)}; they divide "
        f"{describe_queues(view.subscribe_queues)}"
    )


def _steps(
    snapshot: GroupSnapshot,
    queue: MessageQueue,
    queues: Sequence[MessageQueue],
    cid_all: Sequence[str],
    *,
    holder: str | None,
) -> list[str]:
    place, strategy = queues.index(queue), snapshot.strategy
    steps: list[str] = [
        Phrase(
            "the topic has {queues} that can be read; sorted by topic, broker and id, this queue "
            "stands at place {place}, counted from 0",
            queues=count_of(len(queues), "queue"),
            place=str(place),
        ),
        _list_step(cid_all),
    ]
    if not cid_all:
        return steps
    if strategy == "AVG":
        steps += _average_steps(place, len(queues), cid_all)
    elif strategy == "AVG_BY_CIRCLE":
        steps += _circle_steps(place, cid_all)
    elif strategy == "CONSISTENT_HASH":
        steps += _hash_steps(queue, cid_all)
    elif strategy == "MINIMAL_MOVE":
        held = Phrase("no member reports that it holds this queue")
        if holder:
            held = Phrase("{member} reports that it holds this queue", member=holder)
        steps.append(
            Phrase(
                "MINIMAL_MOVE leaves a queue with its holder if the broker lists the holder and "
                "the holder has no more than its share; other queues go to members with room, by "
                "a hash of queue and id: {held}",
                held=held,
            )
        )
    elif strategy == "AVG_BY_LOAD":
        steps += _plan_steps(snapshot, queue, cid_all)
    else:
        steps.append(
            Phrase("strategy {strategy} computes the share of every member", strategy=strategy)
        )
    return steps


def _list_step(cid_all: Sequence[str]) -> Phrase:
    members = count_of(len(cid_all), "member")
    if not cid_all:
        return Phrase("the broker lists {members}", members=members)
    return Phrase(
        "the broker lists {members}; sorted as Java sorts text: {ids}",
        members=members,
        ids=", ".join(f"{i}. {client_id}" for i, client_id in enumerate(cid_all)),
    )


def _plan_steps(
    snapshot: GroupSnapshot, queue: MessageQueue, cid_all: Sequence[str]
) -> list[Phrase]:
    plan = snapshot.plan
    followed = None if plan is None else plan.followed
    if plan is None or followed is None:
        why = Phrase("no plan was taken yet")
        if plan is None:
            why = Phrase("the broker has no plan register")
        template = "AVG_BY_LOAD without a plan moves the fewest queues, as MINIMAL_MOVE does: {why}"
        return [Phrase(template, why=why)]
    steps = [
        Phrase(
            "AVG_BY_LOAD follows the group's plan {epoch}, which gives the queue to {owner}",
            epoch=str(plan.epoch),
            owner=followed.owners.get(queue) or Phrase("nobody"),
        )
    ]
    if queue in plan.moved:
        steps.append(
            Phrase(
                "that plan moved the queue for load: the fullest member's load {fall}, over all "
                "{queues} that it moved",
                fall=plan.fall,
                queues=count_of(len(plan.moved), "queue"),
            )
        )
    load = plan.loads.queues.get(queue)
    if load is not None:
        steps.append(
            Phrase(
                "the queue's demand is {demand} messages a second: {rate} come in, and {lag} wait",
                demand=f"{load.demand_per_s:.1f}",
                rate=f"{load.rate_per_s:.1f}",
                lag=f"{load.lag:,}",
            )
        )
    if set(plan.client_ids) != set(cid_all):
        steps.append(
            Phrase(
                "members have joined or left since: until the next plan, each keeps its part of "
                "the queues, and a new member gets the mean part"
            )
        )
    return steps


def _average_steps(place: int, queue_count: int, cid_all: Sequence[str]) -> list[Phrase]:
    share, surplus = divmod(queue_count, len(cid_all))
    runs = []
    start = 0
    for index in range(len(cid_all)):
        end = start + share + (index < surplus)
        runs.append(range(start, end))
        start = end
    taker = next(index for index, run in enumerate(runs) if place in run)
    values = {
        "queues": count_of(queue_count, "queue"),
        "members": count_of(len(cid_all), "member"),
        "share": str(share),
        "surplus": str(surplus),
    }
    rule = Phrase("AVG: {queues} over {members} are {share} each, remainder {surplus}", **values)
    if surplus:
        rule = Phrase(
            "AVG: {queues} over {members} are {share} each, remainder {surplus}: the first "
            "{surplus} take {more}, the others {share}",
            more=str(share + 1),
            **values,
        )
    return [
        rule,
        Phrase(
            "so place {place} falls to member {taker}, who takes places {places}",
            place=str(place),
            taker=str(taker),
            places=describe_runs(runs[taker]),
        ),
        *_second_place(cid_all, taker),
    ]


def _circle_steps(place: int, cid_all: Sequence[str]) -> list[Phrase]:
    taker = place % len(cid_all)
    values = {"place": str(place), "members": str(len(cid_all)), "taker": str(taker)}
    return [
        Phrase(
            "AVG_BY_CIRCLE: queues are dealt in turn: {place} mod {members} = {taker}", **values
        ),
        Phrase("so place {place} falls to member {taker}", **values),
        *_second_place(cid_all, taker),
    ]


def _second_place(cid_all: Sequence[str], taker: int) -> list[Phrase]:
    member = cid_all[taker]
    first, count = cid_all.index(member), cid_all.count(member)
    if first == taker:
        return []
    values = {"member": member, "first": str(first), "taker": str(taker)}
    return [
        Phrase(
            "but a member looks for the first place of its id, and {member} stands at place "
            "{first} too: both processes take the share of place {first}, and nobody takes the "
            "share of place {taker}",
            **values,
        )
        if count == 2
        else Phrase(
            "but a member looks for the first place of its id, and {member} stands at place "
            "{first} too: all {count} processes take the share of place {first}, and nobody takes "
            "the share of place {taker}",
            count=str(count),
            **values,
        )
    ]


def _hash_steps(queue: MessageQueue, cid_all: Sequence[str]) -> list[Phrase]:
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
    next_node = Phrase("the next node is {node} at {at}", node=nodes[at], at=f"{at:,}")
    if not following:
        next_node = Phrase(
            "the next node is {node} at {at}, the ring's first, since none follows",
            **next_node.values,
        )
    return [
        Phrase(
            "CONSISTENT_HASH: every place of the list has {count} nodes on a ring of 2^32 points; "
            "the queue's text hashes to {key}",
            count=str(VIRTUAL_NODE_COUNT_DEFAULT),
            key=f"{key:,}",
        ),
        next_node,
    ]


def _conclusion(owners: Sequence[str]) -> Phrase:
    if not owners:
        return Phrase("so nobody takes the queue")
    if len(owners) == 1:
        return Phrase("so {member} takes the queue", member=owners[0])
    if len(set(owners)) == 1:
        return Phrase(
            "so all {count} processes with the id {member} take the queue",
            count=str(len(owners)),
            member=owners[0],
        )
    members = owners[0]
    for owner in owners[1:]:
        members = Phrase("{one} and {other}", one=members, other=owner)
    return Phrase("so {members} all take the queue", members=members)

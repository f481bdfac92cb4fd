"""R15, R16, R17, R30, Q11: unequal shares, backlogs and input; queues that stand still. Pure.

Tests: test_diagnosis_queues.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from sparrowmq.doctor.finding import (
    SKIP_REMEDY,
    Finding,
    Severity,
    command_for_members,
    commands_past,
    describe_queues,
    describe_state,
)
from sparrowmq.doctor.group_view import GroupView, describe_rates
from sparrowmq.doctor.membership_rules import all_loads, user_loads
from sparrowmq.model import MessageQueue
from sparrowmq.strategies.by_load import AllocateMessageQueueByLoad
from sparrowmq.strategies.registry import find_named
from sparrowmq.words import Phrase, count_of, format_duration, format_rate

# A queue's backlog is out of line if it has this many messages and is this many times the mean
# backlog of the topic's other queues.
HOT_LAG_MIN = 1_000
HOT_LAG_RATIO = 4
# A queue gets most of its topic's messages if it gets this many times the mean of the others, and
# at least this many messages between the samples; fewer might be chance.
HOT_INPUT_RATIO = 4
HOT_INPUT_MIN = 40
_NEARBY = "MACHINE_ROOM_NEARBY"


def find_topic_tilt(view: GroupView) -> Iterator[Finding]:
    """R15: each topic is divided evenly, but the first ids get the extra queues of every topic."""
    loads = {c: len(queues) for c, queues in user_loads(view).items()}
    if len(loads) < 2 or len(view.snapshot.user_topics) < 2 or view.snapshot.is_broadcasting:
        return
    if max(loads.values()) - min(loads.values()) < 2 or not _is_even_per_topic(view):
        return
    yield Finding(
        rule="R15",
        severity=Severity.WARN,
        title=Phrase(
            "members' shares of all topics together differ by {n} queues",
            n=f"{max(loads.values()) - min(loads.values())}",
        ),
        evidence=tuple(
            Phrase("{id}: {queues}", id=c, queues=count_of(count, "queue"))
            for c, count in loads.items()
        ),
        consequence=Phrase(
            "strategy {name} divides every topic separately and gives each topic's extra "
            "queues to the first ids; the last ids get the fewest queues",
            name=view.snapshot.strategy,
        ),
        remedy=(
            "make the number of queues of each topic a multiple of the number of members; "
            "where every member runs SparrowMQ, the strategy AVG_ACROSS_TOPICS divides all "
            "topics together"
        ),
        members=tuple(c for c, count in loads.items() if count == max(loads.values())),
    )


def _is_even_per_topic(view: GroupView) -> bool:
    loads = user_loads(view).values()
    for topic in view.snapshot.user_topics:
        counts = [sum(queue.topic == topic.topic for queue in queues) for queues in loads]
        if max(counts) - min(counts) > 1:
            return False
    return True


def find_room_tilt(view: GroupView) -> Iterator[Finding]:
    """R16: the first ids get the extra queues of every machine room without a member."""
    strategy = find_named(view.snapshot.strategy)
    if strategy is None or not view.snapshot.strategy.startswith(_NEARBY):
        return
    loads = {c: len(queues) for c, queues in user_loads(view).items()}
    rooms: dict[str, list[int]] = {}
    for client_id, count in loads.items():
        rooms.setdefault(client_id.partition("-")[0], []).append(count)
    tilted = sorted(r for r, counts in rooms.items() if max(counts) - min(counts) > 1)
    if not tilted:
        return
    yield Finding(
        rule="R16",
        severity=Severity.WARN,
        title=Phrase(
            "members of machine room {rooms} have unequal shares", rooms=", ".join(tilted)
        ),
        evidence=tuple(
            Phrase("{id}: {queues}", id=c, queues=count_of(count, "queue"))
            for c, count in loads.items()
        ),
        consequence=Phrase(
            "queues of rooms without a member are divided room by room, and the first ids "
            "get each room's extra queues; the last ids may get none"
        ),
        remedy="run a member in every room that has brokers, or use a strategy without rooms",
    )


def find_lag_tilt(view: GroupView) -> Iterator[Finding]:
    """R17: a queue's backlog is far above that of the others although its owner consumes."""
    if view.snapshot.is_broadcasting:
        # No broker knows what members have consumed.
        return
    for topic in view.snapshot.user_topics:
        known = view.progress
        lags = {q: known[q].lag for q in topic.subscribe_queues if q in known}
        if len(lags) < 2:
            continue
        hot = [q for q in lags if _is_hot(q, lags) and not view.stands_still(q)]
        hot = [q for q in hot if view.ownership.falls_to.get(q)]
        if hot:
            yield _lag_finding(view, topic.topic, hot, lags)


def _is_hot(queue: MessageQueue, lags: dict[MessageQueue, int]) -> bool:
    others = [lag for other, lag in lags.items() if other != queue]
    mean = sum(others) / len(others)
    return lags[queue] >= max(HOT_LAG_MIN, HOT_LAG_RATIO * mean)


def _lag_finding(
    view: GroupView, topic: str, hot: list[MessageQueue], lags: dict[MessageQueue, int]
) -> Finding:
    rest = [lag for queue, lag in lags.items() if queue not in hot]
    owners = sorted({c.client_id for queue in hot for c in view.ownership.falls_to[queue]})
    has_others = len(view.members) > len(owners)
    evidence = [describe_state([q], view.describe_backlog([q])) for q in hot]
    if rest:
        evidence.append(
            Phrase("the topic's other queues: at most {n} messages behind", n=f"{max(rest):,}")
        )
    return Finding(
        rule="R17",
        severity=Severity.WARN,
        title=Phrase(
            "topic {topic} has {queues} far behind the others",
            queues=count_of(len(hot), "queue"),
            topic=topic,
        ),
        evidence=tuple(evidence),
        consequence=Phrase(
            "most of the work falls to {ids} while other members wait", ids=", ".join(owners)
        )
        if has_others
        else Phrase("the messages of these queues wait the longest"),
        remedy="check whether producers choose queues by an unevenly distributed key"
        + (
            f", and whether this member is slower than the others; {relief_of(view)}"
            if has_others
            else ""
        ),
        commands=(command_for_members(view.snapshot.group),),
        members=tuple(owners),
    )


def relief_of(view: GroupView) -> str:
    """Say how a rebalance relieves members with slow listeners or full queues."""
    if view.snapshot.strategy == AllocateMessageQueueByLoad.name:
        return "AVG_BY_LOAD moves queues away from a full member, a few every 20 s"
    return (
        f"{view.snapshot.strategy} divides queues by number; where every member runs SparrowMQ, "
        "the strategy AVG_BY_LOAD divides by measured load"
    )


def find_crowded_queues(view: GroupView) -> list[MessageQueue]:
    """Return the queues that get most of their topic's messages."""
    seconds = view.snapshot.interval_ms / 1000
    crowded = []
    for topic in view.snapshot.user_topics:
        rates = {q: view.rates[q].produced_per_s for q in topic.subscribe_queues if q in view.rates}
        if len(rates) < 2 or sum(rates.values()) * seconds < HOT_INPUT_MIN:
            continue
        for queue, rate in rates.items():
            mean = (sum(rates.values()) - rate) / (len(rates) - 1)
            if rate * seconds >= HOT_INPUT_MIN and rate >= HOT_INPUT_RATIO * mean:
                crowded.append(queue)
    return crowded


def find_uneven_input(view: GroupView) -> Iterator[Finding]:
    """Q11: producers send most messages to few queues, which few members consume."""
    crowded = find_crowded_queues(view)
    for topic in view.snapshot.user_topics:
        mine = [queue for queue in crowded if queue.topic == topic.topic]
        if not mine or view.snapshot.is_broadcasting:
            continue
        flow, whole = view.flow(mine), view.flow(topic.subscribe_queues)
        assert flow is not None
        assert whole is not None
        share = flow.produced_per_s / whole.produced_per_s
        owners = sorted({s.client_id for q in mine for s in view.ownership.falls_to.get(q, ())})
        known = view.progress
        stored = {q: known[q].max_offset for q in topic.subscribe_queues if q in known}
        # A producer that sends at once batches, and a batch goes into one queue: the next one into
        # another. What all queues have got so far shows whether these are the ones each time.
        is_lasting = sum(stored.get(q, 0) for q in mine) >= share / 2 * sum(stored.values())
        yield Finding(
            rule="Q11",
            severity=Severity.WARN if is_lasting and not flow.is_on_its_way else Severity.INFO,
            title=Phrase(
                "{share} of the messages of topic {topic} go into {queues}",
                share=f"{share:.0%}",
                topic=topic.topic,
                queues=count_of(len(mine), "queue"),
            ),
            evidence=(
                *(describe_state([q], describe_rates(view.rates[q])) for q in mine),
                Phrase(
                    "all {n} queues: {rate} messages a second in",
                    n=f"{len(topic.subscribe_queues)}",
                    rate=format_rate(whole.produced_per_s),
                ),
            ),
            consequence=Phrase(
                "most of the work falls to {ids}; a queue has one owner, so more members or "
                "queues do not help",
                ids=", ".join(owners) or Phrase("nobody"),
            ),
            remedy=(
                "check how producers choose the queue (a sharding key with few values or "
                "one frequent value, or a queue chosen by hand); spread messages that need "
                "no order over all queues"
            ),
            members=tuple(owners),
        )


def find_stuck_queues(view: GroupView) -> Iterator[Finding]:
    """R30: one message blocks a queue: its offset stands still while other offsets move."""
    if view.snapshot.is_broadcasting:
        return
    moving = {queue for queue, rate in view.rates.items() if rate.consumed_per_s > 0}
    if view.may_be_in_calls(view.user_queues):
        return
    loads = all_loads(view)
    for queue, connections in view.ownership.falls_to.items():
        if not connections or not view.stands_still(queue):
            continue
        is_retry = not view.is_user_queue(queue)
        if is_retry and not view.queues[queue].owners:
            # Consumers that poll do not take failed messages.
            continue
        siblings = {q for c in connections for q in loads.get(c.client_id, ()) if q != queue}
        # R28 reports a member none of whose queues moves, Q06 a group none of whose queues moves.
        # Neither looks at failed messages, which may wait for a moment where few others come.
        if siblings & moving or (is_retry and view.is_late([queue])):
            yield _stuck_finding(view, queue, sorted({s.client_id for s in connections}))


def _stuck_consequence(view: GroupView, queue: MessageQueue, owners: list[str]) -> Phrase:
    """Return what waits behind the message: in order all of the queue, otherwise its offset."""
    backlog = view.describe_backlog([queue])
    if any(report.is_orderly and report.client_id in owners for report in view.snapshot.reports):
        return Phrase(
            "{backlog}: in order, no later message of the queue is consumed before the listener "
            "is done with this message; with `max_reconsume_times` a message that fails goes to "
            "the dead letters after that many repetitions, and the queue goes on",
            backlog=backlog,
        )
    return Phrase(
        "{backlog}: the offset cannot pass a message whose listener has not returned, "
        "although later messages may be done; the later messages are consumed again if the "
        "member ends",
        backlog=backlog,
    )


def _stuck_finding(view: GroupView, queue: MessageQueue, owners: list[str]) -> Finding:
    progress = view.progress[queue]
    offset = progress.committed_offset or 0
    evidence = [
        Phrase(
            "offset {offset} of {end} did not move within {time}",
            offset=f"{offset:,}",
            end=f"{progress.max_offset:,}",
            time=view.describe_interval(),
        ),
        Phrase("owner: {ids}", ids=", ".join(owners)),
    ]
    if progress.last_timestamp_ms:
        age = format_duration(view.timestamp_ms - progress.last_timestamp_ms)
        evidence.append(Phrase("the last message consumed was stored {time} ago", time=age))
    return Finding(
        rule="R30",
        severity=Severity.WARN,
        title=Phrase("queue {queue} stands still", queue=describe_queues([queue])),
        evidence=tuple(evidence),
        consequence=_stuck_consequence(view, queue, owners),
        remedy=(
            f"check the message at offset {offset} and how the listener handles that message (a "
            f"call without a time-out?); the rebalance is not the cause; {SKIP_REMEDY}"
        ),
        commands=commands_past(view.snapshot.group, queue, offset),
        members=tuple(owners),
    )

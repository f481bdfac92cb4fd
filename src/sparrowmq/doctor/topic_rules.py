"""R10, R11, R21, R22, R25, R32, Q01 ... Q05, Q16 ... Q19, Q21 ... Q23, Q25: topics, queues. Pure.

Tests: test_diagnosis_queues.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from sparrowmq.doctor.finding import (
    QUEUES_SHOWN_MAX,
    Finding,
    NextCommand,
    Severity,
    commands_past,
    describe_queues,
)
from sparrowmq.doctor.group_snapshot import HeldQueue, TopicSnapshot
from sparrowmq.doctor.group_view import (
    GroupView,
    changed_members,
    find_duplicates,
    member_ids,
)
from sparrowmq.model import MessageQueue
from sparrowmq.model.names import dlq_topic, retry_topic
from sparrowmq.strategies.registry import find_named
from sparrowmq.words import Phrase, count_of, format_duration

_LAST_OFFSETS = frozenset(
    {
        "CONSUME_FROM_LAST_OFFSET",
        "CONSUME_FROM_MAX_OFFSET",
        "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    }
)

# So many messages must have come between the samples, and so long may no listener have got one.
UNMATCHED_MIN = 50
UNMATCHED_MS = 60_000
# A message in flight that was delivered so often comes again and again. A listener that failed for
# some minutes, or consumers that restarted a few times, repeat a message less often.
DELIVERIES_MIN = 5


def find_ignored_queues(view: GroupView) -> Iterator[Finding]:
    """R10: no member has taken some existing queues, although all members report their queues."""
    if view.snapshot.is_broadcasting or not _all_report(view):
        return
    _, went = changed_members(view.snapshot.first, view.snapshot.last)
    if went:
        # Others take their queues next.
        return
    # A queue that its former owner still drains is in a handover.
    in_hand = {held.queue for report in view.snapshot.reports for held in report.held}
    # Only the members know the shares that such a strategy gives.
    is_unknown = find_named(view.snapshot.strategy) is None
    twins = find_duplicates(view.snapshot.last)
    # Of an id that is in use twice, nobody takes the second share. Otherwise the strategy fails.
    given_to_nobody = frozenset(
        queue for queue, ids in view.ownership.shares.items() if not ids and not twins
    )
    ignored = [
        queue
        for queue, connections in view.ownership.falls_to.items()
        if (connections or is_unknown or queue in given_to_nobody)
        and queue not in in_hand
        and view.is_user_queue(queue)
        # One of several processes with an id reports; the others may have the queue.
        and twins.keys().isdisjoint(c.client_id for c in connections)
    ]
    if not ignored:
        return
    is_unknown = is_unknown or not given_to_nobody.isdisjoint(ignored)
    yield Finding(
        rule="R10",
        severity=Severity.ERROR,
        title=Phrase("no member consumes {queues}", queues=count_of(len(ignored), "queue"))
        if is_unknown
        else Phrase(
            "no member has taken {queues} of its share",
            queues=count_of(len(ignored), "queue"),
        ),
        evidence=(
            Phrase(
                "by strategy {name} no member has {queues} in hand",
                name=view.snapshot.strategy,
                queues=describe_queues(ignored),
            ),
        )
        if is_unknown
        else tuple(
            Phrase(
                "{queue} falls to {ids}",
                queue=describe_queues([queue]),
                ids=", ".join(sorted({s.client_id for s in view.ownership.falls_to[queue]})),
            )
            for queue in ignored
        ),
        consequence=Phrase(
            "nobody consumes these queues: {backlog}", backlog=view.describe_backlog(ignored)
        ),
        remedy=(
            "compare the settings of the members' strategy (a list of queues or rooms that leaves "
            "these out), and search the members' log for errors of the strategy"
        )
        if is_unknown
        else (
            "members learn of new queues within 30 s and take them within 20 s more; "
            "restart members that do not (older Go clients never refresh their routes), and "
            "check that all members use the same strategy"
        ),
        unowned=tuple(ignored),
    )


def find_backlog_to_be_skipped(view: GroupView) -> Iterator[Finding]:
    """R11: a group that starts at the end has messages in queues without a committed offset."""
    start = {broker.consume_from_where for broker in view.snapshot.last.brokers}
    if not start & _LAST_OFFSETS or view.snapshot.is_broadcasting:
        return
    first = {progress.queue: progress for progress in view.snapshot.first.progress}
    known = view.progress
    topics_under_way = {p.queue.topic for p in known.values() if p.committed_offset}
    new = [
        queue
        for queue, progress in known.items()
        if not progress.committed_offset
        and queue in first
        and first[queue].max_offset > 0
        and queue.topic in topics_under_way
        and view.is_user_queue(queue)
    ]
    if not new:
        return
    yield Finding(
        rule="R11",
        severity=Severity.WARN,
        title=Phrase(
            "the group has no committed offset in {queues} with messages",
            queues=count_of(len(new), "queue"),
        ),
        evidence=(
            describe_queues(new),
            Phrase(
                "the group starts with {names}",
                names=", ".join(sorted(start & _LAST_OFFSETS)),
            ),
        ),
        consequence=Phrase(
            "a member that takes such a queue may begin at its end: {messages} would never "
            "be consumed",
            messages=count_of(view.lag(new), "message"),
        ),
        remedy=(
            "before adding queues or brokers, start the group with "
            "CONSUME_FROM_FIRST_OFFSET (the setting applies only to queues without a "
            "committed offset), or commit offset 0 for the new queues"
        ),
    )


def find_broadcast_offsets(view: GroupView) -> Iterator[Finding]:
    """R21: the members of a broadcasting group keep their offsets themselves."""
    if not view.snapshot.is_broadcasting:
        return
    yield Finding(
        rule="R21",
        severity=Severity.INFO,
        title=Phrase("the group is BROADCASTING: every member reads every queue"),
        evidence=(count_of(len(view.ownership.connections), "connection"),),
        consequence=Phrase(
            "each member keeps its offsets in a file under its client id, so no broker "
            "knows the member's progress; without the file the member starts anew"
        ),
        remedy="keep the instance name and the file where they survive a restart",
    )


def find_unlocked_queues(view: GroupView) -> Iterator[Finding]:
    """R22: an ordered consumer waits for the lock of a queue."""
    waiting = {
        held.queue: report.client_id
        for report in view.snapshot.reports
        if report.is_orderly
        for held in report.held
        if not held.is_locked
        and not held.is_dropped
        and view.lag([held.queue])
        and not _is_changing_hands(view, report.client_id, held)
    }
    if not waiting or view.snapshot.is_broadcasting:
        return
    yield Finding(
        rule="R22",
        severity=Severity.WARN,
        title=Phrase(
            "ordered consumers hold no lock on {queues}", queues=count_of(len(waiting), "queue")
        ),
        evidence=tuple(
            Phrase("{queue} at {id}", queue=describe_queues([q]), id=owner)
            for q, owner in waiting.items()
        ),
        consequence=Phrase(
            "{backlog}: an ordered consumer reads nothing without the broker's lock; the "
            "lock of a dead owner lasts up to 60 s, and Java clients up to 4.9.4 notice a "
            "new lock up to 20 s late",
            backlog=view.describe_backlog(waiting),
        ),
        remedy="look again in a minute; if the finding stays, check which other member "
        "holds the queue (R01, R13)",
        members=tuple(dict.fromkeys(waiting.values())),
    )


def _is_changing_hands(view: GroupView, client_id: str, held: HeldQueue) -> bool:
    """Return whether a member that waits for a queue is about to get it."""
    if any(
        each.queue == held.queue
        for report in view.snapshot.reports
        for each in report.held
        if report.client_id != client_id
    ):
        return True
    rate = view.rates.get(held.queue)
    return not held.is_consumed and (rate is None or not rate.stood_still)


def find_ordered_broadcast(view: GroupView) -> Iterator[Finding]:
    """R25: Java's ordered consumers lock each queue even where every member reads every queue."""
    java = {c.client_id for c in view.ownership.connections if c.language == "JAVA"}
    ordered = sorted(r.client_id for r in view.snapshot.reports if r.is_orderly)
    found = [client_id for client_id in ordered if client_id in java]
    if not view.snapshot.is_broadcasting or not found:
        return
    yield Finding(
        rule="R25",
        severity=Severity.ERROR,
        title=Phrase("a BROADCASTING group uses an ordered listener"),
        evidence=tuple(Phrase("{id} consumes in order", id=client_id) for client_id in found),
        consequence=Phrase(
            "Java clients request the broker's lock on each queue, which one member at a "
            "time holds, and may never read a queue that they did not lock: messages reach "
            "some members only, or none"
        ),
        remedy="use a concurrent listener, or give each member its own group (CLUSTERING)",
        members=tuple(found),
    )


def find_pop_consumers(view: GroupView) -> Iterator[Finding]:
    """R32: the group consumes by message, so that no queue has an owner."""
    if not view.ownership.is_by_message:
        return
    if not view.snapshot.reports_pops:
        yield Finding(
            rule="R32",
            severity=Severity.INFO,
            title=Phrase("offsets move, and no member is connected: no queue has an owner"),
            evidence=(
                Phrase("{messages} behind", messages=count_of(view.lag(), "message")),
                Phrase(
                    "neither consumers that pop from RocketMQ's brokers nor Spark's queries with "
                    "commitOffsets are listed"
                ),
            ),
            consequence=Phrase("whoever commits these offsets consumes; brokers do not know who"),
            remedy="",
        )
        return
    members = count_of(len(view.ownership.connections), "member")
    yield Finding(
        rule="R32",
        severity=Severity.INFO,
        title=Phrase("the group consumes by message: no queue has an owner"),
        evidence=(
            *_describe_flights(view, view.lag()),
            Phrase("{members} listed; consumers that only pop are not listed", members=members),
        ),
        consequence=Phrase(
            "any number of consumers share every queue, and none waits for another; a message "
            "that is not acknowledged in its time comes again"
        ),
        remedy="",
    )


def _describe_flights(view: GroupView, lag: int) -> Iterator[Phrase]:
    """Describe the messages in flight; only SparrowMQ's brokers report them."""
    flying = view.in_flight
    if flying is None:
        yield Phrase(
            "{messages} behind; the broker does not report how many of them are in flight",
            messages=count_of(lag, "message"),
        )
        return
    yield Phrase(
        "{flying} in flight, {left} not given out yet",
        flying=count_of(flying, "message"),
        left=count_of(max(0, lag - flying), "message"),
    )
    last = view.snapshot.last
    if (oldest := view.oldest_in_flight) is not None:
        queue, age_ms = oldest
        yield Phrase(
            "the oldest of them, in {queue}, was stored {duration} ago",
            queue=describe_queues([queue]),
            duration=format_duration(age_ms),
        )
    until_ms = max((each.visible_timestamp_ms for each in last.progress), default=0)
    deliveries = max((each.deliveries for each in last.progress), default=0)
    if until_ms > last.timestamp_ms:
        left = format_duration(until_ms - last.timestamp_ms)
        yield Phrase("invisible to others for at most {duration} more", duration=left)
    elif until_ms:
        yield Phrase("their time is over: the next consumer gets them")
    if deliveries > 1:
        yield Phrase("one of them was delivered {n} times", n=f"{deliveries:,}")
    if view.renewals:
        yield Phrase("their times were extended {n} times", n=f"{view.renewals:,}")


def find_unacknowledged(view: GroupView) -> Iterator[Finding]:
    """Q21: consumers by message get messages again and again, and acknowledge none.

    One message that fails does not count while the messages behind it are acknowledged.
    """
    last = view.snapshot.last
    popped = {broker.broker_name for broker in last.brokers if broker.is_popped}
    found = [
        progress
        for progress in last.progress
        if progress.queue.broker_name in popped
        and progress.deliveries >= DELIVERIES_MIN
        and progress.acknowledged < progress.in_flight
        and (rate := view.rates.get(progress.queue)) is not None
        and rate.stood_still
    ]
    if not found:
        return
    yield Finding(
        rule="Q21",
        severity=Severity.WARN,
        title=Phrase("messages come again and again, and no consumer acknowledges them"),
        evidence=(
            *(
                Phrase(
                    "{queue}: {flying} in flight, one of them delivered {n} times",
                    queue=describe_queues([each.queue]),
                    flying=count_of(each.in_flight, "message"),
                    n=f"{each.deliveries:,}",
                )
                for each in found
            ),
            Phrase("none was acknowledged within {time}", time=view.describe_interval()),
        ),
        consequence=Phrase(
            "each message is worked on again until the group's limit of attempts, and then "
            "becomes a dead letter"
        ),
        remedy=(
            "a consumer must acknowledge each message (`ack`) once it is done, and before its time "
            "is over: give it a longer time, or extend it (`change_invisible`); if the work fails, "
            "search the consumers' log for the error"
        ),
        commands=tuple(
            commands_past(view.snapshot.group, each.queue, each.committed_offset or 0)[0]
            for each in found[:QUEUES_SHOWN_MAX]
        ),
    )


def find_expired(view: GroupView) -> Iterator[Finding]:
    """Q22: brokers have removed messages that the group had not consumed."""
    lost = [
        progress
        for progress in view.snapshot.last.progress
        if progress.expired
        and not progress.in_flight
        # A member may have read them before.
        and not any(held.cached_count for held in view.held.get(progress.queue, ()))
    ]
    if not lost or view.snapshot.is_broadcasting:
        return
    yield Finding(
        rule="Q22",
        severity=Severity.WARN,
        title=Phrase("messages expired before the group consumed them"),
        evidence=tuple(
            Phrase(
                "{queue}: {messages} from offset {offset} on",
                queue=describe_queues([each.queue]),
                messages=count_of(each.expired, "message"),
                offset=f"{each.committed_offset or 0:,}",
            )
            for each in lost
        ),
        consequence=Phrase(
            "the group never gets these messages, which its lag still counts; it goes on at the "
            "first ones that brokers keep"
        ),
        remedy=(
            "keep messages for longer than the group may stand still (--retention-hours; Apache: "
            "fileReservedTime), on a disk with room for them: a full one loses its oldest messages "
            "early"
        ),
    )


def find_surplus_queues(view: GroupView) -> Iterator[Finding]:
    """Q01: readQueueNums < writeQueueNums: messages go into queues that nobody reads."""
    for topic in view.snapshot.topics:
        surplus = [
            MessageQueue(topic.topic, at.broker_name, queue_id)
            for at in topic.queues
            if at.is_writable
            for queue_id in range(at.read_count, at.write_count)
        ]
        if not surplus:
            continue
        stored = sum(count for _, count in topic.surplus_offsets)
        yield Finding(
            rule="Q01",
            severity=Severity.ERROR,
            title=Phrase(
                "topic {topic} accepts messages in queues that no member may read",
                topic=topic.topic,
            ),
            evidence=tuple(
                f"{at.broker_name}: readQueueNums {at.read_count}, writeQueueNums {at.write_count}"
                for at in topic.queues
                if at.read_count < at.write_count
            ),
            consequence=Phrase(
                "no member ever gets {queues}; stored there: {messages}",
                queues=describe_queues(surplus),
                messages=count_of(stored, "message"),
            ),
            remedy=(
                "raise readQueueNums to writeQueueNums; to shrink a topic, lower "
                "writeQueueNums first, and lower readQueueNums once members have consumed "
                "those queues"
            ),
            commands=(_command_to_read(topic, max(at.write_count for at in topic.queues)),),
            unowned=tuple(surplus),
        )


def find_abandoned_queues(view: GroupView) -> Iterator[Finding]:
    """Q23: a topic got fewer queues while the group had messages in those that are gone."""
    for topic in view.snapshot.topics:
        counts = {at.broker_name: max(at.read_count, at.write_count) for at in topic.queues}
        left = [
            queue
            for queue in view.progress
            if queue.topic == topic.topic
            and queue.queue_id >= counts.get(queue.broker_name, queue.queue_id + 1)
            and view.lag([queue])
        ]
        if not left:
            continue
        yield Finding(
            rule="Q23",
            severity=Severity.ERROR,
            title=Phrase(
                "topic {topic} hides queues with messages of the group", topic=topic.topic
            ),
            evidence=tuple(
                Phrase(
                    "{queue}: {messages} from offset {offset} on",
                    queue=describe_queues([queue]),
                    messages=count_of(view.lag([queue]), "message"),
                    offset=f"{view.progress[queue].committed_offset or 0:,}",
                )
                for queue in left
            ),
            consequence=Phrase(
                "the topic has fewer queues than before, and no member gets {queues}; the messages "
                "expire there",
                queues=describe_queues(left),
            ),
            remedy=(
                "raise readQueueNums so that members get these queues again, and lower it once "
                "they have consumed them"
            ),
            commands=(_command_to_read(topic, max(queue.queue_id for queue in left) + 1),),
            unowned=tuple(left),
        )


def _command_to_read(topic: TopicSnapshot, count: int) -> NextCommand:
    """Return what lets members read so many queues, and no fewer of a broker that has more."""
    most = max(count, *(at.read_count for at in topic.queues))
    update = ("topic", "update", topic.topic, "--read-queues", str(most))
    return NextCommand(Phrase("raise"), update)


def find_closed_topics(view: GroupView) -> Iterator[Finding]:
    """Q02: no name server knows a topic, or a broker lets nobody read it, or nobody write it."""
    for topic in view.snapshot.user_topics:
        if not topic.queues:
            yield Finding(
                rule="Q02",
                severity=Severity.ERROR,
                title=Phrase(
                    "no name server knows topic {topic}, which the group subscribes",
                    topic=topic.topic,
                ),
                consequence=Phrase("no message of the topic is consumed"),
                remedy="create the topic, or correct its name or the name server's address",
            )
        shut = [at for at in topic.queues if not at.is_readable]
        if shut:
            yield Finding(
                rule="Q02",
                severity=Severity.ERROR,
                title=Phrase(
                    "some brokers do not let members read topic {topic}", topic=topic.topic
                ),
                evidence=tuple(
                    Phrase("{broker} gives no read permission", broker=at.broker_name)
                    for at in shut
                ),
                consequence=Phrase(
                    "no member gets the topic's queues at these brokers, even if they hold messages"
                ),
                remedy="set the topic's permission to 6 (read and write) at these brokers",
                commands=(command_to_permit(topic.topic),),
            )
        yield from _find_unwritable(topic)


def _find_unwritable(topic: TopicSnapshot) -> Iterator[Finding]:
    closed = [at for at in topic.queues if not at.is_writable and at.is_readable]
    if not closed:
        return
    is_whole = len(closed) == len(topic.queues)
    yield Finding(
        rule="Q02",
        severity=Severity.WARN if is_whole else Severity.INFO,
        title=Phrase("no broker accepts messages for topic {topic}", topic=topic.topic)
        if is_whole
        else Phrase("some brokers accept no message for topic {topic}", topic=topic.topic),
        evidence=tuple(
            Phrase("{broker} gives no write permission", broker=at.broker_name) for at in closed
        ),
        consequence=Phrase(
            "producers cannot send to these brokers; members consume what is stored there"
        ),
        remedy="set the topic's permission to 6 (read and write) at these brokers, unless "
        "they are to be taken out of service",
        commands=(command_to_permit(topic.topic),),
    )


def command_to_permit(topic: str) -> NextCommand:
    """Return what lets everybody write and read a topic."""
    return NextCommand(Phrase("permit"), ("topic", "update", topic, "--perm", "rw"))


def find_closed_retries(view: GroupView) -> Iterator[Finding]:
    """Q19: a broker lets nobody write, or nobody read, the topic of failed messages."""
    topic = view.snapshot.find_topic(retry_topic(view.snapshot.group))
    queues = () if topic is None else topic.queues
    closed = [at for at in queues if not (at.is_readable and at.is_writable)]
    if not closed:
        return
    cannot_send = any(not at.is_writable for at in closed)
    yield Finding(
        rule="Q19",
        severity=Severity.ERROR,
        title=Phrase("brokers take no failed message back")
        if cannot_send
        else Phrase("brokers keep failed messages back"),
        evidence=tuple(
            Phrase("{broker} gives no write permission", broker=at.broker_name)
            if not at.is_writable
            else Phrase("{broker} gives no read permission", broker=at.broker_name)
            for at in closed
        ),
        consequence=Phrase(
            "a message that fails is consumed again and again where it is, and no commit passes it"
        )
        if cannot_send
        else Phrase("a message that failed once never comes again"),
        remedy=f"set the permission of topic {retry_topic(view.snapshot.group)} to 6 (read and "
        "write)",
        commands=(command_to_permit(retry_topic(view.snapshot.group)),),
    )


def find_unreachable_brokers(view: GroupView) -> list[Finding]:
    """Q03: a broker does not answer, or denies access, so its report is missing."""
    return [
        Finding(
            rule="Q03",
            severity=Severity.WARN if broker.is_denied else Severity.ERROR,
            title=Phrase("broker {broker} denies access to the group", broker=broker.broker_name)
            if broker.is_denied
            else Phrase("broker {broker} does not answer", broker=broker.broker_name),
            evidence=(f"{broker.address}: {broker.failure}",),
            consequence=Phrase("what is wrong at this broker is not seen")
            if broker.is_denied
            else Phrase("if members cannot reach the broker either, its queues stand still"),
            remedy="have an administrator allow the group to your access key at this broker"
            if broker.is_denied
            else "check whether the broker runs and answers at the address that it registered",
        )
        for broker in view.snapshot.last.brokers
        if broker.failure
    ]


def find_hidden_dead_letters(view: GroupView) -> Iterator[Finding]:
    """Q25: access control hides the group's dead letters from who looks."""
    brokers = [b.broker_name for b in view.snapshot.last.brokers if b.dead_letters is None]
    if not brokers:
        return
    topic = dlq_topic(view.snapshot.group)
    yield Finding(
        rule="Q25",
        severity=Severity.INFO,
        title=Phrase(
            "the group's dead letters are hidden at {brokers}",
            brokers=count_of(len(brokers), "broker"),
        ),
        evidence=tuple(
            Phrase("{broker} denies access to {topic}", broker=name, topic=topic)
            for name in brokers
        ),
        consequence=Phrase("whether messages become dead letters is not seen"),
        remedy=f"have an administrator allow topic {topic} to your access key",
    )


def find_disabled_group(view: GroupView) -> Iterator[Finding]:
    """Q16: brokers give the group no messages, as its settings say."""
    brokers = [b.broker_name for b in view.snapshot.last.brokers if b.is_disabled]
    if not brokers:
        return
    queues = [queue for queue in view.user_queues if queue.broker_name in brokers]
    yield Finding(
        rule="Q16",
        severity=Severity.ERROR,
        title=Phrase(
            "the group is disabled at {brokers}", brokers=count_of(len(brokers), "broker")
        ),
        evidence=tuple(Phrase("{broker}: consumeEnable is false", broker=name) for name in brokers),
        consequence=Phrase(
            "members are connected, and these brokers refuse their pulls: {backlog}"
            if view.ownership.connections
            else "these brokers give messages to nobody of the group: {backlog}",
            backlog=view.describe_backlog(queues),
        ),
        remedy="enable the group again; brokers list who changed its settings",
        commands=(
            NextCommand(Phrase("show"), ("group", "show", view.snapshot.group)),
            NextCommand(Phrase("enable"), ("group", "update", view.snapshot.group, "--enable")),
        ),
        unowned=tuple(queues),
    )


def find_refused_filters(view: GroupView) -> Iterator[Finding]:
    """Q18: brokers refuse the group's SQL92 expression, and so every pull."""
    refusing = [broker for broker in view.snapshot.last.brokers if broker.refused_filter]
    if not refusing:
        return
    names = {broker.broker_name for broker in refusing}
    queues = [queue for queue in view.user_queues if queue.broker_name in names]
    yield Finding(
        rule="Q18",
        severity=Severity.ERROR,
        title=Phrase(
            "{brokers} refuse the group's SQL92 expression",
            brokers=count_of(len(refusing), "broker"),
        ),
        evidence=tuple(f"{b.broker_name}: {b.refused_filter}" for b in refusing),
        consequence=Phrase(
            "members are connected, and these brokers refuse their pulls: {backlog}",
            backlog=view.describe_backlog(queues),
        ),
        remedy="Apache's brokers filter by SQL92 once enablePropertyFilter is set; otherwise "
        "subscribe by tags",
        commands=tuple(
            NextCommand(Phrase("permit"), ("broker", "config", name, "enablePropertyFilter=true"))
            for name in sorted(names)
        ),
        unowned=tuple(queues),
    )


def find_unmatched_subscriptions(view: GroupView) -> Iterator[Finding]:
    """Q17: messages arrive, and the group's filter matches none of them."""
    if not _all_report(view):
        return
    reports = view.snapshot.reports
    for topic in view.snapshot.user_topics:
        said = sorted(
            {s.expression for r in reports for s in r.subscriptions if s.topic == topic.topic}
        )
        held = [h for report in reports for h in report.held if h.queue.topic == topic.topic]
        # By the member's own clock, which its last pull shows.
        gets_some = any(
            h.cached_count
            or h.last_consume_timestamp_ms
            > (h.last_pull_timestamp_ms or view.timestamp_ms) - UNMATCHED_MS
            for h in held
        )
        flow = view.flow(topic.subscribe_queues)
        came = 0 if flow is None else round(flow.produced_per_s * view.snapshot.interval_ms / 1000)
        if came < UNMATCHED_MIN or not held or gets_some or topic.topic not in view.filtered:
            continue
        yield Finding(
            rule="Q17",
            severity=Severity.INFO,
            title=Phrase("no message of topic {topic} matches", topic=topic.topic),
            evidence=(
                Phrase(
                    "{expressions} matched 0 of {messages} that came within {time}",
                    expressions=", ".join(said),
                    messages=count_of(came, "message"),
                    time=view.describe_interval(),
                ),
            ),
            consequence=Phrase(
                "members pass over these messages, and their listeners got none in the last "
                "minute either"
            ),
            remedy=(
                "unless such messages are rare, compare the expression with the tags and "
                "properties that producers set (`sparrowmq msg at` shows a message's)"
            ),
        )


def find_group_without_members(view: GroupView) -> Iterator[Finding]:
    """Q04: no member is connected, and nobody consumes by message."""
    brokers = view.snapshot.last.brokers
    if any(member_ids(broker) or broker.is_popped for broker in brokers):
        return
    queues = list(view.progress)
    answering = {broker.broker_name for broker in brokers if broker.cid_all is not None}
    if len(answering) < len(brokers) and answering.isdisjoint(q.broker_name for q in queues):
        # The group may consume at the brokers that do not answer alone.
        return
    if view.ownership.is_by_message and not view.in_flight:
        # The offsets move.
        return
    waiting = view.snapshot.last.waiting_retries
    yield Finding(
        rule="Q04",
        severity=Severity.ERROR if view.lag(queues) or waiting.message_count else Severity.WARN,
        title=Phrase("no member of this group is connected"),
        evidence=(Phrase("asked {brokers}", brokers=count_of(len(answering), "broker")),),
        consequence=(
            Phrase("nothing is consumed: {backlog}", backlog=view.describe_backlog(queues))
            if view.lag(queues)
            else Phrase("nobody will consume failed messages that come again, nor new messages")
            if waiting.message_count
            else Phrase("all stored messages are consumed; nobody consumes new messages")
            if queues
            else Phrase("nobody consumes; brokers know no offset of the group")
        ),
        remedy="start the group's consumers; if they run, check their name server address "
        "and group name; a query of Spark with commitOffsets is never a member: look at the query",
        unowned=tuple(queues),
    )


def find_unknown_strategy(view: GroupView) -> Iterator[Finding]:
    """Q05: the strategy's name alone does not determine the owners."""
    if view.snapshot.is_broadcasting or find_named(view.snapshot.strategy) is not None:
        return
    yield Finding(
        rule="Q05",
        severity=Severity.INFO,
        title=Phrase(
            "strategy {name} depends on settings that no member reports",
            name=view.snapshot.strategy,
        ),
        consequence=Phrase("owners are known only for members that report their queues"),
        remedy="compare the settings of all members by hand",
    )


def _all_report(view: GroupView) -> bool:
    ids = {c.client_id for c in view.ownership.connections}
    return bool(ids) and all(view.snapshot.find_report(client_id) for client_id in ids)

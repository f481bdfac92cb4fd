"""Q06 ... Q08, Q10, Q12, Q13, Q20, Q24: faults of consumption while all queues have owners. Pure.

The rebalance does not cause these faults; they cause most backlogs.
Tests: test_diagnosis_queues.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from sparrowmq.doctor.finding import (
    QUEUES_SHOWN_MAX,
    SKIP_REMEDY,
    Finding,
    NextCommand,
    Severity,
    command_for_members,
    commands_past,
    describe_queues,
)
from sparrowmq.doctor.group_snapshot import (
    LETTER_IS_NEW_MS,
    LETTERS_READ_MAX,
    MemberReport,
    ProgressChange,
    Sample,
    TopicPace,
    WaitingRetries,
)
from sparrowmq.doctor.group_view import COMMITTED_S, Flow, GroupView, describe_rates
from sparrowmq.doctor.load_rules import find_crowded_queues, relief_of
from sparrowmq.doctor.membership_rules import all_loads, user_loads
from sparrowmq.model import MessageQueue
from sparrowmq.words import Phrase, count_of, format_duration, format_rate

# A member with fewer messages does not count as behind: messages are always under way.
BEHIND_MIN = 100
# A member that consumes its backlog in this time does not count as behind either.
BEHIND_S_MIN = 10
# What came in so long may wait for the next commit of a program that commits by hand.
UNCOMMITTED_S = 60
# A backlog that takes longer to consume earns a warning although it shrinks.
DRAIN_S_MAX = 3_600
# A listener that takes longer for a message limits its group.
LISTENER_MS_MAX = 1_000
# A call that lasts longer may hang; where brokers know no offset, only the call shows it.
HANGING_MS_MIN = 10_000
_LISTENER_REMEDY = (
    "find out what the listener waits for (a database, a remote call, a lock) and set a time-out "
    "there; more threads help a listener that waits, not a listener that computes"
)
# From this share of failed messages on, listeners fail too often; fewer messages might be chance.
FAILED_SHARE_MIN, FAILED_COUNT_MIN = 0.1, 5
# A message that waits for its next attempt and has failed so often did not fail by chance.
FAILED_TIMES_MIN = 3
# Members report how often listeners failed over about so long.
_REPORTED_S = 60
# A change of offsets by hand counts as new for so long.
MOVE_IS_NEW_MS = 600_000


def find_standstill(view: GroupView) -> Iterator[Finding]:
    """Q06: the group has members and messages, and none of its offsets moves."""
    queues = _owned_backlog(view)
    old = [queue for queue in queues if not view.has_only_new(queue)]
    moves = any(rate.consumed_per_s for rate in view.rates.values())
    if not old or moves or not all(view.stands_still(queue) for queue in old):
        return
    if 2 * view.lag(old) <= view.lag(queues) or view.may_be_in_calls(view.user_queues):
        # Members may have consumed it all and not committed it yet.
        return
    owners = sorted({s.client_id for queue in queues for s in view.ownership.falls_to[queue]})
    silent = {report.client_id for report in view.snapshot.reports if report.is_silent}
    if silent.issuperset(owners):
        # R28 reports each member that does not answer.
        return
    yield Finding(
        rule="Q06",
        severity=Severity.ERROR,
        title=Phrase("the group consumes nothing, though every member is connected"),
        evidence=(
            Phrase("no offset moved within {time}", time=view.describe_interval()),
            *(_describe_hands(view, client_id) for client_id in owners),
        ),
        consequence=Phrase(
            "{queue}: {state}",
            queue=describe_queues(queues),
            state=view.describe_backlog(queues),
        ),
        remedy=(
            "a member with messages in hand waits for its listener: check its threads and "
            "the services that the listener calls (a database that is down), or whether the "
            "program of a consumer that polls still polls; a member without messages in hand "
            "does not pull: check whether the member is suspended, and search its log for "
            "refusals by the broker"
        ),
        commands=_commands_at_work(view, queues),
        members=tuple(owners),
    )


def find_uncommitted(view: GroupView) -> Iterator[Finding]:
    """Q20: members consume, and do not commit what they have consumed."""
    found: dict[str, list[MessageQueue]] = {}
    for client_id, queues in user_loads(view).items():
        mine = [q for q in queues if (rate := view.rates.get(q)) and rate.stood_still]
        flow = view.flow(mine)
        count = sum(map(view.uncommitted, mine))
        # Who commits by hand may do so once a minute.
        if flow and count >= max(BEHIND_MIN, UNCOMMITTED_S * flow.produced_per_s):
            found[client_id] = mine
    if not found or view.snapshot.is_broadcasting:
        return
    queues = [queue for mine in found.values() for queue in mine]
    messages = count_of(sum(map(view.uncommitted, queues)), "message")
    yield Finding(
        rule="Q20",
        severity=Severity.WARN,
        title=Phrase("members do not commit what they consume"),
        evidence=tuple(
            Phrase(
                "{id} has consumed {messages} more than the broker knows",
                id=client_id,
                messages=count_of(sum(map(view.uncommitted, mine)), "message"),
            )
            for client_id, mine in found.items()
        ),
        consequence=Phrase(
            "{queues}: {messages} come again when a queue changes hands or a member restarts, "
            "and the backlog seems to grow",
            queues=describe_queues(queues),
            messages=messages,
        ),
        remedy=(
            "with auto_commit=False the program must call `commit` (a Java lite pull consumer: "
            "`commitSync`); else search the members' log for commits that brokers refuse"
        ),
        members=tuple(found),
    )


def find_slow_members(view: GroupView) -> Iterator[Finding]:
    """Q07: members consume more slowly than messages arrive, or still have a backlog."""
    loads = _consumed_loads(view)
    paces = {client_id: _pace(view, mine) for client_id, mine in loads.items()}
    busy = [client_id for client_id, mine in loads.items() if mine]
    behind = {
        client_id: pace
        for client_id, pace in paces.items()
        if pace is not None and _is_behind(pace, is_late=view.is_late(loads[client_id]))
    }
    if not behind or view.snapshot.is_broadcasting:
        return
    produced = sum(pace.produced_per_s for pace in behind.values())
    consumed = sum(pace.consumed_per_s for pace in behind.values())
    lag = sum(pace.lag for pace in behind.values())
    growth = produced - consumed
    shrinks = growth < -0.05 * consumed
    is_soon_done = shrinks and lag <= -growth * DRAIN_S_MAX
    if growth > 0.05 * consumed:
        what = Phrase("messages arrive faster than they are consumed")
        means = Phrase(
            "the backlog grows by {messages} every hour",
            messages=count_of(round(growth * 3600), "message"),
        )
    elif shrinks:
        what = Phrase("the backlog is shrinking")
        means = Phrase(
            "at this pace the members catch up in {time}",
            time=format_duration(1000 * lag / -growth),
        )
    else:
        what = Phrase("the backlog does not shrink")
        means = Phrase("the backlog does not change")
    yield Finding(
        rule="Q07",
        severity=Severity.INFO if is_soon_done else Severity.WARN,
        title=Phrase(
            "{n} of {members}: {what}",
            what=what,
            n=f"{len(behind)}",
            members=count_of(len(paces), "member"),
        ),
        # R14 reports the members without a queue.
        evidence=tuple(_describe_pace(view, c, paces[c]) for c in busy),
        consequence=Phrase(
            "{messages} behind: {means}", messages=count_of(lag, "message"), means=means
        ),
        remedy=_pace_remedy(view, sorted(behind), are_all=len(behind) == len(busy)),
        commands=(command_for_members(view.snapshot.group),),
        members=tuple(behind),
    )


def find_failing_listeners(view: GroupView) -> Iterator[Finding]:
    """Q13: listeners fail; the messages come again, or have become dead letters."""
    paces = {
        report.client_id: (
            sum(pace.done_per_s for pace in report.paces),
            sum(pace.failed_per_s for pace in report.paces),
        )
        for report in view.snapshot.reports
    }
    failed = sum(failed for _, failed in paces.values())
    share = failed / (sum(done for done, _ in paces.values()) + failed) if failed else 0.0
    fails_often = share >= FAILED_SHARE_MIN and failed * _REPORTED_S >= FAILED_COUNT_MIN
    now, dead = view.snapshot.last.dead_letters, _count_new_letters(view)
    age_ms = view.snapshot.last.timestamp_ms - now.last_timestamp_ms
    is_new = bool(now.message_count) and age_ms <= LETTER_IS_NEW_MS
    failing = {client_id: pace for client_id, pace in paces.items() if pace[1]}
    # In order one message that fails stops its queue, however many succeed in others.
    stopped = _stopped_in_order(view, failing)
    if not (fails_often or stopped or dead > 0 or is_new):
        return
    # In order a message is repeated in the member's hands.
    is_orderly = any(report.is_orderly for report in view.snapshot.reports)
    is_given_up = view.snapshot.is_broadcasting and not is_orderly
    per_s = dead / (view.snapshot.interval_ms / 1000) if dead > 0 else 0.0
    yield Finding(
        rule="Q13",
        severity=Severity.ERROR if dead > 0 or stopped else Severity.WARN,
        title=Phrase("messages become dead letters: {rate} a second", rate=format_rate(per_s))
        if dead > 0
        else Phrase("messages became dead letters a short time ago")
        if is_new
        else Phrase(
            "the listener fails, and in order {queues} stopped",
            queues=count_of(len(stopped), "queue"),
        )
        if stopped
        else Phrase("listeners fail for {share} of the messages", share=f"{share:.0%}"),
        evidence=_failure_evidence(view, failing, stopped),
        consequence=Phrase("nobody consumes a dead letter; brokers keep it until it expires")
        if dead > 0 or is_new
        else _failure_consequence(view, stopped, is_given_up=is_given_up),
        remedy="find out why listeners fail (their log names the error of each message)"
        + (
            ", and whether consumers acknowledge each message in its time; "
            if view.ownership.is_by_message
            else "; "
        )
        + (
            SKIP_REMEDY
            if stopped
            else "once the cause is mended, send the messages again"
            if is_given_up
            else "once the cause is mended, send the dead letters again"
        ),
        commands=tuple(_commands_after_failures(view, stopped)),
        members=tuple(sorted(failing)),
    )


def find_waiting_retries(view: GroupView) -> Iterator[Finding]:
    """Q24: messages have failed and wait for their next attempt, where no lag counts them."""
    last = view.snapshot.last
    if not last.waiting_retries.message_count:
        return
    failed_times = last.waiting_retries.failed_times
    yield Finding(
        rule="Q24",
        severity=Severity.WARN if failed_times >= FAILED_TIMES_MIN else Severity.INFO,
        title=Phrase(
            "failed messages wait for their next attempt: {messages}",
            messages=_describe_waiting(last.waiting_retries),
        ),
        evidence=tuple(
            Phrase(
                "{broker}: {messages}; failed attempts so far: up to {n}",
                broker=broker.broker_name,
                messages=_describe_waiting(broker.waiting_retries),
                n=f"{broker.waiting_retries.failed_times:,}",
            )
            for broker in last.brokers
            if broker.waiting_retries.message_count
        ),
        consequence=Phrase(
            "no lag counts these messages; each comes again when its delay is over, of at most "
            "2 hours by default, until the group's limit of retries, and then becomes a dead letter"
        ),
        remedy="find out why listeners fail (their log names the error of each message)",
    )


def _describe_waiting(retries: WaitingRetries) -> Phrase:
    """Describe how many failed messages wait for their next attempt."""
    messages = count_of(retries.message_count, "message")
    return Phrase("about {messages}", messages=messages) if retries.is_estimate else messages


def _count_new_letters(view: GroupView) -> int:
    """Return the dead letters that came between the samples, at brokers that answered both."""
    before, now = (
        {
            broker.broker_name: broker.dead_letters.message_count
            for broker in sample.brokers
            if not broker.failure and broker.dead_letters is not None
        }
        for sample in (view.snapshot.first, view.snapshot.last)
    )
    return sum(max(0, now[name] - before[name]) for name in now.keys() & before.keys())


def _failure_consequence(
    view: GroupView, stopped: Sequence[MessageQueue], *, is_given_up: bool
) -> Phrase:
    """Return what becomes of messages that fail, while none has become a dead letter."""
    if stopped:
        return Phrase(
            "in order, a queue waits until its message succeeds: {backlog}",
            backlog=view.describe_backlog(stopped),
        )
    if is_given_up:
        return Phrase(
            "in BROADCASTING a failed message does not come again: its member goes on without it"
        )
    return Phrase(
        "a failed message comes again until the group's limit of retries, and then becomes "
        "a dead letter; every attempt takes a listener's time"
    )


def _commands_after_failures(
    view: GroupView, stopped: Sequence[MessageQueue]
) -> Iterator[NextCommand]:
    group = view.snapshot.group
    for queue in stopped[:QUEUES_SHOWN_MAX]:
        yield from commands_past(group, queue, view.offset_of(queue))
    if count := view.snapshot.last.dead_letters.message_count:
        yield NextCommand(Phrase("show"), ("dlq", "show", group))
        last = str(min(count, LETTERS_READ_MAX))
        yield NextCommand(Phrase("resend"), ("dlq", "resend", group, "--last", last))


def _failure_evidence(
    view: GroupView, failing: Mapping[str, tuple[float, float]], stopped: Iterable[MessageQueue]
) -> tuple[Phrase, ...]:
    evidence = [
        Phrase(
            "{id}: the listener fails for {failed} messages a second and succeeds for {done}",
            id=client_id,
            failed=format_rate(failed),
            done=format_rate(done),
        )
        for client_id, (done, failed) in failing.items()
    ]
    letters = view.snapshot.last.dead_letters
    if letters.message_count:
        age = format_duration(view.snapshot.last.timestamp_ms - letters.last_timestamp_ms)
        count = count_of(letters.message_count, "message")
        evidence.append(
            Phrase("dead letters: {messages}, the last {time} ago", messages=count, time=age)
        )
    evidence += [
        Phrase(
            "{queue} waits for the message at offset {offset}",
            queue=describe_queues([queue]),
            offset=f"{view.offset_of(queue):,}",
        )
        for queue in stopped
    ]
    return tuple(evidence)


def _stopped_in_order(view: GroupView, failing: Collection[str]) -> list[MessageQueue]:
    """Return the queues that stand still at members whose listener fails in order."""
    ordered = {r.client_id for r in view.snapshot.reports if r.is_orderly} & set(failing)
    return [
        queue
        for queue in view.user_queues
        if view.stands_still(queue) and ordered & set(view.queues[queue].owner_ids)
    ]


def find_moved_offsets(view: GroupView) -> Iterator[Finding]:
    """Q08: committed offsets went back between the samples, or somebody moved them lately."""
    before = {
        progress.queue: progress.committed_offset or 0 for progress in view.snapshot.first.progress
    }
    back = [
        progress
        for progress in view.snapshot.last.progress
        if (progress.committed_offset or 0) < before.get(progress.queue, 0)
    ]
    last = view.snapshot.last
    moved = [
        (broker, change)
        for broker, change in last.changes
        if change.back + change.forward
        and last.timestamp_ms - change.timestamp_ms <= MOVE_IS_NEW_MS
    ]
    if not back and not moved:
        return
    count = sum(before[p.queue] - (p.committed_offset or 0) for p in back)
    again = max(count, sum(change.back for _, change in moved))
    evidence = [_describe_move(last, broker, change) for broker, change in moved] or [
        Phrase(
            "{queue}: from {then} to {now}",
            queue=describe_queues([p.queue]),
            then=f"{before[p.queue]:,}",
            now=f"{p.committed_offset or 0:,}",
        )
        for p in back
    ]
    yield Finding(
        rule="Q08",
        severity=Severity.INFO if moved else Severity.WARN,
        title=Phrase("somebody moved the group's offsets")
        if moved
        else Phrase("the offset of {queues} went back", queues=count_of(len(back), "queue")),
        evidence=tuple(evidence),
        consequence=_move_consequence(again, sum(change.forward for _, change in moved)),
        remedy="if nobody wanted this change, move the offsets back"
        if moved
        else (
            "somebody reset the offsets, or two processes commit alternately for the same "
            "queue: see R01, R02 and R13"
        ),
        commands=(NextCommand(Phrase("show"), ("group", "show", view.snapshot.group)),),
    )


def _move_consequence(again: int, skipped: int) -> Phrase:
    parts = []
    if again:
        parts.append(
            Phrase("{messages} may be consumed again", messages=count_of(again, "message"))
        )
    if skipped:
        parts.append(
            Phrase(
                "{messages} may never be consumed by this group",
                messages=count_of(skipped, "message"),
            )
        )
    return Phrase("{parts}", parts=tuple(parts))


def _describe_move(last: Sample, broker: str, change: ProgressChange) -> Phrase:
    return Phrase(
        "{time} ago: {kind} by {who} at {broker}: topic {topic}, {queues}, {back} messages back, "
        "{forward} forward",
        time=format_duration(last.timestamp_ms - change.timestamp_ms),
        kind=change.kind,
        who=change.who,
        broker=broker,
        topic=change.topic,
        queues=count_of(len(change.moves), "queue"),
        back=f"{change.back:,}",
        forward=f"{change.forward:,}",
    )


def _owned_backlog(view: GroupView) -> list[MessageQueue]:
    """Return the queues of the group's topics that are consumed and have a backlog."""
    if view.snapshot.is_broadcasting:
        return []
    topics = {topic.topic for topic in view.snapshot.user_topics}
    return [
        queue
        for queue, connections in view.ownership.falls_to.items()
        if (connections or view.ownership.is_by_message)
        and queue.topic in topics
        and view.lag([queue])
    ]


def _describe_hands(view: GroupView, client_id: str) -> Phrase:
    report = view.snapshot.find_report(client_id)
    if report is None:
        return Phrase("{id} does not report its messages in hand", id=client_id)
    messages = count_of(sum(held.cached_count for held in report.held), "message")
    pulled = max((held.last_pull_timestamp_ms for held in report.held), default=0)
    if not pulled:
        return Phrase("{id} has {messages} in hand", id=client_id, messages=messages)
    return Phrase(
        "{id} has {messages} in hand and last pulled {time} ago",
        id=client_id,
        messages=messages,
        time=format_duration(view.timestamp_ms - pulled),
    )


def _consumed_loads(view: GroupView) -> dict[str, list[MessageQueue]]:
    """Return each member's queues, those of the retry topic only where somebody consumes them."""
    return {
        client_id: [q for q in queues if view.is_user_queue(q) or view.queues[q].owners]
        for client_id, queues in all_loads(view).items()
    }


def _pace(view: GroupView, queues: Iterable[MessageQueue]) -> Flow | None:
    """Return the flow of the queues that do not stand still."""
    return view.flow(q for q in queues if not view.stands_still(q))


def _is_behind(pace: Flow, *, is_late: bool) -> bool:
    enough = max(BEHIND_MIN, BEHIND_S_MIN * pace.consumed_per_s)
    is_behind = pace.lag >= enough and not pace.is_on_its_way
    return pace.consumed_per_s > 0 and (is_behind or is_late)


def _describe_pace(view: GroupView, client_id: str, pace: Flow | None) -> Phrase:
    if pace is None:
        return Phrase("{id} consumes nothing", id=client_id)
    rates, lag = describe_rates(pace), f"{pace.lag:,}"
    report = view.snapshot.find_report(client_id)
    if report is None:
        return Phrase("{id}: {rates}, {lag} behind", id=client_id, rates=rates, lag=lag)
    messages = count_of(sum(h.cached_count for h in report.held), "message")
    if report.messages_per_s_max:
        return Phrase(
            "{id}: {rates}, {lag} behind, {messages} in hand; its limit is {n} a second",
            id=client_id,
            rates=rates,
            lag=lag,
            messages=messages,
            n=f"{report.messages_per_s_max:,}",
        )
    return Phrase(
        "{id}: {rates}, {lag} behind, {messages} in hand",
        id=client_id,
        rates=rates,
        lag=lag,
        messages=messages,
    )


def _pace_remedy(view: GroupView, behind: list[str], *, are_all: bool) -> str:
    faster = "give listeners more threads, or make them faster (batches, fewer remote calls)"
    loads = _consumed_loads(view)
    limits = {r.client_id: r.messages_per_s_max for r in view.snapshot.reports}
    limited = [client_id for client_id in behind if limits.get(client_id)]
    if limited:
        return (
            f"raise messages_per_s_max of {', '.join(limited)}, or start more members; a member "
            "consumes no faster than its own limit"
        )
    mine = [queue for client_id in behind for queue in loads[client_id]]
    failed = [queue for queue in mine if not view.is_user_queue(queue) and view.lag([queue])]
    if 2 * view.lag(failed) > view.lag(mine):
        return (
            "most of these messages failed before and come again through "
            f"{describe_queues(failed)}, and one queue has one owner: more members do not help; "
            f"{faster}"
        )
    crowded = [q for q in find_crowded_queues(view) if any(q in loads[c] for c in behind)]
    if crowded:
        return (
            f"most messages go into {describe_queues(crowded)}, and one queue has one owner: more "
            f"members do not help; spread the messages over the queues (R17, Q11), or {faster}"
        )
    if not are_all:
        return (
            "compare these members with the others (machine, version, services that listeners "
            f"call); {relief_of(view)}; {faster}"
        )
    spare = sum(len(topic.subscribe_queues) for topic in view.snapshot.user_topics) - len(loads)
    if spare > 0:
        return f"start more members ({spare} more can get a queue), or {faster}"
    return f"{faster}; more members help only once the topics have more queues"


def find_slow_growth(view: GroupView) -> Iterator[Finding]:
    """Q10: the group falls behind slowly, by more than commits could still cover.

    A group that consumes by message has no slow members, so that this rule has all that is behind.
    """
    if view.snapshot.is_broadcasting or any(find_slow_members(view)):
        return
    flow = _pace(view, _owned_backlog(view))
    if flow is None or not flow.consumed_per_s or flow.is_on_its_way:
        return
    if flow.growth_per_s <= 0.05 * flow.consumed_per_s:
        return
    hourly = round(flow.growth_per_s * 3600)
    by_message = view.ownership.is_by_message
    behind = Phrase(
        "{messages} behind: more than the input of {time}, which members may have consumed but "
        "not yet committed",
        messages=count_of(flow.lag, "message"),
        time=format_duration(1000 * COMMITTED_S),
    )
    yield Finding(
        rule="Q10",
        severity=Severity.WARN if by_message else Severity.INFO,
        title=Phrase("the group falls behind")
        if by_message
        else Phrase("the group falls behind slowly"),
        evidence=(
            describe_rates(flow),
            view.describe_backlog(view.user_queues) if by_message else behind,
        ),
        consequence=Phrase(
            "the backlog grows by {messages} every hour if this pace lasts",
            messages=count_of(hourly, "message"),
        ),
        remedy="look again in a minute, because a burst passes; if the backlog still grows, "
        + ("start more consumers" if by_message else "follow Q07's advice"),
    )


def find_slow_listeners(view: GroupView) -> Iterator[Finding]:
    """Q12: a member's listener takes long for a message, and its queues have a backlog."""
    if view.snapshot.is_broadcasting:
        yield from _hanging_findings(view)
        return
    for client_id, queues in user_loads(view).items():
        report = view.snapshot.find_report(client_id)
        if report is None:
            continue
        slow = [
            pace
            for pace in report.paces
            if pace.listener_ms > LISTENER_MS_MAX
            and _has_backlog(view, [q for q in queues if q.topic == pace.topic])
        ]
        if slow:
            yield _listener_finding(view, report, slow)


def _commands_at_work(view: GroupView, queues: Iterable[MessageQueue]) -> tuple[NextCommand, ...]:
    """Return what shows the members, and the message at which the fullest queue is."""
    members = command_for_members(view.snapshot.group)
    waiting = [queue for queue in queues if view.lag([queue])]
    if not waiting:
        return (members,)
    fullest = max(waiting, key=lambda queue: view.lag([queue]))
    show, _ = commands_past(view.snapshot.group, fullest, view.offset_of(fullest))
    return members, show


def _has_backlog(view: GroupView, queues: list[MessageQueue]) -> bool:
    return view.lag(queues) >= BEHIND_MIN or view.is_late(queues)


def _hanging_findings(view: GroupView) -> Iterator[Finding]:
    for report in view.snapshot.reports:
        if report.longest_call_ms < HANGING_MS_MIN:
            continue
        yield Finding(
            rule="Q12",
            severity=Severity.WARN,
            title=Phrase(
                "a call of the listener of {id} has not returned for {time}",
                id=report.client_id,
                time=format_duration(report.longest_call_ms),
            ),
            evidence=(_describe_hands(view, report.client_id),),
            consequence=Phrase(
                "the messages in hand wait; in BROADCASTING no broker knows the offsets, so that "
                "no backlog shows it"
            ),
            remedy=_LISTENER_REMEDY,
            commands=(command_for_members(view.snapshot.group),),
            members=(report.client_id,),
        )


def _listener_finding(view: GroupView, report: MemberReport, slow: list[TopicPace]) -> Finding:
    client_id, slowest_ms = report.client_id, max(pace.listener_ms for pace in slow)
    queues = [q for q in user_loads(view)[client_id] if q.topic in {p.topic for p in slow}]
    return Finding(
        rule="Q12",
        severity=Severity.WARN,
        title=Phrase(
            "the listener of {id} is slow: {time} a call, {threads}",
            id=client_id,
            time=format_duration(slowest_ms),
            threads=count_of(report.thread_count, "thread")
            if report.thread_count
            else Phrase("number of threads unknown"),
        ),
        evidence=tuple(
            Phrase(
                "{topic}: {time} per call, {rate} messages a second",
                topic=pace.topic,
                time=format_duration(pace.listener_ms),
                rate=format_rate(pace.done_per_s),
            )
            for pace in slow
        ),
        consequence=Phrase(
            "{queue}: {state}",
            queue=describe_queues(queues),
            state=view.describe_backlog(queues),
        ),
        remedy=_LISTENER_REMEDY,
        commands=_commands_at_work(view, queues),
        members=(client_id,),
    )

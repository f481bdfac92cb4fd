"""R05, R06, R07, R12, R13, Q14, Q15: members that differ in what all must have in common. Pure.

A broker keeps one set of subscriptions for a group: that of the last heartbeat. So members with
different subscriptions overwrite each other, and a member's share contains queues of topics that
the member does not subscribe. Tests: test_diagnosis_members.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sparrowmq.doctor.finding import Finding, Severity, describe_queues, describe_state
from sparrowmq.doctor.group_snapshot import MemberReport, SubscriptionView
from sparrowmq.doctor.group_view import GroupView
from sparrowmq.model import MessageQueue
from sparrowmq.model.names import retry_topic
from sparrowmq.strategies.registry import join_reported
from sparrowmq.words import Phrase, count_of


def find_different_topics(view: GroupView) -> Iterator[Finding]:
    """R05: members of one group subscribe different topics."""
    said = {
        who: frozenset(s.topic for s in subscriptions) - {retry_topic(view.snapshot.group)}
        for who, subscriptions in _statements(view)
    }
    # R12 has the members that subscribe nothing.
    said = {who: topics for who, topics in said.items() if topics}
    if len(set(said.values())) < 2:
        return
    in_question = frozenset().union(*said.values()) - frozenset.intersection(*said.values())
    unowned = tuple(q for q in view.ownership.unwanted if q.topic in in_question)
    at_stake = unowned or [q for q in view.ownership.falls_to if q.topic in in_question]
    part = Phrase("some members never consume their share of")
    if unowned:
        part = Phrase("nobody consumes")
    yield Finding(
        rule="R05",
        severity=Severity.ERROR,
        title=Phrase(
            "members subscribe different topics: {topics}",
            topics=", ".join(sorted(in_question)),
        ),
        evidence=_spell(said),
        consequence=Phrase(
            "{part} {queues} ({backlog}), since every member gets a share of every topic; "
            "brokers refuse pulls for topics that the last heartbeat did not name",
            part=part,
            queues=describe_queues(at_stake),
            backlog=view.describe_backlog(at_stake),
        ),
        remedy="subscribe the same topics in all members of a group, or use two groups",
        unowned=unowned,
        members=_members_of(view, said),
    )


def find_different_expressions(view: GroupView) -> Iterator[Finding]:
    """R06: members of one group subscribe different tags of a topic."""
    by_topic: dict[str, dict[str, frozenset[str]]] = {}
    for who, subscriptions in _statements(view):
        for subscription in subscriptions:
            by_topic.setdefault(subscription.topic, {})[who] = _parts(subscription.expression)
    for topic, said in sorted(by_topic.items()):
        if len(set(said.values())) < 2:
            continue
        yield Finding(
            rule="R06",
            severity=Severity.ERROR,
            title=Phrase("members subscribe different tags of topic {topic}", topic=topic),
            evidence=_spell(said),
            consequence=Phrase(
                "messages are filtered by the tags of their queue's owner, or of the last "
                "heartbeat: messages that only another member subscribes are skipped for "
                "good"
            ),
            remedy=(
                "subscribe the same expression in all members; to change the expression, "
                "use a new group, or stop all members first"
            ),
            members=_members_of(view, said),
        )


def find_stale_subscription(view: GroupView) -> Iterator[Finding]:
    """R07: a broker holds an older subscription than a member and refuses the member's pulls."""
    for broker in view.snapshot.last.brokers:
        held = {s.topic: s.version for s in broker.subscriptions}
        stale = sorted(
            (report.client_id, subscription.topic)
            for report in _answered(view)
            for subscription in report.subscriptions
            if subscription.version > held.get(subscription.topic, subscription.version)
        )
        if stale:
            yield Finding(
                rule="R07",
                severity=Severity.WARN,
                title=Phrase(
                    "broker {broker} holds an older subscription than members",
                    broker=broker.broker_name,
                ),
                evidence=tuple(
                    Phrase("{id}: topic {topic}", id=client_id, topic=topic)
                    for client_id, topic in stale
                ),
                consequence=Phrase(
                    'the broker refuses pulls with "subscription not latest" (code 25) '
                    "until the member's next heartbeat, 30 s at most"
                ),
                remedy="look again in half a minute; if the finding stays, see R05 and R06",
                members=tuple(dict.fromkeys(client_id for client_id, _ in stale)),
            )


def find_share_without_subscription(view: GroupView) -> Iterator[Finding]:
    """R12: a member has unsubscribed every topic, and the group still counts it."""
    retry = retry_topic(view.snapshot.group)
    empty = [report for report in _answered(view) if report.topics <= {retry}]
    wanting = [report for report in _answered(view) if report.topics - {retry}]
    listed = {c.client_id for c in view.ownership.connections}
    # A client that holds queues without any subscription never reports subscriptions.
    found = sorted(
        report.client_id
        for report in empty
        if report.client_id in listed and all(held.queue.topic == retry for held in report.held)
    )
    if not found or not wanting or view.snapshot.is_broadcasting:
        return
    wanted = frozenset().union(*(report.topics for report in wanting)) - {retry}
    share = tuple(
        queue
        for queue, client_ids in view.ownership.shares.items()
        if queue.topic in wanted and set(client_ids) & set(found)
    )
    yield Finding(
        rule="R12",
        severity=Severity.ERROR,
        title=Phrase("a member subscribes nothing and keeps its share"),
        evidence=tuple(Phrase("{id} subscribes no topic", id=client_id) for client_id in found),
        consequence=Phrase(
            "the group counts this member, so nobody consumes the queues of its share: "
            "{queues} ({backlog})",
            queues=describe_queues(share),
            backlog=view.describe_backlog(share),
        ),
        remedy="shut the consumer down instead of unsubscribing its last topic",
        unowned=share,
        members=tuple(found),
    )


def find_different_strategies(view: GroupView) -> Iterator[Finding]:
    """R13: members run different strategies, or several of them hold one queue."""
    if view.snapshot.is_broadcasting:
        return
    reported = {r.client_id: r.strategy for r in _answered(view) if r.strategy}
    if not reported or join_reported(reported.values()):
        yield from _find_shared_queues(view)
        return
    yield Finding(
        rule="R13",
        severity=Severity.ERROR,
        title=Phrase("members run different strategies"),
        evidence=tuple(f"{client_id}: {name}" for client_id, name in reported.items()),
        consequence=Phrase(
            "members compute their shares by different rules: some queues have no owner or two"
        ),
        remedy="set one strategy in all members of the group",
        members=tuple(reported),
    )


def _find_shared_queues(view: GroupView) -> Iterator[Finding]:
    languages = {c.client_id: c.language for c in view.ownership.connections}
    held_by: dict[MessageQueue, list[str]] = {}
    for report in view.snapshot.reports:
        for held in report.held:
            if held.is_consumed and view.is_user_queue(held.queue):
                held_by.setdefault(held.queue, []).append(report.client_id)
    double = tuple(queue for queue, holders in held_by.items() if len(holders) > 1)
    if not double:
        return
    holders = sorted({holder for queue in double for holder in held_by[queue]})
    yield Finding(
        rule="R13",
        severity=Severity.ERROR,
        title=Phrase(
            "several members hold {queues} at once", queues=count_of(len(double), "queue")
        ),
        evidence=tuple(describe_state([queue], ", ".join(held_by[queue])) for queue in double)
        + tuple(
            Phrase(
                "{id} runs a client in {language}",
                id=holder,
                language=languages.get(holder) or "?",
            )
            for holder in holders
        ),
        consequence=Phrase(
            "{queues}: every message is consumed twice", queues=describe_queues(double)
        ),
        remedy=(
            "if the finding stays for more than 20 s: use the same strategy in all members, "
            "and client versions whose arithmetic and sort order match Java's"
        ),
        double=double,
        members=tuple(holders),
    )


def find_different_models(view: GroupView) -> Iterator[Finding]:
    """Q15: some members share the queues, and others read all of them."""
    reported = {r.client_id: r.message_model for r in _answered(view) if r.message_model}
    if len(set(reported.values())) < 2:
        return
    yield Finding(
        rule="Q15",
        severity=Severity.ERROR,
        title=Phrase("some members are BROADCASTING, and others CLUSTERING"),
        evidence=tuple(f"{client_id}: {model}" for client_id, model in reported.items()),
        consequence=Phrase(
            "a BROADCASTING member reads every queue and commits no offset at brokers: the "
            "queues of its share fall behind, and the messages of other queues are consumed "
            "twice"
        ),
        remedy="use one model in all members, or one group for each model",
        members=tuple(reported),
    )


def find_different_listeners(view: GroupView) -> Iterator[Finding]:
    """Q14: some members consume in order, and others do not."""
    reported = {r.client_id: r.is_orderly for r in _answered(view) if r.is_orderly is not None}
    if len(set(reported.values())) < 2 or view.snapshot.is_broadcasting:
        return
    yield Finding(
        rule="Q14",
        severity=Severity.WARN,
        title=Phrase("some members consume in order, and others do not"),
        evidence=tuple(
            Phrase("{id} consumes in order", id=client_id)
            if is_orderly
            else Phrase("{id} does not consume in order", id=client_id)
            for client_id, is_orderly in reported.items()
        ),
        consequence=Phrase(
            "messages of the same key are consumed out of order in every queue whose owner "
            "does not consume in order, and any rebalance may change the owner"
        ),
        remedy="use the same kind of listener in all members of the group",
        members=tuple(reported),
    )


def _statements(view: GroupView) -> list[tuple[str, tuple[SubscriptionView, ...]]]:
    """Return the subscriptions by each member's report and by each broker at each sample."""
    found = [
        (f"member {report.client_id}", report.subscriptions)
        for report in _answered(view)
        if report.subscriptions
    ]
    for sample in view.snapshot.samples:
        when = "" if sample is view.snapshot.last else " a moment ago"
        found += [
            (f"broker {broker.broker_name}{when}", broker.subscriptions)
            for broker in sample.brokers
            if broker.subscriptions
        ]
    return found


def _answered(view: GroupView) -> Iterable[MemberReport]:
    return [report for report in view.snapshot.reports if not report.failure]


def _parts(expression: str) -> frozenset[str]:
    parts = frozenset(part.strip() for part in expression.split("||"))
    return parts if parts - {""} else frozenset({"*"})


def _spell(said: dict[str, frozenset[str]]) -> tuple[str, ...]:
    return tuple(f"{who}: {', '.join(sorted(parts)) or 'nothing'}" for who, parts in said.items())


def _members_of(view: GroupView, said: dict[str, frozenset[str]]) -> tuple[str, ...]:
    return tuple(r.client_id for r in _answered(view) if f"member {r.client_id}" in said)

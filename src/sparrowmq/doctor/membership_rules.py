"""R03, R08, R09, R14, R19, R28, R33, Q09: the group's members, as each broker lists them. Pure.

A member asks one broker of the topic, picked at random, for the list of members. So every broker
must list every member; otherwise members compute their shares from different lists.
Tests: test_diagnosis_members.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from sparrowmq.coordination.member_marker import is_marked
from sparrowmq.doctor.finding import Finding, Severity, command_for_members, describe_queues
from sparrowmq.doctor.group_snapshot import BrokerView, TopicSnapshot
from sparrowmq.doctor.group_view import GroupView, changed_members, member_ids
from sparrowmq.model import MessageQueue
from sparrowmq.strategies.by_load import AllocateMessageQueueByLoad
from sparrowmq.strategies.registry import OWN_SETTINGS, SPARROW_STRATEGIES, find_named
from sparrowmq.words import Phrase, count_of

_HEARTBEAT_REMEDY = (
    "check whether these members reach that broker (address, port, firewall): a member must "
    "reach every broker of the topic by the address that the broker registered; members send "
    "heartbeats every 30 s; restart a member that stays missing longer"
)


def find_broker_without_members(view: GroupView) -> Iterator[Finding]:
    """R08: a broker lists no member, as after a restart that members did not notice."""
    everybody = _everybody(view)
    for broker in serving_brokers(view):
        if broker.cid_all is None or member_ids(broker) or not everybody:
            continue
        queues = [q for q in view.ownership.falls_to if q.broker_name == broker.broker_name]
        yield Finding(
            rule="R08",
            severity=Severity.ERROR,
            title=Phrase("broker {broker} knows no member of the group", broker=broker.broker_name),
            evidence=(
                Phrase(
                    "{broker} at {address} lists no member",
                    broker=broker.broker_name,
                    address=broker.address,
                ),
                Phrase("other brokers list {ids}", ids=", ".join(sorted(everybody))),
            ),
            consequence=Phrase(
                "this broker refuses the members' pulls from {queues} until their next heartbeat",
                queues=describe_queues(queues),
            )
            if view.snapshot.is_broadcasting
            else Phrase(
                "a member that asks this broker for the member list gets none and keeps its "
                "queues: queues that other members gave up stay unread ({queues}: {backlog})",
                queues=describe_queues(queues),
                backlog=view.describe_backlog(queues),
            ),
            remedy=_HEARTBEAT_REMEDY,
            members=tuple(sorted(everybody)),
        )


def find_member_missing_at_broker(view: GroupView) -> Iterator[Finding]:
    """R09: some brokers list a member, and others do not."""
    if view.snapshot.is_broadcasting:
        # Members compute no share from the lists.
        return
    everybody = _everybody(view)
    for broker in serving_brokers(view):
        here = member_ids(broker)
        missing = sorted(everybody - here)
        if broker.cid_all is None or not here or not missing:
            continue
        disputed = sorted(view.ownership.disputed)
        yield Finding(
            rule="R09",
            severity=Severity.ERROR if disputed else Severity.WARN,
            title=Phrase(
                "broker {broker} does not list {members} of the group",
                members=count_of(len(missing), "member"),
                broker=broker.broker_name,
            ),
            evidence=(
                Phrase(
                    "{broker} at {address} lists {ids}",
                    broker=broker.broker_name,
                    address=broker.address,
                    ids=", ".join(sorted(here)),
                ),
                Phrase("missing there: {ids}", ids=", ".join(missing)),
            ),
            consequence=Phrase(
                "members compute their shares from different lists, because each asks a "
                "random broker: {queues} may have no owner or two, and a missing member "
                "that asks this broker gives up all its queues",
                queues=describe_queues(disputed),
            )
            if disputed
            else Phrase(
                "each member asks a random broker for the list: one that computes its share "
                "from this list leaves queues with no owner or two, and a missing member "
                "that asks this broker gives up all its queues"
            ),
            remedy=_HEARTBEAT_REMEDY,
            members=tuple(missing),
        )


def find_idle_members(view: GroupView) -> Iterator[Finding]:
    """R14: the group has more members than queues, and the last ids get none."""
    if view.snapshot.is_broadcasting:
        return
    loads = user_loads(view)
    # Without a strategy to compute by, only its report says that a member has no queue.
    is_computed = find_named(view.snapshot.strategy) is not None
    idle = [
        client_id
        for client_id, queues in loads.items()
        if not queues and (is_computed or view.snapshot.find_report(client_id))
    ]
    if not idle or len(idle) == len(loads):
        return
    queue_count = sum(len(topic.subscribe_queues) for topic in view.snapshot.user_topics)
    if view.snapshot.strategy == AllocateMessageQueueByLoad.name and len(loads) <= queue_count:
        # The plan relieves a slow member of its last queue, where the others have room.
        return
    yield Finding(
        rule="R14",
        severity=Severity.WARN,
        title=Phrase(
            "{members} of {n} without a queue",
            members=count_of(len(idle), "member"),
            n=f"{len(loads)}",
        ),
        evidence=(
            view.describe_size(queue_count, len(loads)),
            Phrase("idle: {ids}", ids=", ".join(idle)),
        ),
        consequence=Phrase(
            "idle members consume nothing; more members do not make this group faster"
        ),
        remedy=(
            "give the topic at least as many queues as the group has members, or stop the "
            "idle members; more listener threads also speed up a group"
        ),
        members=tuple(idle),
    )


def find_own_strategy_in_mixed_group(view: GroupView) -> Iterator[Finding]:
    """Q09: a group with members of other clients uses a strategy that only SparrowMQ has."""
    reported = {report.strategy for report in view.snapshot.reports} | {view.snapshot.strategy}
    own = sorted({name.removesuffix(OWN_SETTINGS) for name in reported} & SPARROW_STRATEGIES.keys())
    others = [c for c in view.ownership.connections if not is_marked(c.version)]
    if not own or not others or view.snapshot.is_broadcasting:
        return
    yield Finding(
        rule="Q09",
        severity=Severity.ERROR,
        title=Phrase(
            "strategy {names} in a group whose members do not all run SparrowMQ",
            names=", ".join(own),
        ),
        evidence=tuple(
            Phrase(
                "{id} runs another client ({language})",
                id=f"{connection}",
                language=connection.language or Phrase("of an unknown language"),
            )
            for connection in others
        ),
        consequence=Phrase(
            "members that do not run SparrowMQ do not know this strategy and use one of "
            "RocketMQ's: shares overlap, and other queues have no owner; the owners shown "
            "here follow SparrowMQ's arithmetic only"
        ),
        remedy=(
            "use AVG, or another of RocketMQ's strategies, in all members until every "
            "member runs SparrowMQ"
        ),
        # Shares overlap on both sides.
        members=tuple(dict.fromkeys(c.client_id for c in view.ownership.connections)),
    )


def find_changing_members(view: GroupView) -> Iterator[Finding]:
    """R19: members joined or left between the samples, or hand queues over now."""
    if view.snapshot.is_broadcasting:
        return
    came, went = changed_members(view.snapshot.first, view.snapshot.last)
    moving = [
        q for q in view.ownership.falls_to if view.is_handed_over(q) and view.is_user_queue(q)
    ]
    if not (came or went or moving):
        return
    yield Finding(
        rule="R19",
        severity=Severity.INFO,
        title=Phrase("the group is rebalancing right now"),
        evidence=(
            Phrase("joined: {ids}", ids=", ".join(sorted(came)) or Phrase("nobody")),
            Phrase("left: {ids}", ids=", ".join(sorted(went)) or Phrase("nobody")),
            *(
                [Phrase("handed over now: {queues}", queues=describe_queues(moving))]
                if moving
                else []
            ),
        ),
        consequence=Phrase(
            "for a moment a queue may have two owners or none, and its next owner may "
            "consume messages in hand again; other findings may hold for this moment only"
        ),
        remedy="look again in half a minute; listeners must tolerate a message that comes twice",
        members=tuple(sorted(came | went)),
    )


def find_ghosts(view: GroupView) -> Iterator[Finding]:
    """R28: brokers list a member that consumes nothing: frozen, half-open or abandoned."""
    if view.snapshot.is_broadcasting:
        # No broker knows what members have consumed.
        return
    before = {c for broker in view.snapshot.first.brokers for c in member_ids(broker)}
    for client_id, queues in all_loads(view).items():
        mine = [queue for queue in queues if view.is_user_queue(queue)]
        is_silent = any(r.client_id == client_id and r.is_silent for r in view.snapshot.reports)
        waiting = [queue for queue in mine if view.stands_still(queue, is_silent=is_silent)]
        behind = [queue for queue in mine if view.lag([queue]) and not view.has_only_new(queue)]
        if not waiting or not set(waiting).issuperset(behind):
            continue
        if any(view.rates[queue].consumed_per_s for queue in queues if queue in view.rates):
            # R30 reports the queues of a working member that stand still.
            continue
        others_move = any(
            rate.consumed_per_s > 0 for queue, rate in view.rates.items() if queue not in queues
        )
        if not is_silent and not (others_move and client_id in before):
            continue
        if not is_silent and view.may_be_in_calls(view.user_queues):
            continue
        time = view.describe_interval()
        evidence = [Phrase("none of the member's offsets moved within {time}", time=time)]
        if is_silent:
            evidence.append(Phrase("the member does not answer requests for its state"))
        if others_move:
            evidence.append(Phrase("other members' offsets moved meanwhile"))
        report = view.snapshot.find_report(client_id)
        if report is not None:
            messages = count_of(sum(held.cached_count for held in report.held), "message")
            evidence.append(Phrase("{id} has {messages} in hand", id=client_id, messages=messages))
        yield Finding(
            rule="R28",
            severity=Severity.ERROR if is_silent else Severity.WARN,
            title=Phrase("member {id} is listed but consumes nothing", id=client_id),
            evidence=tuple(evidence),
            consequence=Phrase(
                "{queues} stand still ({backlog}) while brokers list the member: up to two "
                "minutes after its last heartbeat, or as long as its process lives",
                queues=describe_queues(waiting),
                backlog=view.describe_backlog(waiting),
            ),
            remedy=(
                "find out what the process does (stopped, out of memory, a consumer abandoned "
                "without shutdown) and end it if it does not come back"
                if is_silent
                else "the process lives and answers: with messages in hand, find out what its "
                "listener waits for, or whether a consumer that polls still polls; without, "
                "check whether the consumer is suspended, and search its log for refused pulls"
            ),
            commands=(command_for_members(view.snapshot.group),),
            unowned=tuple(waiting),
            members=(client_id,),
        )


def find_members_in_the_other_cluster(view: GroupView) -> Iterator[Finding]:
    """R03: a topic is in one name server's cluster, and its members are in another's."""
    for topic in _topics_elsewhere(view):
        subscribing = sorted(
            {
                connection.client_id
                for broker in view.snapshot.last.brokers
                if any(s.topic == topic.topic for s in broker.subscriptions)
                for connection in broker.connections
            }
        )
        if not subscribing:
            continue
        yield Finding(
            rule="R03",
            severity=Severity.ERROR,
            title=Phrase(
                "members of topic {topic} are connected to another cluster", topic=topic.topic
            ),
            evidence=(
                *(_describe_known(server, names) for server, names in topic.broker_names_by_server),
                Phrase(
                    "subscribed at {brokers}: {ids}",
                    brokers=_names(b for b in view.snapshot.last.brokers if b.cid_all),
                    ids=", ".join(subscribing),
                ),
            ),
            consequence=Phrase(
                "these members do not consume {queues}: the topic does not exist in the "
                "cluster that they are connected to",
                queues=describe_queues(topic.subscribe_queues),
            ),
            remedy=(
                "check the name server address of these members; a process that uses two "
                "clusters needs an instance name for each: clients whose id does not depend "
                "on the name server share one connection between both clusters"
            ),
            unowned=tuple(topic.subscribe_queues),
            members=tuple(subscribing),
        )


def _topics_elsewhere(view: GroupView) -> list[TopicSnapshot]:
    """Return the topics that are known only to name servers of a cluster without the members."""
    here = {broker.broker_name for broker in view.snapshot.last.brokers if broker.cid_all}
    return [
        topic
        for topic in view.snapshot.user_topics
        if any(not names for _, names in topic.broker_names_by_server)
        and topic.queues
        and not here & {at.broker_name for at in topic.queues}
    ]


def _describe_known(server: str, brokers: Sequence[str]) -> Phrase:
    known = ", ".join(brokers) or Phrase("no broker of the topic")
    return Phrase("{server} knows {brokers}", server=server, brokers=known)


def _names(brokers: Iterable[BrokerView]) -> str:
    return ", ".join(broker.broker_name for broker in brokers)


def find_mixed_clusters(view: GroupView) -> Iterator[Finding]:
    """R33: one topic is in two clusters, or name servers disagree about a topic."""
    for topic in view.snapshot.user_topics:
        clusters = sorted({at.cluster for at in topic.queues if at.cluster})
        if len(clusters) > 1:
            yield Finding(
                rule="R33",
                severity=Severity.WARN,
                title=Phrase(
                    "topic {topic} is served by {n} clusters",
                    topic=topic.topic,
                    n=f"{len(clusters)}",
                ),
                evidence=tuple(
                    Phrase(
                        "{broker} belongs to cluster {cluster}",
                        broker=at.broker_name,
                        cluster=at.cluster,
                    )
                    for at in topic.queues
                ),
                consequence=Phrase(
                    "members share the queues of all these clusters; queues of a cluster "
                    "that their owner cannot reach stay unread"
                ),
                remedy="give every cluster its own name servers",
            )
        # R03 says more about a topic that is wholly in another cluster.
        is_elsewhere = topic in _topics_elsewhere(view)
        if len({names for _, names in topic.broker_names_by_server}) > 1 and not is_elsewhere:
            yield Finding(
                rule="R33",
                severity=Severity.ERROR,
                title=Phrase("name servers disagree about topic {topic}", topic=topic.topic),
                evidence=tuple(
                    _describe_known(server, names) for server, names in topic.broker_names_by_server
                ),
                consequence=Phrase(
                    "members that ask different name servers divide different queues: some "
                    "queues have two owners, others none"
                ),
                remedy="register every broker at every name server of the list",
            )


def all_loads(view: GroupView) -> dict[str, list[MessageQueue]]:
    """Return each member's queues, those of the retry topic included, by client id in id order."""
    loads: dict[str, list[MessageQueue]] = {c.client_id: [] for c in view.ownership.connections}
    for queue, connections in view.ownership.falls_to.items():
        for client_id in loads.keys() & {c.client_id for c in connections}:
            loads[client_id].append(queue)
    return loads


def user_loads(view: GroupView) -> dict[str, list[MessageQueue]]:
    """Return each member's queues, without those of the retry topic, by client id in id order."""
    topics = {topic.topic for topic in view.snapshot.user_topics}
    return {
        client_id: [queue for queue in queues if queue.topic in topics]
        for client_id, queues in all_loads(view).items()
        if topics
    }


def serving_brokers(view: GroupView) -> list[BrokerView]:
    """Return the brokers that serve a topic which the group consumes."""
    names = {at.broker_name for topic in view.snapshot.user_topics for at in topic.queues}
    return [broker for broker in view.snapshot.last.brokers if broker.broker_name in names]


def _everybody(view: GroupView) -> frozenset[str]:
    found: frozenset[str] = frozenset()
    for broker in serving_brokers(view):
        found |= member_ids(broker)
    return found

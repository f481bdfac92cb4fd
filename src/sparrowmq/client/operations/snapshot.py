"""Take a snapshot of a consumer group, by requests that every RocketMQ broker answers.

One sample asks every broker for the group's connections, its list of members, its progress and its
dead letters, a few brokers at a time. Members are asked about themselves during the wait for the
second sample; a member that does not answer only lacks its line. A failure is noted and the
snapshot goes on, since snapshots are taken of sick clusters. Tests: doctor/test_live_groups.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from operator import attrgetter
from typing import NamedTuple

from msgspec import Struct

from sparrowmq.calling.effects import Operation, Task, join, now, sleep, spawn, timestamp
from sparrowmq.client.directory import Directory
from sparrowmq.client.operations.gather import WIDTH, gather, gather_outcomes
from sparrowmq.client.operations.heartbeats import (
    consumer_list,
    is_silence,
    running_info,
    says_no_members,
)
from sparrowmq.client.operations.offsets import topic_bounds, topic_offsets
from sparrowmq.client.operations.plan_answers import ask_plan_at, followed, merge_loads
from sparrowmq.client.operations.request import ask, decode_answer
from sparrowmq.client.operations.routes import BrokerAt, find_all_brokers, read_route
from sparrowmq.client.operations.waiting_messages import find_waits
from sparrowmq.client.operations.waiting_retries import count_waiting_retries
from sparrowmq.client.route_cache import is_static, route_from
from sparrowmq.doctor.group_snapshot import (
    BrokerView,
    DeadLetterCount,
    GroupSnapshot,
    HeldQueue,
    MemberConnection,
    MemberReport,
    PlanSnapshot,
    ProgressChange,
    QueueProgress,
    Sample,
    SubscriptionView,
    TopicPace,
    TopicQueues,
    TopicSnapshot,
)
from sparrowmq.errors import (
    BrokerError,
    ConnectFailed,
    SparrowError,
    UsageError,
    did_you_mean,
)
from sparrowmq.model import MessageQueue
from sparrowmq.model.names import dlq_topic, is_system_group, retry_topic
from sparrowmq.protocol.bodies import (
    PERM_READ,
    PERM_WRITE,
    AuditedStats,
    CheckClientRequestBody,
    ClientConnection,
    SubscriptionData,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicRouteAnswer,
    encode_body,
)
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.headers import (
    GetConsumerConnectionListRequestHeader,
    GetConsumeStatsRequestHeader,
    GetGroupPlanRequestHeader,
    GetRouteInfoRequestHeader,
    GetSubscriptionGroupConfigRequestHeader,
)
from sparrowmq.protocol.subscription import EXPRESSION_TYPE_TAG
from sparrowmq.protocol.wire_names import prepare_types, wire_names
from sparrowmq.strategies.by_load import AllocateMessageQueueByLoad, GroupLoads
from sparrowmq.strategies.registry import find_named, join_reported

# The members that are asked about themselves; a larger group is understood without the others,
# unless its owners cannot be computed.
RUNNING_INFO_MEMBERS_MAX = 64
OWNERS_ASKED_MAX = 512
# Of a member's number; Python reads no text of thousands.
DIGITS_MAX = 19
# The groups named by the error of an unknown one.
GROUPS_NAMED_MAX = 5

# Java's class names, by which members report their strategy, and the strategies' names here.
_STRATEGY_CLASSES = {
    "AllocateMessageQueueAveragely": "AVG",
    "AllocateMessageQueueAveragelyByCircle": "AVG_BY_CIRCLE",
    "AllocateMessageQueueByConfig": "CONFIG",
    "AllocateMessageQueueByMachineRoom": "MACHINE_ROOM",
    "AllocateMachineRoomNearby": "MACHINE_ROOM_NEARBY",
    "AllocateMessageQueueConsistentHash": "CONSISTENT_HASH",
}
# Apache's broker has no code of its own for SQL92 without enablePropertyFilter.
_REFUSED = (ResponseCode.SYSTEM_ERROR, ResponseCode.SUBSCRIPTION_PARSE_FAILED)
_ORDERLY = {"true": True, "false": False}


class Connections(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """ConsumerConnection with enumerations as texts, since newer brokers have further values."""

    connection_set: list[ClientConnection] = []
    subscription_table: dict[str, SubscriptionData] = {}
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None


prepare_types([Connections])


def take_snapshot(
    directory: Directory,
    group: str,
    *,
    interval_ms: int = 0,
    strategy: str | None = None,
    asks_members: bool = True,
    counts_retries: bool = True,
) -> Operation[GroupSnapshot]:
    """Take a snapshot of a group, from one sample or from two with a pause.

    Args:
        interval_ms: the pause; 0 takes one sample, and the snapshot has no rates.
        strategy: the group's allocation strategy; None takes the members' reports, or AVG.
        asks_members: whether to ask members about themselves, through a broker.
        counts_retries: whether to look for failed messages that wait, which reads messages.

    Raises: ConnectFailed if no name server answers; RouteError if no broker is known; UsageError
    if the group is unknown everywhere; TransportError if no broker answers.
    """
    begun = yield from begin_snapshot(directory, group, asks_members=asks_members)
    return (
        yield from end_snapshot(
            directory,
            begun,
            interval_ms=interval_ms,
            strategy=strategy,
            counts_retries=counts_retries,
        )
    )


class BegunSnapshot(NamedTuple):
    """A snapshot after its first sample, while its members are asked about themselves."""

    group: str
    brokers: Sequence[BrokerAt]
    topics: Sequence[TopicSnapshot]
    first: Sample
    asking: Task


def begin_snapshot(
    directory: Directory, group: str, *, asks_members: bool = True
) -> Operation[BegunSnapshot]:
    """Take a snapshot's first sample and begin to ask its members; raises as `take_snapshot`."""
    brokers = yield from find_all_brokers(directory.name_servers, timeout_ms=directory.timeout_ms)
    first = yield from _look(directory, group, brokers, ())
    yield from _check_group_known(directory, group, first)
    topics, retries = _topics_of(group, first), retry_topic(group)
    views = yield from gather(
        [_view_topic(directory, topic) for topic in topics],
        name=f"topics of {group}",
        at_once=WIDTH,
    )
    asking = yield from spawn(
        _ask_members(directory, group, first, is_wanted=asks_members), name=f"members of {group}"
    )
    first = yield from _with_uncommitted(directory, group, first, views)
    if retries not in topics and not any(broker.subscriptions for broker in first.brokers):
        # Failed messages may have come to the retry topic when its members had left.
        view = yield from _view_topic(directory, retries)
        found = yield from _with_uncommitted(directory, group, first, [view])
        if sum(p.lag for p in found.progress) > sum(p.lag for p in first.progress):
            views, first = sorted([*views, view], key=attrgetter("topic")), found
    return BegunSnapshot(group, brokers, views, first, asking)


def end_snapshot(
    directory: Directory,
    begun: BegunSnapshot,
    *,
    interval_ms: int = 0,
    strategy: str | None = None,
    counts_retries: bool = True,
) -> Operation[GroupSnapshot]:
    """Take a snapshot's second sample, `interval_ms` after the first, and wait for its members."""
    group, views, samples = begun.group, begun.topics, [begun.first]
    if interval_ms > 0:
        yield from sleep(max(0, begun.first.at_ms + interval_ms - (yield from now())))
        topics = [view.topic for view in views]
        second = yield from _look(directory, group, begun.brokers, topics)
        samples.append((yield from _with_uncommitted(directory, group, second, views)))
    reports: tuple[MemberReport, ...] = yield from join(begun.asking)
    samples[-1] = yield from _with_waits(directory, group, samples[-1])
    samples[-1] = yield from _with_expired(directory, samples[-1])
    samples[-1] = yield from _with_disabled(directory, group, samples, reports)
    samples[-1] = yield from _with_refused_filters(directory, group, samples[-1])
    if counts_retries:
        samples[-1] = yield from _with_waiting_retries(directory, group, samples[-1])
    known = strategy or join_reported(each.strategy for each in reports if each.strategy)
    plan = None
    if known == AllocateMessageQueueByLoad.name:
        listing = sorted(
            (b for b in samples[-1].brokers if b.cid_all), key=lambda broker: broker.broker_name
        )
        plan = yield from _look_at_plan(directory, group, [b.address for b in listing])
    return GroupSnapshot(
        group=group,
        samples=tuple(samples),
        topics=tuple(views),
        reports=reports,
        strategy=known or "AVG",
        strategy_is_known=known is not None,
        plan=plan,
    )


def _look_at_plan(
    directory: Directory, group: str, addresses: Sequence[str]
) -> Operation[PlanSnapshot | None]:
    """Return a group's plan and measured loads, as seen by a tool; None without a register.

    Args:
        addresses: the brokers that list the group's members, in the order of their names.
    """
    header = GetGroupPlanRequestHeader(consumer_group=group, needs_loads=True)
    outcomes = yield from gather_outcomes(
        [ask_plan_at(each, header, timeout_ms=directory.timeout_ms) for each in addresses],
        name="plans",
    )
    answers = [each for each in outcomes if not isinstance(each, SparrowError)]
    if not answers:
        return None
    loads = merge_loads(outcomes) or GroupLoads(queues={}, capacities={})
    plan = answers[0].plan
    seen = PlanSnapshot(
        queue_loads=tuple(sorted(loads.queues.items())),
        capacities=tuple(sorted(loads.capacities.items())),
    )
    if plan is None:
        return seen
    return replace(
        seen,
        epoch=plan.epoch,
        owners=tuple(sorted(followed(plan).owners.items())),
        client_ids=tuple(plan.client_ids),
        moved=tuple(plan.moved),
        load_before=plan.load_before,
        load_after=plan.load_after,
    )


def _look(
    directory: Directory, group: str, brokers: Sequence[BrokerAt], topics: Sequence[str]
) -> Operation[Sample]:
    found = yield from gather(
        [_look_at_broker(directory, group, broker) for broker in brokers],
        name=f"look at {group}",
        at_once=WIDTH,
    )
    at_ms = yield from now()
    at_timestamp_ms = yield from timestamp()
    return Sample(
        at_ms=at_ms,
        timestamp_ms=at_timestamp_ms,
        brokers=tuple(view for view, _ in found),
        progress=tuple(sorted(p for _, progress in found for p in progress)),
    )


def _look_at_broker(
    directory: Directory, group: str, broker: BrokerAt
) -> Operation[tuple[BrokerView, list[QueueProgress]]]:
    timeout_ms = directory.timeout_ms
    failure = ""
    connections, cid_all, progress = Connections(), None, list[QueueProgress]()
    letters: DeadLetterCount | None = DeadLetterCount()
    changes: tuple[ProgressChange, ...] = ()
    is_popped = is_denied = False
    answer_ms: int | None = None
    asked_ms = yield from now()
    try:
        cid_all = yield from _listed_ids(broker.address, group, timeout_ms=timeout_ms)
        answer_ms = (yield from now()) - asked_ms
        connections = yield from _connections(broker.address, group, timeout_ms=timeout_ms)
        stats = yield from group_stats(broker.address, group, timeout_ms=timeout_ms)
        progress, changes = progress_of(stats), _changes_of(stats)
        is_popped = bool(stats.sparrowmq_is_popped)
        letters = yield from _dead_letters_seen(broker.address, group, timeout_ms=timeout_ms)
    except SparrowError as error:
        failure = str(error)
        is_denied = isinstance(error, BrokerError) and error.is_denial
    view = BrokerView(
        broker_name=broker.name,
        cluster=broker.cluster,
        address=broker.address,
        cid_all=cid_all,
        connections=tuple(
            sorted(
                MemberConnection(c.client_id, c.client_addr, c.language or "", c.version)
                for c in connections.connection_set
            )
        ),
        subscriptions=_subscriptions(list(connections.subscription_table.values())),
        consume_type=connections.consume_type or "",
        message_model=connections.message_model or "",
        consume_from_where=connections.consume_from_where or "",
        failure=failure,
        is_denied=is_denied,
        answer_ms=answer_ms,
        dead_letters=letters,
        changes=changes,
        is_popped=is_popped,
    )
    return view, progress


def _with_waits(directory: Directory, group: str, sample: Sample) -> Operation[Sample]:
    """Return the sample with the time that messages have waited, where this may be long."""
    last: dict[str, dict[str, int]] = {}
    for each in sample.progress:
        if each.lag:
            topic, at_broker = each.queue.topic, last.setdefault(each.queue.broker_name, {})
            consumed_ms = max(0, each.last_timestamp_ms)
            at_broker[topic] = min(consumed_ms, at_broker.get(topic, consumed_ms))
    waits = yield from find_waits(
        group,
        {broker.address: last.get(broker.broker_name, {}) for broker in sample.brokers},
        now_timestamp_ms=sample.timestamp_ms,
        timeout_ms=directory.timeout_ms,
    )
    progress = tuple(p._replace(wait_ms=waits.get(p.queue, 0)) for p in sample.progress)
    return replace(sample, progress=progress) if waits else sample


def _with_expired(directory: Directory, sample: Sample) -> Operation[Sample]:
    """Return the sample with the messages that brokers removed before the group committed them.

    Only those topics are asked for their first offsets where messages wait and the broker has no
    time of the last one that was consumed: it has removed that one, and perhaps those behind it.
    """
    address_of = {broker.broker_name: broker.address for broker in sample.brokers}
    places = sorted(
        {
            (each.queue.broker_name, each.queue.topic)
            for each in sample.progress
            if each.lag
            and each.committed_offset
            and each.last_timestamp_ms <= 0
            and each.queue.broker_name in address_of
        }
    )
    if not places:
        return sample
    tables = yield from gather(
        [
            _first_offsets(address_of[name], topic, timeout_ms=directory.timeout_ms)
            for name, topic in places
        ],
        name="first offsets",
        at_once=WIDTH,
    )
    first = {queue: offset for table in tables for queue, offset in table.items()}
    progress = tuple(
        each._replace(expired=max(0, min(first[each.queue], each.max_offset) - committed))
        if (committed := each.committed_offset) and each.queue in first
        else each
        for each in sample.progress
    )
    return replace(sample, progress=progress)


def _first_offsets(
    address: str, topic: str, *, timeout_ms: int
) -> Operation[dict[MessageQueue, int]]:
    """Return the first offset of each queue of a topic; empty if the broker does not say."""
    try:
        table = yield from topic_offsets(address, topic, timeout_ms=timeout_ms)
    except SparrowError:
        return {}
    return {queue: at.min_offset for queue, at in table.items()}


def _with_disabled(
    directory: Directory, group: str, samples: Sequence[Sample], reports: Sequence[MemberReport]
) -> Operation[Sample]:
    """Return the last sample with the brokers that keep the group's messages back.

    Only those are asked where messages wait, and no member has one in hand.
    """
    sample, asks_all = samples[-1], len(samples) > 1
    working = {h.queue.broker_name for each in reports for h in each.held if h.cached_count}
    waiting = {p.queue.broker_name for p in sample.progress if p.lag} - working
    asked = [b for b in sample.brokers if b.cid_all is not None and b.broker_name in waiting]
    found = yield from gather(
        [_is_disabled(directory, b.address, group, asks_all=asks_all) for b in asked],
        name=f"settings of {group}",
        at_once=WIDTH,
    )
    disabled = {b.broker_name for b, is_disabled in zip(asked, found, strict=True) if is_disabled}
    brokers = [replace(b, is_disabled=b.broker_name in disabled) for b in sample.brokers]
    return replace(sample, brokers=tuple(brokers))


def _with_refused_filters(directory: Directory, group: str, sample: Sample) -> Operation[Sample]:
    """Return the sample with the brokers that refuse an SQL92 expression of the group."""
    found = yield from gather(
        [_refusal(directory, group, broker) for broker in sample.brokers],
        name=f"filters of {group}",
        at_once=WIDTH,
    )
    brokers = [replace(b, refused_filter=why) for b, why in zip(sample.brokers, found, strict=True)]
    return replace(sample, brokers=tuple(brokers))


def _with_waiting_retries(directory: Directory, group: str, sample: Sample) -> Operation[Sample]:
    """Return the sample with the failed messages that wait for their next attempt."""
    found = yield from gather(
        [
            count_waiting_retries(broker, group, timeout_ms=directory.timeout_ms)
            for broker in sample.brokers
        ],
        name=f"waiting retries of {group}",
        at_once=WIDTH,
    )
    brokers = [
        replace(b, waiting_retries=count) for b, count in zip(sample.brokers, found, strict=True)
    ]
    return replace(sample, brokers=tuple(brokers))


def _refusal(directory: Directory, group: str, broker: BrokerView) -> Operation[str]:
    for subscribed in broker.subscriptions:
        if subscribed.expression_type == EXPRESSION_TYPE_TAG:
            continue
        body = CheckClientRequestBody(
            client_id=broker.connections[0].client_id if broker.connections else "",
            group=group,
            subscription_data=SubscriptionData(
                topic=subscribed.topic,
                sub_string=subscribed.expression,
                expression_type=subscribed.expression_type,
            ),
        )
        code = RequestCode.CHECK_CLIENT_CONFIG
        try:
            yield from ask(
                broker.address, code, body=encode_body(body), timeout_ms=directory.timeout_ms
            )
        except BrokerError as error:
            if error.code in _REFUSED and not error.is_denial:
                return error.remark
        except SparrowError:
            return ""
    return ""


def _is_disabled(
    directory: Directory, address: str, group: str, *, asks_all: bool
) -> Operation[bool]:
    """Return whether a broker says that a group is disabled.

    Args:
        asks_all: whether to ask a broker of RocketMQ 4 for the settings of all its groups, as it
            has no request for those of one.
    """
    timeout_ms = directory.timeout_ms
    header = GetSubscriptionGroupConfigRequestHeader(group=group)
    try:
        code = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG
        reply = yield from ask(address, code, header, timeout_ms=timeout_ms)
        return not decode_answer(SubscriptionGroupConfig, reply, address).consume_enable
    except BrokerError as error:
        if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED or not asks_all:
            return False
    except SparrowError:
        return False
    known = yield from _settings_of_groups(address, timeout_ms=timeout_ms)
    return group in known and not known[group].consume_enable


def _settings_of_groups(
    address: str, *, timeout_ms: int
) -> Operation[dict[str, SubscriptionGroupConfig]]:
    """Return the settings of all groups of a broker; empty if it does not answer."""
    code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
    try:
        reply = yield from ask(address, code, timeout_ms=timeout_ms)
        return decode_answer(SubscriptionGroupTable, reply, address).subscription_group_table
    except SparrowError:
        return {}


def _listed_ids(address: str, group: str, *, timeout_ms: int) -> Operation[tuple[str, ...]]:
    try:
        return tuple((yield from consumer_list(address, group, timeout_ms=timeout_ms)))
    except BrokerError as error:
        if says_no_members(error):
            return ()
        raise


def _connections(address: str, group: str, *, timeout_ms: int) -> Operation[Connections]:
    """Return a group's connections at one broker; empty without members.

    Raises: ConnectFailed, TransportError; BrokerError, for example if access is denied.
    """
    header = GetConsumerConnectionListRequestHeader(consumer_group=group)
    code = RequestCode.GET_CONSUMER_CONNECTION_LIST
    try:
        reply = yield from ask(address, code, header, timeout_ms=timeout_ms)
    except BrokerError as error:
        if error.code == ResponseCode.CONSUMER_NOT_ONLINE:
            return Connections()
        raise
    return decode_answer(Connections, reply, address)


def find_connections(
    addresses: Iterable[str], group: str, *, timeout_ms: int
) -> Operation[Connections | None]:
    """Return a group's connections from the first broker that has any; None if none answers."""
    found: Connections | None = None
    for address in addresses:
        with suppress(SparrowError):
            found = yield from _connections(address, group, timeout_ms=timeout_ms)
            if found.connection_set:
                return found
    return found


def count_dead_letters(address: str, group: str, *, timeout_ms: int) -> Operation[DeadLetterCount]:
    """Return a group's dead letters at one broker.

    Raises: ConnectFailed, TransportError; BrokerError, for example if access is denied.
    """
    try:
        table = yield from topic_offsets(address, dlq_topic(group), timeout_ms=timeout_ms)
    except BrokerError as error:
        if not _says_none(error):
            raise
        # The topic is made with the group's first dead letter.
        return DeadLetterCount()
    return DeadLetterCount(
        sum(at.max_offset - at.min_offset for at in table.values()),
        max((at.last_update_timestamp_ms for at in table.values()), default=0),
    )


def _dead_letters_seen(
    address: str, group: str, *, timeout_ms: int
) -> Operation[DeadLetterCount | None]:
    """Return a group's dead letters at a broker; None if it denies their topic to who looks.

    An account that may consume in a group need not be allowed the topic of its dead letters.
    """
    try:
        return (yield from count_dead_letters(address, group, timeout_ms=timeout_ms))
    except BrokerError as error:
        if error.is_denial:
            return None
        raise


def group_stats(
    address: str, group: str, *, timeout_ms: int, topic: str | None = None
) -> Operation[AuditedStats]:
    """Return a group's progress at one broker, with the changes of it that no member made.

    Raises: ConnectFailed, TransportError; BrokerError, for example if access is denied.
    """
    header = GetConsumeStatsRequestHeader(consumer_group=group, topic=topic, sparrowmq_audit=True)
    code = RequestCode.GET_CONSUME_STATS
    try:
        reply = yield from ask(address, code, header, timeout_ms=timeout_ms)
    except BrokerError as error:
        if not _says_none(error):
            raise
        # Brokers of some versions refuse the request for a group that has committed nothing.
        return AuditedStats()
    return decode_answer(AuditedStats, reply, address, absent=b"{}")


def _says_none(error: BrokerError) -> bool:
    """Return whether a broker says that it has no such topic or group, or nobody of the group."""
    return error.code in (
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        ResponseCode.CONSUMER_NOT_ONLINE,
    )


def _changes_of(stats: AuditedStats) -> tuple[ProgressChange, ...]:
    return tuple(
        ProgressChange(
            timestamp_ms=record.timestamp_ms,
            kind=record.kind,
            who=f"{record.account} at {record.address}" if record.account else record.address,
            topic=record.topic,
            request_count=record.count,
            detail=record.detail,
            moves=tuple((m.queue_id, m.before, m.after) for m in record.moves),
        )
        for record in stats.sparrowmq_audit
    )


def progress_of(stats: AuditedStats) -> list[QueueProgress]:
    """Return a group's progress in each queue of a broker's answer."""
    return [
        QueueProgress(
            queue,
            at.broker_offset,
            at.consumer_offset,
            at.last_timestamp_ms,
            at.sparrowmq_in_flight or 0,
            at.sparrowmq_acknowledged or 0,
            at.sparrowmq_visible_timestamp_ms or 0,
            at.sparrowmq_deliveries or 0,
            at.sparrowmq_renewals or 0,
            at.sparrowmq_oldest_timestamp_ms or 0,
        )
        for queue, at in stats.offset_table.items()
    ]


def _with_uncommitted(
    directory: Directory, group: str, sample: Sample, topics: Sequence[TopicSnapshot]
) -> Operation[Sample]:
    """Add the queues of topics without a committed offset, which brokers omit."""
    known = {(p.queue.topic, p.queue.broker_name) for p in sample.progress}
    # A broker that was silent a moment ago would be waited for a second time.
    asked = [each for each in sample.brokers if not each.failure or each.is_denied]
    address_of = {broker.broker_name: broker.address for broker in asked}
    missing = [
        (address_of[at.broker_name], topic.topic)
        for topic in topics
        for at in topic.queues
        if (topic.topic, at.broker_name) not in known and at.broker_name in address_of
    ]
    found = yield from gather(
        [
            _progress_quietly(address, group, topic=topic, timeout_ms=directory.timeout_ms)
            for address, topic in missing
        ],
        name=f"offsets of {group}",
        at_once=WIDTH,
    )
    more = [progress for part in found for progress in part]
    return replace(sample, progress=tuple(sorted({*sample.progress, *more})))


def _progress_quietly(
    address: str, group: str, *, topic: str, timeout_ms: int
) -> Operation[list[QueueProgress]]:
    try:
        stats = yield from group_stats(address, group, topic=topic, timeout_ms=timeout_ms)
        return progress_of(stats)
    except SparrowError:
        return []


def _check_group_known(directory: Directory, group: str, sample: Sample) -> Operation[None]:
    """Raise unless a broker knows the group or no broker answered completely."""
    answering = [broker for broker in sample.brokers if not broker.failure]
    if not answering:
        broker = sample.brokers[0]
        raise ConnectFailed(
            f"no broker reports the group; {broker.broker_name} at {broker.address}: "
            f"{broker.failure}",
            address=broker.address,
        )
    if sample.progress or any(broker.cid_all or broker.connections for broker in sample.brokers):
        return
    known: set[str] = set()
    for broker in answering:
        known.update(
            (yield from _settings_of_groups(broker.address, timeout_ms=directory.timeout_ms))
        )
    if group not in known:
        raise unknown_group(group, known)


def _topics_of(group: str, sample: Sample) -> tuple[str, ...]:
    """Return the group's subscribed topics or, without members, the topics of its offsets."""
    subscribed = {s.topic for broker in sample.brokers for s in broker.subscriptions}
    if not subscribed:
        subscribed = {progress.queue.topic for progress in sample.progress}
    has_retries = any(p.queue.topic == retry_topic(group) for p in sample.progress)
    return tuple(sorted(subscribed | ({retry_topic(group)} if has_retries else set())))


def _view_topic(directory: Directory, topic: str) -> Operation[TopicSnapshot]:
    """Ask every name server for the topic's route; raises as `take_snapshot`."""
    routes: dict[str, TopicRouteAnswer] = {}
    failure: SparrowError | None = None
    for server in directory.name_servers.addresses:
        header = GetRouteInfoRequestHeader(topic=topic)
        code = RequestCode.GET_ROUTEINFO_BY_TOPIC
        try:
            reply = yield from ask(server, code, header, timeout_ms=directory.timeout_ms)
            routes[server] = read_route(topic, reply, server)
        except BrokerError as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                routes[server] = TopicRouteAnswer()
            else:
                failure = error
        except SparrowError as error:
            # A name server that does not answer is left out.
            failure = error
    if not routes:
        assert failure is not None, "a directory has at least one name server"
        raise failure
    best = max(routes.values(), key=lambda data: len(data.queue_datas))
    surplus = yield from _surplus_offsets(directory, topic, best)
    cluster_of = {broker.broker_name: broker.cluster or "" for broker in best.broker_datas}
    return TopicSnapshot(
        topic=topic,
        queues=tuple(
            TopicQueues(
                broker_name=data.broker_name,
                read_count=data.read_queue_nums,
                write_count=data.write_queue_nums,
                is_readable=bool(data.perm & PERM_READ),
                is_writable=bool(data.perm & PERM_WRITE),
                cluster=cluster_of.get(data.broker_name, ""),
            )
            for data in sorted(best.queue_datas, key=lambda data: data.broker_name)
        ),
        surplus_offsets=surplus,
        broker_names_by_server=tuple(
            (server, tuple(sorted(data.broker_name for data in route.queue_datas)))
            for server, route in routes.items()
        )
        if len(routes) > 1
        else (),
        static_queues=tuple(filter(is_static, route_from(topic, best, now_ms=0).subscribe_queues)),
    )


def _surplus_offsets(
    directory: Directory, topic: str, route: TopicRouteAnswer
) -> Operation[tuple[tuple[MessageQueue, int], ...]]:
    """Return the number of messages in each queue beyond readQueueNums."""
    read_count = {d.broker_name: d.read_queue_nums for d in route.queue_datas}
    has_surplus = {
        d.broker_name for d in route.queue_datas if d.read_queue_nums < d.write_queue_nums
    }
    found: list[tuple[MessageQueue, int]] = []
    for broker in route.broker_datas:
        if broker.broker_name not in has_surplus or not broker.broker_addrs:
            continue
        address = broker.broker_addrs[min(broker.broker_addrs)]
        name = broker.broker_name
        try:
            bounds = yield from topic_bounds(
                address, topic, broker_name=name, timeout_ms=directory.timeout_ms
            )
        except SparrowError:
            continue
        found += [
            (MessageQueue(topic, name, queue_id), at.max_offset - at.min_offset)
            for queue_id, at in bounds.items()
            if queue_id >= read_count[name] and at.max_offset > at.min_offset
        ]
    return tuple(sorted(found))


def _ask_members(
    directory: Directory, group: str, sample: Sample, *, is_wanted: bool
) -> Operation[tuple[MemberReport, ...]]:
    """Ask each member for its report, through the first broker that it is connected to."""
    through: dict[str, str] = {}
    for broker in sample.brokers:
        for connection in broker.connections:
            through.setdefault(connection.client_id, broker.address)
    client_ids = sorted(through)[:OWNERS_ASKED_MAX] if is_wanted else []
    asking = [_ask_member(directory, group, through[each], each) for each in client_ids]
    first, others = asking[:RUNNING_INFO_MEMBERS_MAX], asking[RUNNING_INFO_MEMBERS_MAX:]
    reports = yield from gather(first, name=f"members of {group}", at_once=WIDTH)
    strategy = join_reported(each.strategy for each in reports if each.strategy)
    if others and strategy is not None and find_named(strategy) is None:
        reports += yield from gather(others, name=f"more members of {group}", at_once=WIDTH)
    return tuple(reports)


def _count_in(properties: Mapping[str, str], name: str) -> int:
    """Return a member's property as a number, 0 where the member tells none."""
    text = properties.get(name, "")
    return int(text) if text.isdecimal() and len(text) <= DIGITS_MAX else 0


def _ask_member(
    directory: Directory, group: str, address: str, client_id: str
) -> Operation[MemberReport]:
    try:
        info = yield from running_info(
            address, group, client_id=client_id, timeout_ms=directory.timeout_ms
        )
    except SparrowError as error:
        return MemberReport(client_id=client_id, is_silent=is_silence(error), failure=str(error))
    return MemberReport(
        client_id=client_id,
        held=tuple(
            HeldQueue(
                queue,
                is_locked=at.locked,
                is_dropped=at.dropped,
                cached_count=at.cached_msg_count,
                commit_offset=at.commit_offset,
                last_pull_timestamp_ms=at.last_pull_timestamp_ms,
                last_consume_timestamp_ms=at.last_consume_timestamp_ms,
                state=at.sparrowmq_state or "",
            )
            for queue, at in sorted(info.mq_table.items())
        ),
        subscriptions=_subscriptions(info.subscription_set),
        paces=tuple(
            TopicPace(topic, at.consume_rt_ms, at.consume_ok_tps, at.consume_failed_tps)
            for topic, at in sorted(info.status_table.items())
        ),
        strategy=parse_strategy_name(info.properties.get("allocateMessageQueueStrategy", "")),
        message_model=info.properties.get("messageModel", ""),
        is_orderly=_ORDERLY.get(info.properties.get("PROP_CONSUMEORDERLY", "")),
        thread_count=_count_in(info.properties, "PROP_THREADPOOL_CORE_SIZE"),
        longest_call_ms=_count_in(info.properties, "listenerCallsLongestMs"),
        messages_per_s_max=_count_in(info.properties, "messagesPerSMax"),
    )


def parse_strategy_name(text: str) -> str:
    """Return the name of the strategy that a member reports, "" if it reports none.

    Args:
        text: a name, or Java's `package.Class@hash`.
    """
    last = text.partition("@")[0].rpartition(".")[2]
    return _STRATEGY_CLASSES.get(last, last)


def _subscriptions(datas: Sequence[SubscriptionData]) -> tuple[SubscriptionView, ...]:
    return tuple(
        sorted(
            SubscriptionView(data.topic, data.sub_string, data.sub_version, data.expression_type)
            for data in datas
        )
    )


def unknown_group(group: str, known: Iterable[str]) -> UsageError:
    """Return the error of a group that no broker knows: it names the nearest, or some."""
    names = sorted(name for name in known if not is_system_group(name))
    named = ", ".join(names[:GROUPS_NAMED_MAX])
    more = f" and {len(names) - GROUPS_NAMED_MAX} more" if len(names) > GROUPS_NAMED_MAX else ""
    hint = did_you_mean(group, names, f"there are {named}{more}" if names else "there are none yet")
    return UsageError(f"no broker knows consumer group {group!r}{hint}")

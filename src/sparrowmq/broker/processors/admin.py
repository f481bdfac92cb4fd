"""Tools' requests: topics, groups, statistics, connections.

Source: AdminBrokerProcessor.java.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from heapq import nsmallest

from msgspec import UNSET, Struct, UnsetType, structs

from sparrowmq.broker.audit_log import QUEUES_MAX
from sparrowmq.broker.consumer_groups import ListedMember
from sparrowmq.broker.rates import Added
from sparrowmq.broker.state import BrokerRefusal, BrokerState
from sparrowmq.broker.subscription_groups import (
    GROUPS_MAX,
    find_group_fault,
    find_settings_fault,
)
from sparrowmq.broker.topic_configs import (
    FILTER_TYPES,
    QUEUE_COUNT_MAX,
    find_name_fault,
    queue_ids,
)
from sparrowmq.model import MessageModel, MessageQueue
from sparrowmq.protocol import bodies
from sparrowmq.protocol.bodies import (
    MESSAGE_TYPE_ATTRIBUTE,
    MESSAGE_TYPES,
    AuditedStats,
    BrokerStatsData,
    BrokerStatsItem,
    ConsumerConnection,
    ConsumeStats,
    ConsumeStatsList,
    CreateTopicListRequestBody,
    GroupList,
    OffsetWrapper,
    ProducerConnection,
    ProducerInfo,
    ProducerTableInfo,
    QuerySubscriptionResponseBody,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    TopicConfig,
    TopicList,
    TopicOffset,
    TopicStatsTable,
    decode_body,
    encode_body,
)
from sparrowmq.protocol.codes import ResponseCode
from sparrowmq.protocol.command import response_to
from sparrowmq.protocol.headers import (
    CreateTopicRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    DeleteTopicRequestHeader,
    GetConsumerConnectionListRequestHeader,
    GetConsumeStatsInBrokerHeader,
    GetConsumeStatsRequestHeader,
    GetProducerConnectionListRequestHeader,
    GetSubscriptionGroupConfigRequestHeader,
    GetTopicConfigRequestHeader,
    GetTopicStatsInfoRequestHeader,
    QuerySubscriptionByConsumerRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
    QueryTopicsByConsumerRequestHeader,
    ViewBrokerStatsDataRequestHeader,
    ViewMessageRequestHeader,
    decode_header,
)
from sparrowmq.protocol.record import scan_records
from sparrowmq.serving.access_control import Permission
from sparrowmq.serving.connections import Connection, Fact, Output, Reply
from sparrowmq.serving.requests import (
    Refusal,
    Request,
    Steps,
    answer,
    answer_aside,
    answer_in_steps,
)

# Queues that are looked up before other requests are served: some milliseconds.
STATS_QUEUES_PER_STEP = 256
# The newest changes of a group's progress in one answer.
AUDIT_ANSWER_MAX = 50


def update_and_create_topic(state: BrokerState, request: Request) -> Sequence[Output]:
    """Make or change a topic; the answer waits until the topic is written and registered."""
    header = decode_header(CreateTopicRequestHeader, request.command.ext_fields)
    before = state.topics.find(header.topic)
    topic = TopicConfig(
        topic_name=header.topic,
        read_queue_nums=header.read_queue_nums,
        write_queue_nums=header.write_queue_nums,
        perm=header.perm,
        topic_filter_type=header.topic_filter_type,
        topic_sys_flag=header.topic_sys_flag or 0,
        order=header.order,
        attributes=_change_attributes(before, _parse_changes(header.attributes)),
    )
    fault = _find_topic_fault(state, topic)
    if fault is not None:
        raise Refusal(ResponseCode.SYSTEM_ERROR, fault)
    facts = _put_topic(state, request, topic)
    return [*_answer_when_safe(state, request, registers=True), *facts]


def _parse_changes(text: str | None) -> dict[str, str]:
    """Return the changes in a text such as `+message.type=FIFO,-other`."""
    pairs = [change.partition("=") for change in text.split(",")] if text else []
    return {name: value for name, _, value in pairs}


def _change_attributes(
    before: TopicConfig | None, changes: Mapping[str, str]
) -> dict[str, str] | UnsetType:
    """Return a topic's attributes after changes."""

    def find_fault(signed: str, value: str) -> str | None:
        if signed == f"+{MESSAGE_TYPE_ATTRIBUTE}" and value in MESSAGE_TYPES:
            return None
        return (
            f"{f'{signed}={value}'!r} is not an attribute of topics here; give "
            f"+{MESSAGE_TYPE_ATTRIBUTE}= and one of {', '.join(MESSAGE_TYPES)}"
        )

    return _apply_changes(before, changes, find_fault)


def _apply_changes(
    before: TopicConfig | SubscriptionGroupConfig | None,
    changes: Mapping[str, str],
    find_fault: Callable[[str, str], str | None],
) -> dict[str, str] | UnsetType:
    """Return attributes after changes: names with a sign, and the new values.

    Args:
        find_fault: returns what is wrong with a change that removes nothing, or None.

    Raises: Refusal.
    """
    found = dict(before.attributes) if before is not None and before.attributes else {}
    for signed, value in changes.items():
        if signed[:1] == "-":
            found.pop(signed[1:], None)
        elif (fault := find_fault(signed, value)) is not None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, fault)
        else:
            found[signed[1:]] = value
    return found or UNSET


def create_topics(state: BrokerState, request: Request) -> Sequence[Output]:
    """Make topics or change them, all or none. Their attributes are changes, as in the header."""
    given = decode_body(CreateTopicListRequestBody, request.command.body).topic_config_list
    topics = [
        structs.replace(
            topic,
            attributes=_change_attributes(
                state.topics.find(topic.topic_name), topic.attributes or {}
            ),
        )
        for topic in given
    ]
    for topic in topics:
        fault = _find_topic_fault(state, topic, added=len(topics))
        if fault is not None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, fault)
    facts = [fact for topic in topics for fact in _put_topic(state, request, topic)]
    return [*_answer_when_safe(state, request, registers=True), *facts]


def _put_topic(state: BrokerState, request: Request, topic: TopicConfig) -> list[Fact]:
    name, before = topic.topic_name, state.topics.find(topic.topic_name)
    state.put_topic(topic, timestamp_ms=request.timestamp_ms)
    return _note_settings(state, request, before, topic, topic=name)


def _find_topic_fault(state: BrokerState, topic: TopicConfig, *, added: int = 1) -> str | None:
    """Return why a topic cannot be made or changed, or None."""
    fault = find_name_fault(topic.topic_name)
    if fault is not None:
        return fault
    if state.topics.is_system(topic.topic_name):
        return f"The topic[{topic.topic_name}] is conflict with system topic."
    for count in (topic.read_queue_nums, topic.write_queue_nums):
        if not 0 <= count <= QUEUE_COUNT_MAX:
            return f"a topic has from 0 to {QUEUE_COUNT_MAX} queues, not {count}"
    if topic.topic_filter_type not in FILTER_TYPES:
        return f"topicFilterType is {topic.topic_filter_type!r}; give {' or '.join(FILTER_TYPES)}"
    count_max = state.config.topics_max
    if state.topics.find(topic.topic_name) is None and len(state.topics) + added > count_max:
        return f"the broker has {count_max} topics at most, which is its limit"
    return None


def delete_topic(state: BrokerState, request: Request) -> Sequence[Output]:
    """Remove a topic and its groups' offsets in it; its records stay until the log drops them."""
    header = decode_header(DeleteTopicRequestHeader, request.command.ext_fields)
    fault = find_name_fault(header.topic)
    if fault is None and state.topics.is_system(header.topic):
        fault = f"The topic[{header.topic}] is conflict with system topic."
    if fault is not None:
        raise Refusal(ResponseCode.SYSTEM_ERROR, fault)
    facts: list[Fact] = []
    if state.topics.remove(header.topic, timestamp_ms=request.timestamp_ms):
        state.note_topics_changed()
        for group in state.offsets.groups_of_topic(header.topic):
            facts += _note_forgotten(state, request, group, header.topic, detail="the topic")
        facts += state.audit.note(request, "deleted", topic=header.topic)
        state.offsets.remove_topic(header.topic)
        state.modes.forget(topic=header.topic)
    return [*_answer_when_safe(state, request, registers=True, removes_offsets=True), *facts]


def update_and_create_group(state: BrokerState, request: Request) -> Sequence[Output]:
    """Make a consumer group's settings or change them."""
    group = decode_body(SubscriptionGroupConfig, request.command.body)
    return _put_groups(state, request, [group])


def create_groups(state: BrokerState, request: Request) -> Sequence[Output]:
    """Make the settings of consumer groups or change them, all or none."""
    groups = decode_body(SubscriptionGroupList, request.command.body).group_config_list
    return _put_groups(state, request, groups)


def _put_groups(
    state: BrokerState, request: Request, groups: Sequence[SubscriptionGroupConfig]
) -> Sequence[Output]:
    for group in groups:
        fault = find_group_fault(group.group_name)
        if fault is not None:
            raise state.refusal(BrokerRefusal.GROUP_NAME, request, ResponseCode.SYSTEM_ERROR, fault)
    changed = [_with_attributes(state.groups.find(group.group_name), group) for group in groups]
    added = {group.group_name for group in groups if state.groups.find(group.group_name) is None}
    fault = None
    if added and len(state.groups) + len(added) > GROUPS_MAX:
        fault = f"the broker has {GROUPS_MAX} groups at most, which is its limit"
    fault = next(filter(None, map(find_settings_fault, changed)), fault)
    if fault is not None:
        raise Refusal(ResponseCode.SYSTEM_ERROR, fault)
    facts: list[Output] = []
    for group in changed:
        before = state.groups.find(group.group_name)
        state.put_group(group, timestamp_ms=request.timestamp_ms)
        facts += _note_settings(state, request, before, group, group=group.group_name)
    return [*_answer_when_safe(state, request, registers=False), *facts]


def _with_attributes(
    before: SubscriptionGroupConfig | None, group: SubscriptionGroupConfig
) -> SubscriptionGroupConfig:
    """Return a group's new settings with its attributes after the changes in them."""

    def find_fault(signed: str, value: str) -> str | None:
        if signed[:1] == "+" and signed[1:]:
            return None
        return f"wrong format key: {signed!r}; give +name with a value, or -name"

    attributes = _apply_changes(before, group.attributes or {}, find_fault)
    return structs.replace(group, attributes=attributes)


def _note_settings(
    state: BrokerState,
    request: Request,
    before: Struct | None,
    after: Struct,
    *,
    group: str = "",
    topic: str = "",
) -> list[Fact]:
    """Note a group or a topic that was made, or whose settings are not the same as before."""
    if before is None:
        return state.audit.note(request, "made", group, topic=topic)
    change = ", ".join(
        f"{name} {getattr(before, name)} → {getattr(after, name)}"
        for name in after.__struct_fields__
        if getattr(before, name) != getattr(after, name)
    )
    return (
        state.audit.note(request, "settings", group, topic=topic, detail=change) if change else []
    )


def _note_forgotten(
    state: BrokerState, request: Request, group: str, topic: str, *, detail: str
) -> list[Fact]:
    """Note that a group loses its offsets of a topic; call it before."""
    offsets = state.offsets.queues(group, topic)
    moves = {queue_id: (offsets[queue_id], None) for queue_id in nsmallest(QUEUES_MAX, offsets)}
    return state.audit.note(request, "deleted", group, topic=topic, moves=moves, detail=detail)


def delete_group(state: BrokerState, request: Request) -> Sequence[Output]:
    """Remove a consumer group's settings and, if asked, its offsets."""
    header = decode_header(DeleteSubscriptionGroupRequestHeader, request.command.ext_fields)
    was_there = state.groups.remove(header.group_name, timestamp_ms=request.timestamp_ms)
    if was_there:
        state.modes.forget(group=header.group_name)
        state.note_groups_changed()
    facts: list[Fact] = []
    removes_offsets = header.remove_offset or header.clean_offset
    if removes_offsets:
        for topic in state.offsets.topics_of_group(header.group_name):
            detail = "the group's offsets"
            facts += _note_forgotten(state, request, header.group_name, topic, detail=detail)
        state.offsets.remove_group(header.group_name)
    if was_there or facts:
        detail = "with its offsets" if removes_offsets else ""
        facts += state.audit.note(request, "deleted", header.group_name, detail=detail)
    safe = _answer_when_safe(state, request, registers=False, removes_offsets=removes_offsets)
    return [*safe, *facts]


def _answer_when_safe(
    state: BrokerState, request: Request, *, registers: bool, removes_offsets: bool = False
) -> Sequence[Output]:
    """Answer once the changes so far survive a crash, and the name servers know them."""
    offsets_round = state.round_of_offsets() if removes_offsets else 0
    if request.command.is_oneway:
        return ()
    return state.pending.add_for_rounds(
        Reply(request.connection, response_to(request.command)),
        journal_round=state.journal.asked,
        registration_round=state.registrations.asked if registers else 0,
        offsets_round=offsets_round,
        now_ms=request.now_ms,
    )


def all_topic_configs(state: BrokerState, request: Request) -> Sequence[Output]:
    """Answer with the table of topics."""
    return answer(request, ext_fields={}, body=encode_body(state.topics.table()))


def topic_config(state: BrokerState, request: Request) -> Sequence[Output]:
    """Answer with one topic's settings."""
    header = decode_header(GetTopicConfigRequestHeader, request.command.ext_fields)
    topic = state.topics.find(header.topic)
    if topic is None:
        raise Refusal(
            ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {header.topic}"
        )
    return answer(request, body=encode_body(topic))


def all_groups(state: BrokerState, request: Request) -> Sequence[Output]:
    """Answer with the table of consumer groups' settings."""
    return answer_aside(request, state.groups.table())


def group_config(state: BrokerState, request: Request) -> Sequence[Output]:
    """Answer with one consumer group's settings."""
    header = decode_header(GetSubscriptionGroupConfigRequestHeader, request.command.ext_fields)
    group = state.groups.find(header.group)
    if group is None:
        raise Refusal(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"No group in this broker. group: {header.group}",
        )
    return answer(request, body=encode_body(group))


def system_topics(state: BrokerState, request: Request) -> Sequence[Output]:
    """Answer with the names reserved for RocketMQ itself."""
    return answer(request, body=encode_body(TopicList(topic_list=state.topics.system_names())))


def topic_stats(state: BrokerState, request: Request) -> Sequence[Output]:
    """Answer with the min offset and the max offset of each queue of a topic."""
    header = decode_header(GetTopicStatsInfoRequestHeader, request.command.ext_fields)
    topic = state.topics.find(header.topic)
    if topic is None:
        raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist")
    return answer_in_steps(request, _topic_stats(state, request, topic))


def _topic_stats(state: BrokerState, request: Request, topic: TopicConfig) -> Steps:
    name, queues = topic.topic_name, state.store.queues
    table: dict[MessageQueue, TopicOffset] = {}
    for queue_id in queue_ids(topic):
        low = max(0, queues.min_offset(name, queue_id))
        high = max(0, queues.max_offset(name, queue_id))
        table[MessageQueue(name, state.config.broker_name, queue_id)] = TopicOffset(
            min_offset=low,
            max_offset=high,
            last_update_timestamp_ms=_store_time(state, name, queue_id, high - 1),
        )
        if queue_id % STATS_QUEUES_PER_STEP == 0:
            yield
    return answer_aside(request, TopicStatsTable(offset_table=table))


def consume_stats(state: BrokerState, request: Request) -> Sequence[Output]:
    """Answer with a group's progress in each queue.

    As in RocketMQ, its tools hear nothing of the topics that a live group no longer subscribes to:
    they would count the messages there as the group's lag.
    """
    header = decode_header(GetConsumeStatsRequestHeader, request.command.ext_fields)
    group, audits = header.consumer_group, bool(header.sparrowmq_audit)
    topics = [name for name in (header.topic_list or "").split(";") if name]
    if not topics:
        topics = [header.topic] if header.topic else _topics_of_group(state, group)
        if not audits:
            topics = _without_left(state, group, topics)
    return answer_in_steps(request, _consume_stats(state, request, group, topics, audits=audits))


def _without_left(state: BrokerState, group: str, topics: Iterable[str]) -> list[str]:
    """Return the topics without those that a live group no longer subscribes to."""
    online = state.consumers.find(group)
    if online is None or not online.subscriptions:
        return list(topics)
    return [name for name in topics if name in online.subscriptions]


def _consume_stats(
    state: BrokerState, request: Request, group: str, topics: Sequence[str], *, audits: bool
) -> Steps:
    table: dict[MessageQueue, OffsetWrapper] = {}
    for name in topics:
        table |= yield from _progress(state, group, name, hides=not audits)
    rate = _consume_rate(state, request, group, topics)
    stats = ConsumeStats(offset_table=table, consume_tps=rate)
    if audits:
        records = state.audit.find(group, topics)[:AUDIT_ANSWER_MAX]
        popped = group in state.pops.popped_groups(now_ms=request.now_ms)
        stats = AuditedStats(
            offset_table=table,
            consume_tps=rate,
            sparrowmq_audit=records,
            sparrowmq_is_popped=popped or None,
        )
    return answer_aside(request, stats)


def _consume_rate(state: BrokerState, request: Request, group: str, topics: Sequence[str]) -> float:
    """Return how many messages of the topics a group has consumed a second in the last minute."""
    found = [state.consumed(group, topic, now_ms=request.now_ms) for topic in topics]
    return round(sum(added[0].per_second for added in found if added is not None), 3)


def _hidden_ids(state: BrokerState, group: str, topic: TopicConfig) -> list[int]:
    """Return the queues that a topic has no more and in which a group left messages behind."""
    name, store = topic.topic_name, state.store.queues
    return sorted(
        queue_id
        for queue_id, offset in state.offsets.queues(group, name).items()
        if queue_id not in queue_ids(topic)
        and max(offset, store.min_offset(name, queue_id)) < store.max_offset(name, queue_id)
    )


def _progress(
    state: BrokerState, group: str, topic: str, *, hides: bool
) -> Generator[None, None, dict[MessageQueue, OffsetWrapper]]:
    """Return a group's progress in each queue of a topic; empty for an unknown topic.

    Args:
        hides: whether to leave out the queues that the topic has no more, as RocketMQ does.
    """
    known = state.topics.find(topic)
    is_pulled = state.pops.is_pulled(group, topic, now_ms=state.now_ms)
    table: dict[MessageQueue, OffsetWrapper] = {}
    ids = [] if known is None else list(range(known.read_queue_nums))
    if known is not None and not hides:
        ids += _hidden_ids(state, group, known)
    for queue_id in ids:
        committed = max(0, state.offsets.find(group, topic, queue_id) or 0)
        popped = state.pops.find(group, topic, queue_id)
        if popped is not None and (is_pulled or committed > popped.commit_offset):
            # Members that pull get again what others popped and acknowledged.
            popped = None
        table[MessageQueue(topic, state.config.broker_name, queue_id)] = OffsetWrapper(
            broker_offset=max(0, state.store.queues.max_offset(topic, queue_id)),
            consumer_offset=committed,
            # Messages that members have pulled beyond the committed offset are not counted.
            pull_offset=committed if popped is None else popped.next_offset,
            last_timestamp_ms=_store_time(state, topic, queue_id, committed - 1),
            sparrowmq_in_flight=None if popped is None else len(popped.flights),
            sparrowmq_visible_timestamp_ms=None if popped is None else popped.visible_timestamp_ms,
            sparrowmq_deliveries=None if popped is None else popped.deliveries,
            sparrowmq_acknowledged=None if popped is None else popped.acknowledged,
            sparrowmq_renewals=None if popped is None else sum(popped.renewals.values()),
            sparrowmq_oldest_timestamp_ms=None
            if popped is None
            else _store_time(state, topic, queue_id, popped.commit_offset),
        )
        if queue_id % STATS_QUEUES_PER_STEP == 0:
            yield
    return table


def broker_consume_stats(state: BrokerState, request: Request) -> Sequence[Output]:
    """Answer with every group's progress in each topic with offsets of the group.

    RocketMQ's tools hear nothing of the topics that a group has left, as in `consume_stats`.
    """
    header = decode_header(GetConsumeStatsInBrokerHeader, request.command.ext_fields)
    return answer_in_steps(request, _broker_consume_stats(state, request, header))


def _broker_consume_stats(
    state: BrokerState, request: Request, header: GetConsumeStatsInBrokerHeader
) -> Steps:
    groups: list[dict[str, list[ConsumeStats]]] = []
    total_diff = 0
    topics_by_group = state.offsets.topics_by_group()
    for group in sorted(state.groups.table().subscription_group_table):
        stats, topics = [], sorted(topics_by_group.get(group, ()))
        online = state.consumers.find(group)
        if not header.sparrowmq_left:
            topics = _without_left(state, group, topics)
        elif online is not None and online.message_model is MessageModel.BROADCASTING:
            # A reset, or members in CLUSTERING, left offsets that say nothing of these members.
            topics = []
        for name in topics:
            topic = state.topics.find(name)
            if topic is not None and (topic.order or not header.is_order):
                table = yield from _progress(state, group, name, hides=True)
                total_diff += sum(
                    at.broker_offset - (at.consumer_offset or 0) for at in table.values()
                )
                rate = _consume_rate(state, request, group, [name])
                stats.append(ConsumeStats(offset_table=table, consume_tps=rate))
        groups.append({group: stats})
    body = ConsumeStatsList(
        consume_stats_list=groups,
        broker_addr=state.config.address,
        total_diff=total_diff,
        sparrowmq_popped=sorted(state.pops.popped_groups(now_ms=request.now_ms)) or None,
    )
    return answer_aside(request, body)


def broker_stats_data(state: BrokerState, request: Request) -> Sequence[Output]:
    """Answer with a topic's or a group's message counts of the last minute, hour and day."""
    header = decode_header(ViewBrokerStatsDataRequestHeader, request.command.ext_fields)
    name, key = header.stats_name, header.stats_key
    added: tuple[Added, ...] | None = None
    if name == "TOPIC_PUT_NUMS":
        topic = state.topics.find(key)
        if topic is not None:
            total = state.count_stored(topic)
            added = state.stored_totals.added(request.now_ms, key, total)
    elif name == "GROUP_GET_NUMS":
        topic_name, _, group = key.partition("@")
        added = state.consumed(group, topic_name, now_ms=request.now_ms)
    if added is None:
        raise Refusal(ResponseCode.SYSTEM_ERROR, f"The stats <{name}> <{key}> not exist")
    minute, hour, day = (
        BrokerStatsItem(sum=count, tps=per_second, avgpt=float(count > 0))
        for count, per_second in added
    )
    body = BrokerStatsData(stats_minute=minute, stats_hour=hour, stats_day=day)
    return answer(request, body=encode_body(body))


def _topics_of_group(state: BrokerState, group_name: str) -> list[str]:
    topics = set(state.offsets.topics_of_group(group_name))
    group = state.consumers.find(group_name)
    if group is not None:
        topics |= group.subscriptions.keys()
    return sorted(topics)


def _store_time(state: BrokerState, topic: str, queue_id: int, offset: int) -> int:
    """Return the store time of the message at an offset, 0 without a message."""
    if offset < 0:
        return 0
    return state.store.queues.store_timestamp(topic, queue_id, offset) or 0


def topic_consumed_by(state: BrokerState, request: Request) -> Sequence[Output]:
    """Answer with the groups that subscribe to a topic or have offsets in it."""
    header = decode_header(QueryTopicConsumeByWhoRequestHeader, request.command.ext_fields)
    groups = {
        *state.consumers.groups_of_topic(header.topic),
        *state.offsets.groups_of_topic(header.topic),
    }
    return answer(request, body=encode_body(GroupList(group_list=sorted(groups))))


def consumer_connections(state: BrokerState, request: Request) -> Sequence[Output]:
    """Answer with the connections of a consumer group."""
    header = decode_header(GetConsumerConnectionListRequestHeader, request.command.ext_fields)
    group = state.consumers.find(header.consumer_group)
    if group is None:
        raise Refusal(
            ResponseCode.CONSUMER_NOT_ONLINE,
            f"the consumer group[{header.consumer_group}] not online",
        )
    body = ConsumerConnection(
        connection_set=_connection_set(group.members),
        subscription_table={topic: s.data for topic, s in group.subscriptions.items()},
        consume_type=group.consume_type,
        message_model=group.message_model,
        consume_from_where=group.consume_from_where,
    )
    return answer(request, body=encode_body(body))


def producer_connections(state: BrokerState, request: Request) -> Sequence[Output]:
    """Answer with the connections of a producer group."""
    header = decode_header(GetProducerConnectionListRequestHeader, request.command.ext_fields)
    members = state.producers.find(header.producer_group)
    if members is None:
        raise Refusal(
            ResponseCode.SYSTEM_ERROR,
            f"the producer group[{header.producer_group}] not exist",
        )
    body = ProducerConnection(connection_set=_connection_set(members))
    return answer(request, body=encode_body(body))


def all_producers(state: BrokerState, request: Request) -> Sequence[Output]:
    """Answer with the connections of every producer group."""
    table = {
        group: [
            ProducerInfo(
                client_id=member.client_id,
                remote_ip=f"/{connection.address}",
                language=None if member.language is None else member.language.name,
                version=member.version,
                last_update_timestamp_ms=request.timestamp_ms - (request.now_ms - member.seen_ms),
            )
            for connection, member in members.items()
        ]
        for group, members in state.producers.all()
    }
    return answer(request, body=encode_body(ProducerTableInfo(data=table)))


def topics_of_consumer(state: BrokerState, request: Request) -> Sequence[Output]:
    """Answer with the topics in which a group has committed offsets."""
    header = decode_header(QueryTopicsByConsumerRequestHeader, request.command.ext_fields)
    topics = state.offsets.topics_of_group(header.group)
    body = TopicList(topic_list=topics, broker_addr=state.config.address)
    return answer(request, body=encode_body(body))


def subscription_of_consumer(state: BrokerState, request: Request) -> Sequence[Output]:
    """Answer with a group's subscription to a topic, None without a subscription."""
    header = decode_header(QuerySubscriptionByConsumerRequestHeader, request.command.ext_fields)
    group = state.consumers.find(header.group)
    found = None if group is None else group.subscriptions.get(header.topic)
    body = QuerySubscriptionResponseBody(
        group=header.group,
        topic=header.topic,
        subscription_data=None if found is None else found.data,
    )
    return answer(request, body=encode_body(body))


def _connection_set(members: Mapping[Connection, ListedMember]) -> list[bodies.ClientConnection]:
    return [
        bodies.ClientConnection(
            client_id=member.client_id,
            client_addr=connection.address,
            language=None if member.language is None else member.language.name,
            version=member.version,
        )
        for connection, member in members.items()
    ]


def clean_queues(state: BrokerState, request: Request) -> Sequence[Output]:
    """Sweep the queues: remove expired files, and the expired queues of deleted topics.

    Differs from RocketMQ: its CLEAN_UNUSED_TOPIC removes queues whose messages the log still has,
    and its CLEAN_EXPIRED_CONSUMEQUEUE removes queues of existing topics. The offsets of such queues
    begin anew, and their consumers wait for offsets that they have passed already.
    """
    state.store.ask_sweep()
    return answer(request)


def delete_expired_messages(state: BrokerState, request: Request) -> Sequence[Output]:
    """Ask for the removal of expired messages at any hour."""
    state.retention.ask()
    return answer(request)


def view_message(state: BrokerState, request: Request) -> Sequence[Output]:
    """Answer with the record at a position of the commit log."""
    header = decode_header(ViewMessageRequestHeader, request.command.ext_fields)
    data = state.read_named(header.position)
    if data is None:
        raise Refusal(
            ResponseCode.SYSTEM_ERROR,
            f"can not find message by the offset, {header.position}",
        )
    for topic, _, _ in scan_records(data):
        state.check_access(request, topic, Permission.SUB)
    return answer(request, body=data)

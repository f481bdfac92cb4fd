"""Tools' requests about a group's offsets: reset, copy, compare, ask the members for theirs.

Source: AdminBrokerProcessor.java, Broker2Client.java.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from msgspec import structs

from sparrowmq.broker.processors.admin import STATS_QUEUES_PER_STEP
from sparrowmq.broker.state import BrokerState
from sparrowmq.broker.topic_configs import queue_ids
from sparrowmq.errors import ProtocolError
from sparrowmq.model import MessageQueue
from sparrowmq.model.queue import OFFSET_MAX
from sparrowmq.protocol.bodies import (
    ConsumeQueueData,
    GetConsumerStatusBody,
    QueryConsumeQueueResponseBody,
    QueryConsumeTimeSpanBody,
    QueryCorrectionOffsetBody,
    QueueTimeSpan,
    ResetOffsetBody,
    TopicConfig,
    decode_body,
    encode_body,
)
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.headers import (
    CloneGroupOffsetRequestHeader,
    GetConsumerStatusRequestHeader,
    QueryConsumeQueueRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
    QueryCorrectionOffsetHeader,
    ResetOffsetRequestHeader,
    decode_header,
    encode_header,
)
from sparrowmq.serving.connections import Output
from sparrowmq.serving.requests import (
    Refusal,
    Request,
    Steps,
    answer,
    answer_aside,
    answer_in_steps,
    serve_aside,
)

# How long a broker waits for a member's own offsets: tools wait for 5 s.
STATUS_TIMEOUT_MS = 3_000
# The answers of members that are read for one answer; further members are left out. Some 40,000
# queues.
STATUS_BYTES_MAX = 4 << 20
# Entries of a consume queue in one answer.
ENTRIES_MAX = 1_024


def reset_offset(state: BrokerState, request: Request) -> Sequence[Output]:
    """Push new offsets to the members of a group: in each queue the first since an instant.

    Each member drops its cached messages, takes the offsets and commits them. Tools commit the
    offsets themselves if the group has no member. As in 5.x, a tool may name one queue, and an
    offset in it; without a member the broker commits that itself. It also commits for a group that
    does not pull: members that pop have no offsets of their own. Differs from RocketMQ: a queue
    without a committed offset is reset too, if the group has a committed offset of another queue.
    Queues that the topic only reads are reset as well. Differs from RocketMQ 4, whose offset is
    that of the message stored nearest to the instant.
    """
    header = decode_header(ResetOffsetRequestHeader, request.command.ext_fields)
    topic = _find_topic(
        state, header.topic, ResponseCode.SYSTEM_ERROR,
        f"[reset-offset] reset offset failed, no topic in this broker. topic={header.topic}",
    )  # fmt: skip
    if not state.offsets.queues(header.group, header.topic):
        raise Refusal(ResponseCode.SYSTEM_ERROR, f"THe consumer group <{header.group}> not exist")
    if (queue_id := _one_queue(header)) is not None:
        _check_place(state, header.topic, queue_id, _given_offset(header))
    return answer_in_steps(request, _reset(state, request, header, topic))


def _one_queue(header: ResetOffsetRequestHeader) -> int | None:
    """Return the queue that a request names, None if it names none."""
    return None if header.queue_id is None or header.queue_id < 0 else header.queue_id


def _given_offset(header: ResetOffsetRequestHeader) -> int | None:
    """Return the offset that a request names in its queue, None if it names none."""
    return None if _one_queue(header) is None or header.offset == -1 else header.offset


def _check_place(state: BrokerState, topic: str, queue_id: int, offset: int | None) -> None:
    """Refuse a queue that the topic does not have, or an offset that the queue does not have.

    Raises: Refusal.
    """
    if not state.has_queue(MessageQueue(topic, state.config.broker_name, queue_id)):
        raise Refusal(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic} is not exist!")
    queues = state.store.queues
    low, high = queues.min_offset(topic, queue_id), queues.max_offset(topic, queue_id)
    if offset is not None and not low <= offset <= high:
        raise Refusal(
            ResponseCode.SYSTEM_ERROR,
            f"Target offset {offset} not in consume queue range [{low}-{high}]",
        )


def _reset(
    state: BrokerState, request: Request, header: ResetOffsetRequestHeader, topic: TopicConfig
) -> Steps:
    name, one_queue = header.topic, _one_queue(header)
    committed = dict(state.offsets.queues(header.group, name))
    table: dict[MessageQueue, int] = {}
    moves: dict[int, tuple[int | None, int]] = {}
    for queue_id in queue_ids(topic) if one_queue is None else (one_queue,):
        offset = _new_offset(state, header, queue_id, committed.get(queue_id))
        table[MessageQueue(name, state.config.broker_name, queue_id)] = offset
        moves[queue_id] = (committed.get(queue_id), offset)
        if queue_id % STATS_QUEUES_PER_STEP == 0:
            yield
    group = state.consumers.find(header.group)
    if group is None and one_queue is None:
        raise Refusal(
            ResponseCode.CONSUMER_NOT_ONLINE,
            f"Consumer not online, so can not reset offset, Group: {header.group} "
            f"Topic: {name} Timestamp: {header.timestamp_ms}",
        )
    if group is None or not state.pops.is_pulled(header.group, name, now_ms=request.now_ms):
        for queue, offset in table.items():
            state.offsets.commit(header.group, name, queue.queue_id, offset=offset)
    # The table names the queues.
    fields = encode_header(structs.replace(header, queue_id=None, offset=None))
    code, members = RequestCode.RESET_CONSUMER_CLIENT_OFFSET, () if group is None else group.members
    pushes = [state.push(member, code, fields) for member in members]
    facts = state.audit.note(request, "reset", header.group, topic=name, moves=moves)

    def encode() -> Sequence[Output]:
        body = encode_body(ResetOffsetBody(offset_table=table))
        for push in pushes:
            push.command.body = body
        return [*pushes, *answer(request, body=body), *facts]

    return serve_aside(request, encode)


def _new_offset(
    state: BrokerState, header: ResetOffsetRequestHeader, queue_id: int, committed: int | None
) -> int:
    """Return where a group goes on in a queue."""
    if (given := _given_offset(header)) is not None:
        return given
    queues = state.store.queues
    if header.timestamp_ms == -1:
        offset = queues.max_offset(header.topic, queue_id)
    else:
        offset = queues.boundary(header.topic, queue_id, header.timestamp_ms)
    return offset if header.is_force or committed is None else min(offset, committed)


def consumer_status(state: BrokerState, request: Request) -> Sequence[Output]:
    """Answer with the members' own offsets of a group, by client id.

    A member that does not answer is left out.
    """
    header = decode_header(GetConsumerStatusRequestHeader, request.command.ext_fields)
    group = state.consumers.find(header.group)
    members = {
        connection: member.client_id
        for connection, member in (group.members.items() if group is not None else ())
        if not header.client_addr or member.client_id == header.client_addr
    }
    if not members:
        raise Refusal(
            ResponseCode.SYSTEM_ERROR,
            f"No Any Consumer online in the consumer group: [{header.group}]",
        )
    state.relays.check_room(len(members))
    status = _Status(left=len(members))
    outputs: list[Output] = []
    for connection, client_id in members.items():
        outputs += state.relays.ask(
            request,
            connection,
            code=RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
            fields=encode_header(header),
            timeout_ms=STATUS_TIMEOUT_MS,
            finish=partial(status.note, client_id),
        )
    return outputs


@dataclass(slots=True)
class _Status:
    """The answers of a group's members, and the number of missing answers."""

    left: int
    bodies: dict[str, bytes] = field(default_factory=dict)

    def note(self, client_id: str, request: Request, response: RemotingCommand) -> Sequence[Output]:
        """Keep one answer; after the last one, answer the request."""
        self.left -= 1
        data = response.body or b""
        size = sum(map(len, self.bodies.values())) + len(data)
        if response.code == ResponseCode.SUCCESS and data and size <= STATUS_BYTES_MAX:
            self.bodies[client_id] = data
        # Members may answer with bodies that take a second to read: a thread reads them.
        return () if self.left else serve_aside(request, partial(self._answer, request))

    def _answer(self, request: Request) -> Sequence[Output]:
        table: dict[str, dict[MessageQueue, int]] = {}
        for client_id, data in self.bodies.items():
            try:
                table[client_id] = decode_body(GetConsumerStatusBody, data).message_queue_table
            except ProtocolError:
                table[client_id] = {}
        return answer(request, body=encode_body(GetConsumerStatusBody(consumer_table=table)))


def clone_offsets(state: BrokerState, request: Request) -> Sequence[Output]:
    """Copy one group's offsets to another group, in one topic or in all topics.

    Unless the source group counts as offline, topics that it does not subscribe to are left out.
    Differs from RocketMQ: without a topic all topics are copied (4.9.7 copies none), and an illegal
    group is refused.
    """
    header = decode_header(CloneGroupOffsetRequestHeader, request.command.ext_fields)
    target = header.dest_group
    if state.find_group(target, timestamp_ms=request.timestamp_ms) is None:
        raise Refusal(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {target}"
        )
    return answer_in_steps(request, _clone(state, request, header))


def _clone(state: BrokerState, request: Request, header: CloneGroupOffsetRequestHeader) -> Steps:
    source, target = header.src_group, header.dest_group
    online = state.consumers.find(source)
    facts: list[Output] = []
    for name in [header.topic] if header.topic else state.offsets.topics_of_group(source):
        is_left = not header.offline and online is not None and name not in online.subscriptions
        if is_left or state.topics.find(name) is None:
            continue
        moves: dict[int, tuple[int | None, int]] = {}
        for queue_id, offset in dict(state.offsets.queues(source, name)).items():
            moves[queue_id] = (state.offsets.find(target, name, queue_id), offset)
            state.offsets.commit(target, name, queue_id, offset=offset)
            if len(moves) % STATS_QUEUES_PER_STEP == 0:
                yield
        detail = f"from group {source}"
        facts += state.audit.note(request, "copied", target, topic=name, moves=moves, detail=detail)
        yield
    return [*answer(request), *facts]


def correction_offsets(state: BrokerState, request: Request) -> Sequence[Output]:
    """Answer with the lowest offset, per queue, that the groups of a topic have committed.

    Offsets of messages that have expired do not count, nor do the groups that are filtered out. If
    a group to compare with is behind the lowest offset, the answer is the largest possible offset.
    Differs from RocketMQ, which forgets the offsets of the groups that are filtered out.
    """
    header = decode_header(QueryCorrectionOffsetHeader, request.command.ext_fields)
    return answer_in_steps(request, _correction(state, request, header))


def _correction(state: BrokerState, request: Request, header: QueryCorrectionOffsetHeader) -> Steps:
    filtered = (header.filter_groups or "").split(",")
    lowest: dict[int, int] = {}
    for group in state.offsets.groups_of_topic(header.topic):
        if group in filtered:
            continue
        for queue_id, offset in dict(state.offsets.queues(group, header.topic)).items():
            if offset >= state.store.queues.min_offset(header.topic, queue_id):
                lowest[queue_id] = min(offset, lowest.get(queue_id, offset))
            if queue_id % STATS_QUEUES_PER_STEP == 0:
                yield
        yield
    compared = state.offsets.queues(header.compare_group, header.topic)
    for queue_id, offset in compared.items():
        if queue_id in lowest and lowest[queue_id] > offset:
            lowest[queue_id] = OFFSET_MAX
    return answer(request, body=encode_body(QueryCorrectionOffsetBody(correction_offsets=lowest)))


def consume_time_span(state: BrokerState, request: Request) -> Sequence[Output]:
    """Answer with the age of each queue's messages, and of the group's next message."""
    header = decode_header(QueryConsumeTimeSpanRequestHeader, request.command.ext_fields)
    name = header.topic
    topic = _find_topic(state, name, ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist")
    return answer_in_steps(request, _time_span(state, request, header.group, topic))


def _time_span(state: BrokerState, request: Request, group: str, topic: TopicConfig) -> Steps:
    name, queues = topic.topic_name, state.store.queues
    spans: list[QueueTimeSpan] = []
    for queue_id in queue_ids(topic):
        low, high = queues.min_offset(name, queue_id), queues.max_offset(name, queue_id)
        begin_ms = _stored_at(state, name, queue_id, low)
        committed = state.offsets.find(group, name, queue_id)
        consumed_ms = begin_ms
        if committed:
            consumed_ms = _stored_at(state, name, queue_id, committed - 1)
        delay_ms = 0
        # A group without an offset begins at the first message.
        next_offset = low if committed is None else max(committed, low)
        if next_offset < high:
            delay_ms = request.timestamp_ms - _stored_at(state, name, queue_id, next_offset)
        spans.append(
            QueueTimeSpan(
                message_queue=MessageQueue(name, state.config.broker_name, queue_id),
                min_timestamp_ms=begin_ms,
                max_timestamp_ms=_stored_at(state, name, queue_id, high - 1),
                consume_timestamp_ms=consumed_ms,
                delay_time_ms=delay_ms,
            )
        )
        if queue_id % STATS_QUEUES_PER_STEP == 0:
            yield
    return answer_aside(request, QueryConsumeTimeSpanBody(consume_time_span_set=spans))


def _stored_at(state: BrokerState, topic: str, queue_id: int, offset: int) -> int:
    """Return the store time of a message, -1 without a message."""
    found = state.store.queues.store_timestamp(topic, queue_id, offset) if offset >= 0 else None
    return -1 if found is None else found


def consume_queue(state: BrokerState, request: Request) -> Sequence[Output]:
    """Answer with entries of a queue as in its file, and the group's subscription.

    Differs from RocketMQ: for an index that the queue does not have, the answer has a body without
    entries. RocketMQ answers without a body, which its tools cannot read.
    """
    header = decode_header(QueryConsumeQueueRequestHeader, request.command.ext_fields)
    name, queue_id = header.topic, header.queue_id
    if not state.has_queue(MessageQueue(name, state.config.broker_name, queue_id)):
        raise Refusal(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{name} is not exist!")
    subscription = filter_data = None
    if header.consumer_group:
        group = state.consumers.find(header.consumer_group)
        found = None if group is None else group.subscriptions.get(name)
        subscription = None if found is None else found.data
        # RocketMQ answers "null" for a subscription that needs no data for a filter.
        filter_data = f"{header.consumer_group}@{name} is not online!" if found is None else "null"
    entries: list[ConsumeQueueData] = []
    queues = state.store.queues
    for index in range(header.index, header.index + min(header.count, ENTRIES_MAX)):
        entry = queues.entry(name, queue_id, index)
        if entry is None:
            break
        position, size, tags_code = entry
        entries.append(ConsumeQueueData(position=position, size=size, tags_code=tags_code))
    body = QueryConsumeQueueResponseBody(
        queue_data=entries,
        max_queue_index=queues.max_offset(name, queue_id),
        min_queue_index=queues.min_offset(name, queue_id),
        subscription_data=subscription,
        filter_data=filter_data,
    )
    remark = None if entries else f"Index {header.index} of {queue_id}@{name} is not exist!"
    return answer(request, remark=remark, body=encode_body(body))


def _find_topic(state: BrokerState, name: str, code: int, remark: str) -> TopicConfig:
    """Return a topic's settings. Raises: Refusal."""
    topic = state.topics.find(name)
    if topic is None:
        raise Refusal(code, remark)
    return topic

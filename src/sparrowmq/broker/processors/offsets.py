"""Requests for a queue's offsets and for a group's offsets, and commits.

Source: ConsumerManageProcessor.java, AdminBrokerProcessor.java.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparrowmq.broker.state import BrokerRefusal, BrokerState
from sparrowmq.model import MessageQueue
from sparrowmq.protocol.bodies import encode_body, join_offset_tables
from sparrowmq.protocol.codes import ResponseCode
from sparrowmq.protocol.headers import (
    GetEarliestMsgStoretimeRequestHeader,
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    QueryConsumerOffsetRequestHeader,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
    decode_header,
)
from sparrowmq.serving.connections import Output
from sparrowmq.serving.requests import Refusal, Request, Steps, answer, answer_in_steps

# Offsets that are encoded before other requests are served: some milliseconds.
OFFSETS_PER_STEP = 8_192


def query_consumer_offset(state: BrokerState, request: Request) -> Sequence[Output]:
    """Answer with the committed offset, or with 0 for a new group of a small queue.

    RocketMQ answers 0, not "not found", while the queue still has its first message and the message
    is so near the log's end that it would be in memory. On any small broker a new group therefore
    reads from the beginning, whatever its own start rule; applications rely on this. As in 5.x, a
    request with `setZeroIfNotFound=false` is answered with "not found".
    """
    header = decode_header(QueryConsumerOffsetRequestHeader, request.command.ext_fields)
    offset = state.offsets.find(header.consumer_group, header.topic, header.queue_id)
    if offset is None:
        if header.set_zero_if_not_found is False:
            raise Refusal(
                ResponseCode.QUERY_NOT_FOUND,
                "Not found, do not set to zero, maybe this group boot first",
                ext_fields={},
            )
        if not begins_in_memory(state, header.topic, header.queue_id):
            raise Refusal(
                ResponseCode.QUERY_NOT_FOUND,
                "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first",
                ext_fields={},
            )
        offset = 0
    return answer(request, ext_fields={"offset": str(offset)})


def begins_in_memory(state: BrokerState, topic: str, queue_id: int) -> bool:
    """Return whether a queue's first message would be in memory, so that new groups begin there."""
    store = state.store
    if store.queues.min_offset(topic, queue_id) > 0:
        return False
    first = store.queues.entry(topic, queue_id, 0)
    if first is None:
        return True
    return store.appended_position - first[0] <= state.config.in_memory_bytes_max


def update_consumer_offset(state: BrokerState, request: Request) -> Sequence[Output]:
    """Store a committed offset, even one below the stored offset unless it comes late.

    Lowering an offset must work: Java's clients and tools reset and correct offsets by this
    request. Only a member whose queue another listed member has locked cannot mean it: it stood
    still and does not know yet that it is the former owner. Its commit is answered and ignored.
    Differs from RocketMQ 4.9: offsets of topics that do not exist are refused, as in 5.x, and of
    queues that neither exist nor have had messages, so the table stays bounded. Differs from
    RocketMQ: an offset far beyond the queue's end is refused, since the group would skip messages
    that are yet to come.
    """
    header = decode_header(UpdateConsumerOffsetRequestHeader, request.command.ext_fields)
    topic = state.topics.find(header.topic)
    if topic is None:
        raise Refusal(
            ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic} not exist!", ext_fields={}
        )
    queue_count = max(topic.read_queue_nums, topic.write_queue_nums)
    queue = MessageQueue(header.topic, state.config.broker_name, header.queue_id)
    if not state.has_queue(queue) or header.commit_offset < 0:
        raise Refusal(
            ResponseCode.SYSTEM_ERROR,
            f"offset {header.commit_offset} of queueId[{header.queue_id}] is illegal, "
            f"topic {header.topic} has {queue_count} queues",
            ext_fields={},
        )
    if not state.may_commit(header.topic, header.queue_id, offset=header.commit_offset):
        end = state.store.queues.max_offset(header.topic, header.queue_id)
        raise state.refusal(
            BrokerRefusal.COMMIT_BEYOND_END,
            request,
            ResponseCode.SYSTEM_ERROR,
            f"offset {header.commit_offset} of group {header.consumer_group!r} is far beyond the "
            f"end of topic {header.topic} queueId[{header.queue_id}], which is {end}",
        )
    group = state.find_group(header.consumer_group, timestamp_ms=request.timestamp_ms)
    if group is None:
        raise Refusal(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"Group {header.consumer_group} not exist!",
            ext_fields={},
        )
    late = _find_lateness(state, request, header)
    if late is not None:
        ignored = state.refusals.note(BrokerRefusal.LATE_COMMIT, late, now_ms=request.now_ms)
        return [*answer(request, ext_fields={}), *ignored]
    name, topic_name, queue_id = header.consumer_group, header.topic, header.queue_id
    before, facts = state.offsets.find(name, topic_name, queue_id), list[Output]()
    # A member that has just connected again commits before its heartbeat. Java's do not name
    # themselves, but lower no offset then.
    is_lowered = (before or 0) > header.commit_offset
    is_members = header.sparrowmq_client_id is not None or state.is_member(name, request.connection)
    if (header.sparrowmq_audit or is_lowered) and not is_members:
        moves = {queue_id: (before, header.commit_offset)}
        facts += state.audit.note(request, "set", name, topic=topic_name, moves=moves)
    state.offsets.commit(name, topic_name, queue_id, offset=header.commit_offset)
    return [*answer(request, ext_fields={}), *facts]


def _find_lateness(
    state: BrokerState, request: Request, header: UpdateConsumerOffsetRequestHeader
) -> str | None:
    """Return why a commit is a former owner's that would set the group back, None if it is not."""
    name, topic, queue_id = header.consumer_group, header.topic, header.queue_id
    known = state.offsets.find(name, topic, queue_id)
    if known is None or header.commit_offset >= known:
        return None
    queue = MessageQueue(topic, state.config.broker_name, queue_id)
    holder = state.locks.find_owner(name, queue, now_ms=request.now_ms)
    group = state.consumers.find(name)
    if holder is None or group is None or not group.lists(holder):
        return None
    # Java's members do not name themselves; tools are in no group.
    listed = group.members.get(request.connection)
    committer = header.sparrowmq_client_id or (None if listed is None else listed.client_id)
    if committer is None or committer == holder:
        return None
    return (
        f"ignored offset {header.commit_offset} of group {name!r} in {queue}, which is at {known}: "
        f"{committer!r} commits late, {holder!r} has the queue"
    )


def max_offset(state: BrokerState, request: Request) -> Sequence[Output]:
    """Answer with the offset of the queue's next message."""
    header = decode_header(GetMaxOffsetRequestHeader, request.command.ext_fields)
    offset = max(0, state.store.queues.max_offset(header.topic, header.queue_id))
    return answer(request, ext_fields={"offset": str(offset)})


def min_offset(state: BrokerState, request: Request) -> Sequence[Output]:
    """Answer with the offset of the queue's oldest message."""
    header = decode_header(GetMinOffsetRequestHeader, request.command.ext_fields)
    offset = max(0, state.store.queues.min_offset(header.topic, header.queue_id))
    return answer(request, ext_fields={"offset": str(offset)})


def search_offset(state: BrokerState, request: Request) -> Sequence[Output]:
    """Answer with the offset of an instant: nearest to it, or the boundary that 5.x asks for."""
    header = decode_header(SearchOffsetRequestHeader, request.command.ext_fields)
    queues, place = state.store.queues, (header.topic, header.queue_id, header.timestamp_ms)
    if header.boundary_type is None:
        offset = queues.offset_by_time(*place)
    else:
        # As RocketMQ, which takes any other word for LOWER.
        offset = queues.boundary(*place, is_upper=header.boundary_type.upper() == "UPPER")
    return answer(request, ext_fields={"offset": str(offset)})


def earliest_store_time(state: BrokerState, request: Request) -> Sequence[Output]:
    """Answer with the store time of the queue's oldest message, -1 for an empty queue."""
    header = decode_header(GetEarliestMsgStoretimeRequestHeader, request.command.ext_fields)
    found = state.store.queues.earliest_timestamp(header.topic, header.queue_id)
    return answer(request, ext_fields={"timestamp": str(-1 if found is None else found)})


def all_consumer_offsets(state: BrokerState, request: Request) -> Sequence[Output]:
    """Answer with the table of committed offsets."""
    return answer_in_steps(request, _all_consumer_offsets(state, request))


def _all_consumer_offsets(state: BrokerState, request: Request) -> Steps:
    parts: list[bytes] = []
    for part in state.offsets.parts(OFFSETS_PER_STEP):
        parts.append(encode_body(part))
        yield
    return answer(request, body=join_offset_tables(parts))


def all_delay_offsets(state: BrokerState, request: Request) -> Sequence[Output]:
    """Answer with the offset of the next message of each delay level."""
    return answer(request, body=encode_body(state.delays.table()))

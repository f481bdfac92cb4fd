"""PEEK_MESSAGE, NOTIFICATION and POLLING_INFO: look at what could be popped, and pop nothing.

Source: PeekMessageProcessor.java, NotificationProcessor.java, PollingInfoProcessor.java of 5.5.0.
Tests: broker/test_pop_questions.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from sparrowmq.broker.message_filter import MessageFilter
from sparrowmq.broker.processors.pop import POP_BYTES_MAX
from sparrowmq.broker.processors.pull import (
    ALL_QUEUES,
    check_consuming,
    check_held_pop,
    check_way,
    find_consuming_group,
    find_queues,
    hold,
    without_finished,
)
from sparrowmq.broker.pull_hold import HELD_MAX, SUSPEND_MS_MAX, HeldPull, notice_place, pop_place
from sparrowmq.broker.state import BrokerState
from sparrowmq.protocol.bodies import TopicConfig
from sparrowmq.protocol.codes import ResponseCode
from sparrowmq.protocol.command import RemotingCommand, response_to
from sparrowmq.protocol.headers import decode_header, encode_header
from sparrowmq.protocol.pop_handle import (
    POP_COUNT_MAX,
    NotificationRequestHeader,
    PeekMessageRequestHeader,
    PollingInfoRequestHeader,
    PopMessageResponseHeader,
)
from sparrowmq.serving.connections import Output, Reply
from sparrowmq.serving.requests import Request, answer
from sparrowmq.store.results import GetStatus


def peek(state: BrokerState, request: Request) -> Sequence[Output]:
    """Answer with the next messages of a group that were never popped."""
    header = decode_header(PeekMessageRequestHeader, request.command.ext_fields)
    topic = find_queues(state, request.connection, header.topic, header.queue_id)
    find_consuming_group(state, request, header.consumer_group)
    left, size, rest, found = min(header.max_msg_nums, POP_COUNT_MAX), 0, 0, list[bytes]()
    named = _queue_ids(topic, header.queue_id)
    for queue_id in without_finished(state, header.consumer_group, header.topic, named):
        offset = _next_offset(state, header.consumer_group, header.topic, queue_id)
        rest += max(0, state.store.queues.max_offset(header.topic, queue_id) - offset)
        if left > 0 and size < POP_BYTES_MAX:
            result = state.store.queues.get(
                header.topic,
                queue_id,
                queue_offset=offset,
                count_max=left,
                bytes_max=POP_BYTES_MAX - size,
            )
            found.append(result.records)
            left -= result.count
            rest -= result.count
            size += len(result.records)
    # Java's client reads the answer as one to a pop, whose fields it wants.
    fields = PopMessageResponseHeader(
        pop_timestamp_ms=0, invisible_time_ms=0, revive_qid=0, rest_num=rest
    )
    body = b"".join(found)
    status = GetStatus.FOUND if body else GetStatus.NO_MESSAGE_IN_QUEUE
    return answer(
        request,
        ResponseCode.SUCCESS if body else ResponseCode.PULL_NOT_FOUND,
        remark=status.name,
        ext_fields=encode_header(fields),
        body=body or None,
    )


def notify(state: BrokerState, request: Request) -> Sequence[Output]:
    """Answer once there is something to pop, or at the end of the wait."""
    header = decode_header(NotificationRequestHeader, request.command.ext_fields)
    topic = find_queues(state, request.connection, header.topic, header.queue_id)
    find_consuming_group(state, request, header.consumer_group)
    check_way(state, request, header.consumer_group, header.topic)
    has_message = _has_message(state, header, topic)
    if has_message or header.poll_time_ms <= 0 or request.command.is_oneway:
        return answer(request, ext_fields=_noticed(has_message=has_message))
    if len(state.holds) >= HELD_MAX:
        return answer(request, ext_fields=_noticed(has_message=False, is_full=True))
    held = HeldPull(
        request.connection,
        request.command,
        notice_place(header.consumer_group, header.topic, header.queue_id),
        0,
        MessageFilter(),
        request.now_ms + min(header.poll_time_ms, SUSPEND_MS_MAX),
        partial(_answer_held, state, header),
    )
    state.pops.note_pop(header.consumer_group, header.topic, now_ms=request.now_ms)
    state.pops.note_waiting(request.connection, held.place)
    return hold(state, held)


def _answer_held(
    state: BrokerState, header: NotificationRequestHeader, held: HeldPull
) -> Sequence[Output]:
    check_held_pop(state, held)
    # Group and topic may be deleted or closed by now, or the topic has fewer queues.
    check_consuming(header.consumer_group, state.groups.find(header.consumer_group))
    topic = find_queues(state, held.connection, header.topic, header.queue_id)
    has_message = _has_message(state, header, topic)
    if not has_message and not state.holds.is_overdue(held):
        return hold(state, held)
    fields = _noticed(has_message=has_message)
    command: RemotingCommand = response_to(held.command, ext_fields=fields)
    return [Reply(held.connection, command)]


def _noticed(*, has_message: bool, is_full: bool = False) -> dict[str, str]:
    return {"hasMsg": str(has_message).lower(), "pollingFull": str(is_full).lower()}


def polling_info(state: BrokerState, request: Request) -> Sequence[Output]:
    """Answer with the number of pops that wait at a place."""
    header = decode_header(PollingInfoRequestHeader, request.command.ext_fields)
    find_queues(state, request.connection, header.topic, header.queue_id)
    find_consuming_group(state, request, header.consumer_group)
    place = pop_place(header.consumer_group, header.topic, header.queue_id)
    return answer(request, ext_fields={"pollingNum": str(state.holds.count_at(place))})


def _queue_ids(topic: TopicConfig, queue_id: int) -> Iterable[int]:
    return range(topic.read_queue_nums) if queue_id == ALL_QUEUES else (queue_id,)


def _next_offset(state: BrokerState, group: str, topic: str, queue_id: int) -> int:
    queue = state.pops.find(group, topic, queue_id)
    offset = state.offsets.find(group, topic, queue_id) if queue is None else queue.next_offset
    return max(offset or 0, state.store.queues.min_offset(topic, queue_id))


def _has_message(state: BrokerState, header: NotificationRequestHeader, topic: TopicConfig) -> bool:
    """Return whether a pop would find a message, whatever its tags."""
    group, name = header.consumer_group, header.topic
    named = _queue_ids(topic, header.queue_id)
    for queue_id in without_finished(state, group, name, named):
        queue = state.pops.find(group, name, queue_id)
        if queue is not None and header.order and queue.is_blocked:
            continue
        end = state.store.queues.max_offset(name, queue_id)
        is_ready = queue is not None and len(queue.ready) > 0
        if is_ready or _next_offset(state, group, name, queue_id) < end:
            return True
    for queue_id in state.pops.hidden_ids(group, name, count=topic.read_queue_nums):
        queue = state.pops.find(group, name, queue_id)
        if queue is not None and queue.ready and not (header.order and queue.is_blocked):
            return True
    return False

"""Give messages to the listener, and tell the member what it made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from sparrowmq.calling.effects import Call, Now, Operation
from sparrowmq.client.arguments import refuse_awaitable
from sparrowmq.client.operations.trace import trace_consumed, trace_delivery
from sparrowmq.client.subscriber import DeadLetterChosen, GivenUp, ListenerFailed, Subscriber
from sparrowmq.errors import UsageError
from sparrowmq.membership.actions import Deliver
from sparrowmq.membership.in_order import OrderlyOutcome
from sparrowmq.model import (
    ConsumeContext,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    ConsumeStatus,
    MessageExt,
    MessageQueue,
)
from sparrowmq.model.message import PROPERTY_RETRY_TOPIC, Decision
from sparrowmq.protocol.bodies import ConsumeMessageDirectlyResult, encode_body
from sparrowmq.protocol.codes import ResponseCode
from sparrowmq.protocol.command import RemotingCommand, response_to
from sparrowmq.protocol.headers import ConsumeMessageDirectlyResultRequestHeader, decode_header
from sparrowmq.protocol.record import decode_messages
from sparrowmq.protocol.trace import ConsumedCode

_DIRECT_OUTCOMES = {
    ConsumeOrderlyStatus.SUCCESS: "CR_SUCCESS",
    ConsumeOrderlyStatus.COMMIT: "CR_COMMIT",
    ConsumeOrderlyStatus.ROLLBACK: "CR_ROLLBACK",
    ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT: "CR_LATER",
}


def deliver(subscriber: Subscriber, action: Deliver) -> Operation[None]:
    """Carry out `Deliver` for a concurrent listener."""
    messages = _messages_of(subscriber, action)
    queue = subscriber.config.namespace.unwrap_queue(action.queue)
    context = ConsumeContext(queue, messages=tuple(messages))
    acked_count = 0
    begun_ms: int = yield Now()
    subscriber.listener_calls.begin(action, begun_ms)
    traced = yield from trace_delivery(subscriber.tracer, messages)
    code = ConsumedCode.EXCEPTION
    try:
        # A list of its own: the listener may change it.
        status = yield Call(subscriber.listener, (list(messages), context))
        acked_count = _acked_count(status, context, len(messages))
        code = ConsumedCode.SUCCESS
    except Exception as error:
        # The user's code may raise anything.
        subscriber.tell(_failure_of(subscriber, action, error, context.delay_level))
    ended_ms: int = yield Now()
    decided = context.end()
    failed = _failed_of(messages, acked_count, decided)
    if failed and code is ConsumedCode.SUCCESS:
        code = ConsumedCode.FAILED
    done_count = len(messages) - len(failed)
    subscriber.listener_calls.end(action, ended_ms, done_count=done_count)
    yield from trace_consumed(traced, code)
    subscriber.counters.succeeded += done_count
    subscriber.counters.failed += len(failed)
    for message in failed:
        if (decision := decided.get(message.queue_offset)) is not None and decision.reason:
            subscriber.tell(DeadLetterChosen(action.queue, message, decision.reason))
    _tell_given_up(subscriber, action.queue, failed)
    subscriber.member.consumed(
        action, acked_count=acked_count, delay_level=context.delay_level, decided=decided
    )
    subscriber.wake.set()


def _failed_of(
    messages: Sequence[MessageExt], acked_count: int, decided: Mapping[int, Decision]
) -> list[MessageExt]:
    """Return the messages that are not done."""
    default = [Decision(None)] * acked_count + [Decision(0)] * (len(messages) - acked_count)
    return [
        message
        for message, decision in zip(messages, default, strict=True)
        if decided.get(message.queue_offset, decision).level is not None
    ]


def deliver_in_order(subscriber: Subscriber, action: Deliver) -> Operation[None]:
    """Carry out `Deliver` for a listener in order."""
    messages = _messages_of(subscriber, action)
    context = ConsumeOrderlyContext(subscriber.config.namespace.unwrap_queue(action.queue))
    status = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
    begun_ms: int = yield Now()
    subscriber.listener_calls.begin(action, begun_ms)
    traced = yield from trace_delivery(subscriber.tracer, messages)
    code = ConsumedCode.EXCEPTION
    try:
        returned = yield Call(subscriber.listener, (list(messages), context))
        status = _orderly_status(returned)
        is_done = status in (ConsumeOrderlyStatus.SUCCESS, ConsumeOrderlyStatus.COMMIT)
        code = ConsumedCode.SUCCESS if is_done else ConsumedCode.FAILED
    except Exception as error:
        # The user's code may raise anything.
        subscriber.tell(_failure_of(subscriber, action, error))
    ended_ms: int = yield Now()
    done_count = len(messages) if code is ConsumedCode.SUCCESS else 0
    subscriber.listener_calls.end(action, ended_ms, done_count=done_count)
    yield from trace_consumed(traced, code)
    if status is ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT:
        subscriber.counters.failed += len(messages)
        _tell_given_up(subscriber, action.queue, messages)
    elif context.auto_commit or status is not ConsumeOrderlyStatus.ROLLBACK:
        subscriber.counters.succeeded += len(messages)
    outcome = OrderlyOutcome(status, context.auto_commit, context.suspend_ms)
    now_ms: int = yield Now()
    subscriber.member.consumed_in_order(action, outcome, now_ms)
    subscriber.wake.set()


def consume_directly(
    subscriber: Subscriber, request: RemotingCommand
) -> Operation[RemotingCommand]:
    """Have the listener consume one message that a tool has chosen, and tell what came of it.

    Nothing else changes: no offset, no retry.

    Raises: RemoteProtocolError for a header that cannot be read.
    Source: ClientRemotingProcessor.consumeMessageDirectly.
    """
    header = decode_header(ConsumeMessageDirectlyResultRequestHeader, request.ext_fields)
    found = decode_messages(request.body or b"", broker_name=header.broker_name or "")
    if len(found.messages) != 1:
        why = found.failure or f"the body holds {len(found.messages)} messages"
        return response_to(
            request, ResponseCode.SYSTEM_ERROR, remark=f"the message cannot be read: {why}"
        )
    namespace, is_orderly = subscriber.config.namespace, subscriber.config.orderly
    (message,) = namespace.unwrap_messages([with_own_topic(found.messages[0])])
    context: ConsumeContext | ConsumeOrderlyContext = ConsumeOrderlyContext(message.queue)
    if not is_orderly:
        context = ConsumeContext(message.queue, messages=(message,))
    begun_ms: int = yield Now()
    remark: str | None = None
    try:
        status = yield Call(subscriber.listener, ([message], context))
        outcome = _direct_outcome(status, context, message)
    except Exception as error:
        # The user's code may raise anything.
        outcome, remark = "CR_THROW_EXCEPTION", repr(error)
    ended_ms: int = yield Now()
    result = ConsumeMessageDirectlyResult(
        order=is_orderly,
        auto_commit=context.auto_commit if isinstance(context, ConsumeOrderlyContext) else True,
        consume_result=outcome,
        remark=remark,
        spent_time_ms=ended_ms - begun_ms,
    )
    return response_to(request, body=encode_body(result))


def _direct_outcome(
    status: Any, context: ConsumeContext | ConsumeOrderlyContext, message: MessageExt
) -> str:
    """Return RocketMQ's name (CMResult) for what a listener made of one message."""
    if isinstance(context, ConsumeContext):
        acked_count = _acked_count(status, context, 1)
        return "CR_LATER" if _failed_of([message], acked_count, context.end()) else "CR_SUCCESS"
    return _DIRECT_OUTCOMES[_orderly_status(status)]


def with_own_topic(message: MessageExt) -> MessageExt:
    """Give a message that comes again the topic it had at first."""
    topic = message.properties.get(PROPERTY_RETRY_TOPIC)
    return message if topic is None else msgspec.structs.replace(message, topic=topic)


def _messages_of(subscriber: Subscriber, action: Deliver) -> list[MessageExt]:
    subscriber.counters.delivered += len(action.messages)
    messages = action.messages
    if action.queue.topic == subscriber.retry_topic:
        messages = [with_own_topic(message) for message in messages]
    return subscriber.config.namespace.unwrap_messages(messages)


def _failure_of(
    subscriber: Subscriber, action: Deliver, error: Exception, delay_level: int = 0
) -> ListenerFailed:
    messages = action.messages
    ended_count = sum(
        not subscriber.comes_again(message, delay_level=delay_level) for message in messages
    )
    return ListenerFailed(
        action.queue,
        messages[0].queue_offset,
        len(messages),
        ended_count,
        subscriber.is_broadcasting,
        error,
    )


def _tell_given_up(
    subscriber: Subscriber, queue: MessageQueue, failed: Sequence[MessageExt]
) -> None:
    """Tell of messages that nobody keeps; dead letters are told of once the broker has them."""
    ended = tuple(message for message in failed if not subscriber.comes_again(message))
    if ended and subscriber.is_broadcasting:
        subscriber.tell(GivenUp(queue, ended, is_broadcasting=True))


def _acked_count(status: Any, context: ConsumeContext, count: int) -> int:
    """Return how many of the messages are done."""
    refuse_awaitable("the listener", status)
    if status is ConsumeStatus.RECONSUME_LATER:
        return 0
    if status is not None and status is not ConsumeStatus.CONSUME_SUCCESS:
        raise UsageError(
            f"the listener returned {status!r}; return a ConsumeStatus, or None for success"
        )
    return count if context.ack_index is None else max(0, min(context.ack_index + 1, count))


def _orderly_status(status: Any) -> ConsumeOrderlyStatus:
    refuse_awaitable("the listener", status)
    if status is None:
        return ConsumeOrderlyStatus.SUCCESS
    if not isinstance(status, ConsumeOrderlyStatus):
        raise UsageError(
            f"the listener returned {status!r}; return a ConsumeOrderlyStatus, or None for success"
        )
    return status

"""Give messages to the listener, and report the results to the member.

Hot path, benchmark: benchmarks/against_apache.py, drains. The successful calls of a delivery are
therefore processed together, and one task makes several calls (`client/listener_calls.py`).

Source: ConsumeMessageConcurrentlyService.java, ConsumeMessageOrderlyService.java.
Tests: client/test_concurrent_consumption.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from sparrowmq.calling.effects import Call, CallEach, Now, Operation
from sparrowmq.client.arguments import refuse_awaitable
from sparrowmq.client.listener_calls import Ended, Handed, Returned
from sparrowmq.client.operations.trace_reports import trace_consumed, trace_delivery
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
_DONE = (ConsumeOrderlyStatus.SUCCESS, ConsumeOrderlyStatus.COMMIT)


def hand_over(subscriber: Subscriber, deliveries: Sequence[Deliver]) -> None:
    """Queue deliveries for the tasks that call the listener."""
    namespace, is_orderly = subscriber.config.namespace, subscriber.config.orderly
    retry_topic, is_named = subscriber.retry_topic, bool(namespace.name)
    for delivery in deliveries:
        queue, batches = delivery.queue, delivery.batches
        subscriber.counters.note_delivered(sum([len(batch) for batch in batches]))
        if queue.topic == retry_topic:
            batches = tuple([tuple([with_own_topic(m) for m in batch]) for batch in batches])
        if is_named:
            batches = tuple([tuple(namespace.unwrap_messages(batch)) for batch in batches])
            queue = namespace.unwrap_queue(queue)
        subscriber.listener_calls.add(Handed.of(delivery, queue, batches, is_orderly=is_orderly))


def call_listener(
    subscriber: Subscriber, settle: Callable[[Ended, int], ConsumedCode] | None = None
) -> Operation[None]:
    """Call the listener with waiting deliveries, for a short time.

    Args:
        settle: processes the result of a traced call; None for the member's own way.
    """
    calls = subscriber.listener_calls
    try:
        if subscriber.tracer is None:
            yield CallEach(subscriber.listener, calls.waiting, calls.is_quick)
        elif (call := calls.split()) is not None:
            yield from _call_traced(subscriber, call, settle or partial(_settle, subscriber))
    finally:
        calls.task_ended()
    subscriber.wake.set()


def _call_traced(
    subscriber: Subscriber,
    call: Handed,
    settle: Callable[[Ended, int], ConsumedCode],
) -> Operation[None]:
    """Call the listener once, with trace before and after."""
    (at,) = call.waiting
    traced = yield from trace_delivery(subscriber.tracer, call.batches[at])
    yield CallEach(subscriber.listener, deque([call]))
    now_ms: int = yield Now()
    yield from trace_consumed(traced, settle(call.take_ended(), now_ms))


def settle_ended(subscriber: Subscriber, now_ms: int) -> None:
    """Process the results of the calls that have ended."""
    for ended in subscriber.listener_calls.take_ended():
        _settle(subscriber, ended, now_ms)


def _settle(subscriber: Subscriber, ended: Ended, now_ms: int) -> ConsumedCode:
    """Process the results of calls of one delivery; return the code of the last."""
    code = ConsumedCode.SUCCESS
    delivery, member = ended.handed.delivery, subscriber.member
    if ended.done:
        note_done(subscriber, ended, member.consumed_all(delivery, ended.done), now_ms)
    for returned in ended.others:
        if ended.handed.is_orderly:
            code = _settle_in_order(subscriber, delivery, returned, now_ms)
            continue
        judged = judge(subscriber, delivery, returned, now_ms)
        member.consumed(
            delivery,
            returned.at,
            acked_count=judged.acked_count,
            delay_level=judged.delay_level,
            decided=judged.decided,
        )
        code = judged.code
    return code


def note_done(subscriber: Subscriber, ended: Ended, count: int, now_ms: int) -> None:
    """Count calls that finished all their messages, so many."""
    subscriber.counters.succeeded += count
    subscriber.listener_calls.ended(
        ended.handed.delivery.queue.topic,
        now_ms,
        calls=len(ended.done),
        duration_ms=ended.duration_ms,
        done=count,
    )


class Judged(NamedTuple):
    """What a call of the listener has decided.

    Args:
        acked_count: how many messages, from the first on, are done.
        delay_level: the level with which the others come again.
        decided: by offset, the decisions on single messages, which override both.
    """

    acked_count: int
    delay_level: int
    decided: Mapping[int, Decision]
    code: ConsumedCode

    def decisions(self, messages: Sequence[MessageExt]) -> Iterator[tuple[MessageExt, Decision]]:
        """Yield each message of the call with the decision on it."""
        for index, message in enumerate(messages):
            others = Decision(None if index < self.acked_count else self.delay_level)
            yield message, self.decided.get(message.queue_offset, others)


def judge(subscriber: Subscriber, delivery: Deliver, returned: Returned, now_ms: int) -> Judged:
    """Read and count the result of one call of a concurrent listener, and report a failure."""
    messages, context = returned.messages, returned.context
    assert isinstance(context, ConsumeContext)
    count = len(messages)
    acked_count, code = 0, ConsumedCode.EXCEPTION
    is_level = isinstance(context.delay_level, int)
    delay_level = context.delay_level if is_level else 0
    try:
        if returned.error is not None:
            raise returned.error
        _check_number("delay_level", context.delay_level)
        acked_count = _acked_count(returned.value, context, count)
        code = ConsumedCode.SUCCESS
    except BaseException as failure:
        # The user's code may raise anything.
        own = delivery.batches[returned.at]
        subscriber.report(_failure_of(subscriber, delivery.queue, own, failure, delay_level))
    decided = context.end()
    failed: Sequence[MessageExt] = ()
    if decided or acked_count < count:
        failed = _failed_of(messages, acked_count, decided)
    if failed:
        _report_failed(subscriber, delivery.queue, failed, decided)
        if code is ConsumedCode.SUCCESS:
            code = ConsumedCode.FAILED
    done_count = count - len(failed)
    subscriber.listener_calls.ended(
        delivery.queue.topic,
        now_ms,
        calls=1,
        duration_ms=returned.duration_ms,
        done=done_count,
        failed=len(failed),
    )
    subscriber.counters.succeeded += done_count
    subscriber.counters.failed += len(failed)
    return Judged(acked_count, delay_level, decided, code)


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


def _report_failed(
    subscriber: Subscriber,
    queue: MessageQueue,
    failed: Sequence[MessageExt],
    decided: Mapping[int, Decision],
) -> None:
    for message in failed:
        if (decision := decided.get(message.queue_offset)) is not None and decision.reason:
            subscriber.report(
                DeadLetterChosen(queue, message, decision.reason, subscriber.is_broadcasting)
            )
    _report_given_up(subscriber, queue, failed)


def _settle_in_order(
    subscriber: Subscriber, delivery: Deliver, returned: Returned, now_ms: int
) -> ConsumedCode:
    """Process the result of one call of a listener in order."""
    messages, context = returned.messages, returned.context
    assert isinstance(context, ConsumeOrderlyContext)
    status, code = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT, ConsumedCode.EXCEPTION
    suspend_ms = context.suspend_ms
    if not isinstance(suspend_ms, int):
        suspend_ms = ConsumeOrderlyContext(delivery.queue).suspend_ms
    try:
        if returned.error is not None:
            raise returned.error
        _check_number("suspend_ms", context.suspend_ms)
        status = _orderly_status(returned.value)
        code = ConsumedCode.SUCCESS if status in _DONE else ConsumedCode.FAILED
    except BaseException as failure:
        # The user's code may raise anything.
        own = delivery.batches[returned.at]
        subscriber.report(_failure_of(subscriber, delivery.queue, own, failure))
    done_count = len(messages) if code is ConsumedCode.SUCCESS else 0
    subscriber.listener_calls.ended(
        delivery.queue.topic,
        now_ms,
        calls=1,
        duration_ms=returned.duration_ms,
        done=done_count,
        failed=len(messages) - done_count,
    )
    if status is ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT:
        subscriber.counters.failed += len(messages)
        _report_given_up(subscriber, delivery.queue, messages)
    elif context.auto_commit or status is not ConsumeOrderlyStatus.ROLLBACK:
        subscriber.counters.succeeded += len(messages)
    outcome = OrderlyOutcome(status, context.auto_commit, suspend_ms)
    subscriber.member.consumed_in_order(delivery, outcome, now_ms)
    return code


def consume_directly(
    subscriber: Subscriber, request: RemotingCommand
) -> Operation[RemotingCommand]:
    """Call the listener with one message that a tool has chosen, and return the result.

    No offset changes, and the message is not retried.

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
    """Return RocketMQ's name (CMResult) for the listener's result for one message."""
    if isinstance(context, ConsumeContext):
        acked_count = _acked_count(status, context, 1)
        return "CR_LATER" if _failed_of([message], acked_count, context.end()) else "CR_SUCCESS"
    return _DIRECT_OUTCOMES[_orderly_status(status)]


def with_own_topic(message: MessageExt) -> MessageExt:
    """Return a retried message with its first topic; any other message unchanged."""
    topic = message.properties.get(PROPERTY_RETRY_TOPIC)
    return message if topic is None else msgspec.structs.replace(message, topic=topic)


def _failure_of(
    subscriber: Subscriber,
    queue: MessageQueue,
    messages: Sequence[MessageExt],
    error: BaseException,
    delay_level: int = 0,
) -> ListenerFailed:
    ended_count = sum(
        not subscriber.comes_again(message, delay_level=delay_level) for message in messages
    )
    return ListenerFailed(
        queue,
        messages[0].queue_offset,
        len(messages),
        ended_count,
        subscriber.is_broadcasting,
        error,
    )


def _report_given_up(
    subscriber: Subscriber, queue: MessageQueue, failed: Sequence[MessageExt]
) -> None:
    """Report messages that are dropped; dead letters are reported once the broker has them."""
    ended = tuple(message for message in failed if not subscriber.comes_again(message))
    if ended and subscriber.is_broadcasting:
        subscriber.report(GivenUp(queue, ended, is_broadcasting=True))


def why_undone(
    status: Any, context: ConsumeContext | ConsumeOrderlyContext, messages: Sequence[MessageExt]
) -> str:
    """Return the name of the status by which a call leaves messages undone; empty if none is.

    Raises: UsageError for what is not a status.
    """
    if isinstance(context, ConsumeContext):
        acked_count = _acked_count(status, context, len(messages))
        failed = _failed_of(messages, acked_count, context.decided())
        return ConsumeStatus.RECONSUME_LATER.name if failed else ""
    status = _orderly_status(status)
    return "" if status in _DONE else status.name


def _acked_count(status: Any, context: ConsumeContext, count: int) -> int:
    """Return how many of the messages are done."""
    if status is ConsumeStatus.RECONSUME_LATER:
        return 0
    if status is not None and status is not ConsumeStatus.CONSUME_SUCCESS:
        refuse_awaitable("the listener", status)
        raise UsageError(
            f"the listener returned {status!r}; return a ConsumeStatus, or None for success"
        )
    if context.ack_index is None:
        return count
    _check_number("ack_index", context.ack_index)
    return max(0, min(context.ack_index + 1, count))


def _check_number(name: str, given: object) -> None:
    if not isinstance(given, int):
        raise UsageError(f"the listener set {name} to {given!r}; it must be a whole number")


def _orderly_status(status: Any) -> ConsumeOrderlyStatus:
    refuse_awaitable("the listener", status)
    if status is None:
        return ConsumeOrderlyStatus.SUCCESS
    if not isinstance(status, ConsumeOrderlyStatus):
        raise UsageError(
            f"the listener returned {status!r}; return a ConsumeOrderlyStatus, or None for success"
        )
    return status

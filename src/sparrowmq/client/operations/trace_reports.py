"""Trace the messages sent and consumed. Tracing never fails or delays a message.

Entries gather while the last trace message is under way. Surplus entries are dropped. One-way sends
and failed ones are not traced, as with RocketMQ.
Source: SendMessageTraceHookImpl.java, ConsumeMessageTraceHookImpl.java, AsyncTraceDispatcher.java.
Tests: client/test_trace.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sparrowmq.calling.effects import Now, Operation, Sleep, Spawn, Timestamp, join
from sparrowmq.client.operations.send import send, send_batch
from sparrowmq.client.publisher import Publisher
from sparrowmq.client.queue_selector import QueueChoice
from sparrowmq.client.tracer import Tracer
from sparrowmq.errors import SparrowError
from sparrowmq.model import Message, MessageExt, MessageQueue, SendResult, SendStatus
from sparrowmq.protocol import trace
from sparrowmq.protocol.trace import ConsumedCode, TracedType, TraceEntry

# How long entries gather before they are sent, and the pause after a failed send.
GATHER_MS = 20
PAUSE_MS = 1_000
# How long a client that is closed waits for its last entries.
FINISH_MS = 1_000
# BrokerConfig.regionId. A message names the region of its broker.
DEFAULT_REGION = "DefaultRegion"
PROPERTY_REGION = "MSG_REGION"


def send_traced(
    publisher: Publisher,
    message: Message,
    *,
    queue: QueueChoice | None = None,
    is_half: bool = False,
    in_turn: bool = False,
) -> Operation[SendResult]:
    """Send as `send` does, and trace the message if the producer has a tracer."""
    operation = send(publisher, message, queue=queue, is_half=is_half, in_turn=in_turn)
    if publisher.tracer is None:
        return operation
    kind = TracedType.DELAY if message.delay_level else TracedType.NORMAL
    kind = TracedType.TRANSACTION_HALF if is_half else kind
    return _trace_send(publisher, [message], operation, kind=kind)


def send_batch_traced(
    publisher: Publisher,
    messages: Sequence[Message],
    *,
    queue: MessageQueue | None = None,
    in_turn: bool = False,
) -> Operation[SendResult]:
    """Send as `send_batch` does, and trace each message if the producer has a tracer."""
    operation = send_batch(publisher, messages, queue=queue, in_turn=in_turn)
    if publisher.tracer is None:
        return operation
    return _trace_send(publisher, messages, operation, kind=TracedType.NORMAL)


def _trace_send(
    publisher: Publisher,
    messages: Sequence[Message],
    operation: Operation[SendResult],
    *,
    kind: TracedType,
) -> Operation[SendResult]:
    tracer = publisher.tracer
    assert tracer is not None
    timestamp_ms: int = yield Timestamp()
    begun_ms: int = yield Now()
    result = yield from operation
    ended_ms: int = yield Now()
    store_host = publisher.routes.master_address(result.queue.broker_name) or ""
    ids = zip(result.msg_id.split(","), result.offset_msg_id.split(","), strict=False)
    entries = [
        trace.published(
            timestamp_ms=timestamp_ms,
            cost_ms=ended_ms - begun_ms,
            region=DEFAULT_REGION,
            group=tracer.group,
            topic=publisher.config.namespace.wrap(message.topic),
            msg_id=msg_id,
            offset_msg_id=offset_msg_id,
            tags=message.tags or "",
            keys=message.keys,
            store_host=store_host,
            body_bytes=len(message.body),
            kind=kind,
            is_success=result.status is SendStatus.SEND_OK,
        )
        for message, (msg_id, offset_msg_id) in zip(messages, ids, strict=False)
    ]
    yield from record(tracer, entries)
    return result


class TracedDelivery(NamedTuple):
    """A traced call of a listener: its tracer, its messages, its request id and its start."""

    tracer: Tracer
    messages: Sequence[MessageExt]
    request_id: str
    timestamp_ms: int
    begun_ms: int


def trace_delivery(
    tracer: Tracer | None, messages: Sequence[MessageExt]
) -> Operation[TracedDelivery | None]:
    """Trace that a listener is about to get messages, if the consumer has a tracer."""
    if tracer is None:
        return None
    timestamp_ms: int = yield Timestamp()
    begun_ms: int = yield Now()
    request_id = tracer.publisher.ids.next_id(timestamp_ms)
    entries = [
        trace.delivered(
            timestamp_ms=timestamp_ms,
            region=message.properties.get(PROPERTY_REGION, DEFAULT_REGION),
            group=tracer.group,
            request_id=request_id,
            msg_id=message.msg_id,
            reconsume_times=message.reconsume_times,
            keys=message.keys,
        )
        for message in messages
    ]
    yield from record(tracer, entries)
    return TracedDelivery(tracer, messages, request_id, timestamp_ms, begun_ms)


def trace_consumed(traced: TracedDelivery | None, code: ConsumedCode) -> Operation[None]:
    """Trace the outcome of a delivery whose start was traced."""
    if traced is None:
        return
    now_ms: int = yield Now()
    entries = [
        trace.consumed(
            timestamp_ms=traced.timestamp_ms,
            cost_ms=(now_ms - traced.begun_ms) // len(traced.messages),
            group=traced.tracer.group,
            request_id=traced.request_id,
            msg_id=message.msg_id,
            keys=message.keys,
            code=code,
        )
        for message in traced.messages
    ]
    yield from record(traced.tracer, entries)


def record(tracer: Tracer, entries: Iterable[TraceEntry]) -> Operation[None]:
    """Hand entries to a separate task, which sends them soon."""
    tracer.add(entries)
    if tracer.sending is None or tracer.sending.done:
        tracer.sending = yield Spawn(_send_all(tracer), "trace")


def _send_all(tracer: Tracer) -> Operation[None]:
    """Send entries until none waits; drop entries that cannot be sent."""
    yield Sleep(GATHER_MS)
    while (taken := tracer.take()) is not None:
        message, count = taken
        try:
            yield from send(tracer.publisher, message)
        except SparrowError:
            tracer.dropped += count
            yield Sleep(PAUSE_MS)


def finish(tracer: Tracer | None) -> Operation[None]:
    """Wait a short time until the last entries are sent."""
    if tracer is None or tracer.sending is None:
        return
    try:
        yield from join(tracer.sending, timeout_ms=FINISH_MS)
    except SparrowError:
        # The remaining entries are dropped: closing does not wait for traces.
        return

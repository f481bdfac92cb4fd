"""Trace the messages consumed, and send the trace. Tracing never fails or delays a message.

Entries gather while the last trace message is under way. An observer makes the entries of sends
(`client/tracer.py`).
Source: ConsumeMessageTraceHookImpl.java, AsyncTraceDispatcher.java.
Tests: client/test_trace.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sparrowmq.calling.effects import Now, Operation, Sleep, Spawn, Timestamp, join
from sparrowmq.client.operations.send import send
from sparrowmq.client.publisher import Publisher
from sparrowmq.client.tracer import DEFAULT_REGION, SendTrace, Tracer
from sparrowmq.errors import SparrowError
from sparrowmq.model import Message, MessageExt, SendResult
from sparrowmq.protocol import trace
from sparrowmq.protocol.send_request import TRACE_OFF, TRACE_SWITCH
from sparrowmq.protocol.trace import ConsumedCode, TraceEntry

# How long entries gather before they are sent, and the pause after a failed send.
GATHER_MS = 20
PAUSE_MS = 1_000
# How long a client that is closed waits for its last entries.
FINISH_MS = 1_000
PROPERTY_REGION = "MSG_REGION"


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
    """Trace that a listener is about to get messages, if the consumer has a tracer.

    Messages of a broker with `traceOn=false` are left out.
    """
    if tracer is None:
        return None
    messages = [each for each in messages if each.properties.get(TRACE_SWITCH) != TRACE_OFF]
    if not messages:
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
    yield from start_sending(tracer)


def start_sending(tracer: Tracer | None) -> Operation[None]:
    """Start the task that sends the entries, if entries wait and the task does not run."""
    if tracer is None or tracer.is_empty:
        return
    if tracer.sending is None or tracer.sending.done:
        tracer.sending = yield Spawn(_send_all(tracer), "trace")


def find_tracer(publisher: Publisher) -> Tracer | None:
    """Return the tracer of a producer's sends, None if trace is off."""
    trace = _find_trace(publisher)
    return None if trace is None else trace.tracer


def traced(
    publisher: Publisher, message: Message, sent: Operation[SendResult]
) -> Operation[SendResult]:
    """Trace the send of a request or a reply: observers do not see its result."""
    trace = _find_trace(publisher)
    if trace is None:
        return (yield from sent)
    _, ended = trace.begin((message,), is_half=False)
    result = yield from sent
    ended(result, None)
    yield from start_sending(trace.tracer)
    return result


def _find_trace(publisher: Publisher) -> SendTrace | None:
    for observer in publisher.observers:
        if isinstance(observer, SendTrace):
            return observer
    return None


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

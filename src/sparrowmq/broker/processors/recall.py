"""RECALL_MESSAGE: a message that waits for its time is not delivered.

Source: RecallMessageProcessor.java of 5.5.0. Differs from RocketMQ: a
message that does not wait here is refused; RocketMQ confirms the recall of every id.
Tests: broker/test_timer_messages.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparrowmq.broker.processors.send import confirm
from sparrowmq.broker.state import BrokerState
from sparrowmq.model.names import RETRY_GROUP_TOPIC_PREFIX
from sparrowmq.protocol.codes import ResponseCode
from sparrowmq.protocol.headers import RecallMessageRequestHeader, decode_header
from sparrowmq.protocol.recall_handle import RecallHandle, decode_recall_handle
from sparrowmq.serving.connections import Output
from sparrowmq.serving.requests import Refusal, Request, Steps, answer_in_steps
from sparrowmq.store.results import PutResult, PutStatus


def recall(state: BrokerState, request: Request) -> Sequence[Output]:
    """Store the recall of a waiting message; the answer waits until it is on the disk."""
    header = decode_header(RecallMessageRequestHeader, request.command.ext_fields)
    try:
        handle = decode_recall_handle(header.recall_handle)
    except ValueError:
        raise _refusal(f"the handle {header.recall_handle[:80]!r} is none of a message") from None
    if header.topic != handle.topic or header.topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
        raise _refusal("topic not match")
    if handle.broker_name != state.config.broker_name:
        raise _refusal("broker service not match")
    return answer_in_steps(request, _recall(state, request, handle))


def _recall(state: BrokerState, request: Request, handle: RecallHandle) -> Steps:
    offsets: Sequence[int] = ()
    if handle.due_ms > request.timestamp_ms:
        offsets = yield from state.timers.find(handle.topic, handle.msg_id, handle.due_ms)
    result: PutResult | None = None
    for offset, record in state.timers.recall(offsets):
        result = state.store.append(record, timestamp_ms=request.timestamp_ms)
        if result.status is not PutStatus.PUT_OK:
            break
        state.timers.note_recall(offset, end_position=result.end_position)
    if result is None:
        raise _refusal("timestamp invalid")
    return confirm(state, request, result, fields={"msgId": handle.msg_id})


def _refusal(reason: str) -> Refusal:
    return Refusal(ResponseCode.ILLEGAL_OPERATION, f"recall failed, {reason}")

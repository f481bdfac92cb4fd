"""Read the answers to a send: the stored message's place, or why the send failed.

Source: MQClientAPIImpl.processSendResponse. Tests: test_send.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

from sparrowmq.client.route_cache import is_static
from sparrowmq.errors import RemoteProtocolError, SendFailed, SparrowError
from sparrowmq.model import MessageQueue, SendResult, SendStatus
from sparrowmq.model.names import RETRY_GROUP_TOPIC_PREFIX
from sparrowmq.model.queue import OFFSET_MAX
from sparrowmq.protocol.codes import ResponseCode
from sparrowmq.protocol.command import RemotingCommand

# Makes a result from a row of its fields: half the time of `SendResult`, a function of Python's.
new_result = partial(tuple.__new__, SendResult)

STATUSES: Mapping[int, SendStatus] = MappingProxyType(
    {
        ResponseCode.SUCCESS: SendStatus.SEND_OK,
        ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT: SendStatus.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE: SendStatus.SLAVE_NOT_AVAILABLE,
    }
)


def result_of(
    reply: RemotingCommand, status: SendStatus, target: MessageQueue, msg_id: str
) -> SendResult:
    """Return the result that a broker's answer states. Raises: RemoteProtocolError."""
    fields = reply.ext_fields or {}
    try:
        queue_id, queue_offset = int(fields["queueId"]), int(fields["queueOffset"])
        offset_msg_id = fields["msgId"]
    except (KeyError, ValueError) as error:
        raise _wrong_answer(target, f"lacks {error}") from error
    result = result_at(status, msg_id, offset_msg_id, target, queue_id, queue_offset)
    return result._replace(recall_handle=fields.get("recallHandle"))


def result_at(
    status: SendStatus,
    msg_id: str,
    offset_msg_id: str,
    target: MessageQueue,
    queue_id: int,
    queue_offset: int,
) -> SendResult:
    """Return the result of a message stored at this place. Raises: RemoteProtocolError."""
    if queue_id != target.queue_id:
        # A message for a retry topic may become a dead letter, in that topic's queue.
        if queue_id < 0 or not target.topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
            raise _wrong_answer(target, f"names queue {queue_id}")
        target = MessageQueue(target.topic, target.broker_name, queue_id)
    # A queue that moves to its first message's broker has no number there yet.
    if not (0 <= queue_offset <= OFFSET_MAX or (queue_offset == -1 and is_static(target))):
        raise _wrong_answer(target, f"names offset {queue_offset}")
    return new_result((status, msg_id, offset_msg_id, target, queue_offset, None))


def _wrong_answer(target: MessageQueue, what: str) -> RemoteProtocolError:
    error = RemoteProtocolError(
        f"the answer to a send to {target} {what}; whether the message was stored is not known"
    )
    error.outcome_unknown = True
    return error


def send_failed(
    what: str, tried: tuple[str, ...], failure: SparrowError | None, *, is_unknown: bool
) -> SendFailed:
    """Return the error of a send whose attempts all failed."""
    advice = "no broker has stored it; see whether the broker runs, and send it again"
    if is_unknown:
        advice = (
            "a broker may have stored it, though its answer did not come: look for its id, or send "
            "it again if it may come twice"
        )
    times = "1 attempt" if len(tried) == 1 else f"{len(tried)} attempts"
    brokers = ", ".join(dict.fromkeys(tried))
    return SendFailed(
        f"{what} failed in {times} at {brokers}: {failure}; {advice}",
        brokers_tried=tried,
        outcome_unknown=is_unknown,
    )


def subject_of(topic: str, msg_id: str) -> str:
    """Return the text by which errors name a message."""
    if not msg_id:
        return f"a batch to topic {topic!r}"
    first, *others = msg_id.split(",")
    if not others:
        return f"the message {first} to topic {topic!r}"
    return f"the batch of {1 + len(others)} messages to topic {topic!r}, {first} the first,"

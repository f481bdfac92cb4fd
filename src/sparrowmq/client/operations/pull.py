"""Pull: one request for the records of one queue from an offset on.

`pull` returns the records as the broker stores them, back to back. Callers that need messages call
`sparrowmq.protocol.record.decode_messages`; callers that need columns decode the records
themselves.

An answer that cannot be right is an error, so that none of its messages is delivered or committed.
Source: PullMessageService, PullCallback and PullAPIWrapper; MQClientAPIImpl.processPullResponse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

from sparrowmq.calling.effects import Invoke, Operation
from sparrowmq.client.operations.request import error_of
from sparrowmq.errors import RemoteProtocolError
from sparrowmq.model import MessageExt, MessageQueue
from sparrowmq.model.queue import OFFSET_MAX
from sparrowmq.protocol.codes import ResponseCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.headers import (
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    decode_header,
)
from sparrowmq.protocol.pull_request import PullAnswered, PullRequest
from sparrowmq.protocol.record import begins_with_batch, renumber, scan_records

# DefaultMQPushConsumerImpl.CONSUMER_TIMEOUT_MILLIS_WHEN_SUSPEND.
PULL_TIMEOUT_MS = 30_000
# A pull reads at most this many entries of a queue, or as many as it asks for
# (DefaultMessageStore.getMessage: 16,000 bytes of 20 each). The entries may have been stored after
# the broker read the queue's end for its answer.
SCANNED_ENTRIES_MAX = 800


class PullStatus(Enum):
    """The result of a pull, by RocketMQ's names."""

    FOUND = "FOUND"
    NO_NEW_MSG = "NO_NEW_MSG"
    NO_MATCHED_MSG = "NO_MATCHED_MSG"
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"


_STATUSES: Mapping[int, PullStatus] = MappingProxyType(
    {
        ResponseCode.SUCCESS: PullStatus.FOUND,
        ResponseCode.PULL_NOT_FOUND: PullStatus.NO_NEW_MSG,
        ResponseCode.PULL_RETRY_IMMEDIATELY: PullStatus.NO_MATCHED_MSG,
        ResponseCode.PULL_OFFSET_MOVED: PullStatus.OFFSET_ILLEGAL,
    }
)


class PullReply(NamedTuple):
    """The answer to a pull.

    `next_offset` is where the next pull begins. For OFFSET_ILLEGAL it is the broker's advice,
    which `corrected_offset` judges. `records` is b"" unless the status is FOUND.
    """

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    records: bytes


def make_pull_header(
    group: str,
    queue: MessageQueue,
    *,
    offset: int,
    count_max: int,
    suspend_ms: int = 0,
    expression: str | None = "*",
    expression_type: str | None = None,
    sub_version: int = 0,
) -> PullMessageRequestHeader:
    """Make the header of a pull.

    Args:
        suspend_ms: how long the broker may hold a pull that finds nothing; 0 for not at all.
        expression: the messages to select; None for the subscription in the group's heartbeat. A
            broker without a heartbeat of the group refuses None.
    """
    sys_flag = (PULL_SUSPEND if suspend_ms > 0 else 0) | (
        PULL_SUBSCRIPTION if expression is not None else 0
    )
    return PullMessageRequestHeader(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_msg_nums=count_max,
        sys_flag=sys_flag,
        commit_offset=0,
        suspend_timeout_ms=suspend_ms,
        subscription=expression,
        sub_version=sub_version,
        expression_type=expression_type,
    )


def pull(
    address: str, header: PullMessageRequestHeader, *, timeout_ms: int = PULL_TIMEOUT_MS
) -> Operation[PullReply]:
    """Pull once.

    Raises: TransportError; BrokerError for a code that is not a `PullStatus`, such as an unknown
    topic or group; RemoteProtocolError for an answer that cannot be right.
    """
    reply: RemotingCommand | PullAnswered = yield Invoke(address, PullRequest(header), timeout_ms)
    answer: PullAnswered | PullMessageResponseHeader
    if isinstance(reply, PullAnswered):
        status, answer, records = PullStatus.FOUND, reply, reply.body
    else:
        found = _STATUSES.get(reply.code)
        if found is None:
            raise error_of(reply, address)
        status, answer = found, decode_header(PullMessageResponseHeader, reply.ext_fields)
        records = reply.body or b"" if status is PullStatus.FOUND else b""
    following = answer.next_begin_offset
    if (
        records
        and isinstance(answer, PullMessageResponseHeader)
        and answer.offset_delta is not None
    ):
        records, end = renumber(records, queue_id=header.queue_id, offset_delta=answer.offset_delta)
        # A broker that lost a static topic's queue gives messages behind the queue's end there, if
        # it stored them while the queue moved, and then names that end again and again.
        following = max(following, end)
    result = PullReply(
        status,
        following,
        max(0, answer.min_offset),
        max(0, answer.max_offset),
        records,
    )
    fault = _find_fault(header, result)
    if fault is not None:
        raise RemoteProtocolError(
            f"broker {address} answers a pull of {header.topic} queue {header.queue_id} from "
            f"{header.queue_offset} on with {status.value}, {fault}"
        )
    return result


def _find_fault(header: PullMessageRequestHeader, result: PullReply) -> str | None:
    """Return the fault that an answer's header shows, as text; None for no fault."""
    offset, following = header.queue_offset, result.next_offset
    if not (following <= OFFSET_MAX and result.min_offset <= result.max_offset <= OFFSET_MAX):
        return (
            f"offsets that no queue has: next {following}, first {result.min_offset}, "
            f"end {result.max_offset}"
        )
    if result.status is PullStatus.OFFSET_ILLEGAL:
        # The next offset is advice; `corrected_offset` brings it into the queue's bounds.
        return None
    if result.status is PullStatus.FOUND and not result.records:
        return "but without a message"
    if following < offset or (following == offset and result.records):
        return f"and says to go on at {following}"
    scanned_to = offset + max(SCANNED_ENTRIES_MAX, header.max_msg_nums)
    if following > max(result.max_offset, scanned_to):
        return f"and says to go on at {following}, behind the end of the queue, {result.max_offset}"
    return None


def check_records(queue: MessageQueue, result: PullReply, *, offset: int) -> None:
    """Check that all records of an answer belong to the queue and stand in order.

    Raises: RemoteProtocolError for a record of another topic or queue, and for a record whose
    offset does not lie between the record before it and the next pull's offset.
    """
    previous = -1 if begins_with_batch(result.records) else offset - 1
    for topic, queue_id, queue_offset in scan_records(result.records):
        if topic != queue.topic or queue_id != queue.queue_id:
            raise RemoteProtocolError(
                f"broker {queue.broker_name} answers a pull of {queue} with a message of "
                f"{topic!r} queue {queue_id}"
            )
        if not previous < queue_offset < result.next_offset:
            raise RemoteProtocolError(
                f"broker {queue.broker_name} answers a pull of {queue} with a message at offset "
                f"{queue_offset}, where only {previous + 1} to {result.next_offset - 1} can be"
            )
        previous = queue_offset


def check_messages(
    queue: MessageQueue, result: PullReply, messages: Sequence[MessageExt], *, offset: int
) -> None:
    """Check an answer as `check_records` does, by its messages, all of which were read."""
    topic, _, queue_id = queue
    previous, end = offset - 1, result.next_offset
    for message in messages:
        at = message.queue_offset
        if not previous < at < end or message.queue_id != queue_id or message.topic != topic:
            check_records(queue, result, offset=offset)
        previous = at


def corrected_offset(offset: int, result: PullReply) -> int:
    """Return the offset to go on at after OFFSET_ILLEGAL, always within the queue.

    Differs from RocketMQ: if our offset lies beyond the queue's end, 4.x brokers return 0 unless
    messages were deleted, and 5.x brokers return the end. We go to the end with both: a broker that
    lost its last messages does not make us read the whole queue again.
    """
    if result.min_offset <= offset <= result.max_offset:
        offset = result.next_offset
    return min(max(offset, result.min_offset), result.max_offset)

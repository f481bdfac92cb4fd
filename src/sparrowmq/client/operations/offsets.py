"""A queue's offsets, and the offsets that a group has committed.

Every function here asks the broker at `address`, which must be the master of the queue's broker.
Every function raises TransportError, BrokerError or RemoteProtocolError. RemoteProtocolError also
stands for an offset that no queue can have. Tests: test_with_broker.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sparrowmq.calling.effects import Operation
from sparrowmq.client.operations.gather import gather, gather_outcomes
from sparrowmq.client.operations.request import INVOKE_TIMEOUT_MS, ask, decode_answer
from sparrowmq.errors import BrokerError, RemoteProtocolError, SparrowError
from sparrowmq.model import MessageQueue
from sparrowmq.model.queue import OFFSET_MAX
from sparrowmq.protocol.bodies import (
    ConsumerOffsetTable,
    TopicOffset,
    TopicStatsTable,
    decode_body,
)
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.headers import (
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    GetTopicStatsInfoRequestHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
    decode_header,
)


def query_offset(
    address: str,
    group: str,
    *,
    queue: MessageQueue,
    set_zero_if_not_found: bool | None = None,
    timeout_ms: int = INVOKE_TIMEOUT_MS,
) -> Operation[int | None]:
    """Return the offset that a group has committed for a queue; None if there is none.

    Brokers answer 0 instead of "none" while the queue's first message is in memory. Brokers from
    5.0 on answer "none" if `set_zero_if_not_found` is false. Brokers of 4.x answer 0 even then, and
    only `all_offsets` distinguishes 0 from "none".
    Differs from RocketMQ: up to 4.9 Java takes any error for "none" and then skips messages.
    """
    header = QueryConsumerOffsetRequestHeader(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        set_zero_if_not_found=set_zero_if_not_found,
    )
    code = RequestCode.QUERY_CONSUMER_OFFSET
    try:
        reply = yield from ask(address, code, header, timeout_ms=timeout_ms)
    except BrokerError as error:
        if error.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        raise
    offset = decode_header(QueryConsumerOffsetResponseHeader, reply.ext_fields).offset
    return None if offset is None else _check(offset, queue, address)


def all_offsets(
    address: str, *, timeout_ms: int = INVOKE_TIMEOUT_MS
) -> Operation[Mapping[str, Mapping[int, int]]]:
    """Return all committed offsets at a broker: by `topic@group`, then by queue id."""
    reply = yield from ask(address, RequestCode.GET_ALL_CONSUMER_OFFSET, timeout_ms=timeout_ms)
    return decode_body(ConsumerOffsetTable, reply.body).offset_table


def update_offset(
    address: str,
    group: str,
    *,
    queue: MessageQueue,
    offset: int,
    is_audited: bool = False,
    client_id: str | None = None,
    timeout_ms: int = INVOKE_TIMEOUT_MS,
) -> Operation[None]:
    """Commit the offset of a group for a queue, and wait for the answer.

    Args:
        is_audited: whether an operator asked for it, so that the broker notes the change.
        client_id: the member that commits; None if no member does. A SparrowMQ broker ignores a
            member's commit that would set back another member's queue.
    """
    header = UpdateConsumerOffsetRequestHeader(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        commit_offset=offset,
        sparrowmq_audit=is_audited or None,
        sparrowmq_client_id=client_id,
    )
    yield from ask(address, RequestCode.UPDATE_CONSUMER_OFFSET, header, timeout_ms=timeout_ms)


def commit_all(
    commits: Mapping[MessageQueue, Operation[None]], host: Callable[[MessageQueue], str]
) -> Operation[None]:
    """Run commits of a group, by queue; one of each topic and broker ends before the others begin.

    Args:
        host: gives the name of the broker that serves a queue.

    Apache's brokers lose some of a group's first commits of a topic if they come at the same time
    (ConsumerOffsetManager.commitOffset of 4.9.7 and 5.5.0), and confirm them all the same.

    Raises: an error of a commit, once all have ended. Where the one that ends first fails, those
    of its topic and broker do not begin; a broker that is away keeps none of another's.
    """
    firsts = {(q.topic, host(q)): q for q in reversed(list(commits))}
    begun = yield from gather_outcomes([commits[q] for q in firsts.values()], name="commit")
    failed = {
        place: outcome
        for place, outcome in zip(firsts, begun, strict=True)
        if isinstance(outcome, SparrowError)
    }
    rest = [
        commit
        for queue, commit in commits.items()
        if queue not in firsts.values() and (queue.topic, host(queue)) not in failed
    ]
    yield from gather(rest, name="commit")
    for error in failed.values():
        raise error


def max_offset(
    address: str, queue: MessageQueue, *, timeout_ms: int = INVOKE_TIMEOUT_MS
) -> Operation[int]:
    """Return the offset that the queue's next message will get."""
    header = GetMaxOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id)
    reply = yield from ask(address, RequestCode.GET_MAX_OFFSET, header, timeout_ms=timeout_ms)
    return _check(
        decode_header(GetMaxOffsetResponseHeader, reply.ext_fields).offset, queue, address
    )


def min_offset(
    address: str, queue: MessageQueue, *, timeout_ms: int = INVOKE_TIMEOUT_MS
) -> Operation[int]:
    """Return the offset of the oldest message that the queue still has."""
    header = GetMinOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id)
    reply = yield from ask(address, RequestCode.GET_MIN_OFFSET, header, timeout_ms=timeout_ms)
    return _check(
        decode_header(GetMinOffsetResponseHeader, reply.ext_fields).offset, queue, address
    )


def topic_offsets(
    address: str, topic: str, *, timeout_ms: int = INVOKE_TIMEOUT_MS
) -> Operation[Mapping[MessageQueue, TopicOffset]]:
    """Return the offsets of a topic's queues at a broker, as the broker gives them."""
    header = GetTopicStatsInfoRequestHeader(topic=topic)
    code = RequestCode.GET_TOPIC_STATS_INFO
    reply = yield from ask(address, code, header, timeout_ms=timeout_ms)
    return decode_answer(TopicStatsTable, reply, address, absent=b"{}").offset_table


def topic_bounds(
    address: str, topic: str, *, broker_name: str, timeout_ms: int = INVOKE_TIMEOUT_MS
) -> Operation[dict[int, TopicOffset]]:
    """Return the offsets of each queue of a topic, and its last message's time, by one request.

    Brokers of 4.9.7 answer for their writable queues alone. For a queue that can only be read, ask
    `min_offset` and `max_offset`.
    """
    table = yield from topic_offsets(address, topic, timeout_ms=timeout_ms)
    mine = {queue: found for queue, found in table.items() if queue.broker_name == broker_name}
    for queue, found in mine.items():
        _check(found.min_offset, queue, address)
        _check(found.max_offset, queue, address)
    return {queue.queue_id: found for queue, found in mine.items()}


def search_offset(
    address: str, queue: MessageQueue, *, timestamp_ms: int, timeout_ms: int = INVOKE_TIMEOUT_MS
) -> Operation[int]:
    """Return the offset of the first message stored at or after a time, or the queue's end.

    RocketMQ 4's brokers choose the nearer one of two neighbours instead, so the message may be
    older than the time, and of several of one millisecond any. For a time after the last message
    they answer with the last message's offset.
    """
    header = SearchOffsetRequestHeader(
        topic=queue.topic,
        queue_id=queue.queue_id,
        timestamp_ms=timestamp_ms,
        boundary_type="LOWER",
    )
    code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
    reply = yield from ask(address, code, header, timeout_ms=timeout_ms)
    return _check(
        decode_header(SearchOffsetResponseHeader, reply.ext_fields).offset, queue, address
    )


def _check(offset: int, queue: MessageQueue, address: str) -> int:
    if not -1 <= offset <= OFFSET_MAX:
        raise RemoteProtocolError(
            f"broker {address} answers with offset {offset} of {queue}, which no queue can have"
        )
    # RocketMQ's API gives -1 for a queue that has no message yet.
    return max(0, offset)

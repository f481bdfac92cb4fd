"""CONSUMER_SEND_MSG_BACK: a message that a consumer could not handle comes again later.

The message goes through a delay level to the group's retry topic, and after too many retries to the
group's dead letters.

Source: AbstractSendMessageProcessor.consumerSendMsgBack.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparrowmq.broker.processors.send import (
    confirm,
    find_or_create_plain,
    find_retry_limit,
    schedule,
)
from sparrowmq.broker.state import BrokerState
from sparrowmq.config import INT_MAX
from sparrowmq.errors import ProtocolError
from sparrowmq.model.delay import DELAY_LEVELS_MS
from sparrowmq.model.message import (
    PROPERTY_DELAY_LEVEL,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_WAIT_STORE_OK,
)
from sparrowmq.model.names import TOPIC_LENGTH_MAX, WAITING_TOPICS, dlq_topic, retry_topic
from sparrowmq.protocol.bodies import PERM_WRITE
from sparrowmq.protocol.codes import ResponseCode
from sparrowmq.protocol.headers import ConsumerSendMsgBackRequestHeader, decode_header
from sparrowmq.protocol.message_id import encode_offset_msg_id
from sparrowmq.protocol.properties import encode_properties, parse_properties
from sparrowmq.protocol.record import Record, decode_record
from sparrowmq.serving.access_control import Permission
from sparrowmq.serving.connections import Output
from sparrowmq.serving.requests import FAQ, Refusal, Request, answer
from sparrowmq.store.results import PutResult, PutStatus

# The first retry waits for level 3, 10 s.
_FIRST_RETRY_LEVEL = 3


def send_back(state: BrokerState, request: Request) -> Sequence[Output]:
    """Store the message again for its group: delayed, or among the dead letters."""
    header = decode_header(ConsumerSendMsgBackRequestHeader, request.command.ext_fields)
    group = state.find_group(header.group, timestamp_ms=request.timestamp_ms)
    if group is None:
        raise Refusal(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"subscription group not exist, {header.group} {FAQ}",
        )
    if group.retry_queue_nums <= 0:
        return answer(request)
    if len(retry_topic(header.group)) > TOPIC_LENGTH_MAX:
        raise Refusal(
            ResponseCode.SYSTEM_ERROR,
            f"the group name {header.group} is too long for a retry topic, which has at most "
            f"{TOPIC_LENGTH_MAX} characters",
        )
    topic = find_or_create_plain(
        state,
        retry_topic(header.group),
        queue_count=group.retry_queue_nums,
        timestamp_ms=request.timestamp_ms,
    )
    if not topic.perm & PERM_WRITE:
        raise Refusal(
            ResponseCode.NO_PERMISSION,
            f"the topic[{topic.topic_name}] sending message is forbidden",
        )
    record = _read(state, header.position)
    state.check_access(request, record.topic, Permission.SUB)
    retries_max = find_retry_limit(request, group, header.max_reconsume_times)
    if record.reconsume_times >= retries_max or header.delay_level < 0:
        count_attempts(record, 1)
        result = put_dead_letter(state, record, header.group, timestamp_ms=request.timestamp_ms)
        return confirm(state, request, result, topic=record.topic)
    properties = _with_origin(record)
    level = header.delay_level or _FIRST_RETRY_LEVEL + record.reconsume_times
    level = min(max(1, level), len(DELAY_LEVELS_MS))
    properties[PROPERTY_DELAY_LEVEL] = str(level)
    record.topic = topic.topic_name
    record.queue_id = state.any_queue(topic)
    schedule(record, properties, level=level)
    count_attempts(record, 1)
    record.store_host = state.store_host
    result = state.store.put(record, timestamp_ms=request.timestamp_ms)
    return confirm(state, request, result, topic=topic.topic_name)


def count_attempts(record: Record, count: int) -> None:
    """Add attempts to those of a record; a producer may have given it as many as a record holds."""
    record.reconsume_times = min(record.reconsume_times + count, INT_MAX)


def put_dead_letter(
    state: BrokerState, record: Record, group: str, *, timestamp_ms: int
) -> PutResult:
    """Store a copy of a message among the dead letters of a group.

    Its origin is left out if its properties leave no room for that.
    """
    name = dlq_topic(group)
    find_or_create_plain(state, name, queue_count=1, timestamp_ms=timestamp_ms)
    properties = _with_origin(record)
    properties[PROPERTY_DELAY_LEVEL] = "0"
    record.topic, record.queue_id = name, 0
    record.store_host = state.store_host
    own, record.properties = record.properties, encode_properties(properties)
    result = state.store.put(record, timestamp_ms=timestamp_ms)
    if result.status is PutStatus.MESSAGE_ILLEGAL:
        record.properties = own
        result = state.store.put(record, timestamp_ms=timestamp_ms)
    return result


def _with_origin(record: Record) -> dict[str, str]:
    """Return a record's properties, with its first topic and its id there."""
    properties = parse_properties(record.properties)
    properties.setdefault(PROPERTY_RETRY_TOPIC, record.topic)
    properties.setdefault(
        PROPERTY_ORIGIN_MESSAGE_ID, encode_offset_msg_id(record.store_host, record.position)
    )
    properties[PROPERTY_WAIT_STORE_OK] = "false"
    return properties


def _read(state: BrokerState, position: int) -> Record:
    refusal = Refusal(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {position}")
    data = state.read_named(position)
    if data is None:
        raise refusal
    try:
        record = decode_record(data)
    except ProtocolError as error:
        raise refusal from error
    # After a power cut that took the message, one that nobody may consume yet can be in its place.
    if record.topic in WAITING_TOPICS:
        raise refusal
    return record

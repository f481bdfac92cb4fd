"""Transactions: end half messages, and ask their producers for outcomes. Pure.

Source: EndTransactionProcessor.java, TransactionalMessageBridge.java,
AbstractTransactionalMessageCheckListener.java, AdminBrokerProcessor.resumeCheckHalfMessage.
Tests: broker/test_transactions.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from sparrowmq.broker.processors.send import confirm, delay_level, schedule
from sparrowmq.broker.state import BrokerState
from sparrowmq.broker.transaction_checks import first_offset
from sparrowmq.errors import ProtocolError
from sparrowmq.model.message import (
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_TRANSACTION_CHECK_TIMES,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET,
    PROPERTY_UNIQ_KEY,
)
from sparrowmq.model.names import (
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
)
from sparrowmq.model.whole_number import read_whole_number
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.headers import (
    CheckTransactionStateRequestHeader,
    EndTransactionRequestHeader,
    ResumeCheckHalfMessageRequestHeader,
    decode_header,
    encode_header,
)
from sparrowmq.protocol.message_id import decode_offset_msg_id, encode_offset_msg_id
from sparrowmq.protocol.properties import encode_properties, parse_properties
from sparrowmq.protocol.record import (
    TRANSACTION_COMMIT,
    TRANSACTION_NONE,
    TRANSACTION_ROLLBACK,
    Record,
    decode_record,
    encode_record,
)
from sparrowmq.serving.access_control import Permission
from sparrowmq.serving.connections import Connection, Fact, Output, Produce
from sparrowmq.serving.requests import Refusal, Request, answer
from sparrowmq.store.results import PutResult, PutStatus

# TransactionalMessageUtil.REMOVETAG.
_ENDED_TAG = "d"
_NOT_FOUND = "Find prepared transaction message failed"


def end_transaction(state: BrokerState, request: Request) -> Sequence[Output]:
    """Commit or roll back a half message.

    A commit stores the message in its real topic. Commit and rollback both note the end of the half
    message in the op topic. Differs from RocketMQ: it does not answer an outcome that is still
    unknown, it commits messages outside the half topic, and it puts messages into deleted topics.
    Here such messages stay half messages, and their producers are asked again. RocketMQ also stores
    the message with every commit that comes; here a second commit is answered, and stores nothing.
    """
    header = decode_header(EndTransactionRequestHeader, request.command.ext_fields)
    outcome = header.commit_or_rollback
    if outcome == TRANSACTION_NONE:
        return answer(request)
    if outcome not in (TRANSACTION_COMMIT, TRANSACTION_ROLLBACK):
        raise Refusal(ResponseCode.SYSTEM_ERROR, f"commitOrRollback field wrong: {outcome}")
    half = _read(state, header.commit_log_position, (TRANS_HALF_TOPIC,))
    properties = parse_properties(half.properties)
    if properties.get(PROPERTY_PRODUCER_GROUP) != header.producer_group:
        raise Refusal(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
    if header.msg_id and header.msg_id != properties.get(PROPERTY_UNIQ_KEY, header.msg_id):
        # A power cut has taken the one that is meant, and another stands in its place.
        raise Refusal(ResponseCode.SYSTEM_ERROR, "The message id wrong")
    if half.queue_offset != header.tran_state_table_offset:
        raise Refusal(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
    topic = properties.get(PROPERTY_REAL_TOPIC, "")
    state.check_access(request, topic, Permission.PUB)
    half_offset = half.queue_offset
    first = first_offset(half_offset, properties)
    if outcome == TRANSACTION_COMMIT and not state.transactions.is_committed(first):
        result = _put_committed(state, half, properties, request.timestamp_ms)
        if result.status is not PutStatus.PUT_OK:
            return confirm(state, request, result)
        state.transactions.note_commit(first)
    state.transactions.note_end(first)
    if first != half_offset:
        _put_end(state, first, request.timestamp_ms)
    result = _put_end(state, half_offset, request.timestamp_ms)
    return confirm(state, request, result, topic=topic if outcome == TRANSACTION_COMMIT else None)


def _put_end(state: BrokerState, half_offset: int, timestamp_ms: int) -> PutResult:
    """Note the end of the half message at an offset in the op topic."""
    op = Record(
        topic=TRANS_OP_HALF_TOPIC,
        queue_id=0,
        body=str(half_offset).encode(),
        properties=encode_properties({PROPERTY_TAGS: _ENDED_TAG}),
        born_timestamp_ms=timestamp_ms,
        born_host=state.store_host,
        store_host=state.store_host,
    )
    return state.store.append(op, timestamp_ms=timestamp_ms)


def _put_committed(
    state: BrokerState, half: Record, properties: dict[str, str], timestamp_ms: int
) -> PutResult:
    """Store a half message in its real topic and queue."""
    half.prepared_transaction_position = half.position
    place = _find_place(properties)
    if place is None:
        raise Refusal(ResponseCode.SYSTEM_ERROR, _NOT_FOUND)
    topic, _ = place
    queue_id = state.find_waited_queue(*place)
    if queue_id is None:
        raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
    half.topic, half.queue_id = topic, queue_id
    half.sys_flag |= TRANSACTION_COMMIT
    # The properties stay unchanged: TRAN_MSG shows a Java consumer that the message has a
    # transaction's id. RocketMQ removes TRAN_MSG only from delayed messages.
    level = delay_level(half.properties)
    if level > 0:
        properties.pop(PROPERTY_TRANSACTION_PREPARED, None)
        schedule(half, properties, level=level)
    return state.store.append(half, timestamp_ms=timestamp_ms)


def resume_check(state: BrokerState, request: Request) -> Sequence[Output]:
    """Append a message that was checked too often again, with its number of checks reset."""
    header = decode_header(ResumeCheckHalfMessageRequestHeader, request.command.ext_fields)
    _, position = decode_offset_msg_id(header.msg_id)
    record = _read(state, position, (TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC))
    properties = parse_properties(record.properties)
    properties[PROPERTY_TRANSACTION_CHECK_TIMES] = "0"
    properties.pop(PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET, None)
    record.topic, record.queue_id = TRANS_HALF_TOPIC, 0
    record.properties = encode_properties(properties)
    return confirm(state, request, state.store.append(record, timestamp_ms=request.timestamp_ms))


def check_transactions(state: BrokerState, *, now_ms: int, timestamp_ms: int) -> list[Output]:
    """Ask the producers of half messages whose check is due."""
    step = state.transactions.step(state.offsets, now_ms=now_ms, timestamp_ms=timestamp_ms)
    outputs: list[Output] = []
    for half_offset in step.asked:
        outputs += _ask_producer(state, half_offset)
    if step.put_away:
        text = (
            f"{step.put_away} half messages were put into {TRANS_CHECK_MAX_TIME_TOPIC}: their "
            f"producers gave no outcome when they were asked "
            f"{state.config.transaction_check_max} times, or for as long as messages are kept"
        )
        outputs.append(Fact(text, warning=True))
    return outputs


def _ask_producer(state: BrokerState, half_offset: int) -> Sequence[Output]:
    """Ask one member of the producer group, once its connection has room for the message.

    With access control, the member must have permission to send to the topic, because any client
    may join a producer group.
    """
    half = state.transactions.read(half_offset)
    properties = {} if half is None else parse_properties(half.properties)
    topic = properties.get(PROPERTY_REAL_TOPIC, "")
    producer = state.producers.choose(
        properties.get(PROPERTY_PRODUCER_GROUP, ""),
        lambda member: state.find_denial(member.access_key, topic, Permission.PUB) is None,
    )
    if producer is None:
        return ()
    return (Produce(producer, partial(_question, state, producer, half_offset)),)


def _question(state: BrokerState, producer: Connection, half_offset: int) -> Sequence[Output]:
    half = state.transactions.read(half_offset)
    properties = {} if half is None else parse_properties(half.properties)
    place = _find_place(properties)
    if half is None or place is None:
        return ()
    msg_id = properties.get(PROPERTY_UNIQ_KEY)
    header = CheckTransactionStateRequestHeader(
        tran_state_table_offset=half.queue_offset,
        commit_log_position=half.position,
        msg_id=msg_id,
        transaction_id=msg_id,
        offset_msg_id=encode_offset_msg_id(half.store_host, half.position),
    )
    half.topic, half.queue_id = place
    return (
        state.push(
            producer,
            RequestCode.CHECK_TRANSACTION_STATE,
            encode_header(header),
            body=encode_record(half),
        ),
    )


def _read(state: BrokerState, position: int, topics: Sequence[str]) -> Record:
    data = state.read_named(position)
    try:
        record = None if data is None else decode_record(data)
    except ProtocolError:
        record = None
    if record is None or record.topic not in topics:
        raise Refusal(ResponseCode.SYSTEM_ERROR, _NOT_FOUND)
    return record


def _find_place(properties: dict[str, str]) -> tuple[str, int] | None:
    """Return the real topic and queue of a half message, None if its properties lack them."""
    queue_id = read_whole_number(properties.get(PROPERTY_REAL_QUEUE_ID))
    topic = properties.get(PROPERTY_REAL_TOPIC)
    return None if not topic or queue_id is None else (topic, queue_id)

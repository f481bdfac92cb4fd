"""SEND_MESSAGE, SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE: from a request to records in the log.

This is the broker's hottest path. Properties stay in their text form, and a dict is built only if a
property needs it (benchmarks/broker.py).

Source: SendMessageProcessor.java, AbstractSendMessageProcessor.msgCheck, CommitLog.putMessage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from sparrowmq.broker import timer_messages
from sparrowmq.broker.state import BrokerRefusal, BrokerState
from sparrowmq.broker.topic_configs import (
    describe,
    find_name_fault,
    inherit,
    plain,
)
from sparrowmq.model.delay import DELAY_LEVELS_MS
from sparrowmq.model.message import (
    PROPERTY_DELAY_LEVEL,
    PROPERTY_POP_CK,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_REPLY_TO_CLIENT,
    PROPERTY_RESENT_BY,
    PROPERTY_RESENT_FROM,
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET,
    PROPERTY_UNIQ_KEY,
    PROPERTY_WAIT_STORE_OK,
)
from sparrowmq.model.names import (
    AUTO_CREATE_TOPIC_KEY_TOPIC,
    CLOSED_TOPICS,
    COMMAND_PRODUCER_GROUP,
    DLQ_GROUP_TOPIC_PREFIX,
    RETRY_GROUP_TOPIC_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRANS_HALF_TOPIC,
    dlq_topic,
)
from sparrowmq.protocol.bodies import (
    PERM_READ,
    PERM_WRITE,
    SENT_AGAIN,
    SubscriptionGroupConfig,
    TopicConfig,
)
from sparrowmq.protocol.codes import RequestCode, ResponseCode, SerializeType
from sparrowmq.protocol.command import ONEWAY_FLAG, response_to
from sparrowmq.protocol.framing import frame_json_header
from sparrowmq.protocol.headers import (
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
)
from sparrowmq.protocol.message_id import encode_offset_msg_ids
from sparrowmq.protocol.properties import encode_properties, find_property, parse_properties
from sparrowmq.protocol.recall_handle import RecallHandle
from sparrowmq.protocol.record import (
    MULTI_TAGS,
    TRANSACTION_TYPE,
    Record,
)
from sparrowmq.serving.connections import Output, Reply, Written
from sparrowmq.serving.requests import FAQ, Refusal, Request, typed_header
from sparrowmq.store.message_batch import (
    BatchMessages,
    MessageBatch,
    holds_property,
    read_messages,
)
from sparrowmq.store.record_check import parse_delay_level
from sparrowmq.store.results import PutResult, PutStatus

_ILLEGAL = (
    "the message is illegal, maybe msg body or properties length not matched. "
    "msg body length limit 4M, msg properties length limit 32k."
)
# These texts match a property, and also names with the same end: `find_property` decides.
_DELAY = f"{PROPERTY_DELAY_LEVEL}\x01"
_HALF = f"{PROPERTY_TRANSACTION_PREPARED}\x01"
_TIMER = "TIMER_D"
_HANDLE = f"{PROPERTY_POP_CK}\x01"
_REPLY = f"{PROPERTY_REPLY_TO_CLIENT}\x01"
_WAIT = f"{PROPERTY_WAIT_STORE_OK}\x01"
_WAIT_TRUE = f"{_WAIT}true"
_WAIT_BEHIND = f"\x02{_WAIT_TRUE}"
# MQVersion.V3_4_9_SNAPSHOT: from this version on a request's own limit of retries counts.
_VERSION_WITH_MAX_RECONSUME_TIMES = 121

# A look-up in an enumeration costs as much as a small object.
_SEND = RequestCode.SEND_MESSAGE.value
_SEND_BATCH = RequestCode.SEND_BATCH_MESSAGE.value
_PUT_OK = PutStatus.PUT_OK
_JSON = SerializeType.JSON

# The characters that the record of changes keeps of who sent a message again.
RESENT_BY_LENGTH_MAX = 120

_PUT_CODES = {
    PutStatus.PUT_OK: ResponseCode.SUCCESS,
    PutStatus.MESSAGE_ILLEGAL: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.SERVICE_NOT_AVAILABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
}


class _Sent(msgspec.Struct, frozen=True):
    """A send that has passed the checks, and whether neither its topic nor its queue is special."""

    request: Request
    header: SendMessageRequestHeader
    topic: TopicConfig
    queue_id: int
    is_plain: bool


def send(state: BrokerState, request: Request) -> Sequence[Output]:
    """Serve any of the three send requests."""
    header = header_of(request, _SEND)
    try:
        if state.access is not None and _REPLY in (header.properties or ""):
            _check_requester(state, request, header.properties or "")
        stored = store_sent(state, request, header)
    except Refusal as refusal:
        refusal.ext_fields = region_fields(state)
        raise
    outputs = confirm_sent(state, request, stored)
    if header.producer_group == COMMAND_PRODUCER_GROUP:
        begin = stored.result.queue_offset
        end = begin + len(stored.result.positions)
        is_delayed = find_property(header.properties or "", PROPERTY_DELAY_LEVEL) != ""
        is_delayed |= stored.recall_handle is not None
        moves = None if is_delayed else {stored.queue_id: (begin, end)}
        _, detail = _read_marks(state, header.properties or "")
        return [
            *outputs,
            *state.audit.note(request, "sent", topic=header.topic, moves=moves, detail=detail),
        ]
    if not header.topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
        return outputs
    group = header.topic.removeprefix(RETRY_GROUP_TOPIC_PREFIX)
    if state.is_member(group, request.connection):
        return outputs
    letter, detail = _read_marks(state, header.properties or "")
    return [*outputs, *state.audit.note(request, SENT_AGAIN, group, moves=letter, detail=detail)]


def _check_requester(state: BrokerState, request: Request, properties: str) -> None:
    """Refuse a request whose reply would go to the client of another account."""
    client_id = state.producers.find_lost_id(request.connection)
    if client_id is None or find_property(properties, PROPERTY_REPLY_TO_CLIENT) != client_id:
        return
    raise state.refusal(
        BrokerRefusal.ACCESS,
        request,
        ResponseCode.NO_PERMISSION,
        f"the reply would go to another account, whose client id is {client_id} too: give this "
        "client an instance name of its own",
    )


def _read_marks(state: BrokerState, properties: str) -> tuple[dict[int, tuple[int, int]], str]:
    """Return the place of the message that was sent again, if this broker has it, and by whom."""
    place = find_property(properties, PROPERTY_RESENT_FROM)
    if not place:
        return {}, ""
    by = find_property(properties, PROPERTY_RESENT_BY)[:RESENT_BY_LENGTH_MAX]
    detail = f"by {by}" if by.isprintable() and by else ""
    broker_name, queue_id, offset = ["", "", "", *place.rpartition(" ")[2].rsplit(":", 2)][-3:]
    is_here = broker_name == state.config.broker_name and f"{queue_id}{offset}".isascii()
    if not (is_here and queue_id.isdigit() and offset.isdigit() and len(queue_id + offset) < 20):
        return {}, detail
    return {int(queue_id): (int(offset), int(offset) + 1)}, detail


def header_of(request: Request, first_code: int) -> SendMessageRequestHeader:
    """Return the header of a send: with whole names under the first code, with letters later."""
    is_first = request.command.code == first_code
    return typed_header(
        request, SendMessageRequestHeader if is_first else SendMessageRequestHeaderV2
    )


class StoredSend(NamedTuple):
    """An appended message or batch.

    Args:
        waits: whether the sender waits for the flush.
        recall_handle: names a message that waits for its own time.
        journal_round: the journalling round without which a crash would take its topic; 0 for none.
    """

    queue_id: int
    result: PutResult
    waits: bool
    recall_handle: str | None = None
    journal_round: int = 0


def store_sent(
    state: BrokerState, request: Request, header: SendMessageRequestHeader
) -> StoredSend:
    """Append the message or the batch of a send. Raises: Refusal."""
    queue_id = header.queue_id
    topic = state.topics.find_plain(header.topic)
    if topic is not None and 0 <= queue_id < topic.write_queue_nums:
        is_plain = True
    else:
        is_plain = False
        topic = _find_topic(state, request, header)
        queue_id = _choose_queue(state, request, topic, queue_id)
    sent = _Sent(request, header, topic, queue_id, is_plain)
    if header.batch or request.command.code == _SEND_BATCH:
        stored = _store_batch(state, sent)
    else:
        stored = _store_one(state, sent)
    _check_put(state, stored.result)
    if not is_plain and (journal_round := state.round_of_topic(topic.topic_name)):
        return stored._replace(journal_round=journal_round)
    return stored


def confirm_sent(state: BrokerState, request: Request, stored: StoredSend) -> Sequence[Output]:
    """Answer with the place of a stored message, once the message is safe."""
    command = request.command
    queue_id, result, waits, recall_handle, journal_round = stored
    if command.flag & ONEWAY_FLAG:
        return ()
    reply: Reply | Written
    if (
        command.flag == 0
        and len(result.positions) == 1
        and command.serialize_type is _JSON
        and recall_handle is None
    ):
        # The usual answer is a template.
        places = (result.position, queue_id, result.queue_offset, command.opaque)
        reply = Written(request.connection, frame_json_header(state.sent_answer % places))
    else:
        fields = region_fields(state) | {
            "msgId": encode_offset_msg_ids(state.store_host, result.positions),
            "queueId": str(queue_id),
            "queueOffset": str(result.queue_offset),
        }
        if recall_handle is not None:
            fields["recallHandle"] = recall_handle
        reply = Reply(request.connection, response_to(command, ext_fields=fields))
    return _reply_when_safe(state, request, reply, result, waits=waits, journal_round=journal_round)


def region_fields(state: BrokerState) -> dict[str, str]:
    """Return the fields that every answer to a send has."""
    return {"MSG_REGION": state.config.region, "TRACE_ON": "true"}


def confirm(
    state: BrokerState,
    request: Request,
    result: PutResult,
    *,
    fields: Mapping[str, str] | None = None,
    topic: str | None = None,
) -> Sequence[Output]:
    """Answer a request that has stored a record, without the record's place.

    Args:
        topic: the topic in which the record, or what comes of it, is to be found.
    """
    _check_put(state, result)
    if request.command.is_oneway:
        return ()
    reply = Reply(request.connection, response_to(request.command, ext_fields=fields))
    journal_round = 0 if topic is None else state.round_of_topic(topic)
    return _reply_when_safe(state, request, reply, result, waits=True, journal_round=journal_round)


def _check_put(state: BrokerState, result: PutResult) -> None:
    if result.status is not _PUT_OK:
        code = _PUT_CODES.get(result.status, ResponseCode.SYSTEM_ERROR)
        raise Refusal(code, f"{result.status.name}: {result.remark}")
    counters = state.counters
    counters.puts += len(result.positions)
    counters.put_bytes += result.end_position - result.position


def _reply_when_safe(
    state: BrokerState,
    request: Request,
    reply: Reply | Written,
    result: PutResult,
    *,
    waits: bool,
    journal_round: int,
) -> Sequence[Output]:
    waits_for_flush = waits and state.config.is_sync
    if journal_round:
        # A topic made by a send must survive a crash as the message does.
        return state.pending.add_for_rounds(
            reply,
            journal_round=journal_round,
            position=result.end_position,
            waits_for_flush=waits_for_flush,
            now_ms=request.now_ms,
        )
    return state.pending.add(
        reply,
        position=result.end_position,
        waits_for_flush=waits_for_flush,
        now_ms=request.now_ms,
    )


def _find_topic(
    state: BrokerState, request: Request, header: SendMessageRequestHeader
) -> TopicConfig:
    """Return the topic's settings; make them if the broker may."""
    name = header.topic
    if name in CLOSED_TOPICS:
        raise state.refusal(
            BrokerRefusal.CLOSED_TOPIC,
            request,
            ResponseCode.NO_PERMISSION,
            f"Sending message to topic[{name}] is forbidden.",
        )
    topic = state.topics.find(name)
    if topic is None:
        fault = find_name_fault(name)
        if fault is not None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, fault)
        topic = _create_topic(state, request, header)
        if topic is None:
            raise Refusal(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please!{FAQ}"
            )
    if not topic.perm & PERM_WRITE:
        raise Refusal(
            ResponseCode.NO_PERMISSION,
            f"the broker[{state.config.address}] sending message is forbidden: "
            f"topic[{name}] is not writable",
        )
    if topic.topic_name.startswith(RETRY_GROUP_TOPIC_PREFIX):
        return _retry_or_dead_letter_topic(state, request, header, topic)
    return topic


def _create_topic(
    state: BrokerState, request: Request, header: SendMessageRequestHeader
) -> TopicConfig | None:
    if len(state.topics) >= state.config.topics_max:
        return None
    created: TopicConfig | None = None
    template = state.topics.find(header.default_topic)
    # The table still has the template if an earlier start had made it.
    is_off = header.default_topic == AUTO_CREATE_TOPIC_KEY_TOPIC
    is_off &= not state.config.auto_create_topics
    if template is not None and not is_off:
        created = inherit(template, header.topic, queue_count=header.default_topic_queue_nums)
    if created is None and header.topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
        created = plain(header.topic, queue_count=1)
    if created is not None:
        state.put_topic(created, timestamp_ms=request.timestamp_ms)
    return created


def _retry_or_dead_letter_topic(
    state: BrokerState,
    request: Request,
    header: SendMessageRequestHeader,
    topic: TopicConfig,
) -> TopicConfig:
    """Redirect a message that was retried often enough to the group's dead letters."""
    name = header.topic.removeprefix(RETRY_GROUP_TOPIC_PREFIX)
    group = state.find_group(name, timestamp_ms=request.timestamp_ms)
    if group is None:
        raise Refusal(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"subscription group not exist, {name}{FAQ}",
        )
    retries_max = find_retry_limit(request, group, header.max_reconsume_times)
    if (header.reconsume_times or 0) < retries_max:
        return topic
    return find_or_create_plain(
        state, dlq_topic(name), queue_count=1, timestamp_ms=request.timestamp_ms
    )


def find_retry_limit(request: Request, group: SubscriptionGroupConfig, own: int | None) -> int:
    """Return how often a message is retried: as its group says, or as its consumer says (`own`)."""
    if own is None or request.command.version < _VERSION_WITH_MAX_RECONSUME_TIMES:
        return group.retry_max_times
    return own


def find_or_create_plain(
    state: BrokerState, name: str, *, queue_count: int, timestamp_ms: int, sys_flag: int = 0
) -> TopicConfig:
    """Return a topic that the broker itself needs; make a missing topic."""
    topic = state.topics.find(name)
    if topic is None:
        topic = plain(name, queue_count=queue_count, perm=PERM_READ | PERM_WRITE, sys_flag=sys_flag)
        state.put_topic(topic, timestamp_ms=timestamp_ms)
    return topic


def _choose_queue(state: BrokerState, request: Request, topic: TopicConfig, queue_id: int) -> int:
    count = topic.write_queue_nums
    if topic.topic_name.startswith(DLQ_GROUP_TOPIC_PREFIX):
        return 0
    if queue_id >= max(count, topic.read_queue_nums):
        raise Refusal(
            ResponseCode.SYSTEM_ERROR,
            f"request queueId[{queue_id}] is illegal, {describe(topic)} "
            f"Producer: {request.connection.address}",
        )
    if queue_id >= 0:
        return queue_id
    return state.any_queue(topic)


def _store_one(state: BrokerState, sent: _Sent) -> StoredSend:
    """Append a message.

    Nearly all messages of a busy broker are plain: neither delayed nor half, in a plain topic. The
    store encodes them without a `Record` (benchmarks/broker.py, benchmarks/against_apache.py).
    """
    # A frame without a body is a message with an empty body, as in RocketMQ.
    request, header = sent.request, sent.header
    text, body, sys_flag = _own_properties(header), request.command.body or b"", header.sys_flag
    waits, stored = _take_wait(text)
    stored = _with_origin(state, stored)
    may_be_half, may_be_delayed, has_timer = _HALF in text, _DELAY in text, _TIMER in text
    if sent.is_plain and not (
        may_be_half or may_be_delayed or has_timer or sys_flag & TRANSACTION_TYPE
    ):
        result = state.store.append_plain(
            header,
            body,
            stored,
            born_host=request.connection.host,
            store_host=state.store_host,
            timestamp_ms=request.timestamp_ms,
        )
        if result is not None:
            return StoredSend(sent.queue_id, result, waits)
    due_ms = _due_ms(text, request.timestamp_ms) if has_timer else None
    level = delay_level(text) if may_be_delayed else 0
    # Java's clients before 4.6.1 send a committed message to its retry topic with all properties.
    is_retry = level > 0 and (header.reconsume_times or 0) > 0
    is_half = may_be_half and not is_retry and _is_half(text)
    if is_half and due_ms is not None:
        raise Refusal(ResponseCode.MESSAGE_ILLEGAL, "a half message has no delivery time")
    record = Record(
        topic=sent.topic.topic_name,
        queue_id=sent.queue_id,
        body=body,
        flag=header.flag,
        sys_flag=_sys_flag(state, sent, is_half=is_half),
        born_timestamp_ms=header.born_timestamp_ms,
        born_host=request.connection.host,
        store_host=state.store_host,
        reconsume_times=header.reconsume_times or 0,
        properties=stored,
    )
    recall_handle = None
    if is_half:
        properties = parse_properties(stored)
        # Copied from a message that was asked for: with the end of this one, that of another.
        properties.pop(PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET, None)
        _set_aside(record, properties, topic=TRANS_HALF_TOPIC, queue_id=0)
    # Dead letters are never delayed.
    elif level > 0 and not record.topic.startswith(DLQ_GROUP_TOPIC_PREFIX):
        schedule(record, parse_properties(text), level=level)
        record.properties = _with_origin(state, record.properties)
    elif due_ms is not None and not record.topic.startswith(DLQ_GROUP_TOPIC_PREFIX):
        recall_handle = _wait_until(state, record, due_ms, request.timestamp_ms)
    # Consumers copy WAIT=false of a message that was sent back, and its offset is done after the
    # answer.
    waits |= header.topic.startswith(RETRY_GROUP_TOPIC_PREFIX)
    result = state.store.append(record, timestamp_ms=request.timestamp_ms)
    return StoredSend(sent.queue_id, result, waits, recall_handle)


def _own_properties(header: SendMessageRequestHeader) -> str:
    """Return the properties without the handle of another message, which a program has popped.

    Java's clients would acknowledge that message in the place of this one. As in 5.x.
    """
    text = header.properties or ""
    if _HANDLE not in text:
        return text
    return "\x02".join(pair for pair in text.split("\x02") if not pair.startswith(_HANDLE))


def _take_wait(text: str) -> tuple[bool, str]:
    """Return whether the producer waits for the flush, and the properties without WAIT=true.

    RocketMQ does not store WAIT=true of plain messages.
    """
    before, _, behind = text.partition(_WAIT_BEHIND)
    stored = before + behind
    if _WAIT not in stored and (not behind or behind[0] == "\x02"):
        return True, stored
    pairs = text.split("\x02")
    if _WAIT_TRUE in pairs:
        pairs.remove(_WAIT_TRUE)
    stored = "\x02".join(pairs)
    return _WAIT not in stored or _waits(text), stored


def _waits(text: str) -> bool:
    """Return whether WAIT makes the producer wait for the flush, as Message.isWaitStoreMsgOK."""
    value = find_property(text, PROPERTY_WAIT_STORE_OK)
    return not value or value.lower() == "true"


def _with_origin(state: BrokerState, text: str) -> str:
    """Add the cluster, and the region as 5.x brokers do: 5.x consumers need it for traces."""
    added = state.origin_properties
    if not text:
        return added
    return text + added if text[-1] == "\x02" else f"{text}\x02{added}"


def schedule(record: Record, properties: dict[str, str], *, level: int) -> None:
    """Redirect a record to the schedule topic, where it waits."""
    _set_aside(record, properties, topic=SCHEDULE_TOPIC, queue_id=level - 1)


def _set_aside(record: Record, properties: dict[str, str], *, topic: str, queue_id: int) -> None:
    """Redirect a record to another topic, where it waits; its properties keep its real topic."""
    properties[PROPERTY_REAL_TOPIC] = record.topic
    properties[PROPERTY_REAL_QUEUE_ID] = str(record.queue_id)
    record.topic, record.queue_id = topic, queue_id
    record.properties = encode_properties(properties)


def _is_half(text: str) -> bool:
    """Return whether the properties belong to a half message, whose transaction must be ended."""
    if find_property(text, PROPERTY_TRANSACTION_PREPARED).lower() != "true":
        return False
    if not find_property(text, PROPERTY_PRODUCER_GROUP):
        raise Refusal(
            ResponseCode.MESSAGE_ILLEGAL,
            f"a half message without {PROPERTY_PRODUCER_GROUP}: nobody could end its transaction",
        )
    return True


def _store_batch(state: BrokerState, sent: _Sent) -> StoredSend:
    """Append a batch; return the outcome, and whether the producer waits for the flush."""
    # As in RocketMQ, each message of a batch gets the batch's own properties, which determine
    # whether the producer waits.
    request, header = sent.request, sent.header
    shared, body = _own_properties(header), request.command.body or b""
    batch = MessageBatch(
        topic=sent.topic.topic_name,
        queue_id=sent.queue_id,
        messages=BatchMessages(body, (), []),
        added=_with_origin(state, shared),
        sys_flag=header.sys_flag,
        born_timestamp_ms=header.born_timestamp_ms,
        store_timestamp_ms=request.timestamp_ms,
        born_host=request.connection.host,
        store_host=state.store_host,
        reconsume_times=header.reconsume_times or 0,
    )
    result: PutResult | None = None
    if sent.is_plain and not header.sys_flag & TRANSACTION_TYPE:
        count_max = state.config.batch_count_max
        result = state.store.append_plain_batch(batch, body, count_max=count_max)
    if result is None:
        messages = read_messages(body)
        _check_batch(state, header, messages)
        batch = batch._replace(messages=messages, sys_flag=_sys_flag(state, sent))
        result = state.store.append_batch(batch)
    return StoredSend(sent.queue_id, result, _waits(shared))


def _check_batch(
    state: BrokerState, header: SendMessageRequestHeader, messages: BatchMessages
) -> None:
    """Refuse a batch with messages that no batch may have."""
    if not 0 < messages.message_count <= state.config.batch_count_max:
        raise Refusal(
            ResponseCode.MESSAGE_ILLEGAL,
            f"a batch of {messages.message_count} messages; "
            f"from 1 to {state.config.batch_count_max} are allowed",
        )
    topic, shared = header.topic, _own_properties(header)
    if topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
        raise Refusal(
            ResponseCode.MESSAGE_ILLEGAL, f"batch request does not support retry group {topic}"
        )
    if (_DELAY in shared and delay_level(shared) > 0) or _has_delayed(messages):
        raise Refusal(ResponseCode.MESSAGE_ILLEGAL, _ILLEGAL)
    if _TIMER in shared or _TIMER.encode() in messages.properties_text:
        for each in (shared, *(text.decode() for text in messages.properties)):
            if _due_ms(each, 0) is not None:
                raise Refusal(ResponseCode.MESSAGE_ILLEGAL, _ILLEGAL)


def _has_delayed(messages: BatchMessages) -> bool:
    """Return whether one of the messages has a delay level."""
    return holds_property(messages.properties_text, PROPERTY_DELAY_LEVEL) and any(
        delay_level(each.decode()) > 0 for each in messages.properties
    )


def _due_ms(text: str, timestamp_ms: int) -> int | None:
    """Return the time that a message has to wait for, None if it waits for none. Raises: Refusal.

    As in 5.x, a delay level overrides a delivery time, and a message that has waited is delivered.
    """
    if find_property(text, PROPERTY_TIMER_OUT_MS) or delay_level(text) > 0:
        return None
    try:
        due_ms = timer_messages.delivery_time(parse_properties(text), timestamp_ms=timestamp_ms)
    except ValueError as error:
        raise Refusal(ResponseCode.MESSAGE_ILLEGAL, str(error)) from None
    if due_ms is None or due_ms <= timestamp_ms:
        return None
    return due_ms


def _wait_until(state: BrokerState, record: Record, due_ms: int, timestamp_ms: int) -> str | None:
    """Redirect a record to the timer topic, where it waits; return the handle of its recall.

    Raises: Refusal for a time too far away, and if too many messages wait.
    """
    longest_s = state.config.timer_max_delay_s
    if due_ms - timestamp_ms > longest_s * 1_000:
        raise Refusal(
            ResponseCode.MESSAGE_ILLEGAL,
            f"timer message illegal: it asks for a delay of {(due_ms - timestamp_ms) // 1_000} s; "
            f"at most {longest_s} s are allowed (--timer-max-delay-s)",
        )
    if len(state.timers) >= timer_messages.WAITING_MAX:
        raise Refusal(
            ResponseCode.SYSTEM_ERROR,
            f"timer message is under flow control: {timer_messages.WAITING_MAX} messages wait",
        )
    find_or_create_plain(state, TIMER_TOPIC, queue_count=1, timestamp_ms=timestamp_ms)
    properties = parse_properties(record.properties)
    properties[PROPERTY_TIMER_OUT_MS] = str(due_ms)
    # Only the broker's own records recall a message by its offset.
    properties.pop(timer_messages.RECALLED_OFFSET, None)
    msg_id = properties.get(PROPERTY_UNIQ_KEY)
    handle = RecallHandle(record.topic, state.config.broker_name, due_ms, msg_id or "")
    _set_aside(record, properties, topic=TIMER_TOPIC, queue_id=0)
    return handle.encode() if msg_id else None


def delay_level(properties: str) -> int:
    """Return the delay level that properties name, 0 for none. Raises: Refusal."""
    text = find_property(properties, PROPERTY_DELAY_LEVEL)
    try:
        return parse_delay_level(text, level_max=len(DELAY_LEVELS_MS))
    except ValueError as error:
        raise Refusal(
            ResponseCode.MESSAGE_ILLEGAL,
            f"{PROPERTY_DELAY_LEVEL} is {text[:40]!r}; "
            f"it must be a delay level, 1 to {len(DELAY_LEVELS_MS)}, or 0 for none",
        ) from error


def _sys_flag(state: BrokerState, sent: _Sent, *, is_half: bool = False) -> int:
    """Return the sys flag to store; only the properties make a message a half message."""
    sys_flag = sent.header.sys_flag
    if sys_flag & TRANSACTION_TYPE and not is_half:
        raise Refusal(
            ResponseCode.NO_PERMISSION,
            f"the broker[{state.config.address}] sending transaction message without "
            f"{PROPERTY_TRANSACTION_PREPARED} is forbidden",
        )
    sys_flag &= ~TRANSACTION_TYPE
    return sys_flag | MULTI_TAGS if sent.topic.topic_filter_type == "MULTI_TAG" else sys_flag

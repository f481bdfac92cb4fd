"""A message's two forms: gRPC's message, and the body and properties of the remoting protocol.

Source: SendMessageActivity, GrpcConverter of 5.5.0. Tests: test_server.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import md5

from sparrowmq.grpc_service.messages import (
    DeadLetterQueue,
    Digest,
    DigestType,
    Duration,
    Encoding,
    Message,
    MessageType,
    Resource,
    SystemProperties,
    Timestamp,
)
from sparrowmq.model import MessageExt
from sparrowmq.model.message import (
    KEY_SEPARATOR,
    PROPERTY_CHECK_IMMUNITY_TIME,
    PROPERTY_DELAY_LEVEL,
    PROPERTY_KEYS,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_RECONSUME_TIME,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TAGS,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_UNIQ_KEY,
    RESERVED_PROPERTIES,
    TIMESTAMP_MS_MAX,
    TIMESTAMP_MS_MIN,
)
from sparrowmq.model.whole_number import read_whole_number

# MessageConst.java of 5.x.
PROPERTY_BORN_TIMESTAMP = "BORN_TIMESTAMP"
PROPERTY_BORN_HOST = "__BORNHOST"
PROPERTY_TRACE_CONTEXT = "TRACE_CONTEXT"
PROPERTY_PRIORITY = "_SYS_MSG_PRIORITY_"
PROPERTY_LITE_TOPIC = "__LITE_TOPIC"
PROPERTY_DLQ_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
PROPERTY_DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"
_INT32_MAX = 2**31 - 1
# The properties that are RocketMQ's own, and no user's.
SYSTEM_PROPERTIES = RESERVED_PROPERTIES | {
    PROPERTY_BORN_TIMESTAMP,
    PROPERTY_BORN_HOST,
    PROPERTY_TRACE_CONTEXT,
    PROPERTY_PRIORITY,
    PROPERTY_LITE_TOPIC,
    PROPERTY_DLQ_ORIGIN_TOPIC,
    PROPERTY_DLQ_ORIGIN_MESSAGE_ID,
    PROPERTY_CHECK_IMMUNITY_TIME,
    "POP_CK",
    "1ST_POP_TIME",
    "ORIGIN_GROUP",
}


def to_properties(message: Message, kind: MessageType, *, born_host: str) -> dict[str, str]:
    """Return the properties that store a message of a producer."""
    system = message.system_properties
    found = dict(message.user_properties)
    found[PROPERTY_UNIQ_KEY] = system.message_id
    # The check-back of a transaction asks the producer group, which is the topic.
    found[PROPERTY_PRODUCER_GROUP] = message.topic.name
    if kind == MessageType.TRANSACTION:
        found[PROPERTY_TRANSACTION_PREPARED] = "true"
        if system.HasField("orphaned_transaction_recovery_duration"):
            seconds = system.orphaned_transaction_recovery_duration.seconds
            found[PROPERTY_CHECK_IMMUNITY_TIME] = str(seconds)
    if system.HasField("delivery_timestamp"):
        # A time before 1970 is over too.
        found[PROPERTY_TIMER_DELIVER_MS] = str(max(0, to_ms(system.delivery_timestamp)))
    if system.delivery_attempt:
        found[PROPERTY_RECONSUME_TIME] = str(system.delivery_attempt)
    if (born_ms := find_born_ms(system)) is not None:
        found[PROPERTY_BORN_TIMESTAMP] = str(born_ms)
    texts = {
        PROPERTY_KEYS: KEY_SEPARATOR.join(filter(None, system.keys)),
        PROPERTY_TAGS: system.tag,
        PROPERTY_SHARDING_KEY: system.message_group,
        PROPERTY_LITE_TOPIC: system.lite_topic,
        PROPERTY_TRACE_CONTEXT: system.trace_context,
        PROPERTY_BORN_HOST: system.born_host or born_host,
    }
    found |= {name: text for name, text in texts.items() if text}
    if system.HasField("priority"):
        found[PROPERTY_PRIORITY] = str(system.priority)
    return found


def find_born_ms(system: SystemProperties) -> int | None:
    """Return when a producer made a message, in milliseconds since 1970.

    None if it says nothing, or no time that there is, as at Apache's proxy.
    """
    if not system.HasField("born_timestamp"):
        return None
    born_ms = to_ms(system.born_timestamp)
    return born_ms if _is_instant(born_ms) else None


def _is_instant(timestamp_ms: int) -> bool:
    return TIMESTAMP_MS_MIN <= timestamp_ms <= TIMESTAMP_MS_MAX


def to_message(stored: MessageExt, *, topic: str, receipt_handle: str | None = None) -> Message:
    """Return a stored message, whose body is inflated, as a consumer gets it.

    Args:
        topic: the topic that the consumer asked for.
        receipt_handle: names the delivery; None if the message is not received.
    """
    # Most of the look-ups find nothing, which takes a mapping of the stored text an error each.
    properties = dict(stored.properties)
    # Clients of the remoting protocol write any number.
    born_ms = stored.born_timestamp_ms
    digest = Digest(type=DigestType.MD5, checksum=md5(stored.body).hexdigest().upper())
    system = SystemProperties(
        tag=properties.get(PROPERTY_TAGS),
        keys=stored.keys,
        message_id=stored.msg_id,
        body_digest=digest,
        body_encoding=Encoding.IDENTITY,
        message_type=_stored_type(properties),
        born_timestamp=to_timestamp(born_ms) if _is_instant(born_ms) else None,
        born_host=properties.get(PROPERTY_BORN_HOST, stored.born_host),
        store_timestamp=to_timestamp(stored.store_timestamp_ms),
        store_host=stored.store_host,
        delivery_timestamp=_delivery_time(properties),
        receipt_handle=receipt_handle,
        queue_id=stored.queue_id,
        queue_offset=stored.queue_offset,
        delivery_attempt=min(stored.reconsume_times, _INT32_MAX - 1) + 1,
        message_group=properties.get(PROPERTY_SHARDING_KEY),
        trace_context=properties.get(PROPERTY_TRACE_CONTEXT),
        dead_letter_queue=_dead_letter(properties),
        lite_topic=properties.get(PROPERTY_LITE_TOPIC),
        priority=_number(properties.get(PROPERTY_PRIORITY), _INT32_MAX),
    )
    own = {name: text for name, text in properties.items() if name not in SYSTEM_PROPERTIES}
    resource = Resource(name=topic)
    return Message(topic=resource, user_properties=own, system_properties=system, body=stored.body)


def _stored_type(properties: Mapping[str, str]) -> MessageType:
    if PROPERTY_TRANSACTION_PREPARED in properties:
        return MessageType.TRANSACTION
    if PROPERTY_DELAY_LEVEL in properties or _delivery_time(properties) is not None:
        return MessageType.DELAY
    if PROPERTY_SHARDING_KEY in properties:
        return MessageType.FIFO
    if PROPERTY_PRIORITY in properties:
        return MessageType.PRIORITY
    return MessageType.LITE if PROPERTY_LITE_TOPIC in properties else MessageType.NORMAL


def _delivery_time(properties: Mapping[str, str]) -> Timestamp | None:
    for name in (PROPERTY_TIMER_DELIVER_MS, PROPERTY_TIMER_OUT_MS):
        number = _number(properties.get(name), TIMESTAMP_MS_MAX)
        if number is not None:
            return to_timestamp(number)
    return None


def _dead_letter(properties: Mapping[str, str]) -> DeadLetterQueue | None:
    topic = properties.get(PROPERTY_DLQ_ORIGIN_TOPIC)
    message_id = properties.get(PROPERTY_DLQ_ORIGIN_MESSAGE_ID)
    return DeadLetterQueue(topic=topic, message_id=message_id) if topic and message_id else None


def _number(text: str | None, highest: int) -> int | None:
    """Return the number of a property, None for none up to the highest that its field takes.

    Clients of the remoting protocol write into a property whatever they want.
    """
    number = read_whole_number(text, len(str(highest)))
    return None if number is None or number > highest else number


def to_ms(instant: Timestamp | Duration) -> int:
    """Return an instant since 1970, or a duration, in milliseconds."""
    return instant.seconds * 1_000 + instant.nanos // 1_000_000


def to_timestamp(timestamp_ms: int) -> Timestamp:
    """Return an instant of milliseconds since 1970."""
    return Timestamp(seconds=timestamp_ms // 1_000, nanos=timestamp_ms % 1_000 * 1_000_000)


def to_duration(duration_ms: int) -> Duration:
    """Return a duration of milliseconds."""
    return Duration(seconds=duration_ms // 1_000, nanos=duration_ms % 1_000 * 1_000_000)

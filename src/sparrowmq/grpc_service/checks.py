"""The checks of names and values that the official service makes before the broker sees a message.

Source: GrpcValidator, SendMessageActivity of 5.5.0. Tests: test_checks.py, test_server.py.
"""

from __future__ import annotations

from sparrowmq.grpc_service.message_content import SYSTEM_PROPERTIES, to_ms
from sparrowmq.grpc_service.messages import Code, Message, MessageType, Resource
from sparrowmq.grpc_service.statuses import Rejected
from sparrowmq.model.names import (
    CONSUMER_GROUP_LENGTH_MAX,
    TOPIC_LENGTH_MAX,
    is_legal_name,
    is_system_group,
    is_system_topic,
)

# ProxyConfig of 5.5.0.
USER_PROPERTIES_MAX = 128
USER_PROPERTY_BYTES_MAX = 16 * 1024
MESSAGE_GROUP_BYTES_MAX = 64
TRANSACTION_RECOVERY_S_MAX = 3_600


def check_topic(resource: Resource) -> str:
    """Return the name of a topic of users. Raises: Rejected."""
    topic = _check_name(resource.name, "topic", TOPIC_LENGTH_MAX, Code.ILLEGAL_TOPIC)
    if is_system_topic(topic):
        raise Rejected(Code.ILLEGAL_TOPIC, f"topic {topic!r} is one of RocketMQ's own")
    return topic


def check_group(resource: Resource) -> str:
    """Return a consumer group's name. Raises: Rejected."""
    code = Code.ILLEGAL_CONSUMER_GROUP
    group = _check_name(resource.name, "group", CONSUMER_GROUP_LENGTH_MAX, code)
    if is_system_group(group):
        raise Rejected(code, f"group {group!r} is one of RocketMQ's own")
    return group


def _check_name(name: str, noun: str, length_max: int, code: Code) -> str:
    if not name.strip():
        raise Rejected(code, f"the {noun} name is blank")
    if len(name) > length_max:
        text = f"the {noun} name {name[:40]!r}... has {len(name)} characters, over {length_max}"
        raise Rejected(code, text)
    if not is_legal_name(name):
        text = f"the {noun} name {name!r} has characters other than letters, digits and %|_-"
        raise Rejected(code, text)
    return name


def check_message(
    message: Message,
    *,
    body_bytes_max: int,
    delay_ms_max: int,
    type_of_topic: str,
    timestamp_ms: int,
) -> None:
    """Raise Rejected for a message that may not be sent.

    An empty tag, key or message group is none, as at Apache's proxy: Go's client sends one that its
    user has set to "".

    Args:
        type_of_topic: the topic's attribute `message.type`.
        timestamp_ms: the time, in milliseconds since 1970.
    """
    system = message.system_properties
    if not message.body:
        raise Rejected(Code.MESSAGE_BODY_EMPTY, "the body is empty")
    if len(message.body) > body_bytes_max:
        text = f"the body has {len(message.body)} bytes; the limit is {body_bytes_max}"
        raise Rejected(Code.MESSAGE_BODY_TOO_LARGE, text)
    _check_text("message id", system.message_id, Code.ILLEGAL_MESSAGE_ID)
    if system.tag:
        _check_text("tag", system.tag, Code.ILLEGAL_MESSAGE_TAG)
        if "|" in system.tag:
            raise Rejected(Code.ILLEGAL_MESSAGE_TAG, f"tag {system.tag!r} contains '|'")
    for key in filter(None, system.keys):
        _check_text("key", key, Code.ILLEGAL_MESSAGE_KEY)
    if system.message_group:
        _check_text("message group", system.message_group, Code.ILLEGAL_MESSAGE_GROUP)
        if len(system.message_group.encode()) >= MESSAGE_GROUP_BYTES_MAX:
            text = f"the message group has {MESSAGE_GROUP_BYTES_MAX} bytes or more"
            raise Rejected(Code.ILLEGAL_MESSAGE_GROUP, text)
    recovery = system.orphaned_transaction_recovery_duration.seconds
    if recovery > TRANSACTION_RECOVERY_S_MAX:
        text = f"the transaction recovery time is {recovery} s, over {TRANSACTION_RECOVERY_S_MAX} s"
        raise Rejected(Code.BAD_REQUEST, text)
    delay_ms = to_ms(system.delivery_timestamp) - timestamp_ms
    if delay_ms > delay_ms_max:
        text = f"the delivery time is {delay_ms // 1_000} s away, over {delay_ms_max // 1_000} s"
        raise Rejected(Code.ILLEGAL_DELIVERY_TIME, f"{text} (--timer-max-delay-s)")
    _check_properties(message)
    _check_type(message, type_of_topic)


def _check_text(noun: str, text: str, code: Code) -> None:
    if not text.strip():
        raise Rejected(code, f"the {noun} is blank")
    if _has_control(text):
        raise Rejected(code, f"the {noun} {text!r} contains a control character")


def _has_control(text: str) -> bool:
    return any(character < " " or "\x7f" <= character <= "\x9f" for character in text)


def _check_properties(message: Message) -> None:
    properties, system = message.user_properties, message.system_properties
    if len(properties) > USER_PROPERTIES_MAX:
        text = f"the message has {len(properties)} properties; the limit is {USER_PROPERTIES_MAX}"
        raise Rejected(Code.MESSAGE_PROPERTIES_TOO_LARGE, text)
    size = len(system.tag.encode()) + sum(len(key.encode()) for key in system.keys)
    for name, value in properties.items():
        if name in SYSTEM_PROPERTIES:
            text = f"property {name!r} is reserved by RocketMQ; choose another name"
            raise Rejected(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, text)
        if _has_control(name) or _has_control(value):
            text = f"property {name!r} contains a control character"
            raise Rejected(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, text)
        size += len(name.encode()) + len(value.encode())
    for noun in ("born_host", "trace_context", "lite_topic"):
        if _has_control(getattr(system, noun)):
            text = f"{noun} contains a control character"
            raise Rejected(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, text)
    if size > USER_PROPERTY_BYTES_MAX:
        text = f"the properties have {size} bytes; the limit is {USER_PROPERTY_BYTES_MAX}"
        raise Rejected(Code.MESSAGE_PROPERTIES_TOO_LARGE, text)


def type_of(message: Message) -> MessageType:
    """Return the type that a message's properties say.

    Only a transaction is a matter of the client's word.
    """
    system = message.system_properties
    if system.message_type == MessageType.TRANSACTION:
        return MessageType.TRANSACTION
    if system.HasField("delivery_timestamp"):
        return MessageType.DELAY
    if system.message_group:
        return MessageType.FIFO
    if system.HasField("priority"):
        return MessageType.PRIORITY
    if system.lite_topic:
        return MessageType.LITE
    return MessageType.NORMAL


def _check_type(message: Message, type_of_topic: str) -> None:
    found = type_of(message).name
    if type_of_topic not in (found, MIXED):
        text = (
            f"a message of type {found} may not be sent to topic {message.topic.name!r}, whose "
            f"message.type is {type_of_topic}; make a topic of type {found}"
        )
        raise Rejected(Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, text)


MIXED = "MIXED"
NORMAL = "NORMAL"


def accepted_types(type_of_topic: str) -> list[MessageType]:
    """Return the types of messages that a topic accepts."""
    if type_of_topic == MIXED:
        return [MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY, MessageType.TRANSACTION]
    # A store of RocketMQ's may name a type that is not known here.
    known = MessageType.__members__.get(type_of_topic)
    return [MessageType.MESSAGE_TYPE_UNSPECIFIED if known is None else known]

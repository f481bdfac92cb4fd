"""A user's message as a send request carries it: checks, properties, compression, batches.

RocketMQ's clients also put `WAIT=true` on every message. To brokers its absence means the same, so
this client leaves it out.
Source: DefaultMQProducerImpl.sendKernelImpl, Validators.checkMessage, MessageBatch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import astuple

from sparrowmq.client.arguments import check_messages
from sparrowmq.client.config import BATCH_COUNT_MAX, ProducerConfig
from sparrowmq.errors import LocalProtocolError, UsageError
from sparrowmq.model import Message
from sparrowmq.model.message import (
    KEY_SEPARATOR,
    PROPERTY_DELAY_LEVEL,
    PROPERTY_INSTANCE_ID,
    PROPERTY_KEYS,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TAGS,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_UNIQ_KEY,
    RESERVED_PROPERTIES,
)
from sparrowmq.model.names import NOT_ALLOWED_SEND_TOPICS, RETRY_GROUP_TOPIC_PREFIX, check_topic
from sparrowmq.protocol import speedups
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.compression import compress_body
from sparrowmq.protocol.message_id import UniqIdGenerator, list_ids
from sparrowmq.protocol.properties import (
    NAME_VALUE_SEPARATOR,
    PROPERTIES_BYTES_MAX,
    PROPERTY_SEPARATOR,
    encode_properties,
)
from sparrowmq.protocol.record import TRANSACTION_PREPARED, encode_batch
from sparrowmq.protocol.subscription import TAG_SEPARATOR

_UNIQ_KEY_START = f"{PROPERTY_UNIQ_KEY}{NAME_VALUE_SEPARATOR}"
_FLAG_MIN, _FLAG_MAX = -(2**31), 2**31 - 1
_BODY_AT, _FLAG_AT = map(Message.__struct_fields__.index, ("body", "flag"))
# MessageStoreConfig.messageDelayLevel has 18 levels by default; brokers cut a higher one down.
DELAY_LEVEL_MAX = 18


class OutgoingMessage(msgspec.Struct, frozen=True, gc=False):
    """What a request carries of one message: body and properties as they will be stored."""

    body: bytes
    sys_flag: int
    flag: int
    properties: str


class BatchPart(NamedTuple):
    """The messages that one request of a batch carries; `msg_id` is a comma list."""

    code: int
    outgoing: OutgoingMessage
    msg_id: str


def encode_message(
    message: Message, msg_id: str, *, config: ProducerConfig, has_timer: bool = False
) -> OutgoingMessage:
    """Check a message and encode it.

    Args:
        has_timer: whether the brokers delay by any time, and not by a level.

    Raises: UsageError with the fault of the message; ConfigError for a bad topic name.
    """
    body, sys_flag = message.body, 0
    properties = check_and_encode(message, msg_id, config=config, has_timer=has_timer)
    if len(body) >= config.compress_bytes_min:
        packed, flag = compress_body(body, config.compress_type, level=config.compress_level)
        # Differs from RocketMQ: a body that compression makes longer, as random bytes, stays as it
        # is. One just below the brokers' limit would be refused.
        if len(packed) < len(body):
            body, sys_flag = packed, flag
    return OutgoingMessage(body, sys_flag, message.flag, properties)


def mark(outgoing: OutgoingMessage, marks: Mapping[str, str]) -> OutgoingMessage:
    """Return a message with properties that users must not set."""
    properties = f"{outgoing.properties}{PROPERTY_SEPARATOR}{encode_properties(marks)}"
    return msgspec.structs.replace(outgoing, properties=properties)


def make_half(outgoing: OutgoingMessage, group: str) -> OutgoingMessage:
    """Return the half message of a transaction of a producer group."""
    marked = mark(outgoing, {PROPERTY_TRANSACTION_PREPARED: "true", PROPERTY_PRODUCER_GROUP: group})
    return msgspec.structs.replace(marked, sys_flag=outgoing.sys_flag | TRANSACTION_PREPARED)


def check_and_encode(
    message: Message, msg_id: str, *, config: ProducerConfig, has_timer: bool = False
) -> str:
    """Check a message and return its properties as a text, as `encode_message` does."""
    if not 0 < len(message.body) <= config.body_bytes_max:
        raise UsageError(
            f"the body of a message to {message.topic!r} has {len(message.body)} bytes; it must "
            f"have 1 to {config.body_bytes_max} (body_bytes_max; brokers have a limit too)"
        )
    if message.flag and not _FLAG_MIN <= message.flag <= _FLAG_MAX:
        raise UsageError(
            f"flag of a message to {message.topic!r} is {message.flag}; it must be {_FLAG_MIN} to "
            f"{_FLAG_MAX}, a signed number of 32 bits"
        )
    namespace = config.namespace.name
    if not (
        message.tags
        or message.keys
        or message.properties
        or message.sharding_key
        or message.delay_level
        or namespace
    ):
        return _UNIQ_KEY_START + msg_id
    return _properties_of(message, msg_id, namespace=namespace, has_timer=has_timer)


def _check_and_encode_all(
    messages: Sequence[Message], msg_ids: Sequence[str], *, config: ProducerConfig
) -> list[tuple[int, bytes, str]]:
    """Check the messages of a batch and return them as `record.encode_batch` takes them."""
    bytes_max, has_namespace = config.body_bytes_max, bool(config.namespace.name)
    entries: list[tuple[int, bytes, str]] = []
    for message, msg_id in zip(messages, msg_ids, strict=True):
        body = message.body
        # The same as `check_and_encode`, inlined for the usual message.
        if (
            message.tags
            or message.keys
            or message.properties
            or message.sharding_key
            or message.flag
            or has_namespace
            or not 0 < len(body) <= bytes_max
        ):
            properties = check_and_encode(message, msg_id, config=config)
        else:
            properties = _UNIQ_KEY_START + msg_id
        entries.append((message.flag, body, properties))
    return entries


def check_sendable_topic(topic: str) -> None:
    """Raise a ConfigError or UsageError unless messages may be sent to the topic."""
    check_topic(topic)
    if topic in NOT_ALLOWED_SEND_TOPICS:
        raise UsageError(f"topic {topic} belongs to the broker; clients cannot send to it")


def check_batch(messages: Sequence[Message], *, has_queue: bool = False) -> str:
    """Return the topic of the messages of one batch.

    Args:
        has_queue: whether their queue is chosen already, and not by their sharding keys.

    Raises: UsageError if they are not messages, or cannot go as one batch.
    """
    check_messages(messages)
    if not messages:
        raise UsageError("a batch needs at least one message")
    topic, key = messages[0].topic, messages[0].sharding_key
    if topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
        raise UsageError(
            f"a batch cannot go to the retry topic {topic}; send the messages one by one"
        )
    has_several_keys = False
    for message in messages:
        if message.topic != topic:
            raise UsageError(
                f"a batch goes to one topic, not to both {topic!r} and {message.topic!r}"
            )
        if message.delay_level:
            raise UsageError("a batch cannot be delayed; send the messages one by one")
        if message.sharding_key != key:
            has_several_keys = True
    if has_several_keys and not has_queue:
        raise UsageError(
            "a batch goes to one queue, but its messages have several sharding keys; "
            "group them by `select_queue` and name the queue"
        )
    return topic


def make_parts(
    messages: Sequence[Message],
    ids: UniqIdGenerator,
    timestamp_ms: int,
    *,
    config: ProducerConfig,
    has_queue: bool,
) -> list[BatchPart]:
    """Check a batch and encode it as requests within the brokers' limits of messages and bytes.

    Raises: as `check_batch` and `encode_message`.
    """
    if (part := _join_alike(messages, ids, timestamp_ms, config=config)) is not None:
        return [part]
    check_batch(messages, has_queue=has_queue)
    parts: list[BatchPart] = []
    for begin in range(0, len(messages), BATCH_COUNT_MAX):
        chunk = messages[begin : begin + BATCH_COUNT_MAX]
        msg_ids = list_ids(*ids.reserve(timestamp_ms, len(chunk)), len(chunk))
        entries = _check_and_encode_all(chunk, msg_ids, config=config)
        parts += _cut(entries, msg_ids, config.body_bytes_max)
    return parts


def _join_alike(
    messages: Sequence[Message], ids: UniqIdGenerator, timestamp_ms: int, *, config: ProducerConfig
) -> BatchPart | None:
    """Return a request of messages that differ in body and flag alone, if the extension is there.

    Most batches are such. What holds for the first message then holds for all.
    """
    functions = speedups.functions
    if functions is None or not isinstance(messages, list) or len(messages) > BATCH_COUNT_MAX:
        return None
    start, number = ids.reserve(timestamp_ms, 0)
    msg_id = f"{start}{number:04X}"
    try:
        check_batch(messages[:1])
        shared = check_and_encode(messages[0], msg_id, config=config).encode()
        rows = [*map(astuple, messages)]
    except (UsageError, TypeError, UnicodeEncodeError):
        # The check of all messages says what is wrong.
        return None
    bytes_max = config.body_bytes_max
    places = _BODY_AT, _FLAG_AT, -1
    joined = functions.join_batch(
        rows, *places, shared, len(msg_id), number, 1, bytes_max, PROPERTIES_BYTES_MAX
    )
    if joined is None or len(joined[0]) > bytes_max:
        return None
    ids.reserve(timestamp_ms, len(messages))
    outgoing = OutgoingMessage(joined[0], 0, 0, "")
    return BatchPart(RequestCode.SEND_BATCH_MESSAGE, outgoing, joined[1])


def _cut(
    entries: list[tuple[int, bytes, str]], msg_ids: list[str], bytes_max: int
) -> Iterator[BatchPart]:
    """Yield entries as one request, or each half separately if the request is too large."""
    body = encode_batch(entries)
    if len(body) <= bytes_max:
        outgoing = OutgoingMessage(body, 0, 0, "")
        yield BatchPart(RequestCode.SEND_BATCH_MESSAGE, outgoing, ",".join(msg_ids))
    elif len(entries) == 1:
        # The message exceeds the broker's limit only with the fields that a batch adds.
        ((flag, alone, properties),) = entries
        outgoing = OutgoingMessage(alone, 0, flag, properties)
        yield BatchPart(RequestCode.SEND_MESSAGE_V2, outgoing, *msg_ids)
    else:
        middle = len(entries) // 2
        yield from _cut(entries[:middle], msg_ids[:middle], bytes_max)
        yield from _cut(entries[middle:], msg_ids[middle:], bytes_max)


def _properties_of(message: Message, msg_id: str, *, namespace: str, has_timer: bool) -> str:
    properties: dict[str, str] = dict(message.properties)
    if not RESERVED_PROPERTIES.isdisjoint(properties):
        name = min(RESERVED_PROPERTIES & properties.keys())
        raise UsageError(f"property {name!r} is reserved by RocketMQ; choose another name")
    if "" in properties or "" in properties.values():
        # Readers drop such a pair (`parse_properties`). Java's putUserProperty refuses it, too.
        name = next(name for name, text in properties.items() if not (name and text))
        raise UsageError(
            f"property {name!r} of a message to {message.topic!r} is {properties[name]!r}, but "
            "RocketMQ carries no empty name or value; leave the property out"
        )
    if message.tags:
        if TAG_SEPARATOR in message.tags:
            raise UsageError(
                f"tags of a message to {message.topic!r} is {message.tags!r}, but a message has "
                "only one tag; give one tag"
            )
        properties[PROPERTY_TAGS] = message.tags
    if message.keys:
        # Consumers split keys at every blank.
        if any(key.split() != [key] for key in message.keys):
            raise UsageError(f"keys is {message.keys!r}, but a key must be a text without blanks")
        properties[PROPERTY_KEYS] = KEY_SEPARATOR.join(message.keys)
    if message.sharding_key:
        properties[PROPERTY_SHARDING_KEY] = message.sharding_key
    if has_timer:
        assert message.delay is not None
        delay_ms = round(message.delay.total_seconds() * 1000)
        properties[PROPERTY_TIMER_DELAY_MS] = str(delay_ms)
    elif message.delay_level:
        if not 0 < message.delay_level <= DELAY_LEVEL_MAX:
            raise UsageError(
                f"delay_level is {message.delay_level}; it must be 0 to {DELAY_LEVEL_MAX}"
            )
        properties[PROPERTY_DELAY_LEVEL] = str(message.delay_level)
    if namespace:
        properties[PROPERTY_INSTANCE_ID] = namespace
    properties[PROPERTY_UNIQ_KEY] = msg_id
    try:
        text = encode_properties(properties)
    except LocalProtocolError as error:
        raise UsageError(f"a message to {message.topic!r}: {error}") from None
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError as error:
        wrong = text[error.start : error.end]
        raise UsageError(
            f"the tags, keys or properties of a message to {message.topic!r} have {wrong!r}, which "
            "UTF-8 cannot encode"
        ) from None
    if size > PROPERTIES_BYTES_MAX:
        raise UsageError(
            f"the properties of a message to {message.topic!r} have {size} bytes; "
            f"the limit is {PROPERTIES_BYTES_MAX}; put large values into the body"
        )
    return text

"""The message as a producer makes it and as a consumer gets it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from ipaddress import ip_address
from typing import NamedTuple

import msgspec

from sparrowmq.errors import UsageError
from sparrowmq.model.delay import DELAY_MAX, DELAY_MIN, nearest_delay_level
from sparrowmq.model.queue import MessageQueue

# MessageConst.java: the property names that carry a message's standard attributes.
PROPERTY_KEYS = "KEYS"
PROPERTY_TAGS = "TAGS"
PROPERTY_WAIT_STORE_OK = "WAIT"
PROPERTY_DELAY_LEVEL = "DELAY"
PROPERTY_RETRY_TOPIC = "RETRY_TOPIC"
PROPERTY_REAL_TOPIC = "REAL_TOPIC"
PROPERTY_REAL_QUEUE_ID = "REAL_QID"
PROPERTY_UNIQ_KEY = "UNIQ_KEY"
PROPERTY_SHARDING_KEY = "__SHARDINGKEY"
PROPERTY_ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
PROPERTY_RECONSUME_TIME = "RECONSUME_TIME"
PROPERTY_MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
PROPERTY_CLUSTER = "CLUSTER"
PROPERTY_MSG_REGION = "MSG_REGION"
PROPERTY_INSTANCE_ID = "INSTANCE_ID"
PROPERTY_PRODUCER_GROUP = "PGROUP"
PROPERTY_REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
PROPERTY_PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
PROPERTY_CORRELATION_ID = "CORRELATION_ID"
PROPERTY_TTL = "TTL"
PROPERTY_MESSAGE_TYPE = "MSG_TYPE"
PROPERTY_TRANSACTION_PREPARED = "TRAN_MSG"
PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
PROPERTY_TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
# A time of a message's own, in 5.x: an instant, or a wait; and what says that it has waited.
PROPERTY_TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
PROPERTY_TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
PROPERTY_TIMER_DELAY_MS = "TIMER_DELAY_MS"
PROPERTY_TIMER_OUT_MS = "TIMER_OUT_MS"
PROPERTY_CHECK_IMMUNITY_TIME = "CHECK_IMMUNITY_TIME_IN_SECONDS"
KEY_SEPARATOR = " "
# The broker takes a message that is sent back with this level for a dead letter.
DEAD_LETTER_LEVEL = -1
# MessageStoreConfig.maxMessageSize, the default of brokers.
BODY_BYTES_MAX = 4_194_304
# What a compressed body may grow to: four times the largest body a broker takes.
INFLATED_BYTES_MAX = 16_777_216


class Message(msgspec.Struct, frozen=True):
    """A message to send.

    A struct, since it is made by the hundred thousand: half of a frozen dataclass's cost. For one
    that differs use `msgspec.structs.replace`.

    Args:
        topic: the topic's name.
        body: the payload, 1 byte to 4 MiB.
        tags: one tag by which consumers may filter, or None.
        keys: keys by which the message may be looked up; none may hold a blank.
        sharding_key: messages of one sharding key go to one queue, in the order they are sent.
        delay_level: 1-18 delays delivery (1 s ... 2 h by default), 0 does not. With `delay` it is
            the nearest level.
        properties: further properties, texts by name; RocketMQ's reserved names are refused.
        flag: a user's 32 bit number, carried unchanged.
        delay: delays delivery by this time at brokers of RocketMQ 5. At others by the nearest
            level, which may be shorter (see `nearest_delay_level`), and by 2 h at most.

    Raises: UsageError for a value of another type; values are checked when the message is sent.
    """

    topic: str
    body: bytes
    tags: str | None = None
    keys: tuple[str, ...] = ()
    sharding_key: str | None = None
    delay_level: int = 0
    properties: Mapping[str, str] = msgspec.field(default_factory=dict)
    flag: int = 0
    delay: timedelta | None = None

    def __post_init__(self) -> None:
        tags, sharding_key, properties = self.tags, self.sharding_key, self.properties
        # One look where nothing is wrong: messages are made by the hundred thousand.
        if (
            type(self.keys) is not tuple
            or type(self.body) is not bytes
            or type(self.topic) is not str
            or (tags is not None and type(tags) is not str)
            or (sharding_key is not None and type(sharding_key) is not str)
            or type(self.delay_level) is not int
            or type(self.flag) is not int
        ):
            self._check_types()
        if self.delay is not None:
            self._choose_level(self.delay)
        for key in self.keys:
            if not isinstance(key, str):
                raise UsageError(f"key {key!r} of a message to {self.topic!r} is no text")
        if properties or type(properties) is not dict:
            # A copy of our own: what the user does with the mapping later changes no message.
            msgspec.structs.force_setattr(
                self, "properties", _checked_properties(self.topic, properties)
            )

    def __hash__(self) -> int:
        # Equal messages have equal bodies; a mapping has no hash.
        return hash((self.topic, self.body, self.tags, self.keys, self.sharding_key))

    def _choose_level(self, delay: timedelta) -> None:
        if not isinstance(delay, timedelta) or delay < DELAY_MIN:
            raise UsageError(
                f"delay of a message to {self.topic!r} is {delay!r}; give a timedelta above zero"
            )
        level = nearest_delay_level(min(delay, DELAY_MAX))
        if self.delay_level not in (0, level):
            raise UsageError(
                f"a message to {self.topic!r} has delay_level {self.delay_level} and delay "
                f"{delay!r}, which is level {level}; give one of them"
            )
        msgspec.structs.force_setattr(self, "delay_level", level)

    def _check_types(self) -> None:
        """Raise a UsageError for what is wrong; take what is as good as right for right."""
        topic, keys, body = self.topic, self.keys, self.body
        if not isinstance(topic, str):
            raise UsageError(f"topic is {topic!r}; it must be a text")
        if isinstance(body, bytearray | memoryview):
            msgspec.structs.force_setattr(self, "body", bytes(body))
        elif not isinstance(body, bytes):
            hint = "; give body.encode()" if isinstance(body, str) else ""
            raise UsageError(
                f"the body of a message to {topic!r} is {type(body).__name__}, not bytes{hint}"
            )
        if isinstance(keys, str) or not isinstance(keys, Sequence | Set):
            hint = f"({keys!r},)" if isinstance(keys, str) else '("order-1",)'
            raise UsageError(
                f"keys of a message to {topic!r} is {keys!r}; give a tuple of texts, such as {hint}"
            )
        msgspec.structs.force_setattr(self, "keys", tuple(keys))
        for name, text in (("tags", self.tags), ("sharding_key", self.sharding_key)):
            if not isinstance(text, str | None):
                raise UsageError(f"{name} of a message to {topic!r} is {text!r}; give one text")
        for name, number in (("delay_level", self.delay_level), ("flag", self.flag)):
            if isinstance(number, bool) or not isinstance(number, int):
                raise UsageError(
                    f"{name} of a message to {topic!r} is {number!r}; give a whole number"
                )


def _checked_properties(topic: str, properties: object) -> dict[str, str]:
    if not isinstance(properties, Mapping):
        raise UsageError(
            f"properties of a message to {topic!r} is {properties!r}; give texts by name"
        )
    for name, text in properties.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise UsageError(
                f"property {name!r} of a message to {topic!r} is {text!r}; properties are texts by "
                f"name, such as {str(name)!r}: {str(text)!r}"
            )
    return dict(properties)


class MessageExt(msgspec.Struct, frozen=True, gc=False):
    """A message as it stands in a queue.

    `body` is what the producer gave (already inflated). Hosts are `ip:port` texts.
    `commit_log_position` counts bytes (RocketMQ's commitLogOffset), `queue_offset` messages.
    A struct, since it is made per message: a third of a frozen dataclass's cost. The garbage
    collector does not look at it, since nothing that it holds refers back to it. Give its fields by
    name; by place, which is quicker, is for who reads records.
    """

    topic: str
    body: bytes
    properties: Mapping[str, str]
    broker_name: str
    queue_id: int
    queue_offset: int
    commit_log_position: int
    flag: int = 0
    sys_flag: int = 0
    born_timestamp_ms: int = 0
    born_host: str = ""
    store_timestamp_ms: int = 0
    store_host: str = ""
    reconsume_times: int = 0
    prepared_transaction_position: int = 0
    body_crc: int = 0
    store_size: int = 0

    def __hash__(self) -> int:
        # Equal messages stand at one place; a mapping has no hash.
        return hash((self.topic, self.broker_name, self.queue_id, self.queue_offset))

    @property
    def queue(self) -> MessageQueue:
        """The queue in which the message stands."""
        return MessageQueue(self.topic, self.broker_name, self.queue_id)

    @property
    def offset_msg_id(self) -> str:
        """The id made of store host and position, by which the broker finds the message.

        "" for a message that comes from no queue.
        """
        ip, _, port = self.store_host.rpartition(":")
        try:
            host = ip_address(ip.strip("[]")).packed + int(port).to_bytes(4, "big")
        except ValueError:
            return ""
        # As message_id.encode_offset_msg_id makes it.
        return f"{host.hex().upper()}{self.commit_log_position & 0xFFFF_FFFF_FFFF_FFFF:016X}"

    @property
    def msg_id(self) -> str:
        """The id its producer gave (UNIQ_KEY), else the id made of store host and position."""
        return self.properties.get(PROPERTY_UNIQ_KEY) or self.offset_msg_id

    @property
    def tags(self) -> str | None:
        """The tag, or None."""
        return self.properties.get(PROPERTY_TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys, in the producer's order."""
        return tuple(self.properties.get(PROPERTY_KEYS, "").split())


class CompressionType(Enum):
    """How a producer compresses bodies. Source: CompressionType.java of 5.x."""

    ZLIB = "ZLIB"
    LZ4 = "LZ4"
    ZSTD = "ZSTD"


class SendStatus(Enum):
    """What a broker said of a message that it has stored."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


class SendResult(NamedTuple):
    """Where a message was stored.

    For a batch, `msg_id` and `offset_msg_id` are comma lists and `queue_offset` is the first.
    `recall_handle` is what `recall` takes; None if the message cannot be recalled.
    """

    status: SendStatus
    msg_id: str
    offset_msg_id: str
    queue: MessageQueue
    queue_offset: int
    recall_handle: str | None = None


class TransactionState(Enum):
    """How a transaction ended, as far as it is known. Source: LocalTransactionState.java."""

    COMMIT = "COMMIT"
    """Consumers get the message."""
    ROLLBACK = "ROLLBACK"
    """Nobody gets it."""
    UNKNOWN = "UNKNOWN"
    """Nobody gets it yet; its broker asks for the outcome."""


class ConsumeStatus(Enum):
    """What a concurrent listener says of a batch. Source: ConsumeConcurrentlyStatus.java."""

    CONSUME_SUCCESS = "CONSUME_SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"


class ConsumeOrderlyStatus(Enum):
    """What a listener in order says of a batch. Source: ConsumeOrderlyStatus.java.

    COMMIT and ROLLBACK are for listeners that set `auto_commit` to False in their context.
    """

    SUCCESS = "SUCCESS"
    ROLLBACK = "ROLLBACK"
    COMMIT = "COMMIT"
    SUSPEND_CURRENT_QUEUE_A_MOMENT = "SUSPEND_CURRENT_QUEUE_A_MOMENT"


@dataclass(slots=True)
class ConsumeOrderlyContext:
    """What a listener in order may set beside its status.

    `auto_commit`: False holds what succeeds until COMMIT, or ROLLBACK, is returned.
    `suspend_ms`: how long a queue waits before its messages come again, 10 to 30,000.
    """

    queue: MessageQueue
    auto_commit: bool = True
    suspend_ms: int = 1_000


class Decision(NamedTuple):
    """What a listener decided on one message.

    Args:
        level: None for done, else the delay level by which it is sent back.
        reason: why it is a dead letter.
    """

    level: int | None
    reason: str = ""


class ConsumeContext(msgspec.Struct):
    """What a listener may set beside its status, and decide on single messages.

    The status, or an exception, counts for messages on which nothing was decided by `ack`, `retry`
    or `dead_letter`. Each of these takes messages of the delivery, or none for all that are not
    decided yet; the last decision on a message counts.

    `ack_index`: on CONSUME_SUCCESS, messages after this index are sent back; None acks all.
    `delay_level`: level for messages sent back; 0 lets the broker choose 3 + reconsume times,
    -1 sends them to the dead letter queue.
    `messages`: those of the delivery.

    A struct, since there may be one for each message: a third of a dataclass's cost.
    """

    queue: MessageQueue
    ack_index: int | None = None
    delay_level: int = 0
    messages: tuple[MessageExt, ...] = ()
    # By queue offset; None once the listener has returned.
    _decisions: dict[int, Decision] | None = msgspec.field(default_factory=dict)

    def __repr__(self) -> str:
        # Without the messages, whose bodies may be long.
        return (
            f"ConsumeContext(queue={self.queue!r}, ack_index={self.ack_index!r}, "
            f"delay_level={self.delay_level!r})"
        )

    def ack(self, *messages: MessageExt) -> None:
        """Take messages for done.

        Raises: UsageError for a message that is not of this delivery, or after the listener's
        return.
        """
        self._decide(messages, Decision(None))

    def retry(self, *messages: MessageExt, delay: timedelta | None = None) -> None:
        """Have messages delivered again later, to any member of the group.

        Args:
            delay: how long to wait, by the nearest level (see `nearest_delay_level`); None for
                10 s at first and longer each time.

        Raises: UsageError as `ack`, or for a delay that no level is near.
        """
        self._decide(messages, Decision(0 if delay is None else nearest_delay_level(delay)))

    def dead_letter(self, *messages: MessageExt, reason: str) -> None:
        """Put messages among the group's dead letters, which nobody consumes.

        Args:
            reason: for the log.

        Raises: UsageError as `ack`.
        """
        self._decide(messages, Decision(DEAD_LETTER_LEVEL, reason))

    def _decide(self, messages: tuple[MessageExt, ...], decision: Decision) -> None:
        decisions = self._decisions
        if decisions is None:
            raise UsageError("the listener has returned, which decided on all its messages")
        own = {message.queue_offset for message in self.messages}
        for message in messages:
            if not isinstance(message, MessageExt) or message.queue_offset not in own:
                raise UsageError(f"{message!r} is no message of this delivery")
        chosen = own - decisions.keys()
        if messages:
            chosen = {message.queue_offset for message in messages}
        decisions.update(dict.fromkeys(chosen, decision))

    def end_undecided(self) -> bool:
        """Do as `end` does unless anything was decided on a message; return whether nothing was."""
        if self._decisions:
            return False
        self._decisions = None
        return True

    def end(self) -> dict[int, Decision]:
        """Return what was decided, by queue offset; nothing can be decided after that."""
        decisions, self._decisions = self._decisions or {}, None
        return decisions

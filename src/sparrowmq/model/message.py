"""The message of a producer, the message of a consumer, and the results of both.

Tests: test_decisions.py, protocol/test_properties.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from ipaddress import ip_address
from typing import NamedTuple

import msgspec

from sparrowmq.errors import UsageError
from sparrowmq.model.delay import DELAY_MAX, DELAY_MIN, shortest_delay_level
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
# The handle of a popped message, and when the message was popped first.
PROPERTY_POP_CK = "POP_CK"
PROPERTY_FIRST_POP_TIME = "1ST_POP_TIME"
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
# The delivery time of a message, in 5.x: an instant or a delay; TIMER_OUT_MS marks a message whose
# time has come.
PROPERTY_TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
PROPERTY_TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
PROPERTY_TIMER_DELAY_MS = "TIMER_DELAY_MS"
PROPERTY_TIMER_OUT_MS = "TIMER_OUT_MS"
# A recall of the message with this topic and id.
PROPERTY_TIMER_DEL_UNIQKEY = "TIMER_DEL_UNIQKEY"
PROPERTY_CHECK_IMMUNITY_TIME = "CHECK_IMMUNITY_TIME_IN_SECONDS"
# SparrowMQ's own: the place of the message that was sent again, when, and who sent it.
PROPERTY_RESENT_FROM = "RESENT_FROM"
PROPERTY_RESENT_AT = "RESENT_AT"
PROPERTY_RESENT_BY = "RESENT_BY"
KEY_SEPARATOR = " "
# Names that a user's property must not have: MessageConst.STRING_HASH_SET, and the times of 5.x,
# which would delay a copy of the message again. CHECK_IMMUNITY_TIME_IN_SECONDS is the producer's.
_RESERVED = """
    TRACE_ON MSG_REGION KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP
    MIN_OFFSET MAX_OFFSET BUYER_ID ORIGIN_MESSAGE_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG
    RECONSUME_TIME UNIQ_KEY MAX_RECONSUME_TIMES CONSUME_START_TIME TRAN_PREPARED_QUEUE_OFFSET
    TRANSACTION_CHECK_TIMES INSTANCE_ID CORRELATION_ID REPLY_TO_CLIENT TTL ARRIVE_TIME
    PUSH_REPLY_TIME CLUSTER MSG_TYPE __SHARDINGKEY
    INNER_MULTI_DISPATCH INNER_MULTI_QUEUE_OFFSET TIMER_DELAY_MS TIMER_DELAY_SEC TIMER_DELIVER_MS
    TIMER_DELAY_LEVEL TIMER_OUT_MS TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS TIMER_ROLL_TIMES
    TIMER_DEL_UNIQKEY __CRC32#
"""
RESERVED_PROPERTIES = frozenset(_RESERVED.split())
# The delay level with which a consumer sends a message back as a dead letter.
DEAD_LETTER_LEVEL = -1
# MessageStoreConfig.maxMessageSize, the default of brokers.
BODY_BYTES_MAX = 4_194_304
# The most bytes of an inflated body: four times the largest body that a broker accepts.
INFLATED_BYTES_MAX = 16_777_216
# The times that Python, and a Timestamp of gRPC, can express: of the years 1 to 9999.
TIMESTAMP_MS_MIN, TIMESTAMP_MS_MAX = -62_135_596_800_000, 253_402_300_799_999


class Message(msgspec.Struct, frozen=True):
    """A message to send.

    A struct costs half of a frozen dataclass. `msgspec.structs.replace` makes a changed copy.

    Args:
        topic: the topic's name.
        body: the payload, 1 byte to 4 MiB.
        tags: one tag by which consumers may filter, or None.
        keys: keys for searches; a key may not contain a blank.
        sharding_key: messages of one sharding key go to one queue, in the order of sending.
        delay_level: 1-18 delays delivery (1 s ... 2 h by default), 0 does not. `delay` sets the
            shortest level that lasts so long.
        properties: further properties, texts by name; empty texts and RocketMQ's reserved names
            are refused.
        flag: the user's 32 bit number, carried unchanged.
        delay: the delay of delivery. Brokers of RocketMQ 5 keep it exactly. Other brokers take
            the shortest level that lasts so long (`shortest_delay_level`), 2 h at most.

    Raises: UsageError for a value of a wrong type; a send checks the values.
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
        # One condition for the usual case: programs make messages by the hundred thousand.
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
                raise UsageError(f"key {key!r} of a message to {self.topic!r} is not a text")
        if properties or type(properties) is not dict:
            # A copy: the user may change the mapping later.
            msgspec.structs.force_setattr(
                self, "properties", _checked_properties(self.topic, properties)
            )

    def __hash__(self) -> int:
        # Equal messages have equal bodies; a mapping has no hash.
        return hash((self.topic, self.body, self.tags, self.keys, self.sharding_key))

    def _choose_level(self, delay: timedelta) -> None:
        if not isinstance(delay, timedelta) or delay < DELAY_MIN:
            raise UsageError(
                f"delay of a message to {self.topic!r} is {delay!r}; "
                "give a timedelta of a millisecond or more"
            )
        level = shortest_delay_level(min(delay, DELAY_MAX))
        if self.delay_level not in (0, level):
            raise UsageError(
                f"a message to {self.topic!r} has delay_level {self.delay_level} and delay "
                f"{delay!r}, which is level {level}; give one of them"
            )
        msgspec.structs.force_setattr(self, "delay_level", level)

    def _check_types(self) -> None:
        """Convert values of a similar type, such as a bytearray; raise UsageError for others."""
        topic, keys, body = self.topic, self.keys, self.body
        if not isinstance(topic, str):
            raise UsageError(f"topic is {topic!r}; it must be a text")
        if isinstance(body, bytearray | memoryview):
            msgspec.structs.force_setattr(self, "body", bytes(body))
        elif not isinstance(body, bytes):
            way = "body.encode()" if isinstance(body, str) else "json.dumps(body).encode()"
            kind = type(body).__name__
            raise UsageError(f"the body of a message to {topic!r} is {kind}, not bytes; give {way}")
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
    """A message in a queue.

    `body` is the producer's body, inflated. Hosts are `ip:port` texts. `commit_log_position`
    counts bytes (RocketMQ's commitLogOffset), `queue_offset` counts messages.
    A struct costs a third of a frozen dataclass. The garbage collector does not track it, since no
    field refers back to the message. Give fields by name; only the readers of records give them by
    place, which is faster.
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
        """The queue of the message."""
        return MessageQueue(self.topic, self.broker_name, self.queue_id)

    @property
    def offset_msg_id(self) -> str:
        """The id of store host and position, by which the broker finds the message.

        "" for a message that no queue holds.
        """
        ip, _, port = self.store_host.rpartition(":")
        try:
            host = ip_address(ip.strip("[]")).packed + int(port).to_bytes(4, "big")
        except ValueError:
            return ""
        # The same as message_id.encode_offset_msg_id.
        return f"{host.hex().upper()}{self.commit_log_position & 0xFFFF_FFFF_FFFF_FFFF:016X}"

    @property
    def msg_id(self) -> str:
        """The producer's id (UNIQ_KEY), else `offset_msg_id`."""
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
    """How safely a broker has stored a message."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


class SendResult(NamedTuple):
    """The place of a stored message.

    For a batch, `msg_id` and `offset_msg_id` are comma lists, and `queue_offset` is that of the
    first message. `queue_offset` is -1 if the queue is one of a static topic and is moving: its new
    broker does not know the number yet. `recall_handle` is the argument of `recall`; None if the
    message cannot be recalled.
    """

    status: SendStatus
    msg_id: str
    offset_msg_id: str
    queue: MessageQueue
    queue_offset: int
    recall_handle: str | None = None


class TransactionState(Enum):
    """The known outcome of a transaction. Source: LocalTransactionState.java."""

    COMMIT = "COMMIT"
    """Consumers get the message."""
    ROLLBACK = "ROLLBACK"
    """No consumer gets the message."""
    UNKNOWN = "UNKNOWN"
    """No consumer gets the message yet; the broker asks for the outcome later."""


class ConsumeStatus(Enum):
    """A concurrent listener's result for a batch. Source: ConsumeConcurrentlyStatus.java."""

    CONSUME_SUCCESS = "CONSUME_SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"


class ConsumeOrderlyStatus(Enum):
    """An orderly listener's result for a batch. Source: ConsumeOrderlyStatus.java.

    COMMIT and ROLLBACK are for listeners that set `auto_commit` to False in their context.
    """

    SUCCESS = "SUCCESS"
    ROLLBACK = "ROLLBACK"
    COMMIT = "COMMIT"
    SUSPEND_CURRENT_QUEUE_A_MOMENT = "SUSPEND_CURRENT_QUEUE_A_MOMENT"


@dataclass(slots=True)
class ConsumeOrderlyContext:
    """The settings that an orderly listener may change beside its status.

    `auto_commit`: False holds successful messages until the listener returns COMMIT or ROLLBACK.
    `suspend_ms`: how long a queue waits before its messages are delivered again, 10 to 30,000.
    """

    queue: MessageQueue
    auto_commit: bool = True
    suspend_ms: int = 1_000


class Decision(NamedTuple):
    """A listener's decision on one message.

    Args:
        level: None for acknowledged, else the delay level with which the message is sent back.
        reason: the reason for a dead letter.
    """

    level: int | None
    reason: str = ""


class ConsumeContext(msgspec.Struct):
    """A delivery, on whose single messages a listener may decide.

    `ack`, `retry` and `dead_letter` decide on the given messages of the delivery, or, without
    arguments, on all undecided ones. The last decision on a message counts. The listener's status
    or exception decides on the messages that are left.

    `ack_index`: on CONSUME_SUCCESS, messages after this index are sent back; None acks all.
    `delay_level`: level for messages sent back; 0 lets the broker choose 3 + reconsume times,
    -1 sends them to the dead letter queue.
    `messages`: the messages of the delivery.

    A struct costs a third of a dataclass; each message may have a context of its own.
    """

    queue: MessageQueue
    ack_index: int | None = None
    delay_level: int = 0
    messages: tuple[MessageExt, ...] = ()
    # By queue offset; None once the listener has returned.
    _decisions: dict[int, Decision] | None = msgspec.field(default_factory=dict)

    def __repr__(self) -> str:
        # The messages are left out: their bodies may be long.
        return (
            f"ConsumeContext(queue={self.queue!r}, ack_index={self.ack_index!r}, "
            f"delay_level={self.delay_level!r})"
        )

    def ack(self, *messages: MessageExt) -> None:
        """Acknowledge messages.

        Raises: UsageError for a message of another delivery, or after the listener's return.
        """
        self._decide(messages, Decision(None))

    def retry(self, *messages: MessageExt, delay: timedelta | None = None) -> None:
        """Have messages delivered again later, to any member of the group.

        In BROADCASTING they do not come again.

        Args:
            delay: the delay, by a level (`shortest_delay_level`); None takes 10 s the
                first time and longer each time.

        Raises: UsageError as `ack`, and for a delay of zero or less or of more than 2 h.
        """
        self._decide(messages, Decision(0 if delay is None else shortest_delay_level(delay)))

    def dead_letter(self, *messages: MessageExt, reason: str) -> None:
        """Put messages among the group's dead letters, which no consumer gets.

        A BROADCASTING group has none: its member goes on without them.

        Args:
            reason: the reason in the log.

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
                raise UsageError(f"{message!r} is not a message of this delivery")
        chosen = own - decisions.keys()
        if messages:
            chosen = {message.queue_offset for message in messages}
        decisions.update(dict.fromkeys(chosen, decision))

    def end_undecided(self) -> bool:
        """End as `end` does if no message is decided; return whether none is."""
        if self._decisions:
            return False
        self._decisions = None
        return True

    def decided(self) -> dict[int, Decision]:
        """Return the decisions so far by queue offset."""
        return dict(self._decisions or {})

    def end(self) -> dict[int, Decision]:
        """Return the decisions by queue offset, and refuse further decisions."""
        decisions, self._decisions = self._decisions or {}, None
        return decisions

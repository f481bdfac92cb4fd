"""The configuration of clients: frozen, checked once, passed in.

A field with a row is a user's setting. Names and defaults are those of RocketMQ's
DefaultMQProducer, DefaultMQPushConsumer and ClientConfig where a comment says nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

from sparrowmq.config import Setting, check_settings, rows_of, setting
from sparrowmq.errors import ConfigError, did_you_mean
from sparrowmq.membership.client_id import ClientIdRule
from sparrowmq.membership.process_queue import FlowLimits
from sparrowmq.model import (
    CompressionType,
    ConsumeFromWhere,
    ConsumeType,
    MessageModel,
    UnreadablePolicy,
)
from sparrowmq.model.consuming import Balance, Start
from sparrowmq.model.names import (
    AUTO_CREATE_TOPIC_KEY_TOPIC,
    DEFAULT_CONSUMER_GROUP,
    DEFAULT_PRODUCER_GROUP,
    check_consumer_group,
    check_group,
    check_topic,
)
from sparrowmq.model.namespace import NO_NAMESPACE, Namespace
from sparrowmq.protocol.compression import find_missing_package
from sparrowmq.protocol.signatures import Credentials

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

    from _typeshed import DataclassInstance
    from opentelemetry.trace import TracerProvider
    from prometheus_client import CollectorRegistry

    from sparrowmq.strategies.registry import StrategyChoice

C = TypeVar("C", bound="DataclassInstance")

PUSH, POLL, SIMPLE = "PushConsumer", "PollConsumer", "SimpleConsumer"
# The answer to a batch names every message, with up to 57 characters, in one field of its header;
# a field of more than 32 KiB is refused.
BATCH_COUNT_MAX = 512
_MINUTE_MS, _HOUR_MS, _DAY_MS = 60_000, 3_600_000, 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """The fields of every client."""

    namespace: str | None = setting(
        None,
        "a prefix of every topic and group on the wire, as in `ns%orders`, so that "
        "several applications share a cluster; None adds no prefix",
        kind=object,
        source="namespace",
    )
    tls: ssl.SSLContext | None = setting(
        None,
        "connect to name servers and brokers by TLS: an `ssl.SSLContext`, such as "
        '`ssl.create_default_context(cafile="ca.pem")`; None connects without TLS',
        kind=object,
        source="useTLS",
    )
    access_key: str | None = setting(
        None,
        "the access key of the account at brokers with access control, with whose secret every "
        "request is signed; None signs nothing",
        kind=str,
        source="accessKey",
    )
    secret_key: str | None = setting(
        None, "the secret of the access key", kind=str, source="secretKey", is_secret=True
    )
    security_token: str | None = setting(
        None,
        "the security token of temporary keys",
        kind=str,
        source="securityToken",
        is_secret=True,
    )

    def __post_init__(self) -> None:
        check_settings(self)
        _check_texts(self)
        if (self.access_key is None) != (self.secret_key is None):
            given, other = "access_key", "secret_key"
            if self.access_key is None:
                given, other = other, given
            raise ConfigError(f"{given} is given without {other}; give both, or neither")
        if self.security_token is not None and self.access_key is None:
            raise ConfigError("security_token is given without access_key and secret_key")

    @property
    def credentials(self) -> Credentials | None:
        """The credentials that sign requests."""
        if self.access_key is None or self.secret_key is None:
            return None
        return Credentials(
            access_key=self.access_key,
            secret_key=self.secret_key,
            security_token=self.security_token,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityConfig:
    """The parts of the client id of a producer or consumer."""

    client_ip: str | None = setting(
        None,
        "the address in the client id; None takes this machine's",
        kind=str,
        source="clientIP",
    )
    instance_name: str | None = setting(
        None,
        "the instance in the client id; None makes a unique one",
        kind=str,
        source="instanceName",
    )
    unit_name: str | None = setting(None, "the unit in the client id", kind=str, source="unitName")
    client_id_rule: ClientIdRule = setting(
        ClientIdRule.V4_9,
        "the rule for missing parts of the client id: V4_9 makes ids unique; V4_7 makes equal "
        "ids in containers that share an address, to demonstrate that failure",
    )

    def __post_init__(self) -> None:
        check_settings(self)
        _check_texts(self)


def _check_texts(config: DataclassInstance) -> None:
    """Raise a ConfigError that names the first text that no request can carry."""
    for name, row in rows_of(type(config)).items():
        try:
            if row.kind is str:
                (getattr(config, name) or "").encode()
        except UnicodeEncodeError:
            # The value may be a secret.
            raise ConfigError(f"{name} has a character that UTF-8 cannot encode") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTimes:
    """The time limits and periods of a producer or consumer."""

    invoke_timeout_ms: int = setting(
        3_000,
        "the time limit of a request without a limit of its own",
        low=1,
        high=_HOUR_MS,
        unit="ms",
    )
    route_refresh_ms: int = setting(
        30_000,
        "the time between two requests for a topic's route; members of groups ask every 10 s at "
        "the latest",
        low=100,
        high=_HOUR_MS,
        unit="ms",
        source="pollNameServerInterval",
    )
    # Differs from RocketMQ: Java waits for the next poll.
    route_retry_max_ms: int = setting(
        30_000,
        "the longest pause between two requests for the route of a missing topic; the first "
        "pause is 250 ms, and each next pause is twice as long, up to 10 s in members of groups",
        low=250,
        high=_HOUR_MS,
        unit="ms",
    )
    # Apache's brokers forget a client that is silent for 120 s.
    heartbeat_ms: int = setting(
        30_000,
        "the time between two heartbeats to every broker; members of groups send one to "
        "SparrowMQ's brokers every 5 s at the latest",
        low=1_000,
        high=60_000,
        unit="ms",
        source="heartbeatBrokerInterval",
    )

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class SightConfig:
    """The observers of a producer or consumer."""

    tracer_provider: TracerProvider | None = setting(
        None,
        "the OpenTelemetry provider of spans, such as "
        "`opentelemetry.trace.get_tracer_provider()`; messages carry the context; needs the "
        "extra `opentelemetry`; None makes no spans",
        kind=object,
    )
    metrics_registry: CollectorRegistry | None = setting(
        None,
        "the Prometheus registry of the client's metrics, such as `prometheus_client.REGISTRY`; "
        "needs the extra `prometheus`; None registers none",
        kind=object,
    )

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """How a producer sends.

    Args:
        group: the producer group.
        client_id: the producer's name at brokers.
        namespace: of the topics that users name; `group` has it already.
        client: see `ClientConfig`.
        times: see `ClientTimes`.
    """

    group: str
    client_id: str
    send_timeout_ms: int = setting(
        3_000,
        "the time limit of a send with all its attempts",
        low=1,
        high=_HOUR_MS,
        unit="ms",
        source="sendMsgTimeout",
    )
    retry_times: int = setting(
        2,
        "the number of further attempts after a failed one",
        low=0,
        high=100,
        source="retryTimesWhenSendFailed",
    )
    avoid_slow_brokers: bool = setting(
        False,
        "avoid a broker that answers late, refuses or does not answer while there is another: for "
        "30 s after an answer in 550 ms, up to 10 min after 15 s, a refusal or no answer",
        source="sendLatencyFaultEnable",
    )
    body_bytes_max: int = setting(
        4 * 1024 * 1024,
        "the largest body that `send` accepts, before compression",
        low=1,
        high=16 * 1024 * 1024,
        unit="bytes",
        source="maxMessageSize",
    )
    compress_bytes_min: int = setting(
        4096,
        "the smallest body that is compressed; bodies of a batch are never compressed",
        low=1,
        high=2**31 - 1,
        unit="bytes",
        source="compressMsgBodyOverHowmuch",
    )
    compress_type: CompressionType = setting(
        CompressionType.ZLIB,
        "the compression; LZ4 and ZSTD need the extra `compression` here, and "
        "RocketMQ 4.9.4 or newer at consumers",
        source="rocketmq.message.compressType",
    )
    compress_level: int = setting(
        5,
        "the level of compression: 1 is the fastest; ZLIB goes to 9, ZSTD to 22, and "
        "LZ4 has no levels",
        low=1,
        high=22,
        source="rocketmq.message.compressLevel",
    )
    template_topic: str = setting(
        AUTO_CREATE_TOPIC_KEY_TOPIC,
        "the template topic, whose queues are the model for a topic that the first send creates",
        source="createTopicKey",
    )
    template_queues_max: int = setting(
        4,
        "the most queues that a topic created by the first send gets on each broker",
        low=1,
        high=65_535,
        source="defaultTopicQueueNums",
    )
    trace: bool = setting(
        False,
        "report each message to the topic RMQ_SYS_TRACE_TOPIC, as Java's clients do; reports "
        "never delay messages: when the buffer is full or no broker takes them, they are dropped",
        source="enableMsgTrace",
    )
    linger_ms: int = setting(
        10,
        "how long a message of `send_nowait` waits for others of its batch",
        low=0,
        high=30_000,
        unit="ms",
        source="batchMaxDelayMs",
    )
    batch_bytes_max: int = setting(
        32 * 1024,
        "the most bytes of bodies in one batch of `send_nowait`, unless one body is larger; a "
        "character of a property counts as 4 bytes",
        low=1,
        high=2 * 1024 * 1024,
        unit="bytes",
        source="batchMaxBytes",
    )
    batch_count_max: int = setting(
        BATCH_COUNT_MAX,
        "the most messages in one batch of `send_nowait`",
        low=1,
        high=BATCH_COUNT_MAX,
        unit="messages",
    )
    buffer_bytes_max: int = setting(
        32 * 1024 * 1024,
        "the most bytes of bodies that wait to be sent after `send_nowait`",
        low=1,
        high=2**31 - 1,
        unit="bytes",
        source="totalBatchMaxBytes",
    )
    namespace: Namespace = NO_NAMESPACE
    client: ClientConfig = field(default_factory=ClientConfig)
    times: ClientTimes = field(default_factory=ClientTimes)

    def __post_init__(self) -> None:
        check_group(self.group)
        if self.group == DEFAULT_PRODUCER_GROUP:
            raise ConfigError(
                f"the producer group must not be {DEFAULT_PRODUCER_GROUP}; choose another name"
            )
        check_settings(self)
        if self.compress_level > 9 and self.compress_type is not CompressionType.ZSTD:
            raise ConfigError(
                f"compress_level is {self.compress_level}; {self.compress_type.name} has the "
                "levels 1 to 9"
            )
        missing = find_missing_package(self.compress_type)
        if missing is not None:
            raise ConfigError(f"compress_type is {self.compress_type.name}: {missing}")
        check_topic(self.template_topic)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """How a push or poll consumer consumes.

    Args:
        group: the consumer group.
        client_id: the member's name in the group.
        consume_type: CONSUME_ACTIVELY for a consumer that polls; each pull then carries its
            subscription.
        namespace: of the topics that users name; `group` has it already.
        client: see `ClientConfig`.
        times: see `ClientTimes`.
    """

    group: str
    client_id: str
    balance: Balance = setting(
        "queues",
        'what the members share: "queues", each with one owner, or "messages" of any queue, each '
        "acknowledged by itself (POP); the latter needs SparrowMQ's broker or RocketMQ 5",
        kind=str,
        only=(PUSH,),
        source="clientRebalance",
    )
    strategy: StrategyChoice = setting(
        "AVG",
        "the strategy that divides the group's queues: a name, a strategy, or a function; every "
        "member of the group must use the same one",
        kind=object,
        source="allocateMessageQueueStrategy",
    )
    message_model: MessageModel = setting(
        MessageModel.CLUSTERING,
        "CLUSTERING shares the queues; BROADCASTING gives every member all queues and keeps the "
        "member's offsets in a file; a failed message does not come again there, except in order, "
        "and there are no dead letters",
        source="messageModel",
    )
    local_offset_dir: Path | str | None = setting(
        None,
        "the directory of a BROADCASTING member's offset file; None: `~/.rocketmq_offsets`",
        kind=object,
        source="rocketmq.client.localOffsetStoreDir",
    )
    orderly: bool = setting(
        False,
        "consume each queue in order, one call at a time, under its lock at the broker",
        only=(PUSH,),
        source="MessageListenerOrderly",
    )
    start: Start = setting(
        "last",
        'the start in a queue without a committed offset: "first", "last", a `datetime` (local '
        "time without a zone), or RocketMQ's `ConsumeFromWhere`, whose CONSUME_FROM_TIMESTAMP "
        'is 30 minutes before the consumer is made; brokers make "last" "first", and those '
        "before 5.0 a time as well, while the queue's first message is in memory",
        kind=object,
        source="consumeFromWhere",
    )
    # Differs from RocketMQ, whose members lose messages sent before they notice the queue.
    added_queues_from_first: bool = setting(
        True,
        "begin at the first message in queues that are added to a topic while it is consumed, "
        'also with `start="last"`',
    )
    messages_per_s_max: int | None = setting(
        None,
        "the most messages a second to pull, on average; those of one pull come together, at most "
        "those of a second from all queues. None: no limit",
        low=1,
        high=1_000_000,
        unit="messages/s",
        kind=int,
    )
    # Java's clients allow 1-1024 for both; Apache's brokers cut a pull to what they allow.
    pull_batch_size: int = setting(
        32,
        "the most messages that one pull asks for",
        low=1,
        high=2048,
        unit="messages",
        source="pullBatchSize",
    )
    consume_message_batch_max_size: int = setting(
        1,
        "the most messages in one call of the listener",
        low=1,
        high=2048,
        unit="messages",
        only=(PUSH,),
        source="consumeMessageBatchMaxSize",
    )
    pull_suspend_ms: int = setting(
        15_000,
        "how long a broker may hold a pull that finds no message",
        low=0,
        high=30_000,
        unit="ms",
        source="brokerSuspendMaxTimeMillis",
    )
    pull_timeout_ms: int = setting(
        30_000,
        "how long to wait for the answer to a pull; more than `pull_suspend_ms`",
        low=1,
        high=600_000,
        unit="ms",
        source="consumerTimeoutMillisWhenSuspend",
    )
    # Differs from RocketMQ: one number, as Java's pool with its unbounded queue never grows past
    # its minimum.
    consume_thread_count: int = setting(
        20,
        "how many calls of the listener run at once",
        low=1,
        high=1000,
        unit="calls",
        only=(PUSH,),
        source="consumeThreadMin",
    )
    # This number overrides the group's number at the broker.
    max_reconsume_times: int | None = setting(
        None,
        "how often a failed message is delivered again before it becomes a dead letter; None "
        "means 16 times and, in order, without end",
        low=0,
        high=2**31 - 1,
        kind=int,
        only=(PUSH,),
        source="maxReconsumeTimes",
    )
    # Differs from RocketMQ, which loses the message and those after it in the same answer.
    unreadable_policy: UnreadablePolicy = setting(
        UnreadablePolicy.STOP,
        "the treatment of a message whose body cannot be read: its queue stops there, or the "
        "message is skipped, or it goes to the group's dead letters",
    )
    pull_threshold_for_queue: int = setting(
        1_000,
        "the most messages of a queue that wait for the listener before pulling pauses",
        low=1,
        high=65_535,
        unit="messages",
        source="pullThresholdForQueue",
    )
    pull_threshold_size_for_queue: int = setting(
        100,
        "the most MiB of a queue's bodies that wait for the listener before pulling pauses",
        low=1,
        high=1024,
        unit="MiB",
        source="pullThresholdSizeForQueue",
    )
    consume_concurrently_max_span: int = setting(
        2_000,
        "the most offsets between a queue's first and last waiting message before pulling pauses",
        low=1,
        high=65_535,
        unit="offsets",
        source="consumeConcurrentlyMaxSpan",
    )
    consume_timeout_ms: int = setting(
        15 * _MINUTE_MS,
        "how long a call of the listener may run before its messages are sent back to be "
        "delivered again; with `orderly` the queue waits for the call instead",
        low=1_000,
        high=_DAY_MS,
        unit="ms",
        only=(PUSH,),
        source="consumeTimeout",
    )
    drain_timeout_ms: int = setting(
        10_000,
        "how long a queue that is given up waits for running listeners, or for the next poll; at "
        "most 3 s with `auto_commit=False`",
        low=0,
        high=600_000,
        unit="ms",
    )
    auto_commit: bool = setting(
        True,
        "commit finished messages every `commit_interval_ms`; False commits only on `commit`",
        only=(POLL,),
        source="autoCommit",
    )
    # Differs from RocketMQ: 1 s, not 5 s, and each commit is answered, so that a late commit never
    # overtakes the last.
    commit_interval_ms: int = setting(
        1_000,
        "the longest time between two commits of a queue; a member with few queues "
        "commits more often",
        low=10,
        high=600_000,
        unit="ms",
        source="persistConsumerOffsetInterval",
    )
    rebalance_interval_ms: int = setting(
        20_000,
        "the time between two rebalances without a notice from a broker",
        low=100,
        high=600_000,
        unit="ms",
        source="rocketmq.client.rebalance.waitInterval",
    )
    trace: bool = setting(
        False,
        "report each message to the topic RMQ_SYS_TRACE_TOPIC, as Java's clients do; reports "
        "never delay messages: when the buffer is full or no broker takes them, they are dropped",
        only=(PUSH,),
        source="enableMsgTrace",
    )
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    namespace: Namespace = NO_NAMESPACE
    client: ClientConfig = field(default_factory=ClientConfig)
    times: ClientTimes = field(default_factory=ClientTimes)

    @property
    def consume_from_where(self) -> ConsumeFromWhere:
        """The start as heartbeats name it."""
        if self.start == "first":
            return ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
        if self.start == "last":
            return ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
        if isinstance(self.start, datetime):
            return ConsumeFromWhere.CONSUME_FROM_TIMESTAMP
        return self.start

    @property
    def flow(self) -> FlowLimits:
        """The limits of one queue above which pulling pauses."""
        return FlowLimits(
            count_max=self.pull_threshold_for_queue,
            size_mib_max=self.pull_threshold_size_for_queue,
            span_max=self.consume_concurrently_max_span,
        )

    def __post_init__(self) -> None:
        check_consumer_group(self.group)
        if self.group == DEFAULT_CONSUMER_GROUP:
            raise ConfigError(
                f"the consumer group must not be {DEFAULT_CONSUMER_GROUP}; choose another name"
            )
        check_settings(self)
        if self.start not in ("first", "last") and not isinstance(
            self.start, datetime | ConsumeFromWhere
        ):
            raise ConfigError(
                f'start is {self.start!r}; it must be "first", "last", a datetime, or a '
                "ConsumeFromWhere, such as ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET"
            )
        if isinstance(self.start, datetime):
            try:
                self.start.timestamp()
            except (ValueError, OverflowError, OSError) as error:
                # No queue could begin: datetime.min is before all times of the machine's zone.
                raise ConfigError(
                    f"start is {self.start!r}, which cannot be told as a local time ({error}); "
                    'give "first" or "last", or a datetime with a time zone'
                ) from None
        if self.balance not in ("queues", "messages"):
            raise ConfigError(f'balance is {self.balance!r}; it must be "queues" or "messages"')
        if self.balance == "messages":
            self._check_by_messages()
        if self.pull_timeout_ms <= self.pull_suspend_ms:
            raise ConfigError(
                f"pull_timeout_ms is {self.pull_timeout_ms}; it must be more than "
                f"pull_suspend_ms, {self.pull_suspend_ms}"
            )
        if (
            self.unreadable_policy is UnreadablePolicy.DEAD_LETTER
            and self.message_model is MessageModel.BROADCASTING
        ):
            raise ConfigError(
                "unreadable_policy is DEAD_LETTER, but a BROADCASTING group has no dead letters; "
                "choose SKIP"
            )

    def _check_by_messages(self) -> None:
        needs_queues = {
            "orderly": self.orderly,
            "message_model": self.message_model is MessageModel.BROADCASTING,
            "start": self.consume_from_where is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP,
            "messages_per_s_max": self.messages_per_s_max is not None,
        }
        for name, is_given in needs_queues.items():
            if is_given:
                raise ConfigError(
                    f'{name} is {getattr(self, name)!r}, which needs balance="queues"; with '
                    '"messages" no member owns a queue, and a group begins "first" or "last"'
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminConfig:
    """The configuration of an administrator, and of a consumer of single messages."""

    timeout_ms: int = setting(
        3_000,
        "the time limit of each request",
        low=1,
        high=_HOUR_MS,
        unit="ms",
        source="timeoutMillis",
    )

    def __post_init__(self) -> None:
        check_settings(self)


# What Kafka's, RabbitMQ's and other RocketMQ clients call a setting or an argument of ours.
NAMES_ELSEWHERE = {
    "auto_offset_reset": "start",
    "bootstrap_servers": "name_server",
    "broadcast": "message_model",
    "broadcasting": "message_model",
    "brokers": "name_server",
    "callback": "listener",
    "client_id": "instance_name",
    "compression_type": "compress_type",
    "consumer_group": "group",
    "enable_auto_commit": "auto_commit",
    "endpoints": "name_server",
    "group_id": "group",
    "group_name": "group",
    "headers": "properties",
    "host": "name_server",
    "key": "keys",
    "concurrency": "consume_thread_count",
    "max_threads": "consume_thread_count",
    "max_workers": "consume_thread_count",
    "max_messages": "count_max",
    "max_poll_records": "pull_batch_size",
    "max_records": "count_max",
    "message_listener": "listener",
    "name_server_address": "name_server",
    "namesrv_addr": "name_server",
    "on_message": "listener",
    "on_message_callback": "listener",
    "partition": "queue",
    "partition_assignment_strategy": "strategy",
    "partitions": "queues",
    "producer_group": "group",
    "retries": "retry_times",
    "security_protocol": "tls",
    "ssl_context": "tls",
    "threads": "consume_thread_count",
    "timeout": "wait",
    "topic": "topics",
    "value": "body",
    "workers": "consume_thread_count",
}


def did_you_mean_argument(name: str, known: Collection[str]) -> str:
    """Return the end of an error about an argument: ours for another client's, or the nearest."""
    ours = NAMES_ELSEWHERE.get(name.replace(".", "_"))
    if ours not in known:
        # A word of one name alone, as `model` is of `message_model`.
        having = [each for each in known if name in each.split("_")]
        ours = having[0] if len(having) == 1 else None
    return f"; did you mean {ours}?" if ours in known else did_you_mean(name, known, cutoff=0.6)


@dataclass(frozen=True, slots=True)
class ClientKind:
    """A kind of client: its name, the tables that hold its settings, and its other arguments."""

    name: str
    tables: tuple[type[DataclassInstance], ...]
    arguments: tuple[str, ...] = ("group", "name_server")

    def rows(self) -> dict[str, Setting]:
        """Return the rows of all its settings, by name."""
        return {
            name: row
            for table in self.tables
            for name, row in rows_of(table).items()
            if not row.only or self.name in row.only
        }

    def check_names(self, given: Mapping[str, object]) -> None:
        """Raise a ConfigError for a name that is not a setting of this kind of client."""
        known = self.rows()
        for name in given:
            if name in known:
                continue
            plain = name.replace("_", "").lower()
            sources = {row.source.lower(): row.name for row in known.values()}
            hint = did_you_mean_argument(sources.get(plain, name), [*known, *self.arguments])
            hint = hint or f"; there are {', '.join(sorted(known))}"
            raise ConfigError(f"{self.name} has no setting {name!r}{hint}")


def take(table: type[C], given: Mapping[str, object], **made: object) -> C:
    """Make one table's value from the given settings.

    Args:
        made: fields that come from elsewhere.

    Raises: ConfigError for a wrong value.
    """
    names = rows_of(table)
    chosen = {name: value for name, value in given.items() if name in names}
    return table(**chosen, **made)


_OF_ALL = (ClientConfig, IdentityConfig, ClientTimes, SightConfig)
KINDS = {
    kind.name: kind
    for kind in (
        ClientKind("Producer", (ProducerConfig, *_OF_ALL)),
        ClientKind(
            PUSH, (ConsumerConfig, *_OF_ALL), ("group", "name_server", "topics", "listener")
        ),
        ClientKind(POLL, (ConsumerConfig, *_OF_ALL), ("group", "name_server", "topics")),
        ClientKind(SIMPLE, (AdminConfig, ClientConfig), ("group", "name_server", "topics")),
        ClientKind("Admin", (AdminConfig, ClientConfig), ("name_server",)),
    )
}

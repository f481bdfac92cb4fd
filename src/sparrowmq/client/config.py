"""What producers and consumers are configured with: frozen, checked once, passed in.

Names and defaults are those of RocketMQ's DefaultMQProducer, DefaultMQPushConsumer and
ClientConfig where a comment says nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sparrowmq.client.arguments import check_kind, check_range
from sparrowmq.errors import ConfigError
from sparrowmq.membership.process_queue import FlowLimits
from sparrowmq.model import (
    CompressionType,
    ConsumeFromWhere,
    ConsumeType,
    MessageModel,
    UnreadablePolicy,
)
from sparrowmq.model.names import (
    AUTO_CREATE_TOPIC_KEY_TOPIC,
    DEFAULT_CONSUMER_GROUP,
    DEFAULT_PRODUCER_GROUP,
    check_group,
)
from sparrowmq.model.namespace import NO_NAMESPACE, Namespace
from sparrowmq.protocol.compression import find_missing_package


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTimes:
    """How long a client waits, and how often it looks again.

    Args:
        invoke_timeout_ms: for one request that says nothing else.
        route_refresh_ms: between two looks at the routes (pollNameServerInterval).
        route_retry_max_ms: a missing topic is looked for after 250 ms, and then at doubled
            intervals up to this. Differs from RocketMQ: Java waits for the next poll.
        heartbeat_ms: between two heartbeats to every broker (heartbeatBrokerInterval).
    """

    invoke_timeout_ms: int = 3_000
    route_refresh_ms: int = 30_000
    route_retry_max_ms: int = 30_000
    heartbeat_ms: int = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """How a producer sends.

    Args:
        group: the producer group.
        client_id: how brokers name this producer.
        send_timeout_ms: for all attempts of one send together (sendMsgTimeout).
        retry_times: attempts after the first (retryTimesWhenSendFailed).
        body_bytes_max: larger bodies are refused, before compression (maxMessageSize).
        compress_bytes_min: bodies from this size are compressed, never those of a batch
            (compressMsgBodyOverHowmuch).
        compress_type: how; LZ4 and ZSTD need the extra `compression`, and consumers from
            RocketMQ 4.9.4 on.
        compress_level: 1, the fastest, to 9 of ZLIB or 22 of ZSTD; LZ4 has no levels.
        template_topic: whose route a topic that does not exist yet is created by.
        template_queues_max: how many queues per broker such a topic gets at most.
        namespace: of the topics that users name; `group` has it already.
        times: see `ClientTimes`.
    """

    group: str
    client_id: str
    send_timeout_ms: int = 3_000
    retry_times: int = 2
    body_bytes_max: int = 4 * 1024 * 1024
    compress_bytes_min: int = 4096
    compress_type: CompressionType = CompressionType.ZLIB
    compress_level: int = 5
    template_topic: str = AUTO_CREATE_TOPIC_KEY_TOPIC
    template_queues_max: int = 4
    namespace: Namespace = NO_NAMESPACE
    times: ClientTimes = field(default_factory=ClientTimes)

    def __post_init__(self) -> None:
        check_group(self.group)
        if self.group == DEFAULT_PRODUCER_GROUP:
            raise ConfigError(f"the producer group must not be {DEFAULT_PRODUCER_GROUP}; name one")
        check_range("send_timeout_ms", self.send_timeout_ms, 1, 3_600_000)
        check_range("retry_times", self.retry_times, 0, 100)
        check_range("body_bytes_max", self.body_bytes_max, 1, 16 * 1024 * 1024)
        check_range("compress_bytes_min", self.compress_bytes_min, 1, 2**31 - 1)
        check_kind("compress_type", self.compress_type, CompressionType)
        level_max = 22 if self.compress_type is CompressionType.ZSTD else 9
        check_range("compress_level", self.compress_level, 1, level_max)
        missing = find_missing_package(self.compress_type)
        if missing is not None:
            raise ConfigError(f"compress_type is {self.compress_type.name}: {missing}")
        check_range("template_queues_max", self.template_queues_max, 1, 65_535)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """How a push consumer consumes.

    Args:
        group: the consumer group.
        client_id: how the members of the group tell each other apart.
        message_model: CLUSTERING shares the queues, BROADCASTING gives every member all.
        consume_type: CONSUME_ACTIVELY for one that polls; each pull says then what it subscribes.
        orderly: consume each queue in order, under its lock at the broker.
        consume_from_where: where to begin in a queue without a committed offset.
        consume_timestamp_ms: the wall-clock time of CONSUME_FROM_TIMESTAMP.
        added_queues_from_first: begin at the first message in queues that are added to a topic
            while we consume it, also under CONSUME_FROM_LAST_OFFSET. Differs from RocketMQ, whose
            members lose what is sent there before they notice the queue.
        pull_batch_size: messages asked for at once.
        pull_suspend_ms: how long a broker may hold a pull that finds nothing.
        pull_timeout_ms: how long to wait for its answer.
        consume_message_batch_max_size: messages the listener gets at once, at most.
        consume_thread_count: how many calls of the listener run at once. Differs from RocketMQ:
            one number, as Java's pool with its unbounded queue never grows past its minimum.
        max_reconsume_times: how often a message comes again before it is a dead letter; None
            means 16 times, and, in order, for ever. It goes before the group's own number at the
            broker.
        unreadable_policy: what becomes of a message whose body cannot be read. Differs from
            RocketMQ, which loses it and what follows it in the same answer.
        flow: how much one queue may cache.
        drain_timeout_ms: how long a queue that is given up waits for listeners that run.
        consume_timeout_ms: a listener that runs longer has its messages sent back.
        commit_interval_ms: between two commits of a queue at most; less while the member has few
            queues. Differs from RocketMQ: 1 s, not 5 s, and each commit is answered, so that a
            late one never follows the last.
        rebalance_interval_ms: between two rebalances that nothing else asked for.
        namespace: of the topics that users name; `group` has it already.
        times: see `ClientTimes`.
    """

    group: str
    client_id: str
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    orderly: bool = False
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    consume_timestamp_ms: int = 0
    added_queues_from_first: bool = True
    pull_batch_size: int = 32
    pull_suspend_ms: int = 15_000
    pull_timeout_ms: int = 30_000
    consume_message_batch_max_size: int = 1
    consume_thread_count: int = 20
    max_reconsume_times: int | None = None
    unreadable_policy: UnreadablePolicy = UnreadablePolicy.STOP
    flow: FlowLimits = field(default_factory=FlowLimits)
    drain_timeout_ms: int = 10_000
    consume_timeout_ms: int = 15 * 60 * 1000
    commit_interval_ms: int = 1_000
    rebalance_interval_ms: int = 20_000
    namespace: Namespace = NO_NAMESPACE
    times: ClientTimes = field(default_factory=ClientTimes)

    def __post_init__(self) -> None:
        check_group(self.group)
        if self.group == DEFAULT_CONSUMER_GROUP:
            raise ConfigError(f"the consumer group must not be {DEFAULT_CONSUMER_GROUP}; name one")
        check_kind("message_model", self.message_model, MessageModel)
        check_kind("orderly", self.orderly, bool)
        check_kind("consume_from_where", self.consume_from_where, ConsumeFromWhere)
        check_kind("unreadable_policy", self.unreadable_policy, UnreadablePolicy)
        check_range("consume_timestamp_ms", self.consume_timestamp_ms, 0, 2**63 - 1)
        # Java's clients allow 1-1024 for both; Apache's brokers cut a pull to what they allow.
        check_range("pull_batch_size", self.pull_batch_size, 1, 2048)
        check_range("consume_message_batch_max_size", self.consume_message_batch_max_size, 1, 2048)
        check_range("consume_thread_count", self.consume_thread_count, 1, 1000)
        check_range("pull_suspend_ms", self.pull_suspend_ms, 0, 30_000)
        check_range("pull_timeout_ms", self.pull_timeout_ms, self.pull_suspend_ms + 1, 600_000)
        check_range("drain_timeout_ms", self.drain_timeout_ms, 0, 600_000)
        check_range("consume_timeout_ms", self.consume_timeout_ms, 1_000, 86_400_000)
        check_range("commit_interval_ms", self.commit_interval_ms, 10, 600_000)
        check_range("rebalance_interval_ms", self.rebalance_interval_ms, 100, 600_000)
        check_range("flow.count_max", self.flow.count_max, 1, 65_535)
        check_range("flow.size_mib_max", self.flow.size_mib_max, 1, 1024)
        check_range("flow.span_max", self.flow.span_max, 1, 65_535)
        if (
            self.unreadable_policy is UnreadablePolicy.DEAD_LETTER
            and self.message_model is MessageModel.BROADCASTING
        ):
            raise ConfigError(
                "unreadable_policy is DEAD_LETTER, but a BROADCASTING group has no dead letters; "
                "choose SKIP"
            )
        if self.max_reconsume_times is not None:
            check_range("max_reconsume_times", self.max_reconsume_times, 0, 2**31 - 1)

"""The broker's settings, frozen. Tests: test_server.py, hosting/test_settings.py."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sparrowmq.config import INT_MAX, check_settings, setting
from sparrowmq.errors import ConfigError
from sparrowmq.store.config import FlushMode
from sparrowmq.store.retention import RetentionConfig

# Nothing expires, and the disk may be full.
KEEP_ALL = RetentionConfig(retention_hours=0, disk_full_percent=100)


class DuplicateClientIdPolicy(StrEnum):
    """The treatment of a member of a CLUSTERING group whose client id is in use already.

    Members that share an id consume the same queues and leave other queues unowned.
    """

    WARN = "warn"
    """The member is accepted, as in RocketMQ; the duplicate is logged and counted."""
    REJECT = "reject"
    """The member's heartbeats are refused until the other connection closes or expires."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """The settings of one broker. A field with a row is an operator's setting.

    Args:
        address: `ip:port` as clients reach the broker; message ids carry it, so it must be an ip.
        auto_create_groups: make an unknown consumer group at its first use.
            BrokerConfig.autoCreateSubscriptionGroup.
        default_topic_queue_count: queues of the template. BrokerConfig.defaultTopicQueueNums.
        message_bytes_max: the largest body. MessageStoreConfig.maxMessageSize.
        batch_count_max: the most messages in one batch.
        pull_count_max: the most messages that one pull returns, whatever it asks for.
        pull_bytes_max: the most bytes that one pull returns, unless one message alone is larger.
        topics_max: the most topics.
        registration_interval_ms: the time between registrations when nothing changes.
            BrokerConfig.registerNameServerPeriod.
        offsets_save_interval_ms: the time between two writes of the committed offsets.
            BrokerConfig.flushConsumerOffsetInterval is 5 s.
        async_flush_interval_ms: the time between flushes when sends do not wait for them.
            MessageStoreConfig.flushIntervalCommitLog.
        in_memory_bytes_max: how far before the log's end a message counts as in memory; RocketMQ
            takes 40 % of the machine's memory.
        retention: when messages expire; by default never.
        region: the region every send answer names. BrokerConfig.regionId.
    """

    address: str = "127.0.0.1:10911"
    broker_name: str = setting("broker-a", "the broker's name", source="BrokerConfig.brokerName")
    cluster_name: str = setting(
        "DefaultCluster", "the broker's cluster", source="BrokerConfig.brokerClusterName"
    )
    flush: FlushMode = setting(
        FlushMode.SYNC,
        "sync acknowledges a message once it is on the disk; async acknowledges at once, and a "
        "power cut may lose the last half second of messages",
        source="MessageStoreConfig.flushDiskType",
    )
    # The template is the topic that the producer names (TBW102).
    auto_create_topics: bool = setting(
        True,
        "create a missing topic when a message is sent to it",
        source="BrokerConfig.autoCreateTopicEnable",
    )
    duplicate_client_id: DuplicateClientIdPolicy = setting(
        DuplicateClientIdPolicy.WARN,
        "the answer to a consumer whose client id another connection of its group uses: warn "
        "accepts the consumer, as RocketMQ does, and logs a warning; reject refuses the "
        "consumer while the other is connected",
    )
    transaction_timeout_ms: int = setting(
        6_000,
        "how long a half message waits before its producer is asked for the outcome",
        low=1,
        high=INT_MAX,
        unit="ms",
        source="BrokerConfig.transactionTimeOut",
    )
    transaction_check_interval_ms: int = setting(
        60_000,
        "the time between two rounds of asking producers for outcomes",
        low=100,
        high=INT_MAX,
        unit="ms",
        source="BrokerConfig.transactionCheckInterval",
    )
    transaction_check_max: int = setting(
        15,
        "how often producers are asked for one outcome before the broker moves the message to "
        "TRANS_CHECK_MAX_TIME_TOPIC",
        low=1,
        high=INT_MAX,
        source="BrokerConfig.transactionCheckMax",
    )
    timer_max_delay_s: int = setting(
        259_200,
        "the longest delay of a message with a delivery time of its own",
        low=1,
        high=INT_MAX,
        unit="s",
        source="MessageStoreConfig.timerMaxDelaySec",
    )
    auto_create_groups: bool = True
    default_topic_queue_count: int = 8
    message_bytes_max: int = 4 * 1024 * 1024
    batch_count_max: int = 1_000
    pull_count_max: int = 8_192
    pull_bytes_max: int = 4 * 1024 * 1024
    topics_max: int = 50_000
    registration_interval_ms: int = 30_000
    offsets_save_interval_ms: int = 1_000
    async_flush_interval_ms: int = 500
    in_memory_bytes_max: int = 2 * 1024 * 1024 * 1024
    retention: RetentionConfig = KEEP_ALL
    region: str = "DefaultRegion"

    def __post_init__(self) -> None:
        """Check settings whose faults would show late. Raises: ConfigError."""
        check_settings(self)
        for name in ("broker_name", "cluster_name"):
            value: str = getattr(self, name)
            if not value or not value.isprintable() or set(value) & set("/\\ "):
                raise ConfigError(f"{name} {value!r} must be a name without blanks and '/'")

    @property
    def is_sync(self) -> bool:
        """Whether a message is acknowledged, and shown to readers, only once it is on the disk."""
        return self.flush is FlushMode.SYNC

"""The broker's settings, frozen."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sparrowmq.errors import ConfigError
from sparrowmq.store.retention import RetentionConfig

# Nothing expires, and the disk may be full.
KEEP_ALL = RetentionConfig(reserved_hours=0, full_percent=100)


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
    """The settings of one broker.

    Args:
        address: `ip:port` as clients reach the broker; message ids carry it, so it must be an ip.
        broker_name: the name of one master and its slaves; this broker is always the master.
        cluster_name: the cluster the broker registers in.
        sync_flush: acknowledge a message, and show it to readers, only once it is on the disk.
        auto_create_topics: make an unknown topic at its first send, from the template the
            producer names (TBW102). BrokerConfig.autoCreateTopicEnable.
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
        duplicate_client_id: the treatment of a second connection of a group with the same client
            id.
        retention: when messages expire; by default never.
        region: the region every send answer names. BrokerConfig.regionId.
        transaction_timeout_ms: the age of a half message at which its producer is first asked for
            the outcome. BrokerConfig.transactionTimeOut.
        transaction_check_interval_ms: the time between rounds of asking.
            BrokerConfig.transactionCheckInterval.
        transaction_check_max: how often a producer is asked about one message before the message
            goes into TRANS_CHECK_MAX_TIME_TOPIC. BrokerConfig.transactionCheckMax.
    """

    address: str
    broker_name: str = "broker-a"
    cluster_name: str = "DefaultCluster"
    sync_flush: bool = True
    auto_create_topics: bool = True
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
    duplicate_client_id: DuplicateClientIdPolicy = DuplicateClientIdPolicy.WARN
    retention: RetentionConfig = KEEP_ALL
    region: str = "DefaultRegion"
    transaction_timeout_ms: int = 6_000
    transaction_check_interval_ms: int = 60_000
    transaction_check_max: int = 15

    def __post_init__(self) -> None:
        """Check settings whose faults would show late. Raises: ConfigError."""
        for name in ("broker_name", "cluster_name"):
            value: str = getattr(self, name)
            if not value or not value.isprintable() or set(value) & set("/\\ "):
                raise ConfigError(f"{name} {value!r} must be a name without blanks and '/'")

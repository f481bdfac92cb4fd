"""The table of a cluster's series: names, labels and meanings. Tests: test_dashboard.py."""

from __future__ import annotations

from sparrowmq.client.sight.series import MetricSeries

_QUEUE = ("group", "topic", "broker", "queue")
_BROKER = ("broker", "cluster")

CLUSTER_SERIES = (
    MetricSeries("sparrowmq_up", "gauge", (), "1 if the last look at the cluster was answered"),
    MetricSeries(
        "sparrowmq_last_snapshot_timestamp_seconds",
        "gauge",
        (),
        "when the cluster was looked at last, in seconds since 1970",
    ),
    MetricSeries("sparrowmq_broker_up", "gauge", _BROKER, "1 if the broker answered the last time"),
    MetricSeries(
        "sparrowmq_broker_puts_per_second", "gauge", _BROKER, "messages stored a second, of late"
    ),
    MetricSeries(
        "sparrowmq_broker_gets_per_second", "gauge", _BROKER, "messages given out a second, of late"
    ),
    MetricSeries(
        "sparrowmq_broker_disk_used_ratio",
        "gauge",
        _BROKER,
        "how full the disk of the commit log is, 0 to 1",
    ),
    MetricSeries(
        "sparrowmq_broker_dispatch_behind_bytes",
        "gauge",
        _BROKER,
        "bytes of the commit log that are not in a consume queue yet",
    ),
    MetricSeries(
        "sparrowmq_topic_end_offset",
        "gauge",
        ("topic", "broker"),
        "the ends of a topic's queues at a broker, added up; its growth is what is produced. Of "
        "topics in which some group has committed there",
    ),
    MetricSeries(
        "sparrowmq_group_lag",
        "gauge",
        ("group", "topic"),
        "messages of a topic that a group has not consumed yet",
    ),
    MetricSeries(
        "sparrowmq_group_lag_seconds",
        "gauge",
        ("group", "topic"),
        "how long the oldest message that is not consumed has been stored; 0 if none has waited "
        "for 10 seconds",
    ),
    MetricSeries(
        "sparrowmq_group_retry_lag",
        "gauge",
        ("group",),
        "messages that failed and wait to be delivered again",
    ),
    MetricSeries(
        "sparrowmq_group_retried",
        "gauge",
        ("group", "broker"),
        "failed messages that came to the group's retry topic at a broker so far; its growth is "
        "what fails",
    ),
    MetricSeries(
        "sparrowmq_group_dead_letters",
        "gauge",
        ("group", "broker"),
        "dead letters of the group that a broker keeps",
    ),
    MetricSeries(
        "sparrowmq_group_members",
        "gauge",
        ("group",),
        "connections of members of the group; brokers do not list consumers that only pop",
    ),
    MetricSeries(
        "sparrowmq_group_in_flight",
        "gauge",
        ("group",),
        "messages that consumers have received and not acknowledged, of groups that consume by "
        "message from a SparrowMQ broker",
    ),
    MetricSeries(
        "sparrowmq_group_oldest_in_flight_seconds",
        "gauge",
        ("group",),
        "the time since the oldest message in flight was stored",
    ),
    MetricSeries(
        "sparrowmq_group_renewals",
        "gauge",
        ("group",),
        "how often consumers extended the times of the messages that are in flight",
    ),
    MetricSeries(
        "sparrowmq_member_load",
        "gauge",
        ("group", "client_id"),
        "a member's load: what comes into its queues and waits there, over what it could consume; "
        "its lag grows above 1. Of groups that divide by load on a SparrowMQ broker",
    ),
    MetricSeries(
        "sparrowmq_duplicate_client_ids",
        "gauge",
        ("group",),
        "members beyond the first of each client id: these share queues, and others are unowned",
    ),
    MetricSeries(
        "sparrowmq_unowned_queues",
        "gauge",
        ("group",),
        "queues of the group's topics that no member consumes",
    ),
    MetricSeries(
        "sparrowmq_multiply_owned_queues",
        "gauge",
        ("group",),
        "queues that several members consume, without BROADCASTING",
    ),
    MetricSeries(
        "sparrowmq_findings",
        "gauge",
        ("group", "severity"),
        "what the doctor finds wrong: info, warn, or error where messages are not consumed or "
        "consumed twice",
    ),
    MetricSeries(
        "sparrowmq_rebalance",
        "counter",
        ("group", "reason"),
        "times that queues began to change hands: a member joined, left, came as a twin (a second "
        "of its id), or the number of queues, the strategy, the subscription changed; a plan "
        "moved queues for load; or unknown",
    ),
    MetricSeries(
        "sparrowmq_rebalance_seconds",
        "histogram",
        ("group",),
        "from the event or the first move until every queue had one owner, counted from the "
        "snapshot before; as exact as snapshots are close: the interval for the beginning, a "
        "second for the end",
    ),
    MetricSeries(
        "sparrowmq_possible_duplicates",
        "counter",
        ("group",),
        "messages that may have been consumed twice: what owners had in hand at the last snapshot "
        "before they lost queues without a handover, and what came through queues with several "
        "owners",
    ),
    MetricSeries(
        "sparrowmq_queue_owners", "gauge", _QUEUE, "members that consume a queue: 1 is right"
    ),
    MetricSeries(
        "sparrowmq_queue_owner",
        "gauge",
        (*_QUEUE, "client_id"),
        "1 for the member that consumes a queue; more if several processes have its id",
    ),
    MetricSeries(
        "sparrowmq_queue_lag", "gauge", _QUEUE, "messages of a queue that are not consumed yet"
    ),
    MetricSeries(
        "sparrowmq_queues_left_out",
        "gauge",
        (),
        "queues without series of their own, since there are too many",
    ),
)

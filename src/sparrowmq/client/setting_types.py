# Made of config.py by `make generate`; change that file.
"""The settings of each client, as editors and type checkers see them."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from sparrowmq.membership.client_id import ClientIdRule
from sparrowmq.model import CompressionType, MessageModel, UnreadablePolicy
from sparrowmq.model.consuming import Balance, Start
from sparrowmq.strategies.registry import StrategyChoice

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider
    from prometheus_client import CollectorRegistry


class _ClientConfig(TypedDict, total=False):
    """Settings of Producer, PushConsumer, PollConsumer, SimpleConsumer, Admin."""

    namespace: str | None
    """A prefix of every topic and group on the wire, as in `ns%orders`, so that several
    applications share a cluster; None adds no prefix.
    """

    tls: ssl.SSLContext | None
    """Connect to name servers and brokers by TLS: an `ssl.SSLContext`, such as
    `ssl.create_default_context(cafile="ca.pem")`; None connects without TLS.
    """

    access_key: str | None
    """The access key of the account at brokers with access control, with whose secret every
    request is signed; None signs nothing.
    """

    secret_key: str | None
    """The secret of the access key."""

    security_token: str | None
    """The security token of temporary keys."""


class _IdentityConfig(TypedDict, total=False):
    """Settings of Producer, PushConsumer, PollConsumer."""

    client_ip: str | None
    """The address in the client id; None takes this machine's."""

    instance_name: str | None
    """The instance in the client id; None makes a unique one."""

    unit_name: str | None
    """The unit in the client id."""

    client_id_rule: ClientIdRule
    """The rule for missing parts of the client id: V4_9 makes ids unique; V4_7 makes equal ids
    in containers that share an address, to demonstrate that failure. Default:
    `ClientIdRule.V4_9`.
    """


class _ClientTimes(TypedDict, total=False):
    """Settings of Producer, PushConsumer, PollConsumer."""

    invoke_timeout_ms: int
    """The time limit of a request without a limit of its own. From 1 to 3,600,000 ms. Default:
    3,000.
    """

    route_refresh_ms: int
    """The time between two requests for a topic's route; members of groups ask every 10 s at the
    latest. From 100 to 3,600,000 ms. Default: 30,000.
    """

    route_retry_max_ms: int
    """The longest pause between two requests for the route of a missing topic; the first pause
    is 250 ms, and each next pause is twice as long, up to 10 s in members of groups. From 250
    to 3,600,000 ms. Default: 30,000.
    """

    heartbeat_ms: int
    """The time between two heartbeats to every broker; members of groups send one to SparrowMQ's
    brokers every 5 s at the latest. From 1,000 to 60,000 ms. Default: 30,000.
    """


class _SightConfig(TypedDict, total=False):
    """Settings of Producer, PushConsumer, PollConsumer."""

    tracer_provider: TracerProvider | None
    """The OpenTelemetry provider of spans, such as `opentelemetry.trace.get_tracer_provider()`;
    messages carry the context; needs the extra `opentelemetry`; None makes no spans.
    """

    metrics_registry: CollectorRegistry | None
    """The Prometheus registry of the client's metrics, such as `prometheus_client.REGISTRY`;
    needs the extra `prometheus`; None registers none.
    """


class _ConsumerConfig(TypedDict, total=False):
    """Settings of PushConsumer, PollConsumer."""

    strategy: StrategyChoice
    """The strategy that divides the group's queues: a name, a strategy, or a function; every
    member of the group must use the same one. Default: `'AVG'`.
    """

    message_model: MessageModel
    """CLUSTERING shares the queues; BROADCASTING gives every member all queues and keeps the
    member's offsets in a file; a failed message does not come again there, except in order,
    and there are no dead letters. Default: `MessageModel.CLUSTERING`.
    """

    local_offset_dir: Path | str | None
    """The directory of a BROADCASTING member's offset file; None: `~/.rocketmq_offsets`."""

    start: Start
    """The start in a queue without a committed offset: "first", "last", a `datetime` (local time
    without a zone), or RocketMQ's `ConsumeFromWhere`, whose CONSUME_FROM_TIMESTAMP is 30
    minutes before the consumer is made; brokers make "last" "first", and those before 5.0 a
    time as well, while the queue's first message is in memory. Default: `'last'`.
    """

    added_queues_from_first: bool
    """Begin at the first message in queues that are added to a topic while it is consumed, also
    with `start="last"`. Default: `True`.
    """

    messages_per_s_max: int | None
    """The most messages a second to pull, on average; those of one pull come together, at most
    those of a second from all queues. None: no limit. From 1 to 1,000,000 messages/s.
    """

    pull_batch_size: int
    """The most messages that one pull asks for. From 1 to 2,048 messages. Default: 32."""

    pull_suspend_ms: int
    """How long a broker may hold a pull that finds no message. From 0 to 30,000 ms. Default:
    15,000.
    """

    pull_timeout_ms: int
    """How long to wait for the answer to a pull; more than `pull_suspend_ms`. From 1 to 600,000
    ms. Default: 30,000.
    """

    unreadable_policy: UnreadablePolicy
    """The treatment of a message whose body cannot be read: its queue stops there, or the
    message is skipped, or it goes to the group's dead letters. Default:
    `UnreadablePolicy.STOP`.
    """

    pull_threshold_for_queue: int
    """The most messages of a queue that wait for the listener before pulling pauses. From 1 to
    65,535 messages. Default: 1,000.
    """

    pull_threshold_size_for_queue: int
    """The most MiB of a queue's bodies that wait for the listener before pulling pauses. From 1
    to 1,024 MiB. Default: 100.
    """

    consume_concurrently_max_span: int
    """The most offsets between a queue's first and last waiting message before pulling pauses.
    From 1 to 65,535 offsets. Default: 2,000.
    """

    drain_timeout_ms: int
    """How long a queue that is given up waits for running listeners, or for the next poll; at
    most 3 s with `auto_commit=False`. From 0 to 600,000 ms. Default: 10,000.
    """

    commit_interval_ms: int
    """The longest time between two commits of a queue; a member with few queues commits more
    often. From 10 to 600,000 ms. Default: 1,000.
    """

    rebalance_interval_ms: int
    """The time between two rebalances without a notice from a broker. From 100 to 600,000 ms.
    Default: 20,000.
    """


class _AdminConfig(TypedDict, total=False):
    """Settings of SimpleConsumer, Admin."""

    timeout_ms: int
    """The time limit of each request. From 1 to 3,600,000 ms. Default: 3,000."""


class ProducerSettings(_ClientConfig, _IdentityConfig, _ClientTimes, _SightConfig, total=False):
    """Settings of `Producer` and `AsyncProducer`; each may be left out."""

    send_timeout_ms: int
    """The time limit of a send with all its attempts. From 1 to 3,600,000 ms. Default: 3,000."""

    retry_times: int
    """The number of further attempts after a failed one. From 0 to 100. Default: 2."""

    avoid_slow_brokers: bool
    """Avoid a broker that answers late, refuses or does not answer while there is another: for
    30 s after an answer in 550 ms, up to 10 min after 15 s, a refusal or no answer. Default:
    `False`.
    """

    body_bytes_max: int
    """The largest body that `send` accepts, before compression. From 1 to 16,777,216 bytes.
    Default: 4,194,304.
    """

    compress_bytes_min: int
    """The smallest body that is compressed; bodies of a batch are never compressed. From 1 to
    2,147,483,647 bytes. Default: 4,096.
    """

    compress_type: CompressionType
    """The compression; LZ4 and ZSTD need the extra `compression` here, and RocketMQ 4.9.4 or
    newer at consumers. Default: `CompressionType.ZLIB`.
    """

    compress_level: int
    """The level of compression: 1 is the fastest; ZLIB goes to 9, ZSTD to 22, and LZ4 has no
    levels. From 1 to 22. Default: 5.
    """

    template_topic: str
    """The template topic, whose queues are the model for a topic that the first send creates.
    Default: `'TBW102'`.
    """

    template_queues_max: int
    """The most queues that a topic created by the first send gets on each broker. From 1 to
    65,535. Default: 4.
    """

    trace: bool
    """Report each message to the topic RMQ_SYS_TRACE_TOPIC, as Java's clients do; reports never
    delay messages: when the buffer is full or no broker takes them, they are dropped.
    Default: `False`.
    """

    linger_ms: int
    """How long a message of `send_nowait` waits for others of its batch. From 0 to 30,000 ms.
    Default: 10.
    """

    batch_bytes_max: int
    """The most bytes of bodies in one batch of `send_nowait`, unless one body is larger; a
    character of a property counts as 4 bytes. From 1 to 2,097,152 bytes. Default: 32,768.
    """

    batch_count_max: int
    """The most messages in one batch of `send_nowait`. From 1 to 512 messages. Default: 512."""

    buffer_bytes_max: int
    """The most bytes of bodies that wait to be sent after `send_nowait`. From 1 to 2,147,483,647
    bytes. Default: 33,554,432.
    """


class PushConsumerSettings(
    _ConsumerConfig, _ClientConfig, _IdentityConfig, _ClientTimes, _SightConfig, total=False
):
    """Settings of `PushConsumer` and `AsyncPushConsumer`; each may be left out."""

    balance: Balance
    """What the members share: "queues", each with one owner, or "messages" of any queue, each
    acknowledged by itself (POP); the latter needs SparrowMQ's broker or RocketMQ 5. Default:
    `'queues'`.
    """

    orderly: bool
    """Consume each queue in order, one call at a time, under its lock at the broker. Default:
    `False`.
    """

    consume_message_batch_max_size: int
    """The most messages in one call of the listener. From 1 to 2,048 messages. Default: 1."""

    consume_thread_count: int
    """How many calls of the listener run at once. From 1 to 1,000 calls. Default: 20."""

    max_reconsume_times: int | None
    """How often a failed message is delivered again before it becomes a dead letter; None means
    16 times and, in order, without end. From 0 to 2,147,483,647.
    """

    consume_timeout_ms: int
    """How long a call of the listener may run before its messages are sent back to be delivered
    again; with `orderly` the queue waits for the call instead. From 1,000 to 86,400,000 ms.
    Default: 900,000.
    """

    trace: bool
    """Report each message to the topic RMQ_SYS_TRACE_TOPIC, as Java's clients do; reports never
    delay messages: when the buffer is full or no broker takes them, they are dropped.
    Default: `False`.
    """


class PollConsumerSettings(
    _ConsumerConfig, _ClientConfig, _IdentityConfig, _ClientTimes, _SightConfig, total=False
):
    """Settings of `PollConsumer` and `AsyncPollConsumer`; each may be left out."""

    auto_commit: bool
    """Commit finished messages every `commit_interval_ms`; False commits only on `commit`.
    Default: `True`.
    """


class SimpleConsumerSettings(_AdminConfig, _ClientConfig, total=False):
    """Settings of `SimpleConsumer` and `AsyncSimpleConsumer`; each may be left out."""


class AdminSettings(_AdminConfig, _ClientConfig, total=False):
    """Settings of `Admin` and `AsyncAdmin`; each may be left out."""

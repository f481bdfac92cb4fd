"""Put a client's state together from what a user gives; both faces begin here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sparrowmq.calling import clock
from sparrowmq.calling.scheduler import NEVER_MS
from sparrowmq.client.arguments import check_function, check_kind, check_range
from sparrowmq.client.config import ConsumerConfig, ProducerConfig
from sparrowmq.client.directory import Directory
from sparrowmq.client.identity import make_client_id, make_id_generator, random_start
from sparrowmq.client.lite_pull import LitePull
from sparrowmq.client.local_offsets import LocalOffsets, default_directory
from sparrowmq.client.name_servers import NameServers, parse_name_servers
from sparrowmq.client.notices import NoticeLog
from sparrowmq.client.publisher import Publisher
from sparrowmq.client.queue_selector import QueueSelector
from sparrowmq.client.subscriber import (
    AsyncListener,
    AsyncOrderlyListener,
    Notice,
    RebalanceCallbacks,
    Subscriber,
)
from sparrowmq.client.tracer import Tracer
from sparrowmq.errors import ConfigError
from sparrowmq.membership.client_id import ClientIdRule
from sparrowmq.membership.process_queue import FlowLimits
from sparrowmq.model import (
    CompressionType,
    ConsumeFromWhere,
    ConsumeType,
    MessageModel,
    MessageSelector,
    UnreadablePolicy,
)
from sparrowmq.model.names import GROUP_LENGTH_MAX, check_topic, retry_topic
from sparrowmq.model.namespace import check_namespace
from sparrowmq.protocol.bodies import SubscriptionData
from sparrowmq.protocol.subscription import parse_selection
from sparrowmq.strategies.by_config import AllocateMessageQueueByConfig
from sparrowmq.strategies.registry import StrategyChoice, strategy_from

# DefaultMQPushConsumer.consumeTimestamp: half an hour before the start.
CONSUME_TIMESTAMP_BACK_MS = 30 * 60 * 1000
# How long closing a producer waits for brokers to take note.
LEAVE_TIMEOUT_MS = 1_000
# How long closing a consumer waits beyond the drain for its last commits and for leaving; and of
# that, what is left for its connections and threads to end.
CLOSE_MARGIN_MS = 8_000
DRIVER_CLOSE_MS = 1_000
# TraceConstants.GROUP_NAME_PREFIX, and the patience of AsyncTraceDispatcher's sends.
TRACE_GROUP_PREFIX = "_INNER_TRACE_PRODUCER"
TRACE_TIMEOUT_MS = 5_000
# Between a loop that failed and its next start.
RESTART_S = 1.0


def make_publisher(
    group: str,
    *,
    name_server: str | Sequence[str],
    client_ip: str | None,
    instance_name: str | None,
    unit_name: str | None,
    send_timeout_ms: int,
    retry_times: int,
    compress_bytes_min: int = 4096,
    compress_type: CompressionType = CompressionType.ZLIB,
    compress_level: int = 5,
    client_id_rule: ClientIdRule = ClientIdRule.V4_9,
    namespace: str | None = None,
    trace: bool = False,
) -> Publisher:
    """Make the state of a new producer. Raises: ConfigError."""
    addresses = parse_name_servers(name_server)
    of_user = check_namespace(namespace)
    config = ProducerConfig(
        group=of_user.wrap(group),
        client_id=make_client_id(
            client_ip=client_ip,
            instance_name=instance_name,
            unit_name=unit_name,
            rule=client_id_rule,
        ),
        send_timeout_ms=send_timeout_ms,
        retry_times=retry_times,
        compress_bytes_min=compress_bytes_min,
        compress_type=compress_type,
        compress_level=compress_level,
        namespace=of_user,
    )
    name_servers = NameServers(addresses, start=random_start())
    return Publisher(
        config=config,
        name_servers=name_servers,
        ids=make_id_generator(client_ip),
        selector=QueueSelector(random_start),
        tracer=_make_tracer(config, name_servers, client_ip, "PRODUCE", is_wanted=trace),
    )


def _make_tracer(
    config: ProducerConfig | ConsumerConfig,
    name_servers: NameServers,
    client_ip: str | None,
    kind: str,
    *,
    is_wanted: bool,
) -> Tracer | None:
    """Make what tells of a client's messages, over that client's connections, if it is wanted."""
    check_kind("trace", is_wanted, bool)
    if not is_wanted:
        return None
    trace_group = f"{TRACE_GROUP_PREFIX}-{config.group}-{kind}"[:GROUP_LENGTH_MAX]
    publisher = Publisher(
        config=ProducerConfig(
            group=trace_group, client_id=config.client_id, send_timeout_ms=TRACE_TIMEOUT_MS
        ),
        name_servers=name_servers,
        ids=make_id_generator(client_ip),
        selector=QueueSelector(random_start),
        # Brokers need not know it.
        heartbeat_due_ms=NEVER_MS,
    )
    return Tracer(publisher=publisher, group=config.group)


def make_subscriber(
    group: str,
    *,
    name_server: str | Sequence[str],
    listener: AsyncListener | AsyncOrderlyListener,
    orderly: bool,
    strategy: StrategyChoice,
    consume_from_where: ConsumeFromWhere,
    consume_timestamp_ms: int | None,
    message_model: MessageModel,
    local_offset_dir: Path | str | None,
    pull_batch_size: int,
    consume_message_batch_max_size: int,
    consume_thread_count: int,
    max_reconsume_times: int | None,
    unreadable_policy: UnreadablePolicy,
    consume_timeout_ms: int,
    drain_timeout_ms: int,
    client_ip: str | None,
    instance_name: str | None,
    unit_name: str | None,
    client_id_rule: ClientIdRule,
    namespace: str | None,
    trace: bool,
    callbacks: RebalanceCallbacks,
    is_async: bool,
) -> Subscriber:
    """Make the state of a new push consumer; see `check_functions`. Raises: ConfigError."""
    addresses = parse_name_servers(name_server)
    of_user = check_namespace(namespace)
    check_functions(listener, callbacks, is_async=is_async)
    config = ConsumerConfig(
        group=of_user.wrap(group),
        client_id=make_client_id(
            client_ip=client_ip,
            instance_name=instance_name,
            unit_name=unit_name,
            rule=client_id_rule,
            message_model=message_model,
        ),
        message_model=message_model,
        orderly=orderly,
        consume_from_where=consume_from_where,
        consume_timestamp_ms=_start_timestamp_ms(consume_timestamp_ms),
        pull_batch_size=pull_batch_size,
        consume_message_batch_max_size=consume_message_batch_max_size,
        consume_thread_count=consume_thread_count,
        max_reconsume_times=max_reconsume_times,
        unreadable_policy=unreadable_policy,
        consume_timeout_ms=consume_timeout_ms,
        drain_timeout_ms=drain_timeout_ms,
        namespace=of_user,
    )
    store = _find_local_store(config, local_offset_dir)
    name_servers = NameServers(addresses, start=random_start())
    return Subscriber(
        config=config,
        name_servers=name_servers,
        tracer=_make_tracer(config, name_servers, client_ip, "CONSUME", is_wanted=trace),
        strategy=strategy_from(strategy),
        subscriptions=_retry_subscription(config),
        listener=listener,
        callbacks=callbacks,
        local_offsets={} if store is None else store.load(),
        local_store=store,
        start_timestamp_ms=clock.timestamp_ms(),
        tell=NoticeLog(config.group).tell,
    )


def check_functions(
    listener: AsyncListener | AsyncOrderlyListener, callbacks: RebalanceCallbacks, *, is_async: bool
) -> None:
    """Raise a ConfigError unless a user's functions can be called with what they will get.

    Args:
        is_async: whether they may be coroutine functions.
    """
    check_function("listener", listener, ("messages", "context"), is_async=is_async)
    for name, function in callbacks._asdict().items():
        if function is not None:
            check_function(name, function, ("queues",), is_async=is_async)


def _retry_subscription(config: ConsumerConfig) -> dict[str, SubscriptionData]:
    """Return what a push consumer subscribes by itself."""
    if config.message_model is MessageModel.BROADCASTING:
        return {}
    own = retry_topic(config.group)
    return {own: parse_selection(own, "*", sub_version=clock.timestamp_ms())}


def make_lite_pull(
    group: str,
    *,
    name_server: str | Sequence[str],
    strategy: StrategyChoice,
    consume_from_where: ConsumeFromWhere,
    consume_timestamp_ms: int | None,
    message_model: MessageModel,
    local_offset_dir: Path | str | None,
    auto_commit: bool,
    pull_batch_size: int,
    pull_threshold_for_queue: int,
    unreadable_policy: UnreadablePolicy,
    drain_timeout_ms: int,
    client_ip: str | None,
    instance_name: str | None,
    unit_name: str | None,
    client_id_rule: ClientIdRule,
    namespace: str | None,
    callbacks: RebalanceCallbacks,
    is_async: bool,
) -> LitePull:
    """Make the state of a new lite pull consumer; see `check_functions`. Raises: ConfigError."""
    addresses = parse_name_servers(name_server)
    of_user = check_namespace(namespace)
    check_kind("auto_commit", auto_commit, bool)
    check_functions(_no_listener, callbacks, is_async=is_async)
    config = ConsumerConfig(
        group=of_user.wrap(group),
        client_id=make_client_id(
            client_ip=client_ip,
            instance_name=instance_name,
            unit_name=unit_name,
            rule=client_id_rule,
            message_model=message_model,
        ),
        message_model=message_model,
        consume_type=ConsumeType.CONSUME_ACTIVELY,
        consume_from_where=consume_from_where,
        consume_timestamp_ms=_start_timestamp_ms(consume_timestamp_ms),
        pull_batch_size=pull_batch_size,
        flow=FlowLimits(count_max=pull_threshold_for_queue),
        unreadable_policy=unreadable_policy,
        drain_timeout_ms=drain_timeout_ms,
        namespace=of_user,
    )
    log = NoticeLog(config.group)
    store = _find_local_store(config, local_offset_dir)
    subscriber = Subscriber(
        config=config,
        name_servers=NameServers(addresses, start=random_start()),
        strategy=strategy_from(strategy),
        subscriptions={},
        listener=_no_listener,
        callbacks=callbacks,
        local_offsets={} if store is None else store.load(),
        local_store=store,
        start_timestamp_ms=clock.timestamp_ms(),
        tell=log.tell,
    )
    state = LitePull(subscriber=subscriber, is_auto_commit=auto_commit)

    def tell(notice: Notice) -> None:
        state.note(notice)
        log.tell(notice)

    subscriber.tell = tell
    return state


def _start_timestamp_ms(chosen_ms: int | None) -> int:
    return clock.timestamp_ms() - CONSUME_TIMESTAMP_BACK_MS if chosen_ms is None else chosen_ms


def _find_local_store(config: ConsumerConfig, directory: Path | str | None) -> LocalOffsets | None:
    """Return where a BROADCASTING consumer keeps its offsets; None for others."""
    if config.message_model is not MessageModel.BROADCASTING:
        return None
    place = default_directory() if directory is None else Path(directory)
    return LocalOffsets(place, config.client_id, group=config.group)


def _no_listener(*_: object) -> None:
    raise AssertionError("a lite pull consumer has no listener")


def suspend(subscriber: Subscriber) -> None:
    """Begin no pull and no call of the listener. On the driver's thread."""
    subscriber.member.is_suspended = True


def resume(subscriber: Subscriber) -> None:
    """Go on after `suspend`. On the driver's thread."""
    subscriber.member.is_suspended = False
    subscriber.wake.set()


def make_subscription(
    subscriber: Subscriber, topic: str, expression: str | MessageSelector
) -> SubscriptionData:
    """Parse a subscription as of now. Raises: ConfigError, LocalProtocolError."""
    topic = check_topic(subscriber.config.namespace.wrap(topic))
    return parse_selection(topic, expression, sub_version=clock.timestamp_ms())


def add_subscription(subscriber: Subscriber, subscription: SubscriptionData) -> None:
    """Subscribe a topic, or change its expression. On the driver's thread, or before it runs."""
    subscriber.subscriptions[subscription.topic] = subscription
    subscriber.member.subscribe(subscription.topic, now_ms=clock.monotonic_ms())
    subscriber.wake.set()


def remove_subscription(subscriber: Subscriber, topic: str) -> None:
    """Unsubscribe a topic and give up its queues. On the driver's thread."""
    topic = subscriber.config.namespace.wrap(topic)
    subscriber.subscriptions.pop(topic, None)
    subscriber.member.unsubscribe(topic, now_ms=clock.monotonic_ms())
    subscriber.wake.set()


def give_up(subscriber: Subscriber) -> None:
    """Have the loop end at once, whatever is under way. On the driver's thread."""
    subscriber.member.left()
    subscriber.wake.set()


def check_start(subscriber: Subscriber) -> None:
    """Raise a ConfigError if the strategy CONFIG names queues of a topic that is not subscribed.

    Such a queue would be consumed by nobody, and nothing would say why.
    """
    strategy, retry = subscriber.strategy, subscriber.retry_topic
    subscribed = sorted(topic for topic in subscriber.subscriptions if topic != retry)
    if not isinstance(strategy, AllocateMessageQueueByConfig) or not subscribed:
        return
    named = {queue.topic for queue in strategy.message_queue_list or ()}
    unknown = sorted(named - {*subscribed, retry})
    if unknown:
        raise ConfigError(
            f"consumer group {subscriber.config.group}: strategy CONFIG gives queues of "
            f"{', '.join(unknown)}, but only {', '.join(subscribed)} is subscribed; subscribe "
            f"these topics too before start, or correct the topics of the queues"
        )


def make_directory(
    name_server: str | Sequence[str], *, timeout_ms: int, namespace: str | None = None
) -> Directory:
    """Make the state of a new administrator. Raises: ConfigError."""
    addresses = parse_name_servers(name_server)
    of_user = check_namespace(namespace)
    check_range("timeout_ms", timeout_ms, 1, 3_600_000)
    return Directory(
        name_servers=NameServers(addresses, start=random_start()),
        timeout_ms=timeout_ms,
        namespace=of_user,
    )

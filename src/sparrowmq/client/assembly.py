"""Make a client's state from the user's arguments; both faces begin here. Tests: test_config.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Unpack, cast

from sparrowmq.calling import clock
from sparrowmq.calling.scheduler import NEVER_MS
from sparrowmq.client.arguments import check_function, read_topics
from sparrowmq.client.config import (
    KINDS,
    POLL,
    PUSH,
    SIMPLE,
    ClientConfig,
    ClientTimes,
    ConsumerConfig,
    IdentityConfig,
    ProducerConfig,
    SightConfig,
    take,
)
from sparrowmq.client.directory_setup import find_name_servers, make_directory
from sparrowmq.client.identity import make_client_id, make_id_generator, random_start
from sparrowmq.client.local_offsets import LocalOffsets, default_directory
from sparrowmq.client.name_servers import NameServers
from sparrowmq.client.notices import NoticeLog
from sparrowmq.client.operations.pop import PopSource
from sparrowmq.client.polling import Polling
from sparrowmq.client.publisher import Publisher
from sparrowmq.client.queue_selector import QueueSelector
from sparrowmq.client.setting_types import (
    PollConsumerSettings,
    ProducerSettings,
    PushConsumerSettings,
    SimpleConsumerSettings,
)
from sparrowmq.client.sight.observers import observe_consumer, observe_polls, observe_sends
from sparrowmq.client.subscriber import (
    AsyncListener,
    AsyncOrderlyListener,
    Notice,
    RebalanceCallbacks,
    Subscriber,
    Topics,
)
from sparrowmq.client.tracer import SendTrace, Tracer
from sparrowmq.client.transaction_outcomes import AsyncCheck, Coordinator
from sparrowmq.config import check_kind, check_range
from sparrowmq.errors import ConfigError
from sparrowmq.model import ConsumeType, MessageModel, MessageSelector
from sparrowmq.model.names import GROUP_LENGTH_MAX, check_consumer_group, check_topic, retry_topic
from sparrowmq.model.namespace import check_namespace
from sparrowmq.protocol.bodies import SubscriptionData
from sparrowmq.protocol.pop_handle import POP_COUNT_MAX
from sparrowmq.protocol.subscription import parse_selection
from sparrowmq.strategies.by_config import AllocateMessageQueueByConfig

# How long closing a producer waits for brokers to unregister it.
LEAVE_TIMEOUT_MS = 1_000
# How long closing a consumer waits beyond the drain for its last commits and for leaving. A part of
# that time is left for its connections and threads to end.
CLOSE_MARGIN_MS = 8_000
DRIVER_CLOSE_MS = 1_000
# TraceConstants.GROUP_NAME_PREFIX, and the patience of AsyncTraceDispatcher's sends.
TRACE_GROUP_PREFIX = "_INNER_TRACE_PRODUCER"
TRACE_TIMEOUT_MS = 5_000
# The bounds of brokers (`broker/pop_queues.py`, `broker/pull_hold.py`).
INVISIBLE_MAX = timedelta(hours=12)
WAIT_MAX = timedelta(seconds=30)
# Between a loop that failed and its next start.
RESTART_S = 1.0


def make_publisher(
    group: str, *, name_server: str | Sequence[str] | None, **settings: Unpack[ProducerSettings]
) -> Publisher:
    """Make the state of a new producer. Raises: ConfigError."""
    KINDS["Producer"].check_names(settings)
    identity = take(IdentityConfig, settings)
    config = take(ProducerConfig, settings, **_made(group, settings, make_client_id(identity)))
    name_servers = NameServers(find_name_servers(name_server), start=random_start())
    publisher = Publisher(
        config=config,
        name_servers=name_servers,
        ids=make_id_generator(identity.client_ip),
        selector=QueueSelector(random_start),
        report=NoticeLog(config.group, "producer group").report,
    )
    observe_sends(publisher, take(SightConfig, settings))
    tracer = _make_tracer(config, name_servers, identity.client_ip, "PRODUCE")
    if tracer is not None:
        trace = SendTrace(
            tracer=tracer,
            config=config,
            address_of=publisher.routes.master_address,
            monotonic_ms=clock.monotonic_ms,
            timestamp_ms=clock.timestamp_ms,
            untraced=publisher.untraced,
        )
        publisher.observers = (*publisher.observers, trace)
    return publisher


def make_coordinator(publisher: Publisher, check: AsyncCheck) -> Coordinator:
    """Make the state of the transactions of a new producer."""
    # A transactional producer registers at all brokers, not only at those that it sends to.
    publisher.heartbeat_due_ms = NEVER_MS
    log = NoticeLog(publisher.config.group, "producer group")
    return Coordinator(publisher=publisher, check=check, report=log.report)


def _made(group: str, settings: Mapping[str, object], client_id: str) -> dict[str, Any]:
    """Return the fields of a configuration that are not settings."""
    client = take(ClientConfig, settings)
    namespace = check_namespace(client.namespace)
    return {
        "group": namespace.wrap(group),
        "client_id": client_id,
        "namespace": namespace,
        "client": client,
        "times": take(ClientTimes, settings),
    }


def _make_tracer(
    config: ProducerConfig | ConsumerConfig,
    name_servers: NameServers,
    client_ip: str | None,
    kind: str,
) -> Tracer | None:
    """Make the tracer of a client's messages, over that client's connections, if trace is on."""
    if not config.trace:
        return None
    trace_group = f"{TRACE_GROUP_PREFIX}-{config.group}-{kind}"[:GROUP_LENGTH_MAX]
    publisher = Publisher(
        config=ProducerConfig(
            group=trace_group, client_id=config.client_id, send_timeout_ms=TRACE_TIMEOUT_MS
        ),
        name_servers=name_servers,
        ids=make_id_generator(client_ip),
        selector=QueueSelector(random_start),
        # Brokers need not know this producer.
        heartbeat_due_ms=NEVER_MS,
    )
    return Tracer(publisher=publisher, group=config.group)


def make_subscriber(
    group: str,
    *,
    name_server: str | Sequence[str] | None,
    listener: AsyncListener | AsyncOrderlyListener,
    callbacks: RebalanceCallbacks,
    is_async: bool,
    **settings: Unpack[PushConsumerSettings],
) -> Subscriber:
    """Make the state of a new push consumer; see `check_functions`. Raises: ConfigError."""
    KINDS[PUSH].check_names(settings)
    check_functions(listener, callbacks, is_async=is_async)
    subscriber = _make_subscriber(
        group,
        name_server,
        listener,
        callbacks,
        settings,
        consume_type=ConsumeType.CONSUME_PASSIVELY,
    )
    if subscriber.config.balance == "messages" and any(callbacks):
        raise ConfigError(
            'on_assign, on_revoke and on_lost need balance="queues": with "messages" no member '
            "gains or loses a queue"
        )
    observe_consumer(subscriber, take(SightConfig, settings))
    return subscriber


def _make_subscriber(
    group: str,
    name_server: str | Sequence[str] | None,
    listener: AsyncListener | AsyncOrderlyListener,
    callbacks: RebalanceCallbacks,
    settings: Mapping[str, object],
    *,
    consume_type: ConsumeType,
) -> Subscriber:
    name_servers = NameServers(find_name_servers(name_server), start=random_start())
    identity = take(IdentityConfig, settings)
    model = settings.get("message_model", MessageModel.CLUSTERING)
    check_kind("message_model", model, MessageModel)
    client_id = make_client_id(identity, cast(MessageModel, model))
    config = take(
        ConsumerConfig, settings, consume_type=consume_type, **_made(group, settings, client_id)
    )
    store = _find_local_store(config)
    return Subscriber(
        config=config,
        name_servers=name_servers,
        tracer=_make_tracer(config, name_servers, identity.client_ip, "CONSUME"),
        subscriptions=_retry_subscription(config),
        listener=listener,
        callbacks=callbacks,
        local_offsets={} if store is None else store.load(),
        local_store=store,
        start_timestamp_ms=clock.timestamp_ms(),
        report=NoticeLog(config.group).report,
    )


def _retry_subscription(config: ConsumerConfig) -> dict[str, SubscriptionData]:
    """Return the subscriptions that a push consumer adds by itself."""
    is_polled = config.consume_type is ConsumeType.CONSUME_ACTIVELY
    if (
        is_polled
        or config.balance == "messages"
        or config.message_model is MessageModel.BROADCASTING
    ):
        return {}
    own = retry_topic(config.group)
    return {own: parse_selection(own, "*", sub_version=clock.timestamp_ms())}


def check_functions(
    listener: AsyncListener | AsyncOrderlyListener, callbacks: RebalanceCallbacks, *, is_async: bool
) -> None:
    """Raise a ConfigError unless a user's functions can be called with their arguments.

    Args:
        is_async: whether coroutine functions are allowed.
    """
    check_function("listener", listener, ("messages", "context"), is_async=is_async)
    for name, function in callbacks._asdict().items():
        if function is not None:
            check_function(name, function, ("queues",), is_async=is_async)


def make_polling(
    group: str,
    *,
    name_server: str | Sequence[str] | None,
    callbacks: RebalanceCallbacks,
    is_async: bool,
    **settings: Unpack[PollConsumerSettings],
) -> Polling:
    """Make the state of a new poll consumer; see `check_functions`. Raises: ConfigError."""
    KINDS[POLL].check_names(settings)
    check_functions(_no_listener, callbacks, is_async=is_async)
    subscriber = _make_subscriber(
        group,
        name_server,
        _no_listener,
        callbacks,
        settings,
        consume_type=ConsumeType.CONSUME_ACTIVELY,
    )
    state = Polling(subscriber=subscriber)
    log = subscriber.report

    def report(notice: Notice) -> None:
        state.note(notice)
        log(notice)

    subscriber.report = report
    observe_polls(state, take(SightConfig, settings))
    return state


def _find_local_store(config: ConsumerConfig) -> LocalOffsets | None:
    """Return the offset file of a BROADCASTING consumer; None for others. Raises: ConfigError."""
    if config.message_model is not MessageModel.BROADCASTING:
        return None
    directory = config.local_offset_dir
    try:
        place = default_directory() if directory is None else Path(directory)
    except TypeError:
        raise ConfigError(
            f"local_offset_dir is {directory!r}; it must be the path of a directory, as a text"
        ) from None
    return LocalOffsets(place, config.client_id, group=config.group)


def _no_listener(*_: object) -> None:
    raise AssertionError("a poll consumer has no listener")


def suspend(subscriber: Subscriber) -> None:
    """Stop beginning pulls and calls of the listener. On the driver's thread."""
    subscriber.member.is_suspended = True


def resume(subscriber: Subscriber) -> None:
    """Begin pulls and calls again after `suspend`. On the driver's thread."""
    subscriber.member.is_suspended = False
    subscriber.wake.set()


def make_subscription(
    subscriber: Subscriber, topic: str, expression: str | MessageSelector
) -> SubscriptionData:
    """Parse a subscription as of now. Raises: ConfigError, UsageError."""
    topic = check_topic(subscriber.config.namespace.wrap(topic))
    return parse_selection(topic, expression, sub_version=clock.timestamp_ms())


def add_subscription(subscriber: Subscriber, subscription: SubscriptionData) -> None:
    """Subscribe a topic, or change its expression. On the driver's thread, or before it runs."""
    former = subscriber.subscriptions.get(subscription.topic)
    if former is not None and (former.sub_string, former.expression_type) != (
        subscription.sub_string,
        subscription.expression_type,
    ):
        subscriber.resubscribed.add(subscription.topic)
    subscriber.subscriptions[subscription.topic] = subscription
    subscriber.member.subscribe(subscription.topic, now_ms=clock.monotonic_ms())
    subscriber.wake.set()


def subscribe_topics(subscriber: Subscriber, topics: Topics | None) -> bool:
    """Subscribe the topics that a new consumer was given; return whether there are any.

    Raises: ConfigError; UsageError for a bad expression.
    """
    given = read_topics(topics)
    for topic, expression in given.items():
        add_subscription(subscriber, make_subscription(subscriber, topic, expression))
    return bool(given)


def remove_subscription(subscriber: Subscriber, topic: str) -> None:
    """Unsubscribe a topic and give up its queues. On the driver's thread."""
    topic = subscriber.config.namespace.wrap(topic)
    if subscriber.subscriptions.pop(topic, None) is not None:
        subscriber.resubscribed.add(topic)
    subscriber.member.unsubscribe(topic, now_ms=clock.monotonic_ms())
    subscriber.wake.set()


def give_up(subscriber: Subscriber) -> None:
    """End the loop at once, whatever is under way. On the driver's thread."""
    subscriber.member.left()
    subscriber.wake.set()


def check_start(subscriber: Subscriber) -> None:
    """Raise a ConfigError if the strategy CONFIG names queues of a topic that is not subscribed.

    No member would consume such a queue, and no error would show it.
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
            "these topics before start, or correct the topics of the queues"
        )


def make_pop_source(
    group: str, name_server: str | Sequence[str] | None, **settings: Unpack[SimpleConsumerSettings]
) -> PopSource:
    """Make the state of a new consumer of single messages. Raises: ConfigError."""
    directory = make_directory(name_server, kind=SIMPLE, **settings)
    return PopSource(directory, check_consumer_group(directory.namespace.wrap(group)))


def subscribe_pops(source: PopSource, topic: str, expression: str | MessageSelector) -> None:
    """Subscribe a topic, or change its expression. Raises: ConfigError, UsageError."""
    topic = check_topic(source.directory.namespace.wrap(topic))
    timestamp_ms = clock.timestamp_ms()
    source.subscriptions[topic] = parse_selection(topic, expression, sub_version=timestamp_ms)


def check_count(count_max: int) -> int:
    """Return how many messages to receive. Raises: ConfigError."""
    check_range("count_max", count_max, 1, POP_COUNT_MAX)
    return count_max


def invisible_ms(invisible: timedelta) -> int:
    """Return a time of invisibility in milliseconds. Raises: ConfigError."""
    return _milliseconds("invisible", invisible, INVISIBLE_MAX)


def wait_ms(wait: timedelta) -> int:
    """Return the longest wait of a receive in milliseconds. Raises: ConfigError."""
    return _milliseconds("wait", wait, WAIT_MAX)


def _milliseconds(name: str, given: timedelta, longest: timedelta) -> int:
    if not isinstance(given, timedelta) or not timedelta() <= given <= longest:
        raise ConfigError(f"{name} is {given!r}; give a timedelta from 0 to {longest}")
    return given // timedelta(milliseconds=1)

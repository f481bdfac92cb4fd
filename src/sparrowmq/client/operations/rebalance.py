"""One rebalance: who is in the group, and which queues are ours.

All members ask the same broker for the list (the first of the topic's route by name that answers;
RocketMQ's clients ask a random one), so that they see the same list more often. The order of both
lists is Java's, and duplicates stay: the share of an id that is listed twice is worked out as
RocketMQ does it, for the group may have Java members.
Source: RebalanceImpl.rebalanceByTopic.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparrowmq.client.operations.membership import consumer_list
from sparrowmq.client.subscriber import AllocationFailed, RequestFailed, Subscriber
from sparrowmq.errors import ConfigError, SparrowError
from sparrowmq.model import MessageQueue
from sparrowmq.model.queue import java_order, queue_order
from sparrowmq.rebalance.group_strategy import GroupStrategy, TopicView, is_group_strategy
from sparrowmq.rebalance.member import TopicShare
from sparrowmq.runtime.effects import Operation


def find_shares(subscriber: Subscriber) -> Operation[list[TopicShare]]:
    """Work out our share of every subscribed topic that has a route."""
    # By address, so that one rebalance asks each broker once, whatever the topics.
    lists: dict[str, tuple[str, ...] | None] = {}
    shares: list[TopicShare] = []
    views: list[TopicView] = []
    for topic in subscriber.member.topics:
        route = subscriber.routes.find(topic)
        if route is None:
            continue
        mq_all = sorted(route.subscribe_queues, key=queue_order)
        if subscriber.is_broadcasting or not mq_all:
            subscriber.history.note(topic, mq_all)
            shares.append(TopicShare(topic, tuple(mq_all)))
            continue
        cid_all = yield from _find_members(subscriber, sorted(route.brokers), lists)
        if cid_all:
            subscriber.history.note(topic, mq_all, cid_all=cid_all)
        views.append(TopicView(topic, mq_all, cid_all))
    strategy = subscriber.strategy
    if is_group_strategy(strategy):
        return shares + allocate_group(subscriber, strategy, views)
    for view in views:
        if view.cid_all:
            shares.append(allocate(subscriber, view.topic, view.mq_all, tuple(view.cid_all)))
        else:
            shares.append(TopicShare(view.topic, None))
    return shares


def allocate_group(
    subscriber: Subscriber, strategy: GroupStrategy, views: Sequence[TopicView]
) -> list[TopicShare]:
    """Ask a strategy that sees all topics at once; while one list is missing, nothing changes."""
    config = subscriber.config
    mine: list[MessageQueue] | None = None
    if all(view.cid_all for view in views):
        try:
            mine = strategy.allocate_group(config.group, config.client_id, views)
        except Exception as error:
            # A strategy may be the user's own; whatever it raises, we keep what we have.
            topics = ", ".join(view.topic for view in views)
            subscriber.tell(AllocationFailed(topics, strategy.name, error))
    return [
        TopicShare(
            view.topic,
            None if mine is None else _existing(subscriber, mine, view.topic, view.mq_all),
            tuple(view.cid_all),
        )
        for view in views
    ]


def allocate(
    subscriber: Subscriber, topic: str, mq_all: Sequence[MessageQueue], cid_all: tuple[str, ...]
) -> TopicShare:
    """Ask the strategy for our share of one topic; lists are sorted already."""
    config, strategy = subscriber.config, subscriber.strategy
    try:
        share = strategy.allocate(config.group, config.client_id, list(mq_all), list(cid_all))
    except Exception as error:
        # A strategy may be the user's own; whatever it raises, we keep what we have.
        subscriber.tell(AllocationFailed(topic, strategy.name, error))
        return TopicShare(topic, None, cid_all)
    return TopicShare(topic, _existing(subscriber, share or (), topic, mq_all), cid_all)


def _existing(
    subscriber: Subscriber,
    share: Sequence[MessageQueue],
    topic: str,
    mq_all: Sequence[MessageQueue],
) -> tuple[MessageQueue, ...]:
    """Return the queues of a topic in what a strategy gave; tell of those that do not exist."""
    # CONFIG gives one list for all topics.
    mine = [queue for queue in share if queue.topic == topic]
    unknown = [str(queue) for queue in mine if queue not in mq_all]
    if unknown:
        name = subscriber.strategy.name
        wrong = ConfigError(f"strategy {name} gave queues that do not exist: {unknown}")
        subscriber.tell(AllocationFailed(topic, name, wrong))
    return tuple(queue for queue in mine if queue in mq_all)


def _find_members(
    subscriber: Subscriber, broker_names: Sequence[str], lists: dict[str, tuple[str, ...] | None]
) -> Operation[tuple[str, ...]]:
    """Return the group's client ids in Java's order from the first broker that knows any."""
    config = subscriber.config
    for broker_name in broker_names:
        address = subscriber.routes.address(broker_name)
        if address is None:
            continue
        if address not in lists:
            try:
                found = yield from consumer_list(
                    address, config.group, timeout_ms=config.times.invoke_timeout_ms
                )
                lists[address] = tuple(sorted(found, key=java_order))
            except SparrowError as error:
                lists[address] = None
                subscriber.tell(RequestFailed("list of members", None, error))
        cid_all = lists[address]
        if cid_all:
            return cid_all
    return ()

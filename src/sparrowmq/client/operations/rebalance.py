"""One rebalance: find the group's members and work out our share of every topic.

All members ask the same broker for the list of members, so that they see the same list more often:
the first broker of the topic's route by name that answers. RocketMQ's clients ask a random broker.
While that broker may not know all members yet, they ask the others as well, slaves included.
Both lists are in Java's order, and duplicate ids stay. The share of a duplicate id is worked out as
RocketMQ does, since the group may have Java members.
Source: RebalanceImpl.rebalanceByTopic.
Tests: client/test_push_consumer.py, client/test_strategy_choice.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sparrowmq.calling.effects import Now, Operation
from sparrowmq.client.arguments import check_queues
from sparrowmq.client.operations.heartbeats import consumer_list
from sparrowmq.client.operations.owners import (
    LOOKS_UNTIL_SILENT,
    find_owners,
    look_at_brokers,
)
from sparrowmq.client.operations.plans import find_plan
from sparrowmq.client.subscriber import AllocationFailed, RequestFailed, Subscriber
from sparrowmq.errors import ConfigError, SparrowError
from sparrowmq.membership.member import TopicShare
from sparrowmq.model import MessageQueue
from sparrowmq.model.queue import in_java_order
from sparrowmq.protocol.bodies import MASTER_ID, OwnersListBody
from sparrowmq.strategies.by_load import AllocateMessageQueueByLoad
from sparrowmq.strategies.group_strategy import (
    NO_OWNERS,
    GroupStrategy,
    Owners,
    TopicView,
    is_group_strategy,
)

# The most queues that the error about a strategy's mistakes names.
UNKNOWN_SHOWN_MAX = 8


def find_shares(subscriber: Subscriber) -> Operation[list[TopicShare]]:
    """Work out our share of every subscribed topic that has a route."""
    shares: list[TopicShare] = []
    views: list[TopicView] = []
    for topic in subscriber.member.topics:
        route = subscriber.routes.find(topic)
        if route is None:
            continue
        mq_all = route.subscribe_queues
        if subscriber.is_broadcasting or not mq_all:
            shares.append(TopicShare(topic, mq_all, mq_all=mq_all))
        else:
            views.append(TopicView(topic, mq_all, ()))
    strategy = subscriber.strategy
    if not views:
        return shares
    if is_group_strategy(strategy):
        return shares + (yield from allocate_group(subscriber, strategy, views))
    # By address, so that one rebalance asks each broker once, whatever the topics.
    lists: dict[str, tuple[str, ...]] = {}
    for view in views:
        names = _broker_names(subscriber, view.topic)
        cid_all = yield from _find_members(subscriber, names, lists)
        if cid_all:
            shares.append(allocate(subscriber, view.topic, view.mq_all, cid_all))
        else:
            shares.append(TopicShare(view.topic, None))
    return shares


def allocate_group(
    subscriber: Subscriber, strategy: GroupStrategy, topics: Sequence[TopicView]
) -> Operation[list[TopicShare]]:
    """Return our shares from a strategy that sees all topics and the owners of all queues.

    While a broker does not answer, no share changes. Once the broker has been silent for long, its
    queues stay with their owners, and the other queues are divided without them. The shares are not
    settled until every queue is owned by the member whose share names it.

    Args:
        topics: the topics with their queues; the members are found here.
    """
    config, history = subscriber.config, subscriber.member.history
    brokers = {name for view in topics for name in _broker_names(subscriber, view.topic)}
    found = yield from look_at_brokers(subscriber, sorted(brokers))
    looks = {name: look for name, look in found.items() if look is not None}
    silent = brokers - looks.keys()
    if not looks or any(history.silence_of(name) < LOOKS_UNTIL_SILENT for name in silent):
        return [TopicShare(view.topic, None) for view in topics]
    now_ms: int = yield Now()
    views = _views_without(subscriber, topics, looks, now_ms)
    queues_of = {view.topic: view.mq_all for view in topics}
    found_owners = yield from find_owners(subscriber, looks)
    owners: Owners = NO_OWNERS
    if found_owners is not None:
        # A queue that was ours at the last look, stays ours and has no owner now is on its way back
        # to us. The others saw it in our hand: nobody else would come for it soon.
        ours = history.held_by(config.client_id).intersection(subscriber.member.assigned)
        owners = dict.fromkeys(ours, config.client_id) | dict(found_owners)
    history.note_holders(owners)
    plan = None
    if views and isinstance(strategy, AllocateMessageQueueByLoad):
        plan = yield from find_plan(
            subscriber,
            views,
            brokers=sorted(looks),
            owners=owners,
            is_complete=not silent,
        )
    mine: Sequence[MessageQueue] | None = None
    if views:
        try:
            if isinstance(strategy, AllocateMessageQueueByLoad):
                share = strategy.follow_plan(config.client_id, views, owners, plan)
            else:
                share = strategy.allocate_group(config.group, config.client_id, views, owners)
            mine = check_queues(share or ())
        except BaseException as error:
            # A strategy may be the user's own and raise anything; we then keep our queues.
            names = ", ".join(view.topic for view in views)
            subscriber.report(AllocationFailed(names, strategy.name, error))
    is_settled = found_owners is None or _is_settled(
        views, found_owners, mine or (), config.client_id
    )
    shares = []
    for view in views:
        queues = None
        if mine is not None:
            kept = [q for q in subscriber.member.assigned if subscriber.routes.host(q) in silent]
            given = _existing(subscriber, mine, view.topic, view.mq_all)
            queues = (*given, *(q for q in kept if q.topic == view.topic))
        mq_all = queues_of[view.topic]
        shares.append(TopicShare(view.topic, queues, tuple(view.cid_all), mq_all, is_settled))
    return shares


def _views_without(
    subscriber: Subscriber,
    topics: Sequence[TopicView],
    looks: Mapping[str, OwnersListBody],
    now_ms: int,
) -> list[TopicView]:
    """Return the topics with their members, and with the queues of brokers that answered."""
    views = []
    for topic, mq_all, _ in topics:
        names = [name for name in _broker_names(subscriber, topic) if name in looks]
        there = [queue for queue in mq_all if subscriber.routes.host(queue) in looks]
        if names and there:
            cid_all: tuple[str, ...] = ()
            for name in names:
                cid_all = _with_others(cid_all, looks[name].consumer_id_list)
                if not subscriber.member.may_lack_members(cid_all, now_ms):
                    break
            views.append(TopicView(topic, there, tuple(in_java_order(cid_all))))
    return views


def _is_settled(
    views: Sequence[TopicView], owners: Owners, mine: Collection[MessageQueue], client_id: str
) -> bool:
    """Return whether a listed member owns every queue, and we own exactly our share."""
    held = set()
    for view in views:
        for queue in view.mq_all:
            owner = owners.get(queue)
            if owner not in view.cid_all:
                return False
            if owner == client_id:
                held.add(queue)
    return held == set(mine)


def _broker_names(subscriber: Subscriber, topic: str) -> list[str]:
    """Return a topic's brokers, those with a master first: a slave may not know every member."""
    route = subscriber.routes.find(topic)
    if route is None:
        return []
    return sorted(route.brokers, key=lambda name: (MASTER_ID not in route.brokers[name], name))


def allocate(
    subscriber: Subscriber, topic: str, mq_all: Sequence[MessageQueue], cid_all: tuple[str, ...]
) -> TopicShare:
    """Ask the strategy for our share of one topic; both lists are sorted already."""
    config, strategy = subscriber.config, subscriber.strategy
    try:
        share = strategy.allocate(config.group, config.client_id, list(mq_all), list(cid_all))
        mine = check_queues(share or ())
    except BaseException as error:
        # A strategy may be the user's own and raise anything; we then keep our queues.
        subscriber.report(AllocationFailed(topic, strategy.name, error))
        return TopicShare(topic, None, cid_all, mq_all)
    return TopicShare(topic, _existing(subscriber, mine, topic, mq_all), cid_all, mq_all)


def _existing(
    subscriber: Subscriber,
    share: Sequence[MessageQueue],
    topic: str,
    mq_all: Sequence[MessageQueue],
) -> tuple[MessageQueue, ...]:
    """Return the queues of a topic in a strategy's share; report queues that do not exist."""
    # The strategy CONFIG returns one list for all topics.
    mine = [queue for queue in share if queue.topic == topic]
    existing = frozenset(mq_all)
    unknown = [str(queue) for queue in mine if queue not in existing]
    if unknown:
        name = subscriber.strategy.name
        shown = ", ".join(unknown[:UNKNOWN_SHOWN_MAX])
        wrong = ConfigError(
            f"strategy {name} gave {len(unknown)} queues that do not exist, such as {shown}"
        )
        subscriber.report(AllocationFailed(topic, name, wrong))
    return tuple(queue for queue in mine if queue in existing)


def _find_members(
    subscriber: Subscriber, broker_names: Sequence[str], lists: dict[str, tuple[str, ...]]
) -> Operation[tuple[str, ...]]:
    """Return the group's client ids in Java's order from the first broker that knows all."""
    member = subscriber.member
    now_ms: int = yield Now()
    first = [subscriber.routes.address(name) for name in broker_names]
    cid_all: tuple[str, ...] = ()
    for address in dict.fromkeys([*first, *sorted(subscriber.answered)]):
        if address is None or (cid_all and address not in subscriber.answered):
            continue
        if address not in lists:
            lists[address] = yield from _members_at(subscriber, address)
        cid_all = _with_others(cid_all, lists[address])
        if cid_all and not member.may_lack_members(cid_all, now_ms):
            break
    return tuple(in_java_order(cid_all))


def _with_others(cid_all: tuple[str, ...], listed: Collection[str]) -> tuple[str, ...]:
    """Return a broker's list with the ids that only another one has; one may have an id twice."""
    known = frozenset(cid_all)
    return cid_all + tuple(cid for cid in listed if cid not in known)


def _members_at(subscriber: Subscriber, address: str) -> Operation[tuple[str, ...]]:
    config = subscriber.config
    try:
        found = yield from consumer_list(
            address, config.group, timeout_ms=config.times.invoke_timeout_ms
        )
    except SparrowError as error:
        subscriber.report(RequestFailed("list of members", None, error))
        return ()
    return tuple(found)

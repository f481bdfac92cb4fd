"""The routes that a client knows: the queues of each topic, and the addresses of its brokers.

Queues to consume from: of every broker with READ permission, ids 0 ... readQueueNums-1, with or
without a master. Queues to send to: of every broker with WRITE permission *and* a master, ids 0 ...
writeQueueNums-1, brokers by name; or exactly what `orderTopicConf` says.

The queues of a static topic of RocketMQ 5 have the name of a broker that does not exist, and their
numbers count over all brokers. They move between brokers: the newest mapping says which broker
serves a queue. `RouteCache.host` gives the broker that serves a queue of any topic.

A broker's addresses are those of the newest route that names it; a broker that no route names any
more is forgotten.

A route beyond the bounds below is refused first: otherwise two numbers of a few digits would make a
client build a list of billions of queues.

Source: MQClientInstance.topicRouteData2TopicPublishInfo, topicRouteData2TopicSubscribeInfo,
cleanOfflineBroker; ClientMetadata.topicRouteData2EndpointsForStaticTopic.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from sparrowmq.errors import RemoteProtocolError
from sparrowmq.model import MessageExt, MessageQueue
from sparrowmq.model.namespace import Namespace
from sparrowmq.model.queue import in_java_order, java_order
from sparrowmq.protocol.bodies import (
    MASTER_ID,
    METADATA_SCOPE_GLOBAL,
    PERM_READ,
    PERM_WRITE,
    BrokerData,
    TopicQueueMappingInfo,
    TopicRouteAnswer,
)

# The most queues of a topic on all its brokers together, for reading and for writing each.
QUEUES_MAX = 65_536
# The most addresses of brokers, masters and slaves, in one answer.
ADDRESSES_MAX = 1_024
# MixAll.LOGICAL_QUEUE_MOCK_BROKER_PREFIX: the names of the brokers of static topics begin so.
_STATIC_PREFIX = "__syslo__"
# Brokers' queues of topics that the clients of a process share, while their routes say the same.
_SHARED_QUEUES_MAX = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRoute:
    """The part of a topic's route that a client needs.

    Args:
        publish_queues: the writable queues, in the order of the round robin.
        subscribe_queues: the queues that a group's members divide, in Java's order of queues.
        brokers: by broker name, the addresses by broker id.
        hosts: the names of the brokers that serve the queues of a static topic; empty for others.
        is_template: whether the topic does not exist yet: the route comes from the template topic,
            and the first send creates the topic.
        fetched_ms: the time of the request.
    """

    topic: str
    publish_queues: tuple[MessageQueue, ...]
    subscribe_queues: tuple[MessageQueue, ...]
    brokers: Mapping[str, Mapping[int, str]]
    is_template: bool
    fetched_ms: int
    hosts: Mapping[MessageQueue, str] = field(default_factory=dict)

    def __hash__(self) -> int:
        # A mapping has no hash.
        return hash((self.topic, self.publish_queues, self.subscribe_queues))

    def without(self, namespace: Namespace) -> TopicRoute:
        """Return the same route with the topic's plain name."""
        unwrap = namespace.unwrap_queue
        return replace(
            self,
            topic=namespace.unwrap(self.topic),
            publish_queues=tuple(map(unwrap, self.publish_queues)),
            subscribe_queues=tuple(map(unwrap, self.subscribe_queues)),
            hosts={unwrap(queue): name for queue, name in self.hosts.items()},
        )

    def host(self, queue: MessageQueue) -> str:
        """Return the name of the broker that serves a queue."""
        return self.hosts.get(queue, queue.broker_name)

    def has_equal_content(self, other: TopicRoute) -> bool:
        """Return whether the two routes differ only in their time."""
        return (
            self.publish_queues == other.publish_queues
            and self.subscribe_queues == other.subscribe_queues
            and self.brokers == other.brokers
            and self.hosts == other.hosts
        )


class RouteCache:
    """The routes by topic, and the brokers they name.

    `find(topic)` returns a topic's route, and `master_address(broker_name)` the address of a
    broker's master; None if it is not known. Each send calls both.
    """

    __slots__ = ("_brokers", "_cleared_ms", "_masters", "_routes", "find", "master_address")

    def __init__(self) -> None:
        self._routes: dict[str, TopicRoute] = {}
        self._brokers: dict[str, Mapping[int, str]] = {}
        self._masters: dict[str, str] = {}
        self._cleared_ms = 0
        self.find: Callable[[str], TopicRoute | None] = self._routes.get
        self.master_address: Callable[[str], str | None] = self._masters.get

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics whose route is known."""
        return tuple(self._routes)

    def update(self, route: TopicRoute) -> bool:
        """Take a new route; return whether it changes anything."""
        known = self._routes.pop(route.topic, None)
        # The newest is last, so that its addresses win.
        self._routes[route.topic] = route
        if known is not None and known.has_equal_content(route):
            return False
        if known is not None and known.brokers.keys() - route.brokers.keys():
            self._collect_brokers()
        else:
            self._take_brokers(route)
        return True

    def keep(self, topic: str, now_ms: int) -> TopicRoute:
        """Return a known route as one of now: nobody gave a newer one, and its place stays."""
        route = self._routes[topic] = replace(self._routes[topic], fetched_ms=now_ms)
        return route

    def remove(self, *topics: str) -> None:
        """Forget the routes of topics."""
        if [topic for topic in topics if self._routes.pop(topic, None) is not None]:
            self._collect_brokers()

    def remove_old(self, now_ms: int, *, kept_ms: int) -> list[str]:
        """Forget routes that are older than `kept_ms`, once in that time; return their topics."""
        if now_ms - self._cleared_ms < kept_ms:
            return []
        self._cleared_ms = now_ms
        old = [t for t, each in self._routes.items() if now_ms - each.fetched_ms >= kept_ms]
        self.remove(*old)
        return old

    def address(self, broker_name: str) -> str | None:
        """Return the address of the broker's master, else of its lowest id; None if none is known.

        Differs from RocketMQ: pulls stay at the master, whatever id its answers suggest.
        """
        addresses = self._brokers.get(broker_name, {})
        if MASTER_ID in addresses:
            return addresses[MASTER_ID]
        return addresses[min(addresses)] if addresses else None

    def host(self, queue: MessageQueue) -> str:
        """Return the name of the broker that serves a queue, by its topic's route."""
        route = self._routes.get(queue.topic)
        return queue.broker_name if route is None else route.host(queue)

    def master_of(self, queue: MessageQueue) -> str | None:
        """Return the address of the master of a queue's broker; None if it is not known."""
        return self.master_address(self.host(queue))

    def stored_at(self, message: MessageExt) -> str | None:
        """Return the address of the broker that stores a message; None if it is not known."""
        if not is_static(message.queue):
            return self.address(message.broker_name)
        # Another broker may serve the queue now, and have another message at the same position.
        return message.store_host if message.store_host in self.addresses() else None

    def addresses(self, *, masters_only: bool = False) -> tuple[str, ...]:
        """Return the addresses of all brokers, by name and id, each once."""
        found = (
            address
            for name in sorted(self._brokers)
            for broker_id, address in sorted(self._brokers[name].items())
            if not masters_only or broker_id == MASTER_ID
        )
        return tuple(dict.fromkeys(found))

    def broker_names_at(self, address: str) -> frozenset[str]:
        """Return the names of the brokers that have this address."""
        return frozenset(
            name for name, addresses in self._brokers.items() if address in addresses.values()
        )

    def _collect_brokers(self) -> None:
        self._brokers = {}
        self._masters.clear()
        for route in self._routes.values():
            self._take_brokers(route)

    def _take_brokers(self, route: TopicRoute) -> None:
        for name, addresses in route.brokers.items():
            self._brokers[name] = addresses
            if MASTER_ID in addresses:
                self._masters[name] = addresses[MASTER_ID]
            else:
                self._masters.pop(name, None)


def is_static(queue: MessageQueue) -> bool:
    """Return whether a queue is one of a static topic."""
    return queue.broker_name.startswith(_STATIC_PREFIX)


def check_route(data: TopicRouteAnswer) -> None:
    """Raise a RemoteProtocolError if a route has more queues or brokers than a topic can have."""
    check_addresses(data.broker_datas)
    names = {queues.broker_name for queues in data.queue_datas}
    if len(names) < len(data.queue_datas):
        raise RemoteProtocolError("a route that lists the queues of a broker twice")
    counts = [(queues.read_queue_nums, queues.write_queue_nums) for queues in data.queue_datas]
    if any(min(pair) < 0 for pair in counts):
        raise RemoteProtocolError("a route with a negative number of queues")
    ordered = sum(count for _, count in _parse_order(data.order_topic_conf))
    totals = [mapping.total_queues for mapping in data.topic_queue_mapping_by_broker.values()]
    if any(total < 0 for total in totals):
        raise RemoteProtocolError("a static topic with a negative number of queues")
    count = max(
        sum(read for read, _ in counts), sum(write for _, write in counts), ordered, sum(totals)
    )
    if count > QUEUES_MAX:
        raise RemoteProtocolError(f"a route with {count} queues; a topic has at most {QUEUES_MAX}")


def check_addresses(brokers: Collection[BrokerData]) -> None:
    """Raise a RemoteProtocolError if brokers have more addresses than one answer may name."""
    count = sum(len(broker.broker_addrs) for broker in brokers)
    if count > ADDRESSES_MAX:
        raise RemoteProtocolError(
            f"{count} addresses of brokers; a client keeps at most {ADDRESSES_MAX}"
        )


def route_from(topic: str, data: TopicRouteAnswer, *, now_ms: int) -> TopicRoute:
    """Make a route from a name server's answer that passed `check_route`."""
    brokers = {broker.broker_name: dict(broker.broker_addrs) for broker in data.broker_datas}
    queue_datas = sorted(data.queue_datas, key=lambda queues: java_order(queues.broker_name))
    static, hosts = _static_queues(topic, list(data.topic_queue_mapping_by_broker.values()))
    publish = (
        [
            queue
            for broker_name, count in _parse_order(data.order_topic_conf)
            for queue in _make_queues(topic, broker_name, count)
        ]
        or static
        or [
            queue
            for queues in queue_datas
            if queues.perm & PERM_WRITE and MASTER_ID in brokers.get(queues.broker_name, {})
            for queue in _make_queues(topic, queues.broker_name, queues.write_queue_nums)
        ]
    )
    subscribe = static or [
        queue
        for queues in queue_datas
        if queues.perm & PERM_READ
        for queue in _make_queues(topic, queues.broker_name, queues.read_queue_nums)
    ]
    return TopicRoute(
        topic=topic,
        publish_queues=tuple(publish),
        subscribe_queues=tuple(subscribe),
        brokers=brokers,
        is_template=False,
        fetched_ms=now_ms,
        hosts=hosts,
    )


def _static_queues(
    topic: str, mappings: Sequence[TopicQueueMappingInfo]
) -> tuple[list[MessageQueue], dict[MessageQueue, str]]:
    """Return a static topic's queues, also those that no broker serves, and who serves them."""
    # The newest of two brokers that both name a queue is right: the other has not heard yet.
    mappings = sorted(mappings, key=lambda each: (each.epoch, java_order(each.bname)))
    # The newest mapping counts the queues, which grow in number.
    counts = {_static_broker(each.scope): each.total_queues for each in mappings}
    queues = [
        queue
        for broker_name in in_java_order(counts)
        for queue in _make_queues(topic, broker_name, counts[broker_name])
    ]
    hosts = {
        MessageQueue(topic, _static_broker(each.scope), queue_id): each.bname
        for each in mappings
        for queue_id in each.curr_id_map
    }
    return queues, hosts


def _static_broker(scope: str) -> str:
    # TopicQueueMappingUtils.getMockBrokerName.
    is_global = scope == METADATA_SCOPE_GLOBAL
    return _STATIC_PREFIX + (scope.removeprefix("__") if is_global else scope)


@lru_cache(maxsize=_SHARED_QUEUES_MAX)
def _make_queues(topic: str, broker_name: str, count: int) -> tuple[MessageQueue, ...]:
    return tuple(MessageQueue(topic, broker_name, queue_id) for queue_id in range(count))


def route_from_template(
    topic: str, template: TopicRoute, *, queue_count_max: int, now_ms: int
) -> TopicRoute:
    """Make the route of a topic that its first message will create.

    Each broker of the template topic gives as many queues as it has of the template, at most
    `queue_count_max`. There is no queue to consume yet.
    """
    queues = tuple(
        MessageQueue(topic, queue.broker_name, queue.queue_id)
        for queue in template.publish_queues
        if queue.queue_id < queue_count_max
    )
    return TopicRoute(
        topic=topic,
        publish_queues=queues,
        subscribe_queues=(),
        brokers=template.brokers,
        is_template=True,
        fetched_ms=now_ms,
    )


def _parse_order(order_topic_conf: str | None) -> list[tuple[str, int]]:
    """Return broker names and numbers of queues of `broker:count;broker:count`."""
    parts: list[tuple[str, int]] = []
    for part in (order_topic_conf or "").split(";"):
        broker_name, colon, count = part.rpartition(":")
        if colon and count.isascii() and count.isdigit():
            is_short = len(count) <= len(str(QUEUES_MAX))
            parts.append((broker_name, int(count) if is_short else QUEUES_MAX + 1))
    return parts

"""The routes a client knows: which queues a topic has, and where its brokers are.

Queues to consume from: of every broker with READ permission, ids 0 ... readQueueNums-1, whether a
master is there or not. Queues to send to: of every broker with WRITE permission *and* a master,
ids 0 ... writeQueueNums-1, brokers by name; or exactly what `orderTopicConf` says.

A broker's addresses are those of the newest route that names it; a broker that no route names any
more is forgotten.

Source: MQClientInstance.topicRouteData2TopicPublishInfo, topicRouteData2TopicSubscribeInfo,
cleanOfflineBroker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sparrowmq.model import MessageQueue
from sparrowmq.model.namespace import Namespace
from sparrowmq.model.queue import java_order
from sparrowmq.protocol.bodies import MASTER_ID, PERM_READ, PERM_WRITE, TopicRouteData


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRoute:
    """What a client needs of a topic's route.

    Args:
        topic: the topic.
        publish_queues: where to send, in the order round robin takes them.
        subscribe_queues: what members of a group divide, in the route's order.
        brokers: addresses by broker id, by broker name.
        is_template: whether the topic does not exist yet and this is made of the template's
            route, so that the first send creates it.
        fetched_ms: when it was asked for.
    """

    topic: str
    publish_queues: tuple[MessageQueue, ...]
    subscribe_queues: tuple[MessageQueue, ...]
    brokers: Mapping[str, Mapping[int, str]]
    is_template: bool
    fetched_ms: int

    def without(self, namespace: Namespace) -> TopicRoute:
        """Return the same route with the topic's plain name."""
        unwrap = namespace.unwrap_queue
        return replace(
            self,
            topic=namespace.unwrap(self.topic),
            publish_queues=tuple(map(unwrap, self.publish_queues)),
            subscribe_queues=tuple(map(unwrap, self.subscribe_queues)),
        )

    def has_equal_content(self, other: TopicRoute) -> bool:
        """Tell whether only the time differs."""
        return (
            self.publish_queues == other.publish_queues
            and set(self.subscribe_queues) == set(other.subscribe_queues)
            and self.brokers == other.brokers
        )


class RouteCache:
    """The routes by topic, and the brokers they name."""

    __slots__ = ("_brokers", "_routes")

    def __init__(self) -> None:
        self._routes: dict[str, TopicRoute] = {}
        self._brokers: dict[str, Mapping[int, str]] = {}

    def find(self, topic: str) -> TopicRoute | None:
        """Return the route, or None if it is not known."""
        return self._routes.get(topic)

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics whose route is known."""
        return tuple(self._routes)

    def update(self, route: TopicRoute) -> bool:
        """Take a new route; tell whether it says anything new."""
        known = self._routes.pop(route.topic, None)
        # The newest is last, so that its addresses win.
        self._routes[route.topic] = route
        if known is not None and known.has_equal_content(route):
            return False
        self._collect_brokers()
        return True

    def remove(self, topic: str) -> None:
        """Forget a topic's route."""
        if self._routes.pop(topic, None) is not None:
            self._collect_brokers()

    def master_address(self, broker_name: str) -> str | None:
        """Return the address of a broker's master, or None if it has none."""
        return self._brokers.get(broker_name, {}).get(MASTER_ID)

    def address(self, broker_name: str, *, broker_id: int = MASTER_ID) -> str | None:
        """Return the address of this broker id, else of the next, else any; None if unknown."""
        addresses = self._brokers.get(broker_name, {})
        for wanted in (broker_id, broker_id + 1):
            if wanted in addresses:
                return addresses[wanted]
        return next((addresses[known] for known in sorted(addresses)), None)

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
        for route in self._routes.values():
            self._brokers.update(route.brokers)


def route_from(topic: str, data: TopicRouteData, *, now_ms: int) -> TopicRoute:
    """Make a route of what the name server answered."""
    brokers = {broker.broker_name: dict(broker.broker_addrs) for broker in data.broker_datas}
    queue_datas = sorted(data.queue_datas, key=lambda queues: java_order(queues.broker_name))
    publish = _ordered_publish_queues(topic, data.order_topic_conf)
    if publish is None:
        publish = [
            MessageQueue(topic, queues.broker_name, queue_id)
            for queues in queue_datas
            if queues.perm & PERM_WRITE and MASTER_ID in brokers.get(queues.broker_name, {})
            for queue_id in range(queues.write_queue_nums)
        ]
    subscribe = [
        MessageQueue(topic, queues.broker_name, queue_id)
        for queues in queue_datas
        if queues.perm & PERM_READ
        for queue_id in range(queues.read_queue_nums)
    ]
    return TopicRoute(
        topic=topic,
        publish_queues=tuple(publish),
        subscribe_queues=tuple(subscribe),
        brokers=brokers,
        is_template=False,
        fetched_ms=now_ms,
    )


def route_from_template(
    topic: str, template: TopicRoute, *, queue_count_max: int, now_ms: int
) -> TopicRoute:
    """Make the route of a topic that its first message will create.

    Each broker of the template gives as many queues as it has of the template, at most
    `queue_count_max`. Nothing is there to consume yet.
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


def _ordered_publish_queues(topic: str, order_topic_conf: str | None) -> list[MessageQueue] | None:
    """Return the queues that `broker:count;broker:count` names, or None if it names none."""
    queues: list[MessageQueue] = []
    for part in (order_topic_conf or "").split(";"):
        broker_name, colon, count = part.rpartition(":")
        if colon and count.isascii() and count.isdigit():
            queues += [MessageQueue(topic, broker_name, n) for n in range(int(count))]
    return queues or None

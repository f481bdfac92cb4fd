"""Routes: ask the name server, keep what it says.

Source: MQClientInstance.updateTopicRouteInfoFromNameServer, MQClientAPIImpl.
"""

from __future__ import annotations

from sparrowmq.calling.effects import Event, Operation, now, spawn, wait
from sparrowmq.client.name_servers import NameServers
from sparrowmq.client.operations.request import INVOKE_TIMEOUT_MS, ask_name_servers
from sparrowmq.client.publisher import Publisher
from sparrowmq.client.route_cache import (
    RouteCache,
    TopicRoute,
    route_from,
    route_from_template,
)
from sparrowmq.errors import BrokerError, NoWritableQueue, SparrowError, TopicRouteNotFound
from sparrowmq.protocol.bodies import ClusterInfo, TopicRouteData, decode_body
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.headers import GetRouteInfoRequestHeader

# How long a route made of the template serves: the topic exists after the first send.
TEMPLATE_ROUTE_MS = 1_000


def find_route(
    name_servers: NameServers, topic: str, *, timeout_ms: int = INVOKE_TIMEOUT_MS
) -> Operation[TopicRouteData]:
    """Ask for a topic's route.

    Raises: TopicRouteNotFound; ConnectFailed if no name server answers; BrokerError.
    """
    header = GetRouteInfoRequestHeader(topic=topic)
    try:
        reply = yield from ask_name_servers(
            name_servers, RequestCode.GET_ROUTEINFO_BY_TOPIC, header, timeout_ms=timeout_ms
        )
    except BrokerError as error:
        if error.code != ResponseCode.TOPIC_NOT_EXIST:
            raise
        raise TopicRouteNotFound(
            f"name server {error.address} knows no broker with topic {topic!r}; create the topic, "
            f"or check its name and the name server's address"
        ) from error
    return decode_body(TopicRouteData, reply.body or b"{}")


def refresh_route(
    routes: RouteCache,
    name_servers: NameServers,
    topic: str,
    *,
    timeout_ms: int = INVOKE_TIMEOUT_MS,
) -> Operation[bool]:
    """Ask for a topic's route and keep it.

    Returns: whether it says anything new.
    Raises: as `find_route`; what was known stays.
    """
    data = yield from find_route(name_servers, topic, timeout_ms=timeout_ms)
    instant = yield from now()
    return routes.update(route_from(topic, data, now_ms=instant))


def get_publish_route(publisher: Publisher, topic: str, *, now_ms: int) -> Operation[TopicRoute]:
    """Return a route with at least one queue to send to; the name server is asked if need be.

    A route that is older than the refresh interval serves on while a new one is asked for.

    Raises: TopicRouteNotFound, NoWritableQueue, ConnectFailed, BrokerError.
    """
    times = publisher.config.times
    route = publisher.routes.find(topic)
    if route is None or (route.is_template and now_ms - route.fetched_ms > TEMPLATE_ROUTE_MS):
        yield from look_up_publish_route(publisher, topic)
        route = publisher.routes.find(topic)
    elif now_ms - route.fetched_ms > times.route_refresh_ms and topic not in publisher.lookups:
        yield from spawn(_look_up_quietly(publisher, topic), name=f"route of {topic}")
    if route is None:
        raise TopicRouteNotFound(f"the route of topic {topic!r} is not known; try again")
    if not route.publish_queues:
        raise NoWritableQueue(
            f"topic {topic!r} has no queue that takes messages: its brokers "
            f"({', '.join(sorted(route.brokers)) or 'none'}) have no master or no write permission"
        )
    return route


def look_up_publish_route(publisher: Publisher, topic: str) -> Operation[None]:
    """Ask for a topic's route, or make one of the template's; one look-up at a time.

    Raises: as `get_publish_route`.
    """
    timeout_ms = publisher.config.times.invoke_timeout_ms
    under_way = publisher.lookups.get(topic)
    if under_way is not None:
        yield from wait(under_way, timeout_ms=timeout_ms)
        return
    done = publisher.lookups[topic] = Event()
    try:
        yield from _look_up(publisher, topic, timeout_ms=timeout_ms)
    finally:
        del publisher.lookups[topic]
        done.set()


def _look_up(publisher: Publisher, topic: str, *, timeout_ms: int) -> Operation[None]:
    config, name_servers = publisher.config, publisher.name_servers
    try:
        yield from refresh_route(publisher.routes, name_servers, topic, timeout_ms=timeout_ms)
    except TopicRouteNotFound as missing:
        try:
            data = yield from find_route(name_servers, config.template_topic, timeout_ms=timeout_ms)
        except TopicRouteNotFound:
            publisher.routes.remove(topic)
            raise missing from None
        instant = yield from now()
        template = route_from(config.template_topic, data, now_ms=instant)
        route = route_from_template(
            topic, template, queue_count_max=config.template_queues_max, now_ms=instant
        )
        publisher.routes.update(route)


def _look_up_quietly(publisher: Publisher, topic: str) -> Operation[None]:
    try:
        yield from look_up_publish_route(publisher, topic)
    except SparrowError:
        # The old route serves on; who finds it useless asks again and gets the error.
        return


def find_cluster(
    name_servers: NameServers, *, timeout_ms: int = INVOKE_TIMEOUT_MS
) -> Operation[ClusterInfo]:
    """Ask for all brokers of all clusters.

    Raises: ConnectFailed if no name server answers; BrokerError.
    """
    reply = yield from ask_name_servers(
        name_servers, RequestCode.GET_BROKER_CLUSTER_INFO, timeout_ms=timeout_ms
    )
    return decode_body(ClusterInfo, reply.body or b"{}")

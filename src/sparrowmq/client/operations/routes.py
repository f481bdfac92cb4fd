"""Routes: ask the name server and keep the answer.

A producer's look-up is a separate task. All senders of the topic wait for the task, each as long as
its own timeout allows. A name server that does not answer therefore delays no send beyond its
timeout, and a late answer serves the next send.

Source: MQClientInstance.updateTopicRouteInfoFromNameServer, MQClientAPIImpl.
Tests: client/test_route_cache.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from sparrowmq.calling.effects import Now, Operation, Task, join, now, spawn
from sparrowmq.client.name_servers import NameServers
from sparrowmq.client.operations.gather import gather_outcomes
from sparrowmq.client.operations.request import INVOKE_TIMEOUT_MS, ask_name_servers, decode_answer
from sparrowmq.client.route_cache import (
    RouteCache,
    TopicRoute,
    check_addresses,
    check_route,
    route_from,
    route_from_template,
)
from sparrowmq.errors import (
    BrokerError,
    ConnectFailed,
    InvokeTimeout,
    NoWritableQueue,
    RemoteProtocolError,
    RouteError,
    SparrowError,
    TopicRouteNotFound,
    UsageError,
    did_you_mean,
)
from sparrowmq.model.names import REPLY_TOPIC_POSTFIX
from sparrowmq.protocol.bodies import MASTER_ID, ClusterInfo, TopicRouteAnswer
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.headers import GetRouteInfoRequestHeader

if TYPE_CHECKING:
    # Spark's planning processes ask for routes and need not import the producer's modules.
    from sparrowmq.client.directory import Directory
    from sparrowmq.client.publisher import Publisher
    from sparrowmq.model import MessageQueue

# A route with the largest number of brokers takes a quarter of this.
ROUTE_BYTES_MAX = 1024 * 1024
# How long a route serves that was made from the template (the topic exists after the first send),
# or that has no writable queue (its broker may get a master).
PASSING_ROUTE_MS = 1_000
# ClientConfig.pollNameServerInterval.
ROUTE_MS = 30_000
# How long a producer keeps the route of a topic to which it no longer sends.
UNUSED_ROUTE_MS = 3_600_000


class BrokerAt(NamedTuple):
    """A broker and the address to ask: its master, or the first slave while it has no master."""

    name: str
    cluster: str
    address: str
    slaves: tuple[str, ...] = ()

    @classmethod
    def of(cls, name: str, cluster: str, addresses: Mapping[int, str]) -> BrokerAt:
        """Return the broker with these addresses by id, which must not be none."""
        slaves = tuple(at for broker_id, at in sorted(addresses.items()) if broker_id != MASTER_ID)
        return cls(name, cluster, addresses[min(addresses)], slaves)

    @property
    def has_master(self) -> bool:
        """Whether `address` is the master's."""
        return self.address not in self.slaves

    @property
    def own_topics(self) -> tuple[str, ...]:
        """The topics that a broker makes for itself by its name and its cluster's."""
        return self.name, self.cluster, f"{self.cluster}{REPLY_TOPIC_POSTFIX}"


def find_route(
    name_servers: NameServers, topic: str, *, timeout_ms: int = INVOKE_TIMEOUT_MS
) -> Operation[TopicRouteAnswer]:
    """Ask for a topic's route.

    Raises: TopicRouteNotFound; ConnectFailed if no name server answers; BrokerError.
    """
    header = GetRouteInfoRequestHeader(topic=topic)
    code = RequestCode.GET_ROUTEINFO_BY_TOPIC
    try:
        return (
            yield from ask_name_servers(
                name_servers,
                code,
                header,
                read=partial(read_route, topic),
                timeout_ms=timeout_ms,
            )
        )
    except BrokerError as error:
        if error.code != ResponseCode.TOPIC_NOT_EXIST:
            raise
        raise TopicRouteNotFound(
            f"name server {error.address} knows no broker with topic {topic!r}; create the topic, "
            f"or check its name and the name server's address"
        ) from None


def read_route(topic: str, reply: RemotingCommand, address: str) -> TopicRouteAnswer:
    """Read a topic's route from a name server's answer. Raises: RemoteProtocolError."""
    data = decode_answer(TopicRouteAnswer, reply, address, absent=b"{}", bytes_max=ROUTE_BYTES_MAX)
    try:
        check_route(data)
    except RemoteProtocolError as error:
        raise RemoteProtocolError(
            f"name server {address} answers for topic {topic!r} with {error}"
        ) from error
    return data


def refresh_route(
    routes: RouteCache,
    name_servers: NameServers,
    topic: str,
    *,
    timeout_ms: int = INVOKE_TIMEOUT_MS,
) -> Operation[bool]:
    """Ask for a topic's route and keep the answer.

    Returns: whether the route has changed.
    Raises: as `find_route`. The known route then stays.
    """
    data = yield from find_route(name_servers, topic, timeout_ms=timeout_ms)
    instant = yield from now()
    return routes.update(route_from(topic, data, now_ms=instant))


def get_route(directory: Directory, topic: str, *, is_fresh: bool = False) -> Operation[TopicRoute]:
    """Return a topic's route, from the name server unless a route of late is known.

    An older route serves on while no name server gives another.

    Args:
        is_fresh: whether to ask the name server in any case.

    Raises: TopicRouteNotFound; ConnectFailed if no name server answers; BrokerError.
    """
    topic, routes = directory.namespace.wrap(topic), directory.routes
    route = routes.find(topic)
    now_ms = yield from now()
    if route is not None and not is_fresh and now_ms - route.fetched_ms <= ROUTE_MS:
        return route
    try:
        yield from refresh_route(
            routes, directory.name_servers, topic, timeout_ms=directory.timeout_ms
        )
    except SparrowError:
        if is_fresh or routes.find(topic) is None:
            raise
        return routes.keep(topic, now_ms)
    route = routes.find(topic)
    assert route is not None
    return route


def get_broker_address(directory: Directory, queue: MessageQueue) -> Operation[str]:
    """Return the address of a queue's broker: its master, or any replica while it has no master.

    Raises: TopicRouteNotFound, also for an unknown broker; ConnectFailed; BrokerError.
    """
    routes, wrapped = directory.routes, directory.namespace.wrap_queue(queue)
    yield from get_route(directory, queue.topic)
    address = routes.address(routes.host(wrapped))
    if address is None:
        yield from get_route(directory, queue.topic, is_fresh=True)
        address = routes.address(routes.host(wrapped))
    if address is None:
        raise TopicRouteNotFound(
            f"no broker {routes.host(wrapped)!r} is in the route of topic {queue.topic!r}"
        )
    return address


def get_master_address(directory: Directory, queue: MessageQueue) -> Operation[str]:
    """Return the address of the master of a queue's broker, which alone keeps a change.

    Raises: as `get_broker_address`; RouteError if the broker has no master.
    """
    routes, wrapped = directory.routes, directory.namespace.wrap_queue(queue)
    address = yield from get_broker_address(directory, queue)
    if routes.master_of(wrapped) != address:
        yield from get_route(directory, queue.topic, is_fresh=True)
    master = routes.master_of(wrapped)
    if master is None:
        raise _without_master([routes.host(wrapped)])
    return master


def check_queues(
    topic: str, given: Iterable[tuple[str, int]], known: Iterable[MessageQueue]
) -> None:
    """Raise a UsageError for a queue, by broker and id, that is none of those it may be."""
    ids: dict[str, set[int]] = {}
    for each in known:
        ids.setdefault(each.broker_name, set()).add(each.queue_id)
    for name, queue_id in sorted(given):
        if queue_id not in ids.get(name, ()):
            there = [f"{at}:{min(of)} to {at}:{max(of)}" for at, of in sorted(ids.items())]
            raise UsageError(
                f"topic {topic!r} has no queue {name}:{queue_id} for this; it has "
                f"{', '.join(there) or 'none'}"
            )


def get_publish_route(
    publisher: Publisher, topic: str, *, now_ms: int, timeout_ms: int
) -> Operation[TopicRoute]:
    """Return a route with a writable queue; ask the name server if no usable route is known.

    A route that is older than the refresh interval stays in use while a new one is asked for. One
    that takes no messages, or comes from the template, is asked for anew sooner; the template's
    stays in use while no name server answers.

    Raises: TopicRouteNotFound, NoWritableQueue, ConnectFailed, BrokerError, RemoteProtocolError.
    """
    route = publisher.routes.find(topic)
    is_passing = route is not None and (route.is_template or not route.publish_queues)
    if route is None or (is_passing and now_ms - route.fetched_ms > PASSING_ROUTE_MS):
        try:
            yield from look_up_publish_route(publisher, topic, timeout_ms=timeout_ms)
        except ConnectFailed:
            if route is None or not route.publish_queues:
                raise
        route = publisher.routes.find(topic)
    elif now_ms - route.fetched_ms > publisher.config.times.route_refresh_ms:
        yield from _begin_look_up(publisher, topic)
    if route is None:
        raise TopicRouteNotFound(f"the route of topic {topic!r} is not known; try again")
    if not route.publish_queues:
        raise NoWritableQueue(
            f"topic {topic!r} has no queue that takes messages: its brokers "
            f"({', '.join(sorted(route.brokers)) or 'none'}) have no master or no write permission"
        )
    return route


def look_up_publish_route(publisher: Publisher, topic: str, *, timeout_ms: int) -> Operation[None]:
    """Ask for a topic's route, or make one from the template's; one look-up at a time.

    Args:
        timeout_ms: how long to wait; the look-up goes on after it.

    Raises: as `get_publish_route`.
    """
    now_ms: int = yield Now()
    deadline_ms = now_ms + timeout_ms
    failure: SparrowError | None = None
    # A look-up that another sender began may time out long before our own deadline.
    for _ in range(2):
        is_own = topic not in publisher.lookups
        task = yield from _begin_look_up(publisher, topic)
        try:
            failure = yield from join(task, timeout_ms=max(0, deadline_ms - now_ms))
        except InvokeTimeout as error:
            tried = ", ".join(publisher.name_servers.in_order())
            raise ConnectFailed(
                f"no name server gave the route of topic {topic!r} within {timeout_ms} ms; check "
                f"the address ({tried}), and that one runs there",
                address=tried,
            ) from error
        if is_own or not isinstance(failure, ConnectFailed):
            break
        now_ms = yield Now()
    if failure is not None:
        raise failure


def _begin_look_up(publisher: Publisher, topic: str) -> Operation[Task]:
    """Return the look-up of a topic's route that is under way; begin one if there is none."""
    task = publisher.lookups.get(topic)
    if task is None:
        task = yield from spawn(_look_up(publisher, topic), name=f"route of {topic}")
        if not task.done:
            publisher.lookups[topic] = task
    return task


def _look_up(publisher: Publisher, topic: str) -> Operation[SparrowError | None]:
    """Look a route up; return the error, None for success, to all senders that wait.

    A known route of a topic stays, also if the name server does not know the topic: the name server
    may have restarted, and its brokers register again. The template's route in its place would
    move sharding keys to other queues.
    """
    timeout_ms = publisher.config.times.invoke_timeout_ms
    refresh = partial(
        refresh_route, publisher.routes, publisher.name_servers, topic, timeout_ms=timeout_ms
    )
    try:
        try:
            yield from refresh()
        except TopicRouteNotFound:
            known = publisher.routes.find(topic)
            if known is not None and not known.is_template:
                if known.publish_queues:
                    # It is in use, and not to be taken for one that nobody uses any more.
                    publisher.routes.keep(topic, (yield from now()))
                raise
            template = yield from _find_template(publisher, topic, timeout_ms=timeout_ms)
            if template is None:
                raise
            try:
                # A broker registers all its topics at once, perhaps between the two answers.
                yield from refresh()
            except TopicRouteNotFound:
                publisher.routes.update(template)
        now_ms = yield from now()
        publisher.selector.forget(publisher.routes.remove_old(now_ms, kept_ms=UNUSED_ROUTE_MS))
    except SparrowError as error:
        return error
    finally:
        publisher.lookups.pop(topic, None)
    return None


def _find_template(
    publisher: Publisher, topic: str, *, timeout_ms: int
) -> Operation[TopicRoute | None]:
    """Make a new topic's route from the template's; None if no broker makes topics."""
    config = publisher.config
    try:
        data = yield from find_route(
            publisher.name_servers, config.template_topic, timeout_ms=timeout_ms
        )
    except TopicRouteNotFound:
        return None
    instant = yield from now()
    template = route_from(config.template_topic, data, now_ms=instant)
    return route_from_template(
        topic, template, queue_count_max=config.template_queues_max, now_ms=instant
    )


def find_cluster(
    name_servers: NameServers, *, timeout_ms: int = INVOKE_TIMEOUT_MS
) -> Operation[ClusterInfo]:
    """Ask for all brokers of all clusters.

    Raises: ConnectFailed if no name server answers; BrokerError.
    """
    code = RequestCode.GET_BROKER_CLUSTER_INFO
    return (
        yield from ask_name_servers(name_servers, code, read=_read_cluster, timeout_ms=timeout_ms)
    )


def check_cluster(info: ClusterInfo, cluster: str | None) -> None:
    """Raise a UsageError for an unknown cluster; None stands for all clusters."""
    known = sorted(info.cluster_addr_table)
    if cluster is not None and known and cluster not in known:
        hint = did_you_mean(cluster, known, f"there are {', '.join(known)}")
        raise UsageError(f"there is no cluster {cluster!r}{hint}")


def find_brokers(
    name_servers: NameServers, *, cluster: str | None = None, timeout_ms: int = INVOKE_TIMEOUT_MS
) -> Operation[list[BrokerAt]]:
    """Return the brokers that the name servers list, in the order of their names.

    Args:
        cluster: the cluster whose brokers to return; None returns those of all clusters.

    Raises: ConnectFailed if no name server answers; RouteError if none lists a broker; UsageError
        for an unknown cluster.
    """
    info = yield from find_cluster(name_servers, timeout_ms=timeout_ms)
    cluster_of = {
        name: cluster for cluster, names in info.cluster_addr_table.items() for name in names
    }
    check_cluster(info, cluster)
    found = [
        BrokerAt.of(name, cluster_of.get(name, ""), broker.broker_addrs)
        for name, broker in sorted(info.broker_addr_table.items())
        if broker.broker_addrs and cluster in (None, cluster_of.get(name))
    ]
    if not found:
        of_cluster = "" if cluster is None else f" of cluster {cluster!r}"
        raise RouteError(
            f"name server {name_servers.in_order()[0]} knows no broker{of_cluster}; "
            f"start one, or check the address"
        )
    return found


def find_masters(directory: Directory, *, cluster: str | None = None) -> Operation[list[BrokerAt]]:
    """Return the brokers as `find_brokers`, for a change at each of them.

    Raises: as `find_brokers`; RouteError if one of them has no master.
    """
    servers, timeout_ms = directory.name_servers, directory.timeout_ms
    found = yield from find_brokers(servers, cluster=cluster, timeout_ms=timeout_ms)
    check_masters(found)
    return found


def check_masters(brokers: Iterable[BrokerAt]) -> None:
    """Raise a RouteError for brokers without a master: their masters come back as they were."""
    without = [broker.name for broker in brokers if not broker.has_master]
    if without:
        raise _without_master(without)


def _without_master(names: Sequence[str]) -> RouteError:
    return RouteError(
        f"nothing was changed: no master of {', '.join(names)} is registered, and only a master "
        "keeps a change; start it, and try again"
    )


def find_all_brokers(
    name_servers: NameServers, *, timeout_ms: int = INVOKE_TIMEOUT_MS
) -> Operation[list[BrokerAt]]:
    """Return the brokers that any of the name servers lists, in the order of their names.

    Name servers may disagree. Of two brokers with one name the first server's counts.

    Raises: as `find_brokers`, if that fails at every name server.
    """
    asked = [
        find_brokers(NameServers([address]), timeout_ms=timeout_ms)
        for address in name_servers.addresses
    ]
    outcomes = yield from gather_outcomes(asked, name="brokers")
    known: dict[str, BrokerAt] = {}
    for outcome in outcomes:
        for broker in () if isinstance(outcome, SparrowError) else outcome:
            known.setdefault(broker.name, broker)
    if not known and isinstance(outcomes[0], SparrowError):
        raise outcomes[0]
    return [known[name] for name in sorted(known)]


def _read_cluster(reply: RemotingCommand, address: str) -> ClusterInfo:
    info = decode_answer(ClusterInfo, reply, address, absent=b"{}", bytes_max=ROUTE_BYTES_MAX)
    check_addresses(info.broker_addr_table.values())
    return info

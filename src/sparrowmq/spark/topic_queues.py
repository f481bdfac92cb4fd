"""The cluster as readers see it: its queues, their bounds, and the addresses of their brokers.

Each Python process has one `Cluster`: the driver-side process of a query, and each executor worker.
A worker's connections therefore outlive the task that made them (`connect`). All requests are
operations of `sparrowmq.client`, run by the calling thread.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from sparrowmq.calling.blocking_driver import BlockingDriver
from sparrowmq.calling.effects import Operation, now, sleep
from sparrowmq.calling.tls import client_context
from sparrowmq.client.name_servers import NameServers
from sparrowmq.client.operations.gather import gather
from sparrowmq.client.operations.offsets import (
    commit_all,
    max_offset,
    min_offset,
    topic_bounds,
    update_offset,
)
from sparrowmq.client.operations.request import ask_name_servers, decode_answer
from sparrowmq.client.operations.routes import refresh_route
from sparrowmq.client.route_cache import RouteCache
from sparrowmq.errors import BrokerError, SparrowError, TopicRouteNotFound, did_you_mean
from sparrowmq.model import MessageExt, MessageQueue
from sparrowmq.model.names import is_system_topic
from sparrowmq.model.namespace import NO_NAMESPACE, Namespace
from sparrowmq.protocol.bodies import TopicList
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.signatures import Credentials
from sparrowmq.spark.bounds import QueueBounds
from sparrowmq.spark.connection_options import ClusterOptions, TlsFiles
from sparrowmq.spark.naming import named

T = TypeVar("T")
_LOG = logging.getLogger("sparrowmq.spark")

# How old a route may be when a micro-batch is planned. New queues are read at most this much later.
ROUTE_AGE_MS_MAX = 1_000
# How old bounds may be: with a trigger interval of 0 Spark asks every 10 ms, even when idle.
BOUNDS_AGE_MS_MAX = 50
# The most clusters to which one process keeps connections; a query reads one cluster.
CLUSTERS_MAX = 8
# The first pause between attempts, and the longest; pauses double.
RETRY_PAUSE_MS_MIN, RETRY_PAUSE_MS_MAX = 200, 3_000

# The codes by which a broker answers while it starts, stops or is overloaded.
_PASSING_CODES = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
    }
)


# A broker that returns no table of a topic may still answer for single queues.
_NO_TABLE_CODES = frozenset(
    {
        ResponseCode.NO_PERMISSION,
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        ResponseCode.TOPIC_NOT_EXIST,
    }
)


def pause_ms(failures: int, left_ms: int) -> int:
    """Return the pause after a number of failures, counted from 1, within the time that is left."""
    return max(0, min(RETRY_PAUSE_MS_MIN << min(failures - 1, 16), RETRY_PAUSE_MS_MAX, left_ms))


def is_passing(error: SparrowError) -> bool:
    """Return whether the same request may succeed later."""
    if isinstance(error, BrokerError):
        return error.code in _PASSING_CODES and not error.is_denial
    return error.retriable or error.refresh_route


def persist(wait_ms: int, attempt: Callable[[], Operation[T]]) -> Operation[T]:
    """Run an operation until it succeeds, fails for good, or the time is over.

    The first failure is logged, and so is the success after it.

    Raises: the last attempt's error.
    """
    begin_ms = yield from now()
    failures = 0
    while True:
        try:
            answer = yield from attempt()
        except SparrowError as error:
            left_ms = begin_ms + wait_ms - (yield from now())
            if not is_passing(error) or left_ms <= 0:
                raise
            if not failures:
                _LOG.warning("sparrowmq: waits up to %.0f s: %s", left_ms / 1000, error)
        else:
            if failures:
                waited_ms = (yield from now()) - begin_ms
                _LOG.warning("sparrowmq: goes on after %.0f s", waited_ms / 1000)
            return answer
        failures += 1
        yield from sleep(pause_ms(failures, left_ms))


def hint_topic(topics: Collection[str], list_topics: Operation[list[str]]) -> Operation[str]:
    """Return the end of an error about topics of which one is not there: the nearest name."""
    try:
        names = yield from list_topics
    except SparrowError:
        return ""
    missing = sorted(set(topics) - set(names))
    return did_you_mean(missing[0], names) if missing else ""


class Cluster:
    """Connections to a cluster, and the known routes.

    Args:
        request_timeout_ms: the time-out of one request.
        credentials: the credentials that sign requests; None for no signatures.
        tls: the files of TLS connections; None for no TLS.
        namespace: the namespace of the topics and groups; names here do not contain it.

    Raises: ConfigError if a TLS file cannot be used.
    """

    def __init__(
        self,
        name_servers: tuple[str, ...],
        *,
        request_timeout_ms: int,
        credentials: Credentials | None = None,
        tls: TlsFiles | None = None,
        namespace: Namespace = NO_NAMESPACE,
    ) -> None:
        context = None if tls is None else client_context(**tls._asdict())
        self.driver = BlockingDriver(tls=context, credentials=credentials)
        self.request_timeout_ms = request_timeout_ms
        self.name_servers = NameServers(name_servers)
        self.namespace = namespace
        self._routes = RouteCache()

    def run(self, operation: Operation[T]) -> T:
        """Run an operation on the calling thread, with the namespace in its requests."""
        if self.namespace != NO_NAMESPACE:
            operation = named(operation, self.namespace)
        return self.driver.run(operation)

    def list_topics(self) -> Operation[list[str]]:
        """Ask for all topics of the namespace except RocketMQ's own, in order.

        Raises: ConnectFailed, BrokerError.
        """
        names = yield from ask_name_servers(
            self.name_servers,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
            read=_read_topics,
            timeout_ms=self.request_timeout_ms,
        )
        unwrap, is_all = self.namespace.unwrap, self.namespace == NO_NAMESPACE
        return sorted(
            unwrap(name)
            for name in names
            if not is_system_topic(name) and (is_all or unwrap(name) != name)
        )

    def host(self, queue: MessageQueue) -> str:
        """Return the name of the broker that serves a queue, by the known routes."""
        return self._routes.host(queue)

    def address(self, queue: MessageQueue) -> str:
        """Return the address of a queue's broker from the known routes.

        Raises: TopicRouteNotFound if no route names the broker.
        """
        broker_name = self.host(queue)
        return _known(self._routes.address(broker_name), f"broker {broker_name!r}")

    def stored_at(self, message: MessageExt) -> str:
        """Return the address of the broker that stores a message. Raises: as `address`."""
        return _known(self._routes.stored_at(message), f"the broker of message {message.msg_id}")

    def refresh(
        self, topics: Collection[str], *, age_ms_max: int = 0, given_up: Collection[str] = ()
    ) -> Operation[None]:
        """Ask for the routes of topics whose known route is `age_ms_max` old or older.

        Args:
            given_up: the topics that have no route from now on if none is found.

        Raises: TopicRouteNotFound, ConnectFailed, BrokerError.
        """
        now_ms = yield from now()
        known = {topic: self._routes.find(topic) for topic in sorted(topics)}
        asked = [
            self._refresh(topic, is_given_up=topic in given_up)
            for topic, route in known.items()
            if route is None or now_ms - route.fetched_ms >= age_ms_max
        ]
        # The first look-up finds a name server that answers; the other look-ups use it.
        yield from gather(asked[:1], name="route")
        yield from gather(asked[1:], name="routes")

    def _refresh(self, topic: str, *, is_given_up: bool) -> Operation[None]:
        routes, timeout_ms = self._routes, self.request_timeout_ms
        try:
            yield from refresh_route(routes, self.name_servers, topic, timeout_ms=timeout_ms)
        except TopicRouteNotFound:
            if not is_given_up:
                raise
            routes.remove(topic)

    def find_queues(self, topics: Collection[str]) -> frozenset[MessageQueue]:
        """Return the readable queues of topics, from the known routes."""
        routes = (self._routes.find(topic) for topic in topics)
        return frozenset(queue for route in routes if route for queue in route.subscribe_queues)

    def fetch_bounds(
        self, queues: Collection[MessageQueue]
    ) -> Operation[dict[MessageQueue, QueueBounds]]:
        """Ask the brokers for the bounds of queues, with one request for each topic of a broker.

        Queues that the answer leaves out are asked for one by one, and so are all queues of a topic
        whose table a broker does not return.
        """
        by_topic: dict[tuple[str, str], list[MessageQueue]] = {}
        for queue in sorted(queues):
            by_topic.setdefault((queue.topic, self.host(queue)), []).append(queue)
        tables = yield from gather(
            [self._fetch_table(mine[0]) for mine in by_topic.values()], name="tables of bounds"
        )
        found: dict[MessageQueue, QueueBounds] = {}
        left: list[MessageQueue] = []
        for mine, table in zip(by_topic.values(), tables, strict=True):
            found.update((q, table[q.queue_id]) for q in mine if q.queue_id in table)
            left += [queue for queue in mine if queue.queue_id not in table]
        one_by_one = yield from gather([self._fetch_bounds(q) for q in left], name="bounds")
        found.update(zip(left, one_by_one, strict=True))
        return dict(sorted(found.items()))

    def _fetch_table(self, queue: MessageQueue) -> Operation[dict[int, QueueBounds]]:
        """Ask for the bounds of a queue's topic at its broker, by queue id.

        The table of a static topic has none of its queues: its brokers give their own numbers.
        """
        address, timeout_ms = self.address(queue), self.request_timeout_ms
        try:
            table = yield from topic_bounds(
                address, queue.topic, broker_name=queue.broker_name, timeout_ms=timeout_ms
            )
        except BrokerError as error:
            if error.code not in _NO_TABLE_CODES:
                raise
            return {}
        return {
            queue_id: _bounds(at.min_offset, at.max_offset, at.last_update_timestamp_ms)
            for queue_id, at in table.items()
        }

    def _fetch_bounds(self, queue: MessageQueue) -> Operation[QueueBounds]:
        address = self.address(queue)
        low = yield from min_offset(address, queue, timeout_ms=self.request_timeout_ms)
        high = yield from max_offset(address, queue, timeout_ms=self.request_timeout_ms)
        return _bounds(low, high)

    def commit(self, group: str, offsets: Mapping[MessageQueue, int]) -> Operation[None]:
        """Commit offsets of a group to the brokers."""
        commits = {
            queue: update_offset(
                self.address(queue),
                group,
                queue=queue,
                offset=offsets[queue],
                timeout_ms=self.request_timeout_ms,
            )
            for queue in sorted(offsets)
        }
        yield from commit_all(commits, self.host)


def _known(address: str | None, what: str) -> str:
    if address is None:
        raise TopicRouteNotFound(f"no route names {what}; it may be down")
    return address


def _bounds(low: int, high: int, last_timestamp_ms: int = 0) -> QueueBounds:
    # A queue whose messages were all deleted begins at its end. A broker says 0 or -1 for no time.
    timestamp_ms = last_timestamp_ms if last_timestamp_ms > 0 and high > 0 else None
    return QueueBounds(min(low, high), high, timestamp_ms)


def connect(options: ClusterOptions) -> Cluster:
    """Return this process's cluster for these options; the first call makes it.

    Spark keeps its Python workers, so connections serve many tasks and micro-batches.

    Raises: ConfigError if a TLS file cannot be used.
    """
    # The process id in the key keeps a forked process from using its parent's connections.
    key = (
        os.getpid(),
        options.name_servers,
        options.request_timeout_ms,
        options.credentials,
        options.tls,
        options.namespace,
    )
    cluster = _CLUSTERS.get(key)
    if cluster is None:
        if len(_CLUSTERS) >= CLUSTERS_MAX:
            disconnect()
        cluster = Cluster(
            options.name_servers,
            request_timeout_ms=options.request_timeout_ms,
            credentials=options.credentials,
            tls=options.tls,
            namespace=options.namespace,
        )
        _CLUSTERS[key] = cluster
    return cluster


def _read_topics(reply: RemotingCommand, address: str) -> list[str]:
    return decode_answer(TopicList, reply, address, absent=b"{}").topic_list


def disconnect() -> None:
    """Close this process's connections; the next `connect` opens new ones."""
    while _CLUSTERS:
        _, cluster = _CLUSTERS.popitem()
        cluster.driver.close()


# The clusters that `connect` keeps. Only a module can keep them for a worker process's life.
_CLUSTERS: dict[tuple[object, ...], Cluster] = {}

"""Find the queues of a read and what they hold, with patience once a read is under way."""

from __future__ import annotations

from collections.abc import Collection

from sparrowmq.errors import ConfigError, TopicRouteNotFound
from sparrowmq.model import MessageQueue
from sparrowmq.runtime.effects import Operation
from sparrowmq.spark.bounds import QueueBounds
from sparrowmq.spark.cluster import Cluster, Patience, persist
from sparrowmq.spark.options import SourceOptions

NO_PATIENCE = Patience(0, 0)


def discover(
    cluster: Cluster,
    options: SourceOptions,
    *,
    expected: Collection[MessageQueue] = (),
    patience: Patience = NO_PATIENCE,
    route_age_ms_max: int = 0,
) -> Operation[dict[MessageQueue, QueueBounds]]:
    """Return the queues of a read and what each holds.

    Args:
        expected: queues that were there before. While one is missing, the broker may only be
            restarting, so that it is looked for again; when patience ends it is left out.
        patience: how often to try again; a query that begins has none, so that a wrong address
            or topic is told at once.
        route_age_ms_max: how old a route may be.

    Raises: TopicRouteNotFound, ConnectFailed, TransportError, BrokerError; ConfigError if `assign`
        names a queue that is not there.
    """
    missing: frozenset[MessageQueue] = frozenset()

    def attempt() -> Operation[dict[MessageQueue, QueueBounds]]:
        nonlocal missing
        age_ms_max = 0 if missing else route_age_ms_max
        yield from cluster.refresh(options.topics, age_ms_max=age_ms_max)
        queues = cluster.find_queues(options.topics)
        missing = frozenset(expected) - queues
        if missing:
            raise TopicRouteNotFound(f"queues {sorted(missing)} are not in the route any more")
        return (yield from _bounds(cluster, options, queues))

    try:
        return (yield from persist(patience, attempt))
    except TopicRouteNotFound:
        if not missing:
            raise
        return (yield from _bounds(cluster, options, cluster.find_queues(options.topics)))


def _bounds(
    cluster: Cluster, options: SourceOptions, queues: frozenset[MessageQueue]
) -> Operation[dict[MessageQueue, QueueBounds]]:
    if options.assign is not None:
        unknown = sorted(options.assign - queues)
        if unknown:
            topic, broker_name, queue_id = unknown[0]
            raise ConfigError(
                f"option 'assign' names queue {topic}/{broker_name}/{queue_id}, which is not there"
            )
        queues = options.assign
    return (yield from cluster.fetch_bounds(queues))

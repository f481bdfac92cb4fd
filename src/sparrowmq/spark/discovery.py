"""Find the queues of a read and their bounds; a read under way repeats failed requests.

Tests: test_bounds.py.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from sparrowmq.calling.effects import Operation
from sparrowmq.errors import ConfigError, TopicRouteNotFound
from sparrowmq.model import MessageQueue
from sparrowmq.spark.bounds import QueueBounds
from sparrowmq.spark.options import SourceOptions
from sparrowmq.spark.topic_queues import ROUTE_AGE_MS_MAX, Cluster, hint_topic, persist

# How long a read that begins waits for a broker: its address is wrong as likely as it restarts.
BEGIN_WAIT_MS_MAX = 60_000


class Discovery(NamedTuple):
    """All queues of the topics, and the bounds of the queues to read."""

    queues: frozenset[MessageQueue]
    bounds: dict[MessageQueue, QueueBounds]


def begin_wait_ms(options: SourceOptions) -> int:
    """Return how long a read that begins waits for a broker."""
    return min(options.wait_for_brokers_ms, BEGIN_WAIT_MS_MAX)


def discover(
    cluster: Cluster,
    options: SourceOptions,
    *,
    expected: Collection[MessageQueue] = (),
    given_up: Collection[MessageQueue] = (),
    route_age_ms_max: int = 0,
) -> Operation[Discovery]:
    """Find the queues of a read and the bounds of each.

    Args:
        expected: queues that existed before. A missing queue's broker may be restarting, so the
            queue is looked for again; when the time is over, the queue is left out. Without such
            queues the read begins: the name servers are asked once, so that a wrong address or
            topic is an error at once, and a broker is waited for up to `BEGIN_WAIT_MS_MAX`.
        given_up: those of the expected queues that are not waited for again.
        route_age_ms_max: how old a route may be.

    Raises: TopicRouteNotFound, ConnectFailed, TransportError, BrokerError; ConfigError if `assign`
    names a queue that does not exist, or no topic matches `topicPattern`.
    """
    missing: frozenset[MessageQueue] = frozenset()
    queues: frozenset[MessageQueue] = frozenset()
    # The topics of which nothing is waited for again.
    gone = {queue.topic for queue in given_up}.difference(
        queue.topic for queue in frozenset(expected).difference(given_up)
    )

    def attempt() -> Operation[Discovery]:
        nonlocal missing, queues
        age_ms_max = 0 if missing else route_age_ms_max
        topics = yield from _find_topics(cluster, options, is_expected=bool(expected))
        yield from cluster.refresh(topics, age_ms_max=age_ms_max, given_up=gone)
        queues = cluster.find_queues(topics)
        missing = frozenset(expected) - queues - frozenset(given_up)
        if missing:
            raise TopicRouteNotFound(f"queues {sorted(missing)} are not in the route any more")
        return (yield from _look(cluster, options, queues, expected))

    wait_ms = options.wait_for_brokers_ms
    if not expected:
        wait_ms = begin_wait_ms(options)
        topics = yield from _find_topics(cluster, options, is_expected=False)
        try:
            yield from cluster.refresh(topics)
        except TopicRouteNotFound as error:
            hint = yield from hint_topic(topics, cluster.list_topics())
            raise TopicRouteNotFound(f"{error}{hint}") from None
        route_age_ms_max = max(route_age_ms_max, ROUTE_AGE_MS_MAX)
    try:
        return (yield from persist(wait_ms, attempt))
    except TopicRouteNotFound:
        if not missing:
            if options.fail_on_data_loss or not expected:
                raise
            # A topic is gone, and with it its queues.
            topics = yield from _find_topics(cluster, options, is_expected=True)
            yield from cluster.refresh(topics, given_up={each.topic for each in expected})
            queues = cluster.find_queues(topics)
        return (yield from _look(cluster, options, queues, expected))


def _find_topics(
    cluster: Cluster, options: SourceOptions, *, is_expected: bool
) -> Operation[Collection[str]]:
    pattern = options.topic_pattern
    if pattern is None:
        return options.topics
    names = yield from cluster.list_topics()
    topics = [name for name in names if options.matches(name)]
    if not topics and not is_expected:
        raise ConfigError(
            f"no topic matches option 'topicPattern', {pattern!r}; "
            f"the name server knows {', '.join(names[:20]) or 'none'}"
        )
    return topics


def _look(
    cluster: Cluster,
    options: SourceOptions,
    queues: frozenset[MessageQueue],
    expected: Collection[MessageQueue],
) -> Operation[Discovery]:
    wanted = queues
    if options.assign is not None:
        unknown = sorted(options.assign.difference(queues, expected))
        if unknown:
            topic, broker_name, queue_id = unknown[0]
            raise ConfigError(
                f"option 'assign' names queue {topic}/{broker_name}/{queue_id}, which is not there"
            )
        wanted = options.assign & queues
    return Discovery(queues, (yield from cluster.fetch_bounds(wanted)))

"""Series of the clients of a process, for Prometheus.

Counters that consumers keep anyway are read at each scrape. Calls are timed only for clients with a
registry, and only these clients import this module. Tests: client/test_metrics.py.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from weakref import WeakKeyDictionary, WeakSet

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from sparrowmq.client.config import ProducerConfig
from sparrowmq.client.publisher import Ended
from sparrowmq.client.sight.series import (
    CONSUMED,
    EVENTS,
    PROCESS_SECONDS,
    QUEUES,
    SEND_SECONDS,
    SENT,
    MetricSeries,
)
from sparrowmq.client.subscriber import ConsumeCounters, Notice, Subscriber
from sparrowmq.errors import ConfigError
from sparrowmq.model import Message, MessageExt, SendResult

_COUNTS = ("pulled", "delivered", "succeeded", "failed", "sent_back", "unreadable")


class ClientSeries:
    """The series of one registry, shared by the process's clients with that registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def count(series: MetricSeries) -> Counter:
            return Counter(series.name, series.help, series.labels, registry=registry)

        def measure(series: MetricSeries) -> Histogram:
            return Histogram(series.name, series.help, series.labels, registry=registry)

        self.sent, self.events = count(SENT), count(EVENTS)
        self.send_seconds, self.process_seconds = measure(SEND_SECONDS), measure(PROCESS_SECONDS)
        self._subscribers: WeakSet[Subscriber] = WeakSet()
        # Totals of closed consumers, by group and name: a counter must never fall.
        self._gone: dict[tuple[str, str], int] = {}
        registry.register(self)

    def add(self, subscriber: Subscriber) -> None:
        """Collect a consumer's counters from now on."""
        self._subscribers.add(subscriber)
        weakref.finalize(subscriber, self._keep, subscriber.user_group, subscriber.counters)

    def _keep(self, group: str, counters: ConsumeCounters) -> None:
        for name in _COUNTS:
            self._gone[group, name] = self._gone.get((group, name), 0) + getattr(counters, name)

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without samples."""
        return _consumer_families({}, ())

    def collect(self) -> Iterable[Metric]:
        """Return the metrics, with samples from the consumers' counters."""
        subscribers, totals = list(self._subscribers), dict(self._gone)
        for subscriber in subscribers:
            for name in _COUNTS:
                key = subscriber.user_group, name
                totals[key] = totals.get(key, 0) + getattr(subscriber.counters, name)
        return _consumer_families(totals, subscribers)


def _consumer_families(
    totals: Mapping[tuple[str, str], int], subscribers: Sequence[Subscriber]
) -> Iterator[Metric]:
    consumed = CounterMetricFamily(CONSUMED.name, CONSUMED.help, labels=CONSUMED.labels)
    for key, total in sorted(totals.items()):
        consumed.add_metric(key, total)
    yield consumed
    queues = GaugeMetricFamily(QUEUES.name, QUEUES.help, labels=QUEUES.labels)
    for subscriber in subscribers:
        held = subscriber.user_queues(subscriber.member.assigned)
        for topic in subscriber.user_topics:
            labels = subscriber.user_group, topic, subscriber.config.client_id
            queues.add_metric(labels, sum(queue.topic == topic for queue in held))
    yield queues


_SERIES: WeakKeyDictionary[CollectorRegistry, ClientSeries] = WeakKeyDictionary()
_LOCK = threading.Lock()


def series_of(registry: CollectorRegistry) -> ClientSeries:
    """Return the series of a registry; the first call makes them. Raises: ConfigError."""
    if not isinstance(registry, CollectorRegistry):
        raise ConfigError(
            f"metrics_registry is {registry!r}; it must be a CollectorRegistry, such as "
            f"prometheus_client.REGISTRY"
        )
    with _LOCK:
        series = _SERIES.get(registry)
        if series is None:
            series = _SERIES[registry] = ClientSeries(registry)
        return series


class SendMetrics:
    """Counts and times a producer's sends."""

    def __init__(self, registry: CollectorRegistry, config: ProducerConfig) -> None:
        self._series = series_of(registry)
        self._group = config.namespace.unwrap(config.group)

    def begin(
        self, messages: Sequence[Message], *, is_half: bool
    ) -> tuple[Sequence[Message], Ended]:
        """Note the start of a send; return the messages unchanged."""
        del is_half
        end = partial(self._end, messages[0].topic, len(messages), time.perf_counter())
        return messages, end

    def _end(
        self,
        topic: str,
        count: int,
        begun_s: float,
        result: SendResult | None,
        error: BaseException | None,
    ) -> None:
        del result
        outcome = "ok" if error is None else "failed"
        self._series.sent.labels(self._group, topic, outcome).inc(count)
        self._series.send_seconds.labels(self._group, topic).observe(time.perf_counter() - begun_s)


class ConsumeMetrics:
    """Counts and times the calls of a consumer's listener."""

    def __init__(self, registry: CollectorRegistry, subscriber: Subscriber) -> None:
        self._series = series_of(registry)
        self._group = subscriber.user_group
        self._series.add(subscriber)
        self._report = subscriber.report
        subscriber.report = self._count

    def _count(self, notice: Notice) -> None:
        self._series.events.labels(self._group, type(notice).__name__).inc()
        self._report(notice)

    @contextmanager
    def watch(self, messages: Sequence[MessageExt]) -> Generator[Callable[[str], None]]:
        """Time a call of the listener; the caller reports inside why messages are undone."""
        outcomes = ["failed"]

        def report(why: str) -> None:
            outcomes.append("failed" if why else "ok")

        begun_s = time.perf_counter()
        try:
            yield report
        finally:
            seconds = time.perf_counter() - begun_s
            labels = self._group, messages[0].topic, outcomes[-1]
            self._series.process_seconds.labels(*labels).observe(seconds)

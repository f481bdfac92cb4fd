"""Watches the lag of streaming queries: a line in the log, and series for Prometheus.

Spark calls the listener after each micro-batch, and every ten seconds while there is nothing to
read. Tests: test_stream_reader.py, pipeline/test_ingest.py.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from sparrowmq.calling import clock
from sparrowmq.model import MessageQueue
from sparrowmq.spark.lag import LAG, lag_of

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

_LOG = logging.getLogger("sparrowmq.spark")


class LagListener(StreamingQueryListener):
    """The listener: `spark.streams.addListener(LagListener())`.

    Args:
        registry: the Prometheus registry of the series, such as `prometheus_client.REGISTRY`; None
            for no series.
        log: called with a line about a query that reads; by default the logger `sparrowmq.spark`.
        log_interval_s: the shortest time between two lines of a query.
    """

    def __init__(
        self,
        *,
        registry: CollectorRegistry | None = None,
        log: Callable[[str], object] = _LOG.info,
        log_interval_s: float = 60.0,
    ) -> None:
        self._log = log
        self._log_interval_ms = round(log_interval_s * 1000)
        self._lock = threading.Lock()
        # By query: the name, the lag, and when the next line is due.
        self._queries: dict[str, tuple[str, dict[MessageQueue, int], int]] = {}
        if registry is not None:
            registry.register(self)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Do nothing: the first progress names the queues."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Keep the query's lag, and log it if a line is due."""
        progress: dict[str, Any] = json.loads(event.progress.json)
        lag, now_ms = lag_of(progress), clock.monotonic_ms()
        if not lag:
            return
        name = progress.get("name") or progress["id"]
        with self._lock:
            _, _, due_ms = self._queries.get(progress["id"], (name, lag, now_ms))
            is_due = now_ms >= due_ms
            due_ms = now_ms + self._log_interval_ms if is_due else due_ms
            self._queries[progress["id"]] = (name, lag, due_ms)
        if is_due:
            queue, longest = max(lag.items(), key=lambda each: each[1])
            self._log(
                f"query {name}: {sum(lag.values()):,} messages of {len(lag)} queues are not read; "
                f"the most, {longest:,}, wait in {queue.topic}/{queue.broker_name}/{queue.queue_id}"
            )

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Do nothing: there is nothing new to read."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Forget the query."""
        with self._lock:
            self._queries.pop(str(event.id), None)

    def describe(self) -> Iterator[Metric]:
        """Return the metrics without samples."""
        return self._families({})

    def collect(self) -> Iterator[Metric]:
        """Return the lag of each queue that a query reads."""
        with self._lock:
            found = {name: lag for name, lag, _ in self._queries.values()}
        return self._families(found)

    def _families(self, found: dict[str, dict[MessageQueue, int]]) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily

        family = GaugeMetricFamily(LAG.name, LAG.help, labels=LAG.labels)
        for name, lag in sorted(found.items()):
            for queue, messages in sorted(lag.items()):
                labels = (name, queue.topic, queue.broker_name, str(queue.queue_id))
                family.add_metric(labels, messages)
        yield family

"""A query's lag, from the progress that Spark reports. Pure. Tests: test_stream_reader.py."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sparrowmq.client.sight.series import MetricSeries
from sparrowmq.model import MessageQueue
from sparrowmq.spark.checkpoint_offsets import decode_offsets

LAG = MetricSeries(
    "sparrowmq_spark_queue_lag",
    "gauge",
    ("query", "topic", "broker", "queue"),
    "messages of a queue that a streaming query has not read yet; `query` is its name, else its id",
)
SPARK_SERIES = (LAG,)


def lag_of(progress: Mapping[str, Any]) -> dict[MessageQueue, int]:
    """Return the number of messages that the query has not read yet, by queue.

    Spark's API does not let a Python source report metrics, but every progress has the ends of the
    last micro-batch and the ends of the queues.

    Args:
        progress: `query.lastProgress`, or the progress that a StreamingQueryListener gets, as a
            dict.

    Returns: the lag of each queue for which both ends are known, the greatest if several sources
    read it; sources of other formats have none.
    """
    lag: dict[MessageQueue, int] = {}
    for source in progress["sources"]:
        try:
            read, held = _offsets(source["endOffset"]), _offsets(source["latestOffset"])
        except ValueError:
            continue
        for queue in read:
            if queue in held:
                lag[queue] = max(lag.get(queue, 0), held[queue] - read[queue])
    return lag


def _offsets(value: Any) -> dict[MessageQueue, int]:
    found = json.loads(value) if isinstance(value, str) else value
    return {} if not found else decode_offsets(found)

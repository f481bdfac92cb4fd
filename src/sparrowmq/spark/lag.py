"""A query's lag, out of the progress that Spark reports. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sparrowmq.model import MessageQueue
from sparrowmq.spark.offsets import decode_offsets


def lag_of(progress: Mapping[str, Any]) -> dict[MessageQueue, int]:
    """Return by queue how many messages the query has not read yet.

    Spark's API lets a Python source report no metrics of its own, but every progress says where
    the last micro-batch ended and where the queues end.

    Args:
        progress: `query.lastProgress`, or what a StreamingQueryListener is given, as a dict.

    Returns: nothing for queues of which only one of both is known.
    """
    lag: dict[MessageQueue, int] = {}
    for source in progress["sources"]:
        read, held = _offsets(source["endOffset"]), _offsets(source["latestOffset"])
        lag |= {queue: max(0, held[queue] - read[queue]) for queue in read if queue in held}
    return lag


def _offsets(value: Any) -> dict[MessageQueue, int]:
    found = json.loads(value) if isinstance(value, str) else value
    return {} if not found else decode_offsets(found)

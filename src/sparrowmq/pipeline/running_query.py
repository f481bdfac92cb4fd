"""Waiting for a streaming query to end, or for somebody to end it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_POLL_S = 0.5


def never() -> bool:
    """Say that nobody wants a query to end."""
    return False


def await_end(query: StreamingQuery, *, should_stop: Callable[[], bool] = never) -> bool:
    """Wait until the query has ended, or stop it; the micro-batch that runs is done again later.

    Args:
        query: the query.
        should_stop: asked twice a second whether to stop. A KeyboardInterrupt stops too, but
            py4j prints a traceback of it.

    Returns: whether it was stopped.
    Raises: what made the query fail.
    """
    try:
        while not should_stop():
            if query.awaitTermination(_POLL_S):  # type: ignore[arg-type]
                return False
    except KeyboardInterrupt:
        pass
    query.stop()
    return True

"""Run a streaming query until it has ended, or until somebody ends it."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

_POLL_S = 0.5
# Spark gives the process that plans a stream ten seconds to start, and no setting for more. A query
# that fails for it goes on from its checkpoint.
STARTS_MAX = 3
_NO_WORKER = "Python worker failed to connect back"


def never() -> bool:
    """Return that nobody wants a query to end."""
    return False


def run_query(
    frame: DataFrame,
    sink: Callable[[DataFrame, int], None],
    *,
    checkpoint: str,
    interval_s: float | None,
    should_stop: Callable[[], bool] = never,
) -> bool:
    """Hand micro-batches to a sink; one that is cut off is done again by the next run.

    Args:
        frame: the stream.
        sink: what `foreachBatch` takes.
        checkpoint: the directory of the query's checkpoint.
        interval_s: between micro-batches; None ends when all that is there has been read.
        should_stop: asked twice a second whether to stop. A KeyboardInterrupt stops too, but
            py4j prints a traceback of it.

    Returns: whether the query was stopped.
    Raises: what made the query fail.
    """
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint)
    if interval_s is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{interval_s:g} seconds")
    for starts_left in reversed(range(STARTS_MAX)):
        try:
            return _await_end(writer.start(), should_stop)
        except StreamingQueryException as error:
            if not starts_left or _NO_WORKER not in str(error):
                raise
    raise AssertionError("the last start returns or raises")


def _await_end(query: StreamingQuery, should_stop: Callable[[], bool]) -> bool:
    try:
        while not should_stop():
            if query.awaitTermination(_POLL_S):  # type: ignore[arg-type]
                return False
    except KeyboardInterrupt:
        pass
    query.stop()
    return True

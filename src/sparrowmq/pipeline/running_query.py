"""Runs a streaming query until it ends or is stopped. Tests: test_ingest.py."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql.streaming.listener import StreamingQueryListener

from sparrowmq.errors import ConfigError
from sparrowmq.pipeline.files import Files

_POLL_S = 0.5


# A time that a setting gives is at most a year: clocks and calendars take no arbitrary one.
SECONDS_MAX = 366 * 86_400.0


def check_seconds(name: str, seconds: float | None) -> None:
    """Raise a ConfigError for a time that no clock or calendar takes."""
    if seconds is not None and not 0 <= seconds <= SECONDS_MAX:
        raise ConfigError(f"{name} is {seconds:g} s; it must be 0 to {SECONDS_MAX:,.0f} s, a year")


def never() -> bool:
    """Return False: nobody stops the query."""
    return False


def has_planned(files: Files, checkpoint: str) -> bool:
    """Return whether a query has planned a batch.

    If none has, remove the checkpoint before the query starts: what a full disk leaves of the first
    batch's plan Spark would refuse for ever.
    """
    return any(entry.name.isdigit() for entry in files.list(f"{checkpoint}/offsets"))


def run_query(
    frame: DataFrame,
    sink: Callable[[DataFrame, int], None],
    *,
    checkpoint: str,
    interval_s: float | None,
    should_stop: Callable[[], bool] = never,
    listener: StreamingQueryListener | None = None,
) -> bool:
    """Pass micro-batches to a sink; the next run replays an interrupted one.

    Args:
        sink: the function for `foreachBatch`.
        checkpoint: the directory of the query's checkpoint.
        interval_s: the time between micro-batches; None ends the query once it has read all
            present messages.
        should_stop: called twice a second; True stops the query. A KeyboardInterrupt stops it too,
            but py4j then prints a traceback.
        listener: the listener of the query's progress.

    Returns: whether the query was stopped.
    Raises: the error of the query, or of `should_stop`, which stops the query too.
    """
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint)
    if interval_s is None:
        writer = writer.trigger(availableNow=True)
    else:
        # Spark does not read an exponent, with which Python writes large and small numbers.
        writer = writer.trigger(processingTime=f"{round(interval_s * 1000)} milliseconds")
    streams = frame.sparkSession.streams
    if listener is not None:
        streams.addListener(listener)
    try:
        query = writer.start()
        try:
            while not should_stop():
                if query.awaitTermination(_POLL_S):  # type: ignore[arg-type]
                    return False
        except KeyboardInterrupt:
            pass
        finally:
            query.stop()
        return True
    finally:
        if listener is not None:
            streams.removeListener(listener)

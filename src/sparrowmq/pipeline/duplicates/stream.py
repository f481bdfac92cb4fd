"""The job `duplicates` as a streaming query: the same tables, behind a watermark.

The watermark is the newest time seen, at most the present, minus `delay_s`. A delivery is judged
once the watermark has passed it: by then all deliveries of that time have arrived that are at most
`delay_s` late. Later deliveries are dropped and counted. The functions of `judging` see all
deliveries newer than two delays before the watermark, and a group's last one before that from each
queue. So two deliveries of a message are found if they are at most two delays apart.

```
out/deliveries, duplicates, events, missing, each with batchId=N/     as the batch job's tables
out/state/batchId=N/       the deliveries that later judgements need
out/state/_N.json          the watermark after micro-batch N, and what was left out so far
out/checkpoint/            the source's position
```

A micro-batch that is replayed after a kill reads the state of the batch before, computes the same
rows and replaces those that it had written. So every reader of Parquet sees each delivery once.
Tests: pipeline/test_duplicates_stream.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import StreamingQueryListener

from sparrowmq.errors import ConfigError, UsageError
from sparrowmq.pipeline.duplicates import judging
from sparrowmq.pipeline.duplicates.records import (
    ENTRY_COLUMNS,
    RECORD_COLUMNS,
    split_entries,
)
from sparrowmq.pipeline.files import Files
from sparrowmq.pipeline.input_tables import check_complete
from sparrowmq.pipeline.parquet import read_parquet, write_batch_parquet
from sparrowmq.pipeline.running_query import has_planned, never, run_query

DELAY_S = 600.0
TABLES = ("deliveries", "duplicates", "events", "missing")
_BEFORE_ALL = datetime(1970, 1, 1, tzinfo=UTC)
# The state covers so many delays before the watermark.
_STATE_DELAYS = 2
# The time of the micro-batch, which stays when Spark repeats the batch. Clients may write any time:
# behind one in the future, all that comes now would be late.
_NOW = "_now"


class Progress(NamedTuple):
    """The progress after a micro-batch.

    Args:
        batch_id: the micro-batch's number.
        watermark: the time up to which deliveries are judged.
        late: the deliveries that arrived behind the watermark, since the query's first start.
        entries: the number of entries in the micro-batch.
        unreadable: the entries of the trace that cannot be read, since the query's first start.
    """

    batch_id: int
    watermark: datetime
    late: int
    entries: int
    unreadable: int


def watch_duplicates(
    entries: DataFrame,
    out: str,
    *,
    delay_s: float = DELAY_S,
    interval_s: float | None = None,
    read_events: Callable[[], DataFrame] | None = None,
    on_batch: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] = never,
    listener: StreamingQueryListener | None = None,
) -> None:
    """Run the query.

    Args:
        entries: a stream with the columns of `records.ENTRY_COLUMNS`.
        out: the directory of this query's tables, state and checkpoint.
        delay_s: the greatest lateness of a delivery behind newer ones.
        interval_s: the time between micro-batches; None ends the query once it has read all
            present entries.
        read_events: returns the rebalance events; None finds events in the records.
        on_batch: called in the driver after each micro-batch.
        should_stop: called twice a second; True stops the query.

    Raises: ConfigError if the directory has tables of a run that does not follow.
    """
    root = out.rstrip("/")
    files, checkpoint = Files(entries.sparkSession, root), f"{root}/checkpoint"
    _check_own(files, root)
    if not has_planned(files, checkpoint):
        files.remove(checkpoint)
    run_query(
        entries.withColumn(_NOW, F.current_timestamp()),
        _Judge(root, timedelta(seconds=delay_s), read_events, on_batch),
        checkpoint=checkpoint,
        interval_s=interval_s,
        should_stop=should_stop,
        listener=listener,
    )


def is_followed(session: SparkSession, out: str) -> bool:
    """Return whether the directory is a query's."""
    root = out.rstrip("/")
    return Files(session, root).exists(f"{root}/checkpoint")


def _check_own(files: Files, root: str) -> None:
    """Check that the tables have no files beside the micro-batches, whose rows would be doubled."""
    for name in TABLES:
        found = files.list(f"{root}/{name}")
        if any(not each.is_directory and each.name[:1] not in "_." for each in found):
            raise ConfigError(
                f"{root}/{name} is of a run that did not follow, and its rows would be there "
                f"twice; choose another directory, or remove it"
            )


def read_tables(session: SparkSession, out: str) -> dict[str, DataFrame]:
    """Return the query's tables that have rows, by name."""
    root = out.rstrip("/")
    files = Files(session, root)
    return {
        name: read_parquet(session, f"{root}/{name}")
        for name in TABLES
        if any(entry.name.startswith("batchId=") for entry in files.list(f"{root}/{name}"))
    }


@dataclass(frozen=True, slots=True)
class _Judge:
    """The sink of the query, which judges the deliveries that the watermark has passed."""

    root: str
    delay: timedelta
    read_events: Callable[[], DataFrame] | None
    on_batch: Callable[[Progress], None] | None

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        before = self._progress(batch.sparkSession, batch_id - 1)
        batch = batch.persist()
        at, now = F.col("consumedTimestamp"), F.col(_NOW)
        is_late = at <= before.watermark
        check_complete(batch.where("not isProduced"), RECORD_COLUMNS, what="the stream")
        (row,) = batch.select(
            F.max(F.unix_micros(F.when(at > now, now).otherwise(at))),
            F.count_if(is_late),
            F.count("*"),
            F.count_if(F.col("isProduced").isNull()),
        ).collect()
        newest = (
            before.watermark if row[0] is None else _BEFORE_ALL + timedelta(microseconds=row[0])
        )
        watermark = max(before.watermark, newest - self.delay)
        window = batch.where(~is_late).drop(_NOW)
        if batch_id > 0:
            window = window.unionByName(self._state(batch.sparkSession, batch_id - 1))
        window = window.persist()
        try:
            self._write(window, batch_id, before.watermark, watermark)
        finally:
            window.unpersist()
            batch.unpersist()
        progress = Progress(
            batch_id, watermark, before.late + row[1], row[2], before.unreadable + row[3]
        )
        self._write_progress(batch.sparkSession, progress)
        if self.on_batch is not None:
            self.on_batch(progress)

    def _write(self, window: DataFrame, batch_id: int, since: datetime, until: datetime) -> None:
        """Write the rows of each table between two watermarks, then the state."""

        def passed(column: str, back: timedelta = timedelta(0)) -> Column:
            return (F.col(column) > since - back) & (F.col(column) <= until - back)

        records, produced = split_entries(window, what="the stream")
        events = self._events(records, batch_id, since)
        judged = judging.attribute(records, events).where(passed("consumedTimestamp")).persist()
        try:
            self._keep(judged, "deliveries", batch_id)
            self._keep(judged.where("nth > 1"), "duplicates", batch_id)
        finally:
            judged.unpersist()
        self._keep(events.where(passed("eventTimestamp")), "events", batch_id)
        # A produced message may be consumed up to one delay later.
        due = produced.where(passed("consumedTimestamp", self.delay))
        self._keep(judging.find_missing(records, due), "missing", batch_id)
        needed = _still_needed(window, records, until - _STATE_DELAYS * self.delay)
        self._keep(needed, "state", batch_id)

    def _events(self, records: DataFrame, batch_id: int, since: datetime) -> DataFrame:
        """Return all events so far: earlier events unchanged, and new ones."""
        if self.read_events is not None:
            return self.read_events()
        found = judging.find_events(records).where(F.col("eventTimestamp") > since)
        judged = read_tables(records.sparkSession, self.root).get("events")
        if judged is None:
            return found
        return found.unionByName(judged.where(F.col("batchId") < batch_id).drop("batchId"))

    def _keep(self, frame: DataFrame, name: str, batch_id: int) -> None:
        frame = frame.coalesce(1)
        if name == "state" or not frame.isEmpty():
            write_batch_parquet(frame, batch_id, f"{self.root}/{name}")
        else:
            Files(frame.sparkSession, self.root).remove(f"{self.root}/{name}/batchId={batch_id}")

    def _state(self, session: SparkSession, batch_id: int) -> DataFrame:
        path = f"{self.root}/state/batchId={batch_id}"
        ddl = ", ".join(f"{name} {kind}" for name, kind in ENTRY_COLUMNS.items())
        return read_parquet(session, path, schema=ddl)

    def _progress(self, session: SparkSession, batch_id: int) -> Progress:
        path = f"{self.root}/state/_{batch_id}.json"
        if batch_id < 0:
            return Progress(batch_id, _BEFORE_ALL, 0, 0, 0)
        known = Files(session, self.root).read_json(path)
        if known is None:
            raise UsageError(
                f"{path} is gone, so this run would judge deliveries a second time; put it back, "
                f"or choose another directory"
            )
        watermark = datetime.fromisoformat(known["watermark"])
        return Progress(batch_id, watermark, known["late"], 0, known.get("unreadable", 0))

    def _write_progress(self, session: SparkSession, progress: Progress) -> None:
        """Write the progress, and delete files that no replay can need."""
        files = Files(session, self.root)
        known = {
            "watermark": progress.watermark.isoformat(),
            "late": progress.late,
            "unreadable": progress.unreadable,
        }
        files.write_text(f"{self.root}/state/_{progress.batch_id}.json", json.dumps(known))
        old = progress.batch_id - 2
        files.remove(f"{self.root}/state/batchId={old}")
        files.remove(f"{self.root}/state/_{old}.json")


def _still_needed(window: DataFrame, records: DataFrame, horizon: datetime) -> DataFrame:
    """Return the rows newer than the horizon, and a group's last delivery before it of each queue.

    It says who had the queue and which topic the group reads. A trace names no queues: there the
    last delivery of each topic is kept.

    Args:
        window: the rows of the micro-batch and of the state before.
        records: the deliveries among them, with their topics.
    """
    of_queue = Window.partitionBy("consumerGroup", "topic", "brokerName", "queueId").orderBy(
        F.desc("consumedTimestamp"), F.desc("queueOffset")
    )
    last = (
        records.where(F.col("consumedTimestamp") <= horizon)
        .withColumn("place", F.row_number().over(of_queue))
        .where("place = 1")
        .withColumn("isProduced", F.lit(False))
        .select(*ENTRY_COLUMNS)
    )
    return window.where(F.col("consumedTimestamp") > horizon).unionByName(last)

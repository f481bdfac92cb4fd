"""The reader of a stream: micro-batches whose offsets the checkpoint keeps.

This object lives in one process beside the driver for the whole query, and a copy of it in every
task. Spark asks per micro-batch: `latestOffset(start, limit)`, `reportLatestOffset()`,
`partitions(start, end)`, then `read` in the tasks. `commit` never comes for a query's last batch
and is not used: Spark asks for the next batch only once the last one is in its commit log, so the
`start` of `latestOffset` is what is safely processed, and that is committed under the group.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from sparrowmq.errors import SparrowError
from sparrowmq.model import MessageQueue
from sparrowmq.runtime import clock
from sparrowmq.spark.bounds import (
    OffsetChoice,
    QueueBounds,
    choose_end,
    ranges_between,
    resolve_choice,
)
from sparrowmq.spark.cluster import BOUNDS_AGE_MS_MAX, ROUTE_AGE_MS_MAX, Patience, connect
from sparrowmq.spark.discovery import NO_PATIENCE, discover
from sparrowmq.spark.failures import clear, report_losses
from sparrowmq.spark.offsets import LATEST, OffsetsJson, decode_offsets, encode_offsets
from sparrowmq.spark.options import SourceOptions
from sparrowmq.spark.partition import make_partitions, read_partition

_LOG = logging.getLogger("sparrowmq.spark")


class RocketMQStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream.

    Args:
        options: of the read.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._bounds: dict[MessageQueue, QueueBounds] | None = None
        self._bounds_ms = 0
        self._frozen: dict[MessageQueue, int] | None = None
        self._committed: dict[MessageQueue, int] = {}

    @clear
    def initialOffset(self) -> OffsetsJson:  # noqa: N802
        """Resolve `startingOffsets`; asked only for a query without a checkpoint."""
        choice = self._options.starting_offsets or OffsetChoice(LATEST)
        answer = resolve_choice(choice, self._discover({}))
        report_losses(answer.losses, fail=self._options.fail_on_data_loss)
        return encode_offsets(answer.offsets)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return `maxOffsetsPerTrigger` as Spark's limit."""
        rows_max = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if rows_max is None else ReadMaxRows(rows_max)

    @clear
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Freeze the query's end at what the queues hold now."""
        bounds = self._discover({}, afresh=True)
        self._frozen = {queue: found.max_offset for queue, found in bounds.items()}

    @clear
    def latestOffset(  # noqa: N802
        self, start: Mapping[str, Any], limit: ReadLimit
    ) -> OffsetsJson:
        """Choose the end of the next micro-batch; `start` again if there is nothing to read."""
        begin = decode_offsets(start)
        bounds = self._discover(begin)
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        answer = choose_end(begin, bounds, frozen=self._frozen, rows_max=rows_max)
        report_losses(answer.losses, fail=self._options.fail_on_data_loss)
        self._commit(begin, bounds)
        return encode_offsets(answer.offsets)

    @clear
    def reportLatestOffset(self) -> OffsetsJson | None:  # noqa: N802
        """Return the ends of the queues, which Spark's progress shows beside the query's own."""
        if self._bounds is None:
            return None
        return encode_offsets({queue: found.max_offset for queue, found in self._bounds.items()})

    @clear
    def partitions(
        self, start: Mapping[str, Any], end: Mapping[str, Any]
    ) -> Sequence[InputPartition]:
        """Deal a micro-batch out. It may be one that an earlier run of the query planned."""
        ranges = ranges_between(decode_offsets(start), decode_offsets(end))
        if self._bounds is None:
            self._discover({each.queue: each.start for each in ranges})
        queues = connect(self._options).find_queues(self._options.topics)
        return make_partitions(self._options, ranges, queues)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition, in an executor."""
        return read_partition(self._options, partition)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Do nothing; see the top of this file."""

    def _discover(
        self, expected: Mapping[MessageQueue, int], *, afresh: bool = False
    ) -> dict[MessageQueue, QueueBounds]:
        """Ask what the queues hold, unless that was asked just now."""
        now_ms = clock.monotonic_ms()
        is_fresh = now_ms - self._bounds_ms < BOUNDS_AGE_MS_MAX and not afresh
        if self._bounds is not None and is_fresh:
            return self._bounds
        options = self._options
        cluster = connect(options)
        # A query that begins fails at once: most likely an address or a name is wrong.
        is_known = self._bounds is not None or len(expected) > 0
        patience = Patience(options.fetch_retries, options.retry_interval_ms)
        bounds = cluster.driver.run(
            discover(
                cluster,
                options,
                expected=expected,
                patience=patience if is_known else NO_PATIENCE,
                route_age_ms_max=ROUTE_AGE_MS_MAX,
            )
        )
        self._bounds, self._bounds_ms = bounds, clock.monotonic_ms()
        return bounds

    def _commit(
        self, offsets: Mapping[MessageQueue, int], bounds: Mapping[MessageQueue, QueueBounds]
    ) -> None:
        """Commit under the group what is new since the last time; a failure waits for the next."""
        options = self._options
        if options.group is None or not options.commit_offsets:
            return
        fresh = {
            queue: offset
            for queue, offset in offsets.items()
            if queue in bounds and self._committed.get(queue) != offset
        }
        if not fresh:
            return
        cluster = connect(options)
        try:
            cluster.driver.run(cluster.commit(options.group, fresh))
        except SparrowError as error:
            _LOG.warning("offsets of group %s are not committed: %s", options.group, error)
        else:
            self._committed.update(fresh)

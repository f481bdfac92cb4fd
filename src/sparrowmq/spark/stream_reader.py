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
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from sparrowmq.calling import clock
from sparrowmq.errors import SparrowError
from sparrowmq.model import MessageQueue
from sparrowmq.spark.bounds import (
    QueueBounds,
    choose_end,
    ranges_between,
)
from sparrowmq.spark.cluster import BOUNDS_AGE_MS_MAX, ROUTE_AGE_MS_MAX, Patience, connect
from sparrowmq.spark.discovery import NO_PATIENCE, Discovery, discover
from sparrowmq.spark.failures import clear, report_losses, settle
from sparrowmq.spark.offsets import OffsetsJson, decode_offsets, encode_offsets
from sparrowmq.spark.options import SourceOptions
from sparrowmq.spark.partition import make_partitions, read_partition
from sparrowmq.spark.positions import find_offsets, sample_sizes
from sparrowmq.spark.shipping import Packed, pack

if TYPE_CHECKING:
    import pyarrow as pa

_LOG = logging.getLogger("sparrowmq.spark")


class RocketMQStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream.

    Args:
        options: of the read.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._found: Discovery | None = None
        self._found_ms = 0
        self._batch_ms = clock.monotonic_ms()
        self._frozen: dict[MessageQueue, int] | None = None
        self._committed: dict[MessageQueue, int] = {}

    def __reduce__(self) -> Packed:
        return pack(RocketMQStreamReader, self._options)

    @clear
    def initialOffset(self) -> OffsetsJson:  # noqa: N802
        """Resolve where to begin; asked only for a query without a checkpoint."""
        options = self._options
        cluster, bounds = connect(options), self._discover({}).bounds
        choice = cluster.run(find_offsets(cluster, options.starting, bounds, group=options.group))
        (offsets,) = settle([choice], bounds, fail=options.fail_on_data_loss)
        return encode_offsets(offsets)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of a micro-batch in Spark's words, which know no two at once."""
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    @clear
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Freeze the query's end at what the queues hold now."""
        bounds = self._discover({}, afresh=True).bounds
        self._frozen = {queue: found.max_offset for queue, found in bounds.items()}

    @clear
    def latestOffset(  # noqa: N802
        self, start: Mapping[str, Any], limit: ReadLimit
    ) -> OffsetsJson:
        """Choose the end of the next micro-batch; `start` again if there is nothing to read."""
        begin = decode_offsets(start)
        bounds = self._discover(begin).bounds
        rows_max, row_sizes = self._limit(limit, begin, bounds)
        answer = choose_end(
            begin,
            bounds,
            frozen=self._frozen,
            rows_max=rows_max,
            rows_min=self._rows_min(limit),
            row_sizes=row_sizes,
        )
        report_losses(answer.losses, fail=self._options.fail_on_data_loss)
        self._commit(begin, bounds)
        if answer.offsets != begin:
            self._batch_ms = clock.monotonic_ms()
        return encode_offsets(answer.offsets)

    @clear
    def reportLatestOffset(self) -> OffsetsJson | None:  # noqa: N802
        """Return the ends of the queues, which Spark's progress shows beside the query's own."""
        if self._found is None:
            return None
        return encode_offsets({q: found.max_offset for q, found in self._found.bounds.items()})

    @clear
    def partitions(
        self, start: Mapping[str, Any], end: Mapping[str, Any]
    ) -> Sequence[InputPartition]:
        """Deal a micro-batch out. It may be one that an earlier run of the query planned."""
        ranges = ranges_between(decode_offsets(start), decode_offsets(end))
        found = self._found or self._discover({each.queue: each.start for each in ranges})
        return make_partitions(self._options, ranges, found.queues)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition, in an executor."""
        return read_partition(self._options, partition)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Do nothing; see the top of this file."""

    def _limit(
        self,
        limit: ReadLimit,
        begin: Mapping[MessageQueue, int],
        bounds: Mapping[MessageQueue, QueueBounds],
    ) -> tuple[int | None, Mapping[MessageQueue, int] | None]:
        """Return the most of a batch, and the sizes of messages if it is told in bytes."""
        if isinstance(limit, ReadMaxRows):
            return limit.max_rows, None
        if isinstance(limit, ReadMaxBytes):
            cluster = connect(self._options)
            waiting = {
                queue: max(begin.get(queue, 0), found.min_offset)
                for queue, found in bounds.items()
                if begin.get(queue, 0) < found.max_offset
            }
            return limit.max_bytes, cluster.run(sample_sizes(cluster, waiting))
        return None, None

    def _rows_min(self, limit: ReadLimit) -> int:
        """Return how many rows a batch must have; a query that is to end waits for none."""
        rows_min = self._options.min_offsets_per_trigger
        waited_ms = clock.monotonic_ms() - self._batch_ms
        if (
            rows_min is None
            or self._frozen is not None
            or isinstance(limit, ReadAllAvailable)
            or waited_ms >= self._options.max_trigger_delay_ms
        ):
            return 0
        return rows_min

    def _discover(self, expected: Mapping[MessageQueue, int], *, afresh: bool = False) -> Discovery:
        """Ask what the queues hold, unless that was asked just now."""
        now_ms = clock.monotonic_ms()
        is_fresh = now_ms - self._found_ms < BOUNDS_AGE_MS_MAX and not afresh
        if self._found is not None and is_fresh:
            return self._found
        options = self._options
        cluster = connect(options)
        # A query that begins fails at once: most likely an address or a name is wrong.
        is_known = self._found is not None or len(expected) > 0
        patience = Patience(options.fetch_retries, options.retry_interval_ms)
        found = cluster.run(
            discover(
                cluster,
                options,
                expected=expected,
                patience=patience if is_known else NO_PATIENCE,
                route_age_ms_max=ROUTE_AGE_MS_MAX,
            )
        )
        self._found, self._found_ms = found, clock.monotonic_ms()
        return found

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
            cluster.run(cluster.commit(options.group, fresh))
        except SparrowError as error:
            _LOG.warning("offsets of group %s are not committed: %s", options.group, error)
        else:
            self._committed.update(fresh)

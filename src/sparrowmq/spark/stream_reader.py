"""The reader of a stream: micro-batches whose offsets the checkpoint keeps.

The reader lives in one process beside the driver for the whole query; every task has a copy. For
each micro-batch Spark calls `latestOffset(start, limit)`, `reportLatestOffset()`,
`partitions(start, end)`, and then `read` in the tasks. Spark does not call `commit` for a query's
last batch, so `commit` is not used. Spark asks for the next batch only once the last batch is in
its commit log. The `start` of `latestOffset` is therefore safely processed, and is committed under
the group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
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
from sparrowmq.model import MessageQueue
from sparrowmq.spark.bounds import Loss, choose_end, leave_out_gone, ranges_between
from sparrowmq.spark.checkpoint_offsets import (
    OffsetsJson,
    decode_offsets,
    decode_stored_by,
    encode_checkpoint,
    encode_offsets,
)
from sparrowmq.spark.failures import clear, report_losses
from sparrowmq.spark.options import SourceOptions
from sparrowmq.spark.partition import make_partitions, read_partition
from sparrowmq.spark.queue_watch import QueueWatch
from sparrowmq.spark.shipping import Packed, pack

if TYPE_CHECKING:
    import pyarrow as pa


class RocketMQStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._watch = QueueWatch(options)
        self._batch_ms = clock.monotonic_ms()
        self._is_available_now = False
        self._frozen: dict[MessageQueue, int] | None = None
        # An earlier run planned the batch that is dealt out before this one plans any.
        self._has_planned = False
        # What the last call found: Spark asks every 10 ms, and a queue may be gone for long.
        self._losses: list[Loss] = []

    def __reduce__(self) -> Packed:
        return pack(RocketMQStreamReader, self._options)

    @clear
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the start offsets; Spark asks only for a query without a checkpoint."""
        begin = self._watch.first_offsets()
        return encode_checkpoint(begin, self._watch.stored_by(begin, {}, {}))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of a micro-batch as one of Spark's classes.

        Spark's classes cannot express two limits at once, so `latestOffset` takes the limits from
        the options. Spark passes this limit to it, or ReadAllAvailable if a trigger wants no limit.
        """
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
        """Have the first `latestOffset`, which knows the checkpoint's queues, freeze the end."""
        self._is_available_now = True

    @clear
    def latestOffset(  # noqa: N802
        self, start: Mapping[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """Return the end of the next micro-batch; `start` again if no batch begins."""
        self._has_planned = True
        begin, stored_by_ms = decode_offsets(start), decode_stored_by(start)
        bounds = self._watch.look(begin).bounds
        if self._is_available_now and self._frozen is None:
            self._frozen = {queue: found.max_offset for queue, found in bounds.items()}
        is_limited = not isinstance(limit, ReadAllAvailable)
        choose = partial(
            choose_end,
            begin,
            bounds,
            frozen=self._frozen,
            rows_max=self._options.max_offsets_per_trigger if is_limited else None,
            rows_min=self._rows_min(limit),
            refilled=self._watch.find_refilled(begin, stored_by_ms),
        )
        answer = choose()
        bytes_max = self._options.max_bytes_per_trigger if is_limited else None
        # Spark asks every 10 ms, and a batch may wait for rows: only for a batch are sizes read.
        if bytes_max is not None and answer.offsets != begin:
            sizes = self._watch.sample_sizes(begin, bounds)
            answer = choose(bytes_max=bytes_max, row_sizes=sizes)
        fresh = [loss for loss in answer.losses if loss not in self._losses]
        report_losses(fresh, fail=self._options.fail_on_data_loss)
        self._losses = answer.losses
        self._watch.commit(begin, bounds)
        if answer.offsets != begin:
            self._batch_ms = clock.monotonic_ms()
        stored_by_ms = self._watch.stored_by(answer.offsets, begin, stored_by_ms)
        return encode_checkpoint(answer.offsets, stored_by_ms)

    @clear
    def reportLatestOffset(self) -> OffsetsJson | None:  # noqa: N802
        """Return the ends of the queues, which Spark's progress shows beside the query's own."""
        found = self._watch.found
        if found is None:
            return None
        return encode_offsets({queue: each.max_offset for queue, each in found.bounds.items()})

    @clear
    def partitions(
        self, start: Mapping[str, Any], end: Mapping[str, Any]
    ) -> Sequence[InputPartition]:
        """Divide a micro-batch into partitions. An earlier run of the query may have planned it."""
        finish = decode_offsets(end)
        ranges = ranges_between(decode_offsets(start), finish)
        # Spark asks for the start of a first batch before it runs that batch again.
        found = self._watch.found if self._has_planned else None
        if found is None:
            found = self._watch.look({each.queue: each.start for each in ranges})
            ranges, gone = leave_out_gone(ranges, found.queues)
            report_losses(gone, fail=self._options.fail_on_data_loss)
            if self._options.fail_on_data_loss:
                refilled = self._watch.find_refilled(finish, decode_stored_by(end))
                report_losses(refilled, fail=True)
        return make_partitions(self._options, ranges, found.queues)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition, in an executor."""
        return read_partition(self._options, partition)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Do nothing: `latestOffset` commits the offsets that are safely processed."""

    def _rows_min(self, limit: ReadLimit) -> int:
        """Return the fewest rows of a batch; a query with an end does not wait for more rows."""
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

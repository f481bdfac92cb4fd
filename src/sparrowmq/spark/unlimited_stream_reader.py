"""The reader of a stream for PySpark 4.1, which does not limit micro-batches or pass their start.

For each micro-batch Spark calls `latestOffset()`, `partitions(start, end)`, and then `read` in the
tasks. A batch therefore has all messages up to the queues' ends, and losses between its start and
its end are found only in `partitions`. Newer versions of PySpark use `stream_reader.py`.
Tests: test_stream_reader.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from sparrowmq.model import MessageQueue
from sparrowmq.spark.bounds import choose_end, leave_out_gone, ranges_between
from sparrowmq.spark.checkpoint_offsets import (
    decode_offsets,
    decode_stored_by,
    encode_checkpoint,
)
from sparrowmq.spark.failures import RocketMQError, clear, report_losses
from sparrowmq.spark.options import SourceOptions
from sparrowmq.spark.partition import make_partitions, read_partition
from sparrowmq.spark.queue_watch import QueueWatch, of_query
from sparrowmq.spark.shipping import Packed, pack

if TYPE_CHECKING:
    import pyarrow as pa


class UnlimitedStreamReader(DataSourceStreamReader):
    """Reads a stream.

    Args:
        options: the options of the read; none limits a micro-batch.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._watch = QueueWatch(options)
        # The end of the last micro-batch; a queue that is missing for a while keeps its offset.
        self._end: dict[MessageQueue, int] = {}
        self._stored_by_ms: dict[MessageQueue, int] = {}

    def __reduce__(self) -> Packed:
        return pack(UnlimitedStreamReader, self._options)

    @clear
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the start offsets; Spark asks only for a query without a checkpoint."""
        self._end = self._watch.first_offsets()
        self._stored_by_ms = self._watch.stored_by(self._end, {}, {})
        return encode_checkpoint(self._end, self._stored_by_ms)

    @clear
    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802
        """Return the ends of the queues."""
        bounds, begin = self._watch.look(self._end).bounds, self._end
        self._end = begin | {queue: found.max_offset for queue, found in bounds.items()}
        self._stored_by_ms = self._watch.stored_by(self._end, begin, self._stored_by_ms)
        return encode_checkpoint(self._end, self._stored_by_ms)

    @clear
    def partitions(
        self, start: Mapping[str, Any], end: Mapping[str, Any]
    ) -> Sequence[InputPartition]:
        """Divide a micro-batch into partitions. An earlier run of the query may have planned it."""
        begin, finish = of_query(self._options, decode_offsets(start)), decode_offsets(end)
        if missing := sorted(begin.keys() - finish.keys()):
            topic, broker_name, queue_id = missing[0]
            raise RocketMQError(
                f"sparrowmq: queue {topic}/{broker_name}/{queue_id} was not there when this batch "
                f"was planned, and PySpark before 4.2 would have it begin anew; once its broker "
                f"is back, remove the last file of 'offsets' in the checkpoint and start again"
            )
        found = self._watch.look(begin)
        refilled = self._watch.find_refilled(begin, decode_stored_by(start))
        losses = choose_end(
            begin, found.bounds, frozen=None, rows_max=None, refilled=refilled
        ).losses
        report_losses(losses, fail=self._options.fail_on_data_loss)
        self._watch.commit(begin, found.bounds)
        anew = {loss.queue: found.bounds[loss.queue].min_offset for loss in refilled}
        ranges, _ = leave_out_gone(ranges_between({**begin, **anew}, finish), found.queues)
        return make_partitions(self._options, ranges, found.queues)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition, in an executor."""
        return read_partition(self._options, partition)

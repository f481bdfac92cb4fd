"""The reader of a batch: everything between two offsets, fixed when the query is planned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from sparrowmq.errors import ConfigError
from sparrowmq.spark.bounds import OffsetChoice, ranges_between, resolve_choice
from sparrowmq.spark.cluster import connect
from sparrowmq.spark.discovery import discover
from sparrowmq.spark.failures import clear, report_losses
from sparrowmq.spark.offsets import EARLIEST, LATEST
from sparrowmq.spark.options import SourceOptions
from sparrowmq.spark.partition import make_partitions, read_partition


class RocketMQReader(DataSourceReader):
    """Reads a batch.

    Args:
        options: of the read.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    @clear
    def partitions(self) -> Sequence[InputPartition]:
        """Fix where the batch begins and ends, and deal it out.

        Raises: RocketMQError if the cluster cannot be asked, or the offsets cannot be read.
        """
        options = self._options
        cluster = connect(options)
        bounds = cluster.driver.run(discover(cluster, options))
        start = resolve_choice(options.starting_offsets or OffsetChoice(EARLIEST), bounds)
        end = resolve_choice(options.ending_offsets or OffsetChoice(LATEST), bounds)
        report_losses([*start.losses, *end.losses], fail=options.fail_on_data_loss)
        for queue in sorted(bounds):
            if start.offsets[queue] > end.offsets[queue]:
                raise ConfigError(
                    f"queue {queue.topic}/{queue.broker_name}/{queue.queue_id}: startingOffsets "
                    f"{start.offsets[queue]} lies behind endingOffsets {end.offsets[queue]}"
                )
        ranges = ranges_between(start.offsets, end.offsets)
        return make_partitions(options, ranges, cluster.find_queues(options.topics))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition, in an executor."""
        return read_partition(self._options, partition)

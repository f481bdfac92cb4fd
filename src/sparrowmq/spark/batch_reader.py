"""The reader of a batch: everything between two offsets, fixed when the query is planned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from sparrowmq.calling.effects import Operation
from sparrowmq.spark.bounds import Answer, OffsetChoice, ranges_between, resolve_choice
from sparrowmq.spark.cluster import Cluster, connect
from sparrowmq.spark.discovery import Discovery, discover
from sparrowmq.spark.failures import check_order, clear, report_losses
from sparrowmq.spark.offsets import EARLIEST
from sparrowmq.spark.options import SourceOptions
from sparrowmq.spark.partition import make_partitions, read_partition
from sparrowmq.spark.positions import find_offsets
from sparrowmq.spark.shipping import Packed, pack


class RocketMQReader(DataSourceReader):
    """Reads a batch.

    Args:
        options: of the read.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def __reduce__(self) -> Packed:
        return pack(RocketMQReader, self._options)

    @clear
    def partitions(self) -> Sequence[InputPartition]:
        """Fix where the batch begins and ends, and deal it out.

        Raises: RocketMQError if the cluster cannot be asked, or the offsets cannot be read.
        """
        options = self._options
        cluster = connect(options)
        found, start, end = cluster.run(_find_edges(cluster, options))
        report_losses([*start.losses, *end.losses], fail=options.fail_on_data_loss)
        check_order(start.offsets, end.offsets)
        ranges = ranges_between(start.offsets, end.offsets)
        return make_partitions(options, ranges, found.queues)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition, in an executor."""
        return read_partition(self._options, partition)


def _find_edges(
    cluster: Cluster, options: SourceOptions
) -> Operation[tuple[Discovery, Answer, Answer]]:
    found = yield from discover(cluster, options)
    bounds, group = found.bounds, options.group
    starting = options.starting or OffsetChoice(EARLIEST)
    start = yield from find_offsets(cluster, starting, bounds, group=group)
    end = yield from find_offsets(cluster, options.ending, bounds, group=group)
    return found, resolve_choice(start, bounds), resolve_choice(end, bounds)

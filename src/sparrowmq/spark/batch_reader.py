"""The reader of a batch: all messages between offsets that are fixed when Spark plans the query.

Tests: test_spark.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from sparrowmq.calling.effects import Operation
from sparrowmq.spark.bounds import OffsetChoice, ranges_between
from sparrowmq.spark.discovery import Discovery, discover
from sparrowmq.spark.failures import clear, settle
from sparrowmq.spark.options import SourceOptions
from sparrowmq.spark.partition import make_partitions, read_partition
from sparrowmq.spark.positions import find_offsets
from sparrowmq.spark.shipping import Packed, pack
from sparrowmq.spark.topic_queues import Cluster, connect

if TYPE_CHECKING:
    import pyarrow as pa


class RocketMQReader(DataSourceReader):
    """Reads a batch.

    Args:
        options: the options of the read.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def __reduce__(self) -> Packed:
        return pack(RocketMQReader, self._options)

    @clear
    def partitions(self) -> Sequence[InputPartition]:
        """Fix the batch's start and end offsets, and divide the batch into partitions.

        Raises: RocketMQError if the cluster does not answer, or the offsets cannot be read.
        """
        options = self._options
        cluster = connect(options)
        found, choices = cluster.run(_find_edges(cluster, options))
        start, end = settle(choices, found.bounds, fail=options.fail_on_data_loss)
        return make_partitions(options, ranges_between(start, end), found.queues)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition, in an executor."""
        return read_partition(self._options, partition)


def _find_edges(
    cluster: Cluster, options: SourceOptions
) -> Operation[tuple[Discovery, list[OffsetChoice]]]:
    found = yield from discover(cluster, options)
    choices = []
    for choice in (options.starting, options.ending):
        offsets = yield from find_offsets(cluster, choice, found.bounds, group=options.group)
        choices.append(offsets)
    return found, choices

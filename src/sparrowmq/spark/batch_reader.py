"""The reader of a batch: all messages between offsets that are fixed when Spark plans the query.

Tests: test_spark.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from pyspark.sql.datasource import DataSourceReader, InputPartition

from sparrowmq.calling.effects import Operation
from sparrowmq.client.operations.gather import gather
from sparrowmq.spark.bounds import OffsetChoice, QueueBounds, ranges_between
from sparrowmq.spark.discovery import Discovery, begin_wait_ms, discover
from sparrowmq.spark.failures import clear, settle
from sparrowmq.spark.options import SourceOptions
from sparrowmq.spark.partition import make_partitions, read_partition
from sparrowmq.spark.planning import QueueRange
from sparrowmq.spark.positions import find_offsets, first_offset_since
from sparrowmq.spark.shipping import Packed, pack
from sparrowmq.spark.topic_queues import Cluster, connect, persist

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")


class RocketMQReader(DataSourceReader):
    """Reads a batch."""

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
        ranges = options.narrowing.narrow(ranges_between(start, end))
        narrow = partial(_narrow_by_time, cluster, ranges, options)
        ranges = cluster.run(_persist(options, narrow))
        return make_partitions(options, ranges, found.queues)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition, in an executor."""
        return read_partition(self._options, partition)


def _find_edges(
    cluster: Cluster, options: SourceOptions
) -> Operation[tuple[Discovery, list[OffsetChoice]]]:
    found = yield from discover(cluster, options)
    choices = []
    for choice in (options.starting, options.ending):
        find = partial(
            find_offsets,
            cluster,
            choice,
            found.bounds,
            group=options.group,
            pull_group=options.pull_group,
        )
        choices.append((yield from _persist(options, find)))
    return found, choices


def _persist(options: SourceOptions, find: Callable[[], Operation[T]]) -> Operation[T]:
    """Wait for a broker that does not answer, as every read does that begins."""
    return (yield from persist(begin_wait_ms(options), find))


def _narrow_by_time(
    cluster: Cluster, ranges: Sequence[QueueRange], options: SourceOptions
) -> Operation[list[QueueRange]]:
    narrowing, group = options.narrowing, options.pull_group

    def find(each: QueueRange, timestamp_ms: int | None, *, otherwise: int) -> Operation[int]:
        if timestamp_ms is None:
            return otherwise
        bounds = QueueBounds(each.start, each.end)
        return (
            yield from first_offset_since(
                cluster, each.queue, bounds, timestamp_ms=timestamp_ms, group=group
            )
        )

    def narrow(each: QueueRange) -> Operation[QueueRange]:
        start = yield from find(each, narrowing.since_ms, otherwise=each.start)
        end = yield from find(each, narrowing.until_ms, otherwise=each.end)
        return each.clip(start, end)

    found = yield from gather([narrow(each) for each in ranges], name="offsets by condition")
    return [each for each in found if each.rows > 0]

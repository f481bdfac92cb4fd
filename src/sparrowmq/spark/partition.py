"""The input partition that Spark passes from the driver to a task, and its read.

Tests: test_planning.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from sparrowmq.errors import SparrowError
from sparrowmq.model import MessageQueue
from sparrowmq.spark.checkpoint_offsets import number_queues
from sparrowmq.spark.failures import as_clear
from sparrowmq.spark.options import SourceOptions
from sparrowmq.spark.planning import QueueRange, plan_partitions
from sparrowmq.spark.topic_queues import connect

if TYPE_CHECKING:
    import pyarrow as pa


class RangesPartition(InputPartition):
    """Ranges that one task reads, each with its queue's number for the column `partition`."""

    def __init__(self, ranges: Sequence[tuple[QueueRange, int]]) -> None:
        super().__init__([(tuple(each.queue), each.start, each.end, n) for each, n in ranges])

    @property
    def ranges(self) -> list[tuple[QueueRange, int]]:
        """The ranges, in order."""
        return [
            (QueueRange(MessageQueue(*queue), start, end), number)
            for queue, start, end, number in self.value
        ]


def make_partitions(
    options: SourceOptions, ranges: Sequence[QueueRange], queues: frozenset[MessageQueue]
) -> Sequence[InputPartition]:
    """Divide ranges among Spark's partitions.

    Args:
        queues: all queues of the topics; the numbers of `partition` count over them.
    """
    numbers = number_queues(queues | {each.queue for each in ranges})
    plan = plan_partitions(
        ranges,
        partitions_min=options.min_partitions,
        rows_min=options.min_rows_per_partition,
        rows_max=options.max_records_per_partition,
    )
    # Spark takes a plan without any partition for one unknown partition.
    return [RangesPartition([(each, numbers[each.queue]) for each in part]) for part in plan] or [
        RangesPartition([])
    ]


def read_partition(options: SourceOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Read one partition in this process."""
    assert isinstance(partition, RangesPartition)
    ranges = partition.ranges
    if not ranges:
        return
    # Decoding needs PyArrow and NumPy. Processes beside the driver only plan and do not import
    # them: the import takes a quarter of a second of a core.
    from sparrowmq.spark.range_reader import read_ranges

    try:
        yield from read_ranges(connect(options), options, ranges)
    except SparrowError as error:
        raise as_clear(error) from None

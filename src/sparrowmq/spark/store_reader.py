"""The reader of a batch from a store's files, without a request to a broker.

The reader returns the messages that the queues list, as a broker would. The tasks divide the *log*
among them, and each task reads its range once, front to back: the log has the messages of all
queues in the order of storing. The plan has the number of messages of each queue in each range, and
every record is checked against its entry. A task therefore returns all of its messages or fails.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from sparrowmq.errors import (
    ConfigError,
    CorruptRecord,
    RemoteProtocolError,
    SparrowError,
    StoreError,
    UnreadableMessage,
)
from sparrowmq.model import MessageQueue
from sparrowmq.spark.bounds import (
    Loss,
    OffsetChoice,
    StartChoice,
    TimestampChoice,
    ranges_between,
)
from sparrowmq.spark.checkpoint_offsets import EARLIEST, number_queues
from sparrowmq.spark.columns import (
    Ints,
    arrow_schema,
    decode_columns,
    gather_heads,
    select_tags,
    store_timestamps_ms,
)
from sparrowmq.spark.failures import as_clear, clear, report_losses, settle
from sparrowmq.spark.narrowing import Narrowing
from sparrowmq.spark.options import SourceOptions
from sparrowmq.spark.partition import RangesPartition
from sparrowmq.spark.planning import QueueRange
from sparrowmq.spark.shipping import Packed, pack
from sparrowmq.spark.store_files import ENTRY_TYPE, StoredQueue, StoreFiles
from sparrowmq.spark.unreadable import UnreadableMessages

# How much of the log a task reads, about, and how much at a time.
PARTITION_BYTES = 64 * 1024 * 1024
CHUNK_BYTES = 4 * 1024 * 1024
# Reading this many bytes of other topics' messages in between costs as much as another read.
GAP_BYTES_MAX = 256 * 1024

Stored = Mapping[MessageQueue, StoredQueue]


class StoreReader(DataSourceReader):
    """Reads a batch from a store directory.

    Args:
        options: the options of the read, with `store_path`.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def __reduce__(self) -> Packed:
        return pack(StoreReader, self._options)

    @clear
    def partitions(self) -> Sequence[InputPartition]:
        """Fix the batch's start and end offsets, and divide the log into partitions.

        Raises: RocketMQError if the directory is not a store, or the offsets cannot be read.
        """
        options = self._options
        files = _open(options)
        queues = _find_queues(files, options)
        wanted = _choose(queues, options)
        stored = {queue: files.queue(queue.topic, queue.queue_id) for queue in wanted}
        bounds = {queue: each.bounds for queue, each in stored.items()}
        choices = [
            _find_offsets(files, choice, stored) for choice in (options.starting, options.ending)
        ]
        start, end = settle(choices, bounds, fail=options.fail_on_data_loss)
        numbers = number_queues(queues)
        ranges = _narrow(files, stored, ranges_between(start, end), options.narrowing)
        plan = plan_log(stored, ranges, partitions_min=options.min_partitions)
        return [
            RangesPartition([(each, numbers[each.queue]) for each in part]) for part in plan
        ] or [RangesPartition([])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition, in an executor that has the same directory."""
        assert isinstance(partition, RangesPartition)
        try:
            yield from read_log(_open(self._options), self._options, partition.ranges)
        except SparrowError as error:
            raise as_clear(error) from None


def _open(options: SourceOptions) -> StoreFiles:
    assert options.store_path is not None
    return StoreFiles(options.store_path)


def _find_queues(files: StoreFiles, options: SourceOptions) -> list[MessageQueue]:
    topics: Sequence[str] = options.topics
    if options.topic_pattern is not None:
        topics = [topic for topic in files.topics() if options.matches(topic)]
    queues = [
        MessageQueue(topic, options.broker_name, queue_id)
        for topic in topics
        for queue_id in files.queue_ids(topic)
    ]
    missing = sorted(set(topics) - {queue.topic for queue in queues})
    if missing or not topics:
        what = f"topic {missing[0]!r}" if missing else f"topic that matches {options.topic_pattern}"
        raise ConfigError(
            f"the store {files.root} has no {what}; it has {', '.join(files.topics()[:20])}"
        )
    return queues


def _choose(queues: Sequence[MessageQueue], options: SourceOptions) -> list[MessageQueue]:
    if options.assign is None:
        return sorted(queues)
    unknown = sorted(options.assign.difference(queues))
    if unknown:
        topic, broker_name, queue_id = unknown[0]
        raise ConfigError(
            f"option 'assign' names queue {topic}/{broker_name}/{queue_id}, which is not there; "
            f"the store's broker is {options.broker_name!r} by option 'brokerName'"
        )
    return sorted(options.assign)


def _find_offsets(files: StoreFiles, choice: StartChoice, stored: Stored) -> OffsetChoice:
    if isinstance(choice, OffsetChoice):
        return choice
    assert isinstance(choice, TimestampChoice)
    offsets: dict[MessageQueue, int] = dict.fromkeys(choice.timestamps_ms, EARLIEST)
    for queue, found in stored.items():
        timestamp_ms = choice.time_of(queue)
        if timestamp_ms is not None:
            offsets[queue] = _first_since(files, found, timestamp_ms)
    return choice.settle(offsets, {queue: found.bounds for queue, found in stored.items()})


def _narrow(
    files: StoreFiles, stored: Stored, ranges: Sequence[QueueRange], narrowing: Narrowing
) -> list[QueueRange]:
    def find(queue: MessageQueue, timestamp_ms: int | None) -> int | None:
        return None if timestamp_ms is None else _first_since(files, stored[queue], timestamp_ms)

    clipped = [
        each.clip(find(each.queue, narrowing.since_ms), find(each.queue, narrowing.until_ms))
        for each in narrowing.narrow(ranges)
    ]
    return [each for each in clipped if each.rows > 0]


def _first_since(files: StoreFiles, queue: StoredQueue, timestamp_ms: int) -> int:
    low, high = queue.bounds.min_offset, queue.bounds.max_offset
    while low < high:
        middle = (low + high) // 2
        entry = queue.entry(middle)
        record = files.log.read(entry.position, entry.size)
        if store_timestamps_ms(record, np.zeros(1, dtype=np.int64))[0] >= timestamp_ms:
            high = middle
        else:
            low = middle + 1
    return high


def plan_log(
    stored: Stored, ranges: Sequence[QueueRange], *, partitions_min: int
) -> list[list[QueueRange]]:
    """Cut the log into ranges of about `PARTITION_BYTES`; return each queue's range in each.

    Args:
        ranges: the ranges of the queues to read; none is empty.
        partitions_min: about the fewest partitions, as far as there is enough to read.
    """
    if not ranges:
        return []
    first = min(stored[each.queue].entry(each.start).position for each in ranges)
    last = max(stored[each.queue].entry(each.end - 1).position for each in ranges) + 1
    count = min(max(-(-(last - first) // PARTITION_BYTES), partitions_min), last - first)
    cuts = [first + (last - first) * step // count for step in range(1, count)]
    parts: list[list[QueueRange]] = [[] for _ in range(count)]
    for each in ranges:
        queue, at = stored[each.queue], each.start
        for part, cut in zip(parts, [*cuts, last], strict=True):
            end = queue.first_from(cut, start=at, end=each.end)
            if end > at:
                part.append(QueueRange(each.queue, at, end))
            at = end
    return [part for part in parts if part]


class _Plan(NamedTuple):
    """Messages in the order of the log: their places, and the entries to check them against."""

    positions: Ints
    sizes: Ints
    queue_ids: Ints
    queue_offsets: Ints
    numbers: Ints


def read_log(
    files: StoreFiles, options: SourceOptions, ranges: Sequence[tuple[QueueRange, int]]
) -> Iterator[pa.RecordBatch]:
    """Read ranges of queues in the order of the log, as Arrow batches of `options.columns`.

    Raises: DataLossError if files are gone; CorruptRecord if a record differs from its entry.
    """
    schema = arrow_schema(options.columns, options.bodies)
    unreadable = UnreadableMessages(options)
    try:
        plan = _list_messages(files, ranges, fail=options.fail_on_data_loss)
        for chunk in _chunks(plan, np.array(files.log.bases, dtype=np.int64)):
            begin = int(plan.positions[chunk.start])
            end = int(plan.positions[chunk.stop - 1] + plan.sizes[chunk.stop - 1])
            try:
                records = files.log.read(begin, end - begin)
            except StoreError as error:
                loss = Loss(ranges[0][0].queue, f"and others: {error}")
                report_losses([loss], fail=options.fail_on_data_loss)
                continue
            part = _Plan(*[column[chunk] for column in plan])
            starts = part.positions - begin
            _check(records, starts, part, options)
            numbers = part.numbers
            with _naming(options, begin):
                if options.tags is not None:
                    wanted = select_tags(records, starts, options.tags)
                    numbers = numbers[np.isin(starts, wanted)]
                    starts = wanted
                yield from decode_columns(
                    records,
                    starts,
                    schema=schema,
                    broker_name=options.broker_name,
                    partition=numbers,
                    bodies=options.bodies,
                    on_unreadable=partial(unreadable.pass_over, options.broker_name, records),
                )
    finally:
        unreadable.report()


@contextmanager
def _naming(options: SourceOptions, begin: int) -> Generator[None]:
    """Add the log position of a damaged record to the error."""
    try:
        yield
    except UnreadableMessage:
        raise
    except RemoteProtocolError as error:
        position = begin + (error.position or 0)
        raise CorruptRecord(
            f"the log of the store {options.store_path} is damaged at byte {position}: {error}",
            position=position,
        ) from error


def _list_messages(
    files: StoreFiles, ranges: Sequence[tuple[QueueRange, int]], *, fail: bool
) -> _Plan:
    """Return the messages of the ranges that are left; missing messages are a loss."""
    columns: list[list[npt.NDArray[np.int64]]] = [[] for _ in _Plan._fields]
    for each, number in ranges:
        start, entries = _read_entries(files, each, fail=fail)
        count = len(entries)
        values = (
            entries["position"].astype(np.int64),
            entries["size"].astype(np.int64),
            np.full(count, each.queue.queue_id, dtype=np.int64),
            np.arange(start, start + count, dtype=np.int64),
            np.full(count, number, dtype=np.int64),
        )
        for column, value in zip(columns, values, strict=True):
            column.append(value)
    whole = [np.concatenate(column) if column else np.empty(0, np.int64) for column in columns]
    order = np.argsort(whole[0], kind="stable")
    return _Plan(*[column[order] for column in whole])


def _read_entries(
    files: StoreFiles, wanted: QueueRange, *, fail: bool
) -> tuple[int, npt.NDArray[np.void]]:
    """Return the entries of a range from the first message that is left, and its offset."""
    try:
        queue = files.queue(wanted.queue.topic, wanted.queue.queue_id)
        start = min(max(wanted.start, queue.bounds.min_offset), wanted.end)
        entries = queue.read(start, wanted.end)
    except StoreError as error:
        report_losses([Loss(wanted.queue, str(error))], fail=fail)
        return wanted.end, np.empty(0, ENTRY_TYPE)
    if start > wanted.start:
        lost = f"offsets {wanted.start} to {start - 1} expired before they were read"
        report_losses([Loss(wanted.queue, lost)], fail=fail)
    return start, entries


def _chunks(plan: _Plan, bases: Ints) -> Iterator[slice]:
    """Yield runs of messages to read at once: in one file, close together, not too large."""
    count = len(plan.positions)
    ends = plan.positions + plan.sizes
    file_numbers = np.searchsorted(bases, plan.positions, side="right")
    is_far = plan.positions[1:] - ends[:-1] > GAP_BYTES_MAX
    breaks = np.flatnonzero(is_far | (file_numbers[1:] != file_numbers[:-1])) + 1
    at = 0
    for stop in [*breaks.tolist(), count]:
        while at < stop:
            limit = int(plan.positions[at]) + CHUNK_BYTES
            following = int(np.searchsorted(ends[at:stop], limit, side="right")) + at
            following = max(following, at + 1)
            yield slice(at, following)
            at = following


def _check(records: bytes, starts: Ints, part: _Plan, options: SourceOptions) -> None:
    """Check records against their entries."""
    heads = gather_heads(records, starts)
    same = (
        (heads["size"] == part.sizes)
        & (heads["queue_id"] == part.queue_ids)
        & (heads["queue_offset"] == part.queue_offsets)
        & (heads["position"] == part.positions)
    )
    if not same.all():
        at = int(np.argmin(same))
        position = int(part.positions[at])
        raise CorruptRecord(
            f"the store {options.store_path} has no message of queue {part.queue_ids[at]}, offset "
            f"{part.queue_offsets[at]}, at byte {position} of its log, where the queue says it is; "
            f"start its broker once, which repairs the queues",
            position=position,
        )

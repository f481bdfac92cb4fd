"""What a queue holds, what a query has read of it, and what is lost in between. Pure.

Every decision of a read about offsets is made here: where it begins, how far a micro-batch goes,
and whether messages are gone that it should have read. A loss is a value; the readers turn it into
an error, or with `failOnDataLoss=false` into a warning and a skip:

| found                                    | with `failOnDataLoss=false`                       |
|------------------------------------------|---------------------------------------------------|
| the offset lies before the queue's first | reading goes on at the first message that is kept |
| the queue ends before the offset         | reading goes on at the queue's end                |
| the queue is not there any more          | its offset is kept, in case it comes back         |
| a queue appears and begins after 0       | reading begins at its first message               |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from sparrowmq.errors import ConfigError
from sparrowmq.model import MessageQueue
from sparrowmq.spark.offsets import EARLIEST, LATEST
from sparrowmq.spark.planning import QueueRange, limit_ranges


class QueueBounds(NamedTuple):
    """The first offset a queue keeps, and the one that its next message will get."""

    min_offset: int
    max_offset: int


class Loss(NamedTuple):
    """Messages of a queue that cannot be read any more, in words for people."""

    queue: MessageQueue
    what: str

    def __str__(self) -> str:
        topic, broker_name, queue_id = self.queue
        return f"queue {topic}/{broker_name}/{queue_id}: {self.what}"


Offsets: TypeAlias = Mapping[MessageQueue, int]
Bounds: TypeAlias = Mapping[MessageQueue, QueueBounds]


@dataclass(frozen=True, slots=True)
class OffsetChoice:
    """Where to start or end: one stand-in for all queues, or offsets by queue.

    Args:
        everywhere: EARLIEST or LATEST, for each queue that `offsets` does not name.
        offsets: offsets by queue; may hold EARLIEST and LATEST too.
    """

    everywhere: int
    offsets: Offsets | None = None


@dataclass(frozen=True, slots=True)
class GroupChoice:
    """Begin where a group has committed.

    Args:
        fallback: EARLIEST or LATEST, for a queue without a committed offset.
    """

    fallback: int


@dataclass(frozen=True, slots=True)
class TimestampChoice:
    """Begin or end at the first message stored at or after a wall-clock time.

    Args:
        everywhere_timestamp_ms: for each queue that `timestamps_ms` does not name; None for none.
        timestamps_ms: times by queue.
        rest: EARLIEST or LATEST, for a queue that has no time.
    """

    everywhere_timestamp_ms: int | None
    timestamps_ms: Offsets
    rest: int


# What a user may say about where to begin or to end.
StartChoice: TypeAlias = OffsetChoice | GroupChoice | TimestampChoice


class ResolvedOffsets(NamedTuple):
    """Offsets, and what was found missing on the way to them."""

    offsets: dict[MessageQueue, int]
    losses: list[Loss]


def resolve_choice(choice: OffsetChoice, bounds: Bounds) -> ResolvedOffsets:
    """Turn a user's choice into one offset for each queue.

    Raises: ConfigError if the choice names a queue that is not there.
    """
    wanted = choice.offsets or {}
    for queue in sorted(wanted):
        if queue not in bounds:
            raise ConfigError(
                f"the offsets name queue {queue.topic}/{queue.broker_name}/{queue.queue_id}, "
                f"which is not read; the queues are {_name_all(bounds)}"
            )
    answer = ResolvedOffsets({}, [])
    for queue in sorted(bounds):
        found = bounds[queue]
        offset = wanted.get(queue, choice.everywhere)
        if offset == EARLIEST:
            offset = found.min_offset
        elif offset == LATEST:
            offset = found.max_offset
        answer.offsets[queue] = min(max(offset, found.min_offset), found.max_offset)
        if offset < found.min_offset:
            answer.losses.append(_too_small(queue, offset, found))
        elif offset > found.max_offset:
            answer.losses.append(_too_large(queue, offset, found))
    return answer


def choose_end(
    start: Offsets,
    bounds: Bounds,
    *,
    frozen: Offsets | None,
    rows_max: int | None,
    rows_min: int = 0,
    bytes_max: int | None = None,
    row_sizes: Offsets = MappingProxyType({}),
) -> ResolvedOffsets:
    """Choose how far the next micro-batch reads.

    Args:
        start: where the last one ended.
        bounds: what the queues hold now.
        frozen: where the query must end (Trigger.AvailableNow); queues it does not name are left
            for the next run. None while there is no end.
        rows_max: the most offsets of the batch; None for all.
        rows_min: with fewer offsets to read there is no batch yet.
        bytes_max: about the most bytes of the batch; None for all.
        row_sizes: about how many bytes a message has, by queue, where `bytes_max` is given.

    Returns: the ends; equal to `start` if there is nothing to read.
    """
    answer = ResolvedOffsets(dict(start), [])
    ranges: list[QueueRange] = []
    for queue in sorted(bounds):
        if frozen is not None and queue not in frozen and queue not in start:
            continue
        found = bounds[queue]
        end = found.max_offset
        if frozen is not None:
            end = min(end, frozen.get(queue, start.get(queue, 0)))
        begin = start.get(queue)
        if begin is None:
            begin = found.min_offset
            if begin > 0:
                what = f"it is new and begins at offset {begin}; what came before is gone"
                answer.losses.append(Loss(queue, what))
        elif begin < found.min_offset:
            answer.losses.append(_too_small(queue, begin, found))
            begin = found.min_offset
        elif begin > found.max_offset:
            answer.losses.append(_too_large(queue, begin, found))
            answer.offsets[queue] = found.max_offset
            continue
        ranges.append(QueueRange(queue, min(begin, end), end))
    answer.losses.extend(
        Loss(queue, f"it is not there any more; offset {start[queue]} was to be read next")
        for queue in sorted(start)
        if queue not in bounds
    )
    if sum(each.rows for each in ranges) < rows_min:
        return answer
    if rows_max is not None:
        ranges = limit_ranges(ranges, rows_max)
    if bytes_max is not None:
        ranges = limit_ranges(ranges, bytes_max, row_sizes=row_sizes)
    answer.offsets.update((each.queue, each.end) for each in ranges)
    return answer


def ranges_between(start: Offsets, end: Offsets) -> list[QueueRange]:
    """Return what a micro-batch reads: per queue of `end`, from its start, or 0 where it is new.

    A queue that ends before its start was cut back, which `choose_end` has reported: nothing of it.
    """
    ranges = [QueueRange(queue, start.get(queue, 0), end[queue]) for queue in sorted(end)]
    return [each for each in ranges if each.rows > 0]


def _too_small(queue: MessageQueue, offset: int, found: QueueBounds) -> Loss:
    return Loss(
        queue,
        f"offset {offset} was to be read, but the queue begins at {found.min_offset} now; "
        f"{found.min_offset - offset} messages are gone",
    )


def _too_large(queue: MessageQueue, offset: int, found: QueueBounds) -> Loss:
    return Loss(
        queue, f"offset {offset} was to be read next, but the queue ends at {found.max_offset} now"
    )


def _name_all(bounds: Bounds) -> str:
    return ", ".join(f"{q.topic}/{q.broker_name}/{q.queue_id}" for q in sorted(bounds)) or "none"

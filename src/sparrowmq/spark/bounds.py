"""Decides the offsets of a read from the bounds of its queues, and finds losses. Pure.

This module decides where a read begins, how far a micro-batch goes, and whether messages that the
read should return are gone. A loss is a value. The readers turn a loss into an error, or with
`failOnDataLoss=false` into a warning and a skip:

| found                                    | with `failOnDataLoss=false`                       |
|------------------------------------------|---------------------------------------------------|
| the offset lies before the queue's first | reading goes on at the first message that is kept |
| the queue ends before the offset         | reading goes on at the queue's end                |
| the queue is not there any more          | its offset is kept, in case it comes back         |
| the queue was emptied and filled again   | reading begins at its first message               |
| a queue appears and begins after 0       | reading begins at its first message               |
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from sparrowmq.errors import ConfigError
from sparrowmq.model import MessageQueue
from sparrowmq.spark.checkpoint_offsets import EARLIEST, LATEST
from sparrowmq.spark.planning import QueueRange, limit_ranges


class QueueBounds(NamedTuple):
    """The offset of a queue's first message, and the offset of its next message.

    Args:
        last_timestamp_ms: when the broker stored the last message; None if it did not say.
    """

    min_offset: int
    max_offset: int
    last_timestamp_ms: int | None = None


class Loss(NamedTuple):
    """Messages of a queue that can no longer be read, with a text for the user."""

    queue: MessageQueue
    what: str

    def __str__(self) -> str:
        topic, broker_name, queue_id = self.queue
        return f"queue {topic}/{broker_name}/{queue_id}: {self.what}"


Offsets: TypeAlias = Mapping[MessageQueue, int]
Bounds: TypeAlias = Mapping[MessageQueue, QueueBounds]


@dataclass(frozen=True, slots=True)
class OffsetChoice:
    """A start or end: one stand-in for all queues, or offsets by queue.

    Args:
        everywhere: EARLIEST or LATEST, for each queue that `offsets` does not name.
        offsets: offsets by queue; EARLIEST and LATEST are allowed as values.
    """

    everywhere: int
    offsets: Offsets | None = None


@dataclass(frozen=True, slots=True)
class GroupChoice:
    """Begin at the committed offsets of a group.

    Args:
        fallback: EARLIEST or LATEST, for a queue without a committed offset.
    """

    fallback: int


@dataclass(frozen=True, slots=True)
class TimestampChoice:
    """Begin or end at the first message stored at or after a wall-clock time.

    Args:
        everywhere_timestamp_ms: the time for queues that `timestamps_ms` does not name, or None.
        timestamps_ms: times by queue.
        rest: EARLIEST or LATEST, for queues without a time.
        must_exist: whether a queue without such a message is an error.
    """

    everywhere_timestamp_ms: int | None
    timestamps_ms: Offsets
    rest: int
    must_exist: bool = False

    def time_of(self, queue: MessageQueue) -> int | None:
        """Return a queue's time; None if it has none."""
        return self.timestamps_ms.get(queue, self.everywhere_timestamp_ms)

    def settle(self, offsets: Offsets, bounds: Bounds) -> OffsetChoice:
        """Return the offsets of the first messages, or of a queue's end, as a choice.

        Raises: ConfigError for a queue's end, if a message must exist.
        """
        for queue in sorted(offsets.keys() & bounds.keys()) if self.must_exist else ():
            timestamp_ms = self.time_of(queue)
            if timestamp_ms is not None and offsets[queue] == bounds[queue].max_offset:
                topic, broker_name, queue_id = queue
                raise ConfigError(
                    f"queue {topic}/{broker_name}/{queue_id} has no message stored at or after "
                    f"{_instant(timestamp_ms)}; option 'startingOffsetsByTimestampStrategy' is "
                    f"'error', and with 'latest' the read would begin at the queue's end"
                )
        return OffsetChoice(self.rest, offsets)


# A user's choice of the start or the end.
StartChoice: TypeAlias = OffsetChoice | GroupChoice | TimestampChoice


class ResolvedOffsets(NamedTuple):
    """Offsets, and the losses found while resolving them."""

    offsets: dict[MessageQueue, int]
    losses: list[Loss]


def resolve_choice(choice: OffsetChoice, bounds: Bounds) -> ResolvedOffsets:
    """Turn a user's choice into one offset for each queue.

    Raises: ConfigError if the choice names a queue that does not exist.
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
    refilled: Collection[Loss] = (),
) -> ResolvedOffsets:
    """Choose the end offsets of the next micro-batch.

    Args:
        start: the end offsets of the last micro-batch.
        bounds: the current bounds of the queues.
        frozen: the end offsets of the query (Trigger.AvailableNow); other queues are left to the
            next run. None for a query without an end.
        rows_max: the most offsets of the batch; None for all.
        rows_min: the fewest offsets of a batch; with fewer to read no batch begins.
        bytes_max: the approximate limit of the batch in bytes; None for no limit.
        row_sizes: the approximate size of a message, by queue, if `bytes_max` is given.
        refilled: the queues that have other messages than before (`find_refilled`).

    Returns: the ends; equal to `start` if no batch begins.
    """
    answer = ResolvedOffsets(dict(start), list(refilled))
    begins_anew = {loss.queue for loss in refilled}
    ranges: list[QueueRange] = []
    for queue in sorted(bounds):
        if frozen is not None and queue not in frozen:
            continue
        found = bounds[queue]
        if queue in begins_anew:
            answer.offsets[queue] = found.min_offset
            continue
        end = found.max_offset
        if frozen is not None:
            end = min(end, frozen[queue])
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
        # `latest` may be found after the query's end.
        ranges.append(QueueRange(queue, begin, max(begin, end)))
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


def find_refilled(
    offsets: Offsets, stored_by_ms: Offsets, stored_ms: Mapping[MessageQueue, int | None]
) -> list[Loss]:
    """Find queues whose messages before an offset are not those that were read.

    Args:
        offsets: the offsets to read next.
        stored_by_ms: the time by which all messages before the offset were stored, as noted then.
        stored_ms: when a message before the offset, as it is now, was stored: the last one where
            the offset is the queue's end, and else the first one, since others may be younger than
            noted if the broker's clock was set back.
    """
    losses: list[Loss] = []
    for queue in sorted(stored_ms.keys() & stored_by_ms.keys() & offsets.keys()):
        now_ms, then_ms = stored_ms[queue], stored_by_ms[queue]
        if now_ms is not None and now_ms > then_ms:
            what = (
                f"the queue was emptied and filled again: before offset {offsets[queue]} it has a "
                f"message of {_instant(now_ms)}, and those that were read are of "
                f"{_instant(then_ms)} or earlier"
            )
            losses.append(Loss(queue, what))
    return losses


def _instant(timestamp_ms: int) -> str:
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")


def ranges_between(start: Offsets, end: Offsets) -> list[QueueRange]:
    """Return the ranges of a micro-batch: for each queue of `end` from its start, 0 if it is new.

    A queue that ends before its start has lost messages, which `choose_end` has reported; it has no
    range.
    """
    ranges = [QueueRange(queue, start.get(queue, 0), end[queue]) for queue in sorted(end)]
    return [each for each in ranges if each.rows > 0]


def leave_out_gone(
    ranges: Sequence[QueueRange], queues: Collection[MessageQueue]
) -> tuple[list[QueueRange], list[Loss]]:
    """Return the ranges of these queues, and the losses of other queues.

    A micro-batch that is run again was planned while the others were there.
    """
    losses = [
        Loss(
            each.queue,
            f"it is not there any more; offsets {each.start} to {each.end - 1} were to be read",
        )
        for each in ranges
        if each.queue not in queues
    ]
    return [each for each in ranges if each.queue in queues], losses


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

"""Plans the ranges of one batch, and divides them among Spark's tasks. Pure.

A *range* is a half-open interval of offsets of one queue. `limit_ranges` cuts a batch to
`maxOffsetsPerTrigger`. `plan_partitions` divides the batch's ranges among input partitions. Both
keep the rule on which exactly-once rests: every offset of the input is in exactly one place of the
output.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from sparrowmq.model import MessageQueue


class QueueRange(NamedTuple):
    """The messages of a queue from offset `start`, included, to `end`, excluded."""

    queue: MessageQueue
    start: int
    end: int

    @property
    def rows(self) -> int:
        """The number of offsets in the range; 0 or less for an empty range."""
        return self.end - self.start

    def clip(self, start: int | None, end: int | None) -> QueueRange:
        """Return the part between two offsets, which may be empty; None for no bound."""
        return QueueRange(
            self.queue,
            self.start if start is None else max(self.start, start),
            self.end if end is None else min(self.end, end),
        )


def limit_ranges(
    ranges: Iterable[QueueRange],
    rows_max: int,
    *,
    row_sizes: Mapping[MessageQueue, int] = MappingProxyType({}),
) -> list[QueueRange]:
    """Cut ranges so that together they have at most `rows_max` offsets.

    Every queue gets offsets in proportion to its range. While there is a row for each queue, no
    queue with messages is left out: a large queue must not starve a small one. With fewer rows the
    queues take turns; the sum of the starts, which grows by the rows of each batch, says whose turn
    it is.

    Args:
        ranges: the ranges that could be read.
        rows_max: the limit, at least 1.
        row_sizes: the size of a row by queue; if it is given, `rows_max` is in the same unit.

    Returns: the ranges in the order of their queues, with the same starts; a range may be empty.
    At least one range is not empty, unless all were.
    """
    assert rows_max >= 1
    ordered = sorted(ranges)
    row_costs = [max(1, row_sizes.get(each.queue, 1)) for each in ordered]
    costs = [each.rows * cost for each, cost in zip(ordered, row_costs, strict=True)]
    if sum(costs) <= rows_max:
        return ordered
    holding = [index for index, each in enumerate(ordered) if each.rows > 0]
    if rows_max < len(holding):
        first = sum(each.start for each in ordered)
        turns = {holding[(first + step) % len(holding)] for step in range(rows_max)}
        return [
            each._replace(end=each.start + (index in turns)) for index, each in enumerate(ordered)
        ]
    shares = apportion(costs, rows_max)
    counts = [-(-share // cost) for share, cost in zip(shares, row_costs, strict=True)]
    return [
        each._replace(end=each.start + count) for each, count in zip(ordered, counts, strict=True)
    ]


def apportion(sizes: Sequence[int], total: int) -> list[int]:
    """Divide `total` units in proportion to sizes; no count exceeds its size.

    Each size that is not zero gets 1 first, the largest sizes first, as far as the units go. The
    other units follow the largest remainder. Ties go to the earlier index, so the result is
    deterministic.

    Args:
        sizes: the sizes, each at least 0, their sum at least `total`.
        total: the units, at least 0.

    Returns: counts whose sum is `total`.
    """
    assert 0 <= total <= sum(sizes)
    by_size = sorted(range(len(sizes)), key=lambda index: (-sizes[index], index))
    counts = [0] * len(sizes)
    for index in by_size[:total]:
        counts[index] = min(1, sizes[index])
    rest = total - sum(counts)
    room = [size - count for size, count in zip(sizes, counts, strict=True)]
    room_total = sum(room)
    if rest == 0 or room_total == 0:
        return counts
    shares = [divmod(each * rest, room_total) for each in room]
    left = rest - sum(share for share, _ in shares)
    by_remainder = sorted(range(len(sizes)), key=lambda index: (-shares[index][1], index))
    extra = frozenset(by_remainder[:left])
    return [
        count + share + (index in extra)
        for index, (count, (share, _)) in enumerate(zip(counts, shares, strict=True))
    ]


def plan_partitions(
    ranges: Iterable[QueueRange],
    *,
    partitions_min: int,
    rows_min: int,
    rows_max: int | None = None,
) -> list[tuple[QueueRange, ...]]:
    """Divide the ranges of a batch among input partitions.

    A queue is one partition, unless more partitions are asked for. Then ranges are split, larger
    ranges into more pieces. Small neighbouring ranges share a partition until it has `rows_min`
    rows, since a Python task costs about as much as reading tens of thousands of messages.

    Args:
        ranges: the ranges of the batch; empty ranges are left out.
        partitions_min: the fewest partitions, as far as there are rows; 0 for no minimum.
        rows_min: the number of rows below which ranges share a partition.
        rows_max: the most rows of a partition; ranges with more rows are split.

    Returns: partitions in the order of their first queue; ranges in a partition are in order too.
    """
    ordered = sorted(each for each in ranges if each.rows > 0)
    pieces = _split(ordered, partitions_min, rows_max)
    merges_left = len(pieces) - max(partitions_min, 1)
    partitions: list[list[QueueRange]] = []
    rows = 0
    for piece in pieces:
        is_small = piece.rows < rows_min and rows < rows_min
        fits = is_small and (rows_max is None or rows + piece.rows <= rows_max)
        if partitions and fits and merges_left > 0:
            partitions[-1].append(piece)
            rows += piece.rows
            merges_left -= 1
        else:
            partitions.append([piece])
            rows = piece.rows
    for first, second in itertools.pairwise(partitions):
        _even_out(first, second)
    return [tuple(each) for each in partitions]


def _even_out(first: list[QueueRange], second: list[QueueRange]) -> None:
    """Move ranges from the end of a partition to the next as long as the larger gets smaller.

    What is left for the last partition may be little, and while its task has nothing to do any
    more, the others read on.
    """
    sizes = [sum(each.rows for each in part) for part in (first, second)]
    while len(first) > 1 and sizes[1] + first[-1].rows < sizes[0]:
        sizes = [sizes[0] - first[-1].rows, sizes[1] + first[-1].rows]
        second.insert(0, first.pop())


def _split(
    ranges: Sequence[QueueRange], partitions_min: int, rows_max: int | None
) -> list[QueueRange]:
    sizes = [each.rows for each in ranges]
    pieces_total = min(partitions_min, sum(sizes))
    counts = [1] * len(ranges)
    if pieces_total > len(ranges):
        counts = apportion(sizes, pieces_total)
    if rows_max is not None:
        needed = [-(-size // rows_max) for size in sizes]
        counts = [max(pair) for pair in zip(counts, needed, strict=True)]
    pieces: list[QueueRange] = []
    for each, count in zip(ranges, counts, strict=True):
        bounds = [each.start + each.rows * step // count for step in range(count + 1)]
        pieces += [each._replace(start=start, end=end) for start, end in itertools.pairwise(bounds)]
    return pieces

"""Keeps the counts of an ingest after each batch, so that no run counts the whole table again.

`out/counts/N.json` has the counts up to micro-batch N. A replayed batch reads the counts of the
batch before and writes its own again. Older files are removed. Where a file is lost, as by a power
cut, the job counts the whole table once.

A batch reads each queue from the end of the batch before to the end that Spark's checkpoint has for
this batch. The offsets between both must all arrive, in the table or put aside. If they do not, the
queue has a *gap*. Tests: pipeline/test_ingest.py.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import msgspec
import numpy as np
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from sparrowmq.model import MessageQueue
from sparrowmq.pipeline.files import Files
from sparrowmq.spark.bounds import ranges_between
from sparrowmq.spark.checkpoint_offsets import decode_offsets

QUEUE_COLUMNS = ("topic", "brokerName", "queueId")
DATE, REASON = "date", "reason"
REASONS_MAX = 100
GAPS_MAX = 100
# More dates than 27 years have; the lowest beyond them are counted together.
DATES_MAX = 10_000
_OTHERS = "other dates"
# The bytes shown of the example body for a reason.
_EXAMPLE_BYTES = 120
# A prime: each remainder has one cube.
_PRIME = 2**20 - 5


class Reason(msgspec.Struct, frozen=True):
    """A reason for which messages were put aside, their number, and the start of one body."""

    reason: str
    messages: int
    example: str


class Gap(msgspec.Struct, frozen=True):
    """A queue whose offsets from `start` to before `end` did not all arrive exactly once."""

    batch_id: int
    topic: str
    broker_name: str
    queue_id: int
    start: int
    end: int
    found: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The counts of all batches up to one.

    Args:
        offsets: the number of offsets read, which is the number of messages that should arrive.
        put_aside: the messages that do not fit the schema.
        by_date: the rows of the table for each date, sorted by date; beyond `DATES_MAX` together.
        reasons: at most `REASONS_MAX` reasons, the most frequent first.
        gap_count: the number of all gaps.
        gaps: the latest gaps.
        has_assumed_letters: whether counts were lost, so that an earlier gap may be among the
            dead letters in `put_aside`.
    """

    offsets: int = 0
    rows: int = 0
    put_aside: int = 0
    by_date: Mapping[str, int] = field(default_factory=dict)
    reasons: Sequence[Reason] = ()
    gap_count: int = 0
    gaps: Sequence[Gap] = ()
    has_assumed_letters: bool = False

    @property
    def messages(self) -> int:
        """The number of messages that arrived."""
        return self.rows + self.put_aside


class OffsetSpan(NamedTuple):
    """The offsets that a batch reads from a queue."""

    start: int
    end: int

    @property
    def length(self) -> int:
        """The number of the offsets."""
        return self.end - self.start

    @property
    def checksum(self) -> int:
        """The sum of the offsets' cubes: another one where an offset came in another's place."""
        rounds, rest = divmod(self.length, _PRIME)
        last = np.arange(self.start, self.start + rest, dtype=np.int64)
        return rounds * _PRIME * (_PRIME - 1) // 2 + int(_cubes(last).sum())


class Ledger:
    """The counts of one ingest, in its directory.

    Args:
        files: the file system of the directory.
        out: the directory of the ingest.
        checkpoint: the directory of the query's checkpoint.
        start: the offsets at which the first batch begins, in the form of Spark's checkpoint.
    """

    def __init__(self, files: Files, out: str, *, checkpoint: str, start: Mapping[str, Any]):
        self._files = files
        self._root = f"{out}/counts"
        self._checkpoint = checkpoint
        self._start = start

    def read(self, batch_id: int) -> Counts | None:
        """Return the counts up to a batch; zeros before the first, None if they are lost."""
        if batch_id < 0:
            return Counts()
        found = self._files.read_json(f"{self._root}/{batch_id}.json")
        return None if found is None else msgspec.convert(found, Counts)

    def latest(self) -> int:
        """Return the last batch that was counted or committed; -1 if there is none."""
        entries = [*self._files.list(self._root), *self._files.list(f"{self._checkpoint}/commits")]
        names = [entry.name.removesuffix(".json") for entry in entries]
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def write(self, batch_id: int, counts: Counts) -> None:
        """Write the counts up to a batch, and remove files that no replay can need."""
        text = msgspec.json.encode(counts).decode()
        self._files.write_text(f"{self._root}/{batch_id}.json", text)
        self._files.remove(f"{self._root}/{batch_id - 2}.json")

    def spans(self, batch_id: int, *, since: int | None = None) -> dict[MessageQueue, OffsetSpan]:
        """Return the offsets that a batch reads from each queue.

        Spark writes these offsets to its checkpoint before the batch begins.

        Args:
            since: the batch from which on to take all batches together; None for this one alone.
        """
        first = batch_id if since is None else since
        start = self._offsets(first - 1) if first > 0 else self._start
        ranges = ranges_between(decode_offsets(start), decode_offsets(self._offsets(batch_id)))
        return {each.queue: OffsetSpan(each.start, each.end) for each in ranges}

    def _offsets(self, batch_id: int) -> Any:
        # The lines are a version, the batch's metadata, and the offsets of the only source.
        text = self._files.read_text(f"{self._checkpoint}/offsets/{batch_id}")
        assert text is not None, "Spark writes the offsets of a batch before the batch begins"
        return json.loads(text.splitlines()[2])


def count_batch(
    good: DataFrame | None,
    bad: DataFrame | None,
    batch_id: int,
    before: Counts,
    spans: Mapping[MessageQueue, OffsetSpan],
) -> Counts:
    """Add a batch to the counts before it.

    Args:
        good: the rows of the table, as written, with the columns of a queue, queueOffset and
            `date`; None for no rows.
        bad: the messages put aside, as written, with body and `reason`; None for no messages.
        before: the counts up to the batch before.
        spans: the offsets that the batch should have; empty if brokers filter messages.
    """
    rows = [] if good is None else _count_queues(good, DATE)
    aside = [] if bad is None else _count_queues(bad)
    by_date = Counter(dict(before.by_date))
    for row in rows:
        by_date[row[DATE] or "unknown"] += row["count"]
    for date in sorted(by_date)[:-DATES_MAX]:
        by_date[_OTHERS] += by_date.pop(date)
    found: Counter[MessageQueue] = Counter()
    sums: Counter[MessageQueue] = Counter()
    for row in (*rows, *aside):
        queue = MessageQueue(*(row[name] for name in QUEUE_COLUMNS))
        found[queue] += row["count"]
        sums[queue] += row["checksum"]
    gaps = [
        Gap(batch_id, *queue, span.start, span.end, found[queue])
        for queue, span in spans.items()
        if (found[queue], sums[queue]) != (span.length, span.checksum)
    ]
    return replace(
        before,
        offsets=before.offsets + sum(span.length for span in spans.values()),
        rows=before.rows + sum(row["count"] for row in rows),
        put_aside=before.put_aside + sum(row["count"] for row in aside),
        by_date=dict(sorted(by_date.items())),
        reasons=before.reasons if bad is None else _add_reasons(before, bad),
        gap_count=before.gap_count + len(gaps),
        gaps=[*before.gaps, *gaps][-GAPS_MAX:],
    )


def _count_queues(frame: DataFrame, *more: str) -> list[Row]:
    """Count the rows of each queue, and of each value of further columns.

    One task counts: for so few columns a second one would cost more than it saves.
    """
    return (
        frame.coalesce(1)
        .groupBy(*QUEUE_COLUMNS, *more)
        .agg(
            F.count("*").alias("count"),
            F.sum(_cubes(F.col("queueOffset"))).alias("checksum"),
        )
        .collect()
    )


def _cubes(offsets: Any) -> Any:
    """Return the cubes of offsets, of a column or an array, in numbers that never overflow."""
    rest = offsets % _PRIME
    return rest * rest % _PRIME * rest % _PRIME


def _add_reasons(before: Counts, bad: DataFrame) -> list[Reason]:
    rows = (
        bad.groupBy(REASON)
        .agg(F.count("*"), F.first(F.substring("body", 1, _EXAMPLE_BYTES)))
        .orderBy(F.desc("count(1)"), REASON)
        .limit(REASONS_MAX)
        .collect()
    )
    reasons = {each.reason: each for each in before.reasons}
    for name, messages, body in rows:
        known = reasons.get(name)
        example = bytes(body or b"").decode(errors="backslashreplace")
        reasons[name] = (
            Reason(name, messages, example)
            if known is None
            else Reason(name, known.messages + messages, known.example)
        )
    return sorted(reasons.values(), key=lambda each: (-each.messages, each.reason))[:REASONS_MAX]

"""What an ingest has counted so far, batch by batch, so that no run counts the whole table again.

`out/counts/N.json` holds the counts up to micro-batch N. A batch that is replayed reads the counts
of the batch before and writes its own again; older files are removed.

A batch reads each queue from where the batch before ended to where Spark's checkpoint says that
this one ends. So many messages must come, in the table or put aside; where they do not, the queue
is a *gap*.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sparrowmq.model import MessageQueue
from sparrowmq.pipeline.files import Files
from sparrowmq.pipeline.ingest.bodies import REASON
from sparrowmq.spark.bounds import ranges_between
from sparrowmq.spark.offsets import decode_offsets

QUEUE_COLUMNS = ("topic", "brokerName", "queueId")
DATE = "date"
REASONS_MAX = 100
GAPS_MAX = 100
# How many bytes of a body stand for all that do not fit for one reason.
_EXAMPLE_BYTES = 120


class Reason(msgspec.Struct, frozen=True):
    """Why messages were put aside, how many, and one of their bodies, cut."""

    reason: str
    messages: int
    example: str


class Gap(msgspec.Struct, frozen=True):
    """A queue whose offsets from `start` to before `end` did not all come, or not once each."""

    batch_id: int
    topic: str
    broker_name: str
    queue_id: int
    start: int
    end: int
    found: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Counts of all batches up to one.

    Args:
        offsets: that were read, which is how many messages should have come.
        rows: of the table.
        put_aside: messages that do not fit the schema.
        by_date: rows of the table, in the order of dates.
        reasons: the most frequent first, `REASONS_MAX` at most.
        gap_count: how many gaps there were; `gaps` has the latest of them.
    """

    offsets: int = 0
    rows: int = 0
    put_aside: int = 0
    by_date: Mapping[str, int] = field(default_factory=dict)
    reasons: Sequence[Reason] = ()
    gap_count: int = 0
    gaps: Sequence[Gap] = ()

    @property
    def messages(self) -> int:
        """All that came."""
        return self.rows + self.put_aside


class OffsetSpan(NamedTuple):
    """The offsets that a batch reads of a queue."""

    start: int
    end: int


class Ledger:
    """The counts of one ingest, in its directory.

    Args:
        files: of the directory.
        out: the directory.
        checkpoint: of the query.
        start: where the first batch begins, as Spark's checkpoint would write it.
    """

    def __init__(self, files: Files, out: str, *, checkpoint: str, start: Mapping[str, Any]):
        self._files = files
        self._root = f"{out}/counts"
        self._checkpoint = checkpoint
        self._start = start

    def read(self, batch_id: int) -> Counts:
        """Return the counts up to a batch; there are none before the first."""
        text = self._files.read_text(f"{self._root}/{batch_id}.json")
        return Counts() if text is None else msgspec.json.decode(text, type=Counts)

    def read_latest(self) -> Counts:
        """Return the counts up to the last batch that was written."""
        names = [entry.name.removesuffix(".json") for entry in self._files.list(self._root)]
        return self.read(max((int(name) for name in names if name.isdigit()), default=-1))

    def write(self, batch_id: int, counts: Counts) -> None:
        """Write the counts up to a batch, and remove what no replay can need any more."""
        text = msgspec.json.encode(counts).decode()
        self._files.write_text(f"{self._root}/{batch_id}.json", text)
        self._files.remove(f"{self._root}/{batch_id - 2}.json")

    def spans(self, batch_id: int) -> dict[MessageQueue, OffsetSpan]:
        """Return what a batch reads of each queue, which Spark writes down before it begins."""
        start = self._offsets(batch_id - 1) if batch_id > 0 else self._start
        ranges = ranges_between(decode_offsets(start), decode_offsets(self._offsets(batch_id)))
        return {each.queue: OffsetSpan(each.start, each.end) for each in ranges}

    def _offsets(self, batch_id: int) -> Any:
        # A version, the batch's metadata, and a line for each source, of which there is one.
        text = self._files.read_text(f"{self._checkpoint}/offsets/{batch_id}")
        assert text is not None, "Spark writes the offsets of a batch before the batch begins"
        return json.loads(text.splitlines()[2])


def count_batch(
    batch: DataFrame, batch_id: int, before: Counts, spans: Mapping[MessageQueue, OffsetSpan]
) -> Counts:
    """Add a batch to the counts before it.

    Args:
        batch: with the columns of a queue, queueOffset, body, `date` and `reason`.
        batch_id: its id.
        before: the counts up to the batch before.
        spans: what it should have read; empty if messages are left out on purpose.
    """
    is_good = F.col(REASON).isNull()
    groups = batch.groupBy(*QUEUE_COLUMNS, F.when(is_good, F.col(DATE)).alias(DATE)).agg(
        F.count_if(is_good).alias("rows"),
        F.count_if(~is_good).alias("putAside"),
        F.min("queueOffset").alias("first"),
        F.max("queueOffset").alias("last"),
    )
    rows = groups.collect()
    by_date = Counter(dict(before.by_date))
    found: Counter[MessageQueue] = Counter()
    outside: set[MessageQueue] = set()
    for row in rows:
        queue = MessageQueue(*(row[name] for name in QUEUE_COLUMNS))
        found[queue] += row["rows"] + row["putAside"]
        if row["rows"]:
            by_date[str(row[DATE] or "unknown")] += row["rows"]
        span = spans.get(queue)
        if span is not None and not span.start <= row["first"] <= row["last"] < span.end:
            outside.add(queue)
    gaps = [
        Gap(batch_id, *queue, span.start, span.end, found[queue])
        for queue, span in spans.items()
        if found[queue] != span.end - span.start or queue in outside
    ]
    put_aside = sum(row["putAside"] for row in rows)
    counts = replace(
        before,
        offsets=before.offsets + sum(span.end - span.start for span in spans.values()),
        rows=before.rows + sum(row["rows"] for row in rows),
        put_aside=before.put_aside + put_aside,
        by_date=dict(sorted(by_date.items())),
        gap_count=before.gap_count + len(gaps),
        gaps=[*before.gaps, *gaps][-GAPS_MAX:],
    )
    return replace(counts, reasons=_add_reasons(before, batch)) if put_aside else counts


def _add_reasons(before: Counts, batch: DataFrame) -> list[Reason]:
    rows = (
        batch.where(F.col(REASON).isNotNull())
        .groupBy(REASON)
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

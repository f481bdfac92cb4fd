"""Make few large files of the many small ones that micro-batches leave.

Neighbouring batches become one, in the directory of the last of them:

1. read `batchId=3` to `batchId=7`, write them as `_writing/compacted`, count both;
2. write `_compaction.json`, which names the old directories;
3. move the old ones to `_compacted/`, then the new one to `batchId=7`;
4. remove `_compacted/` and `_compaction.json`.

A kill before 2 leaves nothing but what readers skip; after it `recover` does 3 and 4 again, which
the next ingest and the next compaction begin with. At no moment does a reader see a row twice.
Between the moves of 3 a reader that lists the directory misses the rows of these batches: they
are some milliseconds apart, yet who must not miss any should read when no compaction runs.

Only batches that the checkpoint has committed are taken: no other is ever replayed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from pyspark.sql import SparkSession

from sparrowmq.errors import UsageError
from sparrowmq.pipeline.files import Files

SIZE_MAX = 256 * 1024 * 1024
_PREFIX = "batchId="


@dataclass(frozen=True, slots=True)
class Compaction:
    """What a compaction did."""

    batches_before: int
    batches_after: int
    files_before: int
    files_after: int


def compact(
    session: SparkSession,
    table: str,
    *,
    checkpoint: str,
    partition_by: str | None = None,
    size_max: int = SIZE_MAX,
) -> Compaction:
    """Merge neighbouring batches of a table while they are smaller than `size_max` bytes together.

    Args:
        session: the Spark session.
        table: the directory of the table.
        checkpoint: that of the query which writes it.
        partition_by: the column that makes directories; each gets one file a merged batch.
        size_max: of a merged batch, in bytes.

    Raises: UsageError if the merged rows are not as many as the rows before.
    """
    recover(session, table)
    files = Files(session, table)
    before = _batch_ids(files, table)
    if not before:
        return Compaction(0, 0, 0, 0)
    files_before = _count_files(session, table)
    committed = [int(e.name) for e in files.list(f"{checkpoint}/commits") if e.name.isdigit()]
    done = [number for number in before if number <= max(committed, default=-1)]
    for group in _plan(files, table, done, size_max=size_max):
        _merge(session, files, table, group, partition_by=partition_by)
    return Compaction(
        batches_before=len(before),
        batches_after=len(_batch_ids(files, table)),
        files_before=files_before,
        files_after=_count_files(session, table),
    )


def recover(session: SparkSession, table: str) -> None:
    """Finish a compaction that was killed after it had written everything."""
    files = Files(session, table)
    text = files.read_text(f"{table}/_compaction.json")
    if text is None:
        return
    batch_ids: list[int] = json.loads(text)
    _swap(files, table, batch_ids)


def _merge(
    session: SparkSession, files: Files, table: str, group: list[int], *, partition_by: str | None
) -> None:
    paths = [f"{table}/{_PREFIX}{number}" for number in group]
    writing = f"{table}/_writing/compacted"
    merged = session.read.option("basePath", table).parquet(*paths).drop("batchId")
    if partition_by is None:
        merged.coalesce(1).write.mode("overwrite").parquet(writing)
    else:
        merged.repartition(partition_by).write.mode("overwrite").partitionBy(partition_by).parquet(
            writing
        )
    counted = session.read.parquet(writing).count()
    expected = merged.count()
    if counted != expected:
        raise UsageError(f"compaction of {table} wrote {counted:,} of {expected:,} rows; kept both")
    files.write_text(f"{table}/_compaction.json", json.dumps(group))
    _swap(files, table, group)


def _swap(files: Files, table: str, batch_ids: list[int]) -> None:
    """Put the merged directory into the place of these; may be repeated from any point."""
    writing, away = f"{table}/_writing/compacted", f"{table}/_compacted"
    if files.exists(writing):
        for number in batch_ids:
            path = f"{table}/{_PREFIX}{number}"
            if files.exists(path):
                files.move(path, f"{away}/{_PREFIX}{number}")
        files.move(writing, f"{table}/{_PREFIX}{batch_ids[-1]}")
    files.remove(away)
    files.remove(f"{table}/_compaction.json")


def _count_files(session: SparkSession, table: str) -> int:
    return len(session.read.parquet(table).inputFiles())


def _batch_ids(files: Files, table: str) -> list[int]:
    names = [entry.name for entry in files.list(table) if entry.is_directory]
    return sorted(int(name.removeprefix(_PREFIX)) for name in names if name.startswith(_PREFIX))


def _plan(files: Files, table: str, batch_ids: list[int], *, size_max: int) -> Iterator[list[int]]:
    """Yield runs of neighbours that are worth merging."""
    group: list[int] = []
    total = 0
    for number in batch_ids:
        size = files.size(f"{table}/{_PREFIX}{number}")
        if group and total + size > size_max:
            if len(group) > 1:
                yield group
            group, total = [], 0
        group.append(number)
        total += size
    if len(group) > 1:
        yield group

"""Merges the many small files of micro-batches into few large files.

Neighbouring batches become one batch, in the directory of the last:

1. Read `batchId=3` to `batchId=7`, write their rows to `_writing/compacted`, count both, and sync
   what was written.
2. Write `_compaction.json`, which names the old directories.
3. Move the old directories to `_compacted/`, then write `_compacted/_all.json`.
4. Move the new directory to `batchId=7`.
5. Remove `_compacted/` and `_compaction.json`.

A kill before step 2 leaves only files that readers skip. After a later kill `recover` repeats steps
3 to 5; the next ingest and the next compaction call `recover` first. An object store moves a
directory file by file, so a kill may leave a part of `batchId=7`: `_all.json` says that the part
is of the new directory.

A reader never sees a row twice. Between the moves, which are some milliseconds apart and take
longer in an object store, a reader that lists the directory misses the rows of these batches. A
reader that must see all rows should read while no compaction runs.

A compaction takes only batches that the checkpoint has committed: those are never replayed.
Tests: pipeline/test_compaction.py, pipeline/test_ingest.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from pyspark.sql import SparkSession

from sparrowmq.errors import UsageError
from sparrowmq.pipeline.files import Files
from sparrowmq.pipeline.parquet import mark_merged, read_parquet

SIZE_MAX = 256 * 1024 * 1024
_PREFIX = "batchId="


@dataclass(frozen=True, slots=True)
class Compaction:
    """The result of a compaction."""

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
) -> Compaction:
    """Merge neighbouring batches of a table into batches of at most `SIZE_MAX` bytes.

    Args:
        table: the directory of the table.
        checkpoint: the directory of the checkpoint of the query that writes the table.
        partition_by: the column that becomes directories; each directory of a merged batch gets one
            file.

    Raises: UsageError if the number of merged rows differs from the number of rows before.
    """
    recover(session, table)
    files = Files(session, table)
    before = _batch_ids(files, table)
    if not before:
        return Compaction(0, 0, 0, 0)
    files_before = _count_files(session, table)
    committed = [int(e.name) for e in files.list(f"{checkpoint}/commits") if e.name.isdigit()]
    done = [number for number in before if number <= max(committed, default=-1)]
    for group in _plan(files, table, done):
        _merge(session, files, table, group, partition_by=partition_by)
    return Compaction(
        batches_before=len(before),
        batches_after=len(_batch_ids(files, table)),
        files_before=files_before,
        files_after=_count_files(session, table),
    )


def recover(session: SparkSession, table: str) -> None:
    """Finish a compaction that was killed after step 2; otherwise do nothing.

    One whose `_compaction.json` is torn is taken back.
    """
    files = Files(session, table)
    path = f"{table}/_compaction.json"
    if not files.exists(path):
        return
    batch_ids: list[int] | None = files.read_json(path)
    if batch_ids is None:
        _take_back(files, table)
    else:
        _swap(files, table, batch_ids)


def _merge(
    session: SparkSession, files: Files, table: str, group: list[int], *, partition_by: str | None
) -> None:
    paths = [f"{table}/{_PREFIX}{number}" for number in group]
    writing = f"{table}/_writing/compacted"
    merged = read_parquet(session, *paths, base=table).drop("batchId")
    files.remove(writing)
    if partition_by is None:
        merged.coalesce(1).write.parquet(writing)
    else:
        merged.repartition(partition_by).write.partitionBy(partition_by).parquet(writing)
    counted = read_parquet(session, writing).count()
    expected = merged.count()
    if counted != expected:
        raise UsageError(f"compaction of {table} wrote {counted:,} of {expected:,} rows; kept both")
    mark_merged(files, writing, paths[-1])
    # A power cut must not take what the old directories, which go soon, have had for long.
    files.sync(writing)
    files.write_text(f"{table}/_compaction.json", json.dumps(group))
    _swap(files, table, group)


def _swap(files: Files, table: str, batch_ids: list[int]) -> None:
    """Replace these batches by the merged directory; a repetition from any point is harmless."""
    writing, away = f"{table}/_writing/compacted", f"{table}/_compacted"
    all_away = f"{away}/_all.json"
    if files.exists(writing):
        if not files.exists(all_away):
            for number in batch_ids:
                path, target = f"{table}/{_PREFIX}{number}", f"{away}/{_PREFIX}{number}"
                if files.exists(target):
                    files.remove(path)
                elif files.exists(path):
                    files.move(path, target)
            files.sync_names(table)
            files.write_text(all_away, json.dumps(batch_ids))
        _move(files, writing, f"{table}/{_PREFIX}{batch_ids[-1]}")
    _clear(files, table)


def _move(files: Files, source: str, target: str) -> None:
    """Move a directory, of which a kill may have left a part at the target.

    A file whose move was cut off is whole at its source.
    """
    if not files.exists(target):
        files.move(source, target)
        return
    for entry in files.list(source):
        path, there = f"{source}/{entry.name}", f"{target}/{entry.name}"
        if entry.is_directory:
            _move(files, path, there)
        else:
            files.remove(there)
            files.move(path, there)
    files.remove(source)


def _take_back(files: Files, table: str) -> None:
    """Put the old directories back, which are all there while the merged one is in its place."""
    writing, away = f"{table}/_writing/compacted", f"{table}/_compacted"
    if files.exists(writing):
        for entry in files.list(away):
            if entry.is_directory:
                files.move(f"{away}/{entry.name}", f"{table}/{entry.name}")
        files.remove(writing)
    _clear(files, table)


def _clear(files: Files, table: str) -> None:
    files.sync_names(table)
    files.remove(f"{table}/_compacted")
    files.remove(f"{table}/_compaction.json")


def _count_files(session: SparkSession, table: str) -> int:
    return len(read_parquet(session, table).inputFiles())


def _batch_ids(files: Files, table: str) -> list[int]:
    names = [entry.name for entry in files.list(table) if entry.is_directory]
    return sorted(int(name.removeprefix(_PREFIX)) for name in names if name.startswith(_PREFIX))


def _plan(files: Files, table: str, batch_ids: list[int]) -> Iterator[list[int]]:
    """Yield runs of neighbouring batches that are worth a merge."""
    group: list[int] = []
    total = 0
    for number in batch_ids:
        size = files.usage(f"{table}/{_PREFIX}{number}").size
        if group and total + size > SIZE_MAX:
            if len(group) > 1:
                yield group
            group, total = [], 0
        group.append(number)
        total += size
    if len(group) > 1:
        yield group

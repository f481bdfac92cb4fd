"""Writes micro-batches as Parquet, exactly once for every reader of the files.

Spark's own file sink is exactly once only for readers of its `_spark_metadata`: after a kill during
a batch the files of the first attempt stay beside those of the second, and other Parquet readers
count both. Here each batch has one directory, named by its id, which appears at once:

```
path/_writing/batchId=7/month=1/part-*.parquet     during the write; readers skip names with `_`
path/batchId=7/month=1/part-*.parquet              after one rename
path/batchId=7/_written.json                       the query, the number of files and their bytes
```

A replayed batch has the same id and the same offsets, by the checkpoint. If its directory is whole,
it stays as it is; otherwise the replay replaces it. So at any moment the
files hold whole batches only, each at most once, and a batch that readers have seen never
disappears. On a disk of this machine the files of a batch are synced before its rename. A rename is
atomic on local disks and HDFS. An object store copies instead, so a reader may see a part of the
newest batch until the copy ends. Tests: spark/test_parquet.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from sparrowmq.errors import ConfigError, UsageError
from sparrowmq.pipeline.files import DirectoryUsage, Files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_WRITING, _WRITTEN = "_writing", "_written.json"
# StreamExecution.QUERY_ID_KEY, which Spark sets in the thread that runs micro-batches.
_QUERY_ID_KEY = "sql.streaming.queryId"


def read_parquet(
    session: SparkSession, *paths: str, base: str | None = None, schema: str | None = None
) -> DataFrame:
    """Read Parquet of exactly these paths, also where a path looks like a pattern of paths.

    Args:
        paths: files or directories.
        base: the directory below which directories are columns; None for each path itself.
        schema: the columns to read, as DDL; None reads the schema in the files.
    """
    reader = session.read.option("__globPaths__", "false")
    reader = reader if base is None else reader.option("basePath", base)
    return (reader if schema is None else reader.schema(schema)).parquet(*paths)


def write_table(frame: DataFrame, path: str) -> DataFrame:
    """Write a table anew in place of the one at this path; return it as written."""
    frame.write.mode("overwrite").parquet(path)
    return read_parquet(frame.sparkSession, path)


def write_batch_parquet(
    batch_df: DataFrame, batch_id: int, path: str, partition_by: Sequence[str] = ()
) -> bool:
    """Write one micro-batch to `path/batchId=<batch_id>/<column>=<value>/...`.

    `parquet_writer` makes the function for `foreachBatch`. One checkpoint belongs to one path: with
    a new checkpoint ids begin at 0 again, and the messages would come a second time.

    Args:
        batch_id: the batch's id, by `foreachBatch`.
        path: the directory of the table, in any file system that Spark can write to.
        partition_by: the columns that become directories.

    Returns: whether the batch was written; False if its directory is whole already.
    Raises: ConfigError if the batch has a column `batchId` or lacks a column of `partition_by`;
        UsageError if the path has batches of another checkpoint, or the finished batch cannot be
        moved to its directory.
    """
    _check_columns(batch_df.columns, partition_by)
    session = batch_df.sparkSession
    root, files = path.rstrip("/"), Files(session, path)
    target, writing = f"{root}/batchId={batch_id}", f"{root}/{_WRITING}/batchId={batch_id}"
    query_id = session.sparkContext.getLocalProperty(_QUERY_ID_KEY)
    if query_id is not None:
        _check_own(files, root, batch_id, query_id)
        if _is_whole(files, target, query_id):
            return False
    # Spark's own overwriting keeps other partitions in a session that overwrites them dynamically.
    files.remove(writing)
    batch_df.write.partitionBy(*partition_by).parquet(writing)
    _mark(files, writing, query_id)
    files.sync(writing)
    files.remove(target)
    files.move(writing, target)
    return True


def parquet_writer(path: str, partition_by: Sequence[str] = ()) -> Callable[[DataFrame, int], Any]:
    """Return the argument of `foreachBatch`: `.foreachBatch(parquet_writer("out"))`."""
    return partial(write_batch_parquet, path=path, partition_by=tuple(partition_by))


def mark_merged(files: Files, merged: str, last: str) -> None:
    """Mark the directory that replaces batches as whole, and as of the query of the last batch."""
    mark = files.read_json(f"{last}/{_WRITTEN}")
    if mark is not None:
        _mark(files, merged, mark["queryId"])


def _mark(files: Files, directory: str, query_id: str | None) -> None:
    files.write_text(f"{directory}/{_WRITTEN}", _describe(files.usage(directory), query_id))


def _check_own(files: Files, root: str, batch_id: int, query_id: str) -> None:
    """Check that a query's first batch finds no batch of another query, a later one not its own."""
    mark = files.read_json(f"{root}/batchId={batch_id}/{_WRITTEN}")
    is_other = mark is not None and mark["queryId"] != query_id
    if batch_id == 0:
        batches = {entry.name for entry in files.list(root) if entry.name.startswith("batchId=")}
        is_other = is_other or bool(batches - {"batchId=0"})
    if is_other:
        raise UsageError(
            f"{root} has batches of another checkpoint, and messages would be there twice; "
            f"give that checkpoint, or write to another directory"
        )


def _is_whole(files: Files, directory: str, query_id: str) -> bool:
    """Return whether a batch's directory has the files that the query wrote."""
    text = files.read_text(f"{directory}/{_WRITTEN}")
    if text is None:
        return False
    found = files.usage(directory)
    # Without `_written.json` itself.
    before = DirectoryUsage(found.files - 1, found.size - len(text.encode()))
    return text == _describe(before, query_id)


def _describe(usage: DirectoryUsage, query_id: str | None) -> str:
    """Return the text of `_written.json` for a whole batch, whose files are these."""
    return json.dumps({"queryId": query_id, **usage._asdict()})


def _check_columns(columns: Sequence[str], partition_by: Sequence[str]) -> None:
    if "batchid" in {name.lower() for name in columns}:
        raise ConfigError("a column 'batchId' would clash with the directory of the batch")
    missing = [name for name in partition_by if name not in columns]
    if missing:
        raise ConfigError(f"no column {missing[0]!r} to partition by; there are {columns}")

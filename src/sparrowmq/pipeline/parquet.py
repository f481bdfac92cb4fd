"""Write micro-batches as Parquet, exactly once for whoever reads the files.

Spark's own file sink is exactly once only for readers of its `_spark_metadata`: after a kill in
mid-batch the files of the first attempt stay beside those of the second, and any other Parquet
reader counts both. Here a batch has one place, made of its id, and it appears there at once:

```
path/_writing/batchId=7/month=1/part-*.parquet     while it is written; readers skip `_` names
path/batchId=7/month=1/part-*.parquet              after one rename
path/batchId=7/_written.json                       by which query, how many files and bytes
```

A batch that is replayed (a checkpoint gives it the same id and the same offsets) is left as it is
if its first attempt is there, whole and by the same query; else it replaces what is there. So at
any moment the files hold whole batches only, each at most once, and no reader misses what it has
seen. A rename is atomic on local disks and HDFS; an object store copies instead, and a reader may
see a part of the newest batch until the copy ends.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from sparrowmq.errors import ConfigError
from sparrowmq.pipeline.files import Files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_WRITING, _WRITTEN = "_writing", "_written.json"
_DATA = ".parquet"
# StreamExecution.QUERY_ID_KEY, which Spark sets in the thread that runs micro-batches.
_QUERY_ID_KEY = "sql.streaming.queryId"


def write_batch_parquet(
    batch_df: DataFrame, batch_id: int, path: str, partition_by: Sequence[str] = ()
) -> None:
    """Write one micro-batch to `path/batchId=<batch_id>/<column>=<value>/...`.

    For `foreachBatch`; see `parquet_writer`. One checkpoint belongs to one path: with a new
    checkpoint ids begin again at 0 and replace what another query wrote.

    Args:
        batch_df: the micro-batch.
        batch_id: its id, as `foreachBatch` gives it.
        path: the directory of the table, in any file system that Spark writes to.
        partition_by: columns that become directories.

    Raises: ConfigError if the batch has a column `batchId`, or lacks one of `partition_by`;
        UsageError if the finished batch cannot be moved to its place.
    """
    _check_columns(batch_df.columns, partition_by)
    session = batch_df.sparkSession
    root, files = path.rstrip("/"), Files(session, path)
    target, writing = f"{root}/batchId={batch_id}", f"{root}/{_WRITING}/batchId={batch_id}"
    query_id = session.sparkContext.getLocalProperty(_QUERY_ID_KEY)
    if query_id is not None and _describe(files, target, query_id) == files.read_text(
        f"{target}/{_WRITTEN}"
    ):
        return
    batch_df.write.mode("overwrite").partitionBy(*partition_by).parquet(writing)
    files.write_text(f"{writing}/{_WRITTEN}", _describe(files, writing, query_id))
    files.remove(target)
    files.move(writing, target)


def parquet_writer(path: str, partition_by: Sequence[str] = ()) -> Callable[[DataFrame, int], None]:
    """Return the function that `foreachBatch` takes: `.foreachBatch(parquet_writer("out"))`."""
    return partial(write_batch_parquet, path=path, partition_by=tuple(partition_by))


def _describe(files: Files, directory: str, query_id: str | None) -> str:
    """Return what says that a batch is whole."""
    return json.dumps({"queryId": query_id, **files.usage(directory, suffix=_DATA)._asdict()})


def _check_columns(columns: Sequence[str], partition_by: Sequence[str]) -> None:
    if "batchid" in {name.lower() for name in columns}:
        raise ConfigError("a column 'batchId' would clash with the directory of the batch")
    missing = [name for name in partition_by if name not in columns]
    if missing:
        raise ConfigError(f"no column {missing[0]!r} to partition by; there are {columns}")

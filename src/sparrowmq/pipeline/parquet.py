"""Write micro-batches as Parquet, exactly once for whoever reads the files.

Spark's own file sink is exactly once only for readers of its `_spark_metadata`: after a kill in
mid-batch the files of the first attempt stay beside those of the second, and any other Parquet
reader counts both. Here a batch has one place, made of its id, and it appears there at once:

```
path/_writing/batchId=7/month=1/part-*.parquet     while it is written; readers skip `_` names
path/batchId=7/month=1/part-*.parquet              after one rename
```

A batch that is replayed (a checkpoint gives it the same id and the same offsets) replaces its
first attempt. So at any moment the files hold whole batches only, each at most once. A rename is
atomic on local disks and HDFS; an object store copies instead, and a reader may see a part of the
newest batch until the copy ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from sparrowmq.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

_WRITING = "_writing"


def write_batch_parquet(
    batch_df: DataFrame, batch_id: int, path: str, partition_by: Sequence[str] = ()
) -> None:
    """Write one micro-batch to `path/batchId=<batch_id>/<column>=<value>/...`.

    For `foreachBatch`; see `parquet_writer`. One checkpoint belongs to one path: with a new
    checkpoint ids begin again at 0 and would replace what another query wrote.

    Args:
        batch_df: the micro-batch.
        batch_id: its id, as `foreachBatch` gives it.
        path: the directory of the table, in any file system that Spark writes to.
        partition_by: columns that become directories.

    Raises: ConfigError if the batch has a column `batchId`, or lacks one of `partition_by`;
        UsageError if the finished batch cannot be moved to its place.
    """
    _check_columns(batch_df.columns, partition_by)
    root = path.rstrip("/")
    target, writing = f"{root}/batchId={batch_id}", f"{root}/{_WRITING}/batchId={batch_id}"
    batch_df.write.mode("overwrite").partitionBy(*partition_by).parquet(writing)
    _move_directory(batch_df, writing, target)


def parquet_writer(path: str, partition_by: Sequence[str] = ()) -> Callable[[DataFrame, int], None]:
    """Return the function that `foreachBatch` takes: `.foreachBatch(parquet_writer("out"))`."""
    return partial(write_batch_parquet, path=path, partition_by=tuple(partition_by))


def _check_columns(columns: Sequence[str], partition_by: Sequence[str]) -> None:
    if "batchid" in {name.lower() for name in columns}:
        raise ConfigError("a column 'batchId' would clash with the directory of the batch")
    missing = [name for name in partition_by if name not in columns]
    if missing:
        raise ConfigError(f"no column {missing[0]!r} to partition by; there are {columns}")


def _move_directory(batch_df: DataFrame, source: str, target: str) -> None:
    """Rename a directory, replacing what is there, through Hadoop's file systems."""
    session: Any = batch_df.sparkSession
    hadoop = session._jvm.org.apache.hadoop.fs
    source_path, target_path = hadoop.Path(source), hadoop.Path(target)
    files = target_path.getFileSystem(session._jsc.hadoopConfiguration())
    files.delete(target_path, True)
    if not files.rename(source_path, target_path):
        raise UsageError(f"cannot rename {source} to {target}; look at the directory's rights")

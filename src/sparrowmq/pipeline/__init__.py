"""The jobs that run on Spark, and a Parquet writer for micro-batches.

Each job is a package with settings, a result and three functions. `run(session, settings)` writes
tables and returns the result, `render(result)` makes the result's HTML page, and
`main_table(result)` makes its main table.
"""

from __future__ import annotations

from sparrowmq.pipeline.parquet import parquet_writer, write_batch_parquet

__all__ = ["parquet_writer", "write_batch_parquet"]

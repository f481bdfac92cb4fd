"""The jobs that run on Spark."""

from __future__ import annotations

from sparrowmq.pipeline.parquet import parquet_writer, write_batch_parquet

__all__ = ["parquet_writer", "write_batch_parquet"]

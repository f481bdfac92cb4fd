"""The jobs that run on Spark."""

from __future__ import annotations

from sparrowmq.pipeline.parquet import write_batch_parquet

__all__ = ["write_batch_parquet"]

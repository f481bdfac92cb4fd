"""The module by which PySpark finds the data source `rocketmq` without registration.

PySpark looks for importable top-level modules named `pyspark_*` with a `DefaultSource`.
"""

from __future__ import annotations

from sparrowmq.spark.source import RocketMQDataSource as DefaultSource

__all__ = ["DefaultSource"]

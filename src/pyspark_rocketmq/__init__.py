"""The module by which PySpark finds the data source `rocketmq` without registration."""

from __future__ import annotations

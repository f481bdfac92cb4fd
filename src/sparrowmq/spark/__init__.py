"""The Spark data source `rocketmq`, and a Spark session that runs wherever Python does.

Importing this package needs neither Spark nor Java; calling `spark_session` needs both.
"""

from __future__ import annotations

from sparrowmq.spark.java import JavaHome, find_java
from sparrowmq.spark.local_session import prepare_environment, register, spark_session

__all__ = ["JavaHome", "find_java", "prepare_environment", "register", "spark_session"]

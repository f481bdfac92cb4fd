"""One Spark session for all tests of the jobs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One session for the whole run: a start takes about ten seconds."""
    pytest.importorskip("pyspark")
    from sparrowmq.spark import spark_session

    session = spark_session(
        "sparrowmq tests",
        master="local[2]",
        short_lived=True,
        conf={"spark.sql.shuffle.partitions": "2", "spark.default.parallelism": "2"},
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()

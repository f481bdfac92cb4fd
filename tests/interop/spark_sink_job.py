"""A query that is killed: a topic to another, exactly once, with a shuffle in between.

Arguments: master, name server, directory, and `copy` or `read`. `copy` sends every row twice, for
rows that are alike are two; `read` reads what is there, as a batch and as a stream, to Parquet.
Prints `started` once the query runs and `done` at its end.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from sparrowmq.spark import spark_session
from sparrowmq.spark.exactly_once import exactly_once

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

# So a task is mostly in the midst of its sending.
PAUSE_S = 0.05
ROWS_A_REQUEST = 20


def main(master: str, name_server: str, place: str, verb: str) -> None:
    spark = spark_session(
        "sink kills",
        master=master,
        short_lived=True,
        conf={
            "spark.executor.memory": "512m",
            "spark.task.maxFailures": "2",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.execution.arrow.maxRecordsPerBatch": str(ROWS_A_REQUEST),
        },
    )
    spark.sparkContext.setLogLevel("OFF")
    print("started", flush=True)
    {"copy": copy, "read": read}[verb](spark, name_server, Path(place))
    print("done", flush=True)
    spark.stop()


def copy(spark: SparkSession, name_server: str, place: Path) -> None:
    query = (
        spark.readStream.format("rocketmq")
        .options(nameServer=name_server, topic="in", startingOffsets="earliest")
        .options(maxOffsetsPerTrigger="150", minPartitions="3")
        .load()
        .selectExpr("body", "explode(array(0, 0)) AS copy")
        .repartition(3, "body")
        .select("body")
        .mapInArrow(slowly, "body binary")
        .writeStream.format("rocketmq")
        .options(nameServer=name_server, topic="out", exactlyOnce="true", retryTimes="40")
        .option("checkpointLocation", str(place / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        time.sleep(PAUSE_S)
        yield batch


def read(spark: SparkSession, name_server: str, place: Path) -> None:
    options = {"nameServer": name_server, "topic": "out", "startingOffsets": "earliest"}
    frame = exactly_once(spark.read.format("rocketmq").options(**options).load())
    frame.select("body").write.parquet(str(place / "batch"))
    stream = spark.readStream.format("rocketmq").options(**options, maxOffsetsPerTrigger="2000")
    query = (
        exactly_once(stream.load())
        .select("body")
        .writeStream.format("parquet")
        .option("path", str(place / "stream"))
        .option("checkpointLocation", str(place / "read"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])

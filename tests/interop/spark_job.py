"""A user's job: batch, stream and sink on one master. Run by a Python of its own.

Arguments: master, the package as a zip or "-", how to ship it ("files", "add" or "-", and "connect"
for a session of Spark Connect), name server, output directory. Prints one JSON object.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession


def main(master: str, package: str, shipping: str, name_server: str, out: str) -> None:
    is_connect = shipping == "connect"
    builder = (
        SparkSession.builder.master(master)
        .config("spark.api.mode", "connect" if is_connect else "classic")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.executor.memory", "1g")
        .config("spark.executor.cores", "1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.task.maxFailures", "1")
    )
    if shipping == "files":
        builder = builder.config("spark.submit.pyFiles", package)
    spark = builder.getOrCreate()
    if not is_connect:
        spark.sparkContext.setLogLevel("OFF")
    if shipping == "add":
        spark.sparkContext.addPyFile(package)
    given = {"nameServer": name_server, "topic": "in", "minPartitions": "4"}
    try:
        result = run(spark, given, Path(out))
    except Exception as error:
        result = {"error": str(error)}
    print(json.dumps(result))
    spark.stop()


def run(spark: SparkSession, given: dict[str, str], out: Path) -> dict[str, object]:
    def find_package(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import sparrowmq

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"place": [str(sparrowmq.__file__)]})

    frame = spark.read.format("rocketmq").options(**given).load()
    rows = frame.selectExpr("queueId", "queueOffset", "spark_partition_id() AS part").collect()
    query = (
        spark.readStream.format("rocketmq")
        .options(startingOffsets="earliest", maxOffsetsPerTrigger="250", **given)
        .load()
        .selectExpr("body", "keys")
        .writeStream.format("rocketmq")
        .options(nameServer=given["nameServer"], topic="out")
        .option("checkpointLocation", str(out / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    places = spark.range(4).mapInArrow(find_package, "place STRING").distinct().collect()
    copied = spark.read.format("rocketmq").options(**(given | {"topic": "out"})).load()
    return {
        "rows": len({(row.queueId, row.queueOffset) for row in rows}),
        "tasks": len({row.part for row in rows}),
        "batches": len([each for each in query.recentProgress if each["numInputRows"]]),
        "places": [row.place for row in places],
        "session": type(spark).__module__,
        "keys": copied.select("keys").distinct().count(),
    }


if __name__ == "__main__":
    main(*sys.argv[1:])

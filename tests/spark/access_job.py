"""Steps of a Spark user at a cluster with access control. Run as a process of its own.

Arguments: name server, output directory, and an access key and a secret key for each account; one
session takes the steps for all of them. Spark logs all that it logs at INFO, and writes an event
log, which holds what its UI shows. Prints one JSON list with an object for each account: what was
read, and what was said.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from sparrowmq.spark import spark_session


def main(name_server: str, out: str, *keys: str) -> None:
    events = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": f"file://{out}/events"}
    spark = spark_session("access", master="local[2]", short_lived=True, conf=events)
    spark.sparkContext.setLogLevel("INFO")
    pairs = zip(keys[::2], keys[1::2], strict=True)
    found = [
        take_steps(spark, name_server, f"{out}/{number}", *pair)
        for number, pair in enumerate(pairs)
    ]
    print(json.dumps(found))
    spark.stop()


def take_steps(
    spark: SparkSession, name_server: str, out: str, access_key: str, secret_key: str
) -> dict[str, object]:
    given = {"nameServer": name_server, "topic": "orders", "group": "GID_spark"}
    if access_key:
        given |= {"accessKey": access_key, "secretKey": secret_key}
    steps: dict[str, Callable[[], object]] = {
        "write": lambda: write(spark, given),
        "read": lambda: read(spark, given),
        "plan": lambda: plan(spark, given),
        "stream": lambda: stream(spark, given, out),
        "sql": lambda: sql(spark, given),
        "other topic": lambda: write(spark, {**given, "topic": "secret"}),
    }
    return {name: outcome(step) for name, step in steps.items()}


def write(spark: SparkSession, given: dict[str, str]) -> None:
    rows = spark.range(10).selectExpr("CAST(id AS STRING) AS body")
    rows.write.format("rocketmq").options(**given, retryTimes="1").mode("append").save()


def read(spark: SparkSession, given: dict[str, str]) -> int:
    return spark.read.format("rocketmq").options(**given, waitForBrokers="1s").load().count()


def plan(spark: SparkSession, given: dict[str, str]) -> str:
    frame: Any = spark.read.format("rocketmq").options(**given).load()
    return str(frame._jdf.queryExecution().toString())


def stream(spark: SparkSession, given: dict[str, str], out: str) -> int:
    query = (
        spark.readStream.format("rocketmq")
        .options(**given, waitForBrokers="1s", startingOffsets="earliest")
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", f"{out}/checkpoint")
        .option("path", f"{out}/table")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return spark.read.parquet(f"{out}/table").count()


def sql(spark: SparkSession, given: dict[str, str]) -> int:
    options = ", ".join(f"{name} '{text}'" for name, text in given.items())
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW orders (body BINARY) USING rocketmq OPTIONS ({options})"
    )
    spark.sql("INSERT INTO orders SELECT CAST('sql' AS BINARY)")
    spark.sql("EXPLAIN EXTENDED SELECT * FROM orders").show(truncate=False)
    return spark.sql("SELECT * FROM orders").count()


def outcome(step: Callable[[], object]) -> object:
    try:
        return step()
    except Exception as error:
        return str(error)


if __name__ == "__main__":
    main(*sys.argv[1:])

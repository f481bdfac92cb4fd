"""A user's first steps with one version of PySpark. Run by a Python that has it.

Arguments: the session ("classic" or "connect"), name server, output directory; or "delta" or
"avro", name server, output directory, jars. Prints one JSON object: what was read and written, and
what was refused with which line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql.avro.functions import to_avro

from sparrowmq.pipeline import balance, ingest, parquet_writer
from sparrowmq.pipeline.ingest.body_parsing import parse_schema, table_rows, with_avro_fields
from sparrowmq.spark import prepare_environment, spark_session
from sparrowmq.spark.exactly_once import exactly_once


def main(kind: str, name_server: str, out: str) -> None:
    place = {"nameServer": name_server}
    if kind == "classic":
        spark = spark_session("versions", master="local[2]", short_lived=True)
    else:
        prepare_environment()
        spark = SparkSession.builder.remote("local[2]").getOrCreate()
    topic = f"T-{pyspark.__version__}-{kind}".replace(".", "-")
    rows = spark.range(300).selectExpr("CAST(id AS STRING) AS body", "CONCAT('k', id) AS keys")
    sink = rows.write.format("rocketmq").options(**place, topic=topic, createTopic="true")
    sink.option("exactlyOnce", "true").mode("append").save()
    found = spark.read.format("rocketmq").options(**place, topic=topic).load()
    limited = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "100"}
    result = {
        "version": pyspark.__version__,
        "bodies": sorted(int(bytes(row.body)) for row in found.select("body").collect()),
        "distinct": exactly_once(found).count(),
        "no topic": error_of(
            lambda: (
                rows.write.format("rocketmq")
                .options(**place, topic="nowhere")
                .mode("append")
                .save()
            )
        ),
        "copied": error_of(lambda: copy(spark, place, topic, Path(out), {})),
        "limited": error_of(lambda: copy(spark, place, topic, Path(out), limited)),
        "parquet": error_of(lambda: parquet_writer(f"{out}/table")(found, 0)),
        "balance": error_of(lambda: compare(spark, f"{out}/balance")),
    }
    result["copies"] = count(spark, place, f"{topic}-copy")
    print(json.dumps(result))
    spark.stop()


def ingest_into_delta(name_server: str, out: str, jars: str) -> None:
    """Have Delta Lake drop the micro-batch that a replay writes again, by its number."""
    settings = {
        "spark.jars": jars,
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
    spark = spark_session("delta", master="local[2]", short_lived=True, conf=settings)
    place = {"nameServer": name_server, "topic": "delta"}
    rows = spark.range(300).selectExpr("CAST(id AS STRING) AS body")
    rows.write.format("rocketmq").options(**place, createTopic="true").mode("append").save()
    table = f"{out}/table"

    def write(batch: DataFrame, batch_id: int) -> None:
        writer = batch.write.format("delta").mode("append").option("txnAppId", "ingest")
        writer.option("txnVersion", batch_id).save(table)

    stream = spark.readStream.format("rocketmq").options(**place, startingOffsets="earliest")
    query = (
        stream.load()
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", f"{out}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    counts = [spark.read.format("delta").load(table).count()]
    write(spark.read.format("rocketmq").options(**place).load(), 0)
    counts.append(spark.read.format("delta").load(table).count())
    print(json.dumps({"version": pyspark.__version__, "counts": counts}))
    spark.stop()


AVRO = {
    "type": "record",
    "name": "Sale",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "shop", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "lines", "type": {"type": "array", "items": ["null", "string"]}},
    ],
}


def ingest_avro(name_server: str, out: str, jars: str) -> None:
    """Ingest bodies in Avro, some of them broken, with and without Spark's package for Avro."""
    spark = spark_session("avro", master="local[2]", short_lived=True, conf={"spark.jars": jars})
    place, schema = {"nameServer": name_server, "topic": "avro"}, json.dumps(AVRO)
    sales = spark.sql(
        "SELECT struct(id, if(id % 2 = 0, 'Ulm', NULL) AS shop, timestamp'2026-03-01 12:30:00Z' "
        "AS at, array('a', NULL, CAST(id AS STRING)) AS lines) AS sale FROM range(6)"
    )
    rows = [
        bytes(row.body) for row in sales.select(to_avro("sale", schema).alias("body")).collect()
    ]
    # Cut off twice, a byte more, two records, a text that is not UTF-8, another schema.
    text = rows[0].replace(b"\x02a", b"\x02\xfc")
    broken = [rows[0][:-1], b"\0", rows[1] + b"\0", rows[2] + rows[3], text, b'{"id": 1}']
    bodies = spark.createDataFrame([(body,) for body in rows + broken], "body binary")
    sink = bodies.write.format("rocketmq").options(**place, createTopic="true")
    sink.mode("append").save()
    settings = ingest.IngestSettings(
        name_server=name_server, topic="avro", out=out, schema=schema, date_column="at"
    )
    result = ingest.run(spark, settings)
    table = (
        spark.read.parquet(settings.table).orderBy("id").selectExpr("id", "shop", "lines", "date")
    )
    kept = spark.read.parquet(settings.quarantine)
    plan: Any = table_rows(
        with_avro_fields(bodies, parse_schema(schema)), parse_schema(schema), Observation(), ()
    )
    found = {
        "version": pyspark.__version__,
        "parses": plan._jdf.queryExecution().executedPlan().toString().count("from_avro("),
        "counts": [result.counts.rows, result.counts.put_aside, result.counts.gap_count],
        "rows": [[row.id, row.shop, row.lines, str(row.date)] for row in table.collect()],
        "is unchanged": {bytes(row.body) for row in kept.collect()} == set(broken),
        "reasons": [row.reason for row in kept.select("reason").distinct().collect()],
        "wrong": error_of(lambda: parse_schema(schema.replace('"string"', '"text"'))),
    }
    print(json.dumps(found))
    spark.stop()


def copy(
    spark: SparkSession, place: dict[str, str], topic: str, out: Path, given: dict[str, str]
) -> None:
    """Copy the topic by a stream that begins anew, twice, the second time from its checkpoint."""
    checkpoint = str(out / "-".join(["checkpoint", *given]))
    for _ in range(2):
        stream = spark.readStream.format("rocketmq").options(
            **place, **({"startingOffsets": "earliest"} | given), topic=topic
        )
        query = (
            stream.load()
            .select("body", "keys")
            .writeStream.format("rocketmq")
            .options(**place, topic=f"{topic}-copy", createTopic="true")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()


def compare(spark: SparkSession, out: str) -> None:
    balance.run(spark, balance.BalanceSettings(generate=2, strategies=["AVG"], out=out))


def count(spark: SparkSession, place: dict[str, str], topic: str) -> int | str:
    def read() -> DataFrame:
        return spark.read.format("rocketmq").options(**place, topic=topic).load()

    try:
        return read().count()
    except Exception as error:
        return str(error)


def error_of(call: Callable[[], object]) -> str | None:
    try:
        call()
    except Exception as error:
        return str(error)
    return None


if __name__ == "__main__":
    if sys.argv[1] == "delta":
        ingest_into_delta(*sys.argv[2:])
    elif sys.argv[1] == "avro":
        ingest_avro(*sys.argv[2:])
    else:
        main(*sys.argv[1:])

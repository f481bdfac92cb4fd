"""Writes through Spark, batch and stream, and what a failed micro-batch leaves behind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException
from pyspark.sql.functions import array, col, concat, expr, lit

from sparrowmq.errors import ConfigError
from sparrowmq.spark.dead_letter_rows import to_dlq
from sparrowmq.spark.exactly_once import exactly_once
from sparrowmq.spark.sink_options import parse_sink_options
from sparrowmq.spark.topic_queues import connect, disconnect
from sparrowmq.spark.writer import write_rows
from sparrowmq.testing import EmbeddedCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(tmp_path_factory.mktemp("data")) as found:
        for topic in ("in", "out"):
            found.create_topic(topic, queues=2)
        yield found


def read(spark: SparkSession, cluster: EmbeddedCluster, topic: str) -> DataFrame:
    given = {"nameServer": cluster.name_server, "topic": topic}
    return spark.read.format("rocketmq").options(**given).load()


def copy(
    spark: SparkSession, cluster: EmbeddedCluster, checkpoint: Path, body: str, **given: str
) -> None:
    query = (
        spark.readStream.format("rocketmq")
        .options(nameServer=cluster.name_server, topic="in", startingOffsets="earliest")
        .load()
        .select(expr(body).alias("body"), "tags", "keys")
        .writeStream.format("rocketmq")
        .queryName("copies")
        .options(nameServer=cluster.name_server, topic="out", exactlyOnce="true", **given)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def test_a_batch_is_written_and_a_stream_copies_it_with_ids_that_last(
    spark: SparkSession, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    numbers = spark.range(400).select(
        col("id").cast("string").alias("body"),
        lit("t").alias("tags"),
        array(concat(lit("k"), col("id"))).alias("keys"),
        (col("id") % 2).cast("int").alias("queueId"),
        lit("broker-a").alias("brokerName"),
    )
    numbers.write.format("rocketmq").mode("append").options(
        nameServer=cluster.name_server, topic="in"
    ).save()
    sent = {(f"k{n}", bytes(str(n), "ascii")) for n in range(400)}

    # One task, which sends 100 rows at once.
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    with pytest.raises(PySparkException) as caught:
        copy(spark, cluster, tmp_path, "if(queueId = 1 and queueOffset = 199, null, body)")
    half = read(spark, cluster, "out").count()
    copy(spark, cluster, tmp_path, "body")
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")

    assert "sparrowmq: the body of row 399 is null" in str(caught.value)
    assert "Traceback" not in str(caught.value)
    assert sent == {(row.keys, bytes(row.body)) for row in read(spark, cluster, "in").collect()}
    rows = read(spark, cluster, "out")
    once = exactly_once(rows).collect()
    assert half == 300
    assert rows.count() == 400 + half
    assert len(once) == 400
    assert sent == {(row.keys, bytes(row.body)) for row in once}
    assert rows.columns == exactly_once(rows).columns
    assert exactly_once(read(spark, cluster, "in").union(rows)).count() == 800


def test_equal_rows_of_two_tasks_are_two_messages(
    spark: SparkSession, cluster: EmbeddedCluster
) -> None:
    cluster.create_topic("alike", queues=1)
    rows = spark.range(2, numPartitions=2).select(lit("a").alias("body"))
    rows.write.format("rocketmq").mode("append").options(
        nameServer=cluster.name_server, topic="alike", exactlyOnce="true"
    ).save()

    assert exactly_once(read(spark, cluster, "alike")).count() == 2


def test_a_stream_reads_once_what_was_written_twice(
    spark: SparkSession, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    cluster.create_topic("twice", queues=2)
    options = parse_sink_options(
        {"nameServer": cluster.name_server, "topic": "twice", "exactlyOnce": "true"}, scope="batch"
    )
    bodies = [b"%d" % (number % 60) for number in range(100)]
    for order in (bodies, bodies[::-1][:70]):
        batch = pa.RecordBatch.from_arrays([pa.array(order)], names=["body"])
        write_rows(connect(options), options, [batch], write_id="query/7/0")
    disconnect()
    # These have no id.
    spark.createDataFrame([(b"a",), (b"a",)], "body binary").write.format("rocketmq").mode(
        "append"
    ).options(nameServer=cluster.name_server, topic="twice").save()

    query = (
        exactly_once(
            spark.readStream.format("rocketmq")
            .options(nameServer=cluster.name_server, topic="twice", startingOffsets="earliest")
            .options(maxOffsetsPerTrigger="40")
            .load()
        )
        .select("body")
        .writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        .format("parquet")
        .option("path", str(tmp_path / "table"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

    assert read(spark, cluster, "twice").count() == 172
    found = [bytes(row.body) for row in spark.read.parquet(str(tmp_path / "table")).collect()]
    assert sorted([*bodies, b"a", b"a"]) == sorted(found)


def test_a_stream_keeps_the_messages_of_a_queue_that_was_filled_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    place = {"topic": "T", "brokerName": "broker-a", "queueId": 0, "queueOffset": 0}
    (tmp_path / "read").mkdir()
    for number in range(2):
        row = {**place, "properties": {"UNIQ_KEY": f"id-{number}"}}
        (tmp_path / "read" / f"{number}.json").write_text(json.dumps(row))
    kinds = "topic string, brokerName string, queueId int, queueOffset bigint"
    rows = spark.readStream.schema(f"{kinds}, properties map<string,string>")

    query = (
        exactly_once(rows.json(str(tmp_path / "read")))
        .selectExpr("properties['UNIQ_KEY'] AS id")
        .writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        .format("parquet")
        .option("path", str(tmp_path / "table"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

    found = spark.read.parquet(str(tmp_path / "table")).collect()
    assert sorted(row.id for row in found) == ["id-0", "id-1"]


def test_a_read_without_the_columns_cannot_be_made_exactly_once(
    spark: SparkSession, cluster: EmbeddedCluster
) -> None:
    with pytest.raises(ConfigError, match="needs the columns brokerName, properties; call it on"):
        exactly_once(read(spark, cluster, "in").drop("brokerName", "properties"))


def test_a_wrong_write_is_one_clear_line(spark: SparkSession, cluster: EmbeddedCluster) -> None:
    given = {"nameServer": cluster.name_server, "topic": "out"}
    bad = spark.range(3)
    good = bad.selectExpr("cast(id as string) as body")
    nowhere = given | {"nameServer": "127.0.0.1:1", "retryTimes": "0"}

    for frame, mode, options, words in (
        (bad, "append", given, "sparrowmq: a write takes no column 'id'"),
        (good, "overwrite", given, "sparrowmq: a topic cannot be overwritten"),
        (good, "append", nowhere, "sparrowmq: no name server answers at 127.0.0.1:1"),
    ):
        with pytest.raises(PySparkException) as caught:
            frame.write.format("rocketmq").options(**options).mode(mode).save()
        assert words in str(caught.value)
        assert "Traceback" not in str(caught.value)


def test_a_view_of_sql_is_read_and_inserted_into(
    spark: SparkSession, cluster: EmbeddedCluster
) -> None:
    cluster.create_topic("sql", queues=1)
    spark.sql(
        f"CREATE TEMPORARY VIEW orders (body BINARY, tags STRING) USING rocketmq "
        f"OPTIONS (nameServer '{cluster.name_server}', topic 'sql')"
    )
    spark.sql("INSERT INTO orders SELECT CAST('a' AS BINARY), 'first'")
    spark.sql("INSERT INTO orders (body) VALUES (CAST('b' AS BINARY))")

    rows = spark.sql("SELECT CAST(body AS STRING), tags FROM orders ORDER BY body").collect()
    assert [tuple(row) for row in rows] == [("a", "first"), ("b", None)]
    with pytest.raises(PySparkException, match="a topic cannot be overwritten"):
        spark.sql("INSERT OVERWRITE orders SELECT CAST('a' AS BINARY), 'first'")


def test_a_table_of_the_catalog_says_that_spark_drops_its_options(
    spark: SparkSession, cluster: EmbeddedCluster
) -> None:
    cluster.create_topic("catalog", queues=1)
    place = f"nameServer '{cluster.name_server}', topic 'catalog'"
    with pytest.raises(PySparkException, match="CREATE TEMPORARY VIEW name USING rocketmq"):
        spark.sql(f"CREATE TABLE inferred USING rocketmq OPTIONS ({place})")
    spark.sql(f"CREATE TABLE declared (body STRING) USING rocketmq OPTIONS ({place})")
    try:
        with pytest.raises(PySparkException, match="tables of Spark's catalog lose their options"):
            spark.sql("INSERT INTO declared VALUES ('a')")
        given = place.replace("nameServer ", "nameServer=").replace("topic ", "topic=")
        spark.sql(f"INSERT INTO declared WITH ({given}) VALUES ('a')")
    finally:
        spark.sql("DROP TABLE declared")

    assert read(spark, cluster, "catalog").count() == 1


def test_dead_letters_keep_what_they_were_and_say_where_they_come_from(
    spark: SparkSession, cluster: EmbeddedCluster
) -> None:
    dead_letters = "%DLQ%GID_orders"
    for topic in ("orders", dead_letters):
        cluster.create_topic(topic, queues=1)
    given = {"nameServer": cluster.name_server}
    spark.createDataFrame(
        [(b"x", "t", "k1 k2", {"color": "red"})],
        "body binary, tags string, keys string, properties map<string,string>",
    ).write.format("rocketmq").mode("append").options(topic="orders", **given).save()
    (origin,) = read(spark, cluster, "orders").collect()

    for source in ("orders", dead_letters):
        to_dlq(read(spark, cluster, source), "GID_orders").write.format("rocketmq").mode(
            "append"
        ).options(**given).save()

    rows = read(spark, cluster, dead_letters).collect()
    assert len(rows) == 2
    for row in rows:
        assert (b"x", "t", "k1 k2", "red", "orders", origin.msgId) == (
            bytes(row.body),
            row.tags,
            row["keys"],
            row.properties["color"],
            row.properties["DLQ_ORIGIN_TOPIC"],
            row.properties["DLQ_ORIGIN_MESSAGE_ID"],
        )

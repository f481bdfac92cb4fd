"""The whole way: our producer, our broker, Spark, Parquet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

import pyarrow.dataset as ds

from sparrowmq.client.faces.blocking import Producer
from sparrowmq.client.faces.blocking_admin import Admin
from sparrowmq.model import Message, MessageQueue
from sparrowmq.pipeline.parquet import parquet_writer
from sparrowmq.spark import topic_queues as connections
from sparrowmq.spark.batch_reader import RocketMQReader
from sparrowmq.spark.options import parse_options
from sparrowmq.testing import EmbeddedCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(tmp_path / "data") as found:
        yield found


def produce(cluster: EmbeddedCluster, first: int, last: int) -> None:
    """Send numbered messages, every tenth large enough to be compressed."""
    with Producer("GID_spark_test", name_server=cluster.name_server) as producer:
        for number in range(first, last):
            body = b"%d" % number if number % 10 else b"%d" % number * 5_000
            message = Message("orders", body, tags=f"t{number % 2}", keys=(f"k{number}", "all"))
            producer.send(message, queue=MessageQueue("orders", "broker-a", number % 4))


def ingest(spark: SparkSession, cluster: EmbeddedCluster, place: Path, **options: str) -> None:
    query = (
        spark.readStream.format("rocketmq")
        .option("nameServer", cluster.name_server)
        .option("topic", "orders")
        .option("startingOffsets", "earliest")
        .options(**options)
        .load()
        .writeStream.foreachBatch(parquet_writer(str(place / "table"), ["tags"]))
        .option("checkpointLocation", str(place / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def test_a_stream_survives_the_brokers_restart_with_every_message_once(
    spark: SparkSession, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    cluster.create_topic("orders", queues=4)
    produce(cluster, 0, 120)

    ingest(spark, cluster, tmp_path, maxOffsetsPerTrigger="50")
    cluster.kill()
    cluster.restart()
    produce(cluster, 120, 200)
    ingest(spark, cluster, tmp_path, group="GID_spark", commitOffsets="true")

    table = ds.dataset(tmp_path / "table", format="parquet", partitioning="hive").to_table()
    rows = table.to_pylist()
    assert len({(row["brokerName"], row["queueId"], row["queueOffset"]) for row in rows}) == 200
    assert [f"k{number} all" for number in range(200)] == sorted(
        (row["keys"] for row in rows), key=lambda keys: int(keys.split()[0][1:])
    )
    assert {number: b"%d" % number * (1 if number % 10 else 5_000) for number in range(200)} == {
        int(row["keys"].split()[0][1:]): row["body"] for row in rows
    }
    with Admin(name_server=cluster.name_server) as admin:
        assert [each.lag for each in admin.group_lag("GID_spark", "orders")] == [0] * 4


def test_a_group_that_has_committed_nothing_begins_at_the_latest_if_asked(
    cluster: EmbeddedCluster,
) -> None:
    cluster.create_topic("orders", queues=4)
    produce(cluster, 0, 40)
    with Admin(name_server=cluster.name_server) as admin:
        admin.update_committed_offset("GID_spark", MessageQueue("orders", "broker-a", 2), 0)
    options = {"nameServer": cluster.name_server, "topic": "orders", "group": "GID_spark"}
    reader = RocketMQReader(
        parse_options({**options, "startingOffsets": "group-or-latest"}, scope="batch")
    )

    rows = [
        (row["queueId"], row["queueOffset"])
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]
    connections.disconnect()

    assert [(2, offset) for offset in range(10)] == sorted(rows)

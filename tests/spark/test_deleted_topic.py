"""A topic that is deleted and made again while a streaming query reads it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark.sql.streaming.datasource")

from sparrowmq import Admin, Message, Producer
from sparrowmq.testing import EmbeddedCluster
from waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]


def test_a_query_reads_what_follows_and_repeats_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows: list[tuple[int, str]] = []
    with EmbeddedCluster() as cluster:
        cluster.create_topic("T", 1)

        def send(numbers: range) -> None:
            with Producer("GID_p", name_server=cluster.name_server) as producer:
                for number in numbers:
                    producer.send(Message("T", b"%d" % number))

        def take(frame: DataFrame, batch_id: int) -> None:
            rows.extend((row.queueOffset, bytes(row.body).decode()) for row in frame.collect())
            if batch_id == 0:
                # Between two batches, so that no batch meets the cluster without the topic.
                with Admin(name_server=cluster.name_server) as admin:
                    admin.delete_topic("T")
                    admin.create_topic("T", 1)
                send(range(10, 20))

        send(range(10))
        query = (
            spark.readStream.format("rocketmq")
            .options(nameServer=cluster.name_server, topic="T", startingOffsets="earliest")
            .load()
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", str(tmp_path))
            .start()
        )
        try:
            wait_until(
                "all is read, or the query has failed",
                lambda: query.exception() is not None or len(rows) >= 20,
                timeout_s=120,
            )
            query.processAllAvailable()
        finally:
            query.stop()

    assert rows == [(number, str(number)) for number in range(20)]

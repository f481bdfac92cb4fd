"""The Spark data source's readers on both brokers: Spark itself plays no part in the protocol."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable

from sparrowmq import Admin, Message, MessageQueue, Producer
from sparrowmq.spark import topic_queues as connections
from sparrowmq.spark.batch_reader import RocketMQReader
from sparrowmq.spark.options import parse_options
from sparrowmq.spark.stream_reader import RocketMQStreamReader

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600), pytest.mark.usefixtures("java")]


def rows_of(reader: Any, partitions: Any) -> list[dict[str, Any]]:
    return [
        row
        for partition in partitions
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]


def test_a_topic_is_read_whole_and_offsets_are_committed(cluster: Any) -> None:
    topic, group, broker_name = "SparkSource", "GID_spark_source", ""
    with Admin(name_server=cluster.name_server) as admin:
        admin.create_topic(topic, queues=4)
    with Producer("GID_spark_feed", name_server=cluster.name_server) as producer:
        broker_name = producer.fetch_publish_queues(topic)[0].broker_name
        for number in range(400):
            body = b"%d" % number if number % 50 else b"%d" % number * 3_000
            producer.send(
                Message(
                    topic, body, tags="even" if number % 2 == 0 else "odd", keys=(f"k{number}",)
                ),
                queue=MessageQueue(topic, broker_name, number % 4),
            )
    given = {"nameServer": cluster.name_server, "topic": topic, "waitForBrokers": "3s"}
    batch = RocketMQReader(parse_options({**given, "profile": "full"}, scope="batch"))
    stream = RocketMQStreamReader(
        parse_options(
            {
                **given,
                "startingOffsets": "earliest",
                "group": group,
                "commitOffsets": "true",
                "maxOffsetsPerTrigger": "150",
            },
            scope="stream",
        )
    )

    rows = rows_of(batch, batch.partitions())
    stream.prepareForTriggerAvailableNow()
    start = stream.initialOffset()
    middle = stream.latestOffset(start, stream.getDefaultReadLimit())
    end = stream.latestOffset(middle, ReadAllAvailable())
    parts = [rows_of(stream, stream.partitions(*each)) for each in [(start, middle), (middle, end)]]
    rest = stream.latestOffset(end, ReadAllAvailable())
    connections.disconnect()

    assert {number: b"%d" % number * (1 if number % 50 else 3_000) for number in range(400)} == {
        int(row["keys"][1:]): row["body"] for row in rows
    }
    assert len({(row["queueId"], row["queueOffset"]) for row in rows}) == 400
    assert {row["tags"] for row in rows} == {"even", "odd"}
    assert {cluster.broker} == {row["storeHost"] for row in rows}
    assert all(row["msgId"] == dict(row["properties"])["UNIQ_KEY"] for row in rows)
    assert [len(part) for part in parts] == [150, 250]
    assert {row["msgId"] for row in rows} == {row["msgId"] for part in parts for row in part}
    assert json.dumps(end) == json.dumps(rest)
    with Admin(name_server=cluster.name_server) as admin:
        assert [each.lag for each in admin.group_lag(group, topic)] == [0] * 4

"""What the Spark source asks of Apache's broker beyond pulls, and Apache's store alone."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("pyspark")

from sparrowmq import Admin, Message, MessageQueue, Producer
from sparrowmq.spark import topic_queues as connections
from sparrowmq.spark.batch_reader import RocketMQReader
from sparrowmq.spark.options import parse_options
from sparrowmq.spark.store_reader import StoreReader

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

TOPIC = "SparkOnApache"


@contextmanager
def filled_broker(java: Any, rig: ModuleType, store: Path) -> Generator[Any]:
    """Start Apache's broker, which may filter by properties, with 300 messages in 3 queues."""
    cluster = rig.ApacheCluster(java, store, enablePropertyFilter="true")
    cluster.start()
    try:
        with Admin(name_server=cluster.name_server) as admin:
            admin.create_topic(TOPIC, queues=3)
            admin.create_topic("Noise", queues=1)
        with Producer("GID_spark_feed", name_server=cluster.name_server) as producer:
            for number in range(300):
                body = b"%d" % number if number % 50 else b"%d" % number * 3_000
                message = Message(
                    TOPIC,
                    body,
                    tags=f"t{number % 3}",
                    keys=(f"k{number}",),
                    properties={"number": str(number)},
                )
                producer.send(message, queue=MessageQueue(TOPIC, "broker-a", number % 2))
                producer.send(Message("Noise", b"noise"))
        yield cluster
    finally:
        connections.disconnect()
        cluster.kill()


@pytest.fixture(scope="module")
def apache(java: Any, rig: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with filled_broker(java, rig, tmp_path_factory.mktemp("spark-apache") / "store") as cluster:
        yield cluster


def rows_of(reader: Any) -> list[dict[str, Any]]:
    rows = [
        row
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]
    return sorted(rows, key=lambda row: (row["topic"], row["queueId"], row["queueOffset"]))


def live(apache: Any, **given: str) -> list[dict[str, Any]]:
    options = {"nameServer": apache.name_server, "topic": TOPIC, "profile": "full", **given}
    return rows_of(RocketMQReader(parse_options(options, scope="batch")))


def offline(store: Path, **given: str) -> list[dict[str, Any]]:
    options = {"storePath": str(store), "topic": TOPIC, "profile": "full", **given}
    return rows_of(StoreReader(parse_options(options, scope="batch")))


def test_tags_and_conditions_are_filtered_by_the_broker(apache: Any) -> None:
    tags = live(apache, subExpression="t0 || t2")
    numbers = live(apache, subExpression="number BETWEEN 10 AND 19", filterType="SQL92")

    assert len(tags) == 200
    assert {row["tags"] for row in tags} == {"t0", "t2"}
    assert {f"k{number}" for number in range(10, 20)} == {row["keys"] for row in numbers}


def test_every_time_finds_the_first_message_since(apache: Any) -> None:
    rows = live(apache)
    times = sorted({int(row["storeTimestamp"].timestamp() * 1000 + 0.5) for row in rows})

    for time in [times[0] - 5, *times[:: max(1, len(times) // 8)], times[-1], times[-1] + 5]:
        expected = [row for row in rows if row["storeTimestamp"].timestamp() * 1000 + 0.5 >= time]
        assert live(apache, startingTimestamp=str(time)) == expected
        assert expected == rows[len(rows) :] or time <= times[-1]


def test_a_group_goes_on_where_it_has_committed(apache: Any) -> None:
    # 5.x takes commits of a group only once it has pulled.
    live(apache, group="GID_spark_at")
    with Admin(name_server=apache.name_server) as admin:
        admin.update_committed_offset("GID_spark_at", MessageQueue(TOPIC, "broker-a", 1), 140)

    rows = live(apache, startingOffsets="group-or-latest", group="GID_spark_at")
    unknown = live(apache, startingOffsets="group-or-latest", group="GID_spark_unknown")

    assert [(1, offset) for offset in range(140, 150)] == [
        (row["queueId"], row["queueOffset"]) for row in rows
    ]
    assert unknown == []


def test_the_store_is_read_while_the_broker_runs_and_after(
    java: Any, rig: ModuleType, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    # Other tests need theirs after this one.
    with filled_broker(java, rig, store) as apache:
        expected, chosen = live(apache), live(apache, subExpression="t1")

        assert offline(store) == expected
        assert chosen == offline(store, subExpression="t1")
        apache.stop()
        assert offline(store, minPartitions="5") == expected
        assert len(expected) == 300

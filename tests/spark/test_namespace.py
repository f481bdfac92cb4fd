"""The source and the sink in a namespace: plain names in options, rows and checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from sparrowmq import Admin, MessageQueue
from sparrowmq.calling.effects import Invoke, Now, Spawn
from sparrowmq.errors import ConfigError
from sparrowmq.model.namespace import NO_NAMESPACE, Namespace
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.spark.naming import named
from sparrowmq.spark.options import parse_options
from sparrowmq.spark.sink_options import parse_sink_options
from sparrowmq.testing import EmbeddedCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BASE = {"nameServer": "127.0.0.1:9876", "topic": "T"}


@pytest.mark.parametrize("parse", [parse_options, parse_sink_options])
def test_namespace_is_an_option(parse: Callable[..., Any]) -> None:
    assert parse(BASE, scope="batch").namespace == NO_NAMESPACE
    assert parse({**BASE, "namespace": "ns"}, scope="batch").namespace == Namespace("ns")
    with pytest.raises(ConfigError, match="option 'namespace'"):
        parse({**BASE, "namespace": "a%b"}, scope="batch")


def fields_of(effect: Invoke) -> Any:
    assert isinstance(effect.request, RemotingCommand)
    assert not isinstance(effect.request.ext_fields, bytes)
    return effect.request.ext_fields


def test_requests_name_what_is_in_the_namespace() -> None:
    def child() -> Any:
        yield Invoke("a", RemotingCommand(code=2, ext_fields={"topic": "U"}), 1)

    def operation() -> Any:
        fields = {"topic": "T", "consumerGroup": "G", "queueId": "0"}
        yield Invoke("a", RemotingCommand(code=1, ext_fields=fields), 1)
        tools = {"topic": "TBW102", "consumerGroup": "TOOLS_CONSUMER"}
        yield Invoke("a", RemotingCommand(code=1, ext_fields=tools), 1)
        yield Invoke("a", RemotingCommand(code=3), 1)
        yield Now()
        yield Spawn(child(), "child")

    effects = list(named(operation(), Namespace("ns")))
    spawned = effects.pop()
    assert isinstance(spawned, Spawn)
    requests = [fields_of(each) for each in effects if isinstance(each, Invoke)]
    (of_child,) = list(spawned.operation)

    assert requests[0] == {"topic": "ns%T", "consumerGroup": "ns%G", "queueId": "0"}
    assert requests[1:] == [{"topic": "TBW102", "consumerGroup": "TOOLS_CONSUMER"}, None]
    assert isinstance(of_child, Invoke)
    assert fields_of(of_child) == {"topic": "ns%U"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(tmp_path / "data") as found:
        yield found


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_rows_go_to_the_namespace_and_come_from_it(
    spark: SparkSession, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    with Admin(name_server=cluster.name_server, namespace="ns") as admin:
        admin.create_topic("orders", 2)
        admin.create_topic("bills", 1)
    with Admin(name_server=cluster.name_server) as admin:
        admin.create_topic("other", 1)
    options = {"nameServer": cluster.name_server, "namespace": "ns"}
    rows = spark.range(300).selectExpr(
        "cast(id as string) as body",
        "if(id < 200, 'orders', 'bills') as topic",
        "cast(id % 7 as string) as shardingKey",
    )
    rows.write.format("rocketmq").options(**options).mode("append").save()

    batch = spark.read.format("rocketmq").options(**options).option("topicPattern", ".*").load()
    query = (
        spark.readStream.format("rocketmq")
        .options(**options, topic="orders", group="GID_s", commitOffsets="true")
        .option("startingOffsets", '{"orders": {"broker-a": {"0": 0, "1": 0}}}')
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "table"))
    )
    query.awaitTermination()

    counts = {row.topic: row["count"] for row in batch.groupBy("topic").count().collect()}
    assert counts == {"orders": 200, "bills": 100}
    assert spark.read.parquet(str(tmp_path / "table")).count() == 200
    files = [path for path in (tmp_path / "checkpoint" / "offsets").iterdir() if path.is_file()]
    assert any("orders" in path.read_text("latin-1") for path in files)
    assert not any("ns%orders" in path.read_text("latin-1") for path in files)
    queues = [MessageQueue("ns%orders", "broker-a", number) for number in (0, 1)]
    with Admin(name_server=cluster.name_server) as admin:
        assert sum(admin.max_offset(queue) for queue in queues) == 200
        assert sum(admin.committed_offset("ns%GID_s", queue) or 0 for queue in queues) == 200

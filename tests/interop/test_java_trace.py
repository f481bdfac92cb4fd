"""The job that looks for duplicates reads what Java's clients trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException

from sparrowmq.errors import SparrowError
from sparrowmq.pipeline.consumption import split_trace
from sparrowmq.pipeline.duplicates import attribute, find_events, find_missing
from waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.interop, pytest.mark.spark, pytest.mark.timeout(600)]

TOPIC = "traced"
COUNT = 12


def test_deliveries_and_losses_are_found_in_javas_trace(
    cluster: Any,
    java_producer: Callable[..., list[dict[str, Any]]],
    java_push_consumer: Callable[..., Any],
    spark: SparkSession,
) -> None:
    cluster.create_topic(TOPIC, queues=2)
    consumer = java_push_consumer(cluster, topic=TOPIC, group="GID_traced", trace=True)
    sent = java_producer(cluster, topic=TOPIC, count=COUNT, trace=True)
    consumer.wait_for("messages", lambda: COUNT <= len(consumer.named("message")))

    def read() -> tuple[DataFrame, DataFrame] | None:
        source = spark.read.format("rocketmq").option("nameServer", cluster.name_server)
        source = source.option("topic", "RMQ_SYS_TRACE_TOPIC").option("columns", "body,bornHost")
        try:
            records, produced = split_trace(source.load())
        except (SparrowError, PySparkException):
            return None
        return (records, produced) if COUNT <= records.count() and produced.count() else None

    wait_until("trace of everything", read, timeout_s=120)
    found = read()
    assert found is not None
    records, produced = found
    deliveries = attribute(records, find_events(records)).collect()

    ids = sorted(line["msgId"] for line in sent)
    assert ids == sorted(row["msgId"] for row in deliveries)
    assert {("GID_traced", TOPIC, 1)} == {
        (row["consumerGroup"], row["topic"], row["nth"]) for row in deliveries
    }
    assert ids == sorted(row["msgId"] for row in produced.collect())
    assert 0 == find_missing(records, produced).count()

"""The job that looks for duplicates reads what Java's clients trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from sparrowmq import PollConsumer
from sparrowmq.errors import SparrowError
from sparrowmq.model.names import TRACE_TOPIC
from sparrowmq.pipeline.duplicates.judging import attribute, find_events, find_missing
from sparrowmq.pipeline.duplicates.records import read_trace
from waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.interop, pytest.mark.spark, pytest.mark.timeout(600)]

TOPIC = "traced"
COUNT = 12


def count_entries(consumer: PollConsumer, kind: bytes) -> int:
    """Count the entries of a kind that the trace topic holds."""
    try:
        queues = consumer.fetch_subscribe_queues(TRACE_TOPIC)
        answers = [consumer.pull(queue, 0, 256) for queue in queues]
    except SparrowError:
        return 0
    return sum(message.body.count(kind) for answer in answers for message in answer.messages)


def test_deliveries_and_losses_are_found_in_javas_trace(
    cluster: Any,
    java_producer: Callable[..., list[dict[str, Any]]],
    java_push_consumer: Callable[..., Any],
    spark: SparkSession,
) -> None:
    cluster.create_topic(TOPIC, queues=2)
    java_push_consumer(cluster, topic=TOPIC, group="GID_traced", trace=True)
    sent = java_producer(cluster, topic=TOPIC, count=COUNT, trace=True)
    with PollConsumer("GID_looks", name_server=cluster.name_server) as consumer:
        for kind in (b"Pub\x01", b"SubBefore\x01"):
            wait_until(
                f"{kind!r} traced",
                lambda kind=kind: count_entries(consumer, kind) >= COUNT,  # type: ignore[misc]
                timeout_s=60,
            )

    records, produced = read_trace(spark, cluster.name_server, TRACE_TOPIC)
    deliveries = attribute(records, find_events(records)).collect()

    ids = sorted(line["msgId"] for line in sent)
    assert ids == sorted(row["msgId"] for row in deliveries)
    assert {(row["consumerGroup"], row["topic"], row["nth"]) for row in deliveries} == {
        ("GID_traced", TOPIC, 1)
    }
    assert ids == sorted(row["msgId"] for row in produced.collect())
    assert find_missing(records, produced).count() == 0

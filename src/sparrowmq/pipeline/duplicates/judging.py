"""Judges deliveries: finds duplicates, their events, and missing messages.

The first delivery of a message to a group is intended. Each later delivery is a duplicate, and is
attributed to the last rebalance event before it. Without a table of events the records give them: a
queue whose member changes between two deliveries has moved, and moves less than `EVENT_GAP_S` apart
are one event. Without the messages' places (message trace) moves are unknown, and duplicates have
no event.

A produced message that a group never consumed is *lost* if the group consumed a later message of
the same queue, and *pending* otherwise. If the queue is unknown no loss is certain, so the message
is pending. A group's topics are those of which it consumed at least one message.
Tests: pipeline/test_duplicates.py.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

EVENT_GAP_S = 10.0
LOST, PENDING = "lost", "pending"
# The strategy if no event names one.
UNKNOWN = "unknown"
_BEFORE_ALL = "before the first event"


def find_events(records: DataFrame) -> DataFrame:
    """Find rebalance events in records by queues whose member changes.

    Args:
        records: the result of `records.read_records`.

    Returns: a row for each event, with the columns of the table of events.
    """
    of_queue = Window.partitionBy("consumerGroup", "topic", "brokerName", "queueId").orderBy(
        "consumedTimestamp", "queueOffset"
    )
    of_group = Window.partitionBy("consumerGroup").orderBy("consumedTimestamp")
    since = F.col("consumedTimestamp").cast("double")
    moves = (
        records.dropna(subset=["topic", "brokerName", "queueId", "queueOffset"])
        .withColumn("previousClientId", F.lag("clientId").over(of_queue))
        .where("previousClientId is not null and previousClientId != clientId")
        .withColumn("isNew", (since - F.lag(since).over(of_group) <= EVENT_GAP_S).eqNullSafe(True))
        .withColumn("number", F.sum((~F.col("isNew")).cast("int")).over(of_group))
    )
    queues = F.count_distinct("topic", "brokerName", "queueId")
    return (
        moves.groupBy("consumerGroup", "number")
        .agg(F.min("consumedTimestamp").alias("eventTimestamp"), queues.alias("queues"))
        .select(
            "consumerGroup",
            "eventTimestamp",
            F.concat(
                "queues", F.when(F.col("queues") == 1, " queue moved").otherwise(" queues moved")
            ).alias("event"),
            F.lit(None).cast("string").alias("strategy"),
        )
    )


def attribute(records: DataFrame, events: DataFrame) -> DataFrame:
    """Number each message's deliveries, and add the last event before each delivery.

    Returns: the records with `nth` (1 is the first delivery), `firstClientId`, `firstTimestamp`,
    `eventIndex` (0 before the first event), `event`, `eventTimestamp` and `strategy`.
    """
    of_message = Window.partitionBy(
        "consumerGroup", "messageKey", F.coalesce("reconsumeTimes", F.lit(0))
    ).orderBy("consumedTimestamp", "clientId")
    numbered = (
        records.withColumn("nth", F.row_number().over(of_message))
        .withColumn("firstClientId", F.first("clientId").over(of_message))
        .withColumn("firstTimestamp", F.first("consumedTimestamp").over(of_message))
    )
    order = Window.partitionBy("consumerGroup").orderBy("eventTimestamp", "event")
    found = events.select(
        "consumerGroup",
        F.struct(
            F.row_number().over(order).alias("eventIndex"), "event", "eventTimestamp", "strategy"
        ).alias("found"),
    )
    of_groups = found.groupBy("consumerGroup").agg(
        F.array_sort(F.collect_list("found")).alias("events")
    )
    before = F.filter("events", lambda each: each["eventTimestamp"] <= F.col("consumedTimestamp"))
    last = F.try_element_at(before, F.lit(-1))
    return (
        numbered.join(F.broadcast(of_groups), "consumerGroup", "left")
        .withColumn("last", last)
        .select(
            *numbered.columns,
            F.coalesce("last.eventIndex", F.lit(0)).alias("eventIndex"),
            F.coalesce("last.event", F.lit(_BEFORE_ALL)).alias("event"),
            F.col("last.eventTimestamp").alias("eventTimestamp"),
            F.coalesce("last.strategy", F.lit(UNKNOWN)).alias("strategy"),
        )
    )


def find_missing(records: DataFrame, produced: DataFrame) -> DataFrame:
    """Return the produced messages that a group never consumed, with `state` lost or pending."""
    frontier = records.groupBy("consumerGroup", "topic", "brokerName", "queueId").agg(
        F.max("queueOffset").alias("lastOffset")
    )
    wanted = records.select("consumerGroup", "topic").distinct()
    consumed = records.select("consumerGroup", "messageKey").distinct()
    missing = produced.join(wanted, "topic").join(
        consumed, ["consumerGroup", "messageKey"], "left_anti"
    )
    is_lost = F.col("queueOffset") < F.col("lastOffset")
    return missing.join(
        frontier, ["consumerGroup", "topic", "brokerName", "queueId"], "left"
    ).select(
        "consumerGroup",
        *("topic", "brokerName", "queueId", "queueOffset", "msgId"),
        F.when(is_lost, LOST).otherwise(PENDING).alias("state"),
    )

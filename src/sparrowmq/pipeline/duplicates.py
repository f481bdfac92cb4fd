"""The job `duplicates`: which messages were consumed more than once, by whom, after which event.

Of the deliveries of a message to a group the first is meant; each later one is a duplicate, put
down to the last rebalance event before it. Where no events are given they are found: a queue whose
member changes from one delivery to the next has moved, and moves less than `EVENT_GAP_S` apart are
one event. Without places (message trace) no move is seen, and duplicates stand alone.

A produced message that a group never consumed is *lost* if the group consumed a later one of the
same queue, and *pending* else. Where the queue is unknown nothing is lost for certain: all such are
pending. Groups are held to the topics that they consumed at least one message of.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

EVENT_GAP_S = 10.0
LOST, PENDING = "lost", "pending"
# The strategy, where no event tells it.
UNKNOWN = "unknown"
_BEFORE_ALL = "before the first event"


class EventFigures(NamedTuple):
    """A rebalance event and what came twice until the next one.

    Args:
        at: None for what happened before the first event.
        deliveries: of the group until the next event, duplicates included.
        by_same_member: duplicates that the member of the first delivery had itself.
    """

    consumer_group: str
    event_index: int
    event: str
    strategy: str
    at: datetime | None
    deliveries: int
    duplicates: int
    by_same_member: int
    queues: int


class GroupFigures(NamedTuple):
    """A group's deliveries. `lost` and `pending` are 0 if nobody told what was produced."""

    consumer_group: str
    deliveries: int
    messages: int
    duplicates: int
    most_often: int
    lost: int
    pending: int


class StrategyFigures(NamedTuple):
    """Duplicates under one strategy, over all groups."""

    strategy: str
    events: int
    deliveries: int
    duplicates: int


def find_events(records: DataFrame, *, gap_s: float = EVENT_GAP_S) -> DataFrame:
    """Find rebalance events in records: queues whose member changes.

    Args:
        records: as `consumption.read_records` gives them.
        gap_s: moves of a group that are closer together belong to one event.

    Returns: the columns of the table of events.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812  (the name that Spark's users know)

    of_queue = Window.partitionBy("consumerGroup", "topic", "brokerName", "queueId").orderBy(
        "consumedTimestamp", "queueOffset"
    )
    of_group = Window.partitionBy("consumerGroup").orderBy("consumedTimestamp")
    since = F.col("consumedTimestamp").cast("double")
    moves = (
        records.where("queueOffset is not null")
        .withColumn("previousClientId", F.lag("clientId").over(of_queue))
        .where("previousClientId is not null and previousClientId != clientId")
        .withColumn("isNew", (since - F.lag(since).over(of_group) <= gap_s).eqNullSafe(True))
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
    """Number each message's deliveries, and name the last event before each of them.

    Returns: the records and `nth` (1 is the first), `firstClientId`, `firstTimestamp`,
    `eventIndex` (0 before the first event), `event`, `eventTimestamp`, `strategy`.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812  (the name that Spark's users know)

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
    """Return what was produced and a group never consumed, with `state` lost or pending."""
    from pyspark.sql import functions as F  # noqa: N812  (the name that Spark's users know)

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


def list_events(attributed: DataFrame, *, count: int = 200) -> list[EventFigures]:
    """Add up by event, in the order of groups and time."""
    from pyspark.sql import functions as F  # noqa: N812  (the name that Spark's users know)

    is_again = F.col("nth") > 1
    queue = F.concat_ws("|", "topic", "brokerName", "queueId")
    rows = (
        attributed.groupBy("consumerGroup", "eventIndex", "event", "strategy")
        .agg(
            F.first("eventTimestamp").cast("double").alias("at"),
            F.count("*").alias("deliveries"),
            F.count_if(is_again).alias("duplicates"),
            F.count_if(is_again & (F.col("clientId") == F.col("firstClientId"))).alias(
                "bySameMember"
            ),
            F.count_distinct(F.when(is_again, queue)).alias("queues"),
        )
        .orderBy("consumerGroup", "eventIndex")
        .limit(count)
        .collect()
    )
    return [
        EventFigures(
            consumer_group=row["consumerGroup"],
            event_index=row["eventIndex"],
            event=row["event"],
            strategy=row["strategy"],
            at=None if row["at"] is None else datetime.fromtimestamp(row["at"], UTC),
            deliveries=row["deliveries"],
            duplicates=row["duplicates"],
            by_same_member=row["bySameMember"],
            queues=row["queues"],
        )
        for row in rows
    ]


def list_strategies(attributed: DataFrame) -> list[StrategyFigures]:
    """Add up by strategy, the most duplicates a delivery first."""
    from pyspark.sql import functions as F  # noqa: N812  (the name that Spark's users know)

    rows = (
        attributed.groupBy("strategy")
        .agg(
            F.count_distinct("consumerGroup", F.when(F.col("eventIndex") > 0, F.col("eventIndex"))),
            F.count("*"),
            F.count_if(F.col("nth") > 1),
        )
        .collect()
    )
    found = [StrategyFigures(*row) for row in rows]
    return sorted(found, key=lambda each: (-each.duplicates / each.deliveries, each.strategy))


def list_groups(attributed: DataFrame, missing: DataFrame | None) -> list[GroupFigures]:
    """Add up by group."""
    from pyspark.sql import functions as F  # noqa: N812  (the name that Spark's users know)

    rows = (
        attributed.groupBy("consumerGroup")
        .agg(
            F.count("*"),
            F.count_distinct("messageKey"),
            F.count_if(F.col("nth") > 1),
            F.max("nth"),
        )
        .orderBy("consumerGroup")
        .collect()
    )
    absent: dict[tuple[str, str], int] = {}
    if missing is not None:
        counted = missing.groupBy("consumerGroup", "state").count().collect()
        absent = {(row["consumerGroup"], row["state"]): row["count"] for row in counted}
    found = []
    for row in rows:
        group, deliveries, messages, again, most_often = row
        lost, pending = absent.get((group, LOST), 0), absent.get((group, PENDING), 0)
        found.append(GroupFigures(group, deliveries, messages, again, most_often, lost, pending))
    return found

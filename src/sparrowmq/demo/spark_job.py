"""The batch job: answers from the Parquet table and the members' logbooks, computed by Spark.

Every question is one query; the figures that the report shows come from their results.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812  (the name that Spark's users know)

_DELIVERIES_DDL = "at_ms BIGINT, queue_id INT, queue_offset BIGINT, flight_id STRING"


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What the batch job is to look at; written by the demo, read by the job.

    Args:
        consumed: a group's `consumed.csv` files, by member.
        event_starts_ms: when each rebalance event happened, ascending.
    """

    consumed: dict[str, str]
    event_starts_ms: list[int]


class CarrierAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A carrier's flights and mean delays in minutes; None where no flight has one."""

    carrier: str
    flights: int
    mean_departure_delay: float | None
    mean_arrival_delay: float | None


class ConsumptionAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """How much a member consumed of a queue."""

    queue_id: int
    member: str
    deliveries: int


class DuplicatesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """How many messages were delivered again in the window of an event."""

    event_index: int
    duplicates: int


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    """All answers."""

    carriers: list[CarrierAnswer]
    consumption: list[ConsumptionAnswer]
    duplicates: list[DuplicatesAnswer]


def answer(session: SparkSession, *, table: Path, question: Question) -> Answers:
    """Run the three queries."""
    deliveries = _read_deliveries(session, question.consumed).cache()
    answers = Answers(
        carriers=ask_carriers(session.read.parquet(str(table))),
        consumption=ask_consumption(deliveries),
        duplicates=ask_duplicates(deliveries, question.event_starts_ms),
    )
    deliveries.unpersist()
    return answers


def ask_carriers(flights: DataFrame) -> list[CarrierAnswer]:
    """Flights and mean delay per carrier, most flights first."""
    rows = (
        flights.groupBy("carrier")
        .agg(
            F.count("*").alias("flights"),
            F.avg("dep_delay").alias("departure"),
            F.avg("arr_delay").alias("arrival"),
        )
        .orderBy(F.desc("flights"), "carrier")
        .collect()
    )
    return [
        CarrierAnswer(
            carrier=row["carrier"],
            flights=row["flights"],
            mean_departure_delay=row["departure"],
            mean_arrival_delay=row["arrival"],
        )
        for row in rows
    ]


def ask_consumption(deliveries: DataFrame) -> list[ConsumptionAnswer]:
    """Deliveries per queue and member."""
    rows = deliveries.groupBy("queue_id", "member").count().orderBy("queue_id", "member").collect()
    return [
        ConsumptionAnswer(queue_id=row["queue_id"], member=row["member"], deliveries=row["count"])
        for row in rows
    ]


def ask_duplicates(deliveries: DataFrame, event_starts_ms: Sequence[int]) -> list[DuplicatesAnswer]:
    """Deliveries after a message's first, by the last event before them."""
    nth = F.row_number().over(Window.partitionBy("queue_id", "queue_offset").orderBy("at_ms"))
    starts = [F.when(F.col("at_ms") >= start, 1).otherwise(0) for start in event_starts_ms]
    begun = sum(starts, F.lit(0))
    rows = (
        deliveries.withColumn("nth", nth)
        .where("nth > 1")
        .withColumn("event_index", F.greatest(begun - 1, F.lit(0)))
        .groupBy("event_index")
        .count()
        .orderBy("event_index")
        .collect()
    )
    counts = {row["event_index"]: row["count"] for row in rows}
    return [
        DuplicatesAnswer(event_index=index, duplicates=counts.get(index, 0))
        for index in range(len(event_starts_ms))
    ]


def _read_deliveries(session: SparkSession, consumed: dict[str, str]) -> DataFrame:
    member_of = F.create_map(
        *(F.lit(part) for name, path in consumed.items() for part in (Path(path).name, name))
    )
    file_name = F.element_at(F.split(F.input_file_name(), "/"), -1)
    # A member that was killed may have torn its last line, which then lacks fields.
    return (
        session.read.schema(_DELIVERIES_DDL)
        .csv(list(consumed.values()))
        .withColumn("member", F.element_at(member_of, file_name))
        .where("flight_id IS NOT NULL")
    )

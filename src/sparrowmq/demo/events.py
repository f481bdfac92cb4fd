"""The events that the demo's producer and its Spark process log, and the question to Spark.

Tests: test_progress.py.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from sparrowmq.processes.logbook import Failed

# The step of Spark that begins once all flights are in the table.
INGESTED = "has every flight in Parquet"


class Produced(msgspec.Struct, frozen=True, kw_only=True, tag="produced"):
    """The number of flights that the broker has acknowledged.

    `sending_ms` is the time of waiting for acknowledgements, without pauses. `rate_max` is the
    pace, in flights per second.
    """

    at_ms: int
    count: int
    total: int
    sending_ms: int
    rate_max: int

    @property
    def is_done(self) -> bool:
        """Whether every flight is acknowledged."""
        return self.count == self.total


class SessionStarted(msgspec.Struct, frozen=True, kw_only=True, tag="session"):
    """The Spark session has started."""

    at_ms: int
    spark_version: str
    java: str


class SparkStep(msgspec.Struct, frozen=True, kw_only=True, tag="step"):
    """What Spark does from now on."""

    at_ms: int
    name: str


class BatchWritten(msgspec.Struct, frozen=True, kw_only=True, tag="batch"):
    """A micro-batch is in the table; Spark's commit log follows."""

    at_ms: int
    batch_id: int
    messages: int
    seconds: float


class CarrierAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A carrier's flights and mean delays in minutes; None if no flight has a delay."""

    carrier: str
    flights: int
    mean_departure_delay: float | None
    mean_arrival_delay: float | None


class ConsumptionAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A member's deliveries from a queue after an event, and the duplicates among them.

    `event_index` counts from 1; 0 is the time before the first event.
    """

    queue_id: int
    member: str
    event_index: int
    deliveries: int
    duplicates: int


class Answers(msgspec.Struct, frozen=True, kw_only=True, tag="answers"):
    """All answers of the batch job."""

    at_ms: int
    carriers: list[CarrierAnswer]
    consumption: list[ConsumptionAnswer]


ProducerEvent: TypeAlias = Produced | Failed
SparkEvent: TypeAlias = SessionStarted | SparkStep | BatchWritten | Answers | Failed


class JobQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """The question to the batch job: a line on its standard input.

    Args:
        consumed: the `consumed.csv` files of the group, by member.
        events: the instant and the name of each rebalance event.
    """

    group: str
    consumed: dict[str, str]
    events: list[tuple[int, str]]

"""The events that the demo's producer and its Spark process log, and the question to Spark."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from sparrowmq.processes.logbook import Failed


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
    is_done: bool = False


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


class IngestEnded(msgspec.Struct, frozen=True, kw_only=True, tag="ingest-ended"):
    """A run that began after the production of the last flight has ended."""

    at_ms: int


class AnswersReady(msgspec.Struct, frozen=True, kw_only=True, tag="answers"):
    """The batch job has written its answers."""

    at_ms: int


ProducerEvent: TypeAlias = Produced | Failed
SparkEvent: TypeAlias = (
    SessionStarted | SparkStep | BatchWritten | IngestEnded | AnswersReady | Failed
)


class JobQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """The question to the batch job; the demo writes it, the job reads it.

    Args:
        group: the consumer group.
        consumed: the `consumed.csv` files of the group, by member.
        events: the instant and the name of each rebalance event.
    """

    group: str
    consumed: dict[str, str]
    events: list[tuple[int, str]]


class CarrierAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A carrier's flights and mean delays in minutes; None if no flight has a delay."""

    carrier: str
    flights: int
    mean_departure_delay: float | None
    mean_arrival_delay: float | None


class ConsumptionAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The number of messages that a member consumed from a queue."""

    queue_id: int
    member: str
    deliveries: int


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    """All answers; `duplicates` has the duplicates after each event, in the events' order."""

    carriers: list[CarrierAnswer]
    consumption: list[ConsumptionAnswer]
    duplicates: list[int]

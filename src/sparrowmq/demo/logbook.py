"""What the demo's producer and its Spark process write down, and what Spark is asked."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from sparrowmq.processes.logbook import Failed


class Produced(msgspec.Struct, frozen=True, kw_only=True, tag="produced"):
    """The producer has this many flights acknowledged.

    `sending_ms` is the time spent waiting for acknowledgements, without pauses. `rate_max` is the
    pace, in flights a second.
    """

    at_ms: int
    count: int
    total: int
    sending_ms: int
    rate_max: int
    is_done: bool = False


class SessionStarted(msgspec.Struct, frozen=True, kw_only=True, tag="session"):
    """The Spark session is there."""

    at_ms: int
    spark_version: str
    java: str


class BatchWritten(msgspec.Struct, frozen=True, kw_only=True, tag="batch"):
    """A micro-batch is in the table; Spark's commit log follows."""

    at_ms: int
    batch_id: int
    seconds: float


class IngestEnded(msgspec.Struct, frozen=True, kw_only=True, tag="ingest-ended"):
    """A run that began after the last flight was produced has ended; `runs` counts it too."""

    at_ms: int
    runs: int


class AnswersReady(msgspec.Struct, frozen=True, kw_only=True, tag="answers"):
    """The batch job has written its answers."""

    at_ms: int


ProducerEvent: TypeAlias = Produced | Failed
IngestEvent: TypeAlias = SessionStarted | BatchWritten | IngestEnded | AnswersReady | Failed


class JobQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """What the batch job is to look at; written by the demo, read by the job.

    Args:
        group: the consumer group.
        consumed: its members' `consumed.csv` files, by member.
        events: when each rebalance event happened, and its name.
    """

    group: str
    consumed: dict[str, str]
    events: list[tuple[int, str]]


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


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    """All answers; `duplicates` are those after each event, in the order of events."""

    carriers: list[CarrierAnswer]
    consumption: list[ConsumptionAnswer]
    duplicates: list[int]

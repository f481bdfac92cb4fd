"""The events that the demo's producer and its Spark process write into their logbooks."""

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


class BatchBegun(msgspec.Struct, frozen=True, kw_only=True, tag="batch-begun"):
    """Spark hands a micro-batch to the sink."""

    at_ms: int
    batch_id: int


class BatchWritten(msgspec.Struct, frozen=True, kw_only=True, tag="batch-written"):
    """The sink has published a micro-batch; Spark's commit log follows."""

    at_ms: int
    batch_id: int


class RunEnded(msgspec.Struct, frozen=True, kw_only=True, tag="run-ended"):
    """An AvailableNow run has reached the end it had frozen."""

    at_ms: int
    batches: int


class IngestEnded(msgspec.Struct, frozen=True, kw_only=True, tag="ingest-ended"):
    """A run has found nothing new after the producer's last flight."""

    at_ms: int


class AnswersReady(msgspec.Struct, frozen=True, kw_only=True, tag="answers"):
    """The batch job has written its answers."""

    at_ms: int


ProducerEvent: TypeAlias = Produced | Failed
IngestEvent: TypeAlias = (
    SessionStarted | BatchBegun | BatchWritten | RunEnded | IngestEnded | AnswersReady | Failed
)

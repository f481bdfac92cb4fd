"""The outcome of a run: exactly the figures that the report shows.

`figures.json` is the encoded outcome, and the report is a function of the outcome. Instants
(`*_ms`) are milliseconds of the machine's monotonic clock; the demo began at `begun_ms`. Durations
are milliseconds too.
Tests: test_report_page.py.
"""

from __future__ import annotations

import msgspec

from sparrowmq.demo.events import Answers, BatchWritten, SessionStarted
from sparrowmq.demo.progress import Kill, QueueLagSample, StageTime, TwinStaging
from sparrowmq.demo.verify import TableFacts
from sparrowmq.doctor.owner_history import GroupRebalance, OwnedSpan
from sparrowmq.report import Check


class Production(msgspec.Struct, frozen=True, kw_only=True):
    """The production of the flights.

    `sending_rate` is over the time of waiting for acknowledgements, `rate` over the whole time,
    pauses and pace included. `rate_max` is the producer's pace.
    """

    flights: int
    is_limited: bool
    begin_ms: int
    end_ms: int
    rate: float
    sending_rate: float
    rate_max: int


class EventFigure(msgspec.Struct, frozen=True, kw_only=True):
    """A rebalance event of the first group. Its window ends when the next event begins.

    `produced_meanwhile` counts the flights produced in the window, `duplicates` the messages
    delivered again, by the job `duplicates`.
    """

    name: str
    at_ms: int
    rebalance: GroupRebalance
    produced_meanwhile: int
    duplicates: int
    queues_after: dict[str, list[int]]


class GroupFigure(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer group from its first member to the end; `members` has client ids by name."""

    group: str
    members: dict[str, str]
    spans: list[OwnedSpan]
    deliveries: int


class IngestFigure(msgspec.Struct, frozen=True, kw_only=True):
    """Spark's ingest of the topic."""

    sessions: list[SessionStarted]
    batches: list[BatchWritten]
    kill: Kill | None
    end_ms: int


class DemoOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """All figures of a run.

    Args:
        machine: the machine and the versions, by what they are.
        memory_peak_mib: the peak of all processes together.
        cpu_s: the processor seconds by process, the most first.
        twin_duplicates: the repeated deliveries while the twins ran.
        carriers: the carriers' names by their codes.
    """

    begun: str
    begun_ms: int
    end_ms: int
    memory_peak_mib: int | None
    cpu_s: dict[str, float]
    machine: dict[str, str]
    stages: list[StageTime]
    production: Production
    first_group: GroupFigure
    events: list[EventFigure]
    second_group: GroupFigure
    twins: TwinStaging
    twin_duplicates: int
    lags: list[QueueLagSample]
    ingest: IngestFigure
    table: TableFacts
    carriers: dict[str, str]
    answers: Answers
    checks: list[Check]

    @property
    def holds(self) -> bool:
        """Whether every condition holds."""
        return all(check.holds for check in self.checks)

    @property
    def duration_ms(self) -> int:
        """The time from the first process to the last figure."""
        return self.end_ms - self.begun_ms

    def seconds(self, at_ms: int) -> float:
        """Return an instant as seconds since the begin of the demo."""
        return round((at_ms - self.begun_ms) / 1000, 3)


def encode_outcome(outcome: DemoOutcome) -> bytes:
    """Return the content of `figures.json`."""
    return msgspec.json.format(msgspec.json.encode(outcome), indent=2) + b"\n"

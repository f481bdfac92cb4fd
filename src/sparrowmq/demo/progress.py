"""The state of a running demo, read from logs, for the screen and the figures.

Nothing here starts, stops or draws anything. Instants are monotonic milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sparrowmq.demo.events import (
    INGESTED,
    Answers,
    BatchWritten,
    Produced,
    ProducerEvent,
    SessionStarted,
    SparkEvent,
    SparkStep,
)
from sparrowmq.processes.child_processes import ProcessFailed
from sparrowmq.processes.group_members import Members
from sparrowmq.processes.logbook import EventTail, Failed
from sparrowmq.processes.usage import Usage


@dataclass(frozen=True, slots=True)
class Kill:
    """The kill of Spark during a batch, with the number of the batch's data files on the disk."""

    at_ms: int
    batch_id: int
    files: int


@dataclass(slots=True)
class IngestState:
    """What Spark does, from its log; `kill` comes from the demo, which killed it.

    `ingested_ms` is when the table had all messages of the topic.
    """

    tail: EventTail[SparkEvent]
    sessions: list[SessionStarted] = field(default_factory=list)
    batches: list[BatchWritten] = field(default_factory=list)
    step: str = "starts a JVM"
    step_ms: int = 0
    kill: Kill | None = None
    ingested_ms: int | None = None
    answers: Answers | None = None

    @property
    def count(self) -> int:
        """The number of messages in the table; a batch that was replayed counts once."""
        return sum({batch.batch_id: batch.messages for batch in self.batches}.values())

    def begin_step(self, name: str, at_ms: int) -> None:
        """Note what Spark does from now on."""
        if name != self.step:
            self.step, self.step_ms = name, at_ms

    def read(self) -> None:
        """Read the events written since the last call. Raises: ProcessFailed if Spark failed."""
        for event in self.tail.read():
            match event:
                case SessionStarted():
                    self.sessions.append(event)
                case SparkStep(name=name, at_ms=at_ms):
                    self.begin_step(name, at_ms)
                    if name == INGESTED:
                        self.ingested_ms = at_ms
                case BatchWritten():
                    self.batches.append(event)
                case Answers():
                    self.answers = event
                case Failed(reason=reason):
                    raise ProcessFailed(f"Spark failed: {reason}")


@dataclass(slots=True)
class ProductionState:
    """The producer's state from its log."""

    tail: EventTail[ProducerEvent]
    reports: list[Produced] = field(default_factory=list)

    @property
    def count(self) -> int:
        """The number of acknowledged flights."""
        return self.reports[-1].count if self.reports else 0

    @property
    def total(self) -> int | None:
        """The number of all flights, once the producer has loaded them."""
        return self.reports[0].total if self.reports else None

    @property
    def is_done(self) -> bool:
        """Whether every flight is acknowledged."""
        return bool(self.reports) and self.reports[-1].is_done

    def count_at(self, at_ms: int) -> int:
        """Return the number of acknowledged flights in the last report before an instant."""
        return max((report.count for report in self.reports if report.at_ms <= at_ms), default=0)

    def read(self) -> None:
        """Read the events written since the last call. Raises: ProcessFailed if it failed."""
        for event in self.tail.read():
            if isinstance(event, Failed):
                raise ProcessFailed(f"the producer failed: {event.reason}")
            self.reports.append(event)


@dataclass(slots=True)
class QueueLagSample:
    """Each group's lag in each queue."""

    at_ms: int
    first: list[int]
    second: list[int]
    by_message: list[int] = field(default_factory=list)


@dataclass(slots=True)
class TwinStaging:
    """The observations of the twins.

    `by_message` has the messages of each member that consumed the backlog once more, by messages,
    and `by_message_drained_ms` the end of this backlog.
    """

    begin_ms: int = 0
    cid_all: list[str] = field(default_factory=list)
    taken: dict[str, list[int]] = field(default_factory=dict)
    unowned: list[int] = field(default_factory=list)
    backlog_at_remedy: list[int] = field(default_factory=list)
    remedy_ms: int = 0
    healed_ms: int = 0
    drained_ms: int = 0
    by_message: dict[str, int] = field(default_factory=dict)
    by_message_drained_ms: int = 0


@dataclass(slots=True)
class StageTime:
    """The begin and end of a stage."""

    name: str
    begin_ms: int
    end_ms: int = 0


@dataclass(slots=True)
class DemoState:
    """The whole state.

    `events` has the instant and the name of each rebalance event of the first group that the demo
    caused. `ended_ms`, `owners` and `end_lags` are of the end, while all members still ran.
    """

    begun_ms: int
    first_group: str
    second_group: str
    members: Members
    production: ProductionState
    ingest: IngestState
    stages: list[StageTime] = field(default_factory=list)
    events: list[tuple[int, str]] = field(default_factory=list)
    lags: list[QueueLagSample] = field(default_factory=list)
    twins: TwinStaging = field(default_factory=TwinStaging)
    usage: Usage = field(default_factory=Usage)
    ended_ms: int = 0
    owners: dict[str, list[list[str]]] = field(default_factory=dict)
    end_lags: dict[str, int] = field(default_factory=dict)

    def lag(self, group: str) -> list[int] | None:
        """Return a group's last known lag in each queue."""
        if not self.lags:
            return None
        last = self.lags[-1]
        known = {self.first_group: last.first, self.second_group: last.second}
        return known.get(group, last.by_message) or None

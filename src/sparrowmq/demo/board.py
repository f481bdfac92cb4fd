"""The state of a running demo, read from the logbooks, for the screen and the stages.

Nothing here starts, stops or draws anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sparrowmq.demo.logbook import (
    AnswersReady,
    BatchWritten,
    IngestEnded,
    IngestEvent,
    Produced,
    ProducerEvent,
    SessionStarted,
)
from sparrowmq.processes.logbook import EventTail, Failed
from sparrowmq.processes.member_log import MemberLog, is_balanced
from sparrowmq.processes.usage import Usage


@dataclass(frozen=True, slots=True)
class Kill:
    """The kill of Spark during a batch, with the number of the batch's data files on the disk."""

    at_ms: int
    batch_id: int
    files: int


@dataclass(slots=True)
class IngestBoard:
    """Spark's state from its logbook, and the kill from the keeper that killed it."""

    tail: EventTail[IngestEvent]
    sessions: list[SessionStarted] = field(default_factory=list)
    batches: list[BatchWritten] = field(default_factory=list)
    kill: Kill | None = None
    end: IngestEnded | None = None
    answered_ms: int | None = None
    failure: str = ""

    def read(self) -> None:
        """Read the events written since the last call."""
        for event in self.tail.read():
            match event:
                case SessionStarted():
                    self.sessions.append(event)
                case BatchWritten():
                    self.batches.append(event)
                case IngestEnded():
                    self.end = event
                case AnswersReady(at_ms=at_ms):
                    self.answered_ms = at_ms
                case Failed(reason=reason):
                    self.failure = reason


@dataclass(slots=True)
class ProductionBoard:
    """The producer's state from its logbook."""

    tail: EventTail[ProducerEvent]
    reports: list[Produced] = field(default_factory=list)
    failure: str = ""

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
        counts = [report.count for report in self.reports if report.at_ms <= at_ms]
        return counts[-1] if counts else 0

    def read(self) -> None:
        """Read the events written since the last call."""
        for event in self.tail.read():
            if isinstance(event, Produced):
                self.reports.append(event)
            else:
                self.failure = event.reason


@dataclass(slots=True)
class Happening:
    """A rebalance event of the first group, caused by the demo."""

    name: str
    at_ms: int
    settled_ms: int | None = None


@dataclass(slots=True)
class QueueLagSample:
    """Each group's lag in each queue."""

    at_ms: int
    first: list[int]
    second: list[int]


@dataclass(slots=True)
class TwinStaging:
    """The observations of the twins; instants are monotonic milliseconds."""

    begin_ms: int = 0
    cid_all: list[str] = field(default_factory=list)
    taken: dict[str, list[int]] = field(default_factory=dict)
    unowned: list[int] = field(default_factory=list)
    backlog_at_remedy: list[int] = field(default_factory=list)
    remedy_ms: int = 0
    healed_ms: int = 0
    drained_ms: int = 0


@dataclass(slots=True)
class StageTime:
    """The begin and end of a stage."""

    name: str
    begin_ms: int
    end_ms: int = 0


@dataclass(slots=True)
class Ending:
    """The state at the end, while all members still ran."""

    at_ms: int
    owners: dict[str, list[list[str]]]
    lags: dict[str, list[int]]


@dataclass(slots=True)
class Board:
    """The whole state."""

    begun_ms: int
    queue_count: int
    first_group: str
    second_group: str
    production: ProductionBoard
    ingest: IngestBoard
    stage: str = ""
    members: dict[str, MemberLog] = field(default_factory=dict)
    happenings: list[Happening] = field(default_factory=list)
    lags: list[QueueLagSample] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)

    def members_of(self, group: str) -> list[MemberLog]:
        """Return a group's members in the order of their starts."""
        return [member for member in self.members.values() if member.group == group]

    def owners(self, group: str) -> list[list[str]]:
        """Return, for each queue, the names of its present owners."""
        members = self.members_of(group)
        return [
            [member.name for member in members if queue_id in member.owned]
            for queue_id in range(self.queue_count)
        ]

    def lag(self, group: str) -> list[int] | None:
        """Return a group's last known lag in each queue."""
        if not self.lags:
            return None
        return self.lags[-1].first if group == self.first_group else self.lags[-1].second

    def is_balanced(self, group: str) -> bool:
        """Return whether a group's living members have even shares of all queues."""
        return is_balanced(self.members_of(group), queue_count=self.queue_count)

    @property
    def failures(self) -> Sequence[tuple[str, str]]:
        """The failed processes, each with the reason that it logged."""
        named = [(member.name, member.failure) for member in self.members.values()]
        named += [("the producer", self.production.failure), ("Spark", self.ingest.failure)]
        return [(name, failure) for name, failure in named if failure]

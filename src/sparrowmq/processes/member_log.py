"""A member of a consumer group as a process: its logbook, and the state that readers derive.

`NAME.events.jsonl` has one event per line. `NAME.consumed.csv`, without a header, has one delivery
per line:

    field          meaning
    at_ms          the instant of the listener's call
    queue_id       the queue
    queue_offset   the message's offset in the queue
    key            the message's first key, or empty

Tests: test_logbook.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import NamedTuple, TypeAlias

import msgspec

from sparrowmq.doctor.owner_history import Holding
from sparrowmq.model import MessageQueue
from sparrowmq.processes.logbook import EventTail, Failed, LineTail

CONSUMED_SUFFIX = ".consumed.csv"


class Started(msgspec.Struct, frozen=True, kw_only=True, tag="started"):
    """The member is about to start its consumer."""

    at_ms: int
    client_id: str
    pid: int


class Assigned(msgspec.Struct, frozen=True, kw_only=True, tag="assigned"):
    """The member's queues changed; these are all queues that it owns from now on.

    Args:
        is_lost: whether the member lost the other queues without giving them up.
    """

    at_ms: int
    queue_ids: tuple[int, ...]
    is_lost: bool = False


class Consumed(msgspec.Struct, frozen=True, kw_only=True, tag="consumed"):
    """The number of messages that the member has consumed so far, by queue."""

    at_ms: int
    counts: dict[int, int]


class Left(msgspec.Struct, frozen=True, kw_only=True, tag="left"):
    """The member has closed its consumer: drained, committed, unregistered."""

    at_ms: int


MemberEvent: TypeAlias = Started | Assigned | Consumed | Left | Failed


class Delivery(NamedTuple):
    """A line of `consumed.csv`."""

    at_ms: int
    queue_id: int
    queue_offset: int
    key: str

    def encode(self) -> str:
        """Return the line."""
        return f"{self.at_ms},{self.queue_id},{self.queue_offset},{self.key}\n"


def parse_delivery(line: bytes) -> Delivery:
    """Parse a line of `consumed.csv`."""
    at_ms, queue_id, queue_offset, key = line.decode().split(",", 3)
    return Delivery(int(at_ms), int(queue_id), int(queue_offset), key)


class MemberState(Enum):
    """The stage of a member's life."""

    STARTING = "starting"
    RUNNING = "running"
    LEAVING = "leaving"
    LEFT = "left"
    KILLED = "killed"

    @property
    def is_over(self) -> bool:
        """Whether the member has ended and owns no queues."""
        return self in (MemberState.LEFT, MemberState.KILLED)


@dataclass(slots=True)
class MemberLog:
    """A member's state, read from its logbook."""

    name: str
    group: str
    directory: Path
    state: MemberState = MemberState.STARTING
    client_id: str = ""
    started_ms: int | None = None
    ended_ms: int | None = None
    assignments: list[Assigned] = field(default_factory=list)
    counts: dict[int, int] = field(default_factory=dict)
    failure: str = ""
    _events: EventTail[MemberEvent] = field(init=False)
    _deliveries: LineTail = field(init=False)

    def __post_init__(self) -> None:
        self._events = EventTail(self.directory, self.name, MemberEvent)
        self._deliveries = LineTail(self.consumed_path)

    @property
    def consumed_path(self) -> Path:
        """The path of the member's `consumed.csv`."""
        return self.directory / f"{self.name}{CONSUMED_SUFFIX}"

    @property
    def owned(self) -> tuple[int, ...]:
        """The queues that the member owns now."""
        if self.state.is_over or not self.assignments:
            return ()
        return self.assignments[-1].queue_ids

    def holdings(self, queues: Sequence[MessageQueue]) -> list[Holding]:
        """Return the queues that the member held and when; `queues` are the topic's, by id."""
        end_ms = self.ended_ms
        found = [
            Holding(each.at_ms, self.name, frozenset(queues[number] for number in each.queue_ids))
            for each in self.assignments
            if end_ms is None or each.at_ms <= end_ms
        ]
        return found if end_ms is None else [*found, Holding(end_ms, self.name, frozenset())]

    def read(self) -> None:
        """Read the events written since the last call."""
        for event in self._events.read():
            match event:
                case Started(at_ms=at_ms, client_id=client_id):
                    self.started_ms, self.client_id = at_ms, client_id
                case Assigned():
                    self.assignments.append(event)
                    if self.state is MemberState.STARTING:
                        self.state = MemberState.RUNNING
                case Consumed(counts=counts):
                    self.counts = counts
                case Left(at_ms=at_ms):
                    self.ended_ms, self.state = at_ms, MemberState.LEFT
                case Failed(reason=reason):
                    self.failure = reason

    def read_deliveries(self) -> list[Delivery]:
        """Return the deliveries written since the last call."""
        return [parse_delivery(line) for line in self._deliveries.read()]

    def mark_leaving(self) -> None:
        """Note that the member was asked to leave."""
        self.state = MemberState.LEAVING

    def mark_killed(self, at_ms: int) -> None:
        """Note that the member was killed, which it cannot log itself."""
        self.read()
        self.ended_ms, self.state = at_ms, MemberState.KILLED


def is_balanced(members: Iterable[MemberLog], *, queue_count: int) -> bool:
    """Return whether each queue has one owner, and the shares of living members are even.

    Even shares differ by at most one. While queues move one after another, each may have one owner
    for a moment before the shares are even.
    """
    shares = [member.owned for member in members if not member.state.is_over]
    owned = sorted(queue_id for share in shares for queue_id in share)
    counts = [len(share) for share in shares]
    return owned == list(range(queue_count)) and max(counts) - min(counts) <= 1

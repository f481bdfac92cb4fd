"""What a broker has acknowledged, and what it shows: each difference is a broken promise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from threading import Lock
from typing import TypeAlias

from gate.wire import Record

# A topic and the number of its queue.
Place: TypeAlias = tuple[str, int]
EXAMPLES_MAX = 20


@dataclass(slots=True)
class Ledger:
    """Promises that are checked again after each start of the broker.

    No body is sent twice to one topic, so none may come twice. Bodies `SENDER NUMBER` have rising
    numbers and come in this order; others come in any.
    """

    acknowledged: Counter[str] = field(default_factory=Counter)
    # By place, what was acknowledged to be at an offset and has not been read yet.
    _placed: dict[Place, dict[int, bytes]] = field(default_factory=dict)
    # Topics and bodies that must come, sooner or later.
    _owed: set[tuple[str, bytes]] = field(default_factory=set)
    # Before when they must not come, by the broker's clock.
    _due_ms: dict[tuple[str, bytes], float] = field(default_factory=dict)
    # Bodies of transactions that were rolled back.
    _undone: set[bytes] = field(default_factory=set)
    _seen: set[tuple[str, bytes]] = field(default_factory=set)
    # By place, what was read when it was new: the position and the body of each offset.
    _shown: dict[Place, list[tuple[int, bytes]]] = field(default_factory=dict)
    # Up to where a place has been read, and the last number of each sender there.
    read_to: Counter[Place] = field(default_factory=Counter)
    _numbers: dict[tuple[Place, bytes], int] = field(default_factory=dict)
    broken: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock)

    def place(self, topic: str, queue_id: int, offset: int, bodies: list[bytes], kind: str) -> None:
        """Note that messages were acknowledged, the first at this offset."""
        with self._lock:
            self.acknowledged[kind] += len(bodies)
            placed = self._placed.setdefault((topic, queue_id), {})
            for index, body in enumerate(bodies):
                if placed.setdefault(offset + index, body) != body:
                    self._break("offsets given twice", topic, queue_id, offset + index, body)

    def owe(self, topic: str, body: bytes, kind: str, *, due_ms: float = 0) -> None:
        """Note that a message was acknowledged that comes to a topic later.

        Args:
            due_ms: before when it must not come, by the broker's clock.
        """
        with self._lock:
            self.acknowledged[kind] += 1
            self._due_ms[topic, body] = due_ms
            if (topic, body) not in self._seen:
                self._owed.add((topic, body))

    def undo(self, body: bytes) -> None:
        """Note that a rollback was acknowledged: the message must not come."""
        with self._lock:
            self.acknowledged["rollback"] += 1
            self._undone.add(body)

    def read(self, place: Place, record: Record) -> None:
        """Compare a record that a start of the broker shows."""
        topic, queue_id = place
        key = (topic, record.body)
        if record.offset != self.read_to[place]:
            self._break("holes", topic, queue_id, record.offset, record.body)
        self.read_to[place] = record.offset + 1
        promised = self._placed.get(place, {}).pop(record.offset, record.body)
        if promised != record.body:
            self._break("moved", topic, queue_id, record.offset, promised)
        if record.body in self._undone:
            self._break("rolled back, but there", topic, queue_id, record.offset, record.body)
        if key in self._seen:
            self._break("twice", topic, queue_id, record.offset, record.body)
        if record.stored_ms < self._due_ms.get(key, 0):
            self._break("early", topic, queue_id, record.offset, record.body)
        sender, _, number = record.body.partition(b" ")
        if number:
            last = self._numbers.get((place, sender), -1)
            if int(number) < last:
                self._break("out of order", topic, queue_id, record.offset, record.body)
            self._numbers[place, sender] = int(number)
        self._seen.add(key)
        self._owed.discard(key)
        self._shown.setdefault(place, []).append((record.position, record.body))

    def read_again(self, place: Place, records: Iterable[Record]) -> None:
        """Compare all records of a place, from its first, with what was read when they were new."""
        found = {record.offset: (record.position, record.body) for record in records}
        for offset, shown in enumerate(self._shown.get(place, ())):
            if found.get(offset) != shown:
                self._break("changed since it was read", *place, offset, shown[1])
        if len(found) != len(self._shown.get(place, ())):
            self._break("other messages than were read", *place, len(found), b"")

    def end_of(self, place: Place) -> None:
        """Count what was acknowledged at a place and is not there."""
        for offset, body in sorted(self._placed.pop(place, {}).items()):
            self._break("lost", *place, offset, body)

    @property
    def owed_count(self) -> int:
        """How many messages have not come yet."""
        return len(self._owed)

    def end(self) -> None:
        """Count what has not come as lost."""
        for topic, body in sorted(self._owed):
            self._break("lost", topic, -1, -1, body)

    def note(self, what: str, example: str) -> None:
        """Count another broken promise."""
        self.broken[what] += 1
        if len(self.examples) < EXAMPLES_MAX:
            self.examples.append(f"{what}: {example}")

    def _break(self, what: str, topic: str, queue_id: int, offset: int, body: bytes) -> None:
        self.note(what, f"{topic}:{queue_id} at {offset}, {body!r}")

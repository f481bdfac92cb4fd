from __future__ import annotations

from pathlib import Path

from sparrowmq.demo.logbook import (
    Assigned,
    EventTail,
    Journal,
    Left,
)


def test_events_come_back_as_they_were_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "a.events.jsonl")
    tail = EventTail(tmp_path / "a.events.jsonl")

    journal.write_event(Assigned(at_ms=1, queue_ids=(0, 3)))
    first = tail.read()
    journal.write_event(Left(at_ms=2))
    journal.close()

    assert [Assigned(at_ms=1, queue_ids=(0, 3))] == first
    assert [Left(at_ms=2)] == tail.read()
    assert [] == tail.read()


def test_tail_waits_for_the_end_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "a.events.jsonl"
    tail = EventTail(path)

    assert [] == tail.read()
    path.write_bytes(b'{"type":"left",')
    assert [] == tail.read()
    path.write_bytes(b'{"type":"left","at_ms":7}\n')
    assert [Left(at_ms=7)] == tail.read()

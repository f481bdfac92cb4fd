from __future__ import annotations

from pathlib import Path

from sparrowmq.demo.logbook import (
    Assigned,
    EventTail,
    Journal,
    Left,
    format_delivery,
    parse_deliveries,
    read_deliveries,
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


def test_deliveries_leave_out_a_torn_last_line() -> None:
    lines = format_delivery(5, 1, queue_offset=9, flight_id="x") + "6,1,1"

    deliveries = parse_deliveries(lines.encode())

    assert [5] == deliveries.at_ms.tolist()
    assert [1] == deliveries.queue_ids.tolist()
    assert [9] == deliveries.queue_offsets.tolist()
    assert ["x"] == deliveries.flight_ids.to_pylist()
    assert 0 == len(parse_deliveries(b"6,1,1"))


def test_deliveries_of_several_members_follow_each_other(tmp_path: Path) -> None:
    paths = [tmp_path / "a.csv", tmp_path / "b.csv"]
    paths[0].write_text(format_delivery(5, 1, queue_offset=9, flight_id="x") + "6,1")
    paths[1].write_text(format_delivery(4, 2, queue_offset=8, flight_id="y"))

    deliveries = read_deliveries(paths)

    assert [5, 4] == deliveries.at_ms.tolist()
    assert ["x", "y"] == deliveries.flight_ids.to_pylist()

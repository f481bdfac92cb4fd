from __future__ import annotations

from pathlib import Path

from sparrowmq.doctor.owner_history import Holding
from sparrowmq.model import MessageQueue
from sparrowmq.processes.logbook import EventTail, Logbook, open_logbook
from sparrowmq.processes.member_log import (
    Assigned,
    Consumed,
    Delivery,
    Left,
    MemberEvent,
    MemberLog,
    MemberState,
    Started,
)


def write(directory: Path, name: str, *events: MemberEvent) -> None:
    journal = open_logbook(directory, name)
    for event in events:
        journal.write_event(event)
    journal.close()


def test_events_come_back_once_each_as_they_were_written(tmp_path: Path) -> None:
    tail = EventTail[MemberEvent](tmp_path, "a", MemberEvent)

    write(tmp_path, "a", Assigned(at_ms=1, queue_ids=(0, 3)))
    first = tail.read()
    write(tmp_path, "a", Left(at_ms=2))

    assert first == [Assigned(at_ms=1, queue_ids=(0, 3))]
    assert tail.read() == [Left(at_ms=2)]
    assert tail.read() == []


def test_tail_waits_for_the_end_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "a.events.jsonl"
    tail = EventTail[MemberEvent](tmp_path, "a", MemberEvent)

    assert tail.read() == []
    path.write_bytes(b'{"type":"left",')
    assert tail.read() == []
    path.write_bytes(b'{"type":"left","at_ms":7}\n')
    assert tail.read() == [Left(at_ms=7)]


def test_member_is_what_its_logbook_says(tmp_path: Path) -> None:
    member = MemberLog("a", "GID", tmp_path)

    assert member.state is MemberState.STARTING
    write(
        tmp_path, "a", Started(at_ms=3, client_id="x@1", pid=7), Assigned(at_ms=5, queue_ids=(1,))
    )
    member.read()
    assert (
        member.state,
        member.client_id,
        member.started_ms,
        member.owned,
    ) == (MemberState.RUNNING, "x@1", 3, (1,))
    write(tmp_path, "a", Consumed(at_ms=6, counts={1: 9}), Left(at_ms=8))
    member.read()
    assert (
        member.state,
        member.counts,
        member.ended_ms,
        member.owned,
    ) == (MemberState.LEFT, {1: 9}, 8, ())


def test_killed_member_owns_nothing_and_what_it_wrote_after_its_end_does_not_count(
    tmp_path: Path,
) -> None:
    queues = [MessageQueue("T", "b", queue_id) for queue_id in range(2)]
    member = MemberLog("a", "GID", tmp_path)
    write(tmp_path, "a", Assigned(at_ms=5, queue_ids=(0, 1)), Assigned(at_ms=10, queue_ids=(1,)))

    member.mark_killed(9)

    assert (member.state, member.owned, member.ended_ms) == (MemberState.KILLED, (), 9)
    assert member.holdings(queues) == [
        Holding(5, "a", frozenset(queues)),
        Holding(9, "a", frozenset()),
    ]


def test_deliveries_are_read_once_each_and_a_key_may_hold_commas(tmp_path: Path) -> None:
    member = MemberLog("a", "GID", tmp_path)
    journal = Logbook(member.consumed_path)

    journal.write(Delivery(5, 1, 9, "JFK,LAX").encode().encode() + b"6,1,1")
    first = member.read_deliveries()
    journal.write(b"0,\n")
    journal.close()

    assert first == [Delivery(5, 1, 9, "JFK,LAX")]
    assert member.read_deliveries() == [Delivery(6, 1, 10, "")]

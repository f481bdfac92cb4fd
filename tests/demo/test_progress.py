from __future__ import annotations

import io
from pathlib import Path

import msgspec
from rich.console import Console

from sparrowmq.calling.clock import monotonic_ms
from sparrowmq.demo.events import BatchWritten, Produced, ProducerEvent, SparkEvent, SparkStep
from sparrowmq.demo.progress import DemoState, IngestState, ProductionState, QueueLagSample
from sparrowmq.demo.screen import describe_progress, render_state
from sparrowmq.model import MessageQueue
from sparrowmq.processes.child_processes import ChildProcesses
from sparrowmq.processes.group_members import Members
from sparrowmq.processes.logbook import EventTail, open_logbook
from sparrowmq.processes.member_log import Assigned, MemberLog


def write(directory: Path, name: str, *events: msgspec.Struct) -> None:
    journal = open_logbook(directory, name)
    for event in events:
        journal.write_event(event)
    journal.close()


def make_state(directory: Path) -> DemoState:
    queues = [MessageQueue("T", "", queue_id) for queue_id in range(2)]
    produced = EventTail[ProducerEvent](directory, "producer", ProducerEvent)
    return DemoState(
        begun_ms=0,
        first_group="GID_first",
        second_group="GID_second",
        members=Members(ChildProcesses(directory), directory, queues),
        production=ProductionState(produced),
        ingest=IngestState(EventTail[SparkEvent](directory, "spark", SparkEvent)),
    )


def add_member(state: DemoState, directory: Path, name: str, *owned: int) -> MemberLog:
    write(directory, name, Assigned(at_ms=5, queue_ids=owned))
    log = state.members.logs[name] = MemberLog(name, "GID_first", directory)
    log.read()
    return log


def test_owners_tell_nobody_one_and_two(tmp_path: Path) -> None:
    state = make_state(tmp_path)
    add_member(state, tmp_path, "a", 0)
    assert state.members.owners("GID_first") == [["a"], []]

    add_member(state, tmp_path, "b", 0, 1)
    assert state.members.owners("GID_first") == [["a", "b"], ["b"]]
    assert not state.members.is_balanced("GID_first")


def test_balanced_is_one_owner_each_and_shares_within_one(tmp_path: Path) -> None:
    state = make_state(tmp_path)
    add_member(state, tmp_path, "a", 0, 1)
    assert state.members.is_balanced("GID_first")

    idle = add_member(state, tmp_path, "b")
    assert not state.members.is_balanced("GID_first")

    idle.mark_killed(9)
    assert state.members.is_balanced("GID_first")
    assert not state.members.is_balanced("GID_second")


def test_event_is_later_than_what_was_read_before_it(tmp_path: Path) -> None:
    state = make_state(tmp_path)
    member = add_member(state, tmp_path, "a", 0)
    now_ms = monotonic_ms() + 3
    member.assignments.append(Assigned(at_ms=now_ms, queue_ids=(0, 1)))

    assert state.members.begin_event() > now_ms


def test_production_count_at_an_instant(tmp_path: Path) -> None:
    state = make_state(tmp_path)
    reports = [
        Produced(at_ms=at_ms, count=count, total=9, sending_ms=0, rate_max=1)
        for at_ms, count in ((10, 0), (20, 4), (30, 9))
    ]
    assert (
        state.production.count,
        state.production.total,
        state.production.is_done,
    ) == (0, None, False)
    write(tmp_path, "producer", *reports)
    state.production.read()

    assert [state.production.count_at(at_ms) for at_ms in (5, 10, 29, 99)] == [0, 0, 4, 9]
    assert state.production.total == 9


def test_screen_names_queues_that_nobody_or_two_own(tmp_path: Path) -> None:
    state = make_state(tmp_path)
    add_member(state, tmp_path, "a", 0)
    add_member(state, tmp_path, "b", 0)
    state.lags.append(QueueLagSample(1, [3, 1234], [0, 0]))
    console = Console(file=io.StringIO(), width=100)

    console.print(render_state(state, width=100))

    assert isinstance(console.file, io.StringIO)
    rows = [line.split() for line in console.file.getvalue().splitlines()]
    assert ["0", "0", "0", "3", "two"] in rows
    assert ["1", "·", "·", "1,234", "nobody"] in rows
    assert "GID_first is 1,237 behind" in describe_progress(state)


def test_replayed_batch_counts_once_in_the_bar(tmp_path: Path) -> None:
    state = make_state(tmp_path)
    written = [
        BatchWritten(at_ms=at_ms, batch_id=batch_id, messages=messages, seconds=1.0)
        for at_ms, batch_id, messages in ((10, 0, 40), (20, 1, 30), (30, 1, 30), (40, 2, 20))
    ]
    write(tmp_path, "spark", *written)
    state.ingest.read()

    assert state.ingest.count == 90
    assert "in Parquet 90 " in describe_progress(state)


def test_line_of_progress_moves_while_spark_works(tmp_path: Path) -> None:
    state = make_state(tmp_path)
    now_ms = monotonic_ms()
    write(tmp_path, "spark", SparkStep(at_ms=now_ms - 7_500, name="counts"))
    state.ingest.read()
    # The same step again goes on.
    state.ingest.begin_step("counts", now_ms)

    assert " · Spark counts for 7 s, 0 s of a core in all" in describe_progress(state)

    state.ingest.begin_step("writes batch 1", now_ms)

    assert " · Spark writes batch 1 for 0 s, " in describe_progress(state)

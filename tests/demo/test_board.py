from __future__ import annotations

import io
from pathlib import Path

import msgspec
from rich.console import Console

from sparrowmq.demo.board import (
    Board,
    IngestBoard,
    ProductionBoard,
    QueueLagSample,
)
from sparrowmq.demo.logbook import IngestEvent, Produced, ProducerEvent
from sparrowmq.demo.screen import describe_progress, render_board
from sparrowmq.processes.logbook import EventTail, open_logbook
from sparrowmq.processes.member_log import Assigned, MemberLog


def write(directory: Path, name: str, *events: msgspec.Struct) -> None:
    journal = open_logbook(directory, name)
    for event in events:
        journal.write_event(event)
    journal.close()


def make_board(directory: Path) -> Board:
    return Board(
        begun_ms=0,
        queue_count=2,
        first_group="GID_first",
        second_group="GID_second",
        production=ProductionBoard(EventTail[ProducerEvent](directory, "producer", ProducerEvent)),
        ingest=IngestBoard(EventTail[IngestEvent](directory, "spark", IngestEvent)),
    )


def add_member(board: Board, directory: Path, name: str, *owned: int) -> MemberLog:
    write(directory, name, Assigned(at_ms=5, queue_ids=owned))
    member = board.members[name] = MemberLog(name, "GID_first", directory)
    member.read()
    return member


def test_owners_tell_nobody_one_and_two(tmp_path: Path) -> None:
    board = make_board(tmp_path)
    add_member(board, tmp_path, "a", 0)
    assert board.owners("GID_first") == [["a"], []]

    add_member(board, tmp_path, "b", 0, 1)
    assert board.owners("GID_first") == [["a", "b"], ["b"]]
    assert not board.is_balanced("GID_first")


def test_balanced_is_one_owner_each_and_shares_within_one(tmp_path: Path) -> None:
    board = make_board(tmp_path)
    add_member(board, tmp_path, "a", 0, 1)
    assert board.is_balanced("GID_first")

    idle = add_member(board, tmp_path, "b")
    assert not board.is_balanced("GID_first")

    idle.mark_killed(9)
    assert board.is_balanced("GID_first")
    assert not board.is_balanced("GID_second")


def test_production_count_at_an_instant(tmp_path: Path) -> None:
    board = make_board(tmp_path)
    reports = [
        Produced(at_ms=at_ms, count=count, total=9, sending_ms=0, rate_max=1)
        for at_ms, count in ((10, 0), (20, 4), (30, 9))
    ]
    assert (
        board.production.count,
        board.production.total,
        board.production.is_done,
    ) == (0, None, False)
    write(tmp_path, "producer", *reports)
    board.production.read()

    assert [board.production.count_at(at_ms) for at_ms in (5, 10, 29, 99)] == [0, 0, 4, 9]
    assert board.production.total == 9


def test_screen_names_queues_that_nobody_or_two_own(tmp_path: Path) -> None:
    board = make_board(tmp_path)
    add_member(board, tmp_path, "a", 0)
    add_member(board, tmp_path, "b", 0)
    board.lags.append(QueueLagSample(1, [3, 1234], [0, 0]))
    console = Console(file=io.StringIO(), width=100)

    console.print(render_board(board, width=100))

    assert isinstance(console.file, io.StringIO)
    rows = [line.split() for line in console.file.getvalue().splitlines()]
    assert ["0", "0", "0", "3", "two"] in rows
    assert ["1", "·", "·", "1,234", "nobody"] in rows
    assert "GID_first is 1,237 behind" in describe_progress(board)

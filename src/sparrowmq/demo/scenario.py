"""The main job from its first process to its last figure."""

from __future__ import annotations

import datetime
from pathlib import Path

from rich.console import Console

from sparrowmq.calling.clock import monotonic_ms
from sparrowmq.demo.board import Board, IngestBoard, ProductionBoard
from sparrowmq.demo.cast import FIRST_GROUP, PRODUCER, QUEUE_COUNT, SECOND_GROUP, SPARK, Cast
from sparrowmq.demo.directory import DemoDirectory, claim_directory
from sparrowmq.demo.evaluate import evaluate, gather_evidence
from sparrowmq.demo.logbook import IngestEvent, ProducerEvent
from sparrowmq.demo.lookout import Lookout
from sparrowmq.demo.outcome import DemoOutcome, encode_outcome
from sparrowmq.demo.report_page import render_report
from sparrowmq.demo.screen import LiveScreen, PlainScreen
from sparrowmq.demo.stages import Stages
from sparrowmq.demo.terminal import print_outcome
from sparrowmq.processes.crew import Crew, ending_on_sigterm
from sparrowmq.processes.logbook import EventTail


def run_demo(out: Path, console: Console, *, limit: int | None = None) -> DemoOutcome:
    """Run the main job, write the report, print the result.

    All started processes have ended when this function returns or raises.

    Args:
        out: the output directory.
        console: the console for progress and the result.
        limit: the most flights to produce, the first in the order of departure; None for all.

    Raises: ConfigError for an unusable directory, or if the flights are not installed; StageFailed
        or ProcessFailed if a stage failed or a process ended; KeyboardInterrupt on SIGINT and
        SystemExit on SIGTERM, after the clean-up.
    """
    with claim_directory(out) as directory, ending_on_sigterm():
        return _run_in(directory, console, limit)


def _run_in(directory: DemoDirectory, console: Console, limit: int | None) -> DemoOutcome:
    begun = datetime.datetime.now().astimezone()
    board = _make_board(directory)
    screen = LiveScreen(console) if console.is_terminal else PlainScreen(console)
    with Crew(directory.output) as crew, screen:
        lookout = Lookout(crew, board, screen)
        cast = Cast(crew=crew, board=board, directory=directory, limit=limit)
        stages = Stages(cast, lookout, directory)
        ending = stages.run()
    outcome = evaluate(
        gather_evidence(
            directory,
            board,
            begun=begun.isoformat(sep=" ", timespec="seconds"),
            limit=limit,
            twins=stages.twins,
            ending=ending,
            stages=stages.times,
        )
    )
    directory.figures.write_bytes(encode_outcome(outcome))
    directory.report.write_text(render_report(outcome), encoding="utf-8")
    print_outcome(outcome, directory, console)
    return outcome


def _make_board(directory: DemoDirectory) -> Board:
    produced, ingested = (
        EventTail[ProducerEvent](directory.logbooks, PRODUCER, ProducerEvent),
        EventTail[IngestEvent](directory.logbooks, SPARK, IngestEvent),
    )
    return Board(
        begun_ms=monotonic_ms(),
        queue_count=QUEUE_COUNT,
        first_group=FIRST_GROUP,
        second_group=SECOND_GROUP,
        production=ProductionBoard(produced),
        ingest=IngestBoard(ingested),
    )

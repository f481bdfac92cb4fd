"""The main job from its first process to its last figure."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from sparrowmq.calling.clock import monotonic_ms
from sparrowmq.demo.board import Board, IngestBoard, ProductionBoard
from sparrowmq.demo.cast import FIRST_GROUP, INGEST, PRODUCER, QUEUE_COUNT, SECOND_GROUP, Cast
from sparrowmq.demo.directory import DemoDirectory, claim_directory
from sparrowmq.demo.evaluate import evaluate, gather_evidence
from sparrowmq.demo.flights import load_flights
from sparrowmq.demo.logbook import IngestEvent, ProducerEvent
from sparrowmq.demo.lookout import Lookout
from sparrowmq.demo.outcome import Outcome, encode_outcome
from sparrowmq.demo.report_page import render_report
from sparrowmq.demo.screen import LiveScreen, PlainScreen
from sparrowmq.demo.stages import Ending, Stages, StageTime
from sparrowmq.demo.terminal import print_outcome
from sparrowmq.processes.crew import Crew, ending_on_sigterm
from sparrowmq.processes.logbook import EventTail


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the demo is asked for.

    Args:
        out: the output directory.
        limit: produce only so many flights, the first in the order of departure; None for all.
    """

    out: Path
    limit: int | None = None


def run_demo(settings: Settings, console: Console) -> Outcome:
    """Run the main job, write the report, print the result.

    Every process that was started has ended when this returns or raises.

    Raises: ConfigError for a directory that cannot be used or flights that are not installed;
        StageFailed or ProcessFailed if something did not happen in time; KeyboardInterrupt on
        SIGINT and SystemExit on SIGTERM, after cleaning up.
    """
    with claim_directory(settings.out) as directory, ending_on_sigterm():
        return _run_in(directory, settings, console)


def _run_in(directory: DemoDirectory, settings: Settings, console: Console) -> Outcome:
    begun = datetime.datetime.now().astimezone()
    board = _make_board(directory)
    screen = LiveScreen(console) if console.is_terminal else PlainScreen(console)
    with Crew(directory.output) as crew, screen:
        lookout = Lookout(crew, board, screen)
        cast = Cast(crew=crew, board=board, directory=directory, limit=settings.limit)
        stages = Stages(cast, lookout, directory)
        ending = stages.run()
    outcome = _evaluate(directory, settings, board, stages=stages, ending=ending, begun=begun)
    directory.figures.write_bytes(encode_outcome(outcome))
    directory.report.write_text(render_report(outcome), encoding="utf-8")
    print_outcome(outcome, directory, console)
    return outcome


def _make_board(directory: DemoDirectory) -> Board:
    produced, ingested = (
        EventTail[ProducerEvent](directory.logbooks, PRODUCER, ProducerEvent),
        EventTail[IngestEvent](directory.logbooks, INGEST, IngestEvent),
    )
    return Board(
        begun_ms=monotonic_ms(),
        queue_count=QUEUE_COUNT,
        first_group=FIRST_GROUP,
        second_group=SECOND_GROUP,
        production=ProductionBoard(produced),
        ingest=IngestBoard(ingested),
    )


def _evaluate(
    directory: DemoDirectory,
    settings: Settings,
    board: Board,
    *,
    stages: Stages,
    ending: Ending,
    begun: datetime.datetime,
) -> Outcome:
    verifying = StageTime("the table is verified", monotonic_ms())
    evidence = gather_evidence(
        directory,
        board,
        flights=load_flights(limit=settings.limit),
        twins=stages.twins,
        ending=ending,
        times=[*stages.times, verifying],
        is_limited=settings.limit is not None,
    )
    verifying.end_ms = monotonic_ms()
    return evaluate(
        evidence, begun=begun.isoformat(sep=" ", timespec="seconds"), end_ms=verifying.end_ms
    )

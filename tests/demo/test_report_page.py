from __future__ import annotations

import html.parser
import io
import re
from dataclasses import replace
from pathlib import Path

import msgspec
from rich.console import Console

from sparrowmq.demo.outcome import DemoOutcome, encode_outcome
from sparrowmq.demo.report_page import render_report
from sparrowmq.demo.run_directory import DemoDirectory
from sparrowmq.demo.terminal import print_outcome
from sparrowmq.report import Check


class Balance(html.parser.HTMLParser):
    """Collects elements that are opened and never closed, and all text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert tag == self.open.pop()

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        pass

    def handle_data(self, data: str) -> None:
        self.words += data


def read(page: str) -> str:
    parser = Balance()
    parser.feed(page)
    assert parser.open == []
    return parser.words


def test_figures_file_holds_the_whole_outcome(outcome: DemoOutcome) -> None:
    assert outcome == msgspec.json.decode(encode_outcome(outcome), type=DemoOutcome)


def test_report_tells_the_figures(outcome: DemoOutcome) -> None:
    words = read(render_report(outcome))

    for fact in (
        "a run limited to the first 100 flights",
        "All 2 conditions hold",
        "172.17.0.1@9, 172.17.0.1@9",
        "in the middle of batch 1",
        "with 3 data files of that batch",
        "United <Air> Lines",
        "12.2",
        "unknown",
        "10.0.0.1@77#123",
        "they took 18 and 22 messages, and all queues were drained after 1.5 s",
        "2.0 GiB",
    ):
        assert fact in words, fact


def test_report_needs_nothing_from_elsewhere(outcome: DemoOutcome) -> None:
    page = render_report(outcome)

    assert re.findall(r"https?://|<script|<link|<img|@import|\bsrc=", page) == []
    assert "United <Air>" not in page


def test_report_says_what_fails(outcome: DemoOutcome) -> None:
    checks = [*outcome.checks, Check("order holds", holds=False, found="3 legs wrong")]
    failed = msgspec.structs.replace(outcome, checks=checks)

    words = read(render_report(failed))

    assert not failed.holds
    assert "1 of 3 conditions fail" in words
    assert "3 legs wrong" in words


def test_report_of_a_group_that_never_settled(outcome: DemoOutcome) -> None:
    never = replace(outcome.events[0].rebalance, settled_ms=None)
    events = [msgspec.structs.replace(event, rebalance=never) for event in outcome.events]

    assert "never" in read(render_report(msgspec.structs.replace(outcome, events=events)))


def test_terminal_shows_events_twins_conditions_and_paths(outcome: DemoOutcome) -> None:
    console = Console(file=io.StringIO(), width=100)

    print_outcome(outcome, DemoDirectory.within(Path("/out")), console)

    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    for fact in (
        "b is killed (kill -9)",
        "500 ms",
        "172.17.0.1@9, 172.17.0.1@9",
        "2 of 2 conditions hold",
        "a limited run",
        "/out/report.html",
        "/out/figures.json",
    ):
        assert fact in text, fact

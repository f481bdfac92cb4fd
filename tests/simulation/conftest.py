"""What the tests of the simulation share: a small world and its dice."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from sparrowmq.simulation.dice import Dice
from sparrowmq.simulation.network import Network
from sparrowmq.simulation.process import Process
from sparrowmq.simulation.virtual_time import Timeline


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Log nothing: failures are what the simulation makes."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Show, at `-v`, within how many seeds each planted mistake was caught."""
    reports = terminalreporter.getreports("passed")
    found = [(dict(each.user_properties).get("seeds"), each.nodeid) for each in reports]
    rows = sorted((*seeds, nodeid.partition("[")[2][:-1]) for seeds, nodeid in found if seeds)
    if rows and terminalreporter.verbosity >= 0:
        terminalreporter.section("seeds until each mistake was caught")
        for count, runs, name in rows:
            terminalreporter.write_line(f"{count:4}  {runs:10}  {name}")


class World:
    """A timeline and a network with processes on hosts of their own."""

    def __init__(self) -> None:
        self.timeline = Timeline()
        self.network = Network(self.timeline, Random(1))

    def process(self, host: str) -> Process:
        """Start a process."""
        return Process(host, host, self.timeline, timestamp_ms=0)

    def run(self, duration_ms: int) -> None:
        """Let time pass."""
        until_ms = self.timeline.now_ms + duration_ms
        while (next_ms := self.timeline.next_ms()) is not None and next_ms <= until_ms:
            self.timeline.step()
        self.timeline.now_ms = until_ms


@pytest.fixture
def world() -> World:
    """Return an empty world."""
    return World()


@pytest.fixture
def dice() -> Dice:
    """Return dice of a fixed seed."""
    return Random(1)

"""What the tests of the simulation share: small worlds, and runs until something is caught."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from sparrowmq.simulation import run
from sparrowmq.simulation.cluster import Scenario
from sparrowmq.simulation.dice import Dice
from sparrowmq.simulation.faults import Faults
from sparrowmq.simulation.network import Network
from sparrowmq.simulation.process import Process
from sparrowmq.simulation.run import RunOutcome, run_scenario
from sparrowmq.simulation.virtual_time import Timeline

CALM = Scenario(
    broker_count=1,
    queue_count=4,
    member_count=3,
    producer_count=1,
    message_count=80,
    pause_ms_max=1_000,
    fault_ms=20_000,
    probe_count=4,
    batch_size=1,
    pull_batch_size=32,
    consume_thread_count=20,
    strategy="AVG",
    sync_flush=True,
    faults=Faults(),
)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Log nothing: failures are what the simulation makes."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


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


@pytest.fixture
def calm() -> Scenario:
    """Return a scenario in which nothing goes wrong."""
    return CALM


RunCalm = Callable[..., list[RunOutcome]]


@pytest.fixture
def run_calm() -> RunCalm:
    """Return a function that runs the calm scenario with some faults under several seeds."""

    def run_all(faults: Faults, *, seeds: int, **settings: Any) -> list[RunOutcome]:
        scenario = replace(CALM, faults=faults, **settings)
        outcomes: list[RunOutcome] = []
        for seed in range(seeds):
            outcomes.append(run_scenario(seed, scenario))
            if outcomes[-1].violation is not None:
                break
        return outcomes

    return run_all


# So many seeds of `make simulate` must be enough to find each mistake that tests plant.
SEEDS_TO_FIND = 20


@pytest.fixture
def run_drawn() -> Callable[[Callable[[Dice], Faults]], str]:
    """Return a function that runs seeds as `make simulate` does until one fails.

    The seeds are the first of all; those whose faults are of the named kind come first.
    """

    def run_until_caught(kind: Callable[[Dice], Faults]) -> str:
        kinds = run.FAULT_KINDS
        seeds = sorted(range(SEEDS_TO_FIND), key=lambda seed: kinds[seed % len(kinds)] is not kind)
        for seed in seeds:
            violation = run.run_seed(seed).violation
            if violation is not None:
                return violation
        pytest.fail(f"{SEEDS_TO_FIND} seeds found nothing")

    return run_until_caught


@pytest.fixture
def run_kind(
    run_drawn: Callable[[Callable[[Dice], Faults]], str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[Callable[[Dice], Faults]], str]:
    """Return a function as `run_drawn`, whose seeds have all one kind of faults."""

    def run_until_caught(kind: Callable[[Dice], Faults]) -> str:
        monkeypatch.setattr(run, "FAULT_KINDS", (kind,))
        return run_drawn(kind)

    return run_until_caught

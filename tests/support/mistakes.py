"""Mistakes that are planted on purpose, and the runs of the simulation that find them."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import pytest

from gate.planted import kind_of
from sparrowmq.client.operations import handover
from sparrowmq.simulation import run
from sparrowmq.simulation.cluster import Scenario
from sparrowmq.simulation.dice import Dice
from sparrowmq.simulation.faults import Faults
from sparrowmq.simulation.run import RunOutcome, run_scenario

# So many seeds of `make simulate` must be enough to find a mistake that is looked for there.
SEEDS_TO_FIND = 20
LOCK_BATCH = handover.lock_batch
# A scenario in which nothing goes wrong.
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
Kind: TypeAlias = Callable[[Dice], Faults]
Note: TypeAlias = Callable[[str, object], None]


def run_calm(
    faults: Faults, *, seeds: int, tried_first: int = 0, **settings: Any
) -> list[RunOutcome]:
    """Run the calm scenario with some faults under several seeds, until one fails."""
    scenario = replace(CALM, faults=faults, **settings)
    outcomes: list[RunOutcome] = []
    for seed in sorted(range(seeds), key=lambda seed: seed != tried_first):
        outcomes.append(run_scenario(seed, scenario))
        if outcomes[-1].violation is not None:
            break
    return outcomes


def run_drawn(kind: Kind, tried_first: int | None) -> RunOutcome | None:
    """Run seeds as `make simulate` does; return the first that fails.

    The seeds are the first of all; those whose faults are of the named kind come first.
    """
    kinds = run.FAULT_KINDS

    def turn(seed: int) -> tuple[bool, bool]:
        return seed != tried_first, kinds[seed % len(kinds)] is not kind

    seeds = sorted(range(SEEDS_TO_FIND), key=turn)
    outcomes = (run.run_seed(seed) for seed in seeds)
    return next((outcome for outcome in outcomes if outcome.violation is not None), None)


def as_at_apaches_broker(*args: Any, wait_ms: int | None = None, **settings: Any) -> Any:
    """Ask for locks as `lock_batch` does, without the field that Apache's broker ignores."""
    del wait_ms
    return LOCK_BATCH(*args, **settings)


class Mistakes:
    """The mistakes of a module of tests."""

    def __init__(self) -> None:
        self._checks: list[Any] = []

    def plant(
        self,
        name: str,
        runs: Faults | Kind,
        seen: str,
        *patches: tuple[Any, Any, Any],
        seeds: int = 3,
        tried_first: int | None = None,
        is_kind_alone: bool = False,
        **settings: Any,
    ) -> None:
        """Add a mistake.

        Args:
            runs: the faults of the calm scenario, or the kind of faults of drawn runs.
            seen: a pattern in the violation.
            patches: each has an owner, the name of its attribute or key, and what stands there.
            seeds: how many of the calm scenario are enough.
            tried_first: one of the seeds that finds the mistake, where it takes many in turn.
            is_kind_alone: whether all drawn runs have this kind of faults.
            settings: the other settings of the calm scenario.
        """

        is_drawn = not isinstance(runs, Faults) and not is_kind_alone

        def check(monkeypatch: pytest.MonkeyPatch, note: Note) -> None:
            for owner, attribute, instead in patches:
                put = monkeypatch.setitem if isinstance(owner, dict) else monkeypatch.setattr
                put(owner, attribute, instead)
            if isinstance(runs, Faults):
                tried = {"seeds": seeds, "tried_first": tried_first or 0}
                outcome = run_calm(runs, **tried, **settings)[-1]
            else:
                if is_kind_alone:
                    monkeypatch.setattr(run, "FAULT_KINDS", (runs,))
                found = run_drawn(runs, tried_first)
                assert found is not None, "no seed found anything"
                outcome = found
            assert outcome.violation is not None, "no seed found anything"
            assert re.search(seen, outcome.violation)
            note("seeds", (outcome.seed + 1, "as drawn" if is_drawn else "own faults"))
            note("kind", kind_of(runs))

        self._checks.append(pytest.param(check, id=name))

    def __call__(
        self, owner: Any, name: str, runs: Faults | Kind, seen: str, **details: Any
    ) -> Callable[[Any], Any]:
        """Add a mistake: the decorated function replaces the one that it gets before all else."""
        original = getattr(owner, name)

        def add(function: Any) -> Any:
            @functools.wraps(function)
            def instead(*args: Any, **kwargs: Any) -> Any:
                return function(original, *args, **kwargs)

            what = function.__name__.replace("_", " ")
            self.plant(what, runs, seen, (owner, name, instead), **details)
            return function

        return add

    def make_test(self) -> Any:
        """Return the test that each mistake is caught; `-v` shows by how many seeds."""

        # Nothing here waits, but twenty runs take half a minute of the processor, and ten times
        # that where others compute.
        @pytest.mark.planted
        @pytest.mark.timeout(600)
        @pytest.mark.parametrize("check", self._checks)
        def test_mistake_is_caught(
            check: Any,
            monkeypatch: pytest.MonkeyPatch,
            record_property: Note,
        ) -> None:
            check(monkeypatch, record_property)

        return test_mistake_is_caught

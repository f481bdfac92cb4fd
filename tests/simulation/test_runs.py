"""Whole runs: that they are repeatable, hold, and do what they say."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from mistakes import run_calm
from sparrowmq.errors import ConfigError
from sparrowmq.simulation.faults import TIMED_FAULTS, Faults, describe, keep_only
from sparrowmq.simulation.run import run_seed

KEPT = [
    tuple(map(str.strip, line.split(":", 1)))
    for line in (Path(__file__).parent / "seeds.txt").read_text().splitlines()
    if line and not line.startswith("#")
]
EVERY_FAULT = Faults(
    delay=0.05,
    **dict.fromkeys(TIMED_FAULTS, 3.0),  # type: ignore[arg-type]
)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(("seed", "reason"), KEPT, ids=[seed for seed, _ in KEPT])
def test_seed_that_once_failed_holds(seed: str, reason: str) -> None:
    outcome = run_seed(int(seed))

    assert outcome.violation is None, f"{reason}\n" + "\n".join(outcome.trace)


@pytest.mark.long
@pytest.mark.slow
def test_equal_seeds_are_equal_runs_whatever_the_order_of_sets() -> None:
    outputs = []
    for hash_seed in ("1", "2"):
        outputs.append(
            subprocess.run(
                [sys.executable, "-m", "sparrowmq.simulation", "--seeds", "5", "--verbose"],
                env={**os.environ, "PYTHONHASHSEED": hash_seed},
                capture_output=True,
                text=True,
                timeout=300,
                check=True,
            ).stdout
        )

    assert "5 seeds, 0 failed" in outputs[0]
    assert outputs[0] == outputs[1]


@pytest.mark.slow
def test_every_fault_happens_and_everything_is_well_afterwards() -> None:
    struck: Counter[str] = Counter()
    settings = {"message_count": 240, "pause_ms_max": 150, "transaction_count": 60}
    for outcome in run_calm(EVERY_FAULT, seeds=10, **settings):
        assert outcome.violation is None, "\n".join(outcome.trace)
        struck.update(outcome.struck)

    assert set(TIMED_FAULTS) == set(struck)


@pytest.mark.slow
def test_calm_run_consumes_every_message_once() -> None:
    (outcome,) = run_calm(Faults(), seeds=1)

    assert (outcome.violation, outcome.message_count, outcome.duplicate_count) == (None, 84, 0)


@pytest.mark.slow
def test_transactions_end_as_their_users_decide() -> None:
    (outcome,) = run_calm(Faults(), seeds=1, transaction_count=80)

    assert (outcome.violation, outcome.transaction_count) == (None, 80)


@pytest.mark.slow
def test_transactions_outlast_their_producers_and_brokers() -> None:
    faults = Faults(producer_crash=6.0, broker_kill=4.0, write_power_cut=20.0, reset=4.0)
    for outcome in run_calm(faults, seeds=10, transaction_count=60, pause_ms_max=500):
        assert outcome.violation is None, "\n".join(outcome.trace)
        assert {"producer_crash", "broker_kill"} & outcome.struck.keys()


@pytest.mark.slow
def test_shared_client_id_leaves_queues_alone_and_is_told() -> None:
    (outcome,) = run_calm(Faults(duplicate_ids=1.0), seeds=1)

    assert (outcome.violation, outcome.saw_duplicate_ids) == (None, True)


def test_faults_can_be_left_out_one_by_one() -> None:
    faults = Faults(reset=1.0, partition=2.0, slow_listener=0.1)

    assert describe(keep_only(faults, ["reset", "partition"])) == "reset=1 partition=2"
    with pytest.raises(ConfigError, match="unknown fault 'rest'; there are broker_clock_back, "):
        keep_only(faults, ["rest"])

"""Mistakes outside the simulation are found by the tests that are named for them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from gate.planted import Fault, describe, kind_of, places_of
from gate.server import SOURCE
from planted import MISTAKES
from sparrowmq.client.operations import transactions
from sparrowmq.simulation.faults import Faults, draw_power_faults
from sparrowmq.store.journal import Journal

pytestmark = pytest.mark.slow


def run_tests(*tests: str, mistake: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "planted", "-p", "no:randomly", *tests],
        cwd=SOURCE.parent,
        env={**os.environ, "PLANTED": mistake, "PYTHONPATH": str(SOURCE.parent / "tests/support")},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.planted
@pytest.mark.parametrize("name", MISTAKES)
def test_planted_mistake_is_found(
    name: str, record_property: Callable[[str, object], None]
) -> None:
    mistake = MISTAKES[name]
    record_property("room", mistake.room)
    record_property("found by", mistake.found_by.partition("::")[0])

    ended = run_tests(mistake.found_by, mistake=name)

    assert ended.returncode == pytest.ExitCode.TESTS_FAILED, ended.stdout
    assert " failed" in ended.stdout.splitlines()[-1]


def test_tests_pass_where_nothing_is_planted() -> None:
    ended = run_tests(*(each.found_by for each in MISTAKES.values()))

    assert ended.returncode == 0, ended.stdout


@pytest.mark.parametrize(
    ("nodeid", "properties", "expected"),
    [
        (
            "tests/simulation/test_a.py::test_mistake_is_caught[lost lock]",
            [("room", "broker"), ("kind", "power"), ("seeds", (3, "as drawn"))],
            Fault("lost lock", "broker", "simulation, faults as drawn for power", "3"),
        ),
        (
            "tests/simulation/test_a.py::test_mistake_is_caught[early commit]",
            [("room", "client"), ("kind", "broker_kill"), ("seeds", (1, "own faults"))],
            Fault("early commit", "client", "simulation, broker_kill", "1"),
        ),
        (
            "tests/broker/test_b.py::test_change_that_is_not_logged_is_caught[Popped]",
            [("room", "broker"), ("room", "store")],
            Fault("change that is not logged: Popped", "broker", "`tests/broker/test_b.py`", ""),
        ),
        (
            "tests/gate/test_power.py::test_mistake_is_seen[-sync]",
            [("room", "simulation"), ("place", "SimulatedFile.sync: without sync")],
            Fault(
                "SimulatedFile.sync: without sync", "simulation", "`tests/gate/test_power.py`", ""
            ),
        ),
    ],
    ids=["as drawn", "own faults", "a function", "a power cut"],
)
def test_fault_is_told_by_its_test(
    nodeid: str, properties: list[tuple[str, object]], expected: Fault
) -> None:
    assert describe(nodeid, properties) == expected


def test_kind_of_faults_is_named_by_those_that_occur() -> None:
    assert kind_of(Faults(broker_kill=1.0, disk_full=2.0)) == "broker_kill, disk_full"
    assert kind_of(Faults(broker_kill=0.0)) == "no fault"
    assert kind_of(draw_power_faults) == "power"


def test_place_is_that_of_the_first_thing_replaced() -> None:
    assert places_of(Journal, "append", test_tests_pass_where_nothing_is_planted) == [
        ("room", "store"),
        ("place", "Journal.append: test tests pass where nothing is planted"),
    ]
    assert places_of(transactions._TYPES, 1, 2) == [("room", "client")]
    assert places_of(os, "environ", {}) == []

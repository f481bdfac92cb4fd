"""The doctor on live groups: each sick group gets one finding, no healthy one any."""

from __future__ import annotations

import re

import pytest

from sick_groups import SICK, Findings, alarms, examine, misjudged
from sparrowmq.doctor.rules import EFFECTS
from sparrowmq.testing import EmbeddedCluster

# The groups start and work for minutes on a busy machine: one worker alone makes them.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("live groups"),
]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    with EmbeddedCluster(flush="async") as cluster:
        return examine(cluster, tmp_path_factory.mktemp("offsets"), is_ours=True)


@pytest.mark.parametrize("group", SICK)
def test_a_fault_is_one_finding_with_its_own_cause(found: Findings, group: str) -> None:
    assert misjudged(found, group) == ""


def test_healthy_groups_raise_no_alarm(found: Findings) -> None:
    assert alarms(found) == {}


def test_a_handover_is_information(found: Findings) -> None:
    assert [each.rule for each in found["h-handover"]] == ["R19"]
    assert any(line.startswith("handed over now: ") for line in found["h-handover"][0].evidence)


def test_the_effects_of_a_fault_are_folded_under_it(found: Findings) -> None:
    (strategies,) = found["strategies"]

    assert strategies.rule == "R13"
    assert {effect.rule for effect in strategies.effects} <= EFFECTS["R13"]
    assert all(effect.evidence for effect in strategies.effects)
    assert strategies.effects != ()


def test_a_process_that_answers_is_not_to_be_ended(found: Findings) -> None:
    (frozen,) = found["frozen"]
    advice = [(f.rule, f.remedy) for findings in found.values() for f in findings]

    assert frozen.remedy.startswith("find out what the process does")
    assert [rule for rule, remedy in advice if re.search(r"\bend it\b", remedy)] == ["R28"]

"""The simulator of lags: what dividing by load gains, and what it costs."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from sparrowmq.doctor import workloads
from sparrowmq.doctor.workloads import (
    WORKLOADS,
    GroupSize,
    GroupWorkload,
    Policy,
    Result,
    compare,
    parse_workloads,
    run,
)
from sparrowmq.errors import ConfigError


def results_of(name: str, *policies: Policy) -> list[Result]:
    (workload,) = parse_workloads([name])
    return [run(workload, policy, Random(1)) for policy in policies]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["zipf", "speeds", "both", "hot"])
def test_dividing_by_load_ends_the_lag_that_counting_queues_leaves(name: str) -> None:
    average, circle, load = results_of(name, Policy.AVG, Policy.CIRCLE, Policy.LOAD)

    assert min(average.lag_max, circle.lag_max) > 3_000
    assert load.lag_max < 200
    assert load.load_max < 0.95
    assert 0 < load.moves <= 50


def test_a_backlog_is_consumed_in_little_more_than_the_oracles_time() -> None:
    average, load, oracle = results_of("backlog", Policy.AVG, Policy.LOAD, Policy.ORACLE)

    assert average.drained_s is None
    assert load.drained_s is not None
    assert oracle.drained_s is not None
    assert load.drained_s <= 1.5 * oracle.drained_s


def test_equal_queues_and_members_move_nothing() -> None:
    for seed in range(1, 6):
        (workload,) = parse_workloads(["equal"])
        assert run(workload, Policy.LOAD, Random(seed)).moves == 0


def test_a_queue_hotter_than_a_member_keeps_its_member_to_itself() -> None:
    circle, load, oracle = results_of("steep", Policy.CIRCLE, Policy.LOAD, Policy.ORACLE)

    assert oracle.lag_max > 50_000
    assert load.lag_max < 0.85 * circle.lag_max
    assert load.lag_max < 1.1 * oracle.lag_max


@pytest.mark.parametrize("name", ["both", "hot", "steep", "stall"])
def test_no_queue_lags_where_none_has_an_owner(name: str) -> None:
    (messages,) = results_of(name, Policy.MESSAGE)

    assert messages.lag_max == 0
    assert messages.moves == 0


def test_a_member_that_stands_still_holds_up_its_queues_alone() -> None:
    average, messages = results_of("stall", Policy.AVG, Policy.MESSAGE)

    # 8.75 messages a second for 360 s.
    assert 2_900 < average.lag_max < 3_500
    assert messages.lag_max == 0


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_steady_rates_move_no_queue_to_and_fro_within_an_hour(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = GroupWorkload(name="long", meaning="", zipf=0.8, speed_ratio=4)
    moves = []
    for duration_s in (workloads.DURATION_S, 3_600):
        monkeypatch.setattr(workloads, "DURATION_S", duration_s)
        moves.append(run(workload, Policy.LOAD, Random(seed), size=GroupSize(32, 4)).moves)

    assert moves[0] == moves[1]
    assert 0 < moves[0] <= 8


def test_medians_of_runs_are_compared() -> None:
    size = GroupSize(8, 2)
    (workload,) = parse_workloads(["speeds"])

    compared = compare(workload, Random, size=size, seeds=(1, 2, 3))

    assert set(compared) == set(Policy)
    for policy in (Policy.AVG, Policy.LOAD):
        single = [run(workload, policy, Random(seed), size=size) for seed in (1, 2, 3)]
        found = compared[policy]
        assert found.lag_max == sorted(each.lag_max for each in single)[1]
        assert found.moves == sorted(each.moves for each in single)[1]
        assert found.load_max == sorted(each.load_max for each in single)[1]


def test_backlog_that_no_run_consumed_has_no_time_and_one_consumed_early_leaves_no_lag() -> None:
    (workload,) = parse_workloads(["backlog"])

    compared = compare(workload, Random, size=GroupSize(8, 2), seeds=(1,))

    assert compared[Policy.AVG].drained_s is None
    messages = compared[Policy.MESSAGE]
    assert messages.drained_s is not None
    # The lag counts in the last five minutes alone; all members have the mean load.
    assert (messages.lag_max, round(messages.load_max, 2)) == (0, 0.4)


def test_names_of_workloads_are_checked() -> None:
    assert parse_workloads(["all"]) == list(WORKLOADS)
    with pytest.raises(ConfigError, match="unknown workload 'zipff'; all are zipf, speeds"):
        parse_workloads(["zipff"])
    with pytest.raises(ConfigError, match="queues is 0; with a workload it must be from 1 to 512"):
        compare(WORKLOADS[0], Random, size=GroupSize(0, 1))
    with pytest.raises(ConfigError, match="members is 65; with a workload it must be from 1 to 64"):
        compare(WORKLOADS[0], Random, size=GroupSize(65, 65))


DOCS = Path(__file__).parents[2] / "docs"
# What a table's cells have besides numbers, in both languages.
NOT_SHOWN = str.maketrans({"*": "", " ": "", "秒": "s", "（": "(", "）": ")"})


def rows_of(page: str, head: str) -> list[list[str]]:
    """Return the cells of a table's rows, without blanks, behind the names of the workloads."""
    table = (DOCS / page).read_text().partition(head)[2].partition("\n\n")[0]
    lines = [line for line in table.splitlines()[1:] if line.startswith("| ")]
    return [
        [cell.translate(NOT_SHOWN) for cell in line.strip("|").split("|")[1:]] for line in lines
    ]


@pytest.mark.long
def test_pages_show_what_the_simulation_gives() -> None:
    found: dict[str, dict[Policy, str]] = {}
    moves: dict[str, str] = {}
    for workload in WORKLOADS:
        by_policy = compare(workload, Random)
        moves[workload.name] = f"({by_policy[Policy.LOAD].moves})"
        found[workload.name] = {
            policy: f"{result.lag_max:,}"
            if not workload.backlog
            else f">{workloads.DURATION_S:,}s"
            if result.drained_s is None
            else f"{result.drained_s}s"
            for policy, result in by_policy.items()
        }

    schools = (Policy.AVG, Policy.LOAD, Policy.ORACLE, Policy.MESSAGE)
    names = ("equal", "zipf", "speeds", "both", "hot", "backlog", "steep", "stall")
    for page, head in (
        ("", "by measured load: `AVG_BY_LOAD`"),
        (".zh", "按实测负载：`AVG_BY_LOAD`"),
    ):
        assert rows_of(f"explanation/four-schools{page}.md", head) == [
            [found[name][policy] for policy in schools] for name in names
        ]
        assert rows_of(f"reference/strategies{page}.md", "`MINIMAL_MOVE` | `AVG_BY_LOAD`") == [
            [cells[policy] + (moves[name] if policy is Policy.LOAD else "") for policy in Policy]
            for name, cells in found.items()
        ]


class Lulls(GroupWorkload):
    """Messages come for two minutes in four."""

    def rates(self, count: int, total_per_s: float, at_s: int) -> list[float]:
        rates = GroupWorkload.rates(self, count, total_per_s, at_s)
        return [0.0] * count if at_s // 120 % 2 else rates


@pytest.mark.slow
@pytest.mark.parametrize("size", [GroupSize(16, 3), GroupSize(64, 20), GroupSize(128, 20)])
@pytest.mark.parametrize("kind", [GroupWorkload, Lulls])
@pytest.mark.parametrize("zipf", [0.0, 0.5, 1.0])
def test_groups_of_other_sizes_lag_no_more_than_by_counting_and_move_little(
    size: GroupSize, kind: type[GroupWorkload], zipf: float
) -> None:
    workload = kind(name="other", meaning="other", zipf=zipf)

    average, load = (
        run(workload, policy, Random(1), size=size) for policy in (Policy.AVG, Policy.LOAD)
    )

    assert load.lag_max <= average.lag_max
    assert load.moves <= size.queues // 3


@pytest.mark.slow
def test_equal_queues_that_give_no_equal_shares_do_not_go_to_and_fro(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workloads, "DURATION_S", 3_600)
    (workload,) = parse_workloads(["equal"])

    # Two or three queues for each member: the members with three have a load of 0.88.
    moves = [
        run(workload, Policy.LOAD, Random(seed), size=GroupSize(24, 10)).moves for seed in (1, 2)
    ]

    assert max(moves) <= 5

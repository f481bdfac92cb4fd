from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("pyspark")

from sparrowmq.pipeline.balance import BalanceResult, StrategySummary, WorstGroup, render

_BARS = '<ul class="bars">'
AVG = StrategySummary(
    strategy="AVG",
    family="RocketMQ",
    groups=2,
    failed=0,
    queues=24,
    skew_mean=1.5,
    skew_max=2,
    idle=0,
    unowned=6,
    doubled=6,
    join_moved=3,
    leave_moved=1,
    joiner_queues=8,
    leave_unowned=0,
    duplicates_per_second=60.0,
    join_duplicates=75.0,
    kill_duplicates=150.0,
    failure="",
)


def page_of(*summaries: StrategySummary, worst: tuple[WorstGroup, ...] = ()) -> str:
    return render(BalanceResult(strategies=summaries, current="AVG", worst=worst))


def test_a_plot_of_nothing_becomes_a_sentence() -> None:
    healthy = replace(AVG, unowned=0, doubled=0)

    sick_page = page_of(AVG, worst=(WorstGroup("GID", 12, 2, 1, 0, 0, 6, 6),))
    healthy_page = page_of(healthy)

    assert (sick_page.count(_BARS), healthy_page.count(_BARS)) == (4, 2)
    assert healthy_page.count("none, under every strategy.") == 3
    assert "every queue has one owner" in healthy_page
    assert "Give every member a client id of its own" in sick_page


def test_a_strategy_that_refused_every_group_is_named_and_not_plotted() -> None:
    refused = replace(AVG, strategy="MACHINE_ROOM", failed=2, failure="no room")

    text = page_of(AVG, refused)

    assert "MACHINE_ROOM could not divide 2 of 2 groups: no room." in text
    assert text.count("MACHINE_ROOM") == 1


def test_a_strategy_that_gives_a_new_member_nothing_does_not_shine_with_no_moves() -> None:
    config = replace(AVG, strategy="CONFIG", join_moved=0, joiner_queues=0, leave_unowned=12)

    text = page_of(AVG, config)

    joins = text[text.index("Queues that change hands when one member joins") :]
    plot = joins[: joins.index("</ul>")]
    assert ">AVG<" in plot
    assert ">CONFIG<" not in plot
    # 3 of 24 queues.
    assert ">12.5<" in plot
    assert "Not compared: CONFIG. A member that joins gets no queue there." in text
    leaves = text[text.index("Queues that nobody consumes after one member left") :]
    assert ">CONFIG<" in leaves[: leaves.index("</ul>")]

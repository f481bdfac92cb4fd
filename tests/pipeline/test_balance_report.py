from __future__ import annotations

from sparrowmq.pipeline.balance import StrategySummary, WorstGroup
from sparrowmq.pipeline.balance_report import balance_page

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
    duplicates_per_second=60.0,
    join_duplicates=75.0,
    kill_duplicates=150.0,
    failure="",
)


def test_a_plot_of_nothing_becomes_a_sentence() -> None:
    healthy = AVG._replace(unowned=0, doubled=0)

    sick_page = balance_page([AVG], [WorstGroup("GID", 12, 2, 1, 0, 0, 6, 6)], current="AVG")
    healthy_page = balance_page([healthy], [], current="AVG")

    assert (4, 2) == (sick_page.count("<svg"), healthy_page.count("<svg"))
    assert 2 == healthy_page.count("none, under every strategy.")
    assert "every queue has one owner" in healthy_page
    assert "Give every member a client id of its own" in sick_page


def test_a_strategy_that_refused_every_group_is_named_and_not_plotted() -> None:
    refused = AVG._replace(strategy="MACHINE_ROOM", failed=2, failure="no room")

    text = balance_page([AVG, refused], [], current="AVG")

    assert "MACHINE_ROOM refused 2 of 2 groups: no room." in text
    assert 1 == text.count("MACHINE_ROOM")

"""The views of `sparrowmq rebalance` as texts: the numbers of each row and column."""

from __future__ import annotations

import re
from dataclasses import replace
from io import StringIO

from rich.console import Console, RenderableType

from group_views import OF_A, Q0, Q1, Q2, Q3, QUEUES, view_at
from sparrowmq.cli.rebalance_view import (
    render_comparison,
    render_drill,
    render_group,
    render_run,
    render_workloads,
)
from sparrowmq.doctor.group_snapshot import QueueProgress
from sparrowmq.doctor.group_view import make_view
from sparrowmq.doctor.whatif import Plan, parse_events, simulate
from sparrowmq.doctor.workloads import WORKLOADS, GroupSize, Policy, Result
from sparrowmq.drills.drill import Report
from sparrowmq.drills.kinds import DrillKind
from sparrowmq.drills.stage import Change, LateWork
from sparrowmq.model import MessageQueue


def make_screen(height: int = 50) -> Console:
    return Console(file=StringIO(), width=200, height=height, color_system=None)


def lines_of(view: RenderableType, screen: Console) -> list[list[str]]:
    """Return the words of each line of a view."""
    screen.print(view)
    assert isinstance(screen.file, StringIO)
    return [line.split() for line in screen.file.getvalue().splitlines()]


def test_a_row_of_several_queues_has_the_sums_of_their_lags_and_rates() -> None:
    view, screen = view_at(0), make_screen(height=8)
    (sample,) = view.snapshot.samples
    samples = tuple(
        replace(
            sample,
            at_ms=at_ms,
            timestamp_ms=at_ms,
            progress=tuple(QueueProgress(queue, end, committed) for queue in QUEUES),
        )
        for at_ms, end, committed in ((0, 100, 90), (10_000, 150, 110))
    )
    later = make_view(replace(view.snapshot, samples=samples), view.ownership)

    lines = lines_of(render_group(later, screen, is_watched=True), screen)

    (row,) = [line for line in lines if line[:1] == ["broker-a:0-3"]]
    assert row[1:4] == ["160", "20", "8.0"]


def test_owners_of_a_queue_and_queues_of_a_member_are_counted() -> None:
    three = ("a", "b", "c")
    owners: dict[MessageQueue, tuple[str, ...]] = {Q0: three, Q1: ("a",), Q2: ("a", "b"), Q3: ()}
    screen = make_screen()

    lines = lines_of(render_group(view_at(0, owners), screen), screen)

    rows = {line[0]: line for line in lines if line and line[0].startswith("broker-a:")}
    assert rows["broker-a:0"][-7:] == ["A", "+", "B", "+", "C", "3", "times"]
    assert rows["broker-a:2"][-4:] == ["A", "+", "B", "twice"]
    assert rows["broker-a:3"][-1] == "nobody"
    members = {line[1]: line[-2:] for line in lines if line[:1] and line[0] in "ABC"}
    assert members == {"a": ["3", "queues"], "b": ["2", "queues"], "c": ["1", "queue"]}


def test_a_simulation_has_its_moves_and_who_owns_what() -> None:
    plan = Plan(
        queue_count=5, member_count=2, events=parse_events("join,leave"), has_duplicate_id=True
    )
    run, screen = simulate(plan, "AVG"), make_screen()

    (row,) = [
        line
        for line in lines_of(render_comparison(plan, [run], screen), screen)
        if line[:1] == ["AVG"]
    ]
    moves = [line for line in lines_of(render_run(plan, run), screen) if line[:1] == ["moved"]]

    moved, needless = (
        [getattr(step, name) for step in run.steps] for name in ("moved", "needless")
    )
    double, unowned = (
        max(len(getattr(step, name)) for step in run.steps) for name in ("double", "unowned")
    )
    assert double != unowned
    assert row[1:3] == [str(sum(moved)), str(sum(needless))]
    assert row[5:7] == [str(unowned), str(double)]
    (cells,) = re.findall(r"needless\) (.*)", " ".join(moves[0]))
    assert cells == " ".join(f"{m} ({n})" for m, n in zip(moved, needless, strict=True))


def test_a_backlog_that_was_not_consumed_in_time_took_longer() -> None:
    (workload,) = [each for each in WORKLOADS if each.backlog][:1]
    results = {policy: Result(9, 0, None, 1.0) for policy in Policy}
    results[Policy.AVG] = Result(9, 3, 42, 1.0)
    screen = make_screen()

    text = " ".join(
        word
        for line in lines_of(render_workloads(GroupSize(8, 2), [(workload, results)]), screen)
        for word in line
    )

    assert "42 s (3)" in text
    assert text.count("> 1,200 s") == len(Policy) - 1


def test_a_drill_counts_its_messages_and_says_what_each_member_found() -> None:
    snapshot, screen = view_at(0, OF_A).snapshot, make_screen()
    report = Report(
        kind=DrillKind.PARTITION,
        phases=(),
        before=snapshot,
        after=snapshot,
        sent=10,
        consumed=8,
        twice=3,
        changes=(Change(5, "member-2", (0, 1), False), Change(7, "member-1", (), True)),
        spans=(),
        late_work=LateWork(delivered=4, again=2, last_ms=300, healed_ms=9_000),
    )

    lines = [" ".join(line) for line in lines_of(render_drill(report, screen), screen)]

    said = "messages: 10 sent, 8 consumed, 3 of them more than once, 2 not yet when it ended"
    assert said in lines
    assert "+5 ms member-2 has 0, 1" in lines
    assert "+7 ms member-1 finds queues lost, is left with nothing" in lines
    assert any(line.startswith("cut off for 9 s: the member delivered 4 ") for line in lines)

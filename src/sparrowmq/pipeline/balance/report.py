"""The page of the job `balance`: strategies side by side, and the groups in trouble.

Tests: pipeline/test_balance_report.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple

from sparrowmq.pipeline.balance.job import COMMIT_AGE_MEAN_S, BalanceResult, StrategySummary
from sparrowmq.report import (
    Bar,
    Markup,
    Table,
    Tile,
    bar_figure,
    list_tiles,
    page,
    section,
)
from sparrowmq.words import count_of
from sparrowmq.words.amounts import format_compact

_TONES = {"RocketMQ": "c1", "SparrowMQ": "c3", "Kafka": "c2"}


def render(result: BalanceResult) -> str:
    """Return the HTML file."""
    usable, first = _usable(result), result.strategies[0]
    refused = len(result.strategies) - len(usable)
    current = [each for each in result.strategies if each.strategy == result.current]
    return page(
        "What every strategy would do to this cluster",
        list_tiles(
            [
                Tile.of(first.groups, "consumer group"),
                Tile(format_compact(first.queues), "queues to divide", "a queue counts per group"),
                Tile(
                    str(len(usable)),
                    "strategies compared",
                    f"{refused} need names or members that are not there" if refused else "",
                ),
                *(
                    Tile(f"{count:,}", f"queues with {what} under {result.current}")
                    for each in current
                    for count, what in (
                        (each.unowned, "no owner"),
                        (each.doubled, "several owners"),
                    )
                ),
            ]
        ),
        _comparison(usable),
        _all_figures(result),
        _suffering(result),
        _method(),
        lead="Each group's queues divided by each strategy: as the group is now, after one more "
        "member joined, after one left.",
    )


def main_table(result: BalanceResult) -> Table:
    """Return the table of strategies, without those that refused every group."""
    header = [
        *("strategy", "mean skew", "worst skew", "idle members", "unowned", "doubled"),
        *("moved by a join", "new member gets", "moved by a leave", "unowned after it"),
        *("duplicates: join", "duplicates: kill"),
    ]
    rows = [
        (
            *(each.strategy, each.skew_mean, each.skew_max, each.idle, each.unowned, each.doubled),
            *(each.join_moved, each.joiner_queues, each.leave_moved, each.leave_unowned),
            *(round(each.join_duplicates), round(each.kill_duplicates)),
        )
        for each in _usable(result)
    ]
    groups = result.strategies[0].groups
    return Table(header, rows, f"{count_of(groups, 'group')} under each strategy")


def _usable(result: BalanceResult) -> list[StrategySummary]:
    return [each for each in result.strategies if each.failed < each.groups]


def _comparison(summaries: Sequence[StrategySummary]) -> Markup:
    plots: list[tuple[str, str, Callable[[StrategySummary], float]]] = [
        (
            "Skew: what the busiest member has more than the least busy one, mean over groups",
            "queues",
            lambda each: round(each.skew_mean, 2),
        ),
        (
            "Queues that change hands when one member joins, of a hundred",
            "%",
            lambda each: round(100 * each.join_moved / max(each.queues, 1), 2),
        ),
        (
            "Queues that nobody consumes after one member left",
            "queues",
            lambda each: float(each.leave_unowned),
        ),
        (
            "Queues that nobody consumes now: equal client ids, or a group without members",
            "queues",
            lambda each: float(each.unowned),
        ),
        (
            "Queues that two members consume now, because they have one client id",
            "queues",
            lambda each: float(each.doubled),
        ),
    ]
    parts: list[str] = []
    for caption, unit, value in plots:
        is_join = unit == "%"
        # A strategy that gives a new member no queue moves none; the plot leaves it out.
        shown = [each for each in summaries if not (is_join and each.ignores_joiners)]
        bars = [Bar(s.strategy, value(s), unit, tone=_TONES[s.family]) for s in shown]
        if not any(bar.value for bar in bars):
            parts.append(f"{caption}: none, under every strategy.")
        else:
            legend = [(f, t) for f, t in _TONES.items() if any(s.family == f for s in shown)]
            parts.append(bar_figure(caption, bars, legend=legend))
        idle = ", ".join(each.strategy for each in summaries if each not in shown)
        if idle:
            parts.append(f"Not compared: {idle}. A member that joins gets no queue there.")
    return section("Side by side", *parts)


def _all_figures(result: BalanceResult) -> Markup:
    return section(
        "All figures",
        "Sums over all groups, one event in each. Moved queues leave a member that stays; those "
        "of a member that leaves must move in any case and are not counted.",
        main_table(result),
        *(
            f"{each.strategy} could not divide {each.failed:,} of {each.groups:,} groups: "
            f"{each.failure}."
            for each in result.strategies
            if each.failed
        ),
    )


def _suffering(result: BalanceResult) -> Markup:
    title, current = "Groups that suffer", result.current
    if not result.worst:
        return section(
            title,
            f"None: under {current} every queue has one owner, nobody is idle, skew is within one.",
        )
    header = ["group", "queues", "members", "ids too few", "skew", "idle", "unowned", "doubled"]
    return section(
        title,
        f"Under {current}. Start a member where there is none. Give every member a client id of "
        "its own where queues are unowned; "
        "choose another strategy, or fewer members, where members are idle or skew is large.",
        Table(header, [astuple(each) for each in result.worst]),
    )


def _method() -> Markup:
    return section(
        "How it was computed",
        "AVG is RocketMQ's default: members in the order of their ids take neighbouring queues, "
        "equally many.",
        "RocketMQ's members each divide every topic alone, by the list of ids that brokers give "
        "out. An id that is listed twice has one share, which both processes consume. Kafka's "
        "coordinator knows equal ids as two members, and one member divides all topics at once. "
        "CONFIG was written for the members of now; nobody edits it later, so a new member gets "
        "nothing and a leaver's queues have nobody.",
        "The member that joins gets an id in the middle of the order; the one that leaves, or is "
        "killed, is the one in the middle.",
        f"Duplicates expected: a queue that changes hands while both owners live is read again "
        f"from the last commit, {COMMIT_AGE_MEAN_S:g} s ago on average (RocketMQ commits every "
        "5 s). Kafka's members commit before they give up a queue, so there only a kill makes "
        "duplicates. Rates are the topics' own where the input has them.",
    )

"""The page of the job `balance`: strategies side by side, and the groups that suffer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sparrowmq.pipeline.balance import COMMIT_AGE_MEAN_S, StrategySummary, WorstGroup
from sparrowmq.report import Bar, Markup, Tile, bar_chart, figure, list_tiles, page, section, table
from sparrowmq.report.scale import format_compact, format_number

_TONES = {"RocketMQ": "c1", "SparrowMQ": "c3", "Kafka": "c2"}


def balance_page(
    summaries: Sequence[StrategySummary], worst: Sequence[WorstGroup], *, current: str
) -> str:
    """Return the HTML file.

    Args:
        summaries: as `summarise` gives them, one at least.
        worst: groups that suffer under `current`.
        current: the strategy whose worst groups are listed.
    """
    usable = [summary for summary in summaries if summary.failed < summary.groups]
    first = summaries[0]
    return page(
        "What every strategy would do to this cluster",
        list_tiles(
            [
                Tile(f"{first.groups:,}", "consumer groups"),
                Tile(format_compact(first.queues), "queues to divide", "a queue counts per group"),
                Tile(str(len(usable)), "strategies compared", _refused(summaries)),
                *_current_tiles(summaries, current),
            ]
        ),
        _comparison(usable),
        _table(summaries),
        _suffering(worst, current),
        _method(),
        lead="Each group's queues divided by each strategy: as the group is now, after one more "
        "member joined, after one left.",
    )


def _refused(summaries: Sequence[StrategySummary]) -> str:
    count = sum(summary.failed == summary.groups for summary in summaries)
    return f"{count} need names or members that are not there" if count else ""


def _current_tiles(summaries: Sequence[StrategySummary], current: str) -> list[Tile]:
    found = [summary for summary in summaries if summary.strategy == current]
    if not found:
        return []
    return [
        Tile(f"{found[0].unowned:,}", f"queues without an owner under {current}"),
        Tile(f"{found[0].doubled:,}", f"queues with several owners under {current}"),
    ]


def _comparison(summaries: Sequence[StrategySummary]) -> Markup:
    def moved_share(summary: StrategySummary) -> float:
        return round(100 * summary.join_moved / max(summary.queues, 1), 2)

    plots: list[tuple[str, str, Callable[[StrategySummary], float]]] = [
        (
            "Skew: the busiest member's queues less the idlest one's, mean over groups",
            "queues",
            lambda summary: round(summary.skew_mean, 2),
        ),
        (
            "Queues that change hands when one member joins, of a hundred",
            "%",
            moved_share,
        ),
        (
            "Queues that nobody consumes now, because two members have one client id",
            "queues",
            lambda summary: float(summary.unowned),
        ),
        (
            "Queues that two members consume now, because they have one client id",
            "queues",
            lambda summary: float(summary.doubled),
        ),
    ]
    parts: list[str] = []
    for caption, unit, value in plots:
        bars = [Bar(s.strategy, value(s), unit, tone=_TONES[s.family]) for s in summaries]
        if not any(bar.value for bar in bars):
            parts.append(f"{caption}: none, under every strategy.")
            continue
        plot = bar_chart(bars, title=caption, description="A bar a strategy.")
        legend = [(f, t) for f, t in _TONES.items() if any(s.family == f for s in summaries)]
        parts.append(figure(plot, caption=caption, legend=legend))
    return section("Side by side", *parts)


def _table(summaries: Sequence[StrategySummary]) -> Markup:
    def cells(summary: StrategySummary) -> list[str]:
        return [
            summary.strategy,
            format_number(round(summary.skew_mean, 2)),
            f"{summary.skew_max:,}",
            f"{summary.idle:,}",
            f"{summary.unowned:,}",
            f"{summary.doubled:,}",
            f"{summary.join_moved:,}",
            f"{summary.leave_moved:,}",
            format_compact(round(summary.join_duplicates)),
            format_compact(round(summary.kill_duplicates)),
        ]

    header = [
        "strategy", "mean skew", "worst skew", "idle members", "unowned", "doubled",
        "moved by a join", "moved by a leave", "duplicates: join", "duplicates: kill",
    ]  # fmt: skip
    rows = [cells(summary) for summary in summaries if summary.failed < summary.groups]
    return section(
        "All figures",
        "Sums over all groups, one event in each. Moved queues leave a member that stays; those "
        "of a member that leaves must move in any case and are not counted.",
        table(header, rows, numeric=list(range(1, len(header)))),
        *(
            f"{summary.strategy} refused {summary.failed:,} of {summary.groups:,} groups: "
            f"{summary.failure}."
            for summary in summaries
            if summary.failed
        ),
    )


def _suffering(worst: Sequence[WorstGroup], current: str) -> Markup:
    if not worst:
        return section(
            "Groups that suffer",
            f"None: under {current} every queue has one owner, nobody is idle, skew is within one.",
        )
    rows = [[str(value) if isinstance(value, str) else f"{value:,}" for value in w] for w in worst]
    return section(
        "Groups that suffer",
        f"Under {current}, those with the most unowned queues first, then by idle members and "
        "skew. Give every member a client id of its own; more members than queues only help "
        "after more queues.",
        table(
            ["group", "queues", "members", "ids too few", "skew", "idle", "unowned", "doubled"],
            rows,
            numeric=list(range(1, 8)),
        ),
    )


def _method() -> Markup:
    return section(
        "How it was computed",
        "RocketMQ's members each divide every topic alone, by the list of ids that brokers give "
        "out. An id that is listed twice has one share, which both processes consume. Kafka's "
        "coordinator knows equal ids as two members, and one member divides all topics at once. "
        "CONFIG was written for the members of now; nobody edits it later.",
        "The member that joins gets an id in the middle of the order; the one that leaves, or is "
        "killed, is the one in the middle.",
        f"Duplicates expected: a queue that changes hands while both owners live is read again "
        f"from the last commit, {COMMIT_AGE_MEAN_S:g} s ago on average (RocketMQ commits every "
        "5 s). Kafka's members commit before they give up a queue, so there only a kill makes "
        "duplicates. Rates are the topics' own where the input tells them.",
    )

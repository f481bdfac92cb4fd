"""The page of the job `backlog`: the lag over time, the owners of the queues, and the causes.

Tests: pipeline/test_backlog.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import datetime

from sparrowmq.pipeline.backlog.job import Accumulation, BacklogResult, Cause
from sparrowmq.report import (
    Band,
    BandRow,
    Bar,
    Markup,
    Series,
    Table,
    Tile,
    band_chart,
    bar_figure,
    figure,
    line_chart,
    list_tiles,
    page,
    section,
)
from sparrowmq.report.plot import text_width
from sparrowmq.words import count_of
from sparrowmq.words.amounts import format_compact, format_duration

REMEDIES = {
    Cause.DUPLICATE_IDS: "give every process a client id of its own (instanceName)",
    Cause.DIFFERENT_SUBSCRIPTIONS: "let all members of the group subscribe the same topics",
    Cause.NO_MEMBER: "start a member of the group",
    Cause.UNOWNED: "ask the doctor: sparrowmq rebalance doctor GROUP",
    Cause.STUCK: "look at what the owner's listener waits for; restart it",
    Cause.TOO_MANY_MEMBERS: "more members cannot help: give the topic more queues",
    Cause.SLOW: "make the listener faster, give it more threads, or add members",
    Cause.KEEPING_PACE: "nothing, if the lag is what is consumed between two commits (5 s)",
    Cause.CATCHING_UP: "nothing: the backlog shrinks",
    Cause.UNKNOWN: "ask again: sparrowmq snapshot --every 15 --count 4; one shows no change",
}


def render(result: BacklogResult) -> str:
    """Return the HTML file."""
    extent = result.extent
    seconds = (extent.end - extent.begin).total_seconds()
    open_count = sum(each.is_open for each in result.accumulations)
    # They come first in the list.
    is_cut = open_count == len(result.accumulations) < result.accumulation_count
    behind = sum(result.lag_by_cause.values())
    return page(
        "What piled up, since when, and why",
        list_tiles(
            [
                Tile.of(
                    extent.snapshots,
                    "snapshot",
                    f"over {format_duration(seconds * 1000)}" if seconds else "",
                ),
                Tile.of(extent.groups, "consumer group", count_of(extent.queues, "queue")),
                Tile.of(
                    result.accumulation_count,
                    "accumulation",
                    f"{open_count:,}{' or more' if is_cut else ''} go on",
                ),
                Tile(format_compact(behind), "messages behind at the newest snapshot"),
            ]
        ),
        _causes(result),
        _plots(result),
        _accumulations(result),
        lead=f"{_stamp(extent.begin)} to {_stamp(extent.end)} UTC."
        if seconds
        else f"{_stamp(extent.begin)} UTC.",
    )


def main_table(result: BacklogResult) -> Table:
    """Return the table of accumulations."""
    days = {at.date() for each in result.accumulations for at in (each.since, each.until)}
    # A no-break space keeps date and time on one line.
    stamp = "%H:%M:%S" if len(days) <= 1 else "%m/%d\u00a0%H:%M:%S"
    rows = [
        (
            f"{each.consumer_group} {each.queue_name}",
            each.cause.value,
            f"{'before ' if each.has_begun_before else ''}{each.since.strftime(stamp)}",
            "now" if each.is_open else each.until.strftime(stamp),
            each.lag_peak,
            each.lag_last,
            each.growth_per_second,
            ", ".join(each.owners),
        )
        for each in result.accumulations
    ]
    header = ["queue", "cause", "since", "until", "peak", "last", "growth/s", "owners"]
    snapshots, queues = result.extent.snapshots, result.extent.queues
    caption = (
        f"{count_of(result.accumulation_count, 'accumulation')} in "
        f"{count_of(snapshots, 'snapshot')} of {count_of(queues, 'queue')}"
    )
    return Table(header, rows, caption, rows_max=60)


def _causes(result: BacklogResult) -> Markup:
    if not result.lag_by_cause:
        return section("Backlog by cause", "Nothing is behind at the newest snapshot.")
    bars = [Bar(cause, float(lag)) for cause, lag in result.lag_by_cause.items()]
    return section(
        "Backlog by cause",
        bar_figure("Messages behind at the newest snapshot, by cause", bars),
        Table(["cause", "what helps"], [(cause, REMEDIES[cause]) for cause in result.lag_by_cause]),
    )


def _plots(result: BacklogResult) -> Markup:
    extent = result.extent
    if not result.timelines:
        return section("Lag over time", "No queue accumulated.")
    if extent.snapshots < 2:
        return section("Lag over time", "One snapshot says nothing about time yet.")
    seconds = (extent.end - extent.begin).total_seconds()
    unit, unit_s = _time_unit(seconds)

    def x(at: datetime) -> float:
        return round((at - extent.begin).total_seconds() / unit_s, 4)

    names = _names([each for each, _ in result.timelines])
    timelines = [timeline for _, timeline in result.timelines]
    lines = line_chart(
        [
            Series(
                name,
                [(x(each.snapshot_timestamp), float(each.lag)) for each in timeline],
                f"c{place}",
                has_area=False,
            )
            for place, (name, timeline) in enumerate(zip(names, timelines, strict=True), 1)
        ],
        title="Lag over time",
        description="A line a queue: messages not yet consumed.",
        x_label=f"{unit} since the first snapshot",
        y_label="messages behind",
    )
    owners = sorted({owner for timeline in timelines for each in timeline for owner in each.owners})
    tones = {owner: f"c{place % 8 + 1}" for place, owner in enumerate(owners)}
    bands = band_chart(
        [
            BandRow(name, _bands([(x(each.snapshot_timestamp), each.owners) for each in timeline]))
            for name, timeline in zip(names, timelines, strict=True)
        ],
        title="Owners over time",
        description="A row a queue; bands show who owned it, hatches nobody or several.",
        x_label=f"{unit} since the first snapshot",
        tones=tones,
        x_range=(0.0, max(x(extent.end), 1e-3)),
        left=max(map(text_width, names)) + 20,
    )
    legend = [*tones.items(), ("nobody", "none"), ("several owners", "both")]
    return section(
        "Lag over time",
        figure(lines, caption="The queues that fell furthest behind"),
        figure(bands, caption="Who owned them", legend=legend),
    )


def _names(plotted: Sequence[Accumulation]) -> list[str]:
    """Return the shortest names that distinguish the queues."""
    is_one_topic = len({(each.consumer_group, each.topic) for each in plotted}) == 1
    return [
        f"{each.broker_name}:{each.queue_id}"
        if is_one_topic
        else f"{each.consumer_group} {each.queue_name}"
        for each in plotted
    ]


def _bands(timeline: Sequence[tuple[float, tuple[str, ...]]]) -> list[Band]:
    """Join consecutive snapshots with the same owners, which hold until the next one."""
    bands: list[Band] = []
    for (at, owners), (until, _) in itertools.pairwise([*timeline, (timeline[-1][0], ())]):
        if bands and bands[-1].owners == owners:
            bands[-1] = Band(bands[-1].start, until, bands[-1].owners)
        else:
            bands.append(Band(at, until, owners))
    return bands


def _accumulations(result: BacklogResult) -> Markup:
    found = main_table(result)
    if not found.rows:
        return section("Accumulations", "No queue's lag reached the limit.")
    left_out = result.accumulation_count - len(found.rows)
    return section(
        "Accumulations",
        found,
        *([f"{left_out:,} more are in the table accumulations."] if left_out else []),
    )


def _time_unit(seconds: float) -> tuple[str, float]:
    if seconds < 600:
        return "seconds", 1.0
    return ("minutes", 60.0) if seconds < 6 * 3600 else ("hours", 3600.0)


def _stamp(at: datetime) -> str:
    return at.strftime("%Y-%m-%d %H:%M:%S")

"""The page of the job `backlog`: lag over time, who owned the queues, and the causes."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime

from sparrowmq.pipeline.backlog import REMEDIES, Accumulation, Look, Totals
from sparrowmq.report import (
    Band,
    BandRow,
    Bar,
    Markup,
    Series,
    Tile,
    band_chart,
    bar_chart,
    figure,
    line_chart,
    list_tiles,
    page,
    section,
    table,
)
from sparrowmq.report.plot import text_width
from sparrowmq.report.scale import format_compact, format_duration_ms, format_number

# Queues in the plots: one colour each.
PLOTTED_MAX = 8
_TABLE_MAX = 60


def choose_plotted(found: Sequence[Accumulation]) -> list[Accumulation]:
    """Return accumulations of as many queues as have colours, of every group and cause in turn."""
    first: dict[tuple[str, str], Accumulation] = {}
    for each in found:
        first.setdefault((each.consumer_group, each.queue_name), each)
    seen: Counter[tuple[str, str]] = Counter()
    turns: list[tuple[int, Accumulation]] = []
    for each in first.values():
        turns.append((seen[each.consumer_group, each.cause], each))
        seen[each.consumer_group, each.cause] += 1
    turns.sort(key=lambda turn: turn[0])
    return [each for _, each in turns[:PLOTTED_MAX]]


def backlog_page(
    totals: Totals, found: Sequence[Accumulation], looks: Mapping[Accumulation, Sequence[Look]]
) -> str:
    """Return the HTML file.

    Args:
        totals: what was looked at.
        found: accumulations, the worst first.
        looks: the whole course of the queues to plot, `PLOTTED_MAX` at most.
    """
    open_count = sum(each.is_open for each in found)
    seconds = (totals.end - totals.begin).total_seconds()
    return page(
        "What piled up, since when, and why",
        list_tiles(
            [
                Tile(f"{totals.looks:,}", "looks", f"over {format_duration_ms(seconds * 1000)}"),
                Tile(f"{totals.groups:,}", "consumer groups", f"{totals.queues:,} queues"),
                Tile(f"{len(found):,}", "accumulations", f"{open_count:,} still there"),
                Tile(
                    format_compact(sum(totals.lag_by_cause.values())),
                    "messages behind at the newest look",
                ),
            ]
        ),
        _causes(totals),
        _plots(totals, looks),
        _table(found),
        lead=f"{_stamp(totals.begin)} to {_stamp(totals.end)} UTC.",
    )


def _causes(totals: Totals) -> Markup:
    if not totals.lag_by_cause:
        return section("Backlog by cause", "Nothing is behind at the newest look.")
    bars = [Bar(cause, float(lag)) for cause, lag in totals.lag_by_cause.items()]
    plot = bar_chart(bars, title="Backlog by cause", description="A bar a cause.")
    rows = [[cause, REMEDIES[cause]] for cause in totals.lag_by_cause]
    return section(
        "Backlog by cause",
        figure(plot, caption="Messages behind at the newest look, by cause"),
        table(["cause", "what helps"], rows),
    )


def _plots(totals: Totals, looks: Mapping[Accumulation, Sequence[Look]]) -> Markup:
    if not looks:
        return section("Lag over time", "No queue accumulated.")
    unit, unit_s = _time_unit((totals.end - totals.begin).total_seconds())

    def x(at: datetime) -> float:
        return round((at - totals.begin).total_seconds() / unit_s, 4)

    series = [
        Series(
            _name(each, looks), [(x(look.at), float(look.lag)) for look in course], f"c{place + 1}",
            has_area=False,
        )
        for place, (each, course) in enumerate(looks.items())
    ]  # fmt: skip
    lines = line_chart(
        series,
        title="Lag over time",
        description="A line a queue: messages not yet consumed.",
        x_label=f"{unit} since the first look",
        y_label="messages behind",
    )
    owners = sorted(
        {owner for course in looks.values() for look in course for owner in look.owners}
    )
    tones = {owner: f"c{place % 8 + 1}" for place, owner in enumerate(owners)}
    rows = [
        BandRow(_name(each, looks), _bands([(x(look.at), look.owners) for look in course]))
        for each, course in looks.items()
    ]
    bands = band_chart(
        rows,
        title="Owners over time",
        description="A row a queue; bands show who owned it, hatches nobody or several.",
        x_label=f"{unit} since the first look",
        tones=tones,
        x_range=(0.0, max(x(totals.end), 1e-3)),
        left=max(text_width(row.label) for row in rows) + 20,
    )
    legend = [*tones.items(), ("nobody", "none"), ("several owners", "both")]
    return section(
        "Lag over time",
        figure(lines, caption="The queues that fell furthest behind"),
        figure(bands, caption="Who owned them", legend=legend),
    )


def _name(each: Accumulation, among: Mapping[Accumulation, Sequence[Look]]) -> str:
    """Name a queue by no more than tells it apart."""
    is_one_topic = len({(other.consumer_group, other.topic) for other in among}) == 1
    where = f"{each.broker_name}:{each.queue_id}"
    return where if is_one_topic else f"{each.consumer_group} {each.topic} {where}"


def _bands(course: Sequence[tuple[float, tuple[str, ...]]]) -> list[Band]:
    """Join looks with the same owners; each holds until the next look."""
    bands: list[Band] = []
    for (at, owners), (until, _) in itertools.pairwise([*course, (course[-1][0], ())]):
        if bands and bands[-1].owners == owners:
            bands[-1] = Band(bands[-1].start, until, bands[-1].owners)
        else:
            bands.append(Band(at, until, owners))
    return bands


def _table(found: Sequence[Accumulation]) -> Markup:
    if not found:
        return section("Accumulations", "No queue's lag reached the limit.")
    days = {at.date() for each in found for at in (each.since, each.until)}
    # A blank that breaks no line.
    stamp = "%H:%M:%S" if len(days) == 1 else "%m/%d\u00a0%H:%M:%S"
    rows = [
        [
            f"{each.consumer_group} {each.queue_name}",
            each.cause,
            each.since.strftime(stamp),
            "now" if each.is_open else each.until.strftime(stamp),
            f"{each.lag_peak:,}",
            f"{each.lag_last:,}",
            format_number(round(each.growth_per_second, 1)),
            ", ".join(each.owners),
        ]
        for each in found[:_TABLE_MAX]
    ]
    header = ["queue", "cause", "since", "until", "peak", "last", "growth/s", "owners"]
    left_out = len(found) - len(rows)
    return section(
        "Accumulations",
        table(header, rows, numeric=[4, 5, 6]),
        *([f"{left_out:,} more are in the table accumulations."] if left_out else []),
    )


def _time_unit(seconds: float) -> tuple[str, float]:
    if seconds < 600:
        return "seconds", 1.0
    return ("minutes", 60.0) if seconds < 6 * 3600 else ("hours", 3600.0)


def _stamp(at: datetime) -> str:
    return at.strftime("%Y-%m-%d %H:%M:%S")

"""Bands of owners and bars of lag, as SVG of the page's width.

Positions are percentages, and the SVG has no view box. So text and hatches keep their size on every
screen, and each band cuts off its name at its end. Tests: test_pages.py, test_pictures.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup

from sparrowmq.dash.matrix import MatrixColumn
from sparrowmq.doctor.owner_history import OwnedSpan
from sparrowmq.report.band_chart import hatches
from sparrowmq.report.markup import Markup as Svg
from sparrowmq.report.markup import tag

_HEIGHT = 22
# Without a least width a gap of some milliseconds, the point of the picture, would be invisible.
_TROUBLE_PERCENT_MIN = 0.4
# A narrower band has no room for the word "nobody".
_NOBODY_PERCENT_MIN = 6


class TimeWindow:
    """A window of time, which converts a moment to a percentage of its width."""

    def __init__(self, since_ms: int, until_ms: int) -> None:
        self.since_ms, self.until_ms = since_ms, until_ms

    def percent(self, timestamp_ms: int) -> float:
        """Return the position of a wall-clock time, from 0 to 100."""
        share = (timestamp_ms - self.since_ms) / max(1, self.until_ms - self.since_ms)
        return round(min(1.0, max(0.0, share)) * 100, 3)


def draw_bands(
    spans: Sequence[OwnedSpan],
    columns: Mapping[str, MatrixColumn],
    window: TimeWindow,
    *,
    marks: Sequence[int],
    nobody: str,
) -> Markup:
    """Draw a queue's owners over time, with a thin line at each instant of `marks`."""
    # Bands without exactly one owner come last, over the others: they may be drawn too wide.
    ordered = sorted(spans, key=lambda span: span.owners is not None and len(span.owners) != 1)
    drawn = [
        _draw_band(span, columns, window, nobody) for span in ordered if span.owners is not None
    ]
    lines = [
        tag("line", class_="mark", x1=f"{x}%", x2=f"{x}%", y1=0, y2=_HEIGHT)
        for mark in marks
        if 0 < (x := window.percent(mark)) < 100
    ]
    return Markup(
        tag("svg", *drawn, *lines, class_="strip", width="100%", height=_HEIGHT, aria_hidden="true")
    )


def _draw_band(
    span: OwnedSpan, columns: Mapping[str, MatrixColumn], window: TimeWindow, nobody: str
) -> Svg:
    assert span.owners is not None
    has_trouble = len(span.owners) != 1
    begin, end = window.percent(span.start_ms), window.percent(span.end_ms)
    width = max(end - begin, _TROUBLE_PERCENT_MIN if has_trouble else 0)
    known = [columns[client_id] for client_id in span.owners if client_id in columns]
    name = " + ".join(column.letter for column in known)
    if not known and width >= _NOBODY_PERCENT_MIN:
        name = nobody
    tone = known[0].tone if known and not has_trouble else "danger"
    fill = [tag("rect", class_="blank" if has_trouble else "band", width="100%", height=_HEIGHT)]
    if has_trouble:
        hatch = "hatch-both" if span.owners else "hatch-none"
        fill.append(tag("rect", fill=f"url(#{hatch})", width="100%", height=_HEIGHT))
    return tag(
        "svg",
        *fill,
        tag("text", name, x=5, y=15.5, class_="name"),
        class_=f"tone-{tone}" + (" trouble" if has_trouble else ""),
        x=f"{begin}%",
        width=f"{round(width, 3)}%",
        height=_HEIGHT,
    )


def draw_hatches() -> Markup:
    """Return the hatch patterns of bands; a page contains them once."""
    return Markup(tag("svg", hatches(), width=0, height=0, class_="patterns", aria_hidden="true"))


class TimeBar(NamedTuple):
    """A value of a bucket of time, which begins at a time."""

    at_ms: int
    value: float
    has_trouble: bool = False


class BarChart(NamedTuple):
    """A chart of bars, with its name and its greatest value."""

    label: str
    highest: float
    drawn: Markup


def draw_bars(
    label: str,
    bars: Sequence[TimeBar],
    window: TimeWindow,
    *,
    bucket_ms: int,
    height: int,
    full: float = 0,
) -> BarChart:
    """Draw bars from the bottom, each as wide as its bucket of time.

    Args:
        height: the chart's height in pixels.
        full: the value that is as high as the chart, if no bar has a greater one.
    """
    highest = max((bar.value for bar in bars), default=0)
    full = max(full, highest) or 1
    width = round(100 * bucket_ms / max(1, window.until_ms - window.since_ms), 3)
    drawn = []
    for bar in bars:
        percent = round(100 * bar.value / full, 2)
        drawn.append(
            tag(
                "rect",
                class_="trouble" if bar.has_trouble else "bar",
                # A bucket may begin a little before the window.
                x=f"{window.percent(bar.at_ms)}%",
                y=f"{100 - percent}%",
                width=f"{width}%",
                height=f"{percent}%",
            )
        )
    svg = tag("svg", *drawn, class_="bars", width="100%", height=height, aria_hidden="true")
    return BarChart(label, highest, Markup(svg))

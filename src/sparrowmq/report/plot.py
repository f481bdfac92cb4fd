"""The common parts of plots: the drawing area, axes, grid, and marks of events.

Tests: test_charts.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sparrowmq.report.markup import Markup, join, tag
from sparrowmq.report.scale import Scale, choose_ticks
from sparrowmq.words.amounts import format_compact, format_number

WIDTH = 960.0
_MARK_ROW_HEIGHT = 18.0
_MARK_ROWS_MAX = 8
# Generous mean widths of characters of the 12 px labels: no font can be measured here.
_CHARACTER_WIDTH, _CAPITAL_WIDTH = 7.3, 8.6


@dataclass(frozen=True, slots=True)
class PlotMark:
    """An event, drawn as a vertical line at its instant, with its name above the plot."""

    x: float
    label: str


class Area(NamedTuple):
    """The rectangle in which values are drawn, in units of the SVG."""

    left: float
    top: float
    right: float
    bottom: float


class _PlacedMark(NamedTuple):
    mark: PlotMark
    row: int
    grows_left: bool


def svg(*children: str, height: float, title: str, description: str) -> Markup:
    """Make the SVG element; screen readers read its title and description."""
    return tag(
        "svg",
        tag("title", title),
        tag("desc", description),
        *children,
        viewBox=f"0 0 {WIDTH:.0f} {height:.0f}",
        role="img",
        class_="plot",
    )


def x_axis(area: Area, scale: Scale, *, label: str) -> Markup:
    """Draw ticks, their labels and the axis' name below the area."""
    parts = [
        join(
            _line(scale(value), area.bottom, scale(value), area.bottom + 5, class_="axis"),
            text(scale(value), area.bottom + 19, format_number(value), anchor="middle"),
        )
        for value in choose_ticks(scale.low, scale.high, count_max=12)
    ]
    middle = (area.left + area.right) / 2
    return tag(
        "g",
        _line(area.left, area.bottom, area.right, area.bottom, class_="axis"),
        *parts,
        text(middle, area.bottom + 38, label, anchor="middle", class_="label"),
    )


def y_axis(area: Area, scale: Scale, *, label: str) -> Markup:
    """Draw grid lines with their labels left of the area, and the axis' name above it."""
    parts = [
        join(
            _line(area.left, scale(value), area.right, scale(value), class_="grid"),
            text(area.left - 8, scale(value) + 4, format_compact(value), anchor="end"),
        )
        for value in choose_ticks(scale.low, scale.high)
    ]
    return tag("g", *parts, text(area.left, area.top - 10, label, class_="label"))


def marks_height(marks: Sequence[PlotMark], scale: Scale) -> float:
    """Return the height that the names of the marks need above the area."""
    rows = [placed.row for placed in _place(marks, scale)]
    return (max(rows) + 1) * _MARK_ROW_HEIGHT if rows else 0.0


def draw_marks(marks: Sequence[PlotMark], scale: Scale, area: Area, *, top: float) -> Markup:
    """Draw a dashed line for each mark, from its name, at or below `top`, down to the axis."""
    lines, names = [], []
    for mark, row, grows_left in _place(marks, scale):
        x, baseline = scale(mark.x), top + row * _MARK_ROW_HEIGHT + 12
        shift, anchor = (-5, "end") if grows_left else (5, "start")
        lines.append(_line(x, baseline - 10, x, area.bottom, class_="mark"))
        names.append(text(x + shift, baseline, mark.label, anchor=anchor, class_="mark-name"))
    # Names come last, so that no line strikes through the name of another mark.
    return tag("g", *lines, *names)


def text(
    x: float, y: float, content: str, *, anchor: str = "start", class_: str | None = None
) -> Markup:
    """Write text whose baseline is at `y`."""
    return tag("text", content, x=x, y=y, text_anchor=anchor, class_=class_)


def text_width(content: str) -> float:
    """Estimate the width of a label, in units of the SVG."""
    capitals = sum(character.isupper() for character in content)
    return capitals * _CAPITAL_WIDTH + (len(content) - capitals) * _CHARACTER_WIDTH


def _line(x1: float, y1: float, x2: float, y2: float, *, class_: str) -> Markup:
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def _place(marks: Sequence[PlotMark], scale: Scale) -> list[_PlacedMark]:
    """Place each mark's name in the lowest row in which it touches no earlier name."""
    row_ends = [float("-inf")] * _MARK_ROWS_MAX
    placed = []
    for mark in sorted(marks, key=lambda mark: mark.x):
        x, width = scale(mark.x), text_width(mark.label) + 10
        grows_left = x + width > WIDTH
        begin, end = (x - width, x) if grows_left else (x, x + width)
        fitting = (row for row in range(_MARK_ROWS_MAX) if row_ends[row] <= begin)
        row = next(fitting, _MARK_ROWS_MAX - 1)
        row_ends[row] = end + 6
        placed.append(_PlacedMark(mark, row, grows_left))
    return placed

"""Values over time as lines or steps, each with a pale area below it. Tests: test_charts.py."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from sparrowmq.report.markup import Markup, number, tag
from sparrowmq.report.plot import (
    WIDTH,
    Area,
    PlotMark,
    draw_marks,
    marks_height,
    svg,
    text,
    text_width,
    x_axis,
    y_axis,
)
from sparrowmq.report.scale import Scale, round_up
from sparrowmq.words.amounts import format_number

_PLOT_HEIGHT = 260.0
_LEFT, _AXIS_HEIGHT, _NAME_HEIGHT = 64.0, 48.0, 28.0
_LABEL_GAP = 16.0
# Lines with the same path take turns, each for a dash of so many units.
_DASH = 12

_Point: TypeAlias = tuple[float, float]
_Segment: TypeAlias = tuple[_Point, _Point]


@dataclass(frozen=True, slots=True)
class Series:
    """A named sequence of points with ascending x.

    `tone` is the colour: c1 ... c8, danger or quiet. `is_dashed` distinguishes series where colours
    cannot. Lines with the same path show in turn.
    """

    name: str
    points: Sequence[tuple[float, float]]
    tone: str = "c1"
    is_step: bool = False
    is_dashed: bool = False
    has_area: bool = True


def line_chart(
    series: Sequence[Series],
    *,
    title: str,
    description: str,
    x_label: str,
    y_label: str,
    marks: Sequence[PlotMark] = (),
) -> Markup:
    """Plot the series over one another, each with its name at the end of its line.

    Args:
        series: the lines, the first at the bottom.
        title: the plot's title, for screen readers.
        description: the plot's content, for screen readers.
        x_label, y_label: the names of the axes.
        marks: the events, drawn as vertical lines.
    """
    points = [point for one in series for point in one.points]
    low = min((x for x, _ in points), default=0.0)
    name_width = max((text_width(one.name) for one in series), default=0.0)
    high = max((x for x, _ in points), default=1.0)
    x_scale = Scale(low, high, _LEFT, WIDTH - name_width - 16)
    top = marks_height(marks, x_scale) + _NAME_HEIGHT
    area = Area(x_scale.begin, top, x_scale.end, top + _PLOT_HEIGHT)
    y_high = round_up(max((y for _, y in points), default=0.0))
    y_scale = Scale(0.0, y_high, area.bottom, area.top)
    return svg(
        draw_marks(marks, x_scale, area, top=0.0),
        y_axis(area, y_scale, label=y_label),
        x_axis(area, x_scale, label=x_label),
        *_draw_all(series, x_scale, y_scale),
        _draw_names(series, y_scale, x=area.right + 8),
        height=area.bottom + _AXIS_HEIGHT,
        title=title,
        description=description,
    )


def _draw_all(series: Sequence[Series], x_scale: Scale, y_scale: Scale) -> list[Markup]:
    drawn = [(one, _corners(one)) for one in series if one.points]
    sharers: dict[_Segment, list[int]] = {}
    for index, (_, corners) in enumerate(drawn):
        for segment in itertools.pairwise(corners):
            sharers.setdefault(segment, []).append(index)
    return [
        tag(
            "g",
            tag("title", f"{one.name}: {format_number(one.points[-1][1])} at the end"),
            *([_draw_area(corners, x_scale, y_scale)] if one.has_area else []),
            *_draw_line(index, one, corners, sharers, x_scale, y_scale),
            class_=f"tone-{one.tone}",
        )
        for index, (one, corners) in enumerate(drawn)
    ]


def _draw_area(corners: Sequence[_Point], x_scale: Scale, y_scale: Scale) -> Markup:
    floor = number(y_scale(0.0))
    begin, end = number(x_scale(corners[0][0])), number(x_scale(corners[-1][0]))
    path = _path(corners, x_scale, y_scale)
    return tag("path", d=f"M{path}L{end} {floor}L{begin} {floor}Z", class_="under")


def _draw_line(
    index: int,
    series: Series,
    corners: Sequence[_Point],
    sharers: Mapping[_Segment, list[int]],
    x_scale: Scale,
    y_scale: Scale,
) -> Iterator[Markup]:
    """Draw a line; where it shares its path with others, draw every nth dash."""
    class_ = "line dashed" if series.is_dashed else "line"
    segments = list(itertools.pairwise(corners)) or [(corners[0], corners[0])]
    for shared, run in itertools.groupby(segments, key=lambda each: sharers.get(each, [index])):
        part = list(run)
        path = _path([part[0][0], *(end for _, end in part)], x_scale, y_scale)
        place, count = shared.index(index), len(shared)
        yield tag(
            "path",
            d=f"M{path}",
            class_=class_,
            stroke_dasharray=f"{_DASH} {_DASH * (count - 1)}" if count > 1 else None,
            stroke_dashoffset=-_DASH * place if place else None,
        )


def _path(corners: Sequence[_Point], x_scale: Scale, y_scale: Scale) -> str:
    return "L".join(f"{number(x_scale(x))} {number(y_scale(y))}" for x, y in corners)


def _corners(series: Series) -> list[_Point]:
    return _step_corners(series.points) if series.is_step else list(series.points)


def _step_corners(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    corners = [points[0]]
    for (_, before), (x, y) in itertools.pairwise(points):
        corners += [(x, before), (x, y)]
    return corners


def _draw_names(series: Sequence[Series], y_scale: Scale, *, x: float) -> Markup:
    """Write each name beside the end of its line; move names down that would touch others."""
    drawn = [one for one in series if one.points]
    drawn.sort(key=lambda one: y_scale(one.points[-1][1]))
    names, lowest = [], float("-inf")
    for index, one in enumerate(drawn):
        # Leave room for the names below this one.
        limit = y_scale.begin - _LABEL_GAP * (len(drawn) - 1 - index)
        lowest = max(min(y_scale(one.points[-1][1]), limit), lowest + _LABEL_GAP)
        names.append(text(x, lowest + 4, one.name, class_=f"name tone-{one.tone}"))
    return tag("g", *names)

"""A Gantt chart of owners: a row for each queue, with a coloured band for each time of an owner.

Bands without an owner and bands with several owners are hatched in red: a queue must be in neither
state. Wide bands carry their owner's name, so that colour is never the only sign.
Tests: test_charts.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sparrowmq.report.markup import Markup, tag
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
)
from sparrowmq.report.scale import Scale
from sparrowmq.words.amounts import format_duration

_ROW_HEIGHT, _BAND_HEIGHT = 30.0, 22.0
_LEFT, _RIGHT, _AXIS_HEIGHT = 76.0, 24.0, 48.0
# Without a least width a gap of a few milliseconds, the point of the plot, would be invisible.
_TROUBLE_WIDTH_MIN = 2.5


@dataclass(frozen=True, slots=True)
class Band:
    """A time in which these owners had the row's queue."""

    start: float
    end: float
    owners: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BandRow:
    """One row: its label and its bands in the order of time."""

    label: str
    bands: Sequence[Band]


def band_chart(
    rows: Sequence[BandRow],
    *,
    title: str,
    description: str,
    x_label: str,
    tones: Mapping[str, str],
    marks: Sequence[PlotMark] = (),
    x_range: tuple[float, float],
    left: float = _LEFT,
) -> Markup:
    """Plot the rows below one another.

    Args:
        rows: the rows, from the top.
        title: the plot's title, for screen readers.
        description: the plot's content, for screen readers.
        x_label: the name of the axis, which is in seconds.
        tones: the colour of each owner, such as `{"a": "c1"}`.
        marks: the events, drawn as vertical lines.
        x_range: the seconds at which the plot begins and ends.
        left: the width of the rows' labels, in units of the SVG.
    """
    x_scale = Scale(*x_range, left, WIDTH - _RIGHT)
    top = marks_height(marks, x_scale) + 6
    area = Area(x_scale.begin, top, x_scale.end, top + _ROW_HEIGHT * len(rows))
    drawn: list[Markup] = []
    for index, row in enumerate(rows):
        y = top + index * _ROW_HEIGHT + (_ROW_HEIGHT - _BAND_HEIGHT) / 2
        drawn.append(text(left - 10, y + 16, row.label, anchor="end", class_="row-name"))
        # Bands without exactly one owner come last, over the others: they may be drawn too wide.
        ordered = sorted(row.bands, key=lambda band: len(band.owners) != 1)
        drawn += [_draw(band, x_scale, y=y, label=row.label, tones=tones) for band in ordered]
    return svg(
        hatches(),
        *drawn,
        x_axis(area, x_scale, label=x_label),
        draw_marks(marks, x_scale, area, top=0.0),
        height=area.bottom + _AXIS_HEIGHT,
        title=title,
        description=description,
    )


def _draw(band: Band, x_scale: Scale, *, y: float, label: str, tones: Mapping[str, str]) -> Markup:
    begin, end = x_scale(max(band.start, x_scale.low)), x_scale(min(band.end, x_scale.high))
    if end <= begin:
        return Markup("")
    has_trouble = len(band.owners) != 1
    width = max(end - begin, _TROUBLE_WIDTH_MIN) if has_trouble else end - begin
    names = " + ".join(band.owners) or "nobody"
    lasted = format_duration((band.end - band.start) * 1000)
    tone = "danger" if has_trouble else tones.get(band.owners[0], "quiet")
    shape = {"x": begin, "y": y, "width": width, "height": _BAND_HEIGHT, "rx": 2}
    parts = [tag("title", f"{label}: {names}, {lasted}")]
    if not has_trouble:
        parts.append(tag("rect", class_="band", **shape))
    else:
        hatch = "hatch-none" if not band.owners else "hatch-both"
        parts.append(tag("rect", class_="trouble", **shape))
        parts.append(tag("rect", fill=f"url(#{hatch})", **shape))
    if width > text_width(names) + 14:
        if has_trouble:
            plate = {"x": begin + 3, "y": y + 3, "height": _BAND_HEIGHT - 6, "rx": 2}
            parts.append(tag("rect", class_="plate", width=text_width(names) + 4, **plate))
        class_ = "band-name trouble-name" if has_trouble else "band-name"
        parts.append(text(begin + 7, y + 15.5, names, class_=class_))
    return tag("g", *parts, class_=f"tone-{tone}")


def hatches() -> Markup:
    """Return the patterns that fill bands without an owner and bands with several."""

    def hatch(name: str, *paths: str) -> Markup:
        strokes = [tag("path", d=path, class_="hatch") for path in paths]
        return tag(
            "pattern",
            *strokes,
            id=name,
            width=7,
            height=7,
            patternUnits="userSpaceOnUse",
            patternTransform="rotate(45)",
        )

    return tag("defs", hatch("hatch-none", "M0 0V7"), hatch("hatch-both", "M0 0V7", "M0 0H7"))

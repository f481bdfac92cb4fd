"""Amounts by name as horizontal bars, each with its value at its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparrowmq.report.markup import Markup, tag
from sparrowmq.report.plot import WIDTH, svg, text, text_width
from sparrowmq.report.scale import Scale, format_number

_ROW_HEIGHT, _BAR_HEIGHT = 26.0, 18.0


@dataclass(frozen=True, slots=True)
class Bar:
    """A name, its amount, what else is to be said beside it, and a colour of its own."""

    label: str
    value: float
    note: str = ""
    tone: str | None = None


def bar_chart(bars: Sequence[Bar], *, title: str, description: str, tone: str = "c1") -> Markup:
    """Plot the bars below one another, in the order given."""
    left = max((text_width(bar.label) for bar in bars), default=0.0) + 14
    ends = [" ".join(filter(None, (format_number(bar.value), bar.note))) for bar in bars]
    right = WIDTH - max((text_width(end) for end in ends), default=0.0) - 12
    scale = Scale(0.0, max((bar.value for bar in bars), default=0.0) or 1.0, left, right)
    rows = []
    for index, bar in enumerate(bars):
        y, x = index * _ROW_HEIGHT + 4, scale(bar.value)
        baseline = y + 13.5
        note = [tag("tspan", f"  {bar.note}", class_="note")] if bar.note else []
        rows.append(
            tag(
                "g",
                text(left - 10, baseline, bar.label, anchor="end", class_="row-name"),
                tag("rect", x=left, y=y, width=x - left, height=_BAR_HEIGHT, rx=2, class_="band"),
                tag("text", format_number(bar.value), *note, x=x + 8, y=baseline, class_="value"),
                class_=f"tone-{bar.tone or tone}",
            )
        )
    height = len(bars) * _ROW_HEIGHT + 6
    return svg(*rows, height=height, title=title, description=description)

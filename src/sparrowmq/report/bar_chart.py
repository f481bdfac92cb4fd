"""Amounts by name as horizontal bars, each with its value at its end.

The bars are HTML, not SVG: on a narrow screen a name stands above its bar and is not cut off.
Tests: test_charts.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparrowmq.report.markup import Markup, number, tag
from sparrowmq.words.amounts import format_number


@dataclass(frozen=True, slots=True)
class Bar:
    """A name, its amount, a note beside it, and a colour of its own."""

    label: str
    value: float
    note: str = ""
    tone: str = "c1"


def bar_chart(bars: Sequence[Bar]) -> Markup:
    """Plot the bars below one another in the given order; the largest value has the full width."""
    largest = max((bar.value for bar in bars), default=0.0) or 1.0
    rows = []
    for bar in bars:
        note = [tag("span", f" {bar.note}", class_="note")] if bar.note else []
        width = f"width:{number(100.0 * max(bar.value, 0.0) / largest)}%"
        rows.append(
            tag(
                "li",
                tag("span", bar.label, class_="row-name"),
                tag(
                    "span",
                    tag("span", class_="band", style=width),
                    tag("span", format_number(bar.value), *note, class_="value"),
                    class_="track",
                ),
                class_=f"tone-{bar.tone}",
            )
        )
    return tag("ul", *rows, class_="bars")

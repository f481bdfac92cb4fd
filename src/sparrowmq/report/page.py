"""The parts of a page around its plots: sections, tables, tiles of key figures, lists of checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from sparrowmq.report.bar_chart import Bar, bar_chart
from sparrowmq.report.markup import Markup, join, tag
from sparrowmq.report.style import STYLE
from sparrowmq.words.amounts import format_number

# The browser may fetch nothing, whatever a name in the report contains.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


@dataclass(frozen=True, slots=True)
class Tile:
    """A key figure: a number in large type, with a small label."""

    value: str
    label: str
    note: str = ""

    @classmethod
    def of(cls, count: int, noun: str, note: str = "") -> Tile:
        """Make the tile of a count: 1 queue, 2 queues."""
        return cls(f"{count:,}", noun if count == 1 else f"{noun}s", note)


@dataclass(frozen=True, slots=True)
class Check:
    """A condition, whether it holds, and the value found."""

    name: str
    holds: bool
    found: str


# A number is right-aligned and formatted for people; None is blank.
Cell: TypeAlias = str | int | float | None


class Table(NamedTuple):
    """A table of values, for a page or a terminal.

    Args:
        header: the names of the columns.
        rows: a cell for each column; a column of numbers contains only numbers and None.
        caption: the table's content, in a phrase.
        rows_max: the number of rows shown at most.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    rows_max: int = 1_000

    @property
    def shown(self) -> list[list[str]]:
        """The cells of the shown rows, as text."""
        return [[format_cell(cell) for cell in row] for row in self.rows[: self.rows_max]]

    @property
    def rest(self) -> str:
        """A sentence with the number of rows not shown; "" if all are shown."""
        count = len(self.rows) - self.rows_max
        return f"Not shown: {count:,} more." if count > 0 else ""

    @property
    def numeric(self) -> list[int]:
        """The indexes of the columns of numbers."""
        columns = list(zip(*self.rows, strict=True))
        return [
            index
            for index, column in enumerate(columns)
            if all(cell is None or isinstance(cell, int | float) for cell in column)
            and any(cell is not None for cell in column)
        ]


def format_cell(cell: Cell) -> str:
    """Format a cell for people."""
    if isinstance(cell, int | float):
        return format_number(round(cell, 2))
    return cell or ""


def page(title: str, *parts: str, lead: str) -> str:
    """Return the whole HTML file; `lead` is the paragraph below the title."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name_="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Markup(STYLE)),
    )
    top = tag("header", tag("h1", title), tag("p", lead, class_="lead"))
    body = tag("body", top, tag("main", *parts))
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def section(title: str, *parts: str | Table) -> Markup:
    """Make a section; a text becomes a paragraph, and a table loses its caption."""
    return tag("section", tag("h2", title), *map(_block, parts))


def _block(part: str | Table) -> Markup:
    if isinstance(part, Table):
        return value_table(part._replace(caption=""))
    return part if isinstance(part, Markup) else tag("p", part)


def figure(plot: Markup, *, caption: str, legend: Sequence[tuple[str, str]] = ()) -> Markup:
    """Put a plot into a box that scrolls on narrow screens, with its caption and legend.

    Args:
        plot: an SVG, or bars.
        caption: the fact that the plot shows.
        legend: pairs of name and tone; the tones `none` and `both` are the two hatches.
    """
    keys = [
        tag("span", tag("span", class_=f"swatch tone-{tone}"), name, class_="key")
        for name, tone in legend
    ]
    return tag(
        "figure",
        tag("figcaption", caption),
        *([tag("div", *keys, class_="legend")] if keys else []),
        tag("div", plot, class_="scroll"),
    )


def bar_figure(
    caption: str, bars: Sequence[Bar], *, legend: Sequence[tuple[str, str]] = ()
) -> Markup:
    """Make a figure of bars: amounts by name."""
    return figure(bar_chart(bars), caption=caption, legend=legend)


def value_table(values: Table) -> Markup:
    """Make a table of values, and below it the sentence about rows not shown."""
    made = table(values.header, values.shown, caption=values.caption, numeric=values.numeric)
    return join(made, *([tag("p", values.rest)] if values.rest else []))


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    caption: str = "",
    numeric: Sequence[int] = (),
) -> Markup:
    """Make a table of texts; the columns with the indexes `numeric` are right-aligned."""

    def cell(name: str, index: int, content: str) -> Markup:
        return tag(name, content, class_="number" if index in numeric else None)

    head = tag("tr", *(cell("th", index, name) for index, name in enumerate(header)))
    body = [tag("tr", *(cell("td", i, content) for i, content in enumerate(row))) for row in rows]
    parts = [tag("caption", caption)] if caption else []
    return tag(
        "div", tag("table", *parts, tag("thead", head), tag("tbody", *body)), class_="scroll"
    )


def list_tiles(tiles: Sequence[Tile]) -> Markup:
    """Make a row of key figures."""
    return tag(
        "div",
        *(
            tag(
                "div",
                tag("div", tile.value, class_="figure"),
                tag("div", tile.label, class_="what"),
                *([tag("div", tile.note, class_="note")] if tile.note else []),
                class_="tile",
            )
            for tile in tiles
        ),
        class_="tiles",
    )


def list_checks(checks: Sequence[Check], *, good: str, bad: str) -> Markup:
    """List conditions below a line that is `good` if all hold, and `bad` otherwise."""
    failed = [check for check in checks if not check.holds]
    verdict = tag("p", bad if failed else good, class_="verdict")
    items = [
        tag(
            "li",
            tag("span", "✓" if check.holds else "✗", class_="sign"),
            join(
                tag("span", "holds: " if check.holds else "fails: ", class_="spoken"),
                tag("span", check.name, class_="condition"),
                tag("span", check.found, class_="found"),
            ),
            class_="good" if check.holds else "bad",
        )
        for check in checks
    ]
    return tag("div", verdict, tag("ul", *items), class_="checks bad" if failed else "checks good")

"""Tables of a page: the URL sorts, searches and pages them; they are written as CSV or JSON too."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

Value: TypeAlias = str | int | float | bool | None

# The rows of one page.
PAGE_ROWS = 100
# The length of the longest name that a search may be for.
SEARCH_LENGTH_MAX = 255
# The parameters of a URL that a new search sets or ends.
_OF_ONE_SEARCH = ("q", "page", "lang", "theme", "format", "table")
# A spreadsheet takes a cell that begins with one of these for a formula.
_FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r")


def describe_missing(failures: Mapping[str, object]) -> list[str]:
    """Say why the queues of some brokers are missing from a page, by the brokers' names."""
    return [f"{name}: {failure}; its queues are missing" for name, failure in failures.items()]


def with_problems(table: PageTable, problems: Sequence[str]) -> PageTable:
    """Return a table for a file: with a row for each problem, in a last column, if there is any."""
    if not problems:
        return table
    blank = [Cell(None)] * len(table.columns)
    rows = [[*row, Cell(None)] for row in table.rows]
    rows += [[*blank, Cell(problem)] for problem in problems]
    columns = (*table.columns, TableColumn("problem", "problem", "prose"))
    return replace(table, columns=columns, rows=rows)


class TableColumn(NamedTuple):
    """A column: its key in the URL and in files, its title in the catalogue's English.

    `kind` is the form of its cells: text, prose, number, rate, time or duration.
    """

    key: str
    title: str
    kind: str = "text"


class Cell(NamedTuple):
    """A value, with a link, a tone (bad, warn, quiet) and a note beside it."""

    value: Value
    href: str | None = None
    tone: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageTable:
    """A table.

    Args:
        name: the table's name in URLs and file names.
        title: the title in the catalogue's English.
        empty: the text shown if the table has no row.
        sort: the key of the sorting column, after "-" for descending order; "" keeps the order.
        page, page_count: the number of this page, from 1, and of all pages.
        others: the URL's parameters that a search of the table leaves as they are.
    """

    name: str
    title: str
    columns: Sequence[TableColumn]
    rows: Sequence[Sequence[Cell]]
    empty: str = "Nothing here."
    sort: str = ""
    search: str = ""
    page: int = 1
    page_count: int = 1
    row_count: int = 0
    others: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_number(self) -> list[bool]:
        """Whether each column is right-aligned."""
        return [column.kind not in ("text", "prose", "time") for column in self.columns]


def arrange(table: PageTable, query: Mapping[str, str], *, turns: bool = True) -> PageTable:
    """Search, sort and page a table by a URL's parameters; ignore wrong parameters.

    Args:
        query: `q` is a text that a row must contain, `sort` a column, `page` a number from 1.
        turns: whether to return one page only, instead of all rows.
    """
    search = query.get("q", "").strip()[:SEARCH_LENGTH_MAX]
    rows = list(table.rows)
    if search:
        wanted = search.casefold()
        rows = [
            row
            for row in rows
            if any(wanted in str(c.value).casefold() for c in row if c.value is not None)
        ]
    sort = query.get("sort", table.sort)
    keys = [column.key for column in table.columns]
    if sort.removeprefix("-") in keys:
        place = keys.index(sort.removeprefix("-"))
        known = [row for row in rows if row[place].value is not None]
        known.sort(key=lambda row: _sort_key(row[place].value), reverse=sort.startswith("-"))
        rows = known + [row for row in rows if row[place].value is None]
    else:
        sort = ""
    count = len(rows)
    page_count = max(1, -(-count // PAGE_ROWS))
    number = query.get("page", "1")
    page = min(max(1, int(number)), page_count) if number.isdecimal() and len(number) < 9 else 1
    if turns:
        rows = rows[(page - 1) * PAGE_ROWS : page * PAGE_ROWS]
    return replace(
        table,
        rows=rows,
        sort=sort,
        search=search,
        page=page,
        page_count=page_count,
        row_count=count,
        others={name: value for name, value in query.items() if name not in _OF_ONE_SEARCH},
    )


def _sort_key(value: Value) -> tuple[bool, float, str]:
    if isinstance(value, str):
        return True, 0.0, value.casefold()
    return False, float(value or 0), ""


def write_csv(table: PageTable) -> str:
    """Write a table as CSV; an apostrophe goes before a text that looks like a formula."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow([column.key for column in table.columns])
    writer.writerows([[_csv_value(cell.value) for cell in row] for row in table.rows])
    return out.getvalue()


def _csv_value(value: Value) -> Value:
    if isinstance(value, str) and value.startswith(_FORMULA_SIGNS):
        return f"'{value}"
    return value


def write_json(table: PageTable) -> str:
    """Write a table as a JSON list of objects."""
    keys = [column.key for column in table.columns]
    rows = [dict(zip(keys, (cell.value for cell in row), strict=True)) for row in table.rows]
    return json.dumps(rows, ensure_ascii=False, indent=1)

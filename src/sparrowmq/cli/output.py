"""The output of commands: rows, as a table for people or as JSON for programs.

Data goes to stdout, prose to stderr. On a terminal a table drops its optional columns, the last
first, until it fits, and a line names them; long names are folded, numbers never. A pipe has no
width, so that nothing is folded or dropped.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from sparrowmq.cli.exit_codes import say
from sparrowmq.cli.language import words
from sparrowmq.words import Phrase
from sparrowmq.words.amounts import NOTHING, format_number

if TYPE_CHECKING:
    # A command without a table does without its import, a quarter of a short command's time.
    from rich.console import Console, RenderableType
    from rich.table import Table

Json: TypeAlias = dict[str, Any]

_UNLIMITED_WIDTH = 10_000


class OutputColumn(NamedTuple):
    """A column of a table.

    Args:
        key: the row's key; in words it is also the title if `title` is "".
        optional: whether the column is left out if no row has a value, or if it does not fit.
        keeps: whether an optional column with a value stays even if it does not fit.
    """

    key: str
    title: str = ""
    optional: bool = False
    keeps: bool = False

    @property
    def heading(self) -> str:
        """The title shown."""
        return words()(self.title or title_of(self.key))


def title_of(key: str) -> str:
    """Return the title of a key's column, in words."""
    return key.removesuffix("_timestamp_ms").replace("_", " ")


def columns_of(*keys: str) -> tuple[OutputColumn, ...]:
    """Return columns with the titles of their keys."""
    return tuple(map(OutputColumn, keys))


def make_console() -> Console:
    """Make a console for stdout; a pipe gets no colours and no folding."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_UNLIMITED_WIDTH)


def print_on(console: Console, renderable: RenderableType) -> None:
    """Print; to a pipe without the blanks that pad a table's lines."""
    if console.is_terminal:
        console.print(renderable)
        return
    with console.capture() as captured:
        console.print(renderable)
    for line in captured.get().splitlines():
        print(line.rstrip(), file=console.file)


def fits(console: Console, table: Table) -> bool:
    """Return whether the console can show a table that folds no cell without a cut."""
    # Measured at the console's own width, every table would fit.
    anywhere = console.options.update(max_width=_UNLIMITED_WIDTH)
    return console.measure(table, options=anywhere).maximum <= console.width


def print_json(value: object, *, is_one_line: bool = False) -> None:
    """Print a value as JSON on stdout and flush, so that a pipe's reader gets the whole value."""
    # JSON has its own escapes for what another encoding lacks.
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    is_utf8 = encoding.lower().replace("-", "") == "utf8"
    indent = None if is_one_line else 2
    print(json.dumps(value, indent=indent, ensure_ascii=not is_utf8), flush=True)


def print_rows(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[OutputColumn],
    *,
    title: str = "",
    empty: str = "",
    console: Console | None = None,
) -> None:
    """Print rows as a table: texts left, numbers right, a dash for None.

    An optional column without any value is left out; a column that does not fit is left out with
    a line on stderr. After a table with a title, a blank line follows.

    Args:
        empty: the line to print on stderr if there are no rows; without it stdout has `none`.
    """
    from rich.text import Text

    console = console or make_console()
    if title:
        console.print(Text(words()(title), "bold"))
    if rows:
        _print_table(rows, columns, console)
    elif empty:
        say(words()(empty))
    else:
        console.print(Text(words()("none"), "dim"))
    if title:
        console.print()


def _print_table(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[OutputColumn], console: Console
) -> None:
    table, left_out = arrange_table(rows, columns, console)
    print_on(console, table)
    if left_out:
        say(left_out)


def arrange_table(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[OutputColumn], console: Console
) -> tuple[Table, str]:
    """Make a table of the columns that have values and fit; return what it leaves out, in words."""
    known = {key for row in rows for key, value in row.items() if value not in (None, "", [], ())}
    shown = [column for column in columns if not column.optional or column.key in known]
    shown, left_out = leave_out(shown, lambda some: fits(console, make_table(rows, some)))
    missing = (
        ""
        if not left_out
        else words()(
            "this terminal is too narrow for {columns}; --json shows them",
            columns=", ".join(left_out),
        )
    )
    return make_table(rows, shown), missing


def leave_out(
    columns: Sequence[OutputColumn], fit: Callable[[Sequence[OutputColumn]], bool]
) -> tuple[list[OutputColumn], list[str]]:
    """Leave out optional columns, the last first, until the others fit; return headings too."""
    shown = list(columns)
    left_out: list[str] = []
    while not fit(shown) and any(c.optional and not c.keeps for c in shown):
        last = max(at for at, c in enumerate(shown) if c.optional and not c.keeps)
        left_out.insert(0, shown.pop(last).heading)
    return shown, left_out


def make_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[OutputColumn]) -> Table:
    """Make a table of rows."""
    from rich import box

    from sparrowmq.cli.plain_text import PlainTable

    table = PlainTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        is_number = any(_is_number(row[column.key]) for row in rows)
        table.add_column(
            column.heading,
            justify="right" if is_number else "left",
            no_wrap=is_number,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(format_value(row[column.key], column.key) for column in columns))
    return table


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def format_value(value: object, key: str = "") -> str:
    """Write a value for people; a key that ends in `timestamp_ms` makes a number a time of day."""
    if value is None or value == "" or value == [] or value == ():
        return NOTHING
    if isinstance(value, Phrase):
        return words().phrase(value)
    if isinstance(value, bool):
        return words()("yes") if value else words()("no")
    if isinstance(value, int):
        return format_time(value) if key.endswith("timestamp_ms") else f"{value:,}"
    if isinstance(value, float):
        return format_number(round(value, 1))
    if isinstance(value, Mapping):
        return ", ".join(f"{n}={NOTHING if v is None else v}" for n, v in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return str(value)


def format_time(timestamp_ms: int) -> str:
    """Write a wall-clock time in the zone of this machine."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000)
    except (ValueError, OverflowError, OSError):
        # Clients write the time at which a message was born, and may write any number.
        return f"{timestamp_ms:,} ms"
    return moment.isoformat(sep=" ", timespec="milliseconds")

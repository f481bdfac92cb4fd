"""The result on the terminal: the report's main tables, the conditions, and where everything is.

Tests: test_report_page.py.
"""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from sparrowmq.demo.outcome import DemoOutcome
from sparrowmq.demo.report_page import (
    carriers_table,
    describe_remedy,
    events_table,
    twins_table,
)
from sparrowmq.demo.run_directory import DemoDirectory
from sparrowmq.report import Table

_ROWS_SHOWN = 8
# What fits the width of a terminal; the report has the rest.
_EVENT_COLUMNS = 6
# Without a terminal's width, tables must not be cut at 80 columns.
_PLAIN_WIDTH = 120


def print_outcome(outcome: DemoOutcome, directory: DemoDirectory, console: Console) -> None:
    """Print the result of a run."""
    if not console.is_terminal:
        console.width = max(console.width, _PLAIN_WIDTH)

    def say(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    say("")
    console.print(_table(events_table(outcome), columns=_EVENT_COLUMNS))
    console.print(_table(twins_table(outcome)))
    say(f"  The broker lists {', '.join(outcome.twins.cid_all)}.")
    say(f"  The remedy is a client id of its own. {describe_remedy(outcome)}\n")
    console.print(_table(carriers_table(outcome)))
    console.print(_checks(outcome))
    say("")
    for name in ("report", "figures", "table", "broker"):
        say(f"  {name:8} {getattr(directory, name)}")


def _table(values: Table, *, columns: int | None = None) -> RichTable:
    table = RichTable(title=values.caption, title_justify="left", title_style="bold")
    table.box = box.SIMPLE_HEAD
    for index, name in enumerate(values.header[:columns]):
        table.add_column(name, justify="right" if index in values.numeric else "left")
    for row in values.shown[:_ROWS_SHOWN]:
        table.add_row(*row[:columns])
    if (rest := len(values.rows) - _ROWS_SHOWN) > 0:
        table.add_row("", Text(f"and {rest} more, in the report", style="dim"))
    return table


def _checks(outcome: DemoOutcome) -> RichTable:
    holding = sum(check.holds for check in outcome.checks)
    memory = outcome.memory_peak_mib
    spent = f"{outcome.duration_ms / 1000:.0f} s" + (f", {memory:,} MiB at most" if memory else "")
    limited = ", a limited run" if outcome.production.is_limited else ""
    caption = f"{holding} of {len(outcome.checks)} conditions hold ({spent}{limited})"
    rows = [
        ("✓" if check.holds else "✗ fails", check.name, check.found) for check in outcome.checks
    ]
    return _table(Table(["", "condition", "found"], rows, caption))

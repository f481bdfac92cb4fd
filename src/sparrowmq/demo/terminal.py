"""The result on the terminal: a few tables, the conditions, and the paths of the output."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sparrowmq.demo.outcome import DemoOutcome
from sparrowmq.demo.run_directory import DemoDirectory
from sparrowmq.doctor.owner_history import DURATION_TITLES, describe_durations
from sparrowmq.words.amounts import format_duration

_CARRIERS_SHOWN = 5
# Without a terminal's width, tables must not be cut at 80 columns.
_PLAIN_WIDTH = 110


def print_outcome(outcome: DemoOutcome, directory: DemoDirectory, console: Console) -> None:
    """Print the result of a run."""
    if not console.is_terminal:
        console.width = max(console.width, _PLAIN_WIDTH)
    console.print()
    for table in (_events(outcome), _twins(outcome), _carriers(outcome), _checks(outcome)):
        console.print(table)
    console.print()
    for what, path in (
        ("report", directory.report),
        ("figures", directory.figures),
        ("table", directory.table),
        ("broker", directory.broker),
    ):
        console.print(f"  {what:8} {path}", markup=False, highlight=False, soft_wrap=True)


def _table(title: str, columns: Sequence[str], *, numeric: range = range(0)) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for index, name in enumerate(columns):
        table.add_column(name, justify="right" if index in numeric else "left")
    return table


def _events(outcome: DemoOutcome) -> Table:
    columns = ("event", *DURATION_TITLES, "moved")
    table = _table(
        "The first group, event by event", (*columns, "delivered twice"), numeric=range(1, 6)
    )
    for event in outcome.events:
        table.add_row(
            event.name,
            *describe_durations(event.rebalance),
            str(len(event.rebalance.moves)),
            f"{event.duplicates:,}",
        )
    return table


def _twins(outcome: DemoOutcome) -> Table:
    twins = outcome.twins
    table = _table("Two members with one client id, and the remedy", ("", ""))
    for name, queue_ids in (*twins.taken.items(), ("nobody", twins.unowned)):
        queues = ", ".join(map(str, queue_ids))
        table.add_row(f"{name} took", f"queues {queues}" if queues else "no queue")
    table.add_row("the broker lists", ", ".join(twins.cid_all))
    table.add_row("fell behind", f"{sum(twins.backlog_at_remedy):,} messages")
    table.add_row(
        "with unique ids",
        f"one owner each after {format_duration(twins.healed_ms - twins.remedy_ms)}, nothing "
        f"behind after {format_duration(twins.drained_ms - twins.remedy_ms)}",
    )
    return table


def _carriers(outcome: DemoOutcome) -> Table:
    carriers = outcome.answers.carriers
    table = _table(
        f"Flights and mean delay in minutes, by Spark ({outcome.table.rows:,} rows)",
        ("carrier", "flights", "departure", "arrival"),
        numeric=range(1, 4),
    )
    for row in carriers[:_CARRIERS_SHOWN]:
        delays = (row.mean_departure_delay, row.mean_arrival_delay)
        table.add_row(
            f"{row.carrier} {outcome.carriers.get(row.carrier, '')}",
            f"{row.flights:,}",
            *("unknown" if delay is None else f"{delay:.1f}" for delay in delays),
        )
    rest = len(carriers) - _CARRIERS_SHOWN
    if rest > 0:
        table.add_row(Text(f"and {rest} more, in the report", style="dim"))
    return table


def _checks(outcome: DemoOutcome) -> Table:
    holding = sum(check.holds for check in outcome.checks)
    memory = outcome.memory_peak_mib
    spent = f"{outcome.duration_ms / 1000:.0f} s" + (f", {memory:,} MiB at most" if memory else "")
    limited = ", a limited run" if outcome.production.is_limited else ""
    table = _table(
        f"{holding} of {len(outcome.checks)} conditions hold ({spent}{limited})",
        ("", "condition", "found"),
        numeric=range(2, 3),
    )
    for check in outcome.checks:
        sign = Text("✓", style="bold green") if check.holds else Text("✗ fails", style="bold red")
        table.add_row(sign, check.name, check.found)
    return table

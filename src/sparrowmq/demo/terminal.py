"""The result on the terminal: a few tables, the conditions, and where everything lies."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sparrowmq.demo.directory import DemoDirectory
from sparrowmq.demo.outcome import Outcome
from sparrowmq.report.scale import format_duration_ms

_CARRIERS_SHOWN = 5
# Where no terminal says its width, tables must not be cut at 80 columns.
_PLAIN_WIDTH = 110


def print_outcome(outcome: Outcome, directory: DemoDirectory, console: Console) -> None:
    """Print the result of a run."""
    if not console.is_terminal:
        console.width = max(console.width, _PLAIN_WIDTH)
    console.print()
    console.print(_events(outcome))
    console.print(_twins(outcome))
    console.print(_carriers(outcome))
    console.print(_checks(outcome))
    console.print()
    for what, path in (
        ("report", directory.report),
        ("figures", directory.figures),
        ("table", directory.table),
        ("broker", directory.broker),
    ):
        console.print(f"  {what:8} {path}", markup=False, highlight=False, soft_wrap=True)


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)


def _events(outcome: Outcome) -> Table:
    table = _table("The first group, event by event")
    table.add_column("event")
    for name in ("one owner each after", "without owner", "with two", "moved", "delivered twice"):
        table.add_column(name, justify="right")
    for event in outcome.events:
        table.add_row(
            event.name,
            format_duration_ms(event.settled_ms),
            format_duration_ms(event.unowned_ms),
            format_duration_ms(event.double_ms),
            str(event.queues_moved),
            f"{event.duplicates:,}",
        )
    return table


def _twins(outcome: Outcome) -> Table:
    twins = outcome.twins
    table = _table("Two members with one client id, and the remedy")
    table.add_column("", style="dim")
    table.add_column("")
    for name, queue_ids in twins.taken.items():
        table.add_row(f"{name} took", _queues(queue_ids))
    table.add_row("nobody took", _queues(twins.unowned))
    table.add_row("the broker lists", ", ".join(twins.cid_all))
    table.add_row("fell behind", f"{sum(twins.backlog_at_remedy):,} messages")
    table.add_row(
        "with unique ids",
        f"one owner each after {format_duration_ms((twins.healed_s - twins.remedy_s) * 1000)}, "
        f"nothing behind after {format_duration_ms((twins.drained_s - twins.remedy_s) * 1000)}",
    )
    return table


def _queues(queue_ids: list[int]) -> str:
    return "queues " + ", ".join(map(str, queue_ids)) if queue_ids else "no queue"


def _carriers(outcome: Outcome) -> Table:
    table = _table(f"Flights and mean delay in minutes, by Spark ({outcome.ingest.rows:,} rows)")
    table.add_column("carrier")
    for name in ("flights", "departure", "arrival"):
        table.add_column(name, justify="right")
    for row in outcome.carriers[:_CARRIERS_SHOWN]:
        delays = (row.mean_departure_delay, row.mean_arrival_delay)
        table.add_row(
            f"{row.carrier} {row.name}",
            f"{row.flights:,}",
            *("unknown" if delay is None else f"{delay:.1f}" for delay in delays),
        )
    rest = len(outcome.carriers) - _CARRIERS_SHOWN
    if rest > 0:
        table.add_row(Text(f"and {rest} more, in the report", style="dim"))
    return table


def _checks(outcome: Outcome) -> Table:
    holding = sum(check.holds for check in outcome.checks)
    memory = outcome.memory_peak_mib
    spent = f"{outcome.duration_s:.0f} s" + (f", {memory:,} MiB at most" if memory else "")
    limited = ", a limited run" if outcome.production.is_limited else ""
    table = _table(f"{holding} of {len(outcome.checks)} conditions hold ({spent}{limited})")
    table.add_column("")
    table.add_column("condition")
    table.add_column("found", justify="right")
    for check in outcome.checks:
        sign = Text("✓", style="bold green") if check.holds else Text("✗ fails", style="bold red")
        table.add_row(sign, check.name, check.found)
    return table

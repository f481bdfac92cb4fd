"""Changes that lose something: a dry run that shows the difference, unless `--yes` is given.

Nothing here asks: a command does the same on a terminal, in a pipe and in a job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from sparrowmq.cli.connecting import CommandCluster
from sparrowmq.cli.failures import say
from sparrowmq.cli.output import Json, OutputColumn, format_value, print_json, print_rows

Yes = Annotated[
    bool, typer.Option("--yes", "-y", help="do it; without, only show what would change")
]


def carry_out(
    cluster: CommandCluster,
    rows: Sequence[Json],
    columns: Sequence[OutputColumn],
    *,
    is_confirmed: bool,
    apply: Callable[[], None],
    done: str,
) -> None:
    """Show what changes, and do it if it is confirmed.

    Args:
        rows, columns: the difference.
        is_confirmed: whether `--yes` was given.
        apply: does it.
        done: what to say then.
    """
    if not cluster.as_json:
        print_rows(rows, columns)
    if is_confirmed:
        apply()
    if cluster.as_json:
        print_json({"applied": is_confirmed, "changes": rows})
    say(done if is_confirmed else "nothing was changed; give --yes to do it")


def arrow(before: object, after: object) -> str:
    """Write a change, or the value alone where nothing changes."""
    old, new = format_value(before), format_value(after)
    return new if old == new else f"{old} → {new}"

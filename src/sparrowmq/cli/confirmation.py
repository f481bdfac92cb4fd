"""Changes that can lose data: a command shows the difference, and applies it only with `--yes`.

No command asks a question: it does the same on a terminal, in a pipe and in a job.
Tests: test_topics_and_groups.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from sparrowmq.cli.connecting import CommandCluster
from sparrowmq.cli.exit_codes import say
from sparrowmq.cli.output import Json, OutputColumn, format_value, print_json, print_rows
from sparrowmq.words import Phrase

Yes = Annotated[
    bool,
    typer.Option("--yes", "-y", help="make the change; without --yes, the command only shows it"),
]


def carry_out(
    cluster: CommandCluster,
    rows: Sequence[Json],
    columns: Sequence[OutputColumn],
    *,
    is_confirmed: bool,
    apply: Callable[[], None],
    done: str,
    unchanged: str | None = None,
) -> None:
    """Show a change, and make it if the user confirmed it.

    Args:
        rows, columns: the table that shows the change, with a row for each thing that changes.
        is_confirmed: whether `--yes` was given.
        apply: makes the change. done: the line to print after the change.
        unchanged: the line to print instead if there is no row; None makes the change without one.
    """
    is_needed = bool(rows) or unchanged is None
    is_applied = is_confirmed and is_needed
    if rows and not cluster.as_json:
        print_rows(rows, columns)
    if is_applied:
        apply()
    if cluster.as_json:
        print_json({"applied": is_applied, "changes": rows})
    if not is_needed:
        say(f"nothing to change: {unchanged}")
    else:
        say(done if is_applied else "nothing was changed; give --yes to make this change")


def arrow(before: object, after: object) -> str:
    """Write a change, or the value alone where nothing changes.

    A table translates the text; JSON is the same in every language.
    """
    old, new = _spell(before), _spell(after)
    return new if old == new else Phrase("{old} → {new}", old=old, new=new)


def _spell(value: object) -> str:
    if isinstance(value, bool):
        return Phrase("yes") if value else Phrase("no")
    return format_value(value)

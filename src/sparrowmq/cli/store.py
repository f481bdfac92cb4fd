"""`sparrowmq store`: check or copy a broker's directory."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from sparrowmq.cli.command_classes import make_group
from sparrowmq.cli.exit_codes import EXIT_FOUND, reporting_errors, say
from sparrowmq.cli.output import Json, columns_of, print_json, print_rows
from sparrowmq.hosting.directory_check import Soundness, checking
from sparrowmq.hosting.store_backup import back_up
from sparrowmq.model.plain_text import write_argument

store = make_group("Check or copy a broker's directory.")

StoreDirectory = Annotated[
    Path,
    typer.Argument(
        metavar="DIRECTORY",
        help="the broker's directory: DATA/store of `sparrowmq up`, --data of `sparrowmq broker`",
    ),
]
_COLUMNS = columns_of("path", "state", "found")


@store.command("check")
def check(
    directory: StoreDirectory,
    show_all: Annotated[bool, typer.Option("--all", help="also list the sound files")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Check every record, queue entry and index entry of a store that no broker uses.

    The check changes nothing. Exit code 0: sound, or unfinished after a crash, which the next start
    repairs. 1: damaged. 2: no store. 3: the store is in use or cannot be read.

    \b
    Examples:
      sparrowmq store check sparrowmq-data/store
      sparrowmq store check /backup/store --all --json
    """
    with reporting_errors():
        with checking(directory) as findings:
            found = list(findings)
        rows: list[Json] = [
            {"path": each.path, "state": each.state.value, "found": each.text}
            for each in found
            if show_all or each.state is not Soundness.SOUND
        ]
    if as_json:
        print_json(rows)
    elif rows:
        print_rows(rows, _COLUMNS)
    counts = Counter(each.state for each in found)
    say(", ".join(f"{counts[state]:,} {state.value}" for state in Soundness))
    if counts[Soundness.DAMAGED]:
        raise typer.Exit(EXIT_FOUND)


@store.command("backup")
def back_up_store(
    directory: StoreDirectory,
    target: Annotated[
        Path, typer.Argument(metavar="TARGET", help="the copy's directory, empty or new")
    ],
) -> None:
    """Copy a store, also while its broker runs. A broker can start on the copy.

    The copy has every message that was acknowledged before the copy began.

    \b
    Examples:
      sparrowmq store backup sparrowmq-data/store /backup/monday
    """
    with reporting_errors():
        copied = back_up(directory, target)
    check = f"sparrowmq store check {write_argument(str(target))}"
    say(f"{copied:,} bytes were copied to {target}; `{check}` checks them")

"""`sparrowmq demo`: the main job on real flights.

Exit code 0 if every condition of success holds, 1 if one does not or a stage failed, 2 for a
directory that cannot be used, 130 after Ctrl-C and 143 after SIGTERM.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EXIT_FAILURE, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130


def demo(
    out: Annotated[
        Path, typer.Option("--out", help="where the report, the figures and the data go")
    ] = Path("demo-out"),
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            min=1_000,
            help="only the first N flights, for a quick look; the report says so",
        ),
    ] = None,
) -> None:
    """Run the main job: produce, balance, break, heal, ingest with Spark, report."""
    # Other subcommands must not pay for the imports of this one.
    from rich.console import Console

    from sparrowmq.demo.scenario import run_demo
    from sparrowmq.errors import ConfigError, SparrowError

    try:
        outcome = run_demo(out, Console(), limit=limit)
    except ConfigError as error:
        typer.echo(f"sparrowmq: {error}", err=True)
        raise typer.Exit(EXIT_USAGE) from None
    except (SparrowError, OSError) as error:
        typer.echo(f"sparrowmq: the demo failed: {error}", err=True)
        typer.echo(f"What its processes printed is in {out / 'run' / 'output'}", err=True)
        raise typer.Exit(EXIT_FAILURE) from None
    except KeyboardInterrupt:
        typer.echo("sparrowmq: interrupted; every process of the demo was ended", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if not outcome.holds:
        raise typer.Exit(EXIT_FAILURE)

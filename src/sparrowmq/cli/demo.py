"""`sparrowmq demo`: the main job on real flights.

Exit codes: 0, every condition of success holds; 1, a condition does not hold or a stage failed; 2,
the directory cannot be used; 130, Ctrl-C; 143, SIGTERM. Tests: demo/test_main_job.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparrowmq.cli.exit_codes import EXIT_INTERRUPTED, EXIT_USAGE, say

EXIT_FAILURE = 1


def demo(
    out: Annotated[
        Path, typer.Option("--out", help="directory for the report, the figures and the data")
    ] = Path("demo-out"),
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            min=1_000,
            help="use only the first N flights, for a quick look; the report names this limit",
        ),
    ] = None,
) -> None:
    """Run the main job: produce, balance, break, heal, ingest with Spark, report."""
    # Imported here, lest other subcommands pay for these imports.
    from rich.console import Console

    from sparrowmq.demo.main_job import run_demo
    from sparrowmq.errors import ConfigError, SparrowError

    try:
        outcome = run_demo(out, Console(), limit=limit)
    except ConfigError as error:
        say(str(error))
        raise typer.Exit(EXIT_USAGE) from None
    except (SparrowError, OSError) as error:
        say(f"the demo failed: {error}; its processes' output is in {out / 'run' / 'output'}")
        raise typer.Exit(EXIT_FAILURE) from None
    except KeyboardInterrupt:
        say("interrupted; every process of the demo was ended")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if not outcome.holds:
        raise typer.Exit(EXIT_FAILURE)

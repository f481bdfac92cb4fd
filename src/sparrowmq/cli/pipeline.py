"""`sparrowmq pipeline`: the jobs that run on Spark.

Each job writes Parquet tables and `report.html` below `--out`, prints a summary on stdout (`--json`
for programs) and what happens on stderr. Exit code 0 is fine, 2 is a wrong option or input, 3 is
a cluster that could not be reached or a job that failed, 130 is Ctrl-C.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from sparrowmq.errors import ConfigError, SparrowError, UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXIT_USAGE, EXIT_FAILED, EXIT_INTERRUPTED = 2, 3, 130

pipeline = typer.Typer(
    help="Jobs on Spark: ingest topics, and look into backlog, duplicates and balance.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Out = Annotated[Path, typer.Option("--out", "-o", help="directory for tables and report.html")]
Master = Annotated[str, typer.Option("--master", help="Spark's master, such as local[*]")]
Memory = Annotated[str, typer.Option("--driver-memory", help="heap of Spark's JVM")]
AsJson = Annotated[bool, typer.Option("--json", help="print the summary as JSON on stdout")]


@pipeline.command("balance")
def balance_command(
    out: Out,
    snapshot: Annotated[
        str | None,
        typer.Option("--snapshot", help="directory with the tables topics and members"),
    ] = None,
    generate: Annotated[
        int | None, typer.Option("--generate", help="make up so many groups instead")
    ] = None,
    topics: Annotated[int, typer.Option("--topics", help="topics of a generated group")] = 10,
    strategy: Annotated[
        list[str] | None, typer.Option("--strategy", "-s", help="only these; may be repeated")
    ] = None,
    rate: Annotated[
        float,
        typer.Option("--rate", min=0.0, help="messages/s of a queue, where the input is silent"),
    ] = 1.0,
    master: Master = "local[*]",
    driver_memory: Memory = "2g",
    as_json: AsJson = False,
) -> None:
    """Compare what every strategy would do to every group of a cluster."""
    with _reporting_errors():
        from sparrowmq.pipeline import balance, balance_report
        from sparrowmq.pipeline.generated_cluster import generate_cluster

        if (snapshot is None) == (generate is None):
            raise ConfigError("give either --snapshot DIR or --generate GROUPS")
        names = strategy or []
        chosen = balance.choose_strategies(names)
        with _session("balance", master, driver_memory) as session:
            if snapshot is not None:
                tables = balance.read_cluster(session, snapshot)
            else:
                tables = generate_cluster(session, generate or 0, topics=topics)
            result = balance.balance(*tables, strategies=names, messages_per_second=rate)
            path = f"{out}/groups"
            _say(f"evaluating each group under {len(chosen)} strategies")
            result.write.mode("overwrite").parquet(path)
            written = session.read.parquet(path)
            summaries = balance.summarise(written)
            current = "AVG" if "AVG" in chosen else next(iter(chosen))
            worst = balance.find_worst(written, current)
        _write_page(out, balance_report.balance_page(summaries, worst, current=current))
        if as_json:
            _print_json({"strategies": [s._asdict() for s in summaries]})
            return
        columns = ["skew_mean", "idle", "unowned", "doubled", "join_moved", "leave_moved"]
        _print_table(
            f"{summaries[0].groups:,} groups under each strategy",
            ["strategy", *columns],
            [
                [s.strategy, *(_cell(getattr(s, name)) for name in columns)]
                for s in summaries
                if s.failed < s.groups
            ],
        )
        for summary in summaries:
            if summary.failed:
                _say(f"{summary.strategy} refused {summary.failed:,} groups: {summary.failure}")


@contextmanager
def _session(job: str, master: str, driver_memory: str) -> Iterator[SparkSession]:
    """Give a Spark session that ends with the job."""
    from pyspark.sql import SparkSession

    from sparrowmq.spark import spark_session

    running = SparkSession.getActiveSession()
    if running is not None:
        # Called from a program that has a session: it is not ours to end.
        yield running
        return
    _say(f"starting Spark on {master}")
    session = spark_session(
        f"sparrowmq pipeline {job}",
        master=master,
        driver_memory=driver_memory,
        conf={"spark.log.level": "ERROR"},
    )
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def _reporting_errors() -> Iterator[None]:
    """Turn errors into one line on stderr and an exit code."""
    try:
        yield
    except (ConfigError, UsageError) as error:
        _say(str(error))
        raise typer.Exit(EXIT_USAGE) from None
    except SparrowError as error:
        _say(str(error))
        raise typer.Exit(EXIT_FAILED) from None
    except ModuleNotFoundError as error:
        _say(f"{error.name} is not installed: pip install 'sparrowmq[cli,spark]'")
        raise typer.Exit(EXIT_USAGE) from None
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _write_page(out: Path, text: str) -> None:
    path = out / "report.html"
    path.write_text(text, encoding="utf-8")
    _say(f"the report is {path}")


def _print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(title=title, title_justify="left", header_style="")
    for index, name in enumerate(header):
        table.add_column(
            name.replace("_", " "), justify="right" if index else "left", no_wrap=not index
        )
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _say(text: str) -> None:
    typer.echo(f"sparrowmq: {' '.join(text.split())}", err=True)


def _print_json(value: dict[str, Any]) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False, default=str), flush=True)

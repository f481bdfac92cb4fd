"""`sparrowmq pipeline`: the jobs that run on Spark.

Each job writes Parquet tables and `report.html` below `--out`, prints a summary on stdout (`--json`
for programs) and what happens on stderr. Exit code 0 is fine, 2 is a wrong option or input, 3 is
a cluster that could not be reached or a job that failed, 130 is Ctrl-C.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table as RichTable

from sparrowmq.cli.failures import EXIT_FAILED, reporting_errors, say
from sparrowmq.errors import ConfigError, UsageError
from sparrowmq.model.names import TRACE_TOPIC

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sparrowmq.pipeline.duplicates.stream import Progress
    from sparrowmq.pipeline.ingest import Batch
    from sparrowmq.report import Table

_STDERR = 2
_ROWS_PRINTED = 20

pipeline = typer.Typer(
    help="Jobs on Spark: ingest topics, and look into backlog, duplicates and balance.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Out = Annotated[str, typer.Option("--out", "-o", help="directory for tables and report.html")]
Master = Annotated[str, typer.Option("--master", help="Spark's master, such as local[*]")]
Memory = Annotated[str, typer.Option("--driver-memory", help="heap of Spark's JVM")]
AsJson = Annotated[bool, typer.Option("--json", help="print the result as JSON on stdout")]


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
        from sparrowmq.pipeline import balance

        settings = balance.BalanceSettings(
            out=out,
            snapshot=snapshot,
            generate=generate,
            topics=topics,
            strategies=strategy or (),
            messages_per_second=rate,
        )
        with _session("balance", master, driver_memory) as session:
            result = balance.run(session, settings)
            _show(session, balance, result, out=out, as_json=as_json)


@pipeline.command("ingest")
def ingest_command(
    topic: Annotated[str, typer.Option("--topic", "-t", help="topics, joined by ','")],
    out: Out,
    nameserver: Annotated[
        str, typer.Option("--nameserver", "-n", help="host:port of name servers, joined by ';'")
    ] = "127.0.0.1:9876",
    ddl: Annotated[
        str | None,
        typer.Option("--schema", help="of bodies, as 'id BIGINT NOT NULL, name STRING'"),
    ] = None,
    json_schema: Annotated[
        Path | None, typer.Option("--json-schema", help="file with a JSON Schema of bodies")
    ] = None,
    date_column: Annotated[
        str, typer.Option("--date-column", help="whose date is the partition")
    ] = "storeTimestamp",
    table_format: Annotated[
        str, typer.Option("--format", help="of the table: parquet; delta once it runs on Spark 4.3")
    ] = "parquet",
    option: Annotated[
        list[str] | None,
        typer.Option("--option", help="NAME=VALUE for the data source; may be repeated"),
    ] = None,
    dlq: Annotated[
        str | None,
        typer.Option("--dlq", help="send what does not fit to this group's dead letters instead"),
    ] = None,
    follow: Annotated[
        float | None, typer.Option("--follow", min=0.0, help="go on, a batch every so many seconds")
    ] = None,
    compact: Annotated[
        bool, typer.Option("--compact", help="then make few large files of many small ones")
    ] = False,
    master: Master = "local[*]",
    driver_memory: Memory = "1g",
    as_json: AsJson = False,
) -> None:
    """Write topics to Parquet by date, each message once; what does not fit goes to quarantine."""
    with _reporting_errors():
        from sparrowmq.pipeline import ingest

        if ddl is not None and json_schema is not None:
            raise ConfigError("give --schema or --json-schema, not both")
        _check_format(table_format)
        settings = ingest.IngestSettings(
            name_server=nameserver,
            topic=topic,
            out=out,
            schema=ddl if json_schema is None else _read(json_schema),
            date_column=date_column,
            options=_parse_options(option or []),
            dlq_group=dlq,
            follow_interval_s=follow,
            compacts=compact,
        )
        with _session("ingest", master, driver_memory, runs_long=True) as session:
            with _signals_noted() as should_stop:
                result = ingest.run(session, settings, on_batch=_say_batch, should_stop=should_stop)
            if result.compaction is not None:
                done = result.compaction
                say(f"compacted {done.files_before:,} files to {done.files_after:,}")
            _show(session, ingest, result, out=out, as_json=as_json)


@pipeline.command("backlog")
def backlog_command(
    snapshots: Annotated[
        str, typer.Option("--snapshots", help="directory that `sparrowmq snapshot` has filled")
    ],
    out: Out,
    group: Annotated[
        list[str] | None, typer.Option("--group", "-g", help="only this one; may be repeated")
    ] = None,
    min_lag: Annotated[
        int, typer.Option("--min-lag", min=1, help="leave out who was never so far behind")
    ] = 100,
    master: Master = "local[*]",
    driver_memory: Memory = "1g",
    as_json: AsJson = False,
) -> None:
    """Find which queues piled up, since when, who owned them, and why."""
    with _reporting_errors():
        from sparrowmq.pipeline import backlog

        settings = backlog.BacklogSettings(
            snapshots=snapshots, out=out, groups=group or (), lag_min=min_lag
        )
        with _session("backlog", master, driver_memory) as session:
            _show(session, backlog, backlog.run(session, settings), out=out, as_json=as_json)


@pipeline.command("duplicates")
def duplicates_command(
    out: Out,
    consumed: Annotated[
        str | None, typer.Option("--consumed", help="consumption records, Parquet or JSON lines")
    ] = None,
    trace: Annotated[
        str | None, typer.Option("--trace", help="host:port of name servers: read message trace")
    ] = None,
    trace_topic: Annotated[str, typer.Option("--trace-topic", help="its topic")] = TRACE_TOPIC,
    produced: Annotated[
        str | None, typer.Option("--produced", help="what was produced, such as ingest's table")
    ] = None,
    events: Annotated[
        str | None, typer.Option("--events", help="rebalance events; found if not given")
    ] = None,
    follow: Annotated[
        float | None,
        typer.Option("--follow", min=0.0, help="go on as they come, looking every so many seconds"),
    ] = None,
    delay: Annotated[
        float, typer.Option("--delay", min=1.0, help="with --follow: judge what is so many s old")
    ] = 600.0,
    master: Master = "local[*]",
    driver_memory: Memory = "2g",
    as_json: AsJson = False,
) -> None:
    """Find which messages were consumed more than once or never, by whom, after which event."""
    with _reporting_errors():
        from sparrowmq.pipeline import duplicates

        settings = duplicates.DuplicatesSettings(
            out=out,
            consumed=consumed,
            trace=trace,
            trace_topic=trace_topic,
            produced=produced,
            events=events,
            follow_interval_s=follow,
            delay_s=delay,
        )
        is_followed = follow is not None
        with _session("duplicates", master, driver_memory, runs_long=is_followed) as session:
            with _signals_noted(is_followed) as should_stop:
                result = duplicates.run(
                    session, settings, on_batch=_say_progress, should_stop=should_stop
                )
            _show(session, duplicates, result, out=out, as_json=as_json)


def _show(session: SparkSession, job: Any, result: Any, *, out: str, as_json: bool) -> None:
    """Write the page of a job's result, and print the result or its main table."""
    from sparrowmq.pipeline.files import Files

    path = f"{out.rstrip('/')}/report.html"
    Files(session, out).write_text(path, job.render(result))
    say(f"the report is {path}")
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(result)).decode(), flush=True)
    else:
        _print_table(job.main_table(result))


def _print_table(values: Table) -> None:
    table = RichTable(title=values.caption, title_justify="left", header_style="")
    for index, name in enumerate(values.header):
        table.add_column(
            name, justify="right" if index in values.numeric else "left", no_wrap=not index
        )
    for row in values.shown[:_ROWS_PRINTED]:
        table.add_row(*row)
    Console().print(table)


def _say_batch(batch: Batch) -> None:
    bad = f", {batch.put_aside:,} of them do not fit" if batch.put_aside else ""
    say(f"batch {batch.batch_id}: {batch.messages:,} messages{bad}, {batch.seconds:.1f} s")


def _say_progress(progress: Progress) -> None:
    late = f", {progress.late:,} too late so far" if progress.late else ""
    say(
        f"batch {progress.batch_id}: {progress.entries:,} entries{late}; "
        f"judged until {progress.watermark:%Y-%m-%d %H:%M:%S} UTC"
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None


def _check_format(name: str) -> None:
    if name == "delta":
        raise ConfigError(
            "no Delta Lake runs on Spark 4.3 yet: delta-spark 4.4.1 needs PySpark 4.2.0 at most; "
            "leave out --format, and the table is Parquet"
        )
    if name != "parquet":
        raise ConfigError(f"cannot write tables of format {name!r}; write parquet")


def _parse_options(texts: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigError(f"option {text!r}: write NAME=VALUE")
        found[name] = value
    return found


@contextmanager
def _signals_noted(is_wanted: bool = True) -> Generator[Callable[[], bool]]:
    """Note Ctrl-C, and SIGTERM as service managers send it; yields whether one came."""
    noted: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM) if is_wanted else ()
    before = {
        number: signal.signal(number, lambda number, frame: noted.append(number))
        for number in numbers
    }
    try:
        yield lambda: bool(noted)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _session(
    job: str, master: str, driver_memory: str, *, runs_long: bool = False
) -> Generator[SparkSession]:
    """Give a Spark session that ends with the job."""
    from pyspark.sql import SparkSession

    from sparrowmq.spark import spark_session

    running = SparkSession.getActiveSession()
    if running is not None:
        # Called from a program that has a session: it is not ours to end.
        yield running
        return
    say(f"starting Spark on {master}")
    handle, log = tempfile.mkstemp(prefix="sparrowmq-spark-", suffix=".log")
    try:
        with _stderr_into(handle):
            session = spark_session(
                f"sparrowmq pipeline {job}",
                master=master,
                driver_memory=driver_memory,
                short_lived=not runs_long,
                conf={"spark.log.level": "ERROR"},
            )
        try:
            yield session
        finally:
            session.stop()
    except (ConfigError, UsageError, KeyboardInterrupt):
        Path(log).unlink()
        raise
    except BaseException:
        say(f"what Spark wrote is in {log}")
        raise
    Path(log).unlink()


@contextmanager
def _stderr_into(handle: int) -> Generator[None]:
    """Have what is started meanwhile write its stderr to a file: Java, and its Python workers."""
    sys.stderr.flush()
    kept = os.dup(_STDERR)
    os.dup2(handle, _STDERR)
    os.close(handle)
    try:
        yield
    finally:
        os.dup2(kept, _STDERR)
        os.close(kept)


@contextmanager
def _reporting_errors() -> Generator[None]:
    """Report what Spark says of a failure too, in one line."""
    with reporting_errors():
        try:
            yield
        except Exception as error:
            reason = _spark_reason(error)
            if reason is None:
                raise
            say(reason)
            raise typer.Exit(EXIT_FAILED) from None


def _spark_reason(error: Exception) -> str | None:
    """Return the line in which the data source, or Spark, says what went wrong."""
    if not type(error).__module__.startswith("pyspark."):
        return None
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line for line in lines if "sparrowmq" in line and not line.startswith("File ")]
    if ours:
        return ours[-1].partition("sparrowmq: ")[2] or ours[-1]
    return lines[0].partition("terminated with exception: ")[2] or lines[0]

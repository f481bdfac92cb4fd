"""`sparrowmq pipeline`: the jobs that run on Spark.

Each job writes Parquet tables and `report.html` below `--out`, prints a summary on stdout (`--json`
and `--csv` for programs) and its progress on stderr. Exit codes: 0, success; 2, a wrong option or
input; 3, the cluster cannot be reached or the job failed; 130, Ctrl-C. Tests: pipeline/test_cli.py.
"""

from __future__ import annotations

import csv
import logging
import os
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from sparrowmq.cli.command_classes import make_group
from sparrowmq.cli.exit_codes import EXIT_FAILED, reporting_errors, say
from sparrowmq.cli.option_sets import naming_options, parse_pairs, with_option_sets
from sparrowmq.cli.plain_text import PlainTable
from sparrowmq.errors import ConfigError, UsageError
from sparrowmq.model.names import TRACE_TOPIC

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sparrowmq.pipeline.duplicates.stream import Progress as WatchProgress
    from sparrowmq.pipeline.ingest import Batch
    from sparrowmq.pipeline.task_progress import OnProgress, TaskProgress
    from sparrowmq.report import Table
    from sparrowmq.spark.lag_listener import LagListener

_STDERR = 2
_ROWS_PRINTED = 20
# A pipe gets a line about a job's tasks so often; a terminal has a bar.
_LINE_INTERVAL_S = 10.0
# PySpark logs each error of a query as JSON on stderr, beside raising it.
_LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
# What Java prints before it says why it does not start.
_GREETINGS = re.compile(r"WARNING: |Using |Setting |\S+ \S+ WARN |\s*$")
# What precedes the reason in a line of ours, stands around it in one of Spark's, and precedes it in
# Java's lines about a failure.
_OURS = re.compile(r".*\bsparrowmq(?:[.]\w+)*: ")
_FRAME = re.compile(r"^(?:[\w.$]+(?:Exception|Error): )+| SQLSTATE: \w+$")
_CAUSE = re.compile(r"(?:Caused by)?: (?:[\w.$]+: )*(.+)")

pipeline = make_group("Run a job on Spark: ingest, backlog, duplicates or balance.")

Out = Annotated[str, typer.Option("--out", "-o", help="directory for tables and report.html")]
Compact = Annotated[
    bool, typer.Option("--compact", help="then merge small files into few large ones")
]
Follow = Annotated[
    float | None,
    typer.Option("--follow", min=0.0, help="keep running: a batch every N seconds"),
]
JsonSchema = Annotated[
    Path | None, typer.Option("--json-schema", help="file with a JSON Schema of the bodies")
]
AvroSchema = Annotated[
    Path | None, typer.Option("--avro-schema", help="file with the Avro schema of the bodies")
]


Memory = Annotated[str, typer.Option("--driver-memory", help="heap of Spark's JVM")]


class _Options(NamedTuple):
    """The options of every job, beside `--out`."""

    master: Annotated[
        str | None,
        typer.Option(
            "--master", help="Spark's master; by default that of spark-submit, else local[*]"
        ),
    ] = None
    conf: Annotated[
        list[str] | None,
        typer.Option("--conf", help="NAME=VALUE, a setting of Spark's; may be repeated"),
    ] = None
    py_files: Annotated[
        list[str] | None,
        typer.Option("--py-files", help="zip to ship to executors; may be repeated"),
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="print the result as JSON on stdout")] = (
        False
    )
    as_csv: Annotated[bool, typer.Option("--csv", help="print the main table as CSV on stdout")] = (
        False
    )


@pipeline.command("balance")
@with_option_sets
def balance_command(
    options: _Options,
    out: Out,
    snapshot: Annotated[
        str | None, typer.Option("--snapshot", help="directory with the tables topics and members")
    ] = None,
    generate: Annotated[
        int | None,
        typer.Option("--generate", help="generate N groups instead of reading a snapshot"),
    ] = None,
    topics: Annotated[int, typer.Option("--topics", help="topics of a generated group")] = 10,
    strategy: Annotated[
        list[str] | None,
        typer.Option("--strategy", "-s", help="only this strategy; may be repeated"),
    ] = None,
    rate: Annotated[
        float,
        typer.Option(
            "--rate", min=0.0, help="messages/s of a queue for which the input has no rate"
        ),
    ] = 1.0,
    driver_memory: Memory = "2g",
) -> None:
    """Compare the effect of every strategy on every group of a cluster."""
    with _reporting_errors():
        from sparrowmq.pipeline import balance

        with naming_options({"groups": "generate", "topics": "topics"}):
            settings = balance.BalanceSettings(
                out=out,
                snapshot=snapshot,
                generate=generate,
                topics=topics,
                strategies=strategy or (),
                messages_per_second=rate,
            )
        _run(balance, settings, options, driver_memory)


@pipeline.command("ingest")
@with_option_sets
def ingest_command(
    options: _Options,
    topic: Annotated[str, typer.Option("--topic", "-t", help="topics, joined by ','")],
    out: Out,
    nameserver: Annotated[
        str, typer.Option("--nameserver", "-n", help="host:port of name servers, joined by ';'")
    ] = "127.0.0.1:9876",
    ddl: Annotated[
        str | None,
        typer.Option("--schema", help="schema of the bodies, as 'id BIGINT NOT NULL, name STRING'"),
    ] = None,
    json_schema: JsonSchema = None,
    avro_schema: AvroSchema = None,
    date_column: Annotated[
        str, typer.Option("--date-column", help="column whose date is the partition")
    ] = "storeTimestamp",
    table_format: Annotated[
        str,
        typer.Option(
            "--format", help="format of the table: parquet; delta once Delta Lake runs on Spark 4.3"
        ),
    ] = "parquet",
    option: Annotated[
        list[str] | None,
        typer.Option("--option", help="NAME=VALUE for the data source; may be repeated"),
    ] = None,
    dlq: Annotated[
        str | None,
        typer.Option("--dlq", help="send what does not fit to this group's dead letters instead"),
    ] = None,
    follow: Follow = None,
    compact: Compact = False,
    driver_memory: Memory = "1g",
) -> None:
    """Write topics to Parquet by date, each message once; invalid messages go to quarantine."""
    with _reporting_errors():
        from sparrowmq.pipeline import ingest

        _check_format(table_format)
        settings = ingest.IngestSettings(
            name_server=nameserver,
            topic=topic,
            out=out,
            schema=_choose_schema(ddl, json_schema, avro_schema),
            date_column=date_column,
            options=parse_pairs("--option", option),
            dlq_group=dlq,
            follow_interval_s=follow,
            compacts=compact,
        )
        batches = _Batches(_say_batch, _lag_listener(follow), runs_long=True)
        _run(ingest, settings, options, driver_memory, batches)


@pipeline.command("backlog")
@with_option_sets
def backlog_command(
    options: _Options,
    snapshots: Annotated[
        str, typer.Option("--snapshots", help="directory that `sparrowmq snapshot` wrote")
    ],
    out: Out,
    group: Annotated[
        list[str] | None, typer.Option("--group", "-g", help="only this group; may be repeated")
    ] = None,
    min_lag: Annotated[
        int, typer.Option("--min-lag", min=1, help="leave out queues whose lag stayed below N")
    ] = 100,
    driver_memory: Memory = "1g",
) -> None:
    """Find the queues with a backlog, when it began, who owned them, and the cause."""
    with _reporting_errors():
        from sparrowmq.pipeline import backlog

        settings = backlog.BacklogSettings(
            snapshots=snapshots, out=out, groups=group or (), lag_min=min_lag
        )
        _run(backlog, settings, options, driver_memory)


@pipeline.command("duplicates")
@with_option_sets
def duplicates_command(
    options: _Options,
    out: Out,
    consumed: Annotated[
        str | None, typer.Option("--consumed", help="consumption records, Parquet or JSON lines")
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option("--trace", help="host:port of name servers: read the message trace there"),
    ] = None,
    trace_topic: Annotated[str, typer.Option("--trace-topic", help="its topic")] = TRACE_TOPIC,
    produced: Annotated[
        str | None, typer.Option("--produced", help="the produced messages, such as ingest's table")
    ] = None,
    events: Annotated[
        str | None,
        typer.Option("--events", help="rebalance events; the job infers them if not given"),
    ] = None,
    follow: Follow = None,
    delay: Annotated[
        float,
        typer.Option(
            "--delay",
            min=1.0,
            help="with --follow: judge messages that are N seconds old",
        ),
    ] = 600.0,
    driver_memory: Memory = "2g",
) -> None:
    """Find messages that were consumed twice or never, their consumers, and the event before."""
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
        listener = _lag_listener(follow if trace else None)
        batches = _Batches(_say_progress, listener, runs_long=follow is not None)
        _run(duplicates, settings, options, driver_memory, batches)


class _Batches(NamedTuple):
    """What a job by batches takes that may follow its input.

    Args:
        runs_long: whether a signal ends the job after its batch.
    """

    on_batch: Callable[[Any], None]
    listener: LagListener | None
    runs_long: bool


def _run(
    job: Any, settings: Any, options: _Options, memory: str, batches: _Batches | None = None
) -> None:
    """Run a job, write the page of its result, and print the result or its main table."""
    from sparrowmq.pipeline.files import Files
    from sparrowmq.pipeline.local_paths import check_paths

    conf = parse_pairs("--conf", options.conf)
    if _has_local_paths(options.master, conf):
        check_paths(settings.out, settings.inputs)
    runs_long = batches is not None and batches.runs_long
    shows_tasks = batches is None or settings.follow_interval_s is None
    with _session(job.__name__, options, conf, memory, runs_long=runs_long) as session:
        ends = (signal.SIGINT, signal.SIGTERM) if runs_long else ()
        with _signals_noted(*ends) as stops, _progress_shown(shows_tasks) as on_progress:
            given: dict[str, Any] = {"on_progress": on_progress}
            if batches is not None:
                on_batch, listener, _ = batches
                given |= {"on_batch": on_batch, "listener": listener, "should_stop": stops}
            result = job.run(session, settings, **given)
        if (done := getattr(result, "compaction", None)) is not None:
            say(f"compacted {done.files_before:,} files to {done.files_after:,}")
        path = f"{settings.out.rstrip('/')}/report.html"
        Files(session, settings.out).write_text(path, job.render(result))
        say(f"the report is {path}")
        _print_result(job, result, options)


def _print_result(job: Any, result: Any, options: _Options) -> None:
    if options.as_json:
        from sparrowmq.spark.connection_options import without_secrets

        found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(result))
        settings = found.get("settings", {})
        if "options" in settings:
            settings["options"] = without_secrets(settings["options"])
        print(msgspec.json.format(msgspec.json.encode(found)).decode(), flush=True)
    elif options.as_csv:
        table: Table = job.main_table(result)
        csv.writer(sys.stdout, lineterminator="\n").writerows([table.header, *table.rows])
    else:
        _print_table(job.main_table(result))


def _print_table(values: Table) -> None:
    table = PlainTable(title=values.caption, title_justify="left", header_style="")
    for index, name in enumerate(values.header):
        table.add_column(
            name, justify="right" if index in values.numeric else "left", no_wrap=not index
        )
    for row in values.shown[:_ROWS_PRINTED]:
        table.add_row(*row)
    Console().print(table)
    if (more := len(values.rows) - _ROWS_PRINTED) > 0:
        say(f"{more:,} more rows are in the report")


@contextmanager
def _progress_shown(is_wanted: bool) -> Generator[OnProgress | None]:
    """Yield a function that shows a job's progress: a bar on a terminal, else lines."""
    if not is_wanted:
        yield None
        return
    console, due_s = Console(stderr=True), _LINE_INTERVAL_S

    def say_tasks(progress: TaskProgress) -> None:
        nonlocal due_s
        if progress.seconds >= due_s:
            due_s = progress.seconds + _LINE_INTERVAL_S
            say(f"{progress.seconds:.0f} s: {progress.tasks_done} of {progress.tasks} tasks done")

    if not console.is_terminal:
        yield say_tasks
        return
    columns = (TextColumn("{task.completed} of {task.total} tasks"), BarColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bar:
        tasks = bar.add_task("", total=0)
        yield lambda progress: bar.update(
            tasks, completed=progress.tasks_done, total=progress.tasks
        )


def _lag_listener(follow: float | None) -> LagListener | None:
    """Return what prints the lag of a run that follows; a run with an end reads all there is."""
    from sparrowmq.spark.lag_listener import LagListener

    return None if follow is None else LagListener(log=say, log_interval_s=_LINE_INTERVAL_S)


def _say_batch(batch: Batch) -> None:
    bad = f", {batch.put_aside:,} of them do not fit the schema" if batch.put_aside else ""
    say(f"batch {batch.batch_id}: {batch.messages:,} messages{bad}, {batch.seconds:.1f} s")


def _say_progress(progress: WatchProgress) -> None:
    late = f", {progress.late:,} too late so far" if progress.late else ""
    bad = f", {progress.unreadable:,} unreadable so far" if progress.unreadable else ""
    say(
        f"batch {progress.batch_id}: {progress.entries:,} entries{late}{bad}; "
        f"judged until {progress.watermark:%Y-%m-%d %H:%M:%S} UTC"
    )


def _choose_schema(ddl: str | None, *paths: Path | None) -> str | None:
    given = [path for path in paths if path is not None]
    if len(given) + (ddl is not None) > 1:
        raise ConfigError("give one of --schema, --json-schema and --avro-schema")
    if not given:
        return ddl
    try:
        return given[0].read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {given[0]}: {error}") from None


def _check_format(name: str) -> None:
    if name == "delta":
        raise ConfigError(
            "no Delta Lake runs on Spark 4.3 yet: delta-spark 4.4.1 needs PySpark 4.2.0 at most; "
            "leave out --format, and the table is Parquet"
        )
    if name != "parquet":
        raise ConfigError(f"cannot write tables of format {name!r}; write parquet")


def _has_local_paths(master: str | None, conf: Mapping[str, str]) -> bool:
    """Return whether a path without a scheme is one of this machine's."""
    from sparrowmq.spark.local_session import is_submitted

    is_local = not is_submitted() if master is None else master.startswith("local")
    is_told = {"HADOOP_CONF_DIR", "SPARK_CONF_DIR"} & os.environ.keys()
    return is_local and not is_told and "spark.hadoop.fs.defaultFS" not in conf


def _check_ships(path: str) -> str:
    if path.endswith(".whl"):
        raise ConfigError(f"Spark ships no {path}; rename the wheel to .zip")
    return path


@contextmanager
def _signals_noted(
    *numbers: signal.Signals, say_at_first: int | None = None
) -> Generator[Callable[[], bool]]:
    """Note these signals; yield a function that returns whether one came.

    The second raises KeyboardInterrupt, since what waits for a broker does not look for the first.

    Args:
        say_at_first: a file descriptor for a line that the first signal was noted; None for none.
    """
    noted: list[int] = []
    process = os.getpid()

    def note(number: int, frame: object) -> None:
        if os.getpid() != process:
            # The child that is about to become Spark's JVM ignores the signal in a moment.
            return
        if noted:
            raise KeyboardInterrupt
        noted.append(number)
        if say_at_first is not None:
            os.write(say_at_first, b"sparrowmq: interrupted; Spark ends once it has started\n")

    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield lambda: bool(noted)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _session(
    job: str, options: _Options, given: Mapping[str, str], memory: str, *, runs_long: bool
) -> Generator[SparkSession]:
    """Yield a Spark session that ends with the job."""
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    from sparrowmq.spark.local_session import is_submitted, spark_session

    for name in _LOGGERS:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
    if options.as_json and options.as_csv:
        raise ConfigError("give --json or --csv, not both")
    conf = {"spark.log.level": "ERROR", **given}
    if options.py_files:
        conf["spark.submit.pyFiles"] = ",".join(map(_check_ships, options.py_files))
    running = SparkSession.getActiveSession()
    if running is not None:
        # The calling program had a session already, and ends it itself.
        yield running
        return
    place = "the master of spark-submit" if is_submitted() else "local[*]"
    say(f"starting Spark on {options.master or place}")
    handle, log = tempfile.mkstemp(prefix="sparrowmq-spark-", suffix=".log")
    try:
        # Interrupted meanwhile, PySpark would leave a JVM behind that never ends.
        with (
            _stderr_into(handle) as stderr,
            _signals_noted(signal.SIGINT, say_at_first=stderr) as is_interrupted,
        ):
            session = spark_session(
                job.replace(".", " "),
                master=options.master,
                driver_memory=memory,
                short_lived=not runs_long,
                conf=conf,
            )
        try:
            if is_interrupted():
                raise KeyboardInterrupt
            yield session
        finally:
            session.stop()
    except (ConfigError, UsageError, KeyboardInterrupt):
        Path(log).unlink()
        raise
    except BaseException as error:
        text = Path(log).read_text(errors="replace")
        if "JAVA_GATEWAY_EXITED" in str(error) and (reason := _java_reason(text)):
            Path(log).unlink()
            raise UsageError(f"Spark does not start: {reason}") from None
        say(f"Spark's output is in {log}")
        raise
    Path(log).unlink()


def _java_reason(log: str) -> str:
    """Return why Java ended before it had started Spark; "" if it does not say."""
    lines = (line for line in log.splitlines() if not _GREETINGS.match(line))
    reason = next(lines, "")
    found = _CAUSE.search(reason)
    return found[1] if found and reason.startswith("Exception in ") else reason


@contextmanager
def _stderr_into(handle: int) -> Generator[int]:
    """Send the stderr of processes that start meanwhile (Java, Python workers) to a file.

    Yields: a descriptor of our own stderr.
    """
    sys.stderr.flush()
    kept = os.dup(_STDERR)
    os.dup2(handle, _STDERR)
    os.close(handle)
    try:
        yield kept
    finally:
        os.dup2(kept, _STDERR)
        os.close(kept)


@contextmanager
def _reporting_errors() -> Generator[None]:
    """Report the errors of Spark as well, in one line."""
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
    """Return the line in which the data source or Spark gives the reason of a failure."""
    if not type(error).__module__.startswith("pyspark."):
        return None
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line for line in lines if _OURS.match(line) and not line.startswith("File ")]
    if ours:
        return _OURS.sub("", ours[-1])
    # Java's causes, the first of them last.
    causes = [found[1] for line in lines if (found := _CAUSE.match(line))]
    if causes:
        return causes[-1]
    return _FRAME.sub("", lines[0].partition("terminated with exception: ")[2] or lines[0])

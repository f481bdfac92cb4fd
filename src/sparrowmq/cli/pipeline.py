"""`sparrowmq pipeline`: the jobs that run on Spark.

Each job writes Parquet tables and `report.html` below `--out`, prints a summary on stdout (`--json`
for programs) and what happens on stderr. Exit code 0 is fine, 2 is a wrong option or input, 3 is
a cluster that could not be reached or a job that failed, 130 is Ctrl-C.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from sparrowmq.cli.failures import EXIT_FAILED, reporting_errors, say
from sparrowmq.errors import ConfigError, UsageError
from sparrowmq.model.names import TRACE_TOPIC

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sparrowmq.pipeline.body_schema import BodySchema
    from sparrowmq.pipeline.duplicates_stream import Progress
    from sparrowmq.pipeline.ingest import Batch, IngestSettings

_STDERR = 2

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
            say(f"evaluating each group under {len(chosen)} strategies")
            result.write.mode("overwrite").parquet(path)
            written = session.read.parquet(path)
            summaries = balance.summarise(written)
            current = "AVG" if "AVG" in chosen else next(iter(chosen))
            worst = balance.find_worst(written, current)
        _write_page(out, balance_report.balance_page(summaries, worst, current=current))
        if as_json:
            _print_json({"strategies": [s._asdict() for s in summaries]})
            return
        columns = ["skew_mean", "unowned", "doubled", "join_moved", "leave_moved"]
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
                say(f"{summary.strategy} refused {summary.failed:,} groups: {summary.failure}")


@pipeline.command("ingest")
def ingest_command(
    topic: Annotated[str, typer.Option("--topic", "-t", help="topics, joined by ','")],
    out: Annotated[str, typer.Option("--out", "-o", help="directory for tables and checkpoint")],
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
        from sparrowmq.spark.options import parse_options

        if ddl is not None and json_schema is not None:
            raise ConfigError("give --schema or --json-schema, not both")
        _check_format(table_format)
        options = _parse_options(option or [])
        # Spark says it too, but not before it has started.
        read = {"nameServer": nameserver, "topic": topic, "startingOffsets": "earliest"}
        parse_options({**read, **options}, scope="stream")
        with _session("ingest", master, driver_memory, runs_long=True) as session:
            from sparrowmq.pipeline.ingest import IngestSettings

            settings = IngestSettings(
                name_server=nameserver,
                topic=topic,
                out=out,
                schema=_body_schema(ddl, json_schema),
                date_column=date_column,
                options=options,
                dlq_group=dlq,
                follow_interval_s=follow,
            )
            _ingest(session, settings, compacts=compact, as_json=as_json)


def _ingest(
    session: SparkSession, settings: IngestSettings, *, compacts: bool, as_json: bool
) -> None:
    from sparrowmq.pipeline import ingest_report
    from sparrowmq.pipeline.compaction import compact
    from sparrowmq.pipeline.files import Files
    from sparrowmq.pipeline.ingest import examine, ingest

    with _signals_noted() as should_stop:
        batches = ingest(session, settings, on_batch=_tell_batch, should_stop=should_stop)
    if compacts:
        done = compact(session, settings.table, checkpoint=settings.checkpoint, partition_by="date")
        compact(session, settings.quarantine, checkpoint=settings.checkpoint)
        say(f"compacted {done.files_before:,} files to {done.files_after:,}")
    contents = examine(session, settings)
    report = f"{settings.out.rstrip('/')}/report.html"
    text = ingest_report.ingest_page(settings, batches, contents)
    Files(session, settings.out).write_text(report, text)
    say(f"the report is {report}")
    if as_json:
        _print_json({"batches": [b._asdict() for b in batches], **contents._asdict()})
        return
    rows = [[reason.reason, _cell(reason.messages)] for reason in contents.reasons[:20]]
    _print_table(
        f"{contents.rows:,} rows of {len(contents.by_date):,} dates in {settings.out}",
        ["quarantined because of", "messages"],
        rows or [["nothing", "0"]],
    )


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
        int, typer.Option("--min-lag", min=1, help="messages behind that are worth telling")
    ] = 100,
    master: Master = "local[*]",
    driver_memory: Memory = "1g",
    as_json: AsJson = False,
) -> None:
    """Tell which queues piled up, since when, who owned them, and why."""
    with _reporting_errors():
        from sparrowmq.pipeline import backlog, backlog_report

        with _session("backlog", master, driver_memory) as session:
            queues = backlog.read_history(session, snapshots)
            if group:
                queues = queues.where(queues["consumerGroup"].isin(group))
                if queues.isEmpty():
                    raise ConfigError(f"no group of {', '.join(group)} is in {snapshots}")
            backlog.explain_history(queues).write.mode("overwrite").parquet(f"{out}/history")
            history = session.read.parquet(f"{out}/history")
            path = f"{out}/accumulations"
            backlog.find_accumulations(history, peak_min=min_lag).write.mode("overwrite").parquet(
                path
            )
            found = backlog.list_accumulations(session.read.parquet(path))
            totals = backlog.sum_up(history)
            looks = {
                each: backlog.list_looks(history, each)
                for each in backlog_report.choose_plotted(found)
            }
        _write_page(out, backlog_report.backlog_page(totals, found, looks))
        if as_json:
            _print_json({**totals._asdict(), "accumulations": [f._asdict() for f in found]})
            return
        _print_table(
            f"{len(found):,} accumulations in {totals.looks:,} looks at {totals.queues:,} queues",
            ["queue", "cause", "since", "peak", "last"],
            [
                [
                    f"{each.consumer_group} {each.queue_name}",
                    each.cause,
                    f"{each.since:%m-%d %H:%M:%S}",
                    _cell(each.lag_peak),
                    _cell(each.lag_last),
                ]
                for each in found[:20]
            ],
        )


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
    """Tell which messages were consumed more than once or never, by whom, after which event."""
    with _reporting_errors():
        if (consumed is None) == (trace is None):
            raise ConfigError("give either --consumed PATH or --trace HOST:PORT")
        if trace is not None and produced is not None:
            raise ConfigError("--trace tells what was produced itself; leave out --produced")
        if follow is not None and produced is not None:
            raise ConfigError("--follow learns from --trace alone what was produced")
        is_followed = follow is not None
        with _session("duplicates", master, driver_memory, runs_long=is_followed) as session:
            from sparrowmq.pipeline import consumption

            if follow is not None:
                entries = (
                    consumption.stream_records(session, consumed or "")
                    if trace is None
                    else consumption.stream_trace(session, trace, trace_topic)
                )
                with _signals_noted() as should_stop:
                    _follow(session, entries, events, str(out), (follow, delay), should_stop)
                knows = trace is not None
                _tell_followed(session, knows=knows, out=out, as_json=as_json)
                return
            if trace is not None:
                source = session.read.format("rocketmq").option("nameServer", trace)
                source = source.option("topic", trace_topic).option("columns", "body,bornHost")
                records, made = consumption.split_trace(source.load())
                known: DataFrame | None = made
            else:
                records = consumption.read_records(session, consumed or "")
                known = None if produced is None else consumption.read_produced(session, produced)
            told = None if events is None else consumption.read_events(session, events)
            _duplicates(session, records, known, told, out=out, as_json=as_json)


def _duplicates(
    session: SparkSession,
    records: DataFrame,
    produced: DataFrame | None,
    events: DataFrame | None,
    *,
    out: Path,
    as_json: bool,
) -> None:
    from sparrowmq.pipeline import duplicates

    def keep(frame: DataFrame, name: str) -> DataFrame:
        frame.write.mode("overwrite").parquet(f"{out}/{name}")
        return session.read.parquet(f"{out}/{name}")

    happened = keep(duplicates.find_events(records) if events is None else events, "events")
    deliveries = keep(duplicates.attribute(records, happened), "deliveries")
    keep(deliveries.where("nth > 1"), "duplicates")
    missing = None
    if produced is not None:
        missing = keep(duplicates.find_missing(records, produced), "missing")
    _tell_duplicates(deliveries, missing, knows=produced is not None, out=out, as_json=as_json)


def _follow(
    session: SparkSession,
    entries: DataFrame,
    events: str | None,
    out: str,
    times: tuple[float, float],
    should_stop: Callable[[], bool],
) -> None:
    """Run the streaming query until it should stop; `times` are its interval and delay in s."""
    from sparrowmq.pipeline import consumption, duplicates_stream
    from sparrowmq.pipeline.running_query import await_end

    def read_events() -> DataFrame:
        return consumption.read_events(session, events or "")

    interval_s, delay_s = times
    query = duplicates_stream.watch_duplicates(
        entries,
        out,
        delay_s=delay_s,
        interval_s=interval_s,
        read_events=None if events is None else read_events,
        on_batch=_tell_progress,
    )
    await_end(query, should_stop=should_stop)


def _tell_followed(session: SparkSession, *, knows: bool, out: Path, as_json: bool) -> None:
    from sparrowmq.pipeline.duplicates_stream import read_tables

    tables = read_tables(session, str(out))
    missing = tables.get("missing")
    if "deliveries" not in tables:
        say("nothing is old enough yet to be judged; see --delay")
        return
    _tell_duplicates(tables["deliveries"], missing, knows=knows, out=out, as_json=as_json)


def _tell_duplicates(
    deliveries: DataFrame, missing: DataFrame | None, *, knows: bool, out: Path, as_json: bool
) -> None:
    """Write the page and print the summary; `knows` says whether losses were looked for."""
    from sparrowmq.pipeline import duplicates
    from sparrowmq.pipeline.duplicates_report import duplicates_page

    groups = duplicates.list_groups(deliveries, missing)
    by_event = duplicates.list_events(deliveries)
    by_strategy = duplicates.list_strategies(deliveries)
    text = duplicates_page(groups, by_event, by_strategy, knows_produced=knows)
    _write_page(out, text)
    if as_json:
        _print_json(
            {
                "groups": [each._asdict() for each in groups],
                "events": [each._asdict() for each in by_event],
                "strategies": [each._asdict() for each in by_strategy],
            }
        )
        return
    names = ["deliveries", "messages", "duplicates", "most_often", "lost", "pending"]
    _print_table(
        "deliveries, duplicates and losses",
        ["group", *names],
        [[g.consumer_group, *(_cell(getattr(g, name)) for name in names)] for g in groups],
    )


def _tell_batch(batch: Batch) -> None:
    bad = f", {batch.quarantined:,} of them do not fit" if batch.quarantined else ""
    say(f"batch {batch.batch_id}: {batch.rows:,} messages{bad}, {batch.seconds:.1f} s")


def _tell_progress(progress: Progress) -> None:
    late = f", {progress.late:,} too late so far" if progress.late else ""
    say(
        f"batch {progress.batch_id}: {progress.entries:,} entries{late}; "
        f"judged until {progress.watermark:%Y-%m-%d %H:%M:%S} UTC"
    )


def _body_schema(ddl: str | None, json_schema: Path | None) -> BodySchema | None:
    from sparrowmq.pipeline.body_schema import parse_ddl, parse_json_schema

    if ddl is not None:
        return parse_ddl(ddl)
    if json_schema is None:
        return None
    try:
        return parse_json_schema(json_schema.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {json_schema}: {error}") from None


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
def _signals_noted() -> Iterator[Callable[[], bool]]:
    """Note Ctrl-C, and SIGTERM as service managers send it; yields what tells of them."""
    noted: list[int] = []
    before = {
        number: signal.signal(number, lambda number, frame: noted.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield lambda: bool(noted)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _session(
    job: str, master: str, driver_memory: str, *, runs_long: bool = False
) -> Iterator[SparkSession]:
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
def _stderr_into(handle: int) -> Iterator[None]:
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
def _reporting_errors() -> Iterator[None]:
    """Report what Spark says of a failure too, in one line."""
    with reporting_errors():
        try:
            yield
        except Exception as error:
            said = _spark_reason(error)
            if said is None:
                raise
            say(said)
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


def _write_page(out: Path, text: str) -> None:
    path = out / "report.html"
    path.write_text(text, encoding="utf-8")
    say(f"the report is {path}")


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


def _print_json(value: dict[str, Any]) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False, default=str), flush=True)

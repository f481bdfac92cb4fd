"""The settings, the run and the result of the job.

```
out/table/batchId=3/date=2013-01-05/part-*.parquet      messages whose body fits the schema
out/quarantine/batchId=3/part-*.parquet                 other messages, with body and reason
out/checkpoint/                                         the query's position
out/counts/3.json                                       the counts up to batch 3
out/ingest.json                                         the settings that this directory belongs to
```

With `dlq_group` the other messages go to the topic `%DLQ%<group>`; only those that no client may
send go to the quarantine: empty bodies and bodies of more than 4 MiB once inflated, tags with `||`,
and properties that leave no room for a dead letter's own.

The job writes both tables batch by batch (`pipeline.parquet`), so that every reader of Parquet sees
each message once. A second run with the same `out` continues where the first run stopped.

A row of the table has the message's coordinates (`METADATA`), the fields of the body, and `date`.
Without a schema a row has the unchanged body, and no message is quarantined.
Tests: pipeline/test_ingest.py.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import StreamingQueryListener

from sparrowmq.errors import ConfigError
from sparrowmq.model.names import DLQ_GROUP_TOPIC_PREFIX, check_group
from sparrowmq.pipeline.files import Files
from sparrowmq.pipeline.ingest.body_parsing import (
    ERROR,
    BodySchema,
    is_avro,
    parse_schema,
    quoted,
    table_rows,
    with_avro_fields,
)
from sparrowmq.pipeline.ingest.compaction import Compaction, compact, recover
from sparrowmq.pipeline.ingest.counts import (
    DATE,
    QUEUE_COLUMNS,
    REASON,
    Counts,
    Ledger,
    count_batch,
)
from sparrowmq.pipeline.parquet import read_parquet, write_batch_parquet
from sparrowmq.pipeline.running_query import check_seconds, has_planned, never, run_query
from sparrowmq.pipeline.task_progress import OnProgress, reporting_progress
from sparrowmq.spark.checkpoint_offsets import encode_offsets
from sparrowmq.spark.connection_options import CONNECTION_OPTIONS
from sparrowmq.spark.dead_letter_rows import can_be_dead_letter, to_dlq
from sparrowmq.spark.local_session import clone_session, register
from sparrowmq.spark.options import SourceOptions, parse_options, starting_at
from sparrowmq.spark.queue_watch import QueueWatch
from sparrowmq.spark.schema import COLUMNS

METADATA = (
    *QUEUE_COLUMNS,
    "queueOffset",
    "msgId",
    "keys",
    "tags",
    "bornTimestamp",
    "storeTimestamp",
)
# Times without a zone, and dates, are those of UTC, whatever the zone of the user's session. The
# job reads back what it wrote: a batch may have hundreds of small files in as many directories,
# for which Spark would start a task each.
_CONF = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
    "spark.sql.files.openCostInBytes": "65536",
}
# The options of the read that the job's settings make, in lower case.
_OWN_OPTIONS = frozenset({"nameserver", "topic", "columns", "profile", "bodyschema"})
# Those that say where a read begins.
_STARTS = frozenset({"startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp"})
# The newest batches that a result has. A run that follows may have any number.
BATCHES_MAX = 1_000
# A text is cast to a date, and ends the job if it is none.
_DATE_TYPES = ("date", "timestamp", "timestamp_ntz", "string")
# The columns of a written batch from which it is counted. Python has no dates before the year 1 and
# after 9999, which Spark has; so a date is the text that its directory has.
_COUNTED = "topic string, brokerName string, queueId int, queueOffset bigint, date string"


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestSettings:
    """The settings of the job.

    Args:
        name_server: the name servers, `host:port`, joined by ';'.
        topic: the topics, joined by ','.
        out: the directory of all output, in any file system that Spark can write to.
        schema: the schema of bodies: a DDL string such as `id BIGINT NOT NULL, name STRING`, the
            text of a JSON Schema, or of an Avro schema of type record; None leaves bodies
            unchanged.
        date_column: a date or timestamp column of the metadata or the body; its date in UTC is the
            partition.
        options: further options of the data source, such as maxOffsetsPerTrigger.
        dlq_group: the consumer group whose dead letter topic receives messages that do not fit,
            with the property `reason`; None puts them into the quarantine. A batch that is replayed
            after a kill sends its dead letters again.
        follow_interval_s: the time between batches of a run that follows new messages; None ends
            the run once it has ingested all present ones.
        compacts: whether to merge small files at the end of the run.

    Raises: ConfigError if an option is wrong.
    """

    name_server: str
    topic: str
    out: str
    schema: str | None = None
    date_column: str = "storeTimestamp"
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    dlq_group: str | None = None
    follow_interval_s: float | None = None
    compacts: bool = False

    def __post_init__(self) -> None:
        own = [name for name in self.options if name.lower() in _OWN_OPTIONS]
        if own:
            raise ConfigError(
                f"option {own[0]!r} is the job's own; leave it out, for it comes from the settings"
            )
        # Spark would refuse a wrong option only after its start.
        self.parse_options()
        check_seconds("follow_interval_s", self.follow_interval_s)
        if self.dlq_group is not None:
            check_group(self.dlq_group)
        if self.schema is None:
            _check_columns(self, None)
        elif not is_avro(self.schema):
            _check_columns(self, parse_schema(self.schema))

    @property
    def inputs(self) -> tuple[str, ...]:
        """The paths that the job reads."""
        return ()

    @property
    def source_options(self) -> dict[str, str]:
        """The options of the read."""
        has_start = not _STARTS.isdisjoint(map(str.lower, self.options))
        return {
            "nameServer": self.name_server,
            "topic": self.topic,
            **({} if has_start else {"startingOffsets": "earliest"}),
            # Dead letters keep their properties.
            "columns": ",".join(
                (*METADATA, "body", *(() if self.dlq_group is None else ("properties",)))
            ),
            **self.options,
        }

    @property
    def table(self) -> str:
        """The directory of the table."""
        return f"{self.root}/table"

    @property
    def quarantine(self) -> str:
        """The directory of messages that do not fit the schema."""
        return f"{self.root}/quarantine"

    @property
    def checkpoint(self) -> str:
        """The directory of Spark's checkpoint."""
        return f"{self.root}/checkpoint"

    @property
    def root(self) -> str:
        """The directory of all output, without a slash at its end."""
        return self.out.rstrip("/")

    def parse_options(self) -> SourceOptions:
        """Check and return the options of the read. Raises: ConfigError."""
        return parse_options(self.source_options, scope="stream")


@dataclass(frozen=True, slots=True)
class Batch:
    """A written micro-batch; `messages` includes the messages put aside."""

    batch_id: int
    messages: int
    put_aside: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestResult:
    """The result of a run, and the counts of all runs with this directory.

    Args:
        settings: the run's settings.
        batches: the newest batches of this run, at most `BATCHES_MAX`.
        batch_count: the number of all batches of this run.
        counts: the counts of all runs.
        is_filtered: whether brokers filtered messages, so that offsets do not show missing rows.
        files, size: the number of the table's files, and their bytes.
        compaction: the compaction at the end of the run; None if there was none.
    """

    settings: IngestSettings
    batches: Sequence[Batch]
    batch_count: int
    counts: Counts
    is_filtered: bool
    files: int
    size: int
    compaction: Compaction | None


def run(
    session: SparkSession,
    settings: IngestSettings,
    *,
    on_batch: Callable[[Batch], None] | None = None,
    on_progress: OnProgress | None = None,
    listener: StreamingQueryListener | None = None,
    should_stop: Callable[[], bool] = never,
) -> IngestResult:
    """Ingest all present messages, or follow new messages until the query is stopped.

    Args:
        on_batch: called in the driver after each micro-batch.
        on_progress: called every second, in a thread of its own.
        listener: a listener of the query, such as `LagListener`.
        should_stop: called twice a second; True stops the query, as a KeyboardInterrupt does.

    Raises: ConfigError for a wrong setting, or for the directory of another ingest; errors of the
        data source; KeyboardInterrupt if a run that does not follow is stopped.
    """
    session = clone_session(session, _CONF)
    register(session)
    with reporting_progress(session, on_progress):
        return _ingest(session, settings, on_batch, listener, should_stop)


def _ingest(
    session: SparkSession,
    settings: IngestSettings,
    on_batch: Callable[[Batch], None] | None,
    listener: StreamingQueryListener | None,
    should_stop: Callable[[], bool],
) -> IngestResult:
    schema = None if settings.schema is None else parse_schema(settings.schema)
    if schema is not None and schema.avro is not None:
        _check_columns(settings, schema)
    bodies = {} if schema is None or schema.avro else {"bodySchema": schema.struct.json()}
    files = Files(session, settings.out)
    ledger = Ledger(
        files,
        settings.root,
        checkpoint=settings.checkpoint,
        start=(start := _claim(files, settings, schema)),
    )
    for table in (settings.table, settings.quarantine):
        recover(session, table)
    given = starting_at(settings.source_options, start)
    read = session.readStream.format("rocketmq").options(**given, **bodies).load()
    if schema is not None and schema.avro is not None:
        read = with_avro_fields(read, schema)
    is_filtered = settings.parse_options().is_filtered
    sink = _Sink(settings, schema, ledger, on_batch, is_filtered)
    is_stopped = run_query(
        read,
        sink,
        checkpoint=settings.checkpoint,
        interval_s=settings.follow_interval_s,
        should_stop=should_stop,
        listener=listener,
    )
    if is_stopped and settings.follow_interval_s is None:
        raise KeyboardInterrupt
    compaction = _compact(session, settings) if settings.compacts else None
    counts = sink.read_counts(session, ledger.latest())
    rows = read_parquet(session, settings.table, schema=_COUNTED) if counts.rows else None
    return IngestResult(
        settings=settings,
        batches=list(sink.batches),
        batch_count=sink.batch_count,
        counts=counts,
        is_filtered=is_filtered,
        compaction=compaction,
        files=0 if rows is None else len(rows.inputFiles()),
        size=files.usage(settings.table).size,
    )


@dataclass(slots=True)
class _Sink:
    """Writes each micro-batch: the table, then messages that do not fit, then the counts.

    The table is written in one pass over the messages, which also counts those that do not fit.
    Only then are these read again. Counts are those of what is written.
    """

    settings: IngestSettings
    schema: BodySchema | None
    ledger: Ledger
    on_batch: Callable[[Batch], None] | None
    is_filtered: bool
    batches: deque[Batch] = field(default_factory=lambda: deque(maxlen=BATCHES_MAX))
    batch_count: int = 0

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        begin = time.monotonic()
        before = self.read_counts(batch.sparkSession, batch_id - 1)
        spans = {} if self.is_filtered else self.ledger.spans(batch_id)
        misfits = self._write_table(batch, batch_id)
        good = self._written(batch.sparkSession, self.settings.table, batch_id)
        bad = None
        if misfits != 0:
            bad = self._put_aside(batch, batch_id, is_known=misfits is not None)
        try:
            counts = count_batch(good, bad, batch_id, before, spans)
        finally:
            if bad is not None:
                bad.unpersist()
        self.ledger.write(batch_id, counts)
        seconds = round(time.monotonic() - begin, 3)
        put_aside = counts.put_aside - before.put_aside
        written = Batch(batch_id, counts.messages - before.messages, put_aside, seconds)
        self.batches.append(written)
        self.batch_count += 1
        if self.on_batch is not None:
            self.on_batch(written)

    def read_counts(self, session: SparkSession, batch_id: int) -> Counts:
        """Return the counts up to a batch; count what was written if they are lost.

        Dead letters that were sent are then assumed to be the messages that are in neither table:
        their topic has them again where a batch was replayed, and does not keep them.
        """
        kept = self.ledger.read(batch_id)
        if kept is not None:
            return kept
        spans = {} if self.is_filtered else self.ledger.spans(batch_id, since=0)
        settings = self.settings
        good, bad = (
            read_parquet(session, table, schema=f"{columns}, batchId int").where(
                F.col("batchId") <= batch_id
            )
            if any(entry.is_directory for entry in Files(session, table).list(table))
            else None
            for table, columns in (
                (settings.table, _COUNTED),
                (settings.quarantine, f"{_COUNTED}, body binary, {REASON} string"),
            )
        )
        if settings.dlq_group is None:
            return count_batch(good, bad, batch_id, Counts(), spans)
        counts = count_batch(good, bad, batch_id, Counts(), {})
        offsets = sum(span.length for span in spans.values())
        put_aside = max(0, offsets - counts.rows)
        return replace(counts, offsets=offsets, put_aside=put_aside, has_assumed_letters=True)

    def _write_table(self, batch: DataFrame, batch_id: int) -> int | None:
        """Write the messages that fit; return the number of others, None for a batch replayed."""
        settings, schema = self.settings, self.schema
        date = F.to_date(F.col(quoted(settings.date_column))).alias(DATE)
        if schema is None:
            rows = batch.select(*METADATA, "body")
            write_batch_parquet(rows.select("*", date), batch_id, settings.table, [DATE])
            return 0
        observation = Observation()
        rows = table_rows(batch, schema, observation, METADATA)
        if not write_batch_parquet(rows.select("*", date), batch_id, settings.table, [DATE]):
            return None
        return int(observation.get["misfits"])

    def _written(self, session: SparkSession, table: str, batch_id: int) -> DataFrame | None:
        """Return the rows that a batch has in a table; None, and no directory, for no rows."""
        path, files = f"{table}/batchId={batch_id}", Files(session, table)
        # Rows have a directory for each date.
        if not any(entry.is_directory for entry in files.list(path)):
            files.remove(path)
            return None
        return read_parquet(session, path, schema=_COUNTED)

    def _put_aside(self, batch: DataFrame, batch_id: int, *, is_known: bool) -> DataFrame | None:
        """Write the messages that do not fit; return them as written, None for no messages.

        Args:
            is_known: whether it is known that there are such messages.
        """
        settings = self.settings
        bad = batch.where(F.col(ERROR).isNotNull()).withColumnRenamed(ERROR, REASON)
        if not is_known and bad.isEmpty():
            return None
        if settings.dlq_group is None:
            self._write_quarantine(bad, batch_id)
            return read_parquet(batch.sparkSession, f"{settings.quarantine}/batchId={batch_id}")
        bad = bad.persist()
        can_be_sent = F.expr(can_be_dead_letter(REASON))
        self._send_dead_letters(bad.where(can_be_sent), settings.dlq_group)
        kept = bad.where(~can_be_sent)
        if not kept.isEmpty():
            self._write_quarantine(kept, batch_id)
        return bad

    def _write_quarantine(self, bad: DataFrame, batch_id: int) -> None:
        columns = bad.select(*METADATA, "body", REASON)
        write_batch_parquet(columns, batch_id, self.settings.quarantine)

    def _send_dead_letters(self, bad: DataFrame, group: str) -> None:
        """Send messages to the group's dead letters, with their properties and `reason`."""
        with_property = f"map_concat(map_filter(properties, (k, v) -> k != '{REASON}'), "
        with_property += f"map('{REASON}', {REASON})) as properties"
        letters = to_dlq(bad.selectExpr(*METADATA, "body", with_property), group)
        writer = letters.write.format("rocketmq").options(**_connection(self.settings))
        writer.option("topic", DLQ_GROUP_TOPIC_PREFIX + group).option("createTopic", "true").mode(
            "append"
        ).save()


def _compact(session: SparkSession, settings: IngestSettings) -> Compaction:
    compact(session, settings.quarantine, checkpoint=settings.checkpoint)
    return compact(session, settings.table, checkpoint=settings.checkpoint, partition_by=DATE)


def _connection(settings: IngestSettings) -> dict[str, str]:
    """Return the options of the read that a write to the same cluster needs."""
    shared = {option.name.lower() for option in CONNECTION_OPTIONS}
    given = {name: text for name, text in settings.options.items() if name.lower() in shared}
    return {"nameServer": settings.name_server, **given}


def _check_columns(settings: IngestSettings, schema: BodySchema | None) -> None:
    fields: Sequence[str] = () if schema is None else schema.struct.names
    made = (DATE, "batchId")
    taken = {name.lower() for name in (*METADATA, *made)}
    for name in fields:
        if name.lower() in taken:
            raise ConfigError(
                f"the body's field {name!r} would clash with the column of that name; names differ "
                f"by more than case, and are not {', '.join((*METADATA, *made))}"
            )
        taken.add(name.lower())
    if settings.date_column not in (*METADATA, *fields):
        raise ConfigError(
            f"there is no column {settings.date_column!r} to take the date from; there are "
            f"{', '.join((*METADATA, *fields))}"
        )
    kinds = {column.name: column.ddl for column in COLUMNS}
    if schema is not None:
        kinds |= {each.name: each.dataType.typeName() for each in schema.struct}
    kind = kinds[settings.date_column]
    if kind not in _DATE_TYPES:
        raise ConfigError(
            f"column {settings.date_column!r} has no date: its type is {kind}; take one of "
            f"{', '.join(_DATE_TYPES)}"
        )


def _claim(files: Files, settings: IngestSettings, schema: BodySchema | None) -> Mapping[str, Any]:
    """Check that the directory is new or belongs to this ingest; write the start to a new one.

    Returns: the offsets at which the first batch begins or began. They are resolved here, so that
    the number of messages that must arrive is known.
    Raises: ConfigError if the directory belongs to another ingest; errors of the data source.
    """
    path = f"{settings.root}/ingest.json"
    claim = {
        "topic": settings.topic,
        "dateColumn": settings.date_column,
        "schema": None if schema is None else schema.columns.simpleString(),
        "required": [] if schema is None else list(schema.required),
        **({} if schema is None or schema.avro is None else {"avro": json.loads(schema.avro)}),
    }
    before: dict[str, Any] = files.read_json(path) or {}
    for name, value in claim.items():
        if before and before.get(name) != value:
            raise ConfigError(
                f"{settings.out} was begun with {name} {before.get(name)!r}, and this run has "
                f"{value!r}; choose another directory"
            )
    if "start" in before and has_planned(files, settings.checkpoint):
        start: Mapping[str, Any] = before["start"]
        return start
    if files.list(f"{settings.root}/counts"):
        gone = settings.checkpoint if before else path
        raise ConfigError(
            f"{gone} is gone, so this run would write all messages of {settings.out} a second "
            f"time; put it back, or choose another directory"
        )
    start = encode_offsets(QueueWatch(settings.parse_options()).first_offsets())
    files.remove(settings.checkpoint)
    files.write_text(path, json.dumps({**claim, "start": start}, indent=2))
    return start

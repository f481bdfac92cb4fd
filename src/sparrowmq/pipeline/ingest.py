"""The job `ingest`: topics into a Parquet table, partitioned by date, each message once.

```
out/table/batchId=3/date=2013-01-05/part-*.parquet      messages whose body fits the schema
out/quarantine/batchId=3/part-*.parquet                 the others, with body and reason
out/checkpoint/                                         where to go on
out/ingest.json                                         what this directory is for
```

With `dlq_group` the others become messages of topic `%DLQ%<group>`, and there is no quarantine.

Both tables are written batch by batch (`pipeline.parquet`): a batch that is replayed after a kill
replaces its first attempt, and every reader of Parquet sees each message once. A second run with
the same `out` goes on where the first one stopped.

A row of the table has the message's coordinates (`METADATA`), the fields of the body, and `date`.
Without a schema it has the body as it is, and nothing is ever quarantined.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from sparrowmq.client.blocking import Admin
from sparrowmq.errors import ConfigError, TopicRouteNotFound
from sparrowmq.model.names import DLQ_GROUP_TOPIC_PREFIX, check_group
from sparrowmq.pipeline.body_schema import BodySchema
from sparrowmq.pipeline.compaction import recover
from sparrowmq.pipeline.files import Files
from sparrowmq.pipeline.parquet import write_batch_parquet
from sparrowmq.pipeline.running_query import await_end, never
from sparrowmq.spark.dead_letters import to_dlq

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

METADATA = (
    "topic",
    "brokerName",
    "queueId",
    "queueOffset",
    "msgId",
    "keys",
    "tags",
    "bornTimestamp",
    "storeTimestamp",
)
_DATE, _REASON, _CORRUPT, _ROW = "date", "reason", "_corrupt", "_row"
_SECURITY = ("accesskey", "secretkey", "securitytoken", "usetls")
# How much of a value a reason shows.
_SHOWN = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestSettings:
    """What to ingest, and where to.

    Args:
        name_server: `host:port`, several joined by ';'.
        topic: topics, joined by ','.
        out: the directory of everything that is written, in any file system that Spark knows.
        schema: what bodies must look like; None keeps them as they are.
        date_column: a date or timestamp column, of the metadata or the body; its date in UTC is
            the partition.
        options: further options of the data source, such as maxOffsetsPerTrigger.
        dlq_group: the consumer group to whose dead letters what does not fit is sent, with the
            reason as the property `reason`; None keeps it in the quarantine. A batch that is
            replayed after a kill sends its dead letters again.
        follow_interval_s: None ingests what is there now; else go on, a batch every so often.
    """

    name_server: str
    topic: str
    out: str
    schema: BodySchema | None = None
    date_column: str = "storeTimestamp"
    options: Mapping[str, str] = field(default_factory=dict)
    dlq_group: str | None = None
    follow_interval_s: float | None = None

    @property
    def source_columns(self) -> tuple[str, ...]:
        """What is read of each message: a dead letter keeps its properties."""
        extra = () if self.dlq_group is None else ("properties",)
        return (*METADATA, "body", *extra)

    @property
    def table(self) -> str:
        """The directory of the table."""
        return f"{self.out.rstrip('/')}/table"

    @property
    def quarantine(self) -> str:
        """The directory of what does not fit."""
        return f"{self.out.rstrip('/')}/quarantine"

    @property
    def checkpoint(self) -> str:
        """The directory of Spark's checkpoint."""
        return f"{self.out.rstrip('/')}/checkpoint"


class Batch(NamedTuple):
    """A micro-batch that was written; `rows` counts the quarantined ones too."""

    batch_id: int
    rows: int
    quarantined: int
    seconds: float


class Reason(NamedTuple):
    """Why messages were quarantined, and how many."""

    reason: str
    messages: int


class Contents(NamedTuple):
    """What the tables hold after a run, counted by reading them."""

    rows: int
    distinct: int
    quarantined: int
    by_date: list[tuple[str, int]]
    reasons: list[Reason]
    files: int
    size: int


def ingest(
    session: SparkSession,
    settings: IngestSettings,
    *,
    on_batch: Callable[[Batch], None] | None = None,
    should_stop: Callable[[], bool] = never,
) -> list[Batch]:
    """Ingest what is there now, or go on until the query is stopped or KeyboardInterrupt.

    Args:
        session: the Spark session.
        settings: what and where.
        on_batch: called after each micro-batch, in the driver.
        should_stop: asked twice a second whether to stop, as KeyboardInterrupt does.

    Returns: the batches that this run wrote.
    Raises: ConfigError for a wrong setting, or a directory that is for another ingest;
        what the data source raises.
    """
    _check_columns(settings)
    if settings.dlq_group is not None:
        _create_dlq(settings, settings.dlq_group)
    _check_claim(session, settings)
    recover(session, settings.table)
    recover(session, settings.quarantine)
    messages = (
        session.readStream.format("rocketmq")
        .option("nameServer", settings.name_server)
        .option("topic", settings.topic)
        .option("startingOffsets", "earliest")
        .option("columns", ",".join(settings.source_columns))
        .options(**settings.options)
        .load()
    )
    sink = _Sink(settings, on_batch)
    writer = (
        parse_bodies(messages, settings)
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", settings.checkpoint)
    )
    if settings.follow_interval_s is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{settings.follow_interval_s:g} seconds")
    query = writer.start()
    is_stopped = await_end(query, should_stop=should_stop)
    if is_stopped and settings.follow_interval_s is None:
        raise KeyboardInterrupt
    return sink.batches


def parse_bodies(messages: DataFrame, settings: IngestSettings) -> DataFrame:
    """Add the body's fields, `date`, and `reason`: null where the body fits the schema."""
    from pyspark.sql import functions as F  # noqa: N812  (the name that Spark's users know)
    from pyspark.sql.types import StringType, StructField, StructType

    date = F.to_date(F.col(f"`{settings.date_column}`")).alias(_DATE)
    schema = settings.schema
    if schema is None:
        return messages.select("*", date, F.lit(None).cast("string").alias(_REASON))
    text = F.col("body").cast("string")
    with_corrupt = StructType([*schema.struct.fields, StructField(_CORRUPT, StringType())])
    row = F.from_json(text, with_corrupt, {"columnNameOfCorruptRecord": _CORRUPT})
    parsed = messages.withColumn(_ROW, row).withColumn(_REASON, _reason(schema, text))
    return parsed.select(
        *messages.columns, *(F.col(f"{_ROW}.`{name}`") for name in schema.struct.names), _REASON
    ).select("*", date)


def examine(session: SparkSession, settings: IngestSettings) -> Contents:
    """Count what the tables hold."""
    from pyspark.sql import functions as F  # noqa: N812  (the name that Spark's users know)

    files = Files(session, settings.out)

    def read(path: str) -> DataFrame | None:
        has_batch = any(entry.name.startswith("batchId=") for entry in files.list(path))
        return session.read.parquet(path) if has_batch else None

    table, quarantine = read(settings.table), read(settings.quarantine)
    by_date: list[tuple[str, int]] = []
    distinct = 0
    if table is not None:
        counts = table.groupBy(_DATE).count().orderBy(_DATE).collect()
        by_date = [(str(row[_DATE] or "unknown"), row["count"]) for row in counts]
        distinct = table.select("topic", "brokerName", "queueId", "queueOffset").distinct().count()
    reasons: list[Reason] = []
    if quarantine is not None:
        counted = quarantine.groupBy(_REASON).count().orderBy(F.desc("count"), _REASON)
        reasons = [Reason(row[_REASON], row["count"]) for row in counted.collect()]
    return Contents(
        rows=sum(count for _, count in by_date),
        distinct=distinct,
        quarantined=sum(reason.messages for reason in reasons),
        by_date=by_date,
        reasons=reasons,
        files=len(table.inputFiles()) if table is not None else 0,
        size=files.size(settings.table) if table is not None else 0,
    )


class _Sink:
    """Writes micro-batches: what does not fit to the quarantine, then the rest to the table."""

    def __init__(self, settings: IngestSettings, on_batch: Callable[[Batch], None] | None) -> None:
        self._settings = settings
        self._on_batch = on_batch
        self.batches: list[Batch] = []

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        begin = time.monotonic()
        settings = self._settings
        if not self.batches:
            # Not before: a run that a wrong topic has stopped must not claim the directory.
            _write_claim(batch.sparkSession, settings)
        batch.persist()
        try:
            is_good = f"{_REASON} is null"
            counts = batch.groupBy(batch[_REASON].isNull().alias("isGood")).count().collect()
            count_of = {row["isGood"]: row["count"] for row in counts}
            if count_of.get(False):
                self._put_aside(batch.where(f"not ({is_good})"), batch_id)
            if count_of.get(True):
                dropped = [] if settings.schema is None else ["body"]
                good = batch.where(is_good).drop(_REASON, "properties", *dropped)
                write_batch_parquet(good, batch_id, settings.table, [_DATE])
        finally:
            batch.unpersist()
        written = Batch(
            batch_id,
            rows=sum(count_of.values()),
            quarantined=count_of.get(False, 0),
            seconds=round(time.monotonic() - begin, 3),
        )
        self.batches.append(written)
        if self._on_batch is not None:
            self._on_batch(written)

    def _put_aside(self, bad: DataFrame, batch_id: int) -> None:
        settings = self._settings
        if settings.dlq_group is None:
            chosen = bad.select(*METADATA, "body", _REASON)
            write_batch_parquet(chosen, batch_id, settings.quarantine)
            return
        # Dead letters keep their properties; the reason comes to them.
        with_reason = f"map_concat(map_filter(properties, (k, v) -> k != '{_REASON}'), "
        with_reason += f"map('{_REASON}', {_REASON})) as properties"
        others = [name for name in settings.source_columns if name != "properties"]
        letters = to_dlq(bad.selectExpr(*others, with_reason), settings.dlq_group)
        writer = letters.write.format("rocketmq").option("nameServer", settings.name_server)
        writer.options(**_security(settings)).mode("append").save()


def _reason(schema: BodySchema, text: Column) -> Column:
    """Say why a body does not fit. Most do, and for these only the first test is computed."""
    from pyspark.sql import functions as F  # noqa: N812  (the name that Spark's users know)

    def field_of(name: str) -> Column:
        return F.col(f"{_ROW}.`{name}`")

    def told(name: str) -> Column:
        quoted = name.replace("'", "\\'")
        return F.get_json_object(text, f"$['{quoted}']")

    conditions = [F.length(F.trim(text)) > 0, F.col(f"{_ROW}.{_CORRUPT}").isNull()]
    conditions += [field_of(name).isNotNull() for name in schema.required]
    fits = reduce(lambda left, right: left & right, conditions)
    found = (
        F.when(fits, None)
        .when(text.isNull() | (F.length(F.trim(text)) == 0), "empty body")
        .when(~F.is_valid_utf8(text), "not UTF-8")
        .when(F.try_parse_json(text).isNull(), "not JSON")
        .when(~F.startswith(F.ltrim(text), F.lit("{")), "not a JSON object")
    )
    for name in schema.required:
        found = found.when(told(name).isNull(), f"field {name}: missing")
    for column in schema.struct.fields:
        kind = column.dataType.simpleString()
        shown = F.substring(told(column.name), 1, _SHOWN)
        found = found.when(
            told(column.name).isNotNull() & field_of(column.name).isNull(),
            F.concat(F.lit(f"field {column.name}: expected {kind}, found '"), shown, F.lit("'")),
        )
    return found.otherwise("a nested field has another type than the schema says")


def _security(settings: IngestSettings) -> dict[str, str]:
    """Return the source's options that are about access, which a write needs as well."""
    return {
        name: value
        for name, value in settings.options.items()
        if name.lower() in _SECURITY or name.lower().startswith("tls")
    }


def _create_dlq(settings: IngestSettings, group: str) -> None:
    """Create the group's dead letter topic if it is not there.

    Where access is controlled it must be there: who may read may not create.
    """
    topic = DLQ_GROUP_TOPIC_PREFIX + check_group(group)
    if _security(settings):
        return
    with Admin(name_server=settings.name_server) as admin:
        try:
            admin.route(topic)
        except TopicRouteNotFound:
            admin.create_topic(topic, queues=1)


def _check_columns(settings: IngestSettings) -> None:
    fields: Sequence[str] = () if settings.schema is None else settings.schema.struct.names
    taken = {name.lower() for name in (*METADATA, "body", _DATE, _REASON, "batchId")}
    clashing = [name for name in fields if name.lower() in taken]
    if clashing:
        raise ConfigError(
            f"the body's field {clashing[0]!r} would clash with the column of that name; fields "
            f"must not be called {', '.join((*METADATA, 'body', _DATE, _REASON))}"
        )
    if settings.date_column not in (*METADATA, *fields):
        raise ConfigError(
            f"there is no column {settings.date_column!r} to take the date from; there are "
            f"{', '.join((*METADATA, *fields))}"
        )


def _claim(settings: IngestSettings) -> dict[str, Any]:
    schema = settings.schema
    return {
        "topic": settings.topic,
        "dateColumn": settings.date_column,
        "schema": None if schema is None else schema.struct.simpleString(),
        "required": [] if schema is None else list(schema.required),
    }


def _claim_path(settings: IngestSettings) -> str:
    return f"{settings.out.rstrip('/')}/ingest.json"


def _check_claim(session: SparkSession, settings: IngestSettings) -> None:
    """Check that the directory is new or for this.

    Raises: ConfigError if it is for something else.
    """
    found = Files(session, settings.out).read_text(_claim_path(settings))
    before: dict[str, Any] = json.loads(found) if found is not None else _claim(settings)
    for name, value in _claim(settings).items():
        if before.get(name) != value:
            raise ConfigError(
                f"{settings.out} was begun with {name} {before.get(name)!r}, and this run has "
                f"{value!r}; choose another directory"
            )


def _write_claim(session: SparkSession, settings: IngestSettings) -> None:
    """Write down what the directory is for."""
    text = json.dumps(_claim(settings), indent=2)
    Files(session, settings.out).write_text(_claim_path(settings), text)

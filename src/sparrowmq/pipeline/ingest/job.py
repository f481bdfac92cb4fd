"""What to ingest, the run, and its result.

```
out/table/batchId=3/date=2013-01-05/part-*.parquet      messages whose body fits the schema
out/quarantine/batchId=3/part-*.parquet                 the others, with body and reason
out/checkpoint/                                         where to go on
out/counts/3.json                                       what was counted up to batch 3
out/ingest.json                                         what this directory is for
```

With `dlq_group` the others become messages of topic `%DLQ%<group>`, and there is no quarantine.

Both tables are written batch by batch (`pipeline.parquet`), and every reader of Parquet sees each
message once. A second run with the same `out` goes on where the first one stopped.

A row of the table has the message's coordinates (`METADATA`), the fields of the body, and `date`.
Without a schema it has the body as it is, and nothing is ever quarantined.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sparrowmq.client.faces.blocking_admin import Admin
from sparrowmq.errors import ConfigError, TopicRouteNotFound
from sparrowmq.model.names import DLQ_GROUP_TOPIC_PREFIX, check_group
from sparrowmq.pipeline.files import Files
from sparrowmq.pipeline.ingest.bodies import REASON, BodySchema, parse_schema, with_fields
from sparrowmq.pipeline.ingest.compaction import Compaction, compact, recover
from sparrowmq.pipeline.ingest.counts import DATE, QUEUE_COLUMNS, Counts, Ledger, count_batch
from sparrowmq.pipeline.parquet import write_batch_parquet
from sparrowmq.pipeline.running_query import never, run_query
from sparrowmq.spark.dead_letters import to_dlq
from sparrowmq.spark.offsets import encode_offsets
from sparrowmq.spark.options import SourceOptions, parse_options
from sparrowmq.spark.queue_watch import QueueWatch

METADATA = (
    *QUEUE_COLUMNS,
    "queueOffset",
    "msgId",
    "keys",
    "tags",
    "bornTimestamp",
    "storeTimestamp",
)
_SECURITY = ("accesskey", "secretkey", "securitytoken", "usetls")


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestSettings:
    """What to ingest, and where to.

    Args:
        name_server: `host:port`, several joined by ';'.
        topic: topics, joined by ','.
        out: the directory of everything that is written, in any file system that Spark knows.
        schema: what bodies must look like, a DDL string such as `id BIGINT NOT NULL, name STRING`
            or the text of a JSON Schema; None keeps them as they are.
        date_column: a date or timestamp column, of the metadata or the body; its date in UTC is
            the partition.
        options: further options of the data source, such as maxOffsetsPerTrigger.
        dlq_group: the consumer group to whose dead letters what does not fit is sent, with the
            reason as the property `reason`; None keeps it in the quarantine. A batch that is
            replayed after a kill sends its dead letters again.
        follow_interval_s: None ingests what is there now; else go on, a batch every so often.
        compacts: whether to make few large files of many small ones in the end.

    Raises: ConfigError if an option is wrong.
    """

    name_server: str
    topic: str
    out: str
    schema: str | None = None
    date_column: str = "storeTimestamp"
    options: Mapping[str, str] = field(default_factory=dict)
    dlq_group: str | None = None
    follow_interval_s: float | None = None
    compacts: bool = False

    def __post_init__(self) -> None:
        # Spark would refuse a wrong option too, once it has started.
        self.parse_options()

    @property
    def source_options(self) -> dict[str, str]:
        """The options of the read."""
        return {
            "nameServer": self.name_server,
            "topic": self.topic,
            "startingOffsets": "earliest",
            # A dead letter keeps its properties.
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
        """The directory of what does not fit."""
        return f"{self.root}/quarantine"

    @property
    def checkpoint(self) -> str:
        """The directory of Spark's checkpoint."""
        return f"{self.root}/checkpoint"

    @property
    def root(self) -> str:
        """The directory of everything, without a slash at its end."""
        return self.out.rstrip("/")

    def parse_options(self) -> SourceOptions:
        """Return the options of the read, checked."""
        return parse_options(self.source_options, scope="stream")


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch that was written; `messages` counts those put aside too."""

    batch_id: int
    messages: int
    put_aside: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestResult:
    """What a run did, and what all runs of the directory have counted.

    Args:
        batches: of this run.
        is_filtered: whether brokers left messages out, so that offsets say nothing of rows.
        files, size: of the table now, in files and bytes.
    """

    settings: IngestSettings
    batches: Sequence[Batch]
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
    should_stop: Callable[[], bool] = never,
) -> IngestResult:
    """Ingest what is there now, or go on until the query is stopped or KeyboardInterrupt.

    Args:
        session: the Spark session.
        settings: what and where.
        on_batch: called after each micro-batch, in the driver.
        should_stop: asked twice a second whether to stop, as KeyboardInterrupt does.

    Raises: ConfigError for a wrong setting, or a directory that is for another ingest;
        what the data source raises; KeyboardInterrupt if a run that does not follow is stopped.
    """
    schema = None if settings.schema is None else parse_schema(settings.schema)
    _check_columns(settings, schema)
    if settings.dlq_group is not None:
        _create_dlq(settings, settings.dlq_group)
    files = Files(session, settings.out)
    ledger = Ledger(
        files,
        settings.root,
        checkpoint=settings.checkpoint,
        start=(start := _claim(files, settings, schema)),
    )
    for table in (settings.table, settings.quarantine):
        recover(session, table)
    given = {
        name: value
        for name, value in settings.source_options.items()
        if not name.lower().startswith("starting")
    }
    messages = session.readStream.format("rocketmq").options(**given)
    sink = _Sink(settings, ledger, on_batch)
    date = F.to_date(F.col(f"`{settings.date_column}`")).alias(DATE)
    is_stopped = run_query(
        with_fields(messages.option("startingOffsets", json.dumps(start)).load(), schema).select(
            "*", date
        ),
        sink,
        checkpoint=settings.checkpoint,
        interval_s=settings.follow_interval_s,
        should_stop=should_stop,
    )
    if is_stopped and settings.follow_interval_s is None:
        raise KeyboardInterrupt
    has_table = files.exists(settings.table)
    return IngestResult(
        settings=settings,
        batches=sink.batches,
        counts=ledger.read_latest(),
        is_filtered=settings.parse_options().is_filtered,
        compaction=_compact(session, settings) if settings.compacts else None,
        files=len(session.read.parquet(settings.table).inputFiles()) if has_table else 0,
        size=files.size(settings.table) if has_table else 0,
    )


class _Sink:
    """Writes micro-batches: what does not fit first, then the table, then the counts."""

    def __init__(
        self, settings: IngestSettings, ledger: Ledger, on_batch: Callable[[Batch], None] | None
    ) -> None:
        self._settings = settings
        self._ledger = ledger
        self._on_batch = on_batch
        self._is_filtered = settings.parse_options().is_filtered
        self.batches: list[Batch] = []

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        begin = time.monotonic()
        settings = self._settings
        before = self._ledger.read(batch_id - 1)
        spans = {} if self._is_filtered else self._ledger.spans(batch_id)
        batch.persist()
        try:
            counts = count_batch(batch, batch_id, before, spans)
            put_aside = counts.put_aside - before.put_aside
            if put_aside:
                self._put_aside(batch.where(f"{REASON} is not null"), batch_id)
            if counts.rows > before.rows:
                dropped = [] if settings.schema is None else ["body"]
                good = batch.where(f"{REASON} is null").drop(REASON, "properties", *dropped)
                write_batch_parquet(good, batch_id, settings.table, [DATE])
        finally:
            batch.unpersist()
        self._ledger.write(batch_id, counts)
        seconds = round(time.monotonic() - begin, 3)
        written = Batch(batch_id, counts.messages - before.messages, put_aside, seconds)
        self.batches.append(written)
        if self._on_batch is not None:
            self._on_batch(written)

    def _put_aside(self, bad: DataFrame, batch_id: int) -> None:
        settings = self._settings
        if settings.dlq_group is None:
            chosen = bad.select(*METADATA, "body", REASON)
            write_batch_parquet(chosen, batch_id, settings.quarantine)
            return
        # Dead letters keep their properties; the reason comes to them.
        with_reason = f"map_concat(map_filter(properties, (k, v) -> k != '{REASON}'), "
        with_reason += f"map('{REASON}', {REASON})) as properties"
        letters = to_dlq(bad.selectExpr(*METADATA, "body", with_reason), settings.dlq_group)
        writer = letters.write.format("rocketmq").option("nameServer", settings.name_server)
        writer.options(**_security(settings)).mode("append").save()


def _compact(session: SparkSession, settings: IngestSettings) -> Compaction:
    compact(session, settings.quarantine, checkpoint=settings.checkpoint)
    return compact(session, settings.table, checkpoint=settings.checkpoint, partition_by=DATE)


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


def _check_columns(settings: IngestSettings, schema: BodySchema | None) -> None:
    fields: Sequence[str] = () if schema is None else schema.struct.names
    taken = {name.lower() for name in (*METADATA, "body", DATE, REASON, "batchId")}
    clashing = [name for name in fields if name.lower() in taken]
    if clashing:
        raise ConfigError(
            f"the body's field {clashing[0]!r} would clash with the column of that name; fields "
            f"must not be called {', '.join((*METADATA, 'body', DATE, REASON))}"
        )
    if settings.date_column not in (*METADATA, *fields):
        raise ConfigError(
            f"there is no column {settings.date_column!r} to take the date from; there are "
            f"{', '.join((*METADATA, *fields))}"
        )


def _claim(files: Files, settings: IngestSettings, schema: BodySchema | None) -> Mapping[str, Any]:
    """Check that the directory is new or for this ingest, and write down where it begins.

    Returns: the offsets at which the first batch begins or began. They are resolved here, so that
    it is known how many messages must come.
    Raises: ConfigError if the directory is for something else; what the data source raises.
    """
    path = f"{settings.root}/ingest.json"
    claim = {
        "topic": settings.topic,
        "dateColumn": settings.date_column,
        "schema": None if schema is None else schema.struct.simpleString(),
        "required": [] if schema is None else list(schema.required),
    }
    text = files.read_text(path)
    before: dict[str, Any] = {} if text is None else json.loads(text)
    for name, value in claim.items():
        if before and before.get(name) != value:
            raise ConfigError(
                f"{settings.out} was begun with {name} {before.get(name)!r}, and this run has "
                f"{value!r}; choose another directory"
            )
    if "start" in before and files.list(f"{settings.checkpoint}/offsets"):
        start: Mapping[str, Any] = before["start"]
        return start
    start = encode_offsets(QueueWatch(settings.parse_options()).first_offsets())
    files.write_text(path, json.dumps({**claim, "start": start}, indent=2))
    return start

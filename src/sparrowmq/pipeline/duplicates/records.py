"""Who consumed what when: the records that the job `duplicates` reads, and where they come from.

**Records** (Parquet or JSON lines, a row a delivery):

| column | type | meaning |
|---|---|---|
| consumerGroup | string | the group |
| clientId | string | the member |
| consumedTimestamp | timestamp | when its listener was called |
| topic, brokerName, queueId, queueOffset | string, string, int, bigint | the message's place |
| msgId | string | its id, where the place is unknown |
| reconsumeTimes | int | optional: how often it was sent back before; 0 if null |

A message is its place, or its id where there is no place. A delivery after RECONSUME_LATER was
asked for and is no duplicate: it has another `reconsumeTimes`.

**Produced** messages (optional): topic, brokerName, queueId, queueOffset, msgId as above; the table
that the job `ingest` writes will do. **Events** (optional): consumerGroup, eventTimestamp, event,
strategy.

**Message trace** of RocketMQ's clients: every body of topic RMQ_SYS_TRACE_TOPIC holds entries that
end with U+0002 and have fields between U+0001. A Pub entry names time, region, group, topic, msgId
...; a SubBefore entry time, region, group, request id, msgId, retry times, keys. Entries name no
queue and no client id: a message is its msgId, and a member is the address that the trace came
from. Source: TraceDataEncoder.java of RocketMQ 4.9.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from sparrowmq.errors import ConfigError
from sparrowmq.pipeline.tables import read_table, select_columns

RECORD_COLUMNS = {
    "consumerGroup": "string",
    "clientId": "string",
    "consumedTimestamp": "timestamp",
}
PLACE_COLUMNS = {
    "topic": "string",
    "brokerName": "string",
    "queueId": "int",
    "queueOffset": "bigint",
    "msgId": "string",
}
RECORD_OPTIONAL = {**PLACE_COLUMNS, "reconsumeTimes": "int"}
EVENT_COLUMNS = {
    "consumerGroup": "string",
    "eventTimestamp": "timestamp",
    "event": "string",
}
EVENT_OPTIONAL = {"strategy": "string"}
TRACE_COLUMNS = {"body": "binary", "bornHost": "string"}
# Records and produced messages in one table; of these `consumedTimestamp` is when they were sent.
ENTRY_COLUMNS = {"isProduced": "boolean", **RECORD_COLUMNS, **RECORD_OPTIONAL}


def read_records(session: SparkSession, path: str) -> DataFrame:
    """Read consumption records and give each message its key.

    Raises: ConfigError if the path is no such table, or has rows that name no message.
    """
    found = read_table(session, path, RECORD_COLUMNS, optional=RECORD_OPTIONAL)
    return with_key(found, what=path)


def stream_records(session: SparkSession, path: str) -> DataFrame:
    """Read consumption records as they come, as entries (`ENTRY_COLUMNS`).

    Raises: ConfigError as `tables.read_table`.
    """
    found = read_table(session, path, RECORD_COLUMNS, optional=RECORD_OPTIONAL, is_streamed=True)
    return found.selectExpr("false as isProduced", "*")


def stream_trace(session: SparkSession, name_server: str, topic: str) -> DataFrame:
    """Read message trace from its beginning on, as entries (`ENTRY_COLUMNS`)."""
    source = session.readStream.format("rocketmq").option("nameServer", name_server)
    source = source.option("topic", topic).option("startingOffsets", "earliest")
    return trace_entries(source.option("columns", ",".join(TRACE_COLUMNS)).load())


def read_trace(session: SparkSession, name_server: str, topic: str) -> tuple[DataFrame, DataFrame]:
    """Read message trace: the records and the produced messages.

    Raises: ConfigError if nothing was consumed.
    """
    source = session.read.format("rocketmq").option("nameServer", name_server)
    source = source.option("topic", topic).option("columns", ",".join(TRACE_COLUMNS))
    return split_trace(source.load())


def read_produced(session: SparkSession, path: str) -> DataFrame:
    """Read what was produced and give each message its key.

    Raises: ConfigError as `read_records`.
    """
    found = read_table(session, path, {"topic": "string"}, optional=PLACE_COLUMNS)
    return with_key(found, what=path)


def read_events(session: SparkSession, path: str) -> DataFrame:
    """Read rebalance events.

    Raises: ConfigError if the path is no such table.
    """
    return read_table(session, path, EVENT_COLUMNS, optional=EVENT_OPTIONAL)


def split_trace(trace: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Return the records and the produced messages of trace messages.

    Args:
        trace: messages of the trace topic, with `body` and `bornHost`.

    Raises: ConfigError if a column is missing or there is no message.
    """
    chosen = select_columns(trace, TRACE_COLUMNS, what="the trace topic")
    records, produced = split_entries(trace_entries(chosen), what="the trace")
    if records.isEmpty():
        raise ConfigError("the trace has no rows: nothing was consumed")
    return records, produced


def trace_entries(trace: DataFrame) -> DataFrame:
    """Return the entries of trace messages, a row a delivery or produced message."""
    entries = trace.select(
        "bornHost", F.explode(F.split(F.decode("body", "UTF-8"), "\u0002")).alias("entry")
    ).select("bornHost", F.split("entry", "\u0001").alias("fields"))

    def of(index: int) -> Column:
        return F.get("fields", index)

    has_succeeded = F.when(F.size("fields") == 13, of(12)).otherwise(of(13)) == "true"
    is_produced = (of(0) == "Pub") & (F.size("fields") >= 13) & has_succeeded
    is_consumed = (of(0) == "SubBefore") & (F.size("fields") >= 7)
    columns = {
        "isProduced": of(0) == "Pub",
        "consumerGroup": F.when(is_consumed, of(3)),
        "clientId": F.when(is_consumed, F.col("bornHost")),
        "consumedTimestamp": F.timestamp_millis(of(1).cast("bigint")),
        "topic": F.when(is_produced, of(4)),
        "msgId": of(5),
        "reconsumeTimes": F.when(is_consumed, of(6)).cast("int"),
    }
    return entries.where(is_produced | is_consumed).select(
        [
            columns.get(name, F.lit(None)).cast(kind).alias(name)
            for name, kind in ENTRY_COLUMNS.items()
        ]
    )


def split_entries(entries: DataFrame, *, what: str) -> tuple[DataFrame, DataFrame]:
    """Return the records and the produced messages among entries.

    A record without a topic, as trace has it, gets that of the message with its id.
    Raises: ConfigError if an entry names no message.
    """
    produced = entries.where("isProduced").select(*PLACE_COLUMNS, "consumedTimestamp").distinct()
    by_id = produced.groupBy("msgId").agg(F.first("topic").alias("producedTopic"))
    records = (
        entries.where("not isProduced")
        .join(by_id, "msgId", "left")
        .withColumn("topic", F.coalesce("topic", "producedTopic"))
        .select(*RECORD_COLUMNS, *RECORD_OPTIONAL)
    )
    return with_key(records, what=what), with_key(produced, what=what)


def with_key(frame: DataFrame, *, what: str) -> DataFrame:
    """Give each row the key of its message; raises ConfigError if a row names no message."""
    place = F.concat_ws("|", "topic", "brokerName", "queueId", "queueOffset")
    key = F.when(F.col("queueOffset").isNotNull(), place).otherwise(F.col("msgId"))
    keyed = frame.withColumn("messageKey", key)
    if not keyed.where("messageKey is null").isEmpty():
        raise ConfigError(
            f"{what} has rows that name no message: neither queueOffset (with topic, brokerName "
            f"and queueId) nor msgId"
        )
    return keyed

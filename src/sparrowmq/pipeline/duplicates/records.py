"""Reads the inputs of the job `duplicates`: consumption records, produced messages and events.

**Records** (Parquet or JSON lines, a row for each delivery):

| column | type | meaning |
|---|---|---|
| consumerGroup | string | the group |
| clientId | string | the member |
| consumedTimestamp | timestamp | the time of the listener's call |
| topic, brokerName, queueId, queueOffset | string, string, int, bigint | the message's place |
| msgId | string | the message's id, if the place is unknown |
| reconsumeTimes | int | optional: how often the message was sent back before; 0 if null |

A message's key is its place, or its id if it has no place. A delivery after RECONSUME_LATER has
another `reconsumeTimes`, and so is not a duplicate: the listener asked for it.

**Produced** messages (optional): topic, brokerName, queueId, queueOffset and msgId as above, such
as in the table of the job `ingest`. **Events** (optional): consumerGroup, eventTimestamp, event,
strategy.

**Message trace** of RocketMQ's clients: every body of the topic RMQ_SYS_TRACE_TOPIC has entries
that end with U+0002 and fields that are separated by U+0001. A Pub entry has time, region, group,
topic, msgId ...; a SubBefore entry has time, region, group, request id, msgId, retry times, keys.
Entries have no queue and no client id: a message's key is its msgId, and a member's key is the
address from which the trace was sent. Source: TraceDataEncoder.java of RocketMQ 4.9.
Tests: pipeline/test_duplicates.py.
"""

from __future__ import annotations

import logging

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from sparrowmq.errors import ConfigError
from sparrowmq.model.message import TIMESTAMP_MS_MAX
from sparrowmq.pipeline.input_tables import check_complete, read_table, select_columns

_LOG = logging.getLogger("sparrowmq.pipeline")

RECORD_COLUMNS = {
    "consumerGroup": "string",
    "clientId": "string",
    "consumedTimestamp": "timestamp_ltz",
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
    "eventTimestamp": "timestamp_ltz",
    "event": "string",
}
EVENT_OPTIONAL = {"strategy": "string"}
TRACE_COLUMNS = {"body": "binary", "bornHost": "string"}
# Records and produced messages in one table; `consumedTimestamp` of a produced message is the time
# of its sending.
ENTRY_COLUMNS = {"isProduced": "boolean", **RECORD_COLUMNS, **RECORD_OPTIONAL}


def read_records(session: SparkSession, path: str) -> DataFrame:
    """Read consumption records; add each message's key.

    Raises: ConfigError if the path is no such table, or if a row has no group, member or time, or
        neither place nor id.
    """
    found = read_table(session, path, RECORD_COLUMNS, optional=RECORD_OPTIONAL)
    return with_key(check_complete(found, RECORD_COLUMNS, what=path), what=path)


def stream_records(session: SparkSession, path: str) -> DataFrame:
    """Return a stream of consumption records as entries (`ENTRY_COLUMNS`).

    Raises: ConfigError, as `tables.read_table`.
    """
    found = read_table(session, path, RECORD_COLUMNS, optional=RECORD_OPTIONAL, is_streamed=True)
    return found.selectExpr("false as isProduced", "*")


def stream_trace(session: SparkSession, name_server: str, topic: str) -> DataFrame:
    """Return a stream of message trace, from its beginning, as entries (`ENTRY_COLUMNS`)."""
    source = session.readStream.format("rocketmq").option("nameServer", name_server)
    source = source.option("topic", topic).option("startingOffsets", "earliest")
    return trace_entries(source.option("columns", ",".join(TRACE_COLUMNS)).load())


def read_trace(session: SparkSession, name_server: str, topic: str) -> tuple[DataFrame, DataFrame]:
    """Read message trace; return the records and the produced messages.

    Raises: ConfigError if the trace has no consumed message.
    """
    source = session.read.format("rocketmq").option("nameServer", name_server)
    source = source.option("topic", topic).option("columns", ",".join(TRACE_COLUMNS))
    return split_trace(source.load())


def read_produced(session: SparkSession, path: str) -> DataFrame:
    """Read produced messages; add each message's key.

    Raises: ConfigError, as `read_records`.
    """
    found = read_table(session, path, {"topic": "string"}, optional=PLACE_COLUMNS)
    return with_key(check_complete(found, ("topic",), what=path), what=path)


def read_events(session: SparkSession, path: str) -> DataFrame:
    """Read rebalance events.

    Raises: ConfigError if the path is no such table, or if a row has no group, time or event.
    """
    found = read_table(session, path, EVENT_COLUMNS, optional=EVENT_OPTIONAL)
    return check_complete(found, EVENT_COLUMNS, what=path)


def split_trace(trace: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Return the records and the produced messages in trace messages.

    Args:
        trace: the messages of the trace topic, with `body` and `bornHost`.

    Raises: ConfigError if a column is missing, or if there is no message.
    """
    chosen = select_columns(trace, TRACE_COLUMNS, what="the trace topic")
    entries = trace_entries(chosen)
    records, produced = split_entries(entries, what="the trace")
    if unreadable := entries.where("isProduced is null").count():
        _LOG.warning("%d entries of the trace cannot be read, and are left out", unreadable)
    if records.isEmpty():
        raise ConfigError("the trace has no rows: nothing was consumed")
    return records, produced


def trace_entries(trace: DataFrame) -> DataFrame:
    """Return the entries of trace messages: a row for each delivery and each produced message.

    Clients may write anything to the topic. Of an entry that cannot be read `isProduced` is null.
    """
    body = F.make_valid_utf8(F.col("body").cast("string"))
    entries = trace.select("bornHost", F.explode(F.split(body, "\u0002")).alias("entry")).select(
        "bornHost", F.split("entry", "\u0001").alias("fields")
    )

    def of(index: int) -> Column:
        return F.get("fields", index)

    at_ms, times = of(1).try_cast("bigint"), of(6).try_cast("int")
    has_failed = F.when(F.size("fields") == 13, of(12)).otherwise(of(13)) != "true"
    has_time = at_ms.between(0, TIMESTAMP_MS_MAX)
    is_produced = (of(0) == "Pub") & (F.size("fields") >= 13) & has_time
    is_consumed = (of(0) == "SubBefore") & (F.size("fields") >= 7) & has_time & times.isNotNull()
    columns = {
        "isProduced": F.when(is_produced, True).when(is_consumed, False),
        "consumerGroup": F.when(is_consumed, of(3)),
        "clientId": F.when(is_consumed, F.col("bornHost")),
        "consumedTimestamp": F.when(has_time, F.timestamp_millis(at_ms)),
        "topic": F.when(is_produced, of(4)),
        "msgId": of(5),
        "reconsumeTimes": F.when(is_consumed, times),
    }
    is_of_job = of(0).isin("Pub", "SubBefore") & ~F.coalesce(is_produced & has_failed, F.lit(False))
    return entries.where(is_of_job).select(
        [
            columns.get(name, F.lit(None)).cast(kind).alias(name)
            for name, kind in ENTRY_COLUMNS.items()
        ]
    )


def split_entries(entries: DataFrame, *, what: str) -> tuple[DataFrame, DataFrame]:
    """Return the records and the produced messages among entries.

    A record without a topic, as in a trace, gets the topic of the produced message with its id.

    Raises: ConfigError if an entry has neither place nor id.
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
    """Add the key of each row's message. Raises: ConfigError if a row has neither place nor id."""
    bar = F.lit("|")
    # Null where a part is: by the others alone, messages of other queues would be this one.
    place = F.concat("topic", bar, "brokerName", bar, "queueId", bar, "queueOffset")
    keyed = frame.withColumn("messageKey", F.coalesce(place, "msgId"))
    if not keyed.where("messageKey is null").isEmpty():
        raise ConfigError(
            f"{what} has rows that name no message: neither queueOffset (with topic, brokerName "
            f"and queueId) nor msgId"
        )
    return keyed

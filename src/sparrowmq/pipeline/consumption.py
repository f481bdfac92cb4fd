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

from typing import TYPE_CHECKING

from sparrowmq.errors import ConfigError
from sparrowmq.pipeline.tables import read_table, select_columns

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

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


def read_records(session: SparkSession, path: str) -> DataFrame:
    """Read consumption records and give each message its key.

    Raises: ConfigError if the path is no such table, or has rows that name no message.
    """
    found = read_table(session, path, RECORD_COLUMNS, optional=RECORD_OPTIONAL)
    return _with_key(found, what=path)


def read_produced(session: SparkSession, path: str) -> DataFrame:
    """Read what was produced and give each message its key.

    Raises: ConfigError as `read_records`.
    """
    found = read_table(session, path, {"topic": "string"}, optional=PLACE_COLUMNS)
    return _with_key(found, what=path)


def read_events(session: SparkSession, path: str) -> DataFrame:
    """Read rebalance events.

    Raises: ConfigError if the path is no such table.
    """
    return read_table(session, path, EVENT_COLUMNS, optional=EVENT_OPTIONAL)


def split_trace(trace: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Return the records and the produced messages that trace messages tell.

    Args:
        trace: messages of the trace topic, with `body` and `bornHost`.

    Raises: ConfigError if a column is missing or there is no message.
    """
    from pyspark.sql import functions as F  # noqa: N812  (the name that Spark's users know)

    chosen = select_columns(trace, TRACE_COLUMNS, what="the trace topic")
    entries = chosen.select(
        "bornHost", F.explode(F.split(F.decode("body", "UTF-8"), "\u0002")).alias("entry")
    ).select("bornHost", F.split("entry", "\u0001").alias("fields"))

    def of(index: int) -> Column:
        return F.get("fields", index)

    has_succeeded = F.when(F.size("fields") == 13, of(12)).otherwise(of(13)) == "true"
    published = (
        entries.where((of(0) == "Pub") & (F.size("fields") >= 13) & has_succeeded)
        .select(of(4).alias("topic"), of(5).alias("msgId"))
        .distinct()
    )
    consumed = entries.where((of(0) == "SubBefore") & (F.size("fields") >= 7)).select(
        of(3).alias("consumerGroup"),
        F.col("bornHost").alias("clientId"),
        F.timestamp_millis(of(1).cast("bigint")).alias("consumedTimestamp"),
        of(5).alias("msgId"),
        of(6).cast("int").alias("reconsumeTimes"),
    )
    records = consumed.join(published, "msgId", "left")
    produced = published.select(
        [
            F.col(name) if name in published.columns else F.lit(None).cast(kind).alias(name)
            for name, kind in PLACE_COLUMNS.items()
        ]
    )
    found = select_columns(
        records, RECORD_COLUMNS, optional=RECORD_OPTIONAL, what="the trace's SubBefore entries"
    )
    return _with_key(found, what="the trace"), _with_key(produced, what="the trace")


def _with_key(frame: DataFrame, *, what: str) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812  (the name that Spark's users know)

    place = F.concat_ws("|", "topic", "brokerName", "queueId", "queueOffset")
    key = F.when(F.col("queueOffset").isNotNull(), place).otherwise(F.col("msgId"))
    keyed = frame.withColumn("messageKey", key)
    if not keyed.where("messageKey is null").isEmpty():
        raise ConfigError(
            f"{what} has rows that name no message: neither queueOffset (with topic, brokerName "
            f"and queueId) nor msgId"
        )
    return keyed

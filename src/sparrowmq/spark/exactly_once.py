"""Rows of a read without those that a write with `exactlyOnce` has sent again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparrowmq.errors import ConfigError
from sparrowmq.spark.row_encoding import PROPERTY_WRITE_ID

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_COLUMNS = ("topic", "brokerName", "queueId", "queueOffset", "properties")
_ID = "__write_id"
_READ_TIME = "__read_timestamp"


def exactly_once(frame: DataFrame, *, within: str = "1 day") -> DataFrame:
    """Return the rows of a read, each message once, however often its write was repeated.

    Messages without the id of `exactlyOnce` are all kept. A stream keeps ids in Spark's state store
    for `within`, at most twice as long; time counts from the micro-batch that reads a message, so
    no message is late and none is lost.

    Args:
        frame: rows of a read, batch or stream, with the columns topic, brokerName, queueId,
            queueOffset and properties, as the profiles default and full have them.
        within: of a stream: how far apart two of one id may be read; an interval of Spark's.
            Longer than the query that writes may be down.

    Raises: ConfigError if a column is missing.
    """
    missing = [name for name in _COLUMNS if name not in frame.columns]
    if missing:
        raise ConfigError(
            f"exactly_once needs the column{'s' * (len(missing) > 1)} {', '.join(missing)}; call "
            f"it on what load() returns, before any select, with profile default or full"
        )
    place = "concat_ws(' ', brokerName, queueId, queueOffset)"
    id_of = f"concat_ws(' ', topic, coalesce(properties['{PROPERTY_WRITE_ID}'], {place})) AS {_ID}"
    if not frame.isStreaming:
        return frame.selectExpr("*", id_of).dropDuplicates([_ID]).drop(_ID)
    return (
        frame.selectExpr("*", id_of, f"current_timestamp() AS {_READ_TIME}")
        .withWatermark(_READ_TIME, within)
        .dropDuplicatesWithinWatermark([_ID])
        .drop(_ID, _READ_TIME)
    )

"""Rows of a read without the repetitions of a write with `exactlyOnce`. Tests: test_sink.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparrowmq.errors import ConfigError
from sparrowmq.model.message import PROPERTY_UNIQ_KEY
from sparrowmq.spark.row_encoding import PROPERTY_WRITE_ID

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_COLUMNS = ("topic", "brokerName", "queueId", "queueOffset", "properties")
_ID = "__write_id"
_READ_TIME = "__read_timestamp"


def exactly_once(frame: DataFrame, *, within: str = "1 day") -> DataFrame:
    """Return the rows of a read with each message once, even if its write was repeated.

    All messages without an id of `exactlyOnce` are kept. A stream keeps ids in Spark's state store
    for `within`, and at most twice as long. The time counts from the micro-batch that reads a
    message, so no message is late and none is lost.

    Args:
        frame: rows of a read, batch or stream, with the columns topic, brokerName, queueId,
            queueOffset and properties, as in the profiles default and full.
        within: for a stream, the longest time between two reads of one id, as an interval of
            Spark's. It must be longer than the writing query may be down.

    Raises: ConfigError if a column is missing.
    """
    missing = [name for name in _COLUMNS if name not in frame.columns]
    if missing:
        raise ConfigError(
            f"exactly_once needs the column{'s' * (len(missing) > 1)} {', '.join(missing)}; call "
            f"it on what load() returns, before any select, with profile default or full"
        )
    # A queue that was lost and filled again has other messages at the same places.
    place = f"concat_ws(' ', brokerName, queueId, queueOffset, properties['{PROPERTY_UNIQ_KEY}'])"
    id_of = f"concat_ws(' ', topic, coalesce(properties['{PROPERTY_WRITE_ID}'], {place})) AS {_ID}"
    if not frame.isStreaming:
        return frame.selectExpr("*", id_of).dropDuplicates([_ID]).drop(_ID)
    return (
        frame.selectExpr("*", id_of, f"current_timestamp() AS {_READ_TIME}")
        .withWatermark(_READ_TIME, within)
        .dropDuplicatesWithinWatermark([_ID])
        .drop(_ID, _READ_TIME)
    )

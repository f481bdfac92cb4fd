"""Rows of a read, shaped for a write to a consumer group's dead letter topic.

Tests: test_sink.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparrowmq.model.message import BODY_BYTES_MAX, RESERVED_PROPERTIES
from sparrowmq.model.names import DLQ_GROUP_TOPIC_PREFIX, check_group
from sparrowmq.protocol.properties import PROPERTIES_BYTES_MAX
from sparrowmq.protocol.subscription import TAG_SEPARATOR
from sparrowmq.spark.row_encoding import PROPERTY_WRITE_ID
from sparrowmq.store.record_check import CRC_PROPERTY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# MessageConst.PROPERTY_DLQ_ORIGIN_TOPIC and its neighbour.
_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"
# The names of these and a reason, the letter's own id, and its namespace.
_OWN_BYTES = 512
_LEFT_OUT = (*RESERVED_PROPERTIES, PROPERTY_WRITE_ID, CRC_PROPERTY)


def to_dlq(frame: DataFrame, group: str) -> DataFrame:
    """Return rows to write to `%DLQ%group`, with two properties that name their origin.

    Args:
        frame: rows of a read with the columns topic, msgId, tags, keys, body and properties, as in
            the profiles default and full.

    Raises: ConfigError if no group may have this name.
    """
    topic = DLQ_GROUP_TOPIC_PREFIX + check_group(group)
    left_out = ", ".join(f"'{name}'" for name in sorted(_LEFT_OUT))
    own = f"map_filter(coalesce(properties, map()), (name, value) -> name NOT IN ({left_out}))"
    origins = f"'{_ORIGIN_TOPIC}', '{_ORIGIN_MESSAGE_ID}'"
    kept = f"map_filter({own}, (name, value) -> name NOT IN ({origins}))"
    # A row that was a dead letter before keeps its first origin.
    origin = (
        f"map('{_ORIGIN_TOPIC}', coalesce(properties['{_ORIGIN_TOPIC}'], topic), "
        f"'{_ORIGIN_MESSAGE_ID}', coalesce(properties['{_ORIGIN_MESSAGE_ID}'], msgId))"
    )
    return frame.selectExpr(
        f"'{topic}' AS topic",
        "body",
        "tags",
        "keys",
        f"map_concat({kept}, {origin}) AS properties",
    )


def can_be_dead_letter(reason: str) -> str:
    """Return the condition, in SQL, that a client may send a row of a read as a dead letter.

    Args:
        reason: the column whose text becomes a property, too.
    """
    return (
        f"length(body) BETWEEN 1 AND {BODY_BYTES_MAX} "
        f"AND NOT coalesce(contains(tags, '{TAG_SEPARATOR}'), false) "
        f"AND octet_length(concat_ws('', map_keys(properties), map_values(properties))) "
        f"+ 2 * size(properties) + octet_length(concat({reason}, topic, msgId)) "
        f"<= {PROPERTIES_BYTES_MAX - _OWN_BYTES}"
    )

"""Targets: what Spark's source reads."""

from __future__ import annotations

import contextlib

from fuzz.inputs import choose, to_text
from sparrowmq.errors import ConfigError, RemoteProtocolError
from sparrowmq.protocol.record import decode_messages
from sparrowmq.spark.columns import arrow_schema, decode_columns, find_starts
from sparrowmq.spark.offsets import (
    decode_offsets,
    encode_offsets,
    parse_offsets,
    parse_queues,
    parse_timestamps,
)

SCHEMA = arrow_schema(["topic", "queueId", "queueOffset", "body", "tags", "storeSize"])


def check_columns(data: bytes) -> None:
    """Columns are those of the messages, or the answer is refused."""
    decoded = decode_messages(data, broker_name="b")
    try:
        batches = list(
            decode_columns(
                data, find_starts(data), schema=SCHEMA, broker_name="b", on_unreadable=_refuse
            )
        )
    except RemoteProtocolError:
        return
    rows = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
    if decoded.end == len(data) and decoded.failure is None:
        assert rows == [
            (m.topic, m.queue_id, m.queue_offset, m.body, m.tags, m.store_size)
            for m in decoded.messages
        ]


def _refuse(_: int, reason: str) -> None:
    raise RemoteProtocolError(reason)


def check_offsets_json(data: bytes) -> None:
    """Offsets in options and checkpoints are read or refused, and survive writing."""
    parse, rest = choose(data, (parse_offsets, parse_timestamps, parse_queues))
    text = to_text(rest)
    with contextlib.suppress(ConfigError):
        parse(text)
    with contextlib.suppress(ConfigError):
        offsets = parse_offsets(text)
        assert offsets == decode_offsets(encode_offsets(offsets))

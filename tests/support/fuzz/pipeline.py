"""Targets: what Spark's source reads."""

from __future__ import annotations

import contextlib

from fuzz.inputs import choose, to_messages, to_text
from sparrowmq.errors import ConfigError, RemoteProtocolError
from sparrowmq.spark.checkpoint_offsets import (
    decode_offsets,
    encode_offsets,
    parse_offsets,
    parse_queues,
    parse_timestamps,
)
from sparrowmq.spark.columns import arrow_schema, decode_columns, find_starts

SCHEMA = arrow_schema(["topic", "queueId", "queueOffset", "body", "tags", "storeSize"])


def check_columns(data: bytes) -> None:
    """Columns are those of the messages, or the answer is refused."""
    messages, is_whole = to_messages(data)
    unreadable: list[int] = []
    rows: list[dict[str, object]] = []
    try:
        for batch in decode_columns(
            data,
            find_starts(data),
            schema=SCHEMA,
            broker_name="b",
            on_unreadable=lambda at, _: unreadable.append(at),
        ):
            batch.validate(full=True)
            rows += batch.to_pylist()
    except RemoteProtocolError:
        return
    if is_whole:
        assert unreadable == []
        expected = [
            (m.topic, m.queue_id, m.queue_offset, m.body, m.tags, m.store_size) for m in messages
        ]
        assert [tuple(row.values()) for row in rows] == expected


def check_offsets_json(data: bytes) -> None:
    """Offsets in options and checkpoints are read or refused, and survive writing."""
    parse, rest = choose(data, (parse_offsets, parse_timestamps, parse_queues))
    text = to_text(rest)
    with contextlib.suppress(ConfigError):
        parse(text)
    with contextlib.suppress(ConfigError):
        offsets = parse_offsets(text)
        assert offsets == decode_offsets(encode_offsets(offsets))

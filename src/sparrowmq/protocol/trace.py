"""Message trace as RocketMQ's clients write it to RMQ_SYS_TRACE_TOPIC.

A body is entries, each a line of fields between U+0001 that ends with U+0002; the message's keys
name the ids and keys of the messages that its entries are about, so that they are found by them.
Source: TraceDataEncoder.encoderFromContextBean.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

CONTENT_SPLITTER = "\x01"
FIELD_SPLITTER = "\x02"


class TracedType(IntEnum):
    """What kind of message was sent. Source: MessageType.java, by its ordinals."""

    NORMAL = 0
    TRANSACTION_HALF = 1
    TRANSACTION_COMMIT = 2
    DELAY = 3
    ORDER = 4


class ConsumedCode(IntEnum):
    """What became of a delivery. Source: ConsumeReturnType.java, by its ordinals."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURN_NULL = 3
    FAILED = 4


class TraceEntry(NamedTuple):
    """One entry, and the keys under which it must be found."""

    text: str
    keys: tuple[str, ...]


def published(
    *,
    timestamp_ms: int,
    cost_ms: int,
    region: str,
    group: str,
    topic: str,
    msg_id: str,
    offset_msg_id: str,
    tags: str,
    keys: Sequence[str],
    store_host: str,
    body_bytes: int,
    kind: TracedType,
    is_success: bool,
) -> TraceEntry:
    """Tell of a message that was sent.

    Args:
        timestamp_ms: when the send began, by the wall clock.
        cost_ms: until its answer.
        store_host: the broker, as `ip:port`.
    """
    fields = (
        *("Pub", timestamp_ms, region, group, topic, msg_id, tags, " ".join(keys), store_host),
        *(body_bytes, cost_ms, int(kind), offset_msg_id, _java(is_success)),
    )
    return _entry(fields, msg_id, keys)


def delivered(
    *,
    timestamp_ms: int,
    region: str,
    group: str,
    request_id: str,
    msg_id: str,
    reconsume_times: int,
    keys: Sequence[str],
) -> TraceEntry:
    """Tell of a message that a listener is about to get.

    Args:
        request_id: of this call of the listener.
    """
    fields = (
        *("SubBefore", timestamp_ms, region, group, request_id, msg_id, reconsume_times),
        " ".join(keys),
    )
    return _entry(fields, msg_id, keys)


def consumed(
    *,
    timestamp_ms: int,
    cost_ms: int,
    group: str,
    request_id: str,
    msg_id: str,
    keys: Sequence[str],
    code: ConsumedCode,
) -> TraceEntry:
    """Tell of a message that a listener got.

    Args:
        timestamp_ms: when the listener was called.
        cost_ms: what the call took for each of its messages.
        request_id: as in `delivered`.
    """
    fields = (
        *("SubAfter", request_id, msg_id, cost_ms, _java(code is ConsumedCode.SUCCESS)),
        *(" ".join(keys), int(code), timestamp_ms, group),
    )
    return _entry(fields, msg_id, keys)


def _entry(fields: Sequence[object], msg_id: str, keys: Sequence[str]) -> TraceEntry:
    text = CONTENT_SPLITTER.join(map(str, fields)) + FIELD_SPLITTER
    return TraceEntry(text, (msg_id, *keys))


def _java(value: bool) -> str:
    return "true" if value else "false"

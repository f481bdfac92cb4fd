"""Message trace as RocketMQ's clients write it to RMQ_SYS_TRACE_TOPIC.

A body is a sequence of entries. U+0001 separates the fields of an entry, U+0002 ends the entry. The
keys of the trace message are the ids and keys of the messages in its entries: a search by a
message's id or key finds the trace message.
Source: TraceDataEncoder.encoderFromContextBean, decoderFromTraceDataString.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

CONTENT_SPLITTER = "\x01"
FIELD_SPLITTER = "\x02"


class TracedType(IntEnum):
    """The kind of a sent message. Source: MessageType.java, by its ordinals."""

    NORMAL = 0
    TRANSACTION_HALF = 1
    TRANSACTION_COMMIT = 2
    DELAY = 3
    ORDER = 4


class ConsumedCode(IntEnum):
    """The outcome of a delivery. Source: ConsumeReturnType.java, by its ordinals."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURN_NULL = 3
    FAILED = 4


class TraceEntry(NamedTuple):
    """One entry, and the keys by which a search finds the entry."""

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
    """Make the entry of a send.

    Args:
        timestamp_ms: the start of the send, in wall-clock milliseconds.
        cost_ms: the time until the answer.
        store_host: the broker's `ip:port`.
    """
    fields = (
        *("Pub", timestamp_ms, region, group, topic, msg_id, tags, _joined(keys), store_host),
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
    """Make the entry of a message before a listener's call.

    Args:
        request_id: the id of the listener's call.
    """
    fields = (
        *("SubBefore", timestamp_ms, region, group, request_id, msg_id, reconsume_times),
        _joined(keys),
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
    """Make the entry of a message after a listener's call.

    Args:
        timestamp_ms: the start of the call, in wall-clock milliseconds.
        cost_ms: the duration of the call divided by its messages.
        request_id: the id of the listener's call, as in `delivered`.
    """
    fields = (
        *("SubAfter", request_id, msg_id, cost_ms, _java(code is ConsumedCode.SUCCESS)),
        *(_joined(keys), int(code), timestamp_ms, group),
    )
    return _entry(fields, msg_id, keys)


def _entry(fields: Sequence[object], msg_id: str, keys: Sequence[str]) -> TraceEntry:
    text = CONTENT_SPLITTER.join(map(str, fields)) + FIELD_SPLITTER
    return TraceEntry(text, (msg_id, *keys))


def _joined(keys: Sequence[str]) -> str:
    """Return the field of the keys, as Java writes it.

    It is never empty: Java's reader splits an entry without its empty fields at the end. Where a
    delivery ends with such a field, the reader fails, and reads nothing of the whole trace message.
    """
    return " ".join(keys) or "null"


def _java(value: bool) -> str:
    return "true" if value else "false"


class SentEntry(NamedTuple):
    """A send succeeded or failed.

    Args:
        timestamp_ms: the start of the send, by the producer's wall clock.
        cost_ms: the time until the answer.
        store_host: the broker's `ip:port`.
    """

    timestamp_ms: int
    cost_ms: int
    group: str
    topic: str
    msg_id: str
    store_host: str
    is_success: bool


class DeliveredEntry(NamedTuple):
    """A listener's call with a message began; `request_id` names the call."""

    timestamp_ms: int
    group: str
    request_id: str
    msg_id: str
    reconsume_times: int


class ConsumedEntry(NamedTuple):
    """A listener's call with a message ended; `code` is None if the entry has none."""

    request_id: str
    msg_id: str
    cost_ms: int
    is_success: bool
    code: ConsumedCode | None


class TransactionEntry(NamedTuple):
    """A half message was committed or rolled back.

    Args:
        state: RocketMQ's name of the state, such as COMMIT_MESSAGE.
        is_checked: whether a broker had asked for the outcome.
    """

    timestamp_ms: int
    group: str
    topic: str
    msg_id: str
    state: str
    is_checked: bool


Traced: TypeAlias = SentEntry | DeliveredEntry | ConsumedEntry | TransactionEntry


def read_entries(body: bytes) -> Iterator[Traced]:
    """Yield the entries of a trace message's body, without those of other kinds or forms."""
    for line in body.decode("utf-8", "replace").split(FIELD_SPLITTER):
        kind, *fields = line.split(CONTENT_SPLITTER)
        try:
            entry = _READERS[kind](fields)
        except (KeyError, ValueError, IndexError):
            continue
        yield entry


def _read_published(fields: Sequence[str]) -> SentEntry:
    # Up to 4.1 no offset message id stands before the outcome.
    success = fields[12] if len(fields) > 12 else fields[11]
    return SentEntry(
        timestamp_ms=int(fields[0]),
        cost_ms=int(fields[9]),
        group=fields[2],
        topic=fields[3],
        msg_id=fields[4],
        store_host=fields[7],
        is_success=success == "true",
    )


def _read_delivered(fields: Sequence[str]) -> DeliveredEntry:
    return DeliveredEntry(
        timestamp_ms=int(fields[0]),
        group=fields[2],
        request_id=fields[3],
        msg_id=fields[4],
        reconsume_times=int(fields[5]),
    )


def _read_consumed(fields: Sequence[str]) -> ConsumedEntry:
    return ConsumedEntry(
        request_id=fields[0],
        msg_id=fields[1],
        cost_ms=int(fields[2]),
        is_success=fields[3] == "true",
        code=ConsumedCode(int(fields[5])) if len(fields) > 5 else None,
    )


def _read_ended(fields: Sequence[str]) -> TransactionEntry:
    return TransactionEntry(
        timestamp_ms=int(fields[0]),
        group=fields[2],
        topic=fields[3],
        msg_id=fields[4],
        state=fields[10],
        is_checked=fields[11] == "true",
    )


_READERS: Mapping[str, Callable[[Sequence[str]], Traced]] = MappingProxyType(
    {
        "Pub": _read_published,
        "SubBefore": _read_delivered,
        "SubAfter": _read_consumed,
        "EndTransaction": _read_ended,
    }
)

"""Which delayed messages a broker delivered before a crash, though its saved progress lacks them.

A delivery is a record of the log. The progress is saved once a second, behind the flush. After a
crash, a message that was due may therefore be in its real queue already. It is looked for there,
from its time on, by the id that its producer gave it. A message without an id comes twice then, and
so does one with more than `RECORDS_MAX` later records in its queue, or that was delivered while the
wall clock was ahead of the clock of the last record by more than `SET_BACK_MS`.

Differs from RocketMQ, whose brokers deliver such messages twice. Tests: test_delivered_before.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from sparrowmq.errors import ProtocolError
from sparrowmq.model.message import (
    PROPERTY_REAL_TOPIC,
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_UNIQ_KEY,
)
from sparrowmq.protocol.properties import parse_properties
from sparrowmq.protocol.record import Record, decode_record
from sparrowmq.store.message_store import MessageStore

# The last records of a queue that are looked at.
RECORDS_MAX = 4_096
# A clock that was set back by no more than this before the last record hides no delivery.
SET_BACK_MS = 10_000
_RECORDS_PER_READ, _BYTES_PER_READ = 256, 1 << 20
# Messages that have waited have their real topic as a property.
_MARK = f"{PROPERTY_REAL_TOPIC}\x01".encode()
# The id, the time, the attempts, the time of birth, and the body's checksum.
_Identity = tuple[str, str, int, int, int]


class DeliveredBefore:
    """The messages that were delivered before the start, by their real queues.

    Args:
        start_ms: when the broker started, on the wall clock.
        end: the offset behind the messages that waited at the start, in their topic.
    """

    def __init__(self, store: MessageStore, *, start_ms: int, end: int) -> None:
        self._end = end
        # The clock at the start may be behind, as of a machine that starts without the time.
        self._until_ms = max(start_ms, store.put_timestamp_ms) + SET_BACK_MS
        self._since_ms = start_ms - SET_BACK_MS
        self._store = store
        self._known: dict[tuple[str, int], set[_Identity | None]] = {}

    def is_over(self, offset: int, due_ms: int) -> bool:
        """Return whether no message from an offset and time on can have been delivered before."""
        return offset >= self._end or due_ms > self._until_ms

    def has(self, record: Record, *, due_ms: int) -> bool:
        """Return whether a message was delivered.

        Args:
            record: the message, with its real topic and queue.
            due_ms: its time. Of the messages of a queue, the one that is due first comes first.
        """
        if due_ms > self._until_ms:
            return False
        place = record.topic, record.queue_id
        known = self._known.get(place)
        if known is None:
            known = self._known[place] = self._read(*place, min(due_ms, self._since_ms))
        return bool(known) and _identity(record) in known

    def _read(self, topic: str, queue_id: int, since_ms: int) -> set[_Identity | None]:
        queues, known = self._store.queues, set[_Identity | None]()
        end = queues.max_offset(topic, queue_id)
        begin = queues.boundary(topic, queue_id, since_ms)
        offset = max(begin, end - RECORDS_MAX)
        while offset < end:
            found = queues.get(
                topic,
                queue_id,
                queue_offset=offset,
                count_max=_RECORDS_PER_READ,
                bytes_max=_BYTES_PER_READ,
            )
            if found.next_offset <= offset:
                break
            offset = found.next_offset
            if _MARK in found.records:
                known.update(map(_identity, _decode(found.records)))
        known.discard(None)
        return known


def _decode(records: bytes) -> Iterator[Record]:
    """Yield records up to a damaged one."""
    at = 0
    with suppress(ProtocolError):
        while at < len(records):
            record = decode_record(records, at, check_crc=False)
            at += record.size
            yield record


def _identity(record: Record) -> _Identity | None:
    properties = parse_properties(record.properties)
    msg_id = properties.get(PROPERTY_UNIQ_KEY)
    if not msg_id or PROPERTY_REAL_TOPIC not in properties:
        return None
    due, born_ms = properties.get(PROPERTY_TIMER_OUT_MS, ""), record.born_timestamp_ms
    return msg_id, due, record.reconsume_times, born_ms, record.body_crc

"""Turning a record into the bytes that go into the log, with the checksum of the whole record."""

from __future__ import annotations

from struct import Struct
from zlib import crc32

from sparrowmq.model.names import is_legal_name
from sparrowmq.protocol.properties import PROPERTY_SEPARATOR
from sparrowmq.protocol.record import TOPIC_BYTES_MAX, Record, encode_record, place_record
from sparrowmq.store.record_check import (
    CHECKSUMMED_PROPERTIES_SIZE_MAX,
    CRC_PROPERTY,
    CRC_PROPERTY_SIZE,
    encode_crc_property,
)

_SIZE = Struct(">i")
_PROPERTIES_SIZE = Struct(">H")
_SEPARATOR = ord(PROPERTY_SEPARATOR)
_CRC_ROOM = encode_crc_property(0)
_SEPARATOR_AND_CRC_ROOM = PROPERTY_SEPARATOR.encode() + _CRC_ROOM
# How a record with room for its checksum ends: behind other properties, or behind their length.
_ENDS_WITH_ROOM = (_SEPARATOR_AND_CRC_ROOM, _PROPERTIES_SIZE.pack(CRC_PROPERTY_SIZE) + _CRC_ROOM)


def encode_stored(record: Record, *, append_crc: bool) -> bytearray:
    """Encode a record but for what its place in the log decides; see `place_stored`.

    A checksum property that the record brings along, read from another place, is taken out of it.
    The new one is left out where the properties would become too long.

    Raises: LocalProtocolError if a field does not fit.
    """
    if CRC_PROPERTY in record.properties:
        record.properties = _without_crc(record.properties)
    buffer = encode_record(record)
    if not append_crc:
        return buffer
    properties = record.properties
    properties_size = len(properties) if properties.isascii() else len(properties.encode())
    if properties_size == 0 or buffer[-1] == _SEPARATOR:
        room = _CRC_ROOM
    else:
        room = _SEPARATOR_AND_CRC_ROOM
    if properties_size > CHECKSUMMED_PROPERTIES_SIZE_MAX:
        return buffer
    size = properties_size + len(room)
    _PROPERTIES_SIZE.pack_into(buffer, len(buffer) - properties_size - 2, size)
    buffer += room
    _SIZE.pack_into(buffer, 0, len(buffer))
    return buffer


def place_stored(
    buffer: bytearray, *, queue_offset: int, position: int, store_timestamp_ms: int
) -> None:
    """Fill in what the place in the log decides, the checksum last."""
    place_record(
        buffer,
        queue_offset=queue_offset,
        position=position,
        store_timestamp_ms=store_timestamp_ms,
    )
    if buffer.endswith(_ENDS_WITH_ROOM):
        crc_at = len(buffer) - CRC_PROPERTY_SIZE
        buffer[crc_at:] = encode_crc_property(crc32(memoryview(buffer)[:crc_at]))


def find_name_fault(topic: str, queue_id: int) -> str | None:
    """Return why topic and queue id cannot name a queue's directory, None if they can."""
    if not is_legal_name(topic) or len(topic) > TOPIC_BYTES_MAX:
        return f"the topic {topic[:40]!r} is not 1 to {TOPIC_BYTES_MAX} legal characters"
    if not 0 <= queue_id < 1 << 31:
        return f"the queue id {queue_id} is negative or too large"
    return None


def _without_crc(properties: str) -> str:
    pairs = properties.split(PROPERTY_SEPARATOR)
    return PROPERTY_SEPARATOR.join(p for p in pairs if not p.startswith(CRC_PROPERTY + "\x01"))

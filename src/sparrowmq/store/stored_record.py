"""Encode a record as the bytes of the log, each byte once.

This is part of the broker's hottest path (benchmarks/broker.py). The sizes are added up first, so
that head, body, topic, properties and both checksums are joined without a second pass.
Tests: test_message_batch.py.
"""

from __future__ import annotations

from struct import Struct
from zlib import crc32

from sparrowmq.errors import LocalProtocolError
from sparrowmq.model.names import is_legal_name
from sparrowmq.protocol import speedups
from sparrowmq.protocol.headers import SendMessageRequestHeader
from sparrowmq.protocol.properties import PROPERTIES_BYTES_MAX, PROPERTY_SEPARATOR
from sparrowmq.protocol.record import (
    MAGIC_V1,
    SYS_FLAG_LAST_AT,
    TOPIC_BYTES_MAX,
    V6_BITS,
    Record,
    head_of,
    head_position,
    lay_out_record,
)
from sparrowmq.store.record_check import (
    CHECKSUMMED_PROPERTIES_SIZE_MAX,
    CRC_PROPERTY,
    CRC_PROPERTY_SIZE,
    encode_crc_property,
)

_SEPARATOR = PROPERTY_SEPARATOR.encode()
_pack_short = Struct(">H").pack
_RECONSUME_TIMES_AT = head_position("reconsume_times")
_CRC_NAME = f"{CRC_PROPERTY}\x01"


def stored_properties(record: Record, *, append_crc: bool) -> tuple[bytes, bool]:
    """Return a record's properties in stored form, and whether a checksum follows them.

    A checksum property from the record's former place is removed. The new checksum is left out if
    the properties would become too long.

    Raises: LocalProtocolError if the properties do not fit into a record.
    """
    text = record.properties
    if _CRC_NAME in text:
        pairs = text.split(PROPERTY_SEPARATOR)
        text = PROPERTY_SEPARATOR.join([p for p in pairs if not p.startswith(_CRC_NAME)])
        record.properties = text
    try:
        properties = text.encode()
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"no record can carry the properties {text!r:.500}") from error
    size = len(properties)
    if not append_crc or size > CHECKSUMMED_PROPERTIES_SIZE_MAX:
        if size > PROPERTIES_BYTES_MAX:
            raise LocalProtocolError(
                f"properties of {size} bytes do not fit into a record; "
                f"the limit is {PROPERTIES_BYTES_MAX}"
            )
        return properties, False
    if size and properties[-1] != 2:
        properties += _SEPARATOR
    return properties, True


def encode_stored(record: Record, topic_field: bytes, properties: bytes, *, has_crc: bool) -> bytes:
    """Encode a record that has its place: size, queue offset, position and store timestamp.

    Args:
        topic_field: the topic in the form of records.
        properties: the properties that `stored_properties` returned.

    Raises: LocalProtocolError if a field does not fit.
    """
    size = len(properties)
    if not has_crc:
        return lay_out_record(record, record.size, topic_field, properties, size)
    data = lay_out_record(record, record.size, topic_field, properties, size + CRC_PROPERTY_SIZE)
    return data + encode_crc_property(crc32(data))


def encode_plain(
    header: SendMessageRequestHeader,
    body: bytes,
    properties: str,
    *,
    topic_field: bytes,
    born_host: bytes,
    store_host: bytes,
    timestamp_ms: int,
    position: int,
    queue_offset: int,
) -> tuple[bytes, int | None] | None:
    """Encode the record of a message directly from its request's header, with its checksum.

    Args:
        properties: the properties; at least one.

    Returns: the bytes that `encode_stored` would return, and the hash of the tag if the extension
        in C made them; None if the record needs `encode_stored`.
    """
    functions = speedups.functions
    if functions is not None:
        found = functions.encode_record(
            body,
            properties,
            topic_field,
            born_host,
            store_host,
            header.queue_id,
            header.flag,
            queue_offset,
            position,
            header.sys_flag,
            header.born_timestamp_ms,
            timestamp_ms,
            header.reconsume_times or 0,
            CHECKSUMMED_PROPERTIES_SIZE_MAX,
        )
        if found is not None:
            return found
    try:
        raw = properties.encode()
    except UnicodeEncodeError:
        return None
    if len(raw) > CHECKSUMMED_PROPERTIES_SIZE_MAX or _CRC_NAME in properties:
        return None
    if raw[-1] != 2:
        raw += _SEPARATOR
    head, v6_bits = head_of(born_host, store_host)
    properties_size = len(raw) + CRC_PROPERTY_SIZE
    body_size = len(body)
    packed = head.pack(
        head.size + body_size + len(topic_field) + 2 + properties_size,
        MAGIC_V1,
        crc32(body) & 0x7FFFFFFF,
        header.queue_id,
        header.flag,
        queue_offset,
        position,
        header.sys_flag & ~V6_BITS | v6_bits,
        header.born_timestamp_ms,
        born_host,
        timestamp_ms,
        store_host,
        header.reconsume_times or 0,
        0,
        body_size,
    )
    data = b"".join((packed, body, topic_field, _pack_short(properties_size), raw))
    return data + encode_crc_property(crc32(data)), None


def find_name_fault(topic: str, queue_id: int) -> str | None:
    """Return why topic and queue id cannot name a queue's directory, None if they can."""
    if not is_legal_name(topic) or len(topic) > TOPIC_BYTES_MAX:
        return f"the topic {topic[:40]!r} is not 1 to {TOPIC_BYTES_MAX} legal characters"
    if not 0 <= queue_id < 1 << 31:
        return f"the queue id {queue_id} is negative or too large"
    return None


def add_attempts(record: bytes, count: int) -> bytes:
    """Return a stored record with a larger RECONSUMETIMES, and its checksum made anew."""
    # Behind hosts of IPv6 the field stands further back.
    hosts = record[SYS_FLAG_LAST_AT] >> 4 & 3
    at = _RECONSUME_TIMES_AT + 12 * hosts.bit_count()
    times = min(int.from_bytes(record[at : at + 4]) + count, 2**31 - 1)
    changed = record[:at] + times.to_bytes(4) + record[at + 4 :]
    crc_at = len(changed) - CRC_PROPERTY_SIZE
    if changed.startswith(_CRC_NAME.encode(), crc_at):
        return changed[:crc_at] + encode_crc_property(crc32(changed[:crc_at]))
    return changed

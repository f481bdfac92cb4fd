"""Encode the messages of one SEND_BATCH_MESSAGE as records, without an object for each message.

Fields that all messages of a batch share are packed once. Other fields are copied from the
request's body into the records, field by field of all messages instead of message by message. The
bytes equal those of `encode_stored` and `place_stored` (tests/store/test_message_batch.py), in a
third of the time (benchmarks/broker.py). `encode_plain_batch` does the same by the extension in C.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import accumulate, chain, count, repeat
from operator import add
from struct import Struct
from struct import error as LayoutError  # noqa: N812
from typing import NamedTuple
from zlib import crc32

from sparrowmq.errors import LocalProtocolError
from sparrowmq.model.message import PROPERTY_DELAY_LEVEL, PROPERTY_TAGS
from sparrowmq.protocol import speedups
from sparrowmq.protocol.properties import PROPERTIES_BYTES_MAX
from sparrowmq.protocol.record import MAGIC_V1, V6_BITS, BatchSpan, head_layout, head_of, scan_batch
from sparrowmq.store.consume_queue import ENTRY
from sparrowmq.store.record_check import (
    CHECKSUMMED_PROPERTIES_SIZE_MAX,
    CRC_PROPERTY,
    CRC_PROPERTY_SIZE,
    encode_crc_properties,
)

_START = head_layout(*("size", "magic", "body_crc", "queue_id", "flag", "queue_offset", "position"))
_pack_short = Struct(">H").pack
_SEPARATOR = b"\x02"
_CRC_START = f"{CRC_PROPERTY}\x01".encode()
# A whole batch with one of these properties is left to `encode_batch_records`, or refused.
_NOT_PLAIN = (
    *(f"{name}\x01".encode() for name in (PROPERTY_TAGS, PROPERTY_DELAY_LEVEL, CRC_PROPERTY)),
    b"TIMER_D",
)
# A letter of each name that is rare in properties: Python finds one byte ten times faster than
# more.
_RARE = {PROPERTY_TAGS: b"G", PROPERTY_DELAY_LEVEL: b"L", CRC_PROPERTY: b"#"}


def holds_property(text: bytes, name: str) -> bool:
    """Return whether properties contain TAGS, DELAY or __CRC32#, perhaps with an empty value.

    Args:
        text: the properties of one or several messages, a separator before each message's.
    """
    return _RARE[name] in text and b"\x02%s\x01" % name.encode() in text


class BatchMessages(NamedTuple):
    """The messages of a SEND_BATCH_MESSAGE.

    Args:
        body: the request's body; `spans` are the places of its messages, `properties` those of
            each.
    """

    body: bytes
    spans: Sequence[BatchSpan]
    properties: list[bytes]

    @property
    def message_count(self) -> int:
        """The number of messages."""
        return len(self.spans)

    @property
    def properties_text(self) -> bytes:
        """All properties, a separator before each message's."""
        return _SEPARATOR + _SEPARATOR.join(self.properties)


def read_messages(body: bytes) -> BatchMessages:
    """Find the messages in the body of SEND_BATCH_MESSAGE.

    Raises: RemoteProtocolError if it is malformed.
    """
    spans = scan_batch(body)
    return BatchMessages(body, spans, [body[begin:end] for _, _, begin, end in spans])


class MessageBatch(NamedTuple):
    """Messages of one queue.

    Args:
        added: properties that the broker adds to each message; at least one.
    """

    topic: str
    queue_id: int
    messages: BatchMessages
    added: str
    sys_flag: int
    born_timestamp_ms: int
    store_timestamp_ms: int
    born_host: bytes
    store_host: bytes
    reconsume_times: int


class EncodedBatch(NamedTuple):
    """Records without the fields that depend on their place; a list has an element per record.

    Args:
        body_crcs: the checksums of the bodies.
        ends: each record from the sys flag on, without the checksum of the whole record.
        has_crc: whether the checksum of the whole record follows.
        sizes: the sizes of the whole records.
    """

    flags: list[int]
    body_crcs: list[int]
    ends: list[bytes]
    has_crc: list[bool]
    sizes: list[int]

    @property
    def size(self) -> int:
        """Bytes of all records."""
        return sum(self.sizes)


class PlacedBatch(NamedTuple):
    """Complete records, back to back, with their consume queue entries."""

    data: bytes
    positions: tuple[int, ...]
    entries: bytes
    tags_codes: Collection[int]


def encode_batch_records(
    batch: MessageBatch, *, topic_field: bytes, append_crc: bool
) -> EncodedBatch:
    """Encode the records without the fields that depend on their place in the log.

    Raises: LocalProtocolError if a message does not fit into a record.
    """
    body, spans, properties = batch.messages
    added = batch.added.encode()
    if holds_property(_SEPARATOR + added, CRC_PROPERTY):
        added = _without_crc(added)
    if holds_property(batch.messages.properties_text, CRC_PROPERTY):
        properties = [_without_crc(each) for each in properties]
    # A separator ends the properties before the checksum.
    ending = _SEPARATOR if append_crc and not added.endswith(_SEPARATOR) else b""
    joined, separated = added + ending, _SEPARATOR + added + ending
    texts = [
        each + joined if not each or each[-1] == 2 else each + separated for each in properties
    ]
    longest = max(map(len, texts)) - len(ending)
    if longest > PROPERTIES_BYTES_MAX:
        raise LocalProtocolError(f"properties of {longest} bytes, at most {PROPERTIES_BYTES_MAX}")
    has_crc = [append_crc] * len(spans)
    if append_crc and longest > CHECKSUMMED_PROPERTIES_SIZE_MAX:
        size_max = CHECKSUMMED_PROPERTIES_SIZE_MAX + len(ending)
        has_crc = [len(text) <= size_max for text in texts]
        texts = [
            text if is_checked else text[: len(text) - len(ending)]
            for text, is_checked in zip(texts, has_crc, strict=True)
        ]
    crc_sizes = [CRC_PROPERTY_SIZE if is_checked else 0 for is_checked in has_crc]
    lengths = map(_pack_short, map(add, map(len, texts), crc_sizes))
    # The body's length precedes the body, in a record as in the request.
    bodies = [body[begin - 4 : end - 2] for _, begin, end, _ in spans]
    # The bytes of each record between its position and its body.
    middle = repeat(_head(batch)[_START.size : -4])
    ends = list(map(b"".join, zip(middle, bodies, repeat(topic_field), lengths, texts)))
    body_crcs = [crc32(body[begin : end - 2]) & 0x7FFFFFFF for _, begin, end, _ in spans]
    sizes = [
        _START.size + len(end) + crc_size for end, crc_size in zip(ends, crc_sizes, strict=True)
    ]
    flags = [span[0] for span in spans]
    return EncodedBatch(flags, body_crcs, ends, has_crc, sizes)


def encode_plain_batch(
    batch: MessageBatch,
    body: bytes,
    *,
    topic_field: bytes,
    position: int,
    queue_offset: int,
    count_max: int,
) -> PlacedBatch | None:
    """Do what `encode_batch_records` and `place_batch` do, by the extension in C.

    Args:
        batch: the batch; its messages are ignored, and the messages in `body` are used.
        count_max: the most messages.

    Returns: None without the extension, and for a batch that the extension leaves alone: with a
    delay or time, a checksum, a tag of the batch, text that is not ASCII, or a fault.
    """
    functions = speedups.functions
    added = batch.added.encode()
    if functions is None or any(name in added for name in _NOT_PLAIN):
        return None
    if not added.endswith(_SEPARATOR):
        added += _SEPARATOR
    try:
        head = _head(batch)
    except LocalProtocolError:
        return None
    found = functions.encode_batch(
        body,
        head,
        topic_field,
        added,
        position,
        queue_offset,
        count_max,
        CHECKSUMMED_PROPERTIES_SIZE_MAX,
    )
    if found is None:
        return None
    data, entries, positions, codes = found
    return PlacedBatch(data, positions, entries, codes)


def _head(batch: MessageBatch) -> bytes:
    """Return the head of each record, with zeros for the fields that differ."""
    head, v6_bits = head_of(batch.born_host, batch.store_host)
    try:
        return head.pack(
            0, MAGIC_V1, 0, batch.queue_id, 0, 0, 0,
            batch.sys_flag & ~V6_BITS | v6_bits,
            batch.born_timestamp_ms,
            batch.born_host,
            batch.store_timestamp_ms,
            batch.store_host,
            batch.reconsume_times,
            0, 0,
        )  # fmt: skip
    except LayoutError as error:
        raise LocalProtocolError(f"a record cannot carry this: {error}") from error


def place_batch(
    batch: MessageBatch,
    encoded: EncodedBatch,
    *,
    position: int,
    queue_offset: int,
    tags_code: Callable[[str], int],
) -> PlacedBatch:
    """Complete the records for their place in the log.

    Args:
        tags_code: returns the tags code of a message from its properties.
    """
    codes = _tags_codes(batch, tags_code)
    flags, body_crcs, ends, has_crc, sizes = encoded
    places = list(accumulate(sizes, initial=position))
    places.pop()
    starts = map(
        _START.pack,
        sizes,
        repeat(MAGIC_V1),
        body_crcs,
        repeat(batch.queue_id),
        flags,
        count(queue_offset),
        places,
    )
    records = list(map(add, starts, ends))
    checksums = encode_crc_properties(map(crc32, records))
    if not all(has_crc):
        checksums = [
            each if is_checked else b"" for each, is_checked in zip(checksums, has_crc, strict=True)
        ]
    data = b"".join(chain.from_iterable(zip(records, checksums, strict=True)))
    entries = b"".join(map(ENTRY.pack, places, sizes, codes))
    return PlacedBatch(data, tuple(places), entries, frozenset(codes))


def _tags_codes(batch: MessageBatch, tags_code: Callable[[str], int]) -> list[int]:
    messages = batch.messages
    if holds_property(_SEPARATOR + batch.added.encode(), PROPERTY_TAGS):
        # The last of equal names counts, so the batch's own tag overrides the messages'.
        ending = f"\x02{batch.added}"
        return [tags_code(each.decode(errors="replace") + ending) for each in messages.properties]
    if holds_property(messages.properties_text, PROPERTY_TAGS):
        return [tags_code(each.decode(errors="replace")) for each in messages.properties]
    return [tags_code("")] * messages.message_count


def _without_crc(properties: bytes) -> bytes:
    pairs = properties.split(_SEPARATOR)
    return _SEPARATOR.join([pair for pair in pairs if not pair.startswith(_CRC_START)])

"""The messages of one SEND_BATCH_MESSAGE as the log's records, without an object for each.

What the messages of a batch share is packed once, and what differs goes straight from the request's
body into the records, field by field of all messages rather than message by message. The bytes are
those of `encode_stored` and `place_stored` (tests/store/test_message_batch.py), for a third of the
time (benchmarks/broker.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, chain, count, repeat
from operator import add
from struct import Struct
from struct import error as LayoutError  # noqa: N812
from typing import NamedTuple
from zlib import crc32

from sparrowmq.errors import LocalProtocolError
from sparrowmq.model.message import PROPERTY_DELAY_LEVEL, PROPERTY_TAGS
from sparrowmq.protocol.properties import PROPERTIES_BYTES_MAX
from sparrowmq.protocol.record import MAGIC_V1, V6_BITS, BatchSpan, head_of
from sparrowmq.store.consume_queue import ENTRY
from sparrowmq.store.record_check import (
    CHECKSUMMED_PROPERTIES_SIZE_MAX,
    CRC_PROPERTY,
    CRC_PROPERTY_SIZE,
    encode_crc_properties,
)

# Size, magic, checksum of the body, queue id, flag, queue offset, position.
_START = Struct(">iIiiiqq")
_pack_short = Struct(">H").pack
_SEPARATOR = b"\x02"
_CRC_START = f"{CRC_PROPERTY}\x01".encode()
# A letter of a name that is rare in properties: Python finds one byte ten times as fast as more.
_RARE = {PROPERTY_TAGS: b"G", PROPERTY_DELAY_LEVEL: b"L", CRC_PROPERTY: b"#"}


def holds_property(properties: Sequence[bytes], name: str) -> bool:
    """Return whether one of several messages has a property, maybe empty: TAGS, DELAY, __CRC32#."""
    text = _SEPARATOR.join(properties)
    if _RARE[name] not in text:
        return False
    start = f"{name}\x01".encode()
    return text.startswith(start) or _SEPARATOR + start in text


class MessageBatch(NamedTuple):
    """Messages of one queue.

    Args:
        body: of the request; `spans` say where its messages stand, `properties` are theirs.
        added: properties that each message gets besides its own; at least one.
    """

    topic: str
    queue_id: int
    body: bytes
    spans: Sequence[BatchSpan]
    properties: list[bytes]
    added: str
    sys_flag: int
    born_timestamp_ms: int
    store_timestamp_ms: int
    born_host: bytes
    store_host: bytes
    reconsume_times: int


class EncodedBatch(NamedTuple):
    """Records that lack only what their place decides; each list has an element for each.

    Args:
        properties: what the message brought along.
        body_crcs: checksums of the bodies.
        ends: all from the sys flag on, without the checksum of the whole.
        has_crc: whether that checksum follows.
        sizes: of the whole records.
    """

    batch: MessageBatch
    properties: list[bytes]
    body_crcs: list[int]
    ends: list[bytes]
    has_crc: list[bool]
    sizes: list[int]


class PlacedBatch(NamedTuple):
    """Records at their place, back to back, with their queue's entries."""

    data: bytes
    positions: tuple[int, ...]
    entries: bytes
    tags_codes: frozenset[int]


def encode_batch_records(
    batch: MessageBatch, *, topic_field: bytes, append_crc: bool
) -> EncodedBatch:
    """Encode the records but for what their place in the log decides.

    Raises: LocalProtocolError if a message does not fit into a record.
    """
    body, spans, properties = batch.body, batch.spans, batch.properties
    added = batch.added.encode()
    if holds_property([added], CRC_PROPERTY):
        added = _without_crc(added)
    if holds_property(properties, CRC_PROPERTY):
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
    # In a record as in the request, the body's length stands before it.
    bodies = [body[begin - 4 : end - 2] for _, begin, end, _ in spans]
    ends = list(
        map(b"".join, zip(repeat(_middle(batch)), bodies, repeat(topic_field), lengths, texts))
    )
    body_crcs = [crc32(body[begin : end - 2]) & 0x7FFFFFFF for _, begin, end, _ in spans]
    sizes = [
        _START.size + len(end) + crc_size for end, crc_size in zip(ends, crc_sizes, strict=True)
    ]
    return EncodedBatch(batch, properties, body_crcs, ends, has_crc, sizes)


def _middle(batch: MessageBatch) -> bytes:
    """Return what stands in each record between its position and its body."""
    head, v6_bits = head_of(batch.born_host, batch.store_host)
    try:
        packed = head.pack(
            0, 0, 0, batch.queue_id, 0, 0, 0,
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
    return packed[_START.size : -4]


def place_batch(
    encoded: EncodedBatch, *, position: int, queue_offset: int, tags_code: Callable[[str], int]
) -> PlacedBatch:
    """Complete the records for the place that the log has for them.

    Args:
        tags_code: gives the code of a message from its properties.
    """
    batch, properties, body_crcs, ends, has_crc, sizes = encoded
    positions = list(accumulate(sizes, initial=position))
    positions.pop()
    flags = [span[0] for span in batch.spans]
    starts = map(
        _START.pack,
        sizes,
        repeat(MAGIC_V1),
        body_crcs,
        repeat(batch.queue_id),
        flags,
        count(queue_offset),
        positions,
    )
    records = list(map(add, starts, ends))
    checksums = encode_crc_properties(map(crc32, records))
    if not all(has_crc):
        checksums = [
            each if is_checked else b"" for each, is_checked in zip(checksums, has_crc, strict=True)
        ]
    data = b"".join(chain.from_iterable(zip(records, checksums, strict=True)))
    if holds_property([batch.added.encode()], PROPERTY_TAGS):
        # Of equal names the last counts, so the batch's own tag does.
        ending = f"\x02{batch.added}"
        codes = [tags_code(each.decode(errors="replace") + ending) for each in properties]
    elif holds_property(properties, PROPERTY_TAGS):
        codes = [tags_code(each.decode(errors="replace")) for each in properties]
    else:
        codes = [tags_code("")] * len(sizes)
    entries = b"".join(map(ENTRY.pack, positions, sizes, codes))
    return PlacedBatch(data, tuple(positions), entries, frozenset(codes))


def _without_crc(properties: bytes) -> bytes:
    pairs = properties.split(_SEPARATOR)
    return _SEPARATOR.join([pair for pair in pairs if not pair.startswith(_CRC_START)])

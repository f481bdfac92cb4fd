"""The messages of one SEND_BATCH_MESSAGE as the log's records, without an object for each.

What the messages of a batch share is packed once, and what differs goes straight from the request's
body into the records, field by field of all messages rather than message by message. The bytes are
those of `encode_stored` and `place_stored` (tests/store/test_message_batch.py), for a third of the
time (benchmarks/broker.py). Many messages of one size go through even_batch.py.
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
from sparrowmq.protocol.record import MAGIC_V1, V6_BITS, BatchSpan, head_of, scan_batch
from sparrowmq.store.consume_queue import ENTRY
from sparrowmq.store.even_batch import EvenMessages, EvenRecords, ends_alike, find_even
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
# Of properties that a whole batch has, these are for `encode_batch_records`, or to be refused.
_NOT_PLAIN = (
    *(f"{name}\x01".encode() for name in (PROPERTY_TAGS, PROPERTY_DELAY_LEVEL, CRC_PROPERTY)),
    b"TIMER_D",
)
# A letter of a name that is rare in properties: Python finds one byte ten times as fast as more.
_RARE = {PROPERTY_TAGS: b"G", PROPERTY_DELAY_LEVEL: b"L", CRC_PROPERTY: b"#"}


def holds_property(text: bytes, name: str) -> bool:
    """Return whether a property is there, maybe empty: TAGS, DELAY or __CRC32#.

    Args:
        text: properties of one or several messages, a separator before each one's.
    """
    return _RARE[name] in text and b"\x02%s\x01" % name.encode() in text


class ListedMessages(NamedTuple):
    """The messages of a SEND_BATCH_MESSAGE, one by one.

    Args:
        body: of the request; `spans` say where its messages stand, `properties` are theirs.
    """

    body: bytes
    spans: Sequence[BatchSpan]
    properties: list[bytes]

    @property
    def message_count(self) -> int:
        """How many there are."""
        return len(self.spans)

    @property
    def properties_text(self) -> bytes:
        """All properties, a separator before each message's."""
        return _SEPARATOR + _SEPARATOR.join(self.properties)


def read_messages(body: bytes) -> EvenMessages | ListedMessages:
    """Find the messages in the body of SEND_BATCH_MESSAGE.

    Raises: RemoteProtocolError if it is malformed.
    """
    # The extension in C takes what NumPy would: what is left then is not worth NumPy's 25 MB.
    even = find_even(body) if speedups.functions is None else None
    return even or _list_messages(body)


def _list_messages(body: bytes) -> ListedMessages:
    spans = scan_batch(body)
    return ListedMessages(body, spans, [body[begin:end] for _, _, begin, end in spans])


class MessageBatch(NamedTuple):
    """Messages of one queue.

    Args:
        added: properties that each message gets besides its own; at least one.
    """

    topic: str
    queue_id: int
    messages: EvenMessages | ListedMessages
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
        flags: of the messages.
        body_crcs: checksums of the bodies.
        ends: all from the sys flag on, without the checksum of the whole.
        has_crc: whether that checksum follows.
        sizes: of the whole records.
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
    """Records at their place, back to back, with their queue's entries."""

    data: bytes
    positions: tuple[int, ...]
    entries: bytes
    tags_codes: Collection[int]


def encode_batch_records(
    batch: MessageBatch, *, topic_field: bytes, append_crc: bool
) -> EncodedBatch | EvenRecords:
    """Encode the records but for what their place in the log decides.

    Raises: LocalProtocolError if a message does not fit into a record.
    """
    messages = batch.messages
    added = batch.added.encode()
    if holds_property(_SEPARATOR + added, CRC_PROPERTY):
        added = _without_crc(added)
    has_crcs = holds_property(messages.properties_text, CRC_PROPERTY)
    if isinstance(messages, EvenMessages):
        if append_crc and not has_crcs and ends_alike(messages):
            joined = added if added.endswith(_SEPARATOR) else added + _SEPARATOR
            if messages.properties_size and messages.matrix[0, -1] != 2:
                joined = _SEPARATOR + joined
            if messages.properties_size + len(joined) <= CHECKSUMMED_PROPERTIES_SIZE_MAX:
                return EvenRecords(messages, batch.queue_id, _middle(batch), topic_field, joined)
        messages = _list_messages(messages.matrix.tobytes())
    body, spans, properties = messages
    if has_crcs:
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
    """Do what `encode_batch_records` and `place_batch` do, if the extension in C can.

    Args:
        batch: its messages are not looked at, but those in `body`, the request's.
        count_max: the most messages.

    Returns: None if there is no extension; if a batch has a delay or time, a checksum, a tag of its
        own or text that is not ASCII, or is to be refused.
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
    """Return the head of each record, with zeros for what differs."""
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


def _middle(batch: MessageBatch) -> bytes:
    """Return what stands in each record between its position and its body."""
    return _head(batch)[_START.size : -4]


def place_batch(
    batch: MessageBatch,
    encoded: EncodedBatch | EvenRecords,
    *,
    position: int,
    queue_offset: int,
    tags_code: Callable[[str], int],
) -> PlacedBatch:
    """Complete the records for the place that the log has for them.

    Args:
        tags_code: gives the code of a message from its properties.
    """
    codes = _tags_codes(batch, tags_code)
    if isinstance(encoded, EvenRecords):
        data = encoded.place(position, queue_offset)
        positions = range(position, position + len(data), encoded.record_size)
        entries = encoded.queue_entries(position, codes)
        return PlacedBatch(data, tuple(positions), entries, frozenset(codes))
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
        # Of equal names the last counts, so the batch's own tag does.
        ending = f"\x02{batch.added}"
        return [tags_code(each.decode(errors="replace") + ending) for each in messages.properties]
    if holds_property(messages.properties_text, PROPERTY_TAGS):
        return [tags_code(each.decode(errors="replace")) for each in messages.properties]
    return [tags_code("")] * messages.message_count


def _without_crc(properties: bytes) -> bytes:
    pairs = properties.split(_SEPARATOR)
    return _SEPARATOR.join([pair for pair in pairs if not pair.startswith(_CRC_START)])

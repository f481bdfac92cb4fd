"""A batch of messages of one size, as a NumPy matrix with a row for each message.

Table rows of one shape make such batches, for example in Spark's sink. One step for all messages
replaces one step for each message in message_batch.py: a batch of 512 takes half the time
(benchmarks/broker.py). The broker does not depend on NumPy; without NumPy, message_batch.py encodes
these batches. NumPy is imported at the first batch that is long enough, since it would cost an idle
broker 25 MB.
"""

from __future__ import annotations

import importlib
from functools import cache
from itertools import chain
from struct import Struct
from types import ModuleType
from typing import Any, NamedTuple
from zlib import crc32

from sparrowmq.protocol.record import MAGIC_V1
from sparrowmq.store.record_check import CRC_PROPERTY, CRC_PROPERTY_SIZE

# Fewer messages are as fast one by one.
EVEN_COUNT_MIN = 64
# The head of an entry of the request: size, magic, checksum, flag, length of the body. The
# properties' length follows the body.
_HEAD = Struct(">iiiii")
_SHORT = Struct(">H")
_SEPARATOR = 2
_CRC_START = f"{CRC_PROPERTY}\x01".encode()
_CRC_START_SIZE = len(_CRC_START)
# A checksum's ten digits are written as two groups of five.
_HALF = 100_000
# The beginning of a record, and its consume queue entry.
_START_TYPE = [
    ("size", ">i4"),
    ("magic", ">u4"),
    ("body_crc", ">u4"),
    ("queue_id", ">i4"),
    ("flag", ">i4"),
    ("queue_offset", ">i8"),
    ("position", ">i8"),
]
_START_SIZE = 36
_ENTRY_TYPE = [("position", ">i8"), ("size", ">i4"), ("tags_code", ">i8")]


class EvenMessages(NamedTuple):
    """The messages of a SEND_BATCH_MESSAGE.

    Args:
        matrix: bytes; each row is one entry of the request.
        body_size: the size of each body.
    """

    matrix: Any
    body_size: int

    @property
    def message_count(self) -> int:
        """The number of messages."""
        return len(self.matrix)

    @property
    def properties_text(self) -> bytes:
        """All properties, a separator before each message's."""
        texts = self.matrix[:, self.properties_at - 1 :].copy()
        texts[:, 0] = _SEPARATOR
        found: bytes = texts.tobytes()
        return found

    @property
    def properties(self) -> list[bytes]:
        """The properties of each message."""
        text, width = self.properties_text, self.properties_size + 1
        return [text[at + 1 : at + width] for at in range(0, len(text), width)]

    @property
    def properties_at(self) -> int:
        """The column at which the properties begin."""
        return _HEAD.size + self.body_size + _SHORT.size

    @property
    def properties_size(self) -> int:
        """The size of each message's properties."""
        return int(self.matrix.shape[1]) - self.properties_at


class EvenRecords(NamedTuple):
    """Records without the fields that depend on their place in the log.

    Args:
        middle: the bytes of each record between its position and its body's length.
        joined: the bytes after a message's own properties, ended by a separator.
    """

    messages: EvenMessages
    queue_id: int
    middle: bytes
    topic_field: bytes
    joined: bytes

    @property
    def properties_size(self) -> int:
        """Bytes of a record's properties, the checksum included."""
        return self.messages.properties_size + len(self.joined) + CRC_PROPERTY_SIZE

    @property
    def record_size(self) -> int:
        """Bytes of one record."""
        sizes = _START_SIZE + len(self.middle) + 4 + self.messages.body_size
        return sizes + len(self.topic_field) + _SHORT.size + self.properties_size

    @property
    def size(self) -> int:
        """Bytes of all records."""
        return self.record_size * self.messages.message_count

    def place(self, position: int, queue_offset: int) -> bytes:
        """Return the records, back to back, for their place in the log."""
        np, size = _numpy(), self.record_size
        assert np is not None
        matrix, body_size = self.messages.matrix, self.messages.body_size
        count = self.messages.message_count
        start = np.empty(count, dtype=_START_TYPE)
        start["size"], start["magic"], start["queue_id"] = size, MAGIC_V1, self.queue_id
        start["body_crc"] = _crcs(matrix, _HEAD.size, body_size)
        start["flag"] = matrix[:, 12:16].copy().view(">i4")[:, 0]
        start["queue_offset"] = np.arange(queue_offset, queue_offset + count)
        start["position"] = np.arange(position, position + count * size, size)
        columns = [
            start.view(np.uint8).reshape(count, _START_SIZE),
            self.middle,
            # The body's length precedes the body, in a record as in the request.
            matrix[:, _HEAD.size - 4 : _HEAD.size + body_size],
            self.topic_field,
            _SHORT.pack(self.properties_size),
            matrix[:, self.messages.properties_at :],
            self.joined,
        ]
        records = np.empty((count, size), dtype=np.uint8)
        end = 0
        for column in columns:
            begin = end
            is_same = isinstance(column, bytes)
            end += len(column) if is_same else column.shape[1]
            records[:, begin:end] = np.frombuffer(column, dtype=np.uint8) if is_same else column
        high, low = np.divmod(_crcs(records, 0, end), _HALF)
        at = end + _CRC_START_SIZE
        records[:, end:at] = np.frombuffer(_CRC_START, dtype=np.uint8)
        # The lowest digit comes first.
        records[:, at : at + 5], records[:, at + 5 : at + 10] = _digits()[low], _digits()[high]
        records[:, at + 10] = _SEPARATOR
        data: bytes = records.tobytes()
        return data

    def queue_entries(self, position: int, tags_codes: list[int]) -> bytes:
        """Return the consume queue entries of records from this position on."""
        np = _numpy()
        assert np is not None
        entries = np.empty(self.messages.message_count, dtype=_ENTRY_TYPE)
        entries["position"] = np.arange(position, position + self.size, self.record_size)
        entries["size"] = self.record_size
        entries["tags_code"] = tags_codes
        data: bytes = entries.tobytes()
        return data


def find_even(body: bytes) -> EvenMessages | None:
    """Return the messages of a request, None if they are few or differ in size, or without NumPy.

    Malformed messages, and properties that are not ASCII, are left to `scan_batch`.
    """
    if len(body) < EVEN_COUNT_MIN * (_HEAD.size + _SHORT.size):
        return None
    size, _, _, _, body_size = _HEAD.unpack_from(body)
    at = _HEAD.size + body_size + _SHORT.size
    if body_size < 0 or size < at or len(body) < EVEN_COUNT_MIN * size or len(body) % size:
        return None
    if at + _SHORT.unpack_from(body, at - _SHORT.size)[0] != size or (np := _numpy()) is None:
        return None
    matrix = np.frombuffer(body, dtype=np.uint8).reshape(-1, size)
    for begin, end in ((0, 4), (_HEAD.size - 4, _HEAD.size), (at - _SHORT.size, at)):
        if (matrix[:, begin:end] != matrix[0, begin:end]).any():
            return None
    return None if (matrix[:, at:] > 127).any() else EvenMessages(matrix, body_size)


def ends_alike(messages: EvenMessages) -> bool:
    """Return whether the properties of all, or of none, end with a separator."""
    lasts = messages.matrix[:, -1] == _SEPARATOR
    return bool(lasts.all() or not lasts.any())


def _crcs(matrix: Any, begin: int, size: int) -> Any:
    """Return the checksums of some columns of each row, their highest bit cleared."""
    np = _numpy()
    assert np is not None
    count, width = matrix.shape
    if not size:
        return np.zeros(count, dtype=np.uint32)
    pieces = Struct(f"{begin}x{size}s{width - begin - size}x").iter_unpack(matrix)
    found = np.fromiter(map(crc32, chain.from_iterable(pieces)), dtype=np.uint32, count=count)
    return found & 0x7FFFFFFF


@cache
def _numpy() -> ModuleType | None:
    try:
        return importlib.import_module("numpy")
    except ImportError:
        return None


@cache
def _digits() -> Any:
    """Return the five digits of each number below `_HALF`, the lowest first: 500 kB."""
    np = _numpy()
    assert np is not None
    powers = 10 ** np.arange(5)
    return (np.arange(_HALF)[:, None] // powers % 10 + ord("0")).astype(np.uint8)

"""The keys of neighbouring records of one shape, all at once, in NumPy.

A log with even batches (even_batch.py) has runs of records with equal topics, properties and
lengths, in which only the values of the keys differ. Such a run is a matrix. The steps that
message_index.py takes for each record are taken for columns, at a tenth of the cost
(benchmarks/broker.py). Without NumPy nothing is done; only even batches import NumPy.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from struct import Struct
from typing import Any, NamedTuple

from sparrowmq.protocol.record import MAGIC_V1
from sparrowmq.store.even_batch import EVEN_COUNT_MIN
from sparrowmq.store.key_hash import KEY_BYTES_MAX, POWERS

# The head of a record with IPv4 hosts: size, magic, sys flag, length of the body.
_HEAD = Struct(">II28xI44xI")
assert _HEAD.size == 88
# A mask of the head: 0xff for each byte that belongs to one of these fields.
_ALIKE = b"\xff" * 8 + bytes(28) + b"\xff" * 4 + bytes(44) + b"\xff" * 4
_STORED_AT = 56
_SHORT = Struct(">H")
# The sys flag's bits of an IPv6 host or a transaction's end.
_SPECIAL = 0x3C
_SPACE = 32
_NAME_END = 1
_SEPARATOR = 2


class KeyRun(NamedTuple):
    """The keys of some records, each an element of three arrays.

    Args:
        hashes: the `slot_hash` of each `topic#key`.
        positions: the records' positions in the log.
        timestamps_ms: the records' store times.
        size: bytes of all records.
    """

    hashes: Any
    positions: Any
    timestamps_ms: Any
    size: int

    def part(self, begin: int, end: int) -> KeyRun:
        """Return some of the keys."""
        hashes, positions, timestamps_ms, size = self
        return KeyRun(hashes[begin:end], positions[begin:end], timestamps_ms[begin:end], size)


def may_begin_run(chunk: bytes, at: int) -> bool:
    """Return, at little cost, whether a run may begin here."""
    if "numpy" not in sys.modules:
        return False
    begin = chunk[at : at + 8]
    last_at = at + (EVEN_COUNT_MIN - 1) * int.from_bytes(begin[:4])
    return begin == chunk[last_at : last_at + 8] and len(begin) == 8


def find_run(
    chunk: bytes, position: int, *, names: tuple[bytes, ...], of_topic: Callable[[bytes], list[int]]
) -> KeyRun | None:
    """Return the keys of the records that begin a chunk, None if the records differ in shape.

    Args:
        chunk: a chunk of the log that begins with a record for which `may_begin_run` holds.
        position: the chunk's position in the log.
        names: the names of the properties with keys, each with the character that ends a name.
        of_topic: returns the addend of a topic to the hash of a key, by the key's length.
    """
    np = sys.modules["numpy"]
    size, magic, sys_flag, body_size = _HEAD.unpack_from(chunk)
    topic_at = _HEAD.size + body_size
    if magic != MAGIC_V1 or sys_flag & _SPECIAL or topic_at >= size:
        return None
    properties_at = topic_at + 1 + chunk[topic_at] + _SHORT.size
    values = _find_values(chunk, properties_at, size)
    if values is None:
        return None
    # Values may differ but end at the same places as in the first record; all else is equal.
    may_differ = np.zeros(size - topic_at, dtype=np.uint8)
    for begin, end in values.values():
        may_differ[begin - topic_at : end - topic_at] = 0xFF
    matrix = np.frombuffer(chunk, dtype=np.uint8, count=len(chunk) // size * size)
    matrix = matrix.reshape(-1, size)
    head, tail = matrix[:, : _HEAD.size], matrix[:, topic_at:]
    wrong = (tail ^ tail[0]) & ~may_differ | (tail <= _SEPARATOR) & may_differ
    is_other = wrong.any(axis=1)
    is_other |= ((head ^ head[0]) & np.frombuffer(_ALIKE, dtype=np.uint8)).any(axis=1)
    count = int(is_other.argmax()) if is_other.any() else len(matrix)
    if count < EVEN_COUNT_MIN:
        return None
    matrix, powers = matrix[:count], of_topic(chunk[topic_at + 1 : properties_at - _SHORT.size])
    hashes = []
    for name in names:
        begin, end = values.get(name, (0, 0))
        texts = matrix[:, begin:end]
        if end - begin > KEY_BYTES_MAX or (texts > 127).any() or (texts == _SPACE).any():
            return None
        if end > begin:
            digits = np.array(POWERS[end - begin - 1 :: -1], dtype=np.uint32)
            hashed = texts.astype(np.uint32) @ digits + np.uint32(powers[end - begin])
            hashes.append(np.abs(hashed.view(np.int32)) & 0x7FFFFFFF)
    stored = np.ascontiguousarray(matrix[:, _STORED_AT : _STORED_AT + 8]).view(">i8")[:, 0]
    return KeyRun(
        np.array(hashes, dtype=np.int64).T.ravel(),
        np.arange(position, position + count * size, size).repeat(len(hashes)),
        stored.astype(np.int64).repeat(len(hashes)),
        count * size,
    )


def _find_values(record: bytes, at: int, end: int) -> dict[bytes, tuple[int, int]] | None:
    """Return the start and end of each property's value, None if a name comes twice."""
    values: dict[bytes, tuple[int, int]] = {}
    while at < end:
        value_end = record.find(_SEPARATOR, at, end)
        value_end = end if value_end < 0 else value_end
        value_at = record.find(_NAME_END, at, value_end) + 1
        name = record[at:value_at]
        if not name or name in values:
            return None
        values[name] = value_at, value_end
        at = value_end + 1
    return values

"""The ids of `exactlyOnce`: the same for the same row when its task or micro-batch is repeated.

    <query id>/<batch id>/<partition>/<hash of the row>/<occurrence>

The hash covers all that is sent of a row. Equal rows of one task are numbered in the order in which
they come; since the rows are equal, any of them may get any number. Ids therefore depend on the
rows of a partition and not on their order, which may differ after a shuffle.

Short rows are hashed as a matrix, all rows of a batch by one multiplication. A row's bytes are
words w1, w2, ... of 32 bits, the last word filled up with zeros; w0 is the number of bytes. Each of
the four digits of the hash is the upper half of (f0 w0 + f1 w1 + ...) mod 2**64. Each digit has its
own factors f, which are derived from the task's prefix. Two different rows share one digit with a
probability of 2**-31, and all four with 2**-124. That holds for rows that do not depend on the
prefix: somebody who knows the prefix beforehand can make two rows with one hash. Longer rows are
hashed by SHA-1, which costs no more for them. The hash must never change: a micro-batch may be
repeated after an upgrade.
Source: Lemire and Kaser, Strongly universal string hashing is fast, 2014, section 3.
"""

from __future__ import annotations

from hashlib import sha1, shake_128
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

HASH_BYTES = 16
# The longest row, its properties included, that is hashed in a matrix.
SHORT_BYTES_MAX = 512
# The rows of a matrix; a matrix of this size stays in the processor's caches.
_MATRIX_ROWS = 1_024
_SHA1_BYTES = 20
_WORD_BYTES = 4
_DIGITS = HASH_BYTES // 4
# The columns besides a row's body and properties that the hash covers.
_TARGETS = ("topic", "brokerName", "queueId", "delayTimeLevel", "flag")


class WriteIds:
    """Gives the rows of one task their ids; keeps 8 bytes of each row.

    Args:
        prefix: the query, its micro-batch and the partition; or the job and the partition.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = pa.scalar(prefix, pa.string())
        count = (1 + SHORT_BYTES_MAX // _WORD_BYTES) * _DIGITS
        self._factors = np.frombuffer(
            shake_128(prefix.encode()).digest(8 * count), dtype="<u8"
        ).reshape(-1, _DIGITS)
        # The hashes of all rows so far, cut to 64 bits: a few sorted arrays, each more than twice
        # as long as the next, so that a row takes part in few merges.
        self._runs: list[Any] = []

    def of_rows(
        self, columns: dict[str, pa.Array], properties: pa.Array, bodies: pa.Array
    ) -> pa.Array:
        """Return the ids of the next rows.

        Args:
            properties: the rows' own properties, encoded.
        """
        digests = self._hash(_contents(columns, properties, bodies))
        occurrences = self._count(digests.view("<u8")[:, 0])
        hashes = _texts(digests.tobytes().hex(), 2 * HASH_BYTES)
        numbers = pa.array(occurrences).cast(pa.string())
        return pc.call_function(
            "binary_join_element_wise", [self._prefix, hashes, numbers, pa.scalar("/")]
        )

    def _hash(self, contents: pa.Array) -> Any:
        """Return the hashes of contents as a matrix of bytes."""
        cuts = np.frombuffer(contents.buffers()[1], dtype=np.int32)[: len(contents) + 1]
        is_short = np.diff(cuts) <= SHORT_BYTES_MAX
        digests = np.empty((len(contents), HASH_BYTES), dtype=np.uint8)
        short, long = np.flatnonzero(is_short), np.flatnonzero(~is_short)
        rows = contents.take(pa.array(short)) if len(long) else contents
        for at in range(0, len(rows), _MATRIX_ROWS):
            digests[short[at : at + _MATRIX_ROWS]] = self._hash_short(rows.slice(at, _MATRIX_ROWS))
        data = memoryview(contents.buffers()[2])
        ranges = zip(cuts[long].tolist(), cuts[long + 1].tolist(), strict=True)
        wholes = b"".join([sha1(data[begin:end]).digest() for begin, end in ranges])
        digests[long] = np.frombuffer(wholes, np.uint8).reshape(-1, _SHA1_BYTES)[:, :HASH_BYTES]
        return digests

    def _hash_short(self, rows: pa.Array) -> Any:
        cuts = np.frombuffer(rows.buffers()[1], dtype=np.int32)
        sizes = np.diff(cuts[rows.offset : rows.offset + len(rows) + 1]).astype(np.uint64)
        words = -(-int(sizes.max()) // _WORD_BYTES)
        # Arrow pads only texts; it does not check that the bytes are text.
        texts = pa.Array.from_buffers(pa.string(), len(rows), rows.buffers(), offset=rows.offset)
        options = pc.PadOptions(words * _WORD_BYTES, "\0")
        filled = pc.call_function("ascii_rpad", [texts], options=options)
        matrix = np.frombuffer(filled.buffers()[2], dtype="<u4").reshape(len(rows), words)
        factors = self._factors
        sums = matrix.astype(np.uint64) @ factors[1 : words + 1] + sizes[:, None] * factors[0]
        return (sums >> np.uint64(32)).astype("<u4").view(np.uint8)

    def _count(self, hashes: Any) -> Any:
        """Return how often each hash came before."""
        order = np.argsort(hashes, kind="stable")
        run = hashes[order]
        counts = np.empty(len(hashes), dtype=np.int64)
        counts[order] = np.arange(len(run)) - np.searchsorted(run, run)
        for known in self._runs:
            counts += np.searchsorted(known, hashes, "right") - np.searchsorted(known, hashes)
        while self._runs and len(self._runs[-1]) <= 2 * len(run):
            run = np.sort(np.concatenate([self._runs.pop(), run]), kind="stable")
        self._runs.append(run)
        return counts


def _contents(columns: dict[str, pa.Array], properties: pa.Array, bodies: pa.Array) -> pa.Array:
    """Return the bytes that the hash covers: the parts, joined by the end byte of properties."""
    targets = [columns[name].cast(pa.string()) for name in _TARGETS if name in columns]
    parts = [each.fill_null("").cast(pa.binary()) for each in targets]
    separator = pa.scalar(b"\x02", pa.binary())
    return pc.call_function("binary_join_element_wise", [*parts, properties, bodies, separator])


def _texts(text: str, width: int) -> pa.Array:
    """Return a text cut into strings of one width."""
    cuts = np.arange(0, len(text) + 1, width, dtype=np.int32)
    data = pa.py_buffer(text.encode())
    return pa.Array.from_buffers(pa.string(), len(cuts) - 1, [None, pa.py_buffer(cuts), data])

"""Encode rows as the bodies of send requests, all rows of an Arrow batch at once.

The body of SEND_BATCH_MESSAGE is a sequence of entries back to back. The bytes of an Arrow array of
entries, from the first row's start to the last row's end, therefore *are* the body of a batch.
Arrow joins each row's head, body and properties, and Python touches no row.

```
entry         bytes   value
size          4       of the whole entry
magic         4       0
bodyCrc       4       0; the broker computes it
flag          4
bodySize      4
body          n
properties    2 + n   size, then name 0x01 value 0x02 ...
```
Source: MessageDecoder.encodeMessage. Tests: test_columns.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sparrowmq.errors import UsageError
from sparrowmq.model.message import (
    BODY_BYTES_MAX,
    PROPERTY_KEYS,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    RESERVED_PROPERTIES,
)
from sparrowmq.protocol.properties import PROPERTIES_BYTES_MAX
from sparrowmq.protocol.subscription import TAG_SEPARATOR
from sparrowmq.spark.write_ids import WriteIds
from sparrowmq.store.record_check import CRC_PROPERTY

PROPERTY_WRITE_ID = "WRITE_ID"
# The names that no row may have as a user's property.
NO_USER_PROPERTIES = RESERVED_PROPERTIES | {PROPERTY_WRITE_ID, CRC_PROPERTY}
_HEAD_SIZE = 20
_HEX = np.frombuffer(b"0123456789ABCDEF", dtype=np.uint8)
_SEPARATORS = "[\x01\x02]"
# What `str.split` takes for a blank, without U+0020.
BLANKS = "[\t-\r\x1c-\x1f\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
_TEXT_MAP = pa.map_(pa.string(), pa.string())
_PROPERTY_OF = {
    "tags": PROPERTY_TAGS,
    "keys": PROPERTY_KEYS,
    "shardingKey": PROPERTY_SHARDING_KEY,
}


class EncodedRows(NamedTuple):
    """The encoded rows of a batch.

    Args:
        entries: the entries, as a binary array.
        fragments: the fragments of the rows' encoded properties.
    """

    entries: pa.Array
    bodies: pa.Array
    fragments: list[pa.Array | pa.Scalar]

    @property
    def properties(self) -> pa.Array:
        """The rows' properties, encoded."""
        return _join(*self.fragments)


def encode_rows(
    batch: pa.RecordBatch,
    msg_ids: pa.Array,
    *,
    write_ids: WriteIds | None = None,
    first_row: int = 0,
) -> EncodedRows:
    """Encode rows.

    Args:
        batch: a batch with columns of SINK_COLUMNS.
        write_ids: makes the rows' property WRITE_ID; None for no such property.
        first_row: the number of the first row in the task's input.

    Raises: UsageError that names the number of a wrong row in the input, and the row's fault.
    """
    columns = dict(zip(batch.schema.names, map(_usual, batch.columns), strict=True))
    bodies = columns["body"].cast(pa.binary())
    _check_bodies(bodies, first_row)
    own = _encode_own(columns, first_row)
    fragments = _property(PROPERTY_UNIQ_KEY, msg_ids)
    if write_ids is not None:
        properties = _join(pa.repeat(pa.scalar(b"", pa.binary()), len(batch)), *own)
        texts = write_ids.of_rows(columns, properties, bodies)
        fragments += _property(PROPERTY_WRITE_ID, texts)
    fragments += own
    property_sizes = np.zeros(len(batch), dtype=np.int32)
    for each in fragments:
        sizes = pc.call_function("binary_length", [each])
        property_sizes += sizes.as_py() if isinstance(sizes, pa.Scalar) else np.asarray(sizes)
    if len(property_sizes) and property_sizes.max() > PROPERTIES_BYTES_MAX:
        row = int(property_sizes.argmax())
        raise UsageError(
            f"the properties of row {first_row + row} have {property_sizes[row]} bytes; "
            f"the limit is {PROPERTIES_BYTES_MAX}"
        )
    body_sizes = np.asarray(pc.call_function("binary_length", [bodies]))
    head = np.zeros((len(batch), 5), dtype=">i4")
    head[:, 0] = _HEAD_SIZE + body_sizes + 2 + property_sizes
    if "flag" in columns:
        head[:, 3] = np.asarray(columns["flag"].fill_null(0))
    head[:, 4] = body_sizes
    parts = [
        fixed_size(head.view(np.uint8)),
        bodies,
        fixed_size(property_sizes.astype(">i2").view(np.uint8).reshape(-1, 2)),
        *fragments,
    ]
    return EncodedRows(_join(*parts), bodies, fragments)


def fixed_size(values: npt.NDArray[np.uint8]) -> pa.Array:
    """Return the rows of a matrix of bytes as a binary array."""
    count, width = values.shape
    cuts = np.arange(0, count * width + 1, max(width, 1), dtype=np.int32)
    buffers = [None, pa.py_buffer(cuts), pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def hex_digits(numbers: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.uint8]:
    """Return the last `count` hex digits of numbers, as a matrix with a row for each number."""
    shifts = np.arange(4 * (count - 1), -1, -4)
    digits: npt.NDArray[np.uint8] = _HEX[(numbers[:, None] >> shifts) & 15]
    return digits


def _join(*parts: pa.Array | pa.Scalar) -> pa.Array:
    """Join the parts of each row; a null part makes the row null."""
    return pc.call_function("binary_join_element_wise", [*parts, pa.scalar(b"", pa.binary())])


def _check_bodies(bodies: pa.Array, first_row: int) -> None:
    sizes = np.asarray(pc.call_function("binary_length", [bodies]).fill_null(0))
    wrong = np.flatnonzero((sizes == 0) | (sizes > BODY_BYTES_MAX))
    if len(wrong):
        row = int(wrong[0])
        what = "is null" if not bodies[row].is_valid else f"has {sizes[row]} bytes"
        raise UsageError(
            f"the body of row {first_row + row} {what}; it must have 1 to {BODY_BYTES_MAX} bytes"
        )


def _encode_own(columns: dict[str, pa.Array], first_row: int) -> list[pa.Array | pa.Scalar]:
    """Return the fragments of the user's properties in the rows."""
    fragments: list[pa.Array | pa.Scalar] = []
    for column, name in _PROPERTY_OF.items():
        if column in columns:
            values = columns[column]
            if column == "keys":
                values = _join_keys(values, first_row)
            _refuse_separators(values, f"the {name}", lambda at: first_row + at)
            if column == "tags":
                _refuse_several_tags(values, first_row)
            fragments += _property(name, values)
    if "properties" in columns:
        fragments.append(_join_map(columns["properties"], first_row))
    return fragments


def _property(name: str, values: pa.Array) -> list[pa.Array | pa.Scalar]:
    """Return the fragments of `name 0x01 value 0x02` as bytes; empty for a null value."""
    values = values.cast(pa.binary())
    ends = [pa.scalar(each, pa.binary()) for each in (name.encode() + b"\x01", b"\x02")]
    sizes = pc.call_function("binary_length", [values]).fill_null(0)
    if np.asarray(sizes).all():
        return [ends[0], values, ends[1]]
    is_there = pc.call_function("greater", [sizes, 0])
    empty = pa.scalar(b"", pa.binary())
    return [pc.call_function("if_else", [is_there, _join(ends[0], values, ends[1]), empty])]


def _usual(column: pa.Array) -> pa.Array:
    """Return a column of texts with Arrow's usual types.

    Spark's setting `useLargeVarTypes` makes texts large. Spark's types of lists and maps declare
    whether elements may be null; Arrow joins only lists without that.
    """
    kind = column.type
    if pa.types.is_large_string(kind):
        return column.cast(pa.string())
    if pa.types.is_list(kind):
        return column.cast(pa.list_(pa.string()))
    return column.cast(_TEXT_MAP) if pa.types.is_map(kind) else column


def _join_keys(keys: pa.Array, first_row: int) -> pa.Array:
    if pa.types.is_string(keys.type):
        # The brokers' index splits keys at U+0020 alone, and a client's message at every blank.
        if _find_blank(keys, f"{BLANKS}|^ |  | $") is not None:
            joined = [text and " ".join(text.split()) for text in keys.to_pylist()]
            keys = pa.array(joined, pa.string())
        return keys
    each = keys.flatten()
    if (at := _find_blank(each, f"{BLANKS}| ")) is not None:
        row = first_row + pc.call_function("list_parent_indices", [keys])[at].as_py()
        raise UsageError(
            f"the key {each[at].as_py()[:80]!r} of row {row} has a blank, at which keys are split; "
            f"replace it, or give the keys as one text"
        )
    # Arrow's join would lose all keys of a row with a null.
    if each.null_count or 0 in np.asarray(pc.call_function("binary_length", [each])):
        lists = [row and [key for key in row if key] for row in keys.to_pylist()]
        keys = pa.array(lists, keys.type)
    return pc.call_function("binary_join", [keys, pa.scalar(" ", pa.string())])


def _find_blank(texts: pa.Array, pattern: str) -> int | None:
    """Return the index of the first text with a pattern of blanks, None without any."""
    *_, characters = texts.buffers()
    values = np.frombuffer(characters or b"", np.uint8)
    if not len(values) or (values.min() > 0x20 and values.max() < 0x80):
        return None  # The bytes beside a slice have no blanks either.
    options = pc.MatchSubstringOptions(pattern)
    found = pc.call_function("match_substring_regex", [texts], options=options)
    if not pc.call_function("any", [found]).as_py():
        return None
    return int(np.flatnonzero(np.asarray(found.fill_null(False)))[0])


def _join_map(maps: pa.MapArray, first_row: int) -> pa.Array:
    # Of a slice, Arrow gives the offsets alone, and the names and values of all rows.
    cuts = np.asarray(maps.offsets)
    begins, count = cuts - cuts[0], int(cuts[-1] - cuts[0])
    names, values = (each.slice(int(cuts[0]), count) for each in (maps.keys, maps.items))

    def row_of(at: int) -> int:
        return first_row + int(np.searchsorted(begins, at, side="right")) - 1

    _refuse_separators(names, "a property's name", row_of)
    _refuse_separators(values, "a property", row_of)
    reserved = pa.array(sorted(NO_USER_PROPERTIES), type=pa.string())
    found = pc.call_function("is_in", [names], options=pc.SetLookupOptions(reserved))
    if pc.call_function("any", [found]).as_py():
        at = int(np.flatnonzero(np.asarray(found.fill_null(False)))[0])
        raise UsageError(
            f"property {names[at].as_py()!r} of row {row_of(at)} is RocketMQ's own; leave it out "
            f"of column 'properties' (a read's column userProperties has none of these), and give "
            f"tags and keys as columns"
        )
    blank = pa.scalar(b"", pa.binary())
    pairs = pc.call_function(
        "binary_join_element_wise",
        [
            names.cast(pa.binary()),
            pa.scalar(b"\x01", pa.binary()),
            values.cast(pa.binary()),
            pa.scalar(b"\x02", pa.binary()),
            blank,
        ],
    ).fill_null(b"")
    lists = pa.ListArray.from_arrays(pa.array(begins), pairs)
    joined = pc.call_function("binary_join", [lists, blank])
    return pc.call_function("if_else", [maps.is_valid(), joined, blank])


def _refuse_several_tags(tags: pa.Array, first_row: int) -> None:
    """Raise a UsageError, with the row, for tags by which no consumer could filter."""
    options = pc.MatchSubstringOptions(TAG_SEPARATOR)
    found = pc.call_function("match_substring", [tags], options=options)
    if pc.call_function("any", [found]).as_py():
        at = int(np.flatnonzero(np.asarray(found.fill_null(False)))[0])
        raise UsageError(
            f"the tags of row {first_row + at} are {tags[at].as_py()[:80]!r}, but a message has "
            f"only one tag; give one tag"
        )


def _refuse_separators(values: pa.Array, what: str, row_of: Callable[[int], int]) -> None:
    """Raise a UsageError, with the row, for a text that contains a separator of properties."""
    *_, characters = values.buffers()
    if characters is None or not len(characters) or np.frombuffer(characters, np.uint8).min() > 2:
        return  # The bytes beside a slice have no separators either.
    options = pc.MatchSubstringOptions(_SEPARATORS)
    found = pc.call_function("match_substring_regex", [values], options=options)
    if pc.call_function("any", [found]).as_py():
        at = int(np.flatnonzero(np.asarray(found.fill_null(False)))[0])
        raise UsageError(
            f"{what} of row {row_of(at)}, {values[at].as_py()[:80]!r}, has the character 1 or 2, "
            f"which RocketMQ puts between properties; replace it"
        )

"""Decode a whole pull answer into Arrow columns at once, with NumPy over the record headers.

A pull answer is a buffer of records back to back. Decoding message by message in Python costs
several microseconds per message. Here Python touches a message once, to find its start, and each
requested column costs a few vector operations:

- the first 88 bytes of each record are copied side by side, for a processor waits longest for
  memory that it has not read yet; a fixed field is then a column of these heads;
- what stands behind a body, or behind an IPv6 host, is one gather of big-endian numbers;
- a variable field is one Arrow `take`: the buffer itself, cut at every begin and end of the field,
  is seen as a binary array of which every second element is wanted, so bytes are copied once;
- properties are taken into one text, whose separators (0x01, 0x02) NumPy finds all at once.

Python handles the rows that vector operations cannot: compressed bodies, and property texts that
repeat a name or are not UTF-8.

Record layout (big-endian; B and S are 8 for an IPv4 host and 20 for IPv6, by two bits of sysFlag):

```
field            distance            bytes   field                 distance          bytes
totalSize        0                   4       bornHost              48                B
magic            4                   4       storeTimestamp        48 + B            8
bodyCrc          8                   4       storeHost             56 + B            S
queueId          12                  4       reconsumeTimes        56 + B + S        4
flag             16                  4       preparedTransaction   60 + B + S        8
queueOffset      20                  8       bodySize              68 + B + S        4
physicalOffset   28                  8       body                  72 + B + S        bodySize
sysFlag          36                  4       topicSize, topic      then              1 (v2: 2) + n
bornTimestamp    40                  8       propertiesSize, text  then              2 + n
```
Source: RocketMQ 4.9.3 MessageDecoder.java; version 2 of the record from 5.3.3.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sparrowmq.errors import RemoteProtocolError
from sparrowmq.model.message import (
    INFLATED_BYTES_MAX,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    TIMESTAMP_MS_MAX,
    TIMESTAMP_MS_MIN,
)
from sparrowmq.model.namespace import NO_NAMESPACE, Namespace
from sparrowmq.protocol.compression import COMPRESSED, inflate
from sparrowmq.protocol.properties import parse_properties
from sparrowmq.protocol.record import (
    BORN_HOST_AT,
    BORN_HOST_V6,
    HEAD_FIELDS,
    INNER_BATCH,
    INNER_BATCH_REASON,
    MAGIC_V1,
    MAGIC_V2,
    POSITION_AT,
    QUEUE_OFFSET_AT,
    STORE_HOST_V6,
    TOPIC_BYTES_MAX,
    decode_host,
)
from sparrowmq.spark.body_reader import BodyReader
from sparrowmq.spark.row_encoding import NO_USER_PROPERTIES
from sparrowmq.spark.schema import BODY_COLUMNS

Ints: TypeAlias = npt.NDArray[np.int64]
Bytes: TypeAlias = npt.NDArray[np.uint8]
Heads: TypeAlias = npt.NDArray[np.void]

# A batch ends at this many inflated bytes. Together with the largest body after them, and with
# Arrow's copy of both, a batch has 64 MiB at most.
BATCH_INFLATED_BYTES = 16 * 1024 * 1024
# What a record begins with if its hosts are IPv4; with IPv6 hosts, up to the first host.
_HEAD = np.dtype(
    [(name, "V8" if form == "8s" else f">{form}") for name, form in HEAD_FIELDS.items()]
)
_BODY_COLUMNS = frozenset({"body", "value", *BODY_COLUMNS})
_RECORD_SIZE_MIN = 91
_SIZE = struct.Struct(">i")
# How many records are first assumed to have one size, and how many are read one by one if their
# sizes differ.
_WINDOW_MIN = 32
_STEPS_MAX = 512
_HEX = np.frombuffer(
    b"".join(f"{value:02X}".encode() for value in range(256)), dtype=np.uint8
).reshape(256, 2)
_NAME_VALUE_SEPARATOR = 1
_PROPERTY_SEPARATOR = 2

_TEXT_MAP = pa.map_(pa.string(), pa.string())
# The header type of Spark's source for Kafka, with Spark's name of list elements.
_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
_HEADERS = pa.list_(pa.field("element", _HEADER))
_INSTANT = pa.timestamp("us", tz="UTC")
_TYPES: dict[str, pa.DataType] = {
    "topic": pa.string(),
    "brokerName": pa.string(),
    "queueId": pa.int32(),
    "queueOffset": pa.int64(),
    "commitLogOffset": pa.int64(),
    "msgId": pa.string(),
    "offsetMsgId": pa.string(),
    "keys": pa.string(),
    "tags": pa.string(),
    "body": pa.binary(),
    "bodyError": pa.string(),
    "flag": pa.int32(),
    "sysFlag": pa.int32(),
    "bornTimestamp": _INSTANT,
    "storeTimestamp": _INSTANT,
    "bornHost": pa.string(),
    "storeHost": pa.string(),
    "reconsumeTimes": pa.int32(),
    "storeSize": pa.int32(),
    "properties": _TEXT_MAP,
    "userProperties": _TEXT_MAP,
    "key": pa.binary(),
    "value": pa.binary(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": _INSTANT,
    "timestampType": pa.int32(),
    "headers": _HEADERS,
}


def arrow_schema(names: Sequence[str], bodies: BodyReader | None = None) -> pa.Schema:
    """Return the Arrow schema of these columns, exactly as Spark requires it."""
    types = _TYPES if bodies is None else _TYPES | {"bodyFields": bodies.arrow_type}
    return pa.schema([pa.field(name, types[name]) for name in names])


def find_starts(records: bytes) -> Ints:
    """Return the start of each record of a buffer.

    Neighbouring records of one size are found many at once; other records one by one.

    Raises: RemoteProtocolError if the sizes do not lead exactly to the buffer's end.
    """
    found: list[Ints] = []
    position = 0
    end = len(records)
    window = _WINDOW_MIN
    while position + 4 <= end:
        size = _read_size(records, position)
        steps = position + size * np.arange(min(window, (end - position) // size))
        differs = np.flatnonzero(gather_numbers(records, steps, ">i4") != size)
        if len(differs):
            steps, window = steps[: differs[0]], _WINDOW_MIN
        else:
            window *= 2
        found.append(steps)
        position += size * len(steps)
        if len(differs) or len(steps) == 0:
            starts, position = _step(records, position)
            found.append(starts)
    if position != end:
        raise RemoteProtocolError(
            f"the last record of an answer of {end} bytes ends at {position}", position=end
        )
    return np.concatenate(found) if found else np.empty(0, dtype=np.int64)


def _step(records: bytes, position: int) -> tuple[Ints, int]:
    """Return the starts of the next few records, and the end of the last of them."""
    starts: list[int] = []
    end = len(records)
    while position + 4 <= end and len(starts) < _STEPS_MAX:
        starts.append(position)
        position += _read_size(records, position)
    return np.array(starts, dtype=np.int64), position


def _read_size(records: bytes, position: int) -> int:
    size: int = _SIZE.unpack_from(records, position)[0]
    if size < _RECORD_SIZE_MIN:
        raise RemoteProtocolError(f"a record says it has {size} bytes", position=position)
    return size


def gather_numbers(records: bytes | Bytes, positions: Ints, kind: str) -> Ints:
    """Read a number at each position; positions need no alignment."""
    dtype = np.dtype(kind)
    count = len(records) - dtype.itemsize + 1
    if len(positions) == 0 or count <= 0:
        return np.zeros(len(positions), dtype=np.int64)
    view: npt.NDArray[Any] = np.ndarray((count,), dtype, buffer=records, strides=(1,))
    return view[positions].astype(np.int64)


def gather_heads(records: bytes, starts: Ints) -> Heads:
    """Copy the first 88 bytes of each record, as an array with the fields of `_HEAD`.

    Raises: RemoteProtocolError if the buffer ends before.
    """
    count = len(records) - _HEAD.itemsize + 1
    beyond = np.flatnonzero(starts >= count)
    if len(beyond):
        raise RemoteProtocolError(
            f"a record begins less than {_HEAD.itemsize} bytes before the end",
            position=int(starts[beyond[0]]),
        )
    if len(starts) == 0:
        return np.empty(0, _HEAD)
    view = np.ndarray((count,), f"V{_HEAD.itemsize}", buffer=records, strides=(1,))
    return view[starts].view(_HEAD)


def store_timestamps_ms(records: bytes, starts: Ints) -> Ints:
    """Return the store time of each record."""
    layout = _lay_out(records, starts, gather_heads(records, starts))
    return gather_numbers(records, layout.store_timestamp_at, ">i8")


def queue_offsets(records: bytes, starts: Ints) -> Ints:
    """Return the queue offset of each record."""
    return gather_numbers(records, starts + QUEUE_OFFSET_AT, ">i8")


def select_tags(records: bytes, starts: Ints, tags: frozenset[str]) -> Ints:
    """Return the starts of the records with one of the tags."""
    if len(starts) == 0:
        return starts
    heads = gather_heads(records, starts)
    context = _Context(records, starts, heads, _lay_out(records, starts, heads), "", 0)
    found = _decode_property(context, PROPERTY_TAGS)
    is_wanted = pc.call_function(
        "is_in", [found], options=pc.SetLookupOptions(pa.array(sorted(tags), type=pa.string()))
    )
    wanted: Ints = starts[np.asarray(is_wanted)]
    return wanted


def decode_columns(
    records: bytes,
    starts: Ints,
    *,
    schema: pa.Schema,
    broker_name: str,
    partition: int | Ints = 0,
    bodies: BodyReader | None = None,
    on_unreadable: Callable[[int, str], None],
) -> Iterator[pa.RecordBatch]:
    """Decode records into batches: one batch, or several if compressed bodies inflate to much.

    Args:
        starts: the positions of the records to decode, ascending (from `find_starts`).
        schema: a schema of `arrow_schema`.
        broker_name: the broker of the records; a record does not name its broker.
        partition: the number for the column `partition`, of all records or of each.
        bodies: the reader of bodies, for the columns `bodyFields` and `bodyError`.
        on_unreadable: called with the start of a record whose body cannot be read, and the reason;
            the row is left out unless the call raises.

    Raises: RemoteProtocolError if a record contradicts its own sizes.
    """
    heads = gather_heads(records, starts)
    layout = _lay_out(records, starts, heads)
    is_compressed = (layout.sys_flags & (COMPRESSED | INNER_BATCH)) != 0
    if not is_compressed.any() or _BODY_COLUMNS.isdisjoint(schema.names):
        context = _Context(records, starts, heads, layout, broker_name, partition, bodies)
        yield _decode_rows(context, schema)
        return
    for rows, inflated in _inflate_rows(records, starts, layout, is_compressed, on_unreadable):
        part = _Layout(*[getattr(layout, name)[rows] for name in _Layout.__slots__])
        numbers = partition if isinstance(partition, int) else partition[rows]
        context = _Context(
            records, starts[rows], heads[rows], part, broker_name, numbers, bodies, inflated
        )
        yield _decode_rows(context, schema)


def _decode_rows(context: _Context, schema: pa.Schema) -> pa.RecordBatch:
    arrays = [_COLUMN_DECODERS[name](context) for name in schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _inflate_rows(
    records: bytes,
    starts: Ints,
    layout: _Layout,
    is_compressed: npt.NDArray[np.bool_],
    on_unreadable: Callable[[int, str], None],
) -> Iterator[tuple[Ints, dict[int, bytes]]]:
    """Yield the rows of each batch, with inflated bodies by their place in the batch."""
    rows: list[int] = []
    inflated: dict[int, bytes] = {}
    size = 0
    columns = (is_compressed, layout.sys_flags, layout.body_at, layout.body_end)
    for row, (inflates, sys_flag, begin, end) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        if inflates:
            try:
                inflated[len(rows)] = body = _inflate(records[begin:end], sys_flag)
            except RemoteProtocolError as error:
                on_unreadable(int(starts[row]), str(error))
                continue
            size += len(body)
        rows.append(row)
        if size >= BATCH_INFLATED_BYTES:
            yield np.array(rows, dtype=np.int64), inflated
            rows, inflated, size = [], {}, 0
    if rows:
        yield np.array(rows, dtype=np.int64), inflated


def _inflate(body: bytes, sys_flag: int) -> bytes:
    if sys_flag & INNER_BATCH:
        raise RemoteProtocolError(INNER_BATCH_REASON)
    plain = inflate(body, sys_flag=sys_flag, bytes_max=INFLATED_BYTES_MAX)
    if plain is None:
        raise RemoteProtocolError(f"its body inflates beyond {INFLATED_BYTES_MAX} bytes")
    return plain


def plain_topics(batch: pa.RecordBatch, namespace: Namespace) -> pa.RecordBatch:
    """Return the rows with the namespace removed from the column `topic`, if there is one."""
    at = batch.schema.get_field_index("topic")
    if at < 0 or namespace == NO_NAMESPACE:
        return batch
    names = batch.column(at).dictionary_encode()
    plain = [namespace.unwrap(name) for name in names.dictionary.to_pylist()]
    topics = pa.array(plain, pa.string()).take(names.indices)
    return batch.set_column(at, batch.schema.field(at), topics)


@dataclass(frozen=True, slots=True)
class _Layout:
    """The positions of the parts of each record in the buffer."""

    sys_flags: Ints
    store_timestamp_at: Ints
    store_host_at: Ints
    reconsume_times_at: Ints
    body_at: Ints
    body_end: Ints
    topic_at: Ints
    topic_end: Ints
    properties_at: Ints
    properties_end: Ints


@dataclass(slots=True)
class _Context:
    records: bytes
    starts: Ints
    heads: Heads
    layout: _Layout
    broker_name: str
    partition: int | Ints
    bodies: BodyReader | None = None
    # Bodies by row that were inflated, and so differ from the bodies in the records.
    inflated: dict[int, bytes] = field(default_factory=dict)
    parts: _Parts | None = None
    # The fields of bodies, and why a body has none.
    read: tuple[pa.Array, pa.Array] | None = None

    @property
    def count(self) -> int:
        return len(self.starts)


def _lay_out(records: bytes, starts: Ints, heads: Heads) -> _Layout:
    if len(starts) == 0:
        return _Layout(*[starts] * 10)
    size = len(records)
    magic = heads["magic"].astype(np.int64)
    sys_flags = heads["sys_flag"].astype(np.int64)
    born_size = np.where(sys_flags & BORN_HOST_V6, 20, 8)
    store_size = np.where(sys_flags & STORE_HOST_V6, 20, 8)
    store_timestamp_at = starts + BORN_HOST_AT + born_size
    store_host_at = store_timestamp_at + 8
    reconsume_times_at = store_host_at + store_size
    body_at = reconsume_times_at + 16
    _check(body_at <= size, records, starts, "its header runs over the end")
    if (sys_flags & (BORN_HOST_V6 | STORE_HOST_V6)).any():
        body_end = body_at + gather_numbers(records, body_at - 4, ">i4")
    else:
        body_end = body_at + heads["body_size"]
    _check(
        (body_at <= body_end) & (body_end + 3 <= size),
        records,
        starts,
        "its body runs over the end",
    )
    is_v2 = magic == MAGIC_V2
    _check(is_v2 | (magic == MAGIC_V1), records, starts, "its magic number is unknown")
    if is_v2.any():
        wide = gather_numbers(records, body_end, ">u2")
        topic_at = body_end + np.where(is_v2, 2, 1)
        topic_end = topic_at + np.where(is_v2, wide, gather_numbers(records, body_end, "u1"))
    else:
        topic_at = body_end + 1
        topic_end = topic_at + gather_numbers(records, body_end, "u1")
    properties_at = topic_end + 2
    fits = (is_v2 | (topic_end - topic_at <= TOPIC_BYTES_MAX)) & (properties_at <= size)
    _check(fits, records, starts, "its topic has no legal size")
    properties_end = properties_at + gather_numbers(records, topic_end, ">u2")
    _check(
        properties_end == starts + heads["size"],
        records,
        starts,
        "its parts do not add up to its size",
    )
    return _Layout(
        sys_flags=sys_flags,
        store_timestamp_at=store_timestamp_at,
        store_host_at=store_host_at,
        reconsume_times_at=reconsume_times_at,
        body_at=body_at,
        body_end=body_end,
        topic_at=topic_at,
        topic_end=topic_end,
        properties_at=properties_at,
        properties_end=properties_end,
    )


def _check(ok: npt.NDArray[np.bool_], records: bytes, starts: Ints, message: str) -> None:
    if not ok.all():
        start = starts[[int(np.argmin(ok))]]
        offset = queue_offsets(records, start)[0]
        raise RemoteProtocolError(
            f"the record of queue offset {offset} is damaged: {message}", position=int(start[0])
        )


def _take(records: bytes | Bytes, begins: Ints, ends: Ints, kind: pa.DataType) -> pa.Array:
    """Copy the slices of a buffer into a binary or string array.

    Slices must be in order and may not overlap. The bytes of a string array are not checked as
    UTF-8.
    """
    count = len(begins)
    width = int(ends[0] - begins[0]) if count else 0
    if width and (ends - begins == width).all():
        view = np.ndarray((len(records) - width + 1,), f"V{width}", buffer=records, strides=(1,))
        cuts = np.arange(0, (count + 1) * width, width, dtype=np.int32)
        return pa.Array.from_buffers(
            kind, count, [None, pa.py_buffer(cuts), pa.py_buffer(view[begins].view(np.uint8))]
        )
    cuts = np.empty(2 * count + 1, dtype=np.int32)
    cuts[0] = 0
    cuts[1::2] = begins
    cuts[2::2] = ends
    whole = pa.Array.from_buffers(
        kind, 2 * count, [None, pa.py_buffer(cuts), pa.py_buffer(records)]
    )
    return whole.take(pa.array(np.arange(1, 2 * count, 2, dtype=np.int32)))


def _take_text(records: bytes, begins: Ints, ends: Ints) -> pa.Array:
    """Copy slices into a string array; bytes that are not UTF-8 become U+FFFD, as in Java."""
    return _valid_text(_take(records, begins, ends, pa.string()))


def _valid_text(texts: pa.Array) -> pa.Array:
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        raw = texts.cast(pa.binary())
        values = [
            None if each is None else each.decode("utf-8", "replace") for each in raw.to_pylist()
        ]
        return pa.array(values, type=pa.string())
    return texts


def _constant(context: _Context, value: str | int, kind: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar(value, type=kind), context.count)


def _numbers(context: _Context, name: str) -> pa.Array:
    found = context.heads[name]
    return pa.array(found.astype(found.dtype.newbyteorder("=")))


def _instants(timestamps_ms: Ints, is_null: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    return pa.array(timestamps_ms * 1000, type=pa.int64(), mask=is_null).view(_INSTANT)


def _decode_born_timestamp(context: _Context) -> pa.Array:
    times_ms = context.heads["born_timestamp"].astype(np.int64)
    # A producer may write any number, and Python could not collect rows with such a time.
    is_none = (times_ms < TIMESTAMP_MS_MIN) | (times_ms > TIMESTAMP_MS_MAX)
    return _instants(times_ms, is_none if is_none.any() else None)


def _decode_store_timestamp(context: _Context) -> pa.Array:
    at = context.layout.store_timestamp_at
    return _instants(gather_numbers(context.records, at, ">i8"))


def _decode_reconsume_times(context: _Context) -> pa.Array:
    times = gather_numbers(context.records, context.layout.reconsume_times_at, ">i4")
    return pa.array(times.astype(np.int32))


def _decode_body(context: _Context) -> pa.Array:
    layout = context.layout
    bodies = _take(context.records, layout.body_at, layout.body_end, pa.binary())
    if not context.inflated:
        return bodies
    found = bodies.to_pylist()
    for row, body in context.inflated.items():
        found[row] = body
    return pa.array(found, type=pa.binary())


def _read_bodies(context: _Context) -> tuple[pa.Array, pa.Array]:
    if context.read is None:
        assert context.bodies is not None
        context.read = context.bodies.read_all(_decode_body(context).to_pylist())
    return context.read


def _decode_partition(context: _Context) -> pa.Array:
    if isinstance(context.partition, int):
        return _constant(context, context.partition, pa.int32())
    return pa.array(context.partition.astype(np.int32))


def _decode_topic(context: _Context) -> pa.Array:
    return _take_text(context.records, context.layout.topic_at, context.layout.topic_end)


def _decode_offset_msg_id(context: _Context) -> pa.Array:
    """Upper-case hex of the store host (ip, port) and the position in the commit log."""
    layout = context.layout
    host_sizes = layout.reconsume_times_at - layout.store_host_at
    records = context.records
    if (host_sizes == 8).all():
        buffer = np.frombuffer(records, dtype=np.uint8)
        raw = np.concatenate(
            [
                buffer[layout.store_host_at[:, None] + np.arange(8)],
                buffer[context.starts[:, None] + np.arange(POSITION_AT, POSITION_AT + 8)],
            ],
            axis=1,
        )
        digits = np.ascontiguousarray(_HEX[raw].reshape(context.count, 32))
        cuts = np.arange(0, 32 * context.count + 1, 32, dtype=np.int32)
        return pa.Array.from_buffers(
            pa.string(), context.count, [None, pa.py_buffer(cuts), pa.py_buffer(digits)]
        )
    ids = [
        (records[at : at + size] + records[start + POSITION_AT : start + POSITION_AT + 8])
        .hex()
        .upper()
        for at, size, start in zip(
            layout.store_host_at.tolist(),
            host_sizes.tolist(),
            context.starts.tolist(),
            strict=True,
        )
    ]
    return pa.array(ids, type=pa.string())


def _hosts(context: _Context, begins: Ints, ends: Ints) -> pa.Array:
    raw = _take(context.records, begins, ends, pa.binary()).dictionary_encode()
    texts = pa.array([decode_host(each) for each in raw.dictionary.to_pylist()], type=pa.string())
    return texts.take(raw.indices)


@dataclass(frozen=True, slots=True)
class _Parts:
    """The property texts of all rows, cut at every 0x02.

    Each text is copied with the byte before it, which is then set to 0x02. `cuts` has the starts of
    these texts, and the end of the last text.
    """

    text: Bytes
    cuts: Ints
    begins: Ints
    ends: Ints

    def rows_of(self, begins: Ints) -> Ints:
        """Return the row of each part."""
        rows: Ints = np.searchsorted(self.cuts, begins, side="right") - 1
        return rows


def _split_parts(context: _Context) -> _Parts:
    if context.parts is not None:
        return context.parts
    layout = context.layout
    taken = _take(context.records, layout.properties_at - 1, layout.properties_end, pa.binary())
    cuts = np.frombuffer(taken.buffers()[1], dtype=np.int32)[: context.count + 1].astype(np.int64)
    text: Bytes = np.frombuffer(taken.buffers()[2], dtype=np.uint8)[: cuts[-1]]
    text[cuts[:-1]] = _PROPERTY_SEPARATOR
    before = np.flatnonzero(text == _PROPERTY_SEPARATOR)
    context.parts = _Parts(text, cuts, begins=before + 1, ends=np.append(before[1:], len(text)))
    return context.parts


@dataclass(frozen=True, slots=True)
class _Properties:
    """All properties of all rows, in the order of the text: their rows and their places."""

    text: Bytes
    row: Ints
    name_at: Ints
    name_end: Ints
    value_end: Ints


def _split_properties(context: _Context) -> _Properties:
    """Cut the property texts by the rule of Java's `string2messageProperties`.

    A part is a property if bytes precede and follow the first 0x01 in it.
    """
    parts = _split_parts(context)
    text, begins, ends = parts.text, parts.begins, parts.ends
    separators = np.append(np.flatnonzero(text == _NAME_VALUE_SEPARATOR), len(text))
    middles = separators[np.searchsorted(separators, begins)]
    whole = (begins < middles) & (middles < ends - 1)
    return _Properties(
        text=text,
        row=parts.rows_of(begins[whole]),
        name_at=begins[whole],
        name_end=middles[whole],
        value_end=ends[whole],
    )


def _decode_property(context: _Context, name: str) -> pa.Array:
    """Return the values of one property as text; null for a row without the property."""
    return _valid_text(_take_property(context, name, pa.string()))


def _take_property(context: _Context, name: str, kind: pa.DataType) -> pa.Array:
    """Return the values of one property; the last of several in one text, as in Java."""
    parts = _split_parts(context)
    text, begins = parts.text, parts.begins
    head = name.encode() + bytes([_NAME_VALUE_SEPARATOR])
    same = np.flatnonzero(parts.ends - begins > len(head))
    at = 0
    while at < len(head):
        # As many bytes as fit in a number are compared at once.
        width = next(each for each in (8, 4, 2, 1) if each <= len(head) - at)
        wanted = int.from_bytes(head[at : at + width])
        same = same[gather_numbers(text, begins[same] + at, f">u{width}") == wanted]
        at += width
    name_at = begins[same]
    if (
        len(same) == context.count
        and ((parts.cuts[:-1] < name_at) & (name_at < parts.cuts[1:])).all()
    ):
        return _take(text, name_at + len(head), parts.ends[same], kind)
    rows = parts.rows_of(name_at)
    if len(rows) > 1:
        is_last = np.append(rows[1:] != rows[:-1], True)
        same, rows = same[is_last], rows[is_last]
    values = _take(text, begins[same] + len(head), parts.ends[same], kind)
    places = np.full(context.count, -1, dtype=np.int64)
    places[rows] = np.arange(len(rows))
    return values.take(pa.array(places, mask=places < 0))


def _decode_keys_as_bytes(context: _Context) -> pa.Array:
    return _take_property(context, PROPERTY_KEYS, pa.binary())


def _decode_msg_id(context: _Context) -> pa.Array:
    given = _decode_property(context, PROPERTY_UNIQ_KEY)
    if given.null_count == 0:
        return given
    made = _decode_offset_msg_id(context)
    return pc.call_function("coalesce", [given, made])


def _decode_properties(context: _Context) -> pa.Array:
    found = _split_properties(context)
    text = found.text
    names = _take(text, found.name_at, found.name_end, pa.string())
    values = _take(text, found.name_end + 1, found.value_end, pa.string())
    if _is_utf8(names) and _is_utf8(values) and not _has_repeats(names, found.row):
        cuts = np.searchsorted(found.row, np.arange(context.count + 1)).astype(np.int32)
        return pa.MapArray.from_arrays(pa.array(cuts), names, values)
    layout = context.layout
    texts = _take(context.records, layout.properties_at, layout.properties_end, pa.binary())
    maps = [
        list(parse_properties(each.decode("utf-8", "replace")).items())
        for each in texts.to_pylist()
    ]
    return pa.array(maps, type=_TEXT_MAP)


def _decode_user_properties(context: _Context) -> pa.MapArray:
    """Return the properties without RocketMQ's own and without those of a write."""
    maps = _decode_properties(context)
    reserved = pa.array(sorted(NO_USER_PROPERTIES), type=pa.string())
    is_own = pc.call_function("is_in", [maps.keys], options=pc.SetLookupOptions(reserved))
    kept = np.flatnonzero(~np.asarray(is_own))
    cuts = np.searchsorted(kept, np.asarray(maps.offsets)).astype(np.int32)
    return pa.MapArray.from_arrays(pa.array(cuts), maps.keys.take(kept), maps.items.take(kept))


def _decode_headers(context: _Context) -> pa.Array:
    """Return the user's properties as Kafka's headers; null for a row without any, as in Kafka."""
    maps = _decode_user_properties(context)
    pairs = pa.StructArray.from_arrays(
        [maps.keys, maps.items.cast(pa.binary())], names=_HEADER.names
    )
    cuts = np.asarray(maps.offsets)
    # A null offset makes its list null.
    is_empty = np.append(cuts[1:] == cuts[:-1], False)
    return pa.ListArray.from_arrays(pa.array(cuts, mask=is_empty), pairs, type=_HEADERS)


def _is_utf8(texts: pa.Array) -> bool:
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _has_repeats(names: pa.Array, rows: Ints) -> bool:
    """Return whether a row has a name twice; `rows` ascend."""
    encoded = names.dictionary_encode()
    distinct = len(encoded.dictionary)
    pairs = rows * distinct + np.asarray(encoded.indices, dtype=np.int64)
    pairs.sort()
    return bool((pairs[1:] == pairs[:-1]).any())


_COLUMN_DECODERS: dict[str, Callable[[_Context], pa.Array]] = {
    "topic": _decode_topic,
    "brokerName": lambda c: _constant(c, c.broker_name, pa.string()),
    "queueId": lambda c: _numbers(c, "queue_id"),
    "queueOffset": lambda c: _numbers(c, "queue_offset"),
    "commitLogOffset": lambda c: _numbers(c, "position"),
    "msgId": _decode_msg_id,
    "offsetMsgId": _decode_offset_msg_id,
    "keys": lambda c: _decode_property(c, PROPERTY_KEYS),
    "tags": lambda c: _decode_property(c, PROPERTY_TAGS),
    "body": _decode_body,
    "bodyFields": lambda c: _read_bodies(c)[0],
    "bodyError": lambda c: _read_bodies(c)[1],
    "flag": lambda c: _numbers(c, "flag"),
    "sysFlag": lambda c: _numbers(c, "sys_flag"),
    "bornTimestamp": _decode_born_timestamp,
    "storeTimestamp": _decode_store_timestamp,
    "bornHost": lambda c: _hosts(c, c.starts + BORN_HOST_AT, c.layout.store_timestamp_at),
    "storeHost": lambda c: _hosts(c, c.layout.store_host_at, c.layout.reconsume_times_at),
    "reconsumeTimes": _decode_reconsume_times,
    "storeSize": lambda c: _numbers(c, "size"),
    "properties": _decode_properties,
    "userProperties": _decode_user_properties,
    "key": _decode_keys_as_bytes,
    "value": _decode_body,
    "partition": _decode_partition,
    "offset": lambda c: _numbers(c, "queue_offset"),
    "timestamp": _decode_born_timestamp,
    "timestampType": lambda c: _constant(c, 0, pa.int32()),
    "headers": _decode_headers,
}

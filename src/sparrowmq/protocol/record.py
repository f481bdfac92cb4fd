"""The record: the form of a message in the commit log and in the answers to pulls. Pure.

| bytes | type | field |
|---|---|---|
| 4 | int | size of the whole record |
| 4 | int | magic code: DAA320A7 v1, DAA320AB v2, CBD43194 blank at a file's end |
| 4 | int | CRC-32 of the body as stored, without its sign bit |
| 4 | int | queue id |
| 4 | int | flag |
| 8 | long | queue offset |
| 8 | long | position in the commit log |
| 4 | int | sys flag, the bits below |
| 8 | long | born timestamp, ms |
| 8 or 20 | ip + int | born host; 20 with sys flag bit 4 |
| 8 | long | store timestamp, ms |
| 8 or 20 | ip + int | store host; 20 with sys flag bit 5 |
| 4 | int | reconsume times |
| 8 | long | position of the prepared transaction |
| 4 + n | int + bytes | body |
| 1 + n | byte + bytes | topic; in v2 the length is a short |
| 2 + n | short + bytes | properties |

Record v2 (RocketMQ 5) is read and never written.

Speed matters here: benchmarks/protocol.py, benchmarks/against_apache.py. `_decode_plain` reads
consecutive usual records: v1, v4 hosts, not compressed. It stops before any other record and
before a damaged one, which the general reader then judges.
Source: RocketMQ 4.9.3 common/message/MessageDecoder.java, store/CommitLog.java.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from ipaddress import ip_address
from struct import Struct as Layout
from struct import error as LayoutError  # noqa: N812
from typing import Any, NamedTuple

import msgspec

from sparrowmq.errors import LocalProtocolError, RemoteProtocolError
from sparrowmq.model import MessageExt
from sparrowmq.model.message import INFLATED_BYTES_MAX
from sparrowmq.model.whole_number import read_whole_number
from sparrowmq.protocol import speedups
from sparrowmq.protocol.compression import COMPRESSED, inflate
from sparrowmq.protocol.framing import FRAME_BYTES_MAX
from sparrowmq.protocol.properties import PROPERTIES_BYTES_MAX, StoredProperties

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
MAGIC_BLANK = 0xCBD43194

# MessageSysFlag.java; the bits of compression are those of `protocol/compression.py`.
MULTI_TAGS = 0x2
TRANSACTION_TYPE = 0xC
TRANSACTION_NONE = 0x0
TRANSACTION_PREPARED = 0x4
TRANSACTION_COMMIT = 0x8
TRANSACTION_ROLLBACK = 0xC
BORN_HOST_V6 = 0x10
STORE_HOST_V6 = 0x20
V6_BITS = BORN_HOST_V6 | STORE_HOST_V6
# A batch that RocketMQ 5 stores as one record, in topics with the attribute queue.type=BatchCQ.
INNER_BATCH = 0x80
INNER_BATCH_REASON = (
    "it is a batch that is stored as one message, as in a topic with queue.type=BatchCQ, and is "
    "not taken apart here"
)
PROPERTY_INNER_NUM = "INNER_NUM"

# The fields of a head with IPv4 hosts, and their formats. Every layout of records comes from
# this table.
HEAD_FIELDS = {
    "size": "i",
    "magic": "I",
    "body_crc": "i",
    "queue_id": "i",
    "flag": "i",
    "queue_offset": "q",
    "position": "q",
    "sys_flag": "i",
    "born_timestamp": "q",
    "born_host": "8s",
    "store_timestamp": "q",
    "store_host": "8s",
    "reconsume_times": "i",
    "prepared_transaction": "q",
    "body_size": "i",
}


def head_layout(*names: str, **formats: str) -> Layout:
    """Return the layout of some fields of a record's head; of all fields without names.

    Args:
        formats: the formats of fields that differ from the table.
    """
    table, layout, skipped = HEAD_FIELDS | formats, ">", 0
    for name, form in table.items():
        if names and name not in names:
            skipped += Layout(f">{form}").size
        else:
            layout, skipped = layout + (f"{skipped}x" if skipped else "") + form, 0
    return Layout(layout)


def head_position(name: str) -> int:
    """Return the position of a field in a record; of those behind a host, if hosts are IPv4."""
    names = list(HEAD_FIELDS)
    return Layout(">" + "".join(HEAD_FIELDS[each] for each in names[: names.index(name)])).size


# The positions of single fields within a record, for code that reads one field.
QUEUE_ID_AT = head_position("queue_id")
QUEUE_OFFSET_AT, POSITION_AT = head_position("queue_offset"), head_position("position")
BORN_HOST_AT = head_position("born_host")
SYS_FLAG_LAST_AT = head_position("born_timestamp") - 1

TOPIC_BYTES_MAX = 127
# The inflated bytes after which a call of `decode_messages` ends: about 10 ms at 500 MB/s.
INFLATED_TURN_BYTES = 4_194_304

# The bits of records that `_decode_plain` leaves to the general reader.
_UNUSUAL_BITS = V6_BITS | COMPRESSED | INNER_BATCH
_HEAD_V4 = head_layout()
HEAD_SIZE = _HEAD_V4.size
_HEAD_V6_BORN, _HEAD_V6_STORE = head_layout(born_host="20s"), head_layout(store_host="20s")
_HEAD_V6 = head_layout(born_host="20s", store_host="20s")
# The index is the two bits BORN_HOST_V6 and STORE_HOST_V6.
_HEADS = (_HEAD_V4, _HEAD_V6_BORN, _HEAD_V6_STORE, _HEAD_V6)
# A part of the head: the record's size, magic code, queue id, queue offset and sys flag.
_PLACE = head_layout("size", "magic", "queue_id", "queue_offset", "sys_flag")
_SHORT, _INT, _LONG = Layout(">H"), Layout(">i"), Layout(">q")
# How a record begins, and the blank at the end of a file that no record fits into.
SIZE_AND_MAGIC = head_layout("size", "magic", size="I")


class Record(msgspec.Struct, kw_only=True, gc=False):
    """A stored message.

    Args:
        body: the stored bytes, compressed if `sys_flag` says so.
        properties: the properties text (`properties.encode_properties`).
        born_host: 4 or 16 ip bytes and 4 port bytes (`encode_host`); `store_host` likewise.
        queue_offset: the place in the queue, in messages.
        position: the place in the commit log, in bytes.
        body_crc: the checksum that was read; a write computes it.
        size: the bytes of the whole record that was read; a write computes them.
    """

    topic: str
    queue_id: int
    body: bytes
    properties: str = ""
    flag: int = 0
    sys_flag: int = 0
    born_timestamp_ms: int = 0
    born_host: bytes = bytes(8)
    store_timestamp_ms: int = 0
    store_host: bytes = bytes(8)
    queue_offset: int = 0
    position: int = 0
    reconsume_times: int = 0
    prepared_transaction_position: int = 0
    body_crc: int = 0
    size: int = 0


# A message in a batch: its flag, the start of its body, the start of its properties, its end.
BatchSpan = tuple[int, int, int, int]


class BatchEntry(NamedTuple):
    """One message in the body of SEND_BATCH_MESSAGE."""

    flag: int
    body: bytes
    properties: str


def head_of(born_host: bytes, store_host: bytes) -> tuple[Layout, int]:
    """Return the layout of a record's head, and the sys flag's bits that select the layout."""
    bits = (len(born_host) == 20) | (len(store_host) == 20) << 1
    return _HEADS[bits], bits << 4


def encode_record(record: Record) -> bytes:
    """Write a record v1; the lengths of the hosts set their bits in the sys flag.

    Raises: LocalProtocolError if a field does not fit.
    """
    try:
        topic, properties = record.topic.encode(), record.properties.encode()
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"a record cannot carry {record!r:.500}: {error}") from error
    if len(topic) > TOPIC_BYTES_MAX or len(properties) > PROPERTIES_BYTES_MAX:
        raise LocalProtocolError(
            f"a topic of {len(topic)} bytes (at most {TOPIC_BYTES_MAX}) and properties of "
            f"{len(properties)} (at most {PROPERTIES_BYTES_MAX}) do not fit into a record"
        )
    head, _ = head_of(record.born_host, record.store_host)
    size = head.size + len(record.body) + 1 + len(topic) + 2 + len(properties)
    topic_field = bytes((len(topic),)) + topic
    return lay_out_record(record, size, topic_field, properties, len(properties))


def lay_out_record(
    record: Record, size: int, topic_field: bytes, properties: bytes, properties_size: int
) -> bytes:
    """Write a record of known size up to the given part of its properties.

    Args:
        topic_field: the topic, preceded by its length.
        properties_size: the bytes of all properties, with those that the caller appends later.

    Raises: LocalProtocolError if a field does not fit.
    """
    body = record.body
    head, v6_bits = head_of(record.born_host, record.store_host)
    try:
        packed = head.pack(
            size,
            MAGIC_V1,
            zlib.crc32(body) & 0x7FFFFFFF,
            record.queue_id,
            record.flag,
            record.queue_offset,
            record.position,
            record.sys_flag & ~V6_BITS | v6_bits,
            record.born_timestamp_ms,
            record.born_host,
            record.store_timestamp_ms,
            record.store_host,
            record.reconsume_times,
            record.prepared_transaction_position,
            len(body),
        )
    except LayoutError as error:
        raise LocalProtocolError(f"a record cannot carry {record!r:.500}: {error}") from error
    return b"".join((packed, body, topic_field, _SHORT.pack(properties_size), properties))


def decode_record(
    buffer: bytes | bytearray | memoryview, at: int = 0, *, check_crc: bool = True
) -> Record:
    """Read the record at `at`.

    Raises: RemoteProtocolError if the record is damaged, or the buffer ends within the record.
    """
    fields, body_at, topic_at = _unpack_head(buffer, at)
    body = bytes(buffer[body_at:topic_at])
    if check_crc and zlib.crc32(body) & 0x7FFFFFFF != fields[2]:
        raise RemoteProtocolError("a body that does not match its CRC", position=at)
    end = at + fields[0]
    topic, properties = _cut_tail(buffer, topic_at, end, is_v2=fields[1] == MAGIC_V2)
    return Record(
        topic=topic,
        queue_id=fields[3],
        body=body,
        # Java replaces bytes that are not UTF-8 by U+FFFD.
        properties=properties.decode("utf-8", "replace"),
        flag=fields[4],
        sys_flag=fields[7],
        born_timestamp_ms=fields[8],
        born_host=fields[9],
        store_timestamp_ms=fields[10],
        store_host=fields[11],
        queue_offset=fields[5],
        position=fields[6],
        reconsume_times=fields[12],
        prepared_transaction_position=fields[13],
        body_crc=fields[2],
        size=fields[0],
    )


def _unpack_head(
    buffer: bytes | bytearray | memoryview, at: int
) -> tuple[tuple[Any, ...], int, int]:
    """Return a record's head, in the layout's order, and the starts of its body and topic.

    Raises: RemoteProtocolError as `decode_record`.
    """
    try:
        # The sys flag's last byte, before the fields whose lengths it gives.
        head = _HEADS[buffer[at + SYS_FLAG_LAST_AT] >> 4 & 3]
        fields = head.unpack_from(buffer, at)
    except (IndexError, LayoutError) as error:
        raise RemoteProtocolError("a record that ends early", position=at) from error
    size, magic, body_size = fields[0], fields[1], fields[14]
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        raise RemoteProtocolError(f"magic code {magic:08x} is not a record's", position=at + 4)
    if at + size > len(buffer):
        raise RemoteProtocolError(f"a record of {size} bytes does not fit", position=at)
    body_at = at + head.size
    topic_at = body_at + body_size
    if body_size < 0 or topic_at + 3 > at + size:
        raise RemoteProtocolError(f"a body of {body_size} bytes", position=body_at - 4)
    return fields, body_at, topic_at


def scan_records(buffer: bytes) -> Iterator[tuple[str, int, int]]:
    """Yield the topic, queue id and queue offset of records without reading their bodies.

    The iterator ends at the first bytes that are not a record; `decode_record` gives the reason.
    """
    at, end = 0, len(buffer)
    # The records of one answer share their topic.
    known, topic = b"", ""
    while at + _HEAD_V4.size < end:
        size, magic, queue_id, queue_offset, sys_flag = _PLACE.unpack_from(buffer, at)
        body_at = at + _HEADS[sys_flag >> 4 & 3].size
        length_at = body_at + int.from_bytes(buffer[body_at - 4 : body_at])
        topic_at = length_at + (2 if magic == MAGIC_V2 else 1)
        topic_end = topic_at + int.from_bytes(buffer[length_at:topic_at])
        at += size
        if magic not in (MAGIC_V1, MAGIC_V2) or not topic_end < at <= end:
            return
        found = buffer[topic_at:topic_end]
        if found != known:
            known, topic = found, found.decode(errors="replace")
        yield topic, queue_id, queue_offset


def begins_with_batch(buffer: bytes) -> bool:
    """Return whether the first record is a batch: a pull may begin at an offset within it."""
    return len(buffer) > SYS_FLAG_LAST_AT and bool(buffer[SYS_FLAG_LAST_AT] & INNER_BATCH)


def renumber(buffer: bytes, *, queue_id: int, offset_delta: int) -> tuple[bytes, int]:
    """Return records as those of another queue, and the offset behind the last; 0 without one.

    What follows the first bytes that are not a record stays as it is.
    """
    renumbered, at, end_offset = bytearray(buffer), 0, 0
    while at + _HEAD_V4.size < len(buffer):
        size, magic, _, queue_offset, _ = _PLACE.unpack_from(buffer, at)
        if magic not in (MAGIC_V1, MAGIC_V2) or not _HEAD_V4.size < size <= len(buffer) - at:
            break
        offset = queue_offset + offset_delta
        _INT.pack_into(renumbered, at + QUEUE_ID_AT, queue_id)
        _LONG.pack_into(renumbered, at + QUEUE_OFFSET_AT, offset)
        at, end_offset = at + size, offset + 1
    return bytes(renumbered), end_offset


def _cut_tail(
    buffer: bytes | bytearray | memoryview, at: int, end: int, *, is_v2: bool
) -> tuple[str, bytes]:
    """Read the topic and the stored properties at the end of a record."""
    if is_v2:
        topic_size, topic_at = buffer[at] << 8 | buffer[at + 1], at + 2
    else:
        topic_size, topic_at = buffer[at], at + 1
    topic_end = topic_at + topic_size
    if topic_end + 2 > end or (topic_size > TOPIC_BYTES_MAX and not is_v2):
        raise RemoteProtocolError(f"a topic of {topic_size} bytes", position=at)
    properties_size = buffer[topic_end] << 8 | buffer[topic_end + 1]
    if topic_end + 2 + properties_size != end:
        raise RemoteProtocolError(f"properties of {properties_size} bytes", position=topic_end)
    try:
        topic = str(buffer[topic_at:topic_end], "utf-8")
    except UnicodeDecodeError as error:
        raise RemoteProtocolError("a topic that is not UTF-8", position=topic_at) from error
    return topic, bytes(buffer[topic_end + 2 : end])


class Unreadable(NamedTuple):
    """A message with a sound record and a body that cannot be read.

    Args:
        message: the message with the stored body.
        reason: completes "the message cannot be read: ...".
    """

    message: MessageExt
    reason: str

    @property
    def next_offset(self) -> int:
        """The offset behind the message; behind all of its messages if it is a batch."""
        count = 1
        if self.message.sys_flag & INNER_BATCH:
            count = read_whole_number(self.message.properties.get(PROPERTY_INNER_NUM), 9) or 1
        return self.message.queue_offset + count


class Decoded(NamedTuple):
    """The messages that `decode_messages` read, in order, and the place where it stopped.

    `end`, where the next call begins, is the buffer's end; or the end of the `unreadable` message;
    or, with a `fault`, the start of bytes that are not a record; or, if messages were read, the
    place where `INFLATED_TURN_BYTES` were reached. Else there was no room for the next message.
    """

    messages: list[MessageExt]
    end: int
    unreadable: Unreadable | None = None
    fault: str | None = None

    @property
    def failure(self) -> str | None:
        """The reason why reading stopped at `end`; None if nothing prevents going on."""
        return self.fault if self.unreadable is None else self.unreadable.reason


def decode_messages(
    buffer: bytes | bytearray | memoryview,
    *,
    broker_name: str,
    at: int = 0,
    room_bytes: int = INFLATED_BYTES_MAX,
) -> Decoded:
    """Read the records of a pull's answer, and inflate at most about `INFLATED_TURN_BYTES`.

    Args:
        at: the position of the first record to read.
        room_bytes: the most bytes of all inflated bodies together.
    """
    messages: list[MessageExt] = []
    # The records of one answer share their hosts: one broker and few producers.
    hosts: dict[bytes, str] = {}
    end = len(buffer)
    inflated = 0
    while at < end and inflated < INFLATED_TURN_BYTES:
        if isinstance(buffer, bytes):
            at = _decode_plain(buffer, at, messages, broker_name=broker_name, hosts=hosts)
            if at == end:
                break
        try:
            message = decode_message(buffer, at, broker_name=broker_name, hosts=hosts)
        except RemoteProtocolError as error:
            return _decode_damaged(buffer, at, messages, broker_name=broker_name, error=error)
        bytes_max = min(room_bytes - inflated, INFLATED_BYTES_MAX)
        try:
            whole = inflate_message(message, bytes_max=bytes_max)
        except RemoteProtocolError as error:
            found = Unreadable(message, str(error))
            return Decoded(messages, at + message.store_size, found)
        if whole is None:
            break
        if whole is not message:
            inflated += len(whole.body)
        messages.append(whole)
        at += message.store_size
    return Decoded(messages, at)


def inflate_message(
    message: MessageExt, *, bytes_max: int = INFLATED_BYTES_MAX
) -> MessageExt | None:
    """Return a message of `decode_message` with the body that was sent.

    Returns: None if this body has more than `bytes_max` bytes, unless that is the largest bound.
    Raises: RemoteProtocolError if the body cannot be read.
    """
    if message.sys_flag & INNER_BATCH:
        raise RemoteProtocolError(INNER_BATCH_REASON)
    if not message.sys_flag & COMPRESSED:
        return message
    if bytes_max <= 0:
        return None
    body = inflate(message.body, sys_flag=message.sys_flag, bytes_max=bytes_max)
    if body is not None:
        return msgspec.structs.replace(message, body=body)
    if bytes_max < INFLATED_BYTES_MAX:
        return None
    raise RemoteProtocolError(f"its body inflates beyond {bytes_max} bytes")


def _decode_plain(
    buffer: bytes, at: int, messages: list[MessageExt], *, broker_name: str, hosts: dict[bytes, str]
) -> int:
    """Add the messages of usual records; return the position of the first other record, or end."""
    end = len(buffer)
    if (functions := speedups.functions) is not None:
        at = functions.decode_messages(
            buffer, at, messages, MessageExt, StoredProperties, broker_name, _UNUSUAL_BITS
        )
        if at == end:
            return at
    head_size, last_at = HEAD_SIZE, end - HEAD_SIZE
    unpack, checksum, add = _HEAD_V4.unpack_from, zlib.crc32, messages.append
    # The records of one answer share their topic; the comparison includes the topic's length.
    topic, topic_field = "", b""
    while at <= last_at:
        (size, magic, body_crc, queue_id, flag, queue_offset, position, sys_flag, born_ms,
         born_host, store_ms, store_host, reconsume_times, prepared_position, body_size,
        ) = unpack(buffer, at)  # fmt: skip
        topic_at = at + head_size + body_size
        next_at = at + size
        if (
            magic != MAGIC_V1
            or sys_flag & _UNUSUAL_BITS
            or body_size < 0
            or topic_at + 3 > next_at
            or next_at > end
        ):
            return at
        if not topic_field or not buffer.startswith(topic_field, topic_at):
            topic_field = buffer[topic_at : topic_at + 1 + buffer[topic_at]]
            if len(topic_field) > TOPIC_BYTES_MAX + 1 or not topic_field.isascii():
                return at
            topic = topic_field[1:].decode()
        properties_at = topic_at + len(topic_field) + 2
        if (
            properties_at > next_at
            or buffer[properties_at - 2] << 8 | buffer[properties_at - 1] != next_at - properties_at
        ):
            return at
        body = buffer[at + head_size : topic_at]
        if checksum(body) & 0x7FFFFFFF != body_crc:
            return at
        add(
            MessageExt(
                topic,
                body,
                StoredProperties(buffer[properties_at:next_at]),
                broker_name,
                queue_id,
                queue_offset,
                position,
                flag,
                sys_flag,
                born_ms,
                hosts.get(born_host) or _find_host(born_host, hosts),
                store_ms,
                hosts.get(store_host) or _find_host(store_host, hosts),
                reconsume_times,
                prepared_position,
                body_crc,
                size,
            )
        )
        at = next_at
    return at


def _decode_damaged(
    buffer: bytes | bytearray | memoryview,
    at: int,
    messages: list[MessageExt],
    *,
    broker_name: str,
    error: RemoteProtocolError,
) -> Decoded:
    """Find out whether only a record's body is damaged."""
    try:
        message = decode_message(buffer, at, broker_name=broker_name, hosts={}, check_crc=False)
    except RemoteProtocolError:
        return Decoded(messages, at, fault=str(error))
    unreadable = Unreadable(message, "its body does not match its CRC")
    return Decoded(messages, at + message.store_size, unreadable)


def _find_host(host: bytes, hosts: dict[bytes, str]) -> str:
    found = hosts.get(host)
    if found is None:
        found = hosts[host] = decode_host(host)
    return found


def decode_message(
    buffer: bytes | bytearray | memoryview,
    at: int,
    *,
    broker_name: str,
    hosts: dict[bytes, str],
    check_crc: bool = True,
) -> MessageExt:
    """Read the record at `at` as a message, with the stored body.

    Args:
        hosts: the hosts of records read before; {} for a single record.

    Raises: RemoteProtocolError as `decode_record`.
    """
    fields, body_at, topic_at = _unpack_head(buffer, at)
    (size, magic, body_crc, queue_id, flag, queue_offset, position, sys_flag, born_ms, born_host,
     store_ms, host, reconsume_times, prepared_position, _) = fields  # fmt: skip
    body = bytes(buffer[body_at:topic_at])
    if check_crc and zlib.crc32(body) & 0x7FFFFFFF != body_crc:
        raise RemoteProtocolError("a body that does not match its CRC", position=at)
    topic, properties = _cut_tail(buffer, topic_at, at + size, is_v2=magic == MAGIC_V2)
    return MessageExt(
        topic=topic,
        body=body,
        properties=StoredProperties(properties),
        broker_name=broker_name,
        queue_id=queue_id,
        queue_offset=queue_offset,
        commit_log_position=position,
        flag=flag,
        sys_flag=sys_flag,
        born_timestamp_ms=born_ms,
        born_host=_find_host(born_host, hosts),
        store_timestamp_ms=store_ms,
        store_host=_find_host(host, hosts),
        reconsume_times=reconsume_times,
        prepared_transaction_position=prepared_position,
        body_crc=body_crc,
        store_size=size,
    )


def encode_host(address: str) -> bytes:
    """Return the ip and port bytes of `1.2.3.4:5` or `[::1]:5`.

    Raises: LocalProtocolError if the text is not a numeric address with a port.
    """
    ip, _, port = address.rpartition(":")
    try:
        if not port.isascii() or not port.isdigit() or int(port) > 65_535:
            raise ValueError(f"{port!r} is not a port")
        return ip_address(ip.strip("[]")).packed + int(port).to_bytes(4, "big")
    except ValueError as error:
        raise LocalProtocolError(f"no address of the form ip:port: {address!r}") from error


def decode_host(host: bytes) -> str:
    """Return `ip:port` of 8 or 20 bytes, with a v6 address in brackets."""
    port = int.from_bytes(host[-4:], "big")
    if len(host) == 8:
        return f"{host[0]}.{host[1]}.{host[2]}.{host[3]}:{port}"
    return f"[{ip_address(host[:-4])}]:{port}"


_BATCH_HEAD = Layout(">iIIii")
assert _BATCH_HEAD.size == 20


def encode_batch(entries: Iterable[tuple[int, bytes, str]]) -> bytes:
    """Write the body of SEND_BATCH_MESSAGE from `BatchEntry`s or equal tuples.

    Raises: LocalProtocolError if an entry does not fit.
    """
    entries, functions = [*entries], speedups.functions
    if functions is not None:
        joined = functions.join_batch(
            entries, 1, 0, 2, b"", 0, 0, 0, FRAME_BYTES_MAX, PROPERTIES_BYTES_MAX
        )
        if joined is not None:
            return joined[0]
    parts: list[bytes] = []
    # Messages of one batch often have one size, and then equal heads.
    known, head, length = (0, -1, -1), b"", b""
    for flag, body, text in entries:
        try:
            properties = text.encode()
            sizes = (flag, len(body), len(properties))
            if sizes != known:
                _, body_size, properties_size = known = sizes
                if properties_size > PROPERTIES_BYTES_MAX:
                    raise LocalProtocolError(
                        f"properties of {properties_size} bytes, at most {PROPERTIES_BYTES_MAX}"
                    )
                size = _BATCH_HEAD.size + body_size + 2 + properties_size
                head, length = (
                    _BATCH_HEAD.pack(size, 0, 0, flag, body_size),
                    _SHORT.pack(properties_size),
                )
        except (LayoutError, UnicodeEncodeError) as error:
            entry = BatchEntry(flag, body, text)
            raise LocalProtocolError(f"a batch cannot carry {entry!r:.500}") from error
        parts += (head, body, length, properties)
    return b"".join(parts)


def scan_batch(body: bytes) -> list[BatchSpan]:
    """Find the messages in the body of SEND_BATCH_MESSAGE.

    Two bytes between a message's body and its properties hold the properties' length.

    Raises: RemoteProtocolError if the body is malformed.
    """
    spans: list[BatchSpan] = []
    at, body_end, is_ascii = 0, len(body), body.isascii()
    unpack_head, unpack_short = _BATCH_HEAD.unpack_from, _SHORT.unpack_from
    while at < body_end:
        try:
            size, _, _, flag, body_size = unpack_head(body, at)
            body_at = at + 20
            end = at + size
            properties_at = body_at + body_size + 2
            if body_size < 0 or properties_at > end or end > body_end:
                raise RemoteProtocolError(f"a batch entry of {size} bytes", position=at)
            (properties_size,) = unpack_short(body, properties_at - 2)
            if properties_at + properties_size != end:
                raise RemoteProtocolError("a batch entry of wrong size", position=at)
            if not is_ascii:
                body[properties_at:end].decode()
        except LayoutError as error:
            raise RemoteProtocolError("a batch that ends early", position=at) from error
        except UnicodeDecodeError as error:
            raise RemoteProtocolError("properties that are not UTF-8", position=at) from error
        spans.append((flag, body_at, properties_at, end))
        at = end
    return spans

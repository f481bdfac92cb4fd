"""Targets: what comes in frames."""

from __future__ import annotations

import contextlib
import inspect

import msgspec

from batches import decode_batch
from fuzz.inputs import choose, to_fields, to_text
from sparrowmq.errors import LocalProtocolError, RemoteProtocolError
from sparrowmq.model import CompressionType
from sparrowmq.model.delay import DELAY_LEVELS_MS
from sparrowmq.protocol import bodies, fastjson, headers
from sparrowmq.protocol.bodies import RegisterBrokerBody, decode_body, encode_body
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.compression import compress_body, inflate
from sparrowmq.protocol.framing import FrameDecoder, encode_frame
from sparrowmq.protocol.header_codec import decode_header, encode_header
from sparrowmq.protocol.message_id import (
    decode_offset_msg_id,
    encode_offset_msg_id,
)
from sparrowmq.protocol.properties import encode_properties, find_property, parse_properties
from sparrowmq.protocol.record import (
    MAGIC_V1,
    decode_messages,
    decode_record,
    encode_batch,
    encode_record,
)
from sparrowmq.protocol.register_body import decode_register_body, encode_register_body
from sparrowmq.protocol.sql92 import parse_condition
from sparrowmq.protocol.subscription import parse_subscription, tags_code
from sparrowmq.store.record_check import RecordChecker
from steps import run_steps

# 2025-06-15 12:00 UTC.
NOON_MS = 1_749_988_800_000
# What bodies may inflate to here.
BODY_BYTES_MAX = 1_000_000


def _structs(module: object) -> list[type[msgspec.Struct]]:
    """Return the Structs that a module offers, by name."""
    classes = inspect.getmembers(module, inspect.isclass)
    return [
        found
        for name, found in classes
        if issubclass(found, msgspec.Struct) and found is not msgspec.Struct and name[0] != "_"
    ]


HEADERS = _structs(headers)
BODIES = _structs(bodies)


def check_frame(data: bytes) -> None:
    """Frames are the same however the bytes are cut, and survive encoding."""
    cut = len(data) // 2
    whole, is_whole_sound = _commands([data])
    parts, is_parts_sound = _commands([data[:cut], data[cut:]])
    # Commands that came before a malformed one in the same bytes are lost with it.
    assert is_whole_sound == is_parts_sound
    assert whole == parts if is_whole_sound else not whole
    for command in parts:
        # A language that is unknown here is written as another.
        if command.language is None:
            continue
        with contextlib.suppress(LocalProtocolError):
            (again,) = FrameDecoder().receive_data(encode_frame(command))
            again.ext_fields = again.ext_fields or None
            command.ext_fields = command.ext_fields or None
            assert command == again


def _commands(parts: list[bytes]) -> tuple[list[RemotingCommand], bool]:
    decoder = FrameDecoder()
    commands: list[RemotingCommand] = []
    try:
        for part in parts:
            commands += decoder.receive_data(part)
    except RemoteProtocolError:
        return commands, False
    return commands, True


def check_header(data: bytes) -> None:
    """A typed header is read or names the missing field, and survives encoding."""
    header_type, rest = choose(data, HEADERS)
    with contextlib.suppress(RemoteProtocolError):
        header = decode_header(header_type, to_fields(rest))
        assert header == decode_header(header_type, encode_header(header))


def check_json(data: bytes) -> None:
    """A value of the dialect survives writing."""
    with contextlib.suppress(RemoteProtocolError):
        value = fastjson.loads(data)
        # An object as a key, other than a queue, is read and never written.
        with contextlib.suppress(LocalProtocolError):
            assert value == fastjson.loads(fastjson.dumps(value))


def check_body(data: bytes) -> None:
    """A body is read or refused, and survives encoding."""
    body_type, rest = choose(data, BODIES)
    with contextlib.suppress(RemoteProtocolError):
        body = decode_body(body_type, rest)
        assert body == decode_body(body_type, encode_body(body))
        assert body == decode_body(body_type, encode_body(body, pretty=True))


def check_register_body(data: bytes) -> None:
    """What a broker registers is read in both forms, and survives encoding."""
    is_compressed, rest = choose(data, (False, True))
    with contextlib.suppress(RemoteProtocolError):
        body, _ = run_steps(decode_register_body(rest, compressed=is_compressed))
        assert is_compressed or body == decode_body(RegisterBrokerBody, rest)
        assert body == run_steps(decode_register_body(encode_register_body(body)))[0]


def check_record(data: bytes) -> None:
    """Readers of records agree, and a record survives encoding."""
    checker = RecordChecker(DELAY_LEVELS_MS)
    at = 0
    while at < len(data):
        try:
            record = decode_record(data, at)
        except RemoteProtocolError:
            break
        checked = checker.check(data, at, record.position)
        if checked is not None:
            assert (record.size, record.topic, record.queue_id, record.queue_offset) == (
                checked.size,
                checked.topic,
                checked.queue_id,
                checked.queue_offset,
            )
        is_v1 = int.from_bytes(data[at + 4 : at + 8], "big") == MAGIC_V1
        # Bytes that are not text are replaced when they are read.
        if is_v1 and "\ufffd" not in record.properties:
            with contextlib.suppress(LocalProtocolError):
                assert data[at : at + record.size] == bytes(encode_record(record))
        assert record.size > 0
        at += record.size
    else:
        at = len(data)
    _check_messages(data, at)


def _check_messages(data: bytes, end: int) -> None:
    """Every record that stands is a message, or one whose body cannot be read and why."""
    at = 0
    while True:
        decoded = decode_messages(data, broker_name="b", at=at, room_bytes=BODY_BYTES_MAX)
        # Bytes have a quicker way for usual records.
        view = memoryview(data)
        assert decoded == decode_messages(view, broker_name="b", at=at, room_bytes=BODY_BYTES_MAX)
        assert all(isinstance(message.body, bytes) for message in decoded.messages)
        found = list(decoded.messages)
        if decoded.unreadable is not None:
            found.append(decoded.unreadable.message)
        assert sum(message.store_size for message in found) == decoded.end - at
        at = decoded.end
        if decoded.fault is not None or not found:
            break
    # A record whose checksum differs ends `decode_record`, and no reading of messages.
    assert at >= end or decoded.fault is None


_COMPRESSIONS = (0x1, 0x101, 0x201, 0x301, 0x401, 0x701)


def compressed_seed(kind: CompressionType) -> bytes:
    """Return an input of `check_compressed_body` that is sound."""
    body, sys_flag = compress_body(b"a body " * 9, kind, level=1)
    return bytes([_COMPRESSIONS.index(sys_flag)]) + body


def check_compressed_body(data: bytes) -> None:
    """What inflates stays within its bound."""
    sys_flag, body = choose(data, _COMPRESSIONS)
    with contextlib.suppress(RemoteProtocolError):
        plain = inflate(body, sys_flag=sys_flag, bytes_max=BODY_BYTES_MAX)
        assert plain is None or len(plain) <= BODY_BYTES_MAX


def check_batch(data: bytes) -> None:
    """The body of a batch survives encoding."""
    with contextlib.suppress(RemoteProtocolError):
        entries = decode_batch(data)
        assert all(not entry.body or entry.body in data for entry in entries)
        with contextlib.suppress(LocalProtocolError):
            assert entries == decode_batch(encode_batch(entries))


def check_properties(data: bytes) -> None:
    """Properties survive writing, and one is found as it is among all."""
    text = to_text(data)
    properties = parse_properties(text)
    assert properties == parse_properties(encode_properties(properties))
    for name, value in properties.items():
        assert value == find_property(text, name)


def check_subscription(data: bytes) -> None:
    """An expression of tags is parsed or refused; parsing the result changes nothing."""
    with contextlib.suppress(LocalProtocolError):
        parsed = parse_subscription("T", to_text(data), sub_version=1)
        assert parsed == parse_subscription("T", parsed.sub_string, sub_version=1)
        assert {tags_code(tag) for tag in parsed.tags_set} == set(parsed.code_set)


def check_sql92(data: bytes) -> None:
    """A condition is parsed or refused, and evaluated over any properties."""
    text, _, properties = data.partition(b"\0")
    with contextlib.suppress(LocalProtocolError):
        condition = parse_condition(to_text(text))
        assert condition.matches(to_fields(properties)) in (True, False)
        assert condition.matches({}) in (True, False)


def check_message_id(data: bytes) -> None:
    """An id is read or refused, and survives encoding."""
    text = to_text(data)
    with contextlib.suppress(RemoteProtocolError):
        host, position = decode_offset_msg_id(text)
        assert text.upper() == encode_offset_msg_id(host, position)

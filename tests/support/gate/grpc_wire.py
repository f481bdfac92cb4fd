"""The gRPC service as these programs call it: messages are written by hand, by their numbers.

Source: definition.proto and service.proto of apache/rocketmq-apis 2.0; the encoding of Protocol
Buffers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import grpc

SERVICE = "apache.rocketmq.v2.MessagingService"
OK = 20_000
UNAUTHORIZED = 40_100
# A status of gRPC itself stands beside those of the service.
UNAUTHENTICATED = 16
STREAMS = {"ReceiveMessage": "unary_stream", "Telemetry": "stream_stream"}
# A field's number and its value; messages are fields of bytes.
Value: TypeAlias = int | str | bytes
Metadata: TypeAlias = tuple[tuple[str, str], ...]


class Outcome(NamedTuple):
    """What a call came to.

    Args:
        code: the status of the service, 0 if there is none, or the status of gRPC.
        data: all answers, one after the other; of a call that failed, what it says.
        has_ended: whether the service said anything at all, rather than hang up.
    """

    code: int
    data: bytes
    has_ended: bool = True


class Caller:
    """A channel to the service."""

    def __init__(self, port: int, *, timeout_s: float = 10) -> None:
        # A channel of its own: others may have given up on the port.
        options = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0))
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=options)
        self._timeout_s = timeout_s

    def close(self) -> None:
        self._channel.close()

    def call(self, method: str, data: bytes, metadata: Metadata) -> Outcome:
        """Call a method and return what came of it."""
        kind = STREAMS.get(method, "unary_unary")
        caller: Any = getattr(self._channel, kind)(f"/{SERVICE}/{method}")
        asked: Any = iter([data]) if kind == "stream_stream" else data
        try:
            answer = caller(asked, timeout=self._timeout_s, metadata=metadata)
            answers = [answer] if kind == "unary_unary" else list(answer)
        except grpc.RpcError as error:
            status: Any = error
            code: int = status.code().value[0]
            has_ended = status.code() not in (
                grpc.StatusCode.UNAVAILABLE,
                grpc.StatusCode.DEADLINE_EXCEEDED,
            )
            return Outcome(code, str(status.details()).encode(), has_ended)
        found = answers[0] if answers else b""
        return Outcome(status_of(found), b"".join(answers))


def message(*fields: tuple[int, Value]) -> bytes:
    """Return a message of Protocol Buffers."""
    data = b""
    for number, value in fields:
        if isinstance(value, int):
            data += _varint(number << 3) + _varint(value)
        else:
            content = value.encode() if isinstance(value, str) else value
            data += _varint(number << 3 | 2) + _varint(len(content)) + content
    return data


def fields_of(data: bytes) -> Iterator[tuple[int, Value]]:
    """Yield a message's fields; those of fixed length are left out."""
    place = 0
    while place < len(data):
        key, place = _read_varint(data, place)
        match key & 7:
            case 0:
                value, place = _read_varint(data, place)
                yield key >> 3, value
            case 2:
                size, place = _read_varint(data, place)
                yield key >> 3, data[place : place + size]
                place += size
            case kind:
                place += 8 if kind == 1 else 4


def first(data: bytes, *numbers: int) -> Value | None:
    """Return the first field behind a path of numbers; None if there is none."""
    found: Value | None = data
    for number in numbers:
        if not isinstance(found, bytes):
            return None
        found = next((value for each, value in fields_of(found) if each == number), None)
    return found


def status_of(answer: bytes) -> int:
    """Return the code of an answer, whose first field is its status; 0 without one."""
    code = first(answer, 1, 1)
    return code if isinstance(code, int) else 0


def resource(name: str) -> bytes:
    """Return a Resource."""
    return message((2, name))


def endpoints(port: int) -> bytes:
    """Return the Endpoints of the loopback's port."""
    return message((1, 1), (2, message((1, "127.0.0.1"), (2, port))))


def identity(client_id: str) -> Mapping[str, str]:
    """Return the metadata that names a client."""
    return {"x-mq-client-id": client_id, "x-mq-language": "PYTHON"}


def _varint(value: int) -> bytes:
    data = bytearray()
    while value >= 128:
        data.append(value % 128 + 128)
        value //= 128
    return bytes([*data, value])


def _read_varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place

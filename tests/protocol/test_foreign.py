"""Peers that speak another protocol are recognised, and their own errors say what is wrong."""

from __future__ import annotations

from struct import unpack

import pytest

from sparrowmq.errors import RemoteProtocolError
from sparrowmq.protocol.foreign import Foreign, ForeignProtocolError, find_foreign
from sparrowmq.protocol.framing import FrameDecoder

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
# A client's SETTINGS, as grpc-java sends them behind the preface.
SETTINGS = bytes.fromhex("000012 04 00 00000000 000200000000 000300000000 000400100000")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (PREFACE, Foreign.HTTP_2),
        (SETTINGS, Foreign.HTTP_2),
        (b"GET / HTTP/1.1\r\n", Foreign.HTTP_1),
        (b"OPTIONS * HTTP/1.1\r\n", Foreign.HTTP_1),
        (b"HTTP/1.1 400 Bad Request\r\n", Foreign.HTTP_1),
        (bytes.fromhex("16030100c8010000c4"), Foreign.TLS),
        (bytes.fromhex("15030300020246") + b"\0", Foreign.TLS),
        (bytes.fromhex("ffffffff 00000000"), None),
    ],
)
def test_protocol_is_recognised_by_its_first_bytes(data: bytes, expected: Foreign | None) -> None:
    assert find_foreign(data) is expected
    with pytest.raises(RemoteProtocolError) as caught:
        FrameDecoder().receive_data(data)
    error = caught.value
    assert (error.foreign if isinstance(error, ForeignProtocolError) else None) is expected


def test_answer_to_http_2_is_settings_and_a_goaway_with_a_text() -> None:
    answer = Foreign.HTTP_2.answer
    frames: list[tuple[int, int, int, bytes]] = []
    while answer:
        size, stream = int.from_bytes(answer[:3], "big"), int.from_bytes(answer[5:9], "big")
        frames.append((answer[3], answer[4], stream, answer[9 : 9 + size]))
        answer = answer[9 + size :]

    settings, (kind, flags, stream, body) = frames
    assert settings == (4, 0, 0, b"")
    assert (kind, flags, stream) == (7, 0, 0)
    # The last stream that was served, and PROTOCOL_ERROR.
    assert unpack(">II", body[:8]) == (0, 1)
    assert (
        body[8:] == b"this port speaks RocketMQ's remoting protocol, and no gRPC; use --grpc-port's"
    )

"""Peers that speak another protocol are recognised, and their own errors say what is wrong."""

from __future__ import annotations

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


def test_answer_to_http_2_is_one_that_clients_of_grpc_know_for_http_1() -> None:
    head, body = Foreign.HTTP_2.answer.split(b"\r\n\r\n")

    assert head.startswith(b"HTTP/1.1 400 ")
    said = b"this port speaks RocketMQ's remoting protocol, and no gRPC; use --grpc-port's\n"
    assert body == said

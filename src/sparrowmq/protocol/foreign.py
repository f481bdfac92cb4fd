"""Other protocols that peers speak by mistake: their first bytes, and the answers to them. Pure.

No frame of the remoting protocol begins so: its length would exceed every limit, or it would have
a header without a byte.
Source: RFC 9113 (3.4, 6.5), RFC 9112 (3), RFC 8446 (5.1, 6.2).
"""

from __future__ import annotations

import re
from enum import Enum

from sparrowmq.errors import RemoteProtocolError

# The bytes that suffice to recognise a protocol.
_RECOGNISED_BYTES = 8
_HTTP_1 = re.compile(rb"(?:GET|HEAD|POST|PUT|DELETE|OPTIONS|PATCH|TRACE|CONNECT) |HTTP/1\.")
# A handshake or an alert of TLS 1.0 to 1.3, whose records all name 3.x.
_TLS = re.compile(rb"[\x15\x16]\x03[\x00-\x04]")
# SETTINGS, the first frame of a server: its length, type 4, no flags, stream 0.
_HTTP_2 = re.compile(rb"PRI \* HT|\x00\x00[\x00-\xff]\x04\x00\x00\x00\x00", re.DOTALL)

_SAID = b"this port speaks RocketMQ's remoting protocol, and no %b"


class Foreign(Enum):
    """A protocol that is not RocketMQ's; the value says who speaks it, and what to try."""

    HTTP_2 = (
        "HTTP/2 (gRPC); clients of RocketMQ 5 use --grpc-port's, others the remoting protocol's"
    )
    HTTP_1 = "HTTP; use the remoting protocol's port, or for health --health-port's"
    TLS = "TLS; use TLS on both sides (a server's is --tls-cert, a client's tls=), or on neither"

    @property
    def answer(self) -> bytes:
        """What a server answers so that the peer's own error says what is wrong."""
        return _ANSWERS[self]


def _http_1_answer(wanted: bytes) -> bytes:
    text = _SAID % wanted + b"\n"
    head = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n"
    return b"%bContent-Length: %d\r\n\r\n%b" % (head, len(text), text)


_ANSWERS = {
    # Clients of gRPC recognise HTTP/1 and fail. After SETTINGS of HTTP/2 they would count the
    # connection as made, and connect again and again at once.
    Foreign.HTTP_2: _http_1_answer(b"gRPC; use --grpc-port's"),
    Foreign.HTTP_1: _http_1_answer(b"HTTP"),
    # Clients of TLS say of a text that the peer does not speak TLS.
    Foreign.TLS: _SAID % b"TLS" + b"\n",
}


class ForeignProtocolError(RemoteProtocolError):
    """The peer speaks another protocol."""

    def __init__(self, foreign: Foreign) -> None:
        super().__init__(
            f"the peer does not speak RocketMQ's remoting protocol but {foreign.value}"
        )
        self.foreign = foreign


def find_foreign(data: bytes | bytearray) -> Foreign | None:
    """Return the other protocol that a peer's first bytes are of, None for none that is known."""
    first = bytes(data[:_RECOGNISED_BYTES])
    if _HTTP_2.match(first):
        return Foreign.HTTP_2
    if _HTTP_1.match(first):
        return Foreign.HTTP_1
    return Foreign.TLS if _TLS.match(first) else None

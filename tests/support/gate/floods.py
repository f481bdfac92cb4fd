"""Connections on which hostile bytes go to a port, one kind for each protocol that a server speaks.

A flood sends frames on one connection and reads all that comes back, until the server has ended the
connection. So a frame counts only if the server has read it: an answer to it or to a later one has
come, or the end of the connection behind it. A whole request that asks for an answer must get one,
or the end of its connection; any other silence is a broken promise.

Source: RemotingCommand.java of 4.9.7, RFC 9112 (HTTP/1), RFC 9113 (HTTP/2), RFC 7541 (HPACK).
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from gate import wire

# How long a server may need, however busy it is, for its next byte.
PATIENCE_S = 10.0


@dataclass(slots=True)
class Sent:
    """What became of the frames of some connections.

    Args:
        frames: those that the server has read, at the least.
        whole: those of them with the length they say, or a request that is complete.
        answered: whole requests that got an answer.
        silent: whole requests that got neither an answer nor the end of their connection.
    """

    frames: int = 0
    whole: int = 0
    answered: int = 0
    silent: int = 0

    def add(self, other: Sent) -> None:
        """Add what became of other frames."""
        self.frames += other.frames
        self.whole += other.whole
        self.answered += other.answered
        self.silent += other.silent


Flood: TypeAlias = Callable[[int, random.Random], Sent]


class _Line:
    """A connection, and the bytes that came on it; `has_ended` once the server has ended it."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 30)
        self.socket.settimeout(PATIENCE_S)
        self.received = bytearray()
        self.has_ended = False

    def send(self, data: bytes) -> None:
        # What came before an error may still be read.
        with contextlib.suppress(ConnectionError):
            self.socket.sendall(data)

    def read(self) -> bool:
        """Read once; return whether bytes came. Raises: TimeoutError."""
        try:
            data = self.socket.recv(1 << 18)
        except ConnectionError:
            data = b""
        self.received += data
        self.has_ended = not data
        return bool(data)

    def read_to_end(self) -> bool:
        """Send no more and read all; return whether the server ends the connection."""
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            return True
        try:
            while not self.has_ended:
                self.read()
        except TimeoutError:
            return False
        return True


# --- remoting -------------------------------------------------------------------------------------

IN_STEP = 32
_MARK = 1_000_000_000
_REMOTING_CODES = (
    *range(1, 60),
    *range(100, 108),
    *range(200, 360),
    *(361, 370, 400, 401, 402, *range(2_000, 2_020)),
    *(*range(200_050, 200_056), 200_151, 770_001, 770_002),
)
# Pulls and pops may be held for a message, and so answered later.
_HELD = {11, 361, 200_050, 200_054, 200_050 % 0x10000, 200_054 % 0x10000}
_NAMES = (
    *("topic", "consumerGroup", "producerGroup", "queueId", "queueOffset", "maxMsgNums", "group"),
    *("brokerName", "clientID", "subscription", "sysFlag", "offset", "commitOffset", "b", "i"),
)
_VALUES = (
    "",
    "0",
    "-1",
    "9223372036854775807",
    "99999999999999999999",
    "T",
    "%RETRY%",
    "a\0b",
    "é",
)
_OPAQUE, _FLAG = re.compile(rb'"opaque":\s*(-?\d+)'), re.compile(rb'"flag":\s*(-?\d+)')
_BINARY = struct.Struct(">hbhiii")


def flood_remoting(port: int, choice: random.Random) -> Sent:
    """Send frames of which each has the length it says, and then one that has not."""
    former = wire.request(wire.GET_ALL_TOPICS, {})
    frames: list[bytes] = []
    for opaque in range(IN_STEP):
        former = _valid(choice, opaque)
        frames.append(_in_step(former, choice, frames[-1] if frames else former))
    marked = b"".join(frames) + wire.request(105, {"topic": "TBW102"}, opaque=_MARK)
    expected = Counter(filter(None, map(opaque_to_answer, frames)))
    answered: Counter[int] = Counter()
    line = _Line(port)
    with line.socket:
        line.send(marked)
        try:
            while not (line.has_ended or (answered[_MARK] and expected <= answered)):
                line.read()
                answered.update(_answers(line.received))
        except TimeoutError:
            pass
        silent = 0 if line.has_ended else (expected - answered).total() + (not answered[_MARK])
        if answered[_MARK]:
            sent = Sent(IN_STEP + 1, IN_STEP + 1, silent=silent)
        else:
            # The frame behind the last one that was answered ended the connection, at the latest.
            read = 2 + max((each for each in answered if each < IN_STEP), default=-1)
            sent = Sent(min(read, IN_STEP), min(read, IN_STEP), silent=silent)
        if not line.has_ended:
            line.send(_out_of_step(former, choice))
            if line.read_to_end():
                sent.frames += 1
            else:
                sent.silent += 1
        sent.answered = answered.total()
    return sent


def _valid(choice: random.Random, opaque: int) -> bytes:
    """Return a request of any code with any fields."""
    fields = {name: choice.choice(_VALUES) for name in choice.sample(_NAMES, choice.randrange(8))}
    body = choice.randbytes(choice.choice((0, 0, 1, 30, 300)))
    code, flag = choice.choice(_REMOTING_CODES), choice.choice((0, 0, 0, 0, 0, 0, 2, 1))
    if choice.randrange(4):
        return wire.request(code, fields, body, opaque=opaque, flag=flag)
    return _framed(_binary_header(code, fields, opaque, flag), body, kind=1)


def _binary_header(code: int, fields: dict[str, str], opaque: int, flag: int) -> bytes:
    pairs = b""
    for name, value in fields.items():
        data = value.encode()
        pairs += struct.pack(">h", len(name)) + name.encode() + struct.pack(">i", len(data)) + data
    # As Java writes codes: the upper bits are lost.
    short = (code + 0x8000) % 0x10000 - 0x8000
    head = _BINARY.pack(short, 7, 401, opaque, flag, 0)
    return head + struct.pack(">i", len(pairs)) + pairs


def _framed(header: bytes, body: bytes, *, kind: int) -> bytes:
    size = struct.pack(">II", 4 + len(header) + len(body), (kind << 24) | len(header))
    return size + header + body


def _in_step(valid: bytes, choice: random.Random, former: bytes) -> bytes:
    """Return a frame with the length it says: valid, or with another content."""
    match choice.randrange(64):
        case 0:
            # A header of which not even code and opaque can be read ends the connection.
            return struct.pack(">I", len(valid) - 4) + flipped(valid[4:], choice)
        case chosen if chosen < 20:
            return valid[:8] + _altered_value(valid[8:], choice)
        case chosen if chosen < 28:
            body = choice.randbytes(choice.choice((1, 1_000, 20_000)))
            return struct.pack(">I", len(valid) - 4 + len(body)) + valid[4:] + body
        case chosen if chosen < 32:
            # The former's header, this one's body.
            size = int.from_bytes(former[5:8], "big")
            own = int.from_bytes(valid[5:8], "big")
            return _framed(former[8 : 8 + size], valid[8 + own :], kind=former[4] & 1)
        case _:
            return valid


def _altered_value(content: bytes, choice: random.Random) -> bytes:
    """Return a header and body of the same length, in which some letters of texts are others."""
    data = bytearray(content)
    places = [index for index, each in enumerate(data) if each in b"TRh"]
    for index in choice.sample(places, min(len(places), 3)):
        data[index] = choice.choice(b"T0-9R%e.")
    return bytes(data)


def flipped(frame: bytes, choice: random.Random) -> bytes:
    """Return a frame of which some bytes are others."""
    data = bytearray(frame)
    for _ in range(choice.choice((1, 1, 2, 8))):
        data[choice.randrange(len(data))] = choice.randrange(256)
    return bytes(data)


def _out_of_step(valid: bytes, choice: random.Random) -> bytes:
    """Return bytes that say another length than they have, or none."""
    match choice.randrange(3):
        case 0:
            return valid[: choice.randrange(1, len(valid))]
        case 1:
            size = choice.choice((0, 3, 4, 100, 1 << 20, (1 << 31) - 1, (1 << 32) - 1))
            return struct.pack(">I", size) + valid[4:]
        case _:
            return choice.randbytes(choice.randrange(1, 200))


def opaque_to_answer(frame: bytes) -> int | None:
    """Return a request's opaque if it must be answered; None if not, or if that is not clear."""
    data = frame[8 : 8 + int.from_bytes(frame[5:8], "big")]
    try:
        if frame[4]:
            code, _, _, opaque, flag, _ = _BINARY.unpack_from(data)
            code %= 0x10000
        else:
            header = json.loads(data)
            code, opaque, flag = header["code"], header["opaque"], header["flag"]
    except (ValueError, TypeError, KeyError, RecursionError, struct.error):
        return None
    if not all(type(each) is int for each in (code, opaque, flag)):
        return None
    return None if flag & (wire.RESPONSE | wire.ONEWAY) or code in _HELD else int(opaque)


def _answers(received: bytearray) -> Iterator[int]:
    """Take whole frames away; yield the opaques of those that are answers."""
    begin = 0
    while len(received) - begin >= 8:
        end = begin + 4 + int.from_bytes(received[begin : begin + 4], "big")
        if len(received) < end:
            break
        size = int.from_bytes(received[begin + 5 : begin + 8], "big")
        header = bytes(received[begin + 8 : begin + 8 + size])
        if received[begin + 4]:
            *_, opaque, flag, _ = _BINARY.unpack_from(header)
        else:
            opaques, flags = _OPAQUE.search(header), _FLAG.search(header)
            opaque = int(opaques[1]) if opaques else -1
            flag = int(flags[1]) if flags else 0
        if flag & wire.RESPONSE:
            yield opaque
        begin = end
    del received[:begin]


# --- HTTP/1 ---------------------------------------------------------------------------------------

_PATHS = (
    "/",
    "/health",
    "/ready",
    "/metrics",
    "/login",
    "/%00",
    "/../../etc/passwd",
    "/é",
    "*",
    "//",
    "/?" * 99,
)


def flood_http(port: int, choice: random.Random) -> Sent:
    """Send one request that is broken in some way, or half of one."""
    data, is_whole = _http_request(choice)
    line = _Line(port)
    with line.socket:
        line.send(data)
        if not is_whole:
            return Sent(frames=1) if line.read_to_end() else Sent(silent=1)
        try:
            while not (line.has_ended or b"\r\n" in line.received):
                line.read()
        except TimeoutError:
            return Sent(silent=1)
        return Sent(1, 1, answered=int(line.received.startswith(b"HTTP/1.")))


def _http_request(choice: random.Random) -> tuple[bytes, bool]:
    """Return a request, and whether a server can say by its bytes that it is complete or wrong."""
    path = choice.choice(_PATHS).encode()
    host = b"Host: 127.0.0.1\r\n"
    line = b"GET " + path + b" HTTP/1.1\r\n"
    post = b"POST " + path + b" HTTP/1.1\r\n" + host
    match choice.randrange(14):
        case 0:
            return line + host + b"\r\n", True
        case 1:
            return b"GET /" + b"a" * choice.choice(
                (9_000, 70_000, 200_000)
            ) + b" HTTP/1.1\r\n\r\n", True
        case 2:
            fields = b"".join(b"X-%d: %b\r\n" % (each, b"v" * 1_000) for each in range(100))
            return line + host + fields + b"\r\n", True
        case 3:
            return line + host + b"X: " + choice.randbytes(
                100
            ).hex().encode() * 500 + b"\r\n\r\n", True
        case 4:
            size = choice.choice((b"ZZ", b"-1", b"FFFFFFFFFFFFFFFFF", b"", b"5;" + b"x" * 9_000))
            return (
                post + b"Transfer-Encoding: chunked\r\n\r\n" + size + b"\r\nhello\r\n0\r\n\r\n",
                True,
            )
        case 5:
            length = choice.choice(
                (b"-1", b"abc", b"99999999999999999999", b"1\r\nContent-Length: 2")
            )
            return post + b"Content-Length: " + length + b"\r\n\r\nhello", False
        case 6:
            return post + b"Content-Length: 1000000\r\n\r\nhello", False
        case 7:
            whole = line + host + b"Accept: */*\r\n\r\n"
            return whole[: choice.randrange(1, len(whole))], False
        case 8:
            return choice.randbytes(choice.randrange(1, 3_000)), False
        case 9:
            return flipped(line + host + b"\r\n", choice), False
        case 10:
            method = choice.choice((b"BREW", b"get", b"DELETE", b"OPTIONS", b"TRACE", b"A" * 5_000))
            return method + b" " + path + b" HTTP/1.1\r\n" + host + b"\r\n", True
        case 11:
            version = choice.choice(
                (b"HTTP/9.9", b"HTTP/1.", b"HTTP/0.9", b"ICY/1.0", b"HTTP/1.1 x")
            )
            return b"GET " + path + b" " + version + b"\r\n" + host + b"\r\n", True
        case 12:
            odd = choice.choice(
                (b"no colon", b": empty", b"a\0b: c", b" folded: x", b"X: \xff\xfe")
            )
            return line + host + odd + b"\r\n\r\n", True
        case _:
            return (line + host + b"\r\n") * 20, True


# --- HTTP/2 ---------------------------------------------------------------------------------------

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _PRIORITY, _RESET, _SETTINGS, _PROMISE, _PING, _GO_AWAY, _WINDOW, _MORE = range(10)
_END_STREAM = _ACK = 1
_END_HEADERS = 4
_METHODS = (
    *("QueryRoute", "Heartbeat", "SendMessage", "QueryAssignment", "ReceiveMessage", "AckMessage"),
    *("ForwardMessageToDeadLetterQueue", "EndTransaction", "Telemetry", "NotifyClientTermination"),
    *("ChangeInvisibleDuration", "RecallMessage", "NoSuchMethod", ""),
)


class _Frame(NamedTuple):
    """A frame as it was sent; `is_whole` if it has the length it says."""

    data: bytes
    is_whole: bool = True


def _frame2(kind: int, flags: int, stream: int, content: bytes = b"") -> bytes:
    """Return a frame of HTTP/2."""
    return len(content).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + content


def flood_grpc(port: int, choice: random.Random) -> Sent:
    """Send frames of HTTP/2: some that a server must stand, then one that it need not.

    A server acknowledges SETTINGS in their order, so it has read all that lies before.
    """
    if not choice.randrange(8):
        return _send_no_preface(port, choice)
    frames, asked = _standing(choice)
    settings = [index for index, each in enumerate(frames) if each[3] == _SETTINGS]
    line = _Line(port)
    ended: set[int] = set()
    acknowledged = 0
    with line.socket:
        line.send(PREFACE + b"".join(frames))
        try:
            while not (line.has_ended or (acknowledged == len(settings) and asked <= ended)):
                line.read()
                for kind, flags, stream in _frames_of(line.received):
                    acknowledged += kind == _SETTINGS and flags & _ACK
                    if kind == _RESET or (kind in (_DATA, _HEADERS) and flags & _END_STREAM):
                        ended.add(stream)
        except TimeoutError:
            pass
        silent = 0 if line.has_ended else len(asked - ended) + (acknowledged < len(settings))
        read = settings[acknowledged - 1] + 1 if acknowledged else 0
        sent = Sent(read, read, len(asked & ended), silent)
        if not line.has_ended:
            last = _breaking(choice)
            line.send(last.data)
            if line.read_to_end():
                sent.frames += 1
                sent.whole += last.is_whole
            else:
                sent.silent += 1
    return sent


def _send_no_preface(port: int, choice: random.Random) -> Sent:
    """Send what is not HTTP/2."""
    data = choice.choice(
        (
            b"GET / HTTP/1.1\r\n\r\n",
            PREFACE[: choice.randrange(1, len(PREFACE))],
            flipped(PREFACE, choice),
            choice.randbytes(200),
            bytes.fromhex("160301020001000001fc0303") + choice.randbytes(500),
            wire.request(wire.GET_ALL_TOPICS, {}),
        )
    )
    line = _Line(port)
    with line.socket:
        line.send(data)
        return Sent(frames=1) if line.read_to_end() else Sent(silent=1)


def _standing(choice: random.Random) -> tuple[list[bytes], set[int]]:
    """Return frames that break nothing, and the streams that must be ended by the server."""
    frames, asked = [_frame2(_SETTINGS, 0, 0)], set[int]()
    stream = 1
    for _ in range(choice.randrange(4, 12)):
        match choice.randrange(8):
            case 0:
                frames += [_frame2(_SETTINGS, 0, 0)] * 50
            case 1:
                content = struct.pack(">HI", choice.randrange(7, 60_000), choice.getrandbits(32))
                frames += [_frame2(_SETTINGS, 0, 0, content)] * 5
            case 2:
                # A request that is taken back at once.
                for each in range(stream, stream + 40, 2):
                    frames += [
                        _head(choice, each),
                        _frame2(_RESET, 0, each, struct.pack(">I", 8)),
                    ]
                stream += 40
            case 3:
                frames += [
                    _frame2(choice.randrange(10, 256), choice.randrange(256), stream, b"x" * 30)
                    for _ in range(20)
                ]
            case 4:
                frames += [_frame2(_WINDOW, 0, 0, struct.pack(">I", choice.randrange(1, 100)))] * 20
            case 5:
                frames += [_frame2(_PRIORITY, 0, 1, b"\0\0\0\0\x10")] * 20
            case _:
                # A request whose message is anything.
                message = choice.randbytes(choice.choice((0, 1, 20, 300)))
                size = struct.pack(">BI", choice.choice((0, 0, 0, 1)), len(message))
                frames += [
                    _head(choice, stream),
                    _frame2(_DATA, _END_STREAM, stream, size + message),
                ]
                asked.add(stream)
                stream += 2
        frames.append(_frame2(_SETTINGS, 0, 0))
    return frames, asked


def _head(choice: random.Random, stream: int) -> bytes:
    """Return the HEADERS of a call."""
    path = f"/apache.rocketmq.v2.MessagingService/{choice.choice(_METHODS)}"
    fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "127.0.0.1"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        ("grpc-timeout", "5S"),
    ]
    if choice.randrange(4):
        fields.append(("x-mq-client-id", f"flood@{choice.randrange(100)}"))
    if not choice.randrange(4):
        fields.append((choice.choice(("authorization", "x-mq-date-time")), "a" * 300))
    return _frame2(_HEADERS, _END_HEADERS, stream, b"".join(_literal(*each) for each in fields))


def _literal(name: str, value: str) -> bytes:
    """Return a field that no table keeps (RFC 7541, 6.2.2)."""
    return b"\0" + _text(name) + _text(value)


def _text(text: str) -> bytes:
    size = len(text)
    if size < 127:
        return bytes([size]) + text.encode()
    data, size = bytearray([127]), size - 127
    while size >= 128:
        data.append(size % 128 + 128)
        size //= 128
    return bytes([*data, size]) + text.encode()


def _breaking(choice: random.Random) -> _Frame:
    """Return what ends a connection, or is only half there."""
    match choice.randrange(12):
        case 0:
            return _Frame(_frame2(_SETTINGS, 0, 0, b"12345"))
        case 1:
            return _Frame(_frame2(_DATA, 0, 0, b"x"))
        case 2:
            return _Frame(_frame2(_HEADERS, _END_HEADERS, 2, b"\xff" * 50))
        case 3:
            return _Frame(b"\xff\xff\xff\x00\x00\x00\x00\x00\x01" + b"x" * 100, is_whole=False)
        case 4:
            # A head without an end.
            head = _frame2(_HEADERS, 0, 9_999, _literal("a", "b" * 8_000))
            return _Frame(head + _frame2(_MORE, 0, 9_999, _literal("a", "b" * 16_000)) * 20)
        case 5:
            return _Frame(_frame2(_PING, 0, 0, b"12345678") * 200)
        case 6:
            return _Frame(_frame2(_WINDOW, 0, 0, struct.pack(">I", (1 << 31) - 1)) * 3)
        case 7:
            return _Frame(_frame2(_PROMISE, 4, 1, b"\0\0\0\2"))
        case 8:
            return _Frame(_frame2(_GO_AWAY, 0, 0, b"\0" * 8))
        case 9:
            return _Frame(_frame2(_SETTINGS, 0, 0)[: choice.randrange(1, 9)], is_whole=False)
        case 10:
            return _Frame(_frame2(_PING, 0, 7, b"123"))
        case _:
            data = flipped(_frame2(_HEADERS, _END_HEADERS, 9_999, _literal("a", "b") * 5), choice)
            return _Frame(data, is_whole=False)


def _frames_of(received: bytearray) -> Iterator[tuple[int, int, int]]:
    """Take whole frames away; yield the kind, flags and stream of each."""
    begin = 0
    while len(received) - begin >= 9:
        end = begin + 9 + int.from_bytes(received[begin : begin + 3], "big")
        if len(received) < end:
            break
        yield (
            received[begin + 3],
            received[begin + 4],
            int.from_bytes(received[begin + 5 : begin + 9], "big"),
        )
        begin = end
    del received[:begin]

"""RocketMQ's remoting protocol as these programs speak it: nothing here is the code under test.

Source: RemotingCommand.java and MessageDecoder.java of 4.9.7.
"""

from __future__ import annotations

import json
import socket
import ssl
import struct
import time
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any, NamedTuple

SEND_MESSAGE_V2 = 310
SEND_BATCH = 320
PULL_MESSAGE = 11
CREATE_TOPIC = 17
GET_MAX_OFFSET = 30
HEARTBEAT = 34
SEND_BACK = 36
END_TRANSACTION = 37
LOCK = 41
UNLOCK = 42
GET_ALL_TOPICS = 206
QUERY_OFFSET = 14
COMMIT_OFFSET = 15
POP = 200_050
ACKNOWLEDGE = 200_051

# Bits of a header's flag.
RESPONSE, ONEWAY = 1, 2
PREPARED, COMMIT, ROLLBACK = 4, 8, 12
_SUSPENDED, _SUBSCRIBED = 2, 4
_FRAME_BYTES_MAX = 1 << 26
# Size, magic, body's sum, queue, flag, offset, position, system flag, born, host, stored, host,
# times consumed, position of the half message, length of the body.
_RECORD = struct.Struct(">IIIiiqqiq8sq8siqI")
_BATCHED = struct.Struct(">IIIiI")


class Answer(NamedTuple):
    """A response: its code, fields and body."""

    code: int
    remark: str
    fields: Mapping[str, str]
    body: bytes


class Record(NamedTuple):
    """A message as a broker keeps it; `stored_ms` is when it was stored, by the broker's clock."""

    queue_id: int
    offset: int
    position: int
    body: bytes
    properties: Mapping[str, str]
    stored_ms: int = 0


class Connection:
    """One connection; requests are answered in turn. Raises: OSError once the server is gone."""

    def __init__(
        self, port: int, *, timeout_s: float = 30, tls: ssl.SSLContext | None = None
    ) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self._socket = tls.wrap_socket(self._socket, server_hostname="127.0.0.1")
        self._opaques = count(1)

    def close(self) -> None:
        self._socket.close()

    def call(self, code: int, fields: Mapping[str, Any], body: bytes = b"") -> Answer:
        """Send a request and return its answer; the server's own requests are answered first."""
        opaque = next(self._opaques)
        self._socket.sendall(request(code, fields, body, opaque=opaque))
        while True:
            header, content = self._read()
            if header["flag"] & RESPONSE:
                fields = header.get("extFields") or {}
                return Answer(header["code"], header.get("remark") or "", fields, content)
            if not header["flag"] & ONEWAY:
                answer = request(0, {}, opaque=header["opaque"], flag=RESPONSE)
                self._socket.sendall(answer)

    def _read(self) -> tuple[dict[str, Any], bytes]:
        """Return the header and the body of the next frame."""
        (size,) = struct.unpack(">I", self._exactly(4))
        if not 4 <= size <= _FRAME_BYTES_MAX:
            raise OSError(f"a frame of {size} bytes")
        frame = self._exactly(size)
        header_size = int.from_bytes(frame[1:4], "big")
        return json.loads(frame[4 : 4 + header_size]), frame[4 + header_size :]

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            if not part:
                raise ConnectionResetError("the server hung up")
            data += part
        return bytes(data)


def request(
    code: int, fields: Mapping[str, Any], body: bytes = b"", *, opaque: int = 1, flag: int = 0
) -> bytes:
    """Return a request's frame."""
    header = {
        "code": code,
        "language": "OTHER",
        "version": 401,
        "opaque": opaque,
        "flag": flag,
        "extFields": {name: str(value) for name, value in fields.items()},
        "serializeTypeCurrentRPC": "JSON",
    }
    text = json.dumps(header).encode()
    return struct.pack(">II", 4 + len(text) + len(body), len(text)) + text + body


def send_fields(
    topic: str, queue_id: int, properties: Mapping[str, str], *, system_flag: int = 0
) -> dict[str, Any]:
    """Return the fields of SEND_MESSAGE_V2."""
    return {
        "a": "GID_gate",
        "b": topic,
        "c": "TBW102",
        "d": 4,
        "e": queue_id,
        "f": system_flag,
        "g": 1_700_000_000_000,
        "h": 0,
        "i": "".join(f"{name}\1{value}\2" for name, value in properties.items()),
        "j": 0,
        "k": "false",
        "m": "false",
    }


def batch_body(bodies: list[bytes]) -> bytes:
    """Return the body of a batch."""
    return b"".join(
        _BATCHED.pack(_BATCHED.size + len(body) + 2, 0, 0, 0, len(body)) + body + b"\0\0"
        for body in bodies
    )


def create_topic(connection: Connection, topic: str, queues: int) -> None:
    """Create a topic. Raises: RuntimeError if it is refused."""
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": queues,
        "writeQueueNums": queues,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": "false",
    }
    answer = connection.call(CREATE_TOPIC, fields)
    if answer.code:
        raise RuntimeError(f"topic {topic}: {answer.code} {answer.remark}")


def max_offset(connection: Connection, topic: str, queue_id: int) -> int:
    """Return where a queue's next message will be; 0 if the broker has no such queue."""
    answer = connection.call(GET_MAX_OFFSET, {"topic": topic, "queueId": queue_id})
    return int(answer.fields["offset"]) if answer.code == 0 else 0


def pull_fields(topic: str, queue_id: int, offset: int, *, wait_ms: int = 0) -> dict[str, Any]:
    """Return the fields of PULL_MESSAGE; with `wait_ms` the broker holds it for a message."""
    return {
        "consumerGroup": "GID_gate_reader",
        "topic": topic,
        "queueId": queue_id,
        "queueOffset": offset,
        "maxMsgNums": 32,
        "sysFlag": _SUBSCRIBED | (_SUSPENDED if wait_ms else 0),
        "commitOffset": 0,
        "suspendTimeoutMillis": wait_ms,
        "subscription": "*",
        "subVersion": 0,
    }


def pop_fields(group: str, topic: str, *, invisible_ms: int) -> dict[str, Any]:
    """Return the fields of POP_MESSAGE for one message of the first queue, without a wait."""
    return {
        "consumerGroup": group,
        "topic": topic,
        "queueId": 0,
        "maxMsgNums": 1,
        "invisibleTime": invisible_ms,
        "pollTime": 0,
        "bornTime": round(time.time() * 1000),
        "initMode": 0,
    }


def acknowledge_fields(group: str, topic: str, offset: int, popped: Answer) -> dict[str, Any]:
    """Return the fields of ACK_MESSAGE for a message of the first queue, by the pop's answer."""
    times = (popped.fields[name] for name in ("popTime", "invisibleTime", "reviveQid"))
    handle = " ".join((f"{offset}", *times, "0 broker-a 0", f"{offset}"))
    fields = {"consumerGroup": group, "topic": topic, "queueId": 0}
    return fields | {"extraInfo": handle, "offset": offset}


def read_queue(
    connection: Connection, topic: str, queue_id: int, begin: int, end: int
) -> Iterator[Record]:
    """Yield a queue's records between two offsets. Raises: RuntimeError if one is missing."""
    offset = begin
    while offset < end:
        fields = pull_fields(topic, queue_id, offset)
        answer = connection.call(PULL_MESSAGE, fields)
        records = list(decode(answer.body)) if answer.code == 0 else []
        if not records:
            raise RuntimeError(
                f"{topic}:{queue_id} has no message at {offset} of {end}: "
                f"{answer.code} {answer.remark}"
            )
        for record in records:
            if record.offset < end:
                yield record
        offset = int(answer.fields["nextBeginOffset"])


def decode(data: bytes) -> Iterator[Record]:
    """Yield the records of a pull's answer."""
    begin = 0
    while begin < len(data):
        size, *_, body_size = found = _RECORD.unpack_from(data, begin)
        body_begin = begin + _RECORD.size
        body = data[body_begin : body_begin + body_size]
        topic_begin = body_begin + body_size
        properties_begin = topic_begin + 1 + data[topic_begin] + 2
        text = data[properties_begin : begin + size].decode()
        pairs = (each.split("\1", 1) for each in text.split("\2") if "\1" in each)
        yield Record(found[3], found[5], found[6], body, dict(pairs), found[10])
        begin += size

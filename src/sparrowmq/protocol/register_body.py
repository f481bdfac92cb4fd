"""The two forms of the body of REGISTER_BROKER. Pure.

The plain form is `RegisterBrokerBody` as JSON. The compressed form is one zlib stream of:

| type | content |
|---|---|
| int + bytes | data version as JSON |
| int | number of topics |
| int + text, each | `name read-queues write-queues perm filter-type` [` ` attributes, from 5.x] |
| int + bytes | filter servers as JSON |

The compressed form carries neither `order` nor `topicSysFlag`: they become false and 0.
Brokers older than V3_0_11 send a bare `TopicConfigTable`.

A registration of 60,000 topics takes 0.1 s to read, so it is read in steps.

Source: RocketMQ 4.9.3 common/protocol/body/RegisterBrokerBody.java. Tests: test_bodies.py.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator

import msgspec
from msgspec import Raw, Struct

from sparrowmq.errors import LocalProtocolError, RemoteProtocolError
from sparrowmq.protocol import fastjson
from sparrowmq.protocol.bodies import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    decode_body,
    decode_dialect,
    encode_body,
)
from sparrowmq.protocol.wire_names import wire_names

# A SparrowMQ broker has at most 50,000 topics: 8 MB with names of 127 characters.
TOPICS_MAX = 65_536
REGISTRATION_BYTES_MAX = 16_777_216
_COMPRESS_LEVEL = 9
# The topics that are read in one step: about 10 ms.
TOPICS_PER_STEP = 4_096


class _RawTable(Struct, frozen=True, rename=wire_names()):
    topic_config_table: dict[str, Raw] = {}
    data_version: DataVersion = DataVersion()


class _RawBody(Struct, frozen=True, rename=wire_names()):
    topic_config_serialize_wrapper: _RawTable = _RawTable()
    filter_server_list: list[str] = []


_BODY_DECODER = msgspec.json.Decoder(_RawBody, strict=False)
_TOPIC_DECODER = msgspec.json.Decoder(TopicConfig, strict=False)


def encode_register_body(body: RegisterBrokerBody, *, compressed: bool = False) -> bytes:
    """Write the body of a broker's registration.

    Raises: LocalProtocolError if the compressed form cannot carry a topic's name.
    """
    if not compressed:
        return encode_body(body)
    table = body.topic_config_serialize_wrapper
    topics = table.topic_config_table.values()
    parts = [_with_length(encode_body(table.data_version)), len(topics).to_bytes(4, "big")]
    parts += [_with_length(_topic_text(topic)) for topic in topics]
    parts.append(_with_length(fastjson.dumps(body.filter_server_list)))
    return zlib.compress(b"".join(parts), _COMPRESS_LEVEL)


def compute_body_crc(data: bytes) -> int:
    """Return the CRC-32 of a body, the header's `body_crc32`."""
    return zlib.crc32(data) & 0x7FFFFFFF


def decode_register_body(
    data: bytes | None, *, compressed: bool = False
) -> Generator[None, None, RegisterBrokerBody]:
    """Read the body of a broker's registration in steps; a missing body means no topics.

    Yields: where other work may go first: after each TOPICS_PER_STEP topics, and before them.
    Raises: RemoteProtocolError if the body is malformed.
    """
    if data is None:
        return RegisterBrokerBody()
    if compressed:
        return (yield from _decode_compressed(data))
    problem = "it has a $ref"
    fastjson.check_size(data, marks_max=RegisterBrokerBody.__plain_marks_max__)
    is_plain = b"$ref" not in data
    yield
    if is_plain:
        try:
            return (yield from _decode_plain(data))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            problem = str(error)
    return decode_dialect(RegisterBrokerBody, data, problem)


def _decode_plain(data: bytes) -> Generator[None, None, RegisterBrokerBody]:
    raw = _BODY_DECODER.decode(data)
    table = raw.topic_config_serialize_wrapper
    _check_count(len(table.topic_config_table))
    yield
    topics: dict[str, TopicConfig] = {}
    for name, text in table.topic_config_table.items():
        topics[name] = _TOPIC_DECODER.decode(text)
        if len(topics) % TOPICS_PER_STEP == 0:
            yield
    return RegisterBrokerBody(
        topic_config_serialize_wrapper=TopicConfigTable(
            topic_config_table=topics, data_version=table.data_version
        ),
        filter_server_list=raw.filter_server_list,
    )


def _decode_compressed(data: bytes) -> Generator[None, None, RegisterBrokerBody]:
    reader = _Reader(_inflate(data))
    data_version = decode_body(DataVersion, reader.read_block())
    topics: dict[str, TopicConfig] = {}
    for number in range(1, reader.read_topic_count() + 1):
        topic = _parse_topic(reader.read_block())
        topics[topic.topic_name] = topic
        if number % TOPICS_PER_STEP == 0:
            yield
    filter_servers = fastjson.loads(reader.read_block())
    if not isinstance(filter_servers, list):
        raise RemoteProtocolError("the filter servers are not a list")
    return RegisterBrokerBody(
        topic_config_serialize_wrapper=TopicConfigTable(
            topic_config_table=topics, data_version=data_version
        ),
        filter_server_list=[str(server) for server in filter_servers],
    )


def _check_count(topic_count: int) -> None:
    if topic_count > TOPICS_MAX:
        raise RemoteProtocolError(f"{topic_count} topics in one registration; {TOPICS_MAX} at most")


def _with_length(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def _topic_text(topic: TopicConfig) -> bytes:
    if " " in topic.topic_name:
        raise LocalProtocolError(f"the topic name {topic.topic_name!r} holds a blank")
    return (
        f"{topic.topic_name} {topic.read_queue_nums} {topic.write_queue_nums} "
        f"{topic.perm} {topic.topic_filter_type}"
    ).encode()


def _parse_topic(data: bytes) -> TopicConfig:
    try:
        name, *words = data.decode().split(" ")
    except UnicodeDecodeError as error:
        raise RemoteProtocolError("a topic's text that is not UTF-8") from error
    numbers = words[:3]
    if len(words) < 4 or not all(word.isascii() and word.isdigit() for word in numbers):
        raise RemoteProtocolError(f"no topic: {data!r:.200}")
    if max(map(len, numbers)) > 9:
        raise RemoteProtocolError(f"a topic with a number beyond all bounds: {data!r:.200}")
    return TopicConfig(
        topic_name=name,
        read_queue_nums=int(words[0]),
        write_queue_nums=int(words[1]),
        perm=int(words[2]),
        topic_filter_type=words[3],
    )


def _inflate(data: bytes) -> bytes:
    stream = zlib.decompressobj()
    try:
        plain = stream.decompress(data, REGISTRATION_BYTES_MAX + 1)
    except zlib.error as error:
        raise RemoteProtocolError(f"a body that cannot be inflated: {error}") from error
    if len(plain) > REGISTRATION_BYTES_MAX or not stream.eof:
        raise RemoteProtocolError(
            f"a compressed body that ends early, or inflates beyond {REGISTRATION_BYTES_MAX} bytes"
        )
    return plain


class _Reader:
    """Reads lengths and blocks from the front of the inflated body."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def read_topic_count(self) -> int:
        count = int.from_bytes(self._take(4), "big")
        _check_count(count)
        return count

    def read_block(self) -> bytes:
        return self._take(int.from_bytes(self._take(4), "big"))

    def _take(self, size: int) -> bytes:
        block = self._data[self._at : self._at + size]
        if len(block) != size:
            raise RemoteProtocolError("a register body that ends early", position=self._at)
        self._at += size
        return block

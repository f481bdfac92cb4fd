"""From a message to what a request carries."""

from __future__ import annotations

import random
import zlib
from typing import Any

import pytest

from sparrowmq.client.config import ProducerConfig
from sparrowmq.client.outgoing import (
    check_batch,
    check_sendable_topic,
    encode_message,
    make_half,
    make_parts,
)
from sparrowmq.errors import ConfigError, UsageError
from sparrowmq.model import CompressionType, Message
from sparrowmq.protocol import speedups
from sparrowmq.protocol.compression import COMPRESSED, inflate
from sparrowmq.protocol.message_id import UniqIdGenerator
from sparrowmq.protocol.properties import parse_properties
from sparrowmq.protocol.record import scan_batch

CONFIG = ProducerConfig(group="G", client_id="c", body_bytes_max=10_000)


def test_attributes_become_properties() -> None:
    message = Message(
        "T",
        b"body",
        tags="A",
        keys=("k1", "k2"),
        sharding_key="s",
        delay_level=3,
        properties={"mine": "1"},
        flag=7,
    )

    outgoing = encode_message(message, "ID", config=CONFIG)

    assert (outgoing.body, outgoing.sys_flag, outgoing.flag) == (b"body", 0, 7)
    assert parse_properties(outgoing.properties) == {
        "mine": "1",
        "TAGS": "A",
        "KEYS": "k1 k2",
        "__SHARDINGKEY": "s",
        "DELAY": "3",
        "UNIQ_KEY": "ID",
    }


def test_large_body_is_compressed() -> None:
    message = Message("T", b"x" * 4096)

    single = encode_message(message, "ID", config=CONFIG)

    assert (message.body, COMPRESSED) == (zlib.decompress(single.body), single.sys_flag)
    assert encode_message(Message("T", b"x" * 4095), "ID", config=CONFIG).sys_flag == 0


@pytest.mark.parametrize("kind", CompressionType)
def test_body_that_compression_makes_longer_stays_as_it_is(kind: CompressionType) -> None:
    body = random.Random(1).randbytes(10_000)
    config = ProducerConfig(
        group="G", client_id="c", body_bytes_max=len(body), compress_type=kind, compress_level=1
    )

    outgoing = encode_message(Message("T", body), "ID", config=config)

    assert (outgoing.body, outgoing.sys_flag) == (body, 0)


@pytest.mark.parametrize("kind", CompressionType)
def test_large_body_is_compressed_as_the_producer_is_configured(kind: CompressionType) -> None:
    config = ProducerConfig(
        group="G", client_id="c", compress_bytes_min=100, compress_type=kind, compress_level=1
    )
    body = bytes(100)

    outgoing = encode_message(Message("T", body), "ID", config=config)

    assert len(outgoing.body) < 100
    assert body == inflate(outgoing.body, sys_flag=outgoing.sys_flag, bytes_max=100)
    assert encode_message(Message("T", body[:99]), "ID", config=config).sys_flag == 0


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"body": b""}, "0 bytes"),
        ({"body": bytes(10_001)}, "10001 bytes"),
        ({"properties": {"TAGS": "A"}}, "'TAGS' is reserved by RocketMQ"),
        ({"properties": {"TIMER_OUT_MS": "9"}}, "'TIMER_OUT_MS' is reserved by RocketMQ"),
        ({"properties": {"a": "b", "x": ""}}, "property 'x' of a message to 'T' is '', but"),
        ({"properties": {"": "y"}}, "property '' of a message to 'T' is 'y', but"),
        ({"keys": ("a b",)}, "without blanks"),
        ({"keys": ("",)}, "without blanks"),
        ({"keys": ("a\tb",)}, "without blanks"),
        ({"tags": "A || B"}, "a message has only one tag"),
        ({"delay_level": 19}, "delay_level is 19"),
        ({"delay_level": -1}, "delay_level is -1"),
        ({"flag": 2**31}, "flag of a message to 'T' is 2147483648; it must be -2147483648 to"),
        ({"flag": -(2**31) - 1}, "flag of a message to 'T' is -2147483649"),
        ({"properties": {"x": "y" * 33_000}}, "properties"),
    ],
)
def test_message_that_cannot_be_sent_is_refused(fields: dict[str, Any], words: str) -> None:
    given: dict[str, Any] = {"topic": "T", "body": b"x"} | fields
    message = Message(**given)

    with pytest.raises(UsageError, match=words):
        encode_message(message, "ID", config=CONFIG)


def test_half_message_may_say_when_its_producer_is_asked_first() -> None:
    message = Message("T", b"x", properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "90"})

    half = make_half(encode_message(message, "ID", config=CONFIG), "GID")

    assert parse_properties(half.properties)["CHECK_IMMUNITY_TIME_IN_SECONDS"] == "90"


@pytest.mark.parametrize("has_extension", [True, False])
def test_flag_of_33_bits_in_a_batch_is_refused(
    has_extension: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_extension:
        monkeypatch.setattr(speedups, "functions", None)
    ids = UniqIdGenerator(bytes(4), 1, process_number=2)
    whole = [Message("T", b"x", flag=2**31 - 1), Message("T", b"x", flag=-(2**31))]

    (part,) = make_parts(whole, ids, 0, config=CONFIG, has_queue=False)

    assert [flag for flag, *_ in scan_batch(part.outgoing.body)] == [2**31 - 1, -(2**31)]
    with pytest.raises(UsageError, match="flag of a message to 'T' is 2147483648"):
        make_parts(
            [whole[0], Message("T", b"x", flag=2**31)], ids, 0, config=CONFIG, has_queue=False
        )


def test_property_with_a_separator_is_refused() -> None:
    with pytest.raises(UsageError, match="a message to 'T': property 'a' holds 0x01 or 0x02"):
        encode_message(Message("T", b"x", properties={"a": "b\x02c"}), "ID", config=CONFIG)


def test_topics_that_nobody_may_send_to_are_refused() -> None:
    for topic in ("", "bad topic", "x" * 128):
        with pytest.raises(ConfigError):
            check_sendable_topic(topic)
    with pytest.raises(UsageError, match="SCHEDULE_TOPIC_XXXX"):
        check_sendable_topic("SCHEDULE_TOPIC_XXXX")


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "at least one"),
        ([Message("T", b"x"), Message("U", b"x")], "one topic"),
        ([Message("T", b"x", delay_level=1)], "delayed"),
        ([Message("%RETRY%G", b"x")], "retry topic"),
    ],
)
def test_what_makes_no_batch_is_refused(messages: list[Message], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        check_batch(messages)

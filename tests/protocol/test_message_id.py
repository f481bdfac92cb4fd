from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden import each_case
from sparrowmq.errors import RemoteProtocolError
from sparrowmq.protocol.message_id import (
    UniqIdGenerator,
    decode_offset_msg_id,
    encode_offset_msg_id,
    encode_offset_msg_ids,
    list_ids,
    month_bounds,
)

# 2025-06-15 12:00 UTC.
NOON_MS = 1_749_988_800_000


def to_host(host: tuple[str, int]) -> bytes:
    return bytes.fromhex(host[0]) + host[1].to_bytes(4, "big")


def span_ms_of(uniq_id: str) -> int:
    return int(uniq_id[-12:-4], 16)


@each_case("msgid.jsonl", "offsetMsgId-")
def test_offset_id_is_written_and_read_as_in_java(case: dict[str, Any]) -> None:
    host = to_host(case["host"])

    assert case["msgId"] == encode_offset_msg_id(host, case["offset"])
    assert (to_host(case["decodedHost"]), case["decodedOffset"]) == decode_offset_msg_id(
        case["msgId"]
    )


@each_case("msgid.jsonl", "uniqId-")
def test_uniq_id_is_made_as_in_java(case: dict[str, Any]) -> None:
    start_ms, end_ms = month_bounds(NOON_MS)
    if not 0 <= case["spanMs"] < end_ms - start_ms:
        return
    generator = UniqIdGenerator(
        bytes.fromhex(case["ipHex"]),
        case["pid"],
        process_number=case["classLoaderHash"],
        counter=case["counter"],
    )

    assert case["uniqId"] == generator.next_id(start_ms + case["spanMs"])


@pytest.mark.parametrize("text", ["", "00", "G" * 32, "0" * 33, " " * 32, "0" * 30 + "  "])
def test_text_that_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_offset_msg_id(text)


@pytest.mark.parametrize("host", [b"\x7f\0\0\1\0\0\x2a\x9f", bytes(range(240, 256)) + b"\0\0\0\1"])
def test_ids_of_several_records_are_a_comma_list(host: bytes) -> None:
    positions = (0, 1 << 40, 2**63 - 1)
    singly = ",".join(encode_offset_msg_id(host, position) for position in positions)

    assert singly == encode_offset_msg_ids(host, positions)
    assert encode_offset_msg_id(host, 7) == encode_offset_msg_ids(host, (7,))


def make_generator(**options: int) -> UniqIdGenerator:
    return UniqIdGenerator(b"\x0a\0\0\1", 9, process_number=7, **options)


def test_counter_wraps_after_65536_ids() -> None:
    generator = make_generator()

    ids = [generator.next_id(NOON_MS) for _ in range(65_537)]

    assert len(set(ids)) == 65_536
    assert ids[0] == ids[-1]


def test_ids_reserved_together_are_those_made_singly() -> None:
    singly, together, listed = (make_generator(counter=65_530) for _ in range(3))

    expected = [singly.next_id(NOON_MS) for _ in range(1_020)]

    found = []
    for count in (9, 11, 0, 1_000):
        head, first = together.reserve(NOON_MS, count)
        found += [f"{head}{(first + index) & 0xFFFF:04X}" for index in range(count)]
    assert found == expected
    reserved = [(*listed.reserve(NOON_MS, count), count) for count in (9, 11, 0, 1_000)]
    assert [id for each in reserved for id in list_ids(*each)] == expected


def test_month_begins_anew_when_it_is_over() -> None:
    generator = make_generator()
    _, end_ms = month_bounds(NOON_MS)

    spans = [span_ms_of(generator.next_id(at)) for at in (end_ms - 1, end_ms, end_ms + 5)]

    assert spans == [30 * 86_400_000 - 1, 0, 5]


def test_clock_that_steps_back_over_the_month_stands_still() -> None:
    generator = make_generator()
    start_ms, _ = month_bounds(NOON_MS)
    generator.next_id(start_ms)

    late = generator.next_id(start_ms - 10)

    assert span_ms_of(late) == 0


@given(st.integers(0, 4_000_000_000_000), st.integers(-14 * 3_600_000, 14 * 3_600_000))
def test_month_bounds_enclose_the_instant(timestamp_ms: int, offset_ms: int) -> None:
    start_ms, end_ms = month_bounds(timestamp_ms, utc_offset_ms=offset_ms)

    assert start_ms <= timestamp_ms < end_ms
    for bound in (start_ms, end_ms):
        local = datetime.fromtimestamp((bound + offset_ms) / 1000, UTC)
        assert (local.day, local.hour, local.minute, local.second) == (1, 0, 0, 0)

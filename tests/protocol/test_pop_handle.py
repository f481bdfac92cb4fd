from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparrowmq.errors import RemoteProtocolError
from sparrowmq.protocol.pop_handle import (
    BITS_MAX,
    ChangeInvisibleTimeResponseHeader,
    PopHandle,
    PopMessageResponseHeader,
    PoppedQueue,
    decode_popped,
    encode_popped,
    parse_handle,
    parse_popped,
)
from sparrowmq.protocol.record import HEAD_SIZE, Record, encode_record

NUMBERS = st.integers(0, 2**63 - 1)
HANDLES = st.builds(
    PopHandle,
    NUMBERS,
    NUMBERS,
    NUMBERS,
    NUMBERS,
    st.sampled_from("012"),
    st.from_regex(r"[a-z-]{1,9}", fullmatch=True),
    NUMBERS,
    NUMBERS,
)


def test_handle_is_the_text_of_apaches_clients() -> None:
    text = "7 1700000000000 60000 0 0 broker-a 3 9"
    handle = PopHandle(7, 1_700_000_000_000, 60_000, 0, "0", "broker-a", 3, 9)

    assert handle.encode() == text
    assert parse_handle(text) == handle
    assert parse_handle(f"{text} 4711") == handle, "the proxy adds a position"


def test_handle_after_a_change_is_that_of_apaches_clients() -> None:
    handle = PopHandle(7, 1_700_000_000_000, 60_000, 0, "0", "broker-a", 3, 9)
    answer = ChangeInvisibleTimeResponseHeader(
        pop_timestamp_ms=1_700_000_000_005, invisible_time_ms=20_000, revive_qid=2
    )

    # Apache's broker looks for the message from the first offset on.
    assert handle.changed(answer).encode() == "9 1700000000005 20000 2 0 broker-a 3 9"


@pytest.mark.parametrize(
    ("offset", "fits"), [(6, False), (7, True), (6 + BITS_MAX, True), (7 + BITS_MAX, False)]
)
def test_batch_of_acknowledgements_has_a_bit_for_some_messages(offset: int, fits: bool) -> None:
    handle = PopHandle(7, 1_700_000_000_000, 60_000, 0, "0", "broker-a", 3, offset)

    assert handle.fits_batch == fits


@given(HANDLES)
def test_handle_survives_its_text(handle: PopHandle) -> None:
    assert parse_handle(handle.encode()) == handle


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1 2 3",
        "1 2 3 4 3 b 6 7",
        "1 2 3 4 0 b 6 -7",
        "1 2 3 4 0 b ٣ 7",
        "1 2 3 4 0 b 6 " + "9" * 20,
    ],
)
def test_text_that_is_not_a_handle_is_refused(text: str) -> None:
    with pytest.raises(RemoteProtocolError):
        parse_handle(text)


def answer(starts: str, offsets: str) -> PopMessageResponseHeader:
    return PopMessageResponseHeader(
        pop_timestamp_ms=1,
        invisible_time_ms=1,
        revive_qid=0,
        rest_num=0,
        start_offset_info=starts,
        msg_offset_info=offsets,
    )


def test_offsets_of_an_answer_are_the_text_of_apaches_brokers() -> None:
    queues = [PoppedQueue("0", 3, [7, 9]), PoppedQueue("1", 0, [2])]
    starts, offsets = encode_popped(queues)

    assert (starts, offsets) == ("0 3 7;1 0 2", "0 3 7,9;1 0 2")
    assert parse_popped(answer(starts, offsets)) == [(queues[0], 7), (queues[1], 2)]
    assert parse_popped(answer("", "")) == []


@pytest.mark.parametrize("size", [0, 1, HEAD_SIZE - 1, 2**31 - 1])
def test_messages_before_a_record_of_no_sound_size_are_read(size: int) -> None:
    record = encode_record(Record(topic="T", queue_id=1, body=b"x"))
    damaged = bytearray(record)
    damaged[:5] = size.to_bytes(4, "big") + b"?"

    found = decode_popped(record + bytes(damaged) + record, broker_name="b")

    assert [message.body for message in found] == [b"x"]


@pytest.mark.parametrize(
    ("starts", "offsets"), [("0 3 7", "0 4 7"), ("0 3", "0 3 7"), ("0 3 7", "0 3 7,x")]
)
def test_offsets_that_do_not_belong_together_are_refused(starts: str, offsets: str) -> None:
    with pytest.raises(RemoteProtocolError):
        parse_popped(answer(starts, offsets))

"""A server reads the sends and pulls of a connection alike with and without the extension in C."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fuzz.extension import (
    FIRST_PULL,
    FIRST_SEND,
    compare_bodies,
    compare_parts,
    compare_requests,
    frame_of_pull,
    frame_of_send,
)
from harm import DAMAGE, harm
from sparrowmq.errors import RemoteProtocolError
from sparrowmq.model import Message
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.framing import decode_request, encode_frame
from sparrowmq.protocol.request_decoder import RequestDecoder, RequestForm, learn_request
from sparrowmq.protocol.speedups import Speedups

NUMBERS = st.one_of(st.sampled_from([0, 999_999_999, 10**9, 10**18 - 1, 10**18]), st.integers(0, 9))
TEXTS = st.one_of(
    st.text("aZ09|_\x01\x02", max_size=40),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=9),
)


def form_of(frame: bytes) -> RequestForm:
    header = frame[8 : 8 + int.from_bytes(frame[5:8])]
    form = learn_request(decode_request(0, header, None), header)
    assert form is not None
    return form


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            NUMBERS.filter(lambda number: number < 2**31),
            NUMBERS,
            TEXTS,
            st.binary(max_size=9),
            st.integers(0, 2**31 - 1),
            st.sampled_from(["T", "Other"]),
        ),
        max_size=4,
    ),
    DAMAGE,
    st.integers(0, 300),
)
def test_sends_are_read_alike(
    sends: list[tuple[int, int, str, bytes, int, str]], damage: list[tuple[int, int]], cut: int
) -> None:
    whole = b"".join(frame_of_send(*each[:5], topic=each[5]) for each in sends)

    read = compare_requests(harm(whole, damage, cut))

    if not damage and not cut % 7:
        assert [each[4] for each in sends] == [
            each.opaque for each in read if isinstance(each, RemotingCommand)
        ]


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            NUMBERS.filter(lambda number: number < 2**31),
            NUMBERS,
            st.integers(0, 2**31 - 1),
            TEXTS,
            st.sampled_from(["T", "%RETRY%g"]),
            st.integers(0, 15),
        ),
        max_size=4,
    ),
    DAMAGE,
    st.integers(0, 300),
)
def test_pulls_are_read_alike(
    pulls: list[tuple[int, int, int, str, str, int]], damage: list[tuple[int, int]], cut: int
) -> None:
    frames = [
        frame_of_pull(*each[:3], group=each[3], topic=each[4], flag=each[5]) for each in pulls
    ]

    read = compare_requests(harm(FIRST_SEND.join(frames), damage, cut), first=FIRST_PULL)

    if not damage and not cut % 7:
        assert [each[2] for each in pulls] == [
            each.opaque for each in read if isinstance(each, RemotingCommand)
        ][::2]


@pytest.mark.parametrize(
    ("frame", "is_taken"),
    [
        (frame_of_pull(7, 10**18 - 1, 8, group="another", topic="%RETRY%g", flag=2), True),
        (frame_of_pull(7, 10**18, 8), False),
        (frame_of_pull(7, 12, 8).replace(b'"maxMsgNums":"32"', b'"maxMsgNums":"16"'), False),
        (frame_of_pull(7, 12, 8).replace(b'"queueOffset":"12"', b'"queueOffset":"-1"'), False),
        (FIRST_SEND, False),
    ],
)
def test_extension_takes_pulls_of_the_known_form_alone(
    built_speedups: Speedups, frame: bytes, is_taken: bool
) -> None:
    taken = built_speedups.take_request(frame, 0, 4_096, *form_of(FIRST_PULL))

    assert is_taken is (taken is not None)
    compare_requests(frame, first=FIRST_PULL)
    if taken is not None:
        assert taken == (*RequestDecoder().receive_data(frame), len(frame))


@pytest.mark.parametrize(
    ("frame", "is_taken"),
    [
        (frame_of_send(7, 12, "TAGS\x01a\x02", b"x" * 99, 8, topic="Other"), True),
        (frame_of_send(0, 0, "", b"", 0), True),
        (frame_of_send(10**9, 12, "", b"x", 8), False),
        (frame_of_send(7, 10**18, "", b"x", 8), False),
        (frame_of_send(7, 12, "", b"x", 10**9), False),
        (frame_of_send(7, 12, "é", b"x", 8), False),
        (frame_of_send(7, 12, 'a"', b"x", 8), False),
        (frame_of_send(7, 12, "a\\", b"x", 8), False),
        (frame_of_send(7, 12, "\x7f", b"x", 8), False),
        (frame_of_send(7, 12, "", b"x", 8)[:-1], False),
        (frame_of_send(7, 12, "", b"x", 8).replace(b'"e":"7"', b'"e":"07"'), False),
        (frame_of_send(7, 12, "", b"x", 8).replace(b'"k":"false"', b'"k":"FALSE"'), False),
        (b"", False),
        (encode_frame(RemotingCommand(code=310)), False),
    ],
)
def test_extension_takes_sends_of_the_known_form_alone(
    built_speedups: Speedups, frame: bytes, is_taken: bool
) -> None:
    taken = built_speedups.take_request(b"?" + frame, 1, 4_096, *form_of(FIRST_SEND))

    assert is_taken is (taken is not None)
    compare_requests(frame)
    if taken is not None:
        command, end = taken
        assert RequestDecoder().receive_data(frame) == [command]
        assert end == 1 + len(frame)
        assert built_speedups.take_request(frame, 0, len(frame) - 1, *form_of(FIRST_SEND)) is None


def test_a_send_is_no_other_sends_object(built_speedups: Speedups) -> None:
    form = form_of(FIRST_SEND)

    first, second = (
        built_speedups.take_request(frame_of_send(queue_id, 1, "", b"x", 5), 0, 999, *form)
        for queue_id in (1, 2)
    )

    assert first is not None
    assert second is not None
    headers: list[Any] = [first[0].header, second[0].header]
    assert [header.queue_id for header in headers] == [1, 2]
    assert form.copy_command().opaque == 1


def test_frame_beyond_the_limit_is_refused_though_its_form_is_known(both_ways: None) -> None:
    small, large = (frame_of_send(1, 1, "", bytes(size), 1) for size in (10, 500))
    decoder = RequestDecoder(frame_bytes_max=len(small))
    decoder.receive_data(small)

    with pytest.raises(RemoteProtocolError, match="at most"):
        decoder.receive_data(large)


def test_wrong_parts_are_errors(built_speedups: Speedups) -> None:
    take: Any = built_speedups.take_request
    literals, kinds, names, *copies = form_of(FIRST_SEND)
    for arguments in (
        (FIRST_SEND, -1, 999, literals, kinds, names, *copies),
        (FIRST_SEND, len(FIRST_SEND) + 1, 999, literals, kinds, names, *copies),
        (FIRST_SEND, 0, 999, literals[1:], kinds, names, *copies),
        (FIRST_SEND, 0, 999, literals, kinds, names[1:], *copies),
        (FIRST_SEND, 0, 999, literals, b"\x09" * len(kinds), names, *copies),
        (FIRST_SEND, 0, 999, (b"",) * 10, bytes(9), ("",) * 11, *copies),
        (FIRST_SEND, 0, 999),
    ):
        with pytest.raises((TypeError, ValueError)):
            take(*arguments)
    join: Any = built_speedups.join_batch
    entry = (28).to_bytes(4) + bytes(8) + bytes(4) + (1).to_bytes(4) + b"x" + (5).to_bytes(2)
    alike = [(0, b"x", "")], 1, 0, -1, b"12345", 4, 0, 0, 9, 9
    assert join(*alike) == (entry + b"10000", "0000")
    for at, wrong in (
        *((0, rows) for rows in ([(0, "", "")], [(0,)], [0], (), [])),
        *((place, number) for place in (1, 2) for number in (-1, 3)),
        (3, 3),
        (5, 3),
        (5, 6),
    ):
        with pytest.raises((TypeError, ValueError)):
            join(*alike[:at], wrong, *alike[at + 1 :])


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(-(2**31) - 1, 2**31), st.binary(max_size=40), st.text(max_size=40)),
        max_size=5,
    ),
    st.sampled_from([0, 32_767, 32_768]),
)
def test_bodies_of_batches_are_written_alike(
    entries: list[tuple[int, bytes, str]], size: int
) -> None:
    compare_bodies(entries)
    compare_bodies([*entries, (0, b"", "a" * size)])


_TEXTS = st.text(max_size=4)


@settings(deadline=None)
@given(
    st.builds(
        Message,
        st.just("T"),
        st.just(b"x"),
        tags=st.none() | _TEXTS,
        keys=st.lists(_TEXTS, max_size=2).map(tuple),
        sharding_key=st.none() | _TEXTS,
        properties=st.dictionaries(_TEXTS, _TEXTS, max_size=2),
    ),
    st.lists(st.binary(max_size=600), min_size=1, max_size=5),
    st.sampled_from([0, 0xFFFE]),
    st.integers(-5, 5),
)
def test_messages_that_are_alike_are_batched_alike(
    message: Message, bodies: list[bytes], counter: int, other_at: int
) -> None:
    messages = [replace(message, body=body, flag=len(body)) for body in bodies]
    compare_parts(messages, counter)
    compare_parts([*messages[:other_at], replace(message, tags="another")], counter)

"""The pull that is filled into a template has the bytes that the general encoder writes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fuzz.extension import PULL_FIELDS, answer_of, compare_pull_answers
from harm import DAMAGE, harm
from sparrowmq.errors import LocalProtocolError
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.framing import decode_command, encode_frame, encode_head
from sparrowmq.protocol.headers import PullMessageRequestHeader, encode_header
from sparrowmq.protocol.pull_request import (
    PullAnswered,
    PullRequest,
    learn_pull_answer,
    read_pull_answer,
)
from sparrowmq.protocol.session import RemotingSession, ResponseReceived

pytestmark = pytest.mark.usefixtures("both_ways")

NAMES = st.text("abcXYZ019_-%|", min_size=1, max_size=20)
TEXTS = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
INTS = st.integers(-(2**31), 2**31 - 1)
LONGS = st.integers(-(2**63), 2**63 - 1)


def make_header(**fields: Any) -> PullMessageRequestHeader:
    values: dict[str, Any] = {"consumer_group": "G", "topic": "T", "queue_id": 1}
    values |= {"queue_offset": 5, "max_msg_nums": 32, "sys_flag": 2, "commit_offset": 0}
    values |= {"suspend_timeout_ms": 15_000, "sub_version": 7}
    return PullMessageRequestHeader(**values | fields)


# In a template these would be places.
@example("ns%dogs", "ns%birds", (0, 0, 0), (-(2**63), 0, 0, 0), "%d", 0)
@example("g", "t", (0, 0, 0), (0, -(2**63), 0, 0), '"queueOffset":"-9223372036854775808"', 0)
@example("g", "t", (0, 0, 0), (0, 0, 0, 0), '"opaque":2147483647', 2**31 - 1)
@given(
    NAMES,
    NAMES,
    st.tuples(INTS, INTS, INTS),
    st.tuples(LONGS, LONGS, LONGS, LONGS),
    TEXTS,
    st.integers(0, 2**31 - 1),
)
def test_bytes_are_those_of_the_general_encoder(
    group: str,
    topic: str,
    ints: tuple[int, int, int],
    longs: tuple[int, int, int, int],
    subscription: str | None,
    opaque: int,
) -> None:
    header = PullMessageRequestHeader(
        consumer_group=group,
        topic=topic,
        queue_id=ints[0],
        max_msg_nums=ints[1],
        sys_flag=ints[2],
        queue_offset=longs[0],
        commit_offset=longs[1],
        suspend_timeout_ms=longs[2],
        sub_version=longs[3],
        subscription=subscription,
    )
    command = RemotingCommand(code=RequestCode.PULL_MESSAGE, ext_fields=encode_header(header))
    command.opaque = opaque

    assert PullRequest(header).command().ext_fields == command.ext_fields
    assert encode_frame(command) == PullRequest(header).encode(opaque)


@pytest.mark.parametrize(
    ("subscription", "what"), [("\ud800", "no header can carry"), ("x" * 70_000, "is too large")]
)
def test_what_does_not_fit_is_refused_as_ever(subscription: str, what: str) -> None:
    with pytest.raises(LocalProtocolError, match=what):
        PullRequest(make_header(subscription=subscription)).encode(1)


@pytest.mark.parametrize(
    ("code", "fields", "body"),
    [
        (ResponseCode.PULL_NOT_FOUND, {}, b"records"),
        (ResponseCode.SUCCESS, {}, None),
        (ResponseCode.SUCCESS, {"minOffset": "-1"}, b"records"),
        (ResponseCode.SUCCESS, {"maxOffset": "9" * 19}, b"records"),
        (ResponseCode.SUCCESS, {"offsetDelta": "0"}, b"records"),
    ],
)
def test_unusual_answers_have_no_form(
    code: int, fields: dict[str, str], body: bytes | None
) -> None:
    answer = RemotingCommand(code=code, ext_fields=PULL_FIELDS | fields, flag=1, body=body)

    assert learn_pull_answer(answer, encode_head(answer)[8:]) is None


def test_the_answers_of_apaches_broker_have_a_form() -> None:
    header = (
        b'{"code":0,"extFields":{"suggestWhichBrokerId":"0","nextBeginOffset":"32",'
        b'"maxOffset":"25200","minOffset":"7"},"flag":1,"language":"JAVA","opaque":19,'
        b'"remark":"FOUND","serializeTypeCurrentRPC":"JSON","version":407}'
    )
    answer = decode_command(0, header, b"records")

    form = learn_pull_answer(answer, header)

    assert form is not None
    match = form.pattern.fullmatch(header)
    assert match is not None
    assert read_pull_answer(match, b"x") == (19, PullAnswered(0, 32, 7, 25200, b"x"))


@pytest.mark.parametrize("piece", [7, 300, 10_000])
def test_answers_come_in_pieces_and_between_others(piece: int) -> None:
    session = RemotingSession()
    for token in range(4):
        session.start_request(PullRequest(make_header()), token)
    session.start_request(RemotingCommand(code=1), "another")
    fields = [PULL_FIELDS | {"nextBeginOffset": str(n)} for n in range(3)]
    answers = [answer_of(fields[n], n, b"records %d" % n) for n in range(3)]
    other = encode_frame(RemotingCommand(code=0, flag=1, opaque=4))
    none = RemotingCommand(code=ResponseCode.PULL_NOT_FOUND, ext_fields=PULL_FIELDS, flag=1)
    none.opaque = 3
    data = b"".join([*answers[:2], other, encode_frame(none), answers[2]])

    found: list[object] = []
    for at in range(0, len(data), piece):
        for event in session.receive_data(data[at : at + piece]):
            assert isinstance(event, ResponseReceived)
            answer = event.answer
            offset = None
            if isinstance(answer, PullAnswered):
                offset = answer.next_begin_offset
            elif isinstance(answer, RemotingCommand) and answer.body is not None:
                offset = int((answer.ext_fields or {})["nextBeginOffset"])
            found.append((event.token, offset, getattr(answer, "body", None)))

    assert found == [
        (0, 0, b"records 0"),
        (1, 1, b"records 1"),
        ("another", None, None),
        (3, None, None),
        (2, 2, b"records 2"),
    ]
    assert session.outstanding == ()


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.binary(max_size=9)), max_size=8),
    DAMAGE,
    st.integers(0, 300),
)
def test_answers_are_taken_alike(
    answers: list[tuple[int, bytes]], damage: list[tuple[int, int]], cut: int
) -> None:
    frames = [
        answer_of(PULL_FIELDS | {"maxOffset": str(opaque)}, opaque, body or None)
        for opaque, body in answers
    ]

    events = compare_pull_answers(harm(b"".join(frames), damage, cut))

    if not damage and not cut % 7:
        assert len(events) == len({opaque for opaque, _ in answers if 0 < opaque <= 8})

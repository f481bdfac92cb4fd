"""The send that is filled into a template has the bytes that the general encoder writes."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fuzz.extension import ANSWER_FIELDS, answer_of, compare_answers
from harm import DAMAGE, harm
from sparrowmq.errors import LocalProtocolError
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.framing import encode_frame, encode_head
from sparrowmq.protocol.pull_request import PullAnswered
from sparrowmq.protocol.send_request import (
    SendAnswered,
    SendRequest,
    SendTemplate,
    learn_send_answer,
    make_fields,
    read_send_answer,
)

NAMES = st.text("abcXYZ019_-%|", min_size=1, max_size=20)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


def make_template(group: str = "G", topic: str = "T", code: int = 310) -> SendTemplate:
    fields = make_fields(group, topic, template_topic="TBW102", template_queues_max=4, code=code)
    return SendTemplate(code, fields)


def encode_generally(request: SendRequest, opaque: int) -> bytes:
    command = request.command()
    command.opaque = opaque
    return encode_frame(command)


# In a template these would be places.
@example("ns%dogs", "ns%birds", (0, 0, 0, 0), "", b"x", 0, 320)
@given(
    NAMES,
    NAMES,
    st.tuples(
        st.integers(0, 2**31 - 1),
        st.integers(0, 2**31 - 1),
        st.integers(0, 2**63 - 1),
        st.integers(-(2**31), 2**31 - 1),
    ),
    TEXTS,
    st.binary(min_size=1, max_size=30),
    st.integers(0, 2**31 - 1),
    st.sampled_from([RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE]),
)
def test_bytes_are_those_of_the_general_encoder(
    group: str,
    topic: str,
    fields: tuple[int, int, int, int],
    properties: str,
    body: bytes,
    opaque: int,
    code: int,
) -> None:
    request = SendRequest(make_template(group, topic, code), fields, properties, body)

    assert encode_generally(request, opaque) == request.encode(opaque)


def test_command_has_the_fields_by_letter() -> None:
    request = SendRequest(make_template(), (3, 1, 1_000, 7), "UNIQ_KEY\x01U", b"body")

    command = request.command()

    assert isinstance(command, RemotingCommand)
    assert command.body == b"body"
    fields = {**(command.ext_fields or {})}
    assert tuple(fields[letter] for letter in "efghi") == ("3", "1", "1000", "7", "UNIQ_KEY\x01U")


@pytest.mark.parametrize(
    ("properties", "what"), [("\ud800", "no header can carry"), ("\x01" * 20_000, "is too large")]
)
def test_what_does_not_fit_is_refused_as_ever(properties: str, what: str) -> None:
    request = SendRequest(make_template(), (0, 0, 0, 0), properties, b"x")

    with pytest.raises(LocalProtocolError, match=what):
        request.encode(1)


@pytest.mark.parametrize(
    ("opaque", "queue_offset", "is_usual"),
    [
        (999_999_999, "9" * 18, True),
        (1_000_000_000, "9" * 18, False),
        (999_999_999, "9" * 19, False),
    ],
)
def test_a_form_has_all_digits_of_its_numbers(
    opaque: int, queue_offset: str, is_usual: bool
) -> None:
    fields = {"queueId": "0", "queueOffset": queue_offset, "msgId": "A" * 32}
    answer = RemotingCommand(code=0, ext_fields=fields, opaque=opaque, flag=1)
    header = encode_head(answer)[8:]

    form = learn_send_answer(answer, header)

    assert is_usual == (form is not None)
    if form is not None:
        match = form.pattern.fullmatch(header)
        assert match is not None
        expected = SendAnswered(0, int(queue_offset), "A" * 32)
        assert read_send_answer(match, None) == (opaque, expected)


def test_answer_of_a_broker_whose_trace_is_off_is_given_whole() -> None:
    fields = {"queueId": "0", "queueOffset": "1", "msgId": "A" * 32, "TRACE_ON": "false"}
    answer = RemotingCommand(code=0, ext_fields=fields, opaque=7, flag=1)

    assert learn_send_answer(answer, encode_head(answer)[8:]) is None


@settings(deadline=None)
@given(
    st.sampled_from(ANSWER_FIELDS),
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2**31 - 1)), max_size=8),
    DAMAGE,
    st.integers(0, 300),
)
def test_answers_are_taken_alike(
    usual: dict[str, str],
    answers: list[tuple[int, int]],
    damage: list[tuple[int, int]],
    cut: int,
) -> None:
    frames = [
        answer_of(usual | {"queueOffset": str(offset), "queueId": str(opaque)}, opaque)
        for opaque, offset in answers
    ]

    events = compare_answers(usual, harm(b"".join(frames), damage, cut))

    if not damage and not cut % 7:
        assert len(events) == len({opaque for opaque, _ in answers if 0 < opaque <= 8})


def test_repr_has_the_size_of_the_body_in_its_place() -> None:
    request = SendRequest(make_template(), (0, 0, 0, 0), "", b"card 4711")
    answer = PullAnswered(0, 1, 0, 1, b"card 4711")

    for shown in map(repr, (request, request.command(), answer)):
        assert ("body=<9 bytes>" in shown, "4711" in shown) == (True, False)
    assert "body=None" in repr(RemotingCommand(code=0))

"""The session: numbers, tokens and answers of one connection."""

from __future__ import annotations

import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparrowmq.errors import LocalProtocolError, RemoteProtocolError, TooManyInFlight
from sparrowmq.protocol.codes import ResponseCode
from sparrowmq.protocol.command import RemotingCommand, response_to
from sparrowmq.protocol.framing import FrameDecoder, encode_frame
from sparrowmq.protocol.send_request import SendAnswered, SendRequest, SendTemplate, make_fields
from sparrowmq.protocol.session import (
    RemotingSession,
    RequestReceived,
    ResponseReceived,
    SessionEvent,
)


def decode(frame: bytes) -> RemotingCommand:
    (command,) = FrameDecoder().receive_data(frame)
    return command


def answer(frame: bytes, body: bytes = b"answer") -> bytes:
    return encode_frame(response_to(decode(frame), body=body))


def test_requests_are_numbered_from_zero() -> None:
    session = RemotingSession()

    frames = [session.start_request(RemotingCommand(code=10), token) for token in "abc"]

    assert [decode(frame).opaque for frame in frames] == [0, 1, 2]
    assert session.outstanding == ("a", "b", "c")
    assert session.outstanding_count == 3


def command_of(event: ResponseReceived) -> RemotingCommand:
    assert isinstance(event.answer, RemotingCommand)
    return event.answer


def test_answer_returns_the_token_once() -> None:
    session = RemotingSession()
    frame = session.start_request(RemotingCommand(code=10), "token")

    (event,) = session.receive_data(answer(frame))

    assert isinstance(event, ResponseReceived)
    assert (event.token, command_of(event).body) == ("token", b"answer")
    assert session.outstanding == ()
    assert session.receive_data(answer(frame)) == []
    assert session.late_responses == 1


def test_abandoned_token_gets_no_answer() -> None:
    session = RemotingSession()
    frame = session.start_request(RemotingCommand(code=10), "token")

    assert session.abandon("token")
    assert not session.abandon("token")
    assert session.receive_data(answer(frame)) == []
    assert session.late_responses == 1


def test_request_of_the_peer_may_carry_a_number_of_ours() -> None:
    session = RemotingSession()
    session.start_request(RemotingCommand(code=10), "ours")

    (event,) = session.receive_data(encode_frame(RemotingCommand(code=40, opaque=0)))

    assert isinstance(event, RequestReceived)
    assert event.command.code == 40
    assert session.outstanding == ("ours",)


def test_oneway_is_marked_numbered_and_not_awaited() -> None:
    session = RemotingSession()
    session.start_request(RemotingCommand(code=10), "token")

    command = decode(session.write_oneway(RemotingCommand(code=35)))

    assert (command.is_oneway, command.opaque) == (True, 1)
    assert session.outstanding == ("token",)


def test_number_of_a_long_wait_is_not_given_twice_when_the_count_goes_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sparrowmq.protocol.session.OPAQUE_MAX", 2)
    session = RemotingSession()
    session.start_request(RemotingCommand(code=11), "long poll")
    opaques = []

    for token in "abcd":
        opaques.append(decode(session.start_request(RemotingCommand(code=10), token)).opaque)
        session.abandon(token)

    assert opaques == [1, 2, 1, 2]


def test_in_flight_requests_are_bounded() -> None:
    session = RemotingSession(in_flight_max=2)
    session.start_request(RemotingCommand(code=10), 1)
    session.start_request(RemotingCommand(code=10), 2)

    with pytest.raises(TooManyInFlight, match="2 requests wait"):
        session.start_request(RemotingCommand(code=10), 3)
    session.abandon(1)
    session.start_request(RemotingCommand(code=10), 3)

    assert session.outstanding == (2, 3)


def test_nothing_is_remembered_of_a_request_that_cannot_be_written() -> None:
    session = RemotingSession()
    session.start_request(RemotingCommand(code=10), "busy")

    for request, token in [
        (RemotingCommand(code=10, body=bytes(17 * 1024 * 1024)), "token"),
        (RemotingCommand(code=10, flag=1), "token"),
        (RemotingCommand(code=10, flag=2), "token"),
        (RemotingCommand(code=10), "busy"),
    ]:
        with pytest.raises(LocalProtocolError):
            session.start_request(request, token)

    assert session.outstanding == ("busy",)


def test_only_answers_are_written_as_answers() -> None:
    session = RemotingSession()
    request = RemotingCommand(code=307, opaque=9)

    response = decode(session.write_response(response_to(request)))

    assert (response.opaque, response.is_response) == (9, True)
    with pytest.raises(LocalProtocolError):
        session.write_response(request)


def test_bytes_that_are_no_frame_are_refused() -> None:
    with pytest.raises(RemoteProtocolError):
        RemotingSession().receive_data(b"GET / HTTP/1.1\r\n\r\n")


def test_answer_with_a_header_beyond_a_limit_is_an_error_of_its_request_alone() -> None:
    session = RemotingSession()
    for token in "ab":
        session.start_request(RemotingCommand(code=10), token)
    fields = {"code": 0, "flag": 1, "opaque": 0, "remark": "x" * 70_000}
    header = json.dumps(fields).encode()
    frame = (len(header) + 4).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header
    other = encode_frame(RemotingCommand(code=0, opaque=1, flag=1))

    events = session.receive_data(frame + frame.replace(b'"flag": 1', b'"flag": 0') + other)

    answers = [event for event in events if isinstance(event, ResponseReceived)]
    assert len(events) == len(answers)
    assert [(event.token, command_of(event).code) for event in answers] == [("a", 1), ("b", 0)]
    assert "at most 65536" in (command_of(answers[0]).remark or "")
    assert session.outstanding == ()


@given(st.data())
def test_every_answer_finds_its_own_token_in_any_order_and_in_any_pieces(
    data: st.DataObject,
) -> None:
    session = RemotingSession()
    bodies = data.draw(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=12))
    frames = {
        token: answer(session.start_request(RemotingCommand(code=10), token), body)
        for token, body in enumerate(bodies)
    }
    order = data.draw(st.permutations(range(len(bodies))))
    abandoned = data.draw(st.sets(st.sampled_from(range(len(bodies)))))
    for token in abandoned:
        session.abandon(token)
    stream = b"".join(frames[token] for token in order)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))

    received = []
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        received += session.receive_data(stream[begin:end])

    expected = [(token, bodies[token]) for token in order if token not in abandoned]
    answers = [event for event in received if isinstance(event, ResponseReceived)]
    assert len(received) == len(answers)
    assert [(event.token, command_of(event).body) for event in answers] == expected
    assert session.outstanding == ()
    assert len(abandoned) == session.late_responses


FIELDS = make_fields("G", "T", template_topic="TBW102", template_queues_max=4, code=310)
SEND = SendRequest(SendTemplate(310, FIELDS), (0, 0, 0, 0), "UNIQ_KEY\x01U", b"body")
# Fields of an answer to a send as brokers of 4.x, of 5.x and ours order them, and one that says
# more; the first is the most frequent.
ORDERS = (
    ("queueId", "TRACE_ON", "MSG_REGION", "msgId", "queueOffset"),
    ("MSG_REGION", "TRACE_ON", "msgId", "queueId", "queueOffset"),
    ("queueId", "msgId", "queueOffset"),
    ("transactionId", "queueId", "msgId", "queueOffset", "MSG_REGION"),
    ("msgId", "queueId", "queueOffset", "recallHandle"),
    ("msgId", "queueId"),
    (),
)
ANSWERS = st.tuples(
    st.sampled_from(ORDERS),
    st.fixed_dictionaries(
        {
            "queueId": st.sampled_from(["0", "7", "999999999", "2147483647", "-1", "x", "007"]),
            "queueOffset": st.integers(-1, 2**63).map(str),
            "msgId": st.sampled_from(["A" * 32, "0" * 32 + "," + "1" * 32, "ab" * 16, "F" * 56]),
            "TRACE_ON": st.sampled_from(["true", "false"]),
            "MSG_REGION": st.sampled_from(["DefaultRegion", '"opaque":1', 'a.b(c|d)%d"msgId":"']),
            "transactionId": st.just("T"),
            "recallHandle": st.just("H"),
        }
    ),
    st.sampled_from([0, 0, 0, 0, 10, 11]),
    st.sampled_from([None, None, None, "busy"]),
    st.sampled_from([b"", b"", b"", b"body"]),
)


def describe(event: SessionEvent) -> object:
    """Return what an event says, a `SendAnswered` as the command it stands for."""
    token = event.token if isinstance(event, ResponseReceived) else None
    command = event.answer if isinstance(event, ResponseReceived) else event.command
    if isinstance(command, SendAnswered):
        fields = (command.queue_id, command.queue_offset, command.offset_msg_id, None)
        return token, ResponseCode.SUCCESS, fields
    assert isinstance(command, RemotingCommand)
    found = command.ext_fields or {}
    try:
        places = (
            int(found["queueId"]),
            int(found["queueOffset"]),
            found["msgId"],
            found.get("recallHandle"),
        )
    except (KeyError, ValueError):
        return token, command.code, (command.remark, command.body)
    return token, command.code, places


@pytest.mark.usefixtures("both_ways")
@given(st.lists(ANSWERS, max_size=8), st.integers(1, 700), st.randoms())
def test_answers_to_sends_say_what_a_general_reader_finds(
    answers: list[tuple[tuple[str, ...], dict[str, str], int, str | None, bytes]],
    chunk_bytes: int,
    random: Random,
) -> None:
    quick, general = RemotingSession(), RemotingSession()
    for number in range(len(answers)):
        # The general session has commands that wait, and so learns no form.
        assert quick.start_request(SEND, number) == general.start_request(SEND.command(), number)
    numbers = list(range(len(answers)))
    random.shuffle(numbers)
    # The last one comes twice.
    data = b"".join(
        encode_frame(
            RemotingCommand(
                code=code,
                ext_fields={name: fields[name] for name in order},
                opaque=number,
                flag=1,
                remark=remark,
                body=body or None,
            )
        )
        for number, (order, fields, code, remark, body) in zip(
            [*numbers, *numbers[-1:]], [*answers, *answers[-1:]], strict=True
        )
    )
    events: tuple[list[SessionEvent], list[SessionEvent]] = ([], [])
    for at in range(0, len(data), chunk_bytes):
        for session, found in zip((quick, general), events, strict=True):
            found += session.receive_data(data[at : at + chunk_bytes])

    assert [describe(event) for event in events[1]] == [describe(event) for event in events[0]]
    assert () == quick.outstanding == general.outstanding
    assert quick.late_responses == general.late_responses


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("gives_own_id", [False, True])
@pytest.mark.parametrize("count", [1, 512])
def test_second_usual_answer_to_a_send_is_read_by_the_form_of_the_first(
    gives_own_id: bool, count: int
) -> None:
    session = RemotingSession()
    msg_ids = ",".join(["A" * 56] * count)
    fields = {"queueId": "3", "TRACE_ON": "true", "msgId": msg_ids, "queueOffset": "17"}
    for token in "abc":
        session.start_request(SEND, token)
    session.abandon("c")
    frames = [
        encode_frame(
            RemotingCommand(
                code=0,
                # As RocketMQ 5 answers.
                ext_fields=fields | ({"transactionId": f"0A{opaque}F"} if gives_own_id else {}),
                opaque=opaque,
                flag=1,
            )
        )
        for opaque in range(3)
    ]

    first, second = session.receive_data(b"".join(frames))

    assert isinstance(first, ResponseReceived)
    assert isinstance(first.answer, RemotingCommand)
    assert second == ResponseReceived("b", SendAnswered(3, 17, msg_ids))
    # The third, which nobody waits for any more, is dropped.
    assert session.late_responses == 1

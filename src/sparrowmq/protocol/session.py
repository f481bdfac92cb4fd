"""One connection of the remoting protocol without its socket: bytes in, events out. Pure.

Either side of a connection may start requests, and answers come in any order. A session numbers
the requests that it writes (the number is their *opaque*), keeps the caller's token of each, and
returns the token with the answer. The peer numbers its own requests independently: the opaque of
an answer is a number of ours, the opaque of a request is a number of the peer's.

Rules for the caller:
- Write the bytes that a method returns, in the order of the calls.
- After an error of `receive_data`, close the connection; all outstanding tokens are lost.
- When a waiter gives up, call `abandon`; the session then drops the late answer silently.

The usual answers to sends differ in four values only, and so do those to pulls. The session keeps
the form of the first answer of each kind and reads answers of this form by it (`answer_form`). The
general decoder reads all others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

import msgspec

from sparrowmq.errors import LocalProtocolError, TooManyInFlight
from sparrowmq.protocol import speedups
from sparrowmq.protocol.answer_form import AnswerForm
from sparrowmq.protocol.codes import ResponseCode
from sparrowmq.protocol.command import (
    ONEWAY_FLAG,
    RESPONSE_FLAG,
    PreparedRequest,
    RemotingCommand,
)
from sparrowmq.protocol.framing import (
    FrameDecoder,
    RefusedHeader,
    decode_command,
    encode_frame,
)
from sparrowmq.protocol.pull_request import (
    PullAnswered,
    PullRequest,
    learn_pull_answer,
    read_pull_answer,
)
from sparrowmq.protocol.send_request import SendAnswered, learn_send_answer, read_send_answer

# NettySystemConfig.CLIENT_ASYNC_SEMAPHORE_VALUE: RocketMQ's permits for requests under way.
IN_FLIGHT_MAX = 65_535

# The opaque is a signed 32 bit number on the wire; sessions use numbers from 0 on.
OPAQUE_MAX = 2**31 - 1


class ResponseReceived(msgspec.Struct, frozen=True, gc=False):
    """The answer to the request that was started with `token`.

    A struct costs half of a named tuple. No lasting object refers to events: the garbage collector
    need not track them.
    """

    token: Hashable
    answer: RemotingCommand | SendAnswered | PullAnswered


class RequestReceived(NamedTuple):
    """A request of the peer; answer it with `write_response` unless it is one-way."""

    command: RemotingCommand


SessionEvent: TypeAlias = ResponseReceived | RequestReceived


class _UsualAnswers:
    """The requests of one kind that wait for answers, and the form of the usual answers.

    Args:
        learn: returns the form of an answer, from its command and its header.
        answer_type: made from the values of a usual answer and, if it has one, its body.
        read: makes it from the match of the form's pattern, and returns it with its opaque.
        has_body: whether usual answers have bodies.
    """

    __slots__ = ("answer_type", "form", "has_body", "learn", "read", "tokens")

    def __init__(
        self,
        learn: Callable[[RemotingCommand, bytes], AnswerForm | None],
        answer_type: Callable[..., SendAnswered | PullAnswered],
        read: Callable[[re.Match[bytes], bytes | None], tuple[int, SendAnswered | PullAnswered]],
        *,
        has_body: bool,
    ) -> None:
        self.learn = learn
        self.answer_type = answer_type
        self.read = read
        self.has_body = has_body
        self.tokens: dict[int, Hashable] = {}
        self.form: AnswerForm | None = None


class RemotingSession:
    """Matches answers with requests on one connection.

    Args:
        in_flight_max: the most requests that wait for their answers at once.
    """

    __slots__ = (
        "_decoder",
        "_free",
        "_in_flight_max",
        "_opaques",
        "_pulls",
        "_sends",
        "_tokens",
        "late_responses",
    )

    def __init__(self, *, in_flight_max: int = IN_FLIGHT_MAX) -> None:
        self._decoder = FrameDecoder(decode=self._decode)
        self._in_flight_max = in_flight_max
        # Of all requests that wait, by token; and of those of another kind than the two, by opaque.
        self._opaques: dict[Hashable, int] = {}
        self._tokens: dict[int, Hashable] = {}
        self._sends = _UsualAnswers(
            learn_send_answer, SendAnswered, read_send_answer, has_body=False
        )
        self._pulls = _UsualAnswers(
            learn_pull_answer, PullAnswered, read_pull_answer, has_body=True
        )
        self._free = _free_opaques(self._sends.tokens, self._pulls.tokens, self._tokens)
        self.late_responses = 0

    @property
    def outstanding(self) -> tuple[Hashable, ...]:
        """The tokens of all requests that wait for an answer, in the order they were started."""
        return tuple(self._opaques)

    @property
    def outstanding_count(self) -> int:
        """The number of requests that wait for an answer."""
        return len(self._opaques)

    def start_request(self, request: RemotingCommand | PreparedRequest, token: Hashable) -> bytes:
        """Number a request and return its bytes; the answer's event has the token.

        Raises:
            TooManyInFlight: `in_flight_max` requests wait already.
            LocalProtocolError: the request cannot be encoded, is an answer or one-way, or the
                token waits already. The session is unchanged then.
        """
        opaques = self._opaques
        if len(opaques) >= self._in_flight_max:
            raise TooManyInFlight(
                f"{len(opaques)} requests wait for answers on one connection, "
                "as many as may; wait for some of them first"
            )
        if token in opaques:
            raise LocalProtocolError(f"token {token!r} waits for another answer already")
        opaque = next(self._free)
        if isinstance(request, PreparedRequest):
            frame = request.encode(opaque)
            answers = self._pulls if type(request) is PullRequest else self._sends
            answers.tokens[opaque] = token
        elif request.flag & (RESPONSE_FLAG | ONEWAY_FLAG):
            raise LocalProtocolError(f"flag {request.flag} is not that of a two-way request")
        else:
            request.opaque = opaque
            frame = encode_frame(request)
            self._tokens[opaque] = token
        opaques[token] = opaque
        return frame

    def write_oneway(self, request: RemotingCommand) -> bytes:
        """Number a request, mark it one-way and return its bytes."""
        request.opaque = next(self._free)
        request.flag |= ONEWAY_FLAG
        return encode_frame(request)

    def write_response(self, response: RemotingCommand) -> bytes:
        """Return the bytes of an answer, whose opaque is its request's already."""
        if not response.flag & RESPONSE_FLAG:
            raise LocalProtocolError(f"flag {response.flag} is not that of an answer")
        return encode_frame(response)

    def receive_data(self, data: bytes | bytearray | memoryview) -> list[SessionEvent]:
        """Take bytes from the peer and return the events that they complete, in order.

        An answer with a refused header becomes an answer SYSTEM_ERROR; a request with a refused
        header is dropped.

        Raises: RemoteProtocolError for a malformed or too large frame; close the connection then.
        """
        events: list[SessionEvent] = []
        sends, pulls = self._sends, self._pulls
        self._decoder.feed(data)
        while True:
            if sends.tokens and sends.form is not None:
                self._take_usual(sends, sends.form, events)
            if pulls.tokens and pulls.form is not None:
                self._take_usual(pulls, pulls.form, events)
            if not self._take_command(events):
                return events

    def _decode(self, kind: int, header: bytes, body: bytes | None) -> RemotingCommand:
        command = decode_command(kind, header, body)
        for answers in (self._sends, self._pulls):
            if answers.form is None and command.opaque in answers.tokens:
                answers.form = answers.learn(command, header)
        return command

    def _take_usual(
        self, answers: _UsualAnswers, form: AnswerForm, events: list[SessionEvent]
    ) -> None:
        """Take the next answers while they have the usual form."""
        decoder, tokens = self._decoder, answers.tokens
        functions, place = speedups.functions, decoder.place
        if functions is not None and place is not None:
            at = functions.take_answers(
                *place,
                form.literals,
                form.kinds,
                answers.has_body,
                tokens,
                self._opaques,
                answers.answer_type,
                ResponseReceived,
                events,
            )
            decoder.pass_to(at)
            return
        pattern, has_body, read = form.pattern, answers.has_body, answers.read
        while (found := decoder.find_frame(pattern, has_body=has_body)) is not None:
            match, body = found
            opaque, answer = read(match, body)
            if opaque not in tokens:
                return
            token = tokens.pop(opaque)
            del self._opaques[token]
            events.append(ResponseReceived(token, answer))
            decoder.pass_to(match.end() if body is None else match.end() + len(body))

    def _take_command(self, events: list[SessionEvent]) -> bool:
        """Add the event of the next command; return whether there was a command."""
        try:
            command = self._decoder.next_command()
        except RefusedHeader as refused:
            command = refused.command
            if not command.is_response:
                return True
            command.code = ResponseCode.SYSTEM_ERROR
            command.remark = f"the answer cannot be read: {refused}"
        if command is None:
            return False
        if not command.flag & RESPONSE_FLAG:
            events.append(RequestReceived(command))
            return True
        tokens = self._tokens_with(command.opaque)
        if tokens is None:
            self.late_responses += 1
            return True
        token = tokens.pop(command.opaque)
        del self._opaques[token]
        events.append(ResponseReceived(token, command))
        return True

    def find_opaque(self, token: Hashable) -> int | None:
        """Return the number of the request whose answer a token waits for, None for none."""
        return self._opaques.get(token)

    def abandon(self, token: Hashable) -> bool:
        """Stop waiting for a token's answer; return whether the token was outstanding."""
        opaque = self._opaques.pop(token, None)
        tokens = None if opaque is None else self._tokens_with(opaque)
        if opaque is None or tokens is None:
            return False
        del tokens[opaque]
        return True

    def _tokens_with(self, opaque: int) -> dict[int, Hashable] | None:
        """Return the table that has an opaque, None if no request waits with it."""
        for tokens in (self._sends.tokens, self._pulls.tokens, self._tokens):
            if opaque in tokens:
                return tokens
        return None


def _free_opaques(
    sends: Mapping[int, Hashable], pulls: Mapping[int, Hashable], others: Mapping[int, Hashable]
) -> Iterator[int]:
    """Yield the numbers that no request waits with, over and over."""
    while True:
        for opaque in range(OPAQUE_MAX + 1):
            # A long poll may still hold its number when the count begins again.
            if not (opaque in sends or opaque in pulls or opaque in others):
                yield opaque

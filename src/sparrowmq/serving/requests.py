"""One request inside a serving machine, and the ways to answer it. Pure.

Tests: test_refusals.py.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import TypeAlias, TypeVar

import msgspec

from sparrowmq.errors import ProtocolError, StoreError
from sparrowmq.protocol.bodies import encode_body
from sparrowmq.protocol.codes import ResponseCode
from sparrowmq.protocol.command import RemotingCommand, response_to
from sparrowmq.protocol.headers import decode_header
from sparrowmq.serving.connections import Aside, Connection, Fact, Output, Produce, Reply

# FAQUrl.suggestTodo's suffix, which clients print and some clients match.
FAQ = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."

# The prefix of the reason in the answer to a request that access control denies.
DENIED = "org.apache.rocketmq.acl.common.AclException: "


class Request(msgspec.Struct, frozen=True):
    """A command with its connection and its time."""

    command: RemotingCommand
    connection: Connection
    now_ms: int
    timestamp_ms: int


State = TypeVar("State")
Header = TypeVar("Header", bound=msgspec.Struct)
Processor: TypeAlias = Callable[[State, Request], Sequence[Output]]


class Refusal(Exception):
    """The error answer to a request: processors raise it, and `serve` answers with it."""

    def __init__(
        self,
        code: int,
        remark: str,
        *,
        ext_fields: Mapping[str, str] | None = None,
        facts: Sequence[Fact] = (),
    ) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark
        self.ext_fields = ext_fields
        self.facts = facts


_ANSWERED = (Refusal, ProtocolError, StoreError, OSError)


def typed_header(request: Request, kind: type[Header]) -> Header:
    """Return a request's header by its type; `framing.decode_request` has read the usual ones.

    Raises: ProtocolError for a header that is not of the type.
    """
    header = request.command.header
    if isinstance(header, kind):
        return header
    return decode_header(kind, request.command.ext_fields)


def answer(
    request: Request,
    code: int = ResponseCode.SUCCESS,
    *,
    remark: str | None = None,
    ext_fields: Mapping[str, str] | None = None,
    body: bytes | None = None,
) -> Sequence[Output]:
    """Return the reply, or () if the request is one-way."""
    command = request.command
    if command.is_oneway:
        return ()
    return (
        Reply(
            request.connection,
            response_to(command, code, remark=remark, ext_fields=ext_fields, body=body),
        ),
    )


def deny(request: Request, reason: str) -> Sequence[Output]:
    """Answer a request that access control denies, as RocketMQ does."""
    return answer(request, ResponseCode.SYSTEM_ERROR, remark=f"{DENIED}{reason}")


def serve(
    processors: Mapping[int, Processor[State]], state: State, request: Request
) -> Sequence[Output]:
    """Call the processor of the request's code; errors become answers."""
    command = request.command
    processor = processors.get(command.code)
    try:
        if processor is None:
            raise Refusal(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f" request type {command.code} not supported",
            )
        return processor(state, request)
    except _ANSWERED as error:
        return _answer_error(request, error)


# The steps of an answer that takes long; a yield lets other requests run.
Steps: TypeAlias = Generator[None, None, Sequence[Output]]


def answer_in_steps(request: Request, steps: Steps) -> Sequence[Output]:
    """Make an answer that takes long, a step at a time; other requests are served in between.

    Args:
        steps: yields at points where other requests may run, and returns the outputs. The state
            may have changed after each yield. Errors become answers.
    """

    def step() -> Sequence[Output]:
        try:
            next(steps)
        except StopIteration as end:
            outputs: Sequence[Output] = end.value
            return outputs
        except _ANSWERED as error:
            return _answer_error(request, error)
        return [Produce(request.connection, step)]

    return [Produce(request.connection, step)]


def answer_later(request: Request, make: Callable[[], Sequence[Output]]) -> Produce:
    """Make the answer to a request that has waited; errors become answers."""
    return Produce(request.connection, partial(_try, request, make))


def serve_aside(request: Request, serve: Callable[[], Sequence[Output]]) -> Sequence[Output]:
    """Serve a request in a thread, beside the loop; errors become answers.

    Args:
        serve: serves the request; it reads only what never changes, or under a lock.
    """
    return (Aside(request.connection, request.command, partial(_try, request, serve)),)


def answer_aside(request: Request, body: msgspec.Struct) -> Sequence[Output]:
    """Answer with a body that may have an entry for each queue or group: a thread encodes it."""
    return serve_aside(request, lambda: answer(request, body=encode_body(body)))


def _try(request: Request, serve: Callable[[], Sequence[Output]]) -> Sequence[Output]:
    try:
        return serve()
    except _ANSWERED as error:
        return _answer_error(request, error)


def _answer_error(request: Request, error: Exception) -> Sequence[Output]:
    if not isinstance(error, Refusal):
        return answer(request, ResponseCode.SYSTEM_ERROR, remark=str(error))
    outputs = answer(request, error.code, remark=error.remark, ext_fields=error.ext_fields)
    return [*outputs, *error.facts]

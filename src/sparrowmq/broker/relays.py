"""Questions that the broker passes on to its clients on behalf of other clients. Pure.

Every question ends: with the client's answer, or with an error if the answer is late or the client
disconnects. The asking client therefore always gets an answer.

Source: AdminBrokerProcessor.callConsumer, Broker2Client.callClient.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from sparrowmq.protocol.codes import ResponseCode
from sparrowmq.protocol.command import RemotingCommand, response_to
from sparrowmq.serving.connections import Connection, Output, Push, Reply
from sparrowmq.serving.requests import Refusal, Request

# The time-out of callClient.
RELAY_TIMEOUT_MS = 10_000
# The most questions under way at once.
RELAYS_MAX = 1_024
# A client with so many gets no further reply: one that stands still leaves the rest to the others.
RELAYS_PER_CLIENT_MAX = 256

# Makes outputs from a client's answer, or from the error that replaces it.
Finish: TypeAlias = Callable[[Request, RemotingCommand], Sequence[Output]]


def pass_back(request: Request, response: RemotingCommand) -> Sequence[Output]:
    """Answer a request with the client's answer."""
    back = response_to(
        request.command,
        response.code,
        remark=response.remark,
        ext_fields=response.ext_fields,
        body=response.body,
    )
    return () if request.command.is_oneway else (Reply(request.connection, back),)


class _Relay(NamedTuple):
    request: Request
    client: Connection
    timeout_ms: int
    finish: Finish


class Relays:
    """The questions that clients have not answered yet."""

    __slots__ = ("_counts", "_relays", "_sent_count")

    def __init__(self) -> None:
        # By the number that the broker gave the question, oldest first.
        self._relays: dict[int, _Relay] = {}
        # By asked client, the number of its questions.
        self._counts: Counter[Connection] = Counter()
        self._sent_count = 0

    def __len__(self) -> int:
        return len(self._relays)

    def ask(
        self,
        request: Request,
        client: Connection,
        *,
        code: int,
        fields: Mapping[str, str],
        body: bytes | None = None,
        timeout_ms: int = RELAY_TIMEOUT_MS,
        finish: Finish = pass_back,
    ) -> Sequence[Output]:
        """Ask a client. Raises: Refusal if too many questions are under way.

        Args:
            request: the request on whose behalf the client is asked.
            code: the question's code; its header is `fields`.
            timeout_ms: the time after which the answer is an error.
            finish: called with the answer.
        """
        self.check_room(1)
        number = self._sent_count = (self._sent_count + 1) & 0x7FFFFFFF
        self._relays[number] = _Relay(request, client, timeout_ms, finish)
        self._counts[client] += 1
        question = RemotingCommand(code=code, ext_fields=fields, body=body, opaque=number)
        return (Push(client, question),)

    def check_room(self, count: int, client: Connection | None = None) -> None:
        """Raise a Refusal unless `count` more questions may be asked, and a reply be pushed.

        Args:
            client: who gets the reply; None for questions of other kinds.
        """
        text = ""
        if len(self._relays) + count > RELAYS_MAX:
            text = f"{RELAYS_MAX} questions to clients are under way"
        elif client is not None and self._counts[client] >= RELAYS_PER_CLIENT_MAX:
            text = f"the client has not answered {RELAYS_PER_CLIENT_MAX} questions yet"
        if text:
            raise Refusal(ResponseCode.SYSTEM_BUSY, text)

    def answered(self, response: RemotingCommand, client: Connection) -> Sequence[Output]:
        """Process a client's answer; an answer without a question has no effect."""
        relay = self._relays.get(response.opaque)
        if relay is None or relay.client is not client:
            return ()
        self._take(response.opaque)
        return relay.finish(relay.request, response)

    def expire(self, now_ms: int) -> list[Output]:
        """Answer with an error for clients that took too long."""
        outputs: list[Output] = []
        for number, relay in list(self._relays.items()):
            if now_ms - relay.request.now_ms >= relay.timeout_ms:
                text = f"the client did not answer within {relay.timeout_ms} ms"
                outputs += self._fail(number, ResponseCode.CONSUME_MSG_TIMEOUT, text)
        return outputs

    def forget(self, connection: Connection) -> list[Output]:
        """Note that a connection closed: of an asking client or of a client that was asked."""
        outputs: list[Output] = []
        for number, relay in list(self._relays.items()):
            if relay.request.connection is connection:
                self._take(number)
            elif relay.client is connection:
                text = "the client's connection closed"
                outputs += self._fail(number, ResponseCode.SYSTEM_ERROR, text)
        return outputs

    def _fail(self, number: int, code: int, remark: str) -> Sequence[Output]:
        relay = self._take(number)
        return relay.finish(relay.request, RemotingCommand(code=code, remark=remark))

    def _take(self, number: int) -> _Relay:
        relay = self._relays.pop(number)
        self._counts[relay.client] -= 1
        if not self._counts[relay.client]:
            del self._counts[relay.client]
        return relay

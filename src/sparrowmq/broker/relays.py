"""Questions to clients on behalf of others, over the broker to which they are connected. Pure.

Every question has an end: the client's answer, or an error if the answer does not come in time or
the client goes away. So whoever asked is never left waiting.

Source: AdminBrokerProcessor.callConsumer, Broker2Client.callClient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from sparrowmq.protocol.codes import ResponseCode
from sparrowmq.protocol.command import RemotingCommand, response_to
from sparrowmq.serving.connections import Connection, Output, Push, Reply
from sparrowmq.serving.requests import Refusal, Request

# callClient's time-out.
RELAY_TIMEOUT_MS = 10_000
# Under way at once.
RELAYS_MAX = 1_024

# Makes outputs of a client's answer, or of the error in its place.
Finish: TypeAlias = Callable[[Request, RemotingCommand], Sequence[Output]]


def pass_back(request: Request, response: RemotingCommand) -> Sequence[Output]:
    """Answer a request with what the client answered."""
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

    __slots__ = ("_relays", "_sent_count")

    def __init__(self) -> None:
        # By our own number, oldest first.
        self._relays: dict[int, _Relay] = {}
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
            request: on whose behalf.
            code: of the question; its header is `fields`.
            timeout_ms: after which the answer is an error.
            finish: called with the answer.
        """
        self.check_room(1)
        number = self._sent_count = (self._sent_count + 1) & 0x7FFFFFFF
        self._relays[number] = _Relay(request, client, timeout_ms, finish)
        question = RemotingCommand(code=code, ext_fields=fields, body=body, opaque=number)
        return (Push(client, question),)

    def check_room(self, count: int) -> None:
        """Raise a Refusal unless so many more questions may be asked."""
        if len(self._relays) + count > RELAYS_MAX:
            raise Refusal(
                ResponseCode.SYSTEM_BUSY, f"{RELAYS_MAX} questions to clients are under way"
            )

    def answered(self, response: RemotingCommand, client: Connection) -> Sequence[Output]:
        """Take a client's answer; one that nobody waits for leads to nothing."""
        relay = self._relays.get(response.opaque)
        if relay is None or relay.client is not client:
            return ()
        del self._relays[response.opaque]
        return relay.finish(relay.request, response)

    def expire(self, now_ms: int) -> list[Output]:
        """Answer for the clients that took too long."""
        outputs: list[Output] = []
        for number, relay in list(self._relays.items()):
            if now_ms - relay.request.now_ms >= relay.timeout_ms:
                text = f"the client did not answer within {relay.timeout_ms} ms"
                outputs += self._fail(number, ResponseCode.CONSUME_MSG_TIMEOUT, text)
        return outputs

    def forget(self, connection: Connection) -> list[Output]:
        """Take note that a connection closed: of one who asked, or of one who was asked."""
        outputs: list[Output] = []
        for number, relay in list(self._relays.items()):
            if relay.request.connection is connection:
                del self._relays[number]
            elif relay.client is connection:
                text = "the client's connection closed"
                outputs += self._fail(number, ResponseCode.SYSTEM_ERROR, text)
        return outputs

    def _fail(self, number: int, code: int, remark: str) -> Sequence[Output]:
        relay = self._relays.pop(number)
        return relay.finish(relay.request, RemotingCommand(code=code, remark=remark))

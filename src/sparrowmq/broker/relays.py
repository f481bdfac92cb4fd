"""Questions of tools to a client, passed on by the broker that it is connected to. Pure.

The client's answer goes back as it is. One that does not come in time, or whose client went away,
is an error, so whoever asked is never left waiting.

Source: AdminBrokerProcessor.callConsumer, Broker2Client.callClient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sparrowmq.protocol.codes import ResponseCode
from sparrowmq.protocol.command import RemotingCommand, response_to
from sparrowmq.serving.connections import Connection, Output, Push, Reply
from sparrowmq.serving.requests import Refusal, Request, answer

# callClient's time-out.
RELAY_TIMEOUT_MS = 10_000
# Under way at once.
RELAYS_MAX = 1_024


class _Relay(NamedTuple):
    request: Request
    client: Connection
    deadline_ms: int


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
        fields: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> Sequence[Output]:
        """Pass a request on to a client. Raises: Refusal if too many are under way.

        Args:
            fields: what the header says beside what it says already.
            body: in the place of the request's own.
        """
        if len(self._relays) >= RELAYS_MAX:
            raise Refusal(
                ResponseCode.SYSTEM_BUSY, f"{RELAYS_MAX} questions to clients are under way"
            )
        command = request.command
        self._sent_count = (self._sent_count + 1) & 0x7FFFFFFF
        number = self._sent_count
        self._relays[number] = _Relay(request, client, request.now_ms + RELAY_TIMEOUT_MS)
        question = RemotingCommand(
            code=command.code,
            ext_fields={**(command.ext_fields or {}), **(fields or {})},
            body=command.body if body is None else body,
            opaque=number,
        )
        return (Push(client, question),)

    def answered(self, response: RemotingCommand, client: Connection) -> Sequence[Output]:
        """Take a client's answer; one that nobody waits for leads to nothing."""
        relay = self._relays.get(response.opaque)
        if relay is None or relay.client is not client:
            return ()
        del self._relays[response.opaque]
        back = response_to(
            relay.request.command,
            response.code,
            remark=response.remark,
            ext_fields=response.ext_fields,
            body=response.body,
        )
        return (Reply(relay.request.connection, back),)

    def expire(self, now_ms: int) -> list[Output]:
        """Answer for the clients that took too long."""
        late = [number for number, relay in self._relays.items() if relay.deadline_ms <= now_ms]
        text = f"the client did not answer within {RELAY_TIMEOUT_MS} ms"
        return self._fail(late, ResponseCode.CONSUME_MSG_TIMEOUT, text)

    def forget(self, connection: Connection) -> list[Output]:
        """Take note that a connection closed: of one who asked, or of one who was asked."""
        for number, relay in list(self._relays.items()):
            if relay.request.connection is connection:
                del self._relays[number]
        asked = [number for number, relay in self._relays.items() if relay.client is connection]
        return self._fail(asked, ResponseCode.SYSTEM_ERROR, "the client's connection closed")

    def _fail(self, numbers: Sequence[int], code: int, remark: str) -> list[Output]:
        relays = [self._relays.pop(number) for number in numbers]
        return [output for r in relays for output in answer(r.request, code, remark=remark)]

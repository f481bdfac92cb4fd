"""Renewals: a message of a push consumer stays invisible while its client lives.

A push consumer does not say how long its listener takes. The service makes such a message invisible
for a minute, and for another one before each minute ends. Once the client is gone, its messages
come again in seconds. Differs from RocketMQ: every renewal is for one minute, and a client is gone
when its stream has ended and it has not called for `SILENCE_MS`.

Source: ReceiptHandleProcessor of 5.5.0. Tests: test_renewals.py.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from sparrowmq.calling.repetition import repeat
from sparrowmq.grpc_service.callers import Caller
from sparrowmq.grpc_service.client_table import Client, Clients
from sparrowmq.grpc_service.messages import Code
from sparrowmq.grpc_service.receipts import Ending, Receipt, change_invisible
from sparrowmq.grpc_service.statuses import Rejected

RENEWED_MS = 60_000
# A message is renewed when so little of its time is left, and again each second after a failure.
LEFT_MS = 20_000
LOOK_S = 1.0
# Clients send a heartbeat every 10 s.
SILENCE_MS = 15_000
# The messages of a gone client are visible again after this.
RELEASED_MS = 1_000
# ProxyConfig.renewMaxTimeMillis: a listener that takes longer has lost its message.
RENEWAL_MS_MAX = 3 * 3_600_000
# A message is renewed for so long after a call that did not finish it, which clients repeat.
REPEATED_MS = 60_000
# Messages of one client; its own cache holds 1,024. What is beyond comes again after a minute.
RENEWED_MAX = 4_096
# The changes that are under way at a time; a connection has LOCAL_IN_FLIGHT_MAX.
CHANGED_AT_ONCE = 256

_T = TypeVar("_T")


@dataclass(slots=True, eq=False)
class _Renewed:
    ending: Ending
    caller: Caller
    until_ms: int
    # When the renewals end.
    end_ms: int
    # A change of the time changes the handle, so an acknowledgement or another change waits for it.
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Renewals:
    """The messages that are renewed.

    Args:
        now_ms: the monotonic clock: a wall clock that is set back or ahead keeps no message from
            its renewal.
    """

    def __init__(self, clients: Clients, *, now_ms: Callable[[], int]) -> None:
        self._clients = clients
        self._now_ms = now_ms
        # By client and by the receipt handle that the client has.
        self._renewed: dict[Client, dict[str, _Renewed]] = {}

    def add(self, caller: Caller, receipt: Receipt) -> None:
        """Renew a message from now on."""
        client, now_ms = self._clients.find(caller), self._now_ms()
        client.seen_ms = now_ms
        of_client = self._renewed.setdefault(client, {})
        if len(of_client) < RENEWED_MAX:
            until_ms = now_ms + receipt.handle.invisible_ms
            end_ms = now_ms + RENEWAL_MS_MAX
            of_client[receipt.text] = _Renewed(Ending(receipt), caller, until_ms, end_ms)

    @contextlib.asynccontextmanager
    async def end(self, caller: Caller, receipt: Receipt) -> AsyncGenerator[Ending]:
        """Renew a message no more; yield it with the handle that is valid now.

        A message that is not done is renewed for a while. A client repeats the call, with the
        handle that it has: the broker may have been busy, or without room on its disk. So a message
        that was not renewed is so too, if the call has changed its handle.
        """
        client = self._clients.find(caller)
        renewed = self._renewed.get(client, {}).pop(receipt.text, None)
        if renewed is None:
            ending = Ending(receipt)
            try:
                yield ending
            finally:
                if not ending.is_done and ending.receipt != receipt:
                    self._keep_changed(client, caller, receipt.text, ending)
            return
        if not self._renewed[client]:
            del self._renewed[client]
        try:
            # The call may end while it waits for a renewal.
            async with renewed.lock:
                yield renewed.ending
        finally:
            if not renewed.ending.is_done:
                renewed.end_ms = min(renewed.end_ms, self._now_ms() + REPEATED_MS)
                self._renewed.setdefault(client, {})[receipt.text] = renewed

    def _keep_changed(self, client: Client, caller: Caller, known: str, ending: Ending) -> None:
        """Renew for a while a message whose client knows another handle."""
        now_ms, of_client = self._now_ms(), self._renewed.setdefault(client, {})
        if len(of_client) < RENEWED_MAX:
            until_ms = now_ms + ending.receipt.handle.invisible_ms
            of_client[known] = _Renewed(ending, caller, until_ms, now_ms + REPEATED_MS)

    async def run(self) -> None:
        """Renew until cancelled."""
        await repeat(self.look, name="the renewal of messages", pause_s=lambda: LOOK_S)

    async def look(self) -> None:
        """Renew what is due, and release the messages of clients that are gone."""
        now_ms = self._now_ms()
        due: list[tuple[dict[str, _Renewed], str]] = []
        released: list[_Renewed] = []
        for client, of_client in list(self._renewed.items()):
            is_gone = not client.streams and now_ms - client.seen_ms > SILENCE_MS
            for receipt, renewed in list(of_client.items()):
                if is_gone or now_ms > renewed.end_ms:
                    del of_client[receipt]
                    if is_gone:
                        released.append(renewed)
                elif renewed.until_ms - now_ms <= LEFT_MS:
                    due.append((of_client, receipt))
        await _each(released, self._release)
        await _each(due, self._renew)
        for client, of_client in list(self._renewed.items()):
            if not of_client:
                del self._renewed[client]

    async def release(self, client: Client) -> None:
        """Let the messages of a client that has ended come again soon."""
        of_client = self._renewed.pop(client, {})
        released = list(of_client.values())
        of_client.clear()
        await _each(released, self._release)

    async def _renew(self, place: tuple[dict[str, _Renewed], str]) -> None:
        of_client, receipt = place
        renewed = of_client.get(receipt)
        if renewed is None:
            # It was finished, or its client has ended, while others were renewed.
            return
        refusal = await self._change(renewed, RENEWED_MS)
        is_over = renewed.until_ms <= self._now_ms()
        if refusal == Code.INVALID_RECEIPT_HANDLE or (refusal is not None and is_over):
            of_client.pop(receipt, None)

    async def _release(self, renewed: _Renewed) -> None:
        await self._change(renewed, RELEASED_MS)

    async def _change(self, renewed: _Renewed, invisible_ms: int) -> Code | None:
        """Let a message be invisible from now on; return why the broker refuses, None if not."""
        async with renewed.lock:
            asked_ms = self._now_ms()
            try:
                await change_invisible(
                    self._clients, renewed.caller, renewed.ending, invisible_ms=invisible_ms
                )
            except Rejected as error:
                return error.code
            renewed.until_ms = asked_ms + invisible_ms
        return None


async def _each(messages: Sequence[_T], change: Callable[[_T], Awaitable[None]]) -> None:
    """Change many messages at a time: a flush of the broker takes as long for one as for many."""
    for at in range(0, len(messages), CHANGED_AT_ONCE):
        await asyncio.gather(*map(change, messages[at : at + CHANGED_AT_ONCE]))

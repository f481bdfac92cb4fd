"""The connections of a small HTTP server: how many may be open, and how long each may be silent.

The health port, the exporter and the live page use it. Whoever may connect may also say nothing, or
take no answer, so that costs nobody else a place: a connection has `REQUEST_TIMEOUT_S` for each
request, and `TAKING_TIMEOUT_S` for an answer that it does not take. When all places are taken, a
new connection gets the place of the one that is waited for longest. A new one is refused only while
the answers of all others are being made.
"""

from __future__ import annotations

import asyncio

# The time from the connection, or from the last answer, to the whole next request.
REQUEST_TIMEOUT_S = 5.0
# The time for which a connection may take nothing of its answer.
TAKING_TIMEOUT_S = 30.0


class OpenConnections:
    """The open connections of one server, on one event loop.

    Args:
        count_max: the most connections.
        request_timeout_s, taking_timeout_s: the longest waits for a peer.

    Attributes:
        answered: the connections whose request is being answered.
    """

    def __init__(
        self,
        count_max: int,
        *,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        taking_timeout_s: float = TAKING_TIMEOUT_S,
    ) -> None:
        self._count_max = count_max
        self._request_timeout_s = request_timeout_s
        self._taking_timeout_s = taking_timeout_s
        self.answered: set[asyncio.Transport] = set()
        # Those that are waited for, with their timers, the longest first.
        self._awaited: dict[asyncio.Transport, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self.answered) + len(self._awaited)

    def open(self, transport: asyncio.Transport) -> None:
        """Take a new connection; close another one, or this one, for its place."""
        if len(self) >= self._count_max:
            longest = next(iter(self._awaited), None)
            if longest is None:
                transport.abort()
                return
            self.close(longest)
            longest.abort()
        self.await_request(transport)

    def await_request(self, transport: asyncio.Transport) -> None:
        """Note that a connection owes its next request from now on."""
        self._await(transport, self._request_timeout_s)

    def await_taking(self, transport: asyncio.Transport) -> None:
        """Note that a connection has to take its answer from now on."""
        self._await(transport, self._taking_timeout_s)

    def _await(self, transport: asyncio.Transport, timeout_s: float) -> None:
        self.close(transport)
        loop = asyncio.get_running_loop()
        self._awaited[transport] = loop.call_later(timeout_s, transport.abort)

    def request_came(self, transport: asyncio.Transport) -> None:
        """Note that a request has come whole, and is being answered."""
        self.close(transport)
        self.answered.add(transport)

    def close(self, transport: asyncio.Transport) -> None:
        """Forget a connection that is closed."""
        self.answered.discard(transport)
        if (timer := self._awaited.pop(transport, None)) is not None:
            timer.cancel()

    def abort_all(self) -> None:
        """Close every connection."""
        for transport in [*self.answered, *self._awaited]:
            self.close(transport)
            transport.abort()

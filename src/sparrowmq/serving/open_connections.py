"""The connections of a small HTTP server: how many may be open, and how long each may be silent.

The health port, the exporter and the live page use it. Whoever may connect may also say nothing, so
silence costs nobody else a place: a connection has `HEAD_TIMEOUT_S` for the head of each request,
and when all places are taken, a new connection gets the place of the one that is silent for
longest. A new one is refused only while all others are being answered.
"""

from __future__ import annotations

import asyncio

# The time from the connection, or from the last answer, to the whole head of a request.
HEAD_TIMEOUT_S = 5.0


class OpenConnections:
    """The open connections of one server, on one event loop.

    Args:
        count_max: the most connections.
        head_timeout_s: the longest silence.

    Attributes:
        answered: the connections whose request is being answered.
    """

    def __init__(self, count_max: int, *, head_timeout_s: float = HEAD_TIMEOUT_S) -> None:
        self._count_max = count_max
        self._head_timeout_s = head_timeout_s
        self.answered: set[asyncio.Transport] = set()
        # The silent ones with their timers, the longest silent first.
        self._silent: dict[asyncio.Transport, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self.answered) + len(self._silent)

    def open(self, transport: asyncio.Transport) -> None:
        """Take a new connection, which is silent; close another one, or this one, for its place."""
        if len(self) >= self._count_max:
            longest = next(iter(self._silent), None)
            if longest is None:
                transport.abort()
                return
            self.close(longest)
            longest.abort()
        self.await_head(transport)

    def await_head(self, transport: asyncio.Transport) -> None:
        """Note that a connection is silent from now on."""
        self.close(transport)
        loop = asyncio.get_running_loop()
        self._silent[transport] = loop.call_later(self._head_timeout_s, transport.abort)

    def head_came(self, transport: asyncio.Transport) -> None:
        """Note that the head of a request has come whole, and is being answered."""
        self.close(transport)
        self.answered.add(transport)

    def close(self, transport: asyncio.Transport) -> None:
        """Forget a connection that is closed."""
        self.answered.discard(transport)
        if (timer := self._silent.pop(transport, None)) is not None:
            timer.cancel()

    def abort_all(self) -> None:
        """Close every connection."""
        for transport in [*self.answered, *self._silent]:
            self.close(transport)
            transport.abort()

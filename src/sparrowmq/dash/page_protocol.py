"""uvicorn's protocol for the live page's connections, bounded in number and silence.

Tests: dash/test_command.py.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

from sparrowmq.serving.open_connections import OpenConnections

# Each open page has a stream of news, and a browser up to six connections beside it.
CONNECTIONS_MAX = 256


def bounded_protocol(opened: OpenConnections) -> type[asyncio.Protocol]:
    """Return uvicorn's protocol for HTTP/1, whose connections `opened` counts."""

    class PageProtocol(H11Protocol):
        """One connection of a browser."""

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            opened.open(transport)

        def connection_lost(self, exc: Exception | None) -> None:
            opened.close(self.transport)
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._note_state()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._note_state()

        def pause_writing(self) -> None:
            super().pause_writing()
            opened.await_taking(self.transport)

        def resume_writing(self) -> None:
            super().resume_writing()
            opened.request_came(self.transport)
            self._note_state()

        def _note_state(self) -> None:
            if self.transport.is_closing() or self.flow.write_paused:
                return
            cycle = self.cycle
            if cycle and not cycle.response_complete and not cycle.more_body:
                opened.request_came(self.transport)
            elif self.transport in opened.answered:
                opened.await_request(self.transport)

    return PageProtocol

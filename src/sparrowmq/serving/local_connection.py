"""A connection to a server of this process, without a socket.

The gRPC service asks the broker by the remoting protocol, as every client does: the same link, the
same limits and the same access check serve both. The bytes go from one object to the other on the
server's event loop. Tests: grpc_service/test_server.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from sparrowmq.errors import ConnectionLost, InvokeTimeout, TooManyInFlight
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.session import RemotingSession, RequestReceived
from sparrowmq.serving.link import Link

# Requests of one connection that wait for their answers, held pulls among them.
LOCAL_IN_FLIGHT_MAX = 1_024


class LocalConnection:
    """The client's end of a connection to a server of this process.

    Args:
        link: the server's end, not connected yet.
        address: the peer's address as `ip:port`, by which the server judges and shows the peer.
        on_request: called with each request of the server; returns the answer, None for none.
        on_closed: called once, when the connection is closed.
        on_given_up: called with the opaque of a request that waits, and whose asker has gone.
    """

    def __init__(
        self,
        link: Link,
        address: str,
        *,
        on_request: Callable[[RemotingCommand], RemotingCommand | None],
        on_closed: Callable[[], None],
        on_given_up: Callable[[int], None],
    ) -> None:
        self._link = link
        self._address = address
        self._on_request = on_request
        self._on_closed = on_closed
        self._on_given_up = on_given_up
        self._session = RemotingSession(in_flight_max=LOCAL_IN_FLIGHT_MAX)
        self._transport = _LocalTransport(address, self._received, self._closed, link)
        link.connection_made(self._transport)

    @property
    def is_closed(self) -> bool:
        """Whether the connection is closed, or was refused."""
        return self._transport.is_closing()

    async def ask(
        self,
        request: RemotingCommand,
        *,
        timeout_ms: int,
        given_up: asyncio.Future[None] | None = None,
    ) -> RemotingCommand:
        """Send a request; return its answer.

        Args:
            given_up: done once nobody wants the answer; it comes at once then.

        Raises: ConnectionLost, InvokeTimeout, TooManyInFlight; LocalProtocolError for a request
            that cannot be encoded.
        """
        if self.is_closed:
            raise ConnectionLost("the connection to the broker is closed", address=self._address)
        answered: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
        try:
            self._transport.deliver(self._session.start_request(request, answered))
        except TooManyInFlight as error:
            raise TooManyInFlight(str(error), address=self._address) from None
        if given_up is not None:
            given_up.add_done_callback(lambda _: self._give_up(answered))
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await answered
        except TimeoutError:
            text = f"the broker did not answer request {request.code} within {timeout_ms} ms"
            raise InvokeTimeout(text, address=self._address) from None
        finally:
            self._session.abandon(answered)

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()

    def _give_up(self, answered: asyncio.Future[RemotingCommand]) -> None:
        opaque = self._session.find_opaque(answered)
        if opaque is not None and not self.is_closed:
            self._on_given_up(opaque)

    def _received(self, data: bytes) -> None:
        for event in self._session.receive_data(data):
            if isinstance(event, RequestReceived):
                answer = self._on_request(event.command)
                if answer is not None:
                    # Not at once: the server is writing.
                    frame = self._session.write_response(answer)
                    asyncio.get_running_loop().call_soon(self._transport.deliver, frame)
            else:
                assert isinstance(event.token, asyncio.Future)
                if not event.token.done():
                    event.token.set_result(event.answer)

    def _closed(self) -> None:
        for token in self._session.outstanding:
            assert isinstance(token, asyncio.Future)
            if not token.done():
                text = "the broker has closed the connection"
                token.set_exception(ConnectionLost(text, address=self._address))
        self._on_closed()


class _LocalTransport(asyncio.Transport):
    """The transport of the server's end."""

    def __init__(
        self,
        address: str,
        received: Callable[[bytes], None],
        closed: Callable[[], None],
        link: Link,
    ) -> None:
        host, _, port = address.rpartition(":")
        super().__init__({"peername": (host.strip("[]"), int(port)), "socket": _NoSocket()})
        self._received = received
        self._closed = closed
        self._link = link
        self._is_closing = False
        self._is_reading = True
        self._unread: list[bytes] = []

    def deliver(self, data: bytes) -> None:
        """Pass a request to the server, once the server reads."""
        if self._is_reading and not self._unread:
            self._link.data_received(data)
        else:
            self._unread.append(data)

    def write(self, data: Any) -> None:
        """Pass an answer to the client."""
        if not self._is_closing:
            self._received(bytes(data))

    def pause_reading(self) -> None:
        """Keep requests back."""
        self._is_reading = False

    def resume_reading(self) -> None:
        """Pass the requests that were kept back, after this step of the loop."""
        self._is_reading = True
        if self._unread:
            asyncio.get_running_loop().call_soon(self._deliver_unread)

    def _deliver_unread(self) -> None:
        while self._unread and self._is_reading and not self._is_closing:
            self._link.data_received(self._unread.pop(0))

    def is_reading(self) -> bool:
        """Return whether the server reads."""
        return self._is_reading

    def is_closing(self) -> bool:
        """Return whether the connection is closed."""
        return self._is_closing

    def get_write_buffer_size(self) -> int:
        """Return 0: the client takes every answer at once."""
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Ignore the limits, which nothing can exceed."""

    def close(self) -> None:
        """Close the connection; both ends learn of it."""
        if not self._is_closing:
            self._is_closing = True
            asyncio.get_running_loop().call_soon(self._end)

    abort = close

    def _end(self) -> None:
        self._link.connection_lost(None)
        self._closed()


class _NoSocket:
    """What stands for a socket; it takes none of the process's descriptors."""

    def fileno(self) -> int:
        return 0

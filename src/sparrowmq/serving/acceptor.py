"""Accepts the connections of a listening socket, on any event loop.

`create_server` is not used: without a free descriptor, asyncio's server logs thousands of
tracebacks a second, and uvloop's closes new connections without a word. An acceptor logs the
shortage, leaves the connections in the kernel's queue, and tries again. Tests: test_acceptor.py.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable

from sparrowmq.calling.bounded_log import BoundedLog
from sparrowmq.calling.sockets import join_address
from sparrowmq.serving.descriptors import descriptor_limit

# The pause after a failure, such as a lack of descriptors.
RETRY_S = 0.5
# The connections that the kernel keeps until they are accepted.
BACKLOG = 1_024
# The most connections accepted in one turn of the loop.
_ACCEPTED_PER_TURN_MAX = 64
# The peer has gone, or a firewall forbids this connection; the next one may be accepted.
_OF_ONE_CONNECTION = frozenset({errno.ECONNABORTED, errno.EPROTO, errno.EPERM, errno.EINTR})

LOG = logging.getLogger("sparrowmq.serving")


class Acceptor:
    """Accepts connections on the running loop until `close`.

    Args:
        listening: a bound socket, which the acceptor owns from now on.
        make_protocol: makes the protocol of a connection.
        tls: the TLS context of the connections' transports; None for plain ones.

    Raises: OSError if another socket listens at the address already.
    """

    def __init__(
        self,
        listening: socket.socket,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._listening = listening
        self._make_protocol = make_protocol
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._log = BoundedLog(LOG)
        self._is_failing = False
        self._retry: asyncio.TimerHandle | None = None
        # The loop itself keeps no task.
        self._opening: set[asyncio.Task[None]] = set()
        # A client may have gone before it is accepted.
        listening.setblocking(False)
        listening.listen(BACKLOG)
        self._address = join_address(*listening.getsockname()[:2])
        self._resume()

    def close(self) -> None:
        """Accept no more connections; open ones stay."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if self._listening.fileno() >= 0:
            self._loop.remove_reader(self._listening)
            self._listening.close()

    def _resume(self) -> None:
        self._retry = None
        self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_PER_TURN_MAX):
            try:
                connection, _ = self._listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _OF_ONE_CONNECTION:
                    continue
                self._pause(error)
                return
            if self._is_failing:
                self._is_failing = False
                text = "connections are accepted again at %s"
                self._log.log(logging.WARNING, "again", text, self._address)
            task = self._loop.create_task(self._open(connection))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, connection: socket.socket) -> None:
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(self._make_protocol, connection, ssl=self._tls)
        except OSError:
            # The peer is gone by now, or speaks no TLS.
            connection.close()

    def _pause(self, error: OSError) -> None:
        self._loop.remove_reader(self._listening)
        self._retry = self._loop.call_later(RETRY_S, self._resume)
        if self._is_failing:
            return
        self._is_failing = True
        self._log.log(
            logging.ERROR,
            "failing",
            "no connection is accepted at %s: %s; clients wait. The process may have %d files and "
            "connections open at once: raise this limit (ulimit -n), or close connections",
            self._address,
            error.strerror,
            descriptor_limit(),
        )

"""Non-blocking TCP for the blocking driver: finding addresses, connecting, and the two wires.

A name that is not an IP address is looked up with `getaddrinfo`, which may block for seconds. The
driver calls `look_up` in a thread unless `is_quick` returns that no name server is asked.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

from sparrowmq.calling.channel import WRITE_BUFFER_BYTES_MAX
from sparrowmq.calling.tls import TlsSession

# How long sent bytes may stay unacknowledged by the peer's kernel before ours ends the connection.
# A request's time-out does not end the connection, and the kernel's default is a quarter of an
# hour.
UNACKNOWLEDGED_MS_MAX = 30_000

# Bytes asked from the kernel in one call; twice as many after a call that gave as many, so that a
# large frame comes in fewer steps. For each buffer of 128 KiB and more the allocator asks the
# kernel for memory (benchmarks/against_apache.py: drain, a listener by 32).
RECEIVE_BYTES = 60 * 1024
RECEIVE_BYTES_MAX = 16 * RECEIVE_BYTES

# Frames given to the kernel in one call; Linux takes 1,024.
BUFFERS_PER_CALL = 64
HAS_SENDMSG = hasattr(socket.socket, "sendmsg")

# The results of `connect_ex` while a connection is being made (on Windows WSAEWOULDBLOCK).
_IN_PROGRESS = frozenset({0, errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EINTR})


class Candidate(NamedTuple):
    """One socket address of a name."""

    family: int
    sockaddr: tuple[Any, ...]


def split_address(address: str) -> tuple[str, int]:
    """Split `host:port`, where host may be an IPv6 address in brackets.

    Raises: ValueError, with the reason.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host:
        raise ValueError("not of the form host:port")
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
        raise ValueError(f"port {port!r} is not between 1 and 65535")
    return host.removeprefix("[").removesuffix("]"), int(port)


def join_address(host: str, port: int) -> str:
    """Return `host:port`, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_quick(host: str) -> bool:
    """Return whether a look-up of the host needs no name server."""
    if host == "localhost":
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def look_up(host: str, port: int) -> list[Candidate]:
    """Return the addresses of a host, in the order to try them. Raises: OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(Candidate(entry[0], entry[4]) for entry in found))


def tune(sock: socket.socket) -> None:
    """Set the socket to send small frames at once and to detect a peer that has vanished."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS_MAX)


def begin_connect(candidate: Candidate) -> socket.socket:
    """Return a socket that becomes writable once connected or refused. Raises: OSError."""
    sock = socket.socket(candidate.family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        tune(sock)
        code = sock.connect_ex(candidate.sockaddr)
        if code not in _IN_PROGRESS:
            raise _error_of(code)
    except BaseException:
        sock.close()
        raise
    return sock


def end_connect(sock: socket.socket) -> None:
    """Check a socket that `begin_connect` made and that is writable. Raises: OSError."""
    code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise _error_of(code)
    # The kernel may choose, as our own port, the local port to which we connect if nothing listens
    # there. TCP then connects the socket to itself.
    if sock.getsockname() == sock.getpeername():
        raise _error_of(errno.ECONNREFUSED)


def _error_of(code: int) -> OSError:
    # Windows has the texts of socket errors in a separate table.
    words: dict[int, str] = getattr(socket, "errorTab", {})
    return OSError(code, words.get(code) or os.strerror(code))


class SocketWire:
    """The `Wire` over a non-blocking socket."""

    __slots__ = ("_receive_bytes", "_size", "_unsent", "is_blocked", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._unsent: deque[bytes | memoryview] = deque()
        self._size = 0
        self._receive_bytes = RECEIVE_BYTES
        # Whether the kernel did not take all bytes, so that the socket must become writable first.
        self.is_blocked = False

    @property
    def room(self) -> int:
        """How many more bytes to gather."""
        return WRITE_BUFFER_BYTES_MAX - self._size

    def write(self, frames: Sequence[bytes]) -> None:
        """Gather frames to send."""
        self._unsent += frames
        self._size += sum(map(len, frames))

    def flush(self) -> bool:
        """Send until all bytes are sent or the kernel takes no more. Raises: OSError.

        Does nothing while `is_blocked`; clear `is_blocked` when the socket has become writable.
        """
        unsent = self._unsent
        if self.is_blocked:
            return False
        try:
            while unsent:
                if len(unsent) == 1 or not HAS_SENDMSG:
                    sent = self.sock.send(unsent[0])
                else:
                    # Frames of tasks that ran together go out in one call.
                    sent = self.sock.sendmsg(islice(unsent, BUFFERS_PER_CALL))
                self._size -= sent
                self._forget(sent)
        except (BlockingIOError, InterruptedError):
            self.is_blocked = True
            return False
        return True

    def receive(self) -> bytes | None:
        """Return received bytes, or None at the end of the stream.

        Raises: OSError; BlockingIOError if no bytes have come.
        """
        data = self.sock.recv(self._receive_bytes)
        if len(data) < RECEIVE_BYTES:
            self._receive_bytes = RECEIVE_BYTES
        elif len(data) == self._receive_bytes:
            self._receive_bytes = min(2 * self._receive_bytes, RECEIVE_BYTES_MAX)
        return data or None

    def _forget(self, sent: int) -> None:
        """Drop the first `sent` bytes."""
        unsent = self._unsent
        while sent:
            head = unsent[0]
            if sent < len(head):
                unsent[0] = memoryview(head)[sent:]
                return
            sent -= len(head)
            unsent.popleft()

    def close(self) -> None:
        """Close the socket."""
        self._unsent.clear()
        self._size = 0
        self.sock.close()


class TlsWire(SocketWire):
    """The `Wire` over TLS; call `shake_hands` before all other methods."""

    __slots__ = ("_session",)

    def __init__(self, sock: socket.socket, session: TlsSession) -> None:
        super().__init__(sock)
        self._session = session

    @property
    def is_established(self) -> bool:
        """Whether the handshake is done."""
        return self._session.is_established

    def shake_hands(self, *, is_readable: bool) -> bytes | None:
        """Go on with the handshake; return as `receive` does, but b"" instead of BlockingIOError.

        Raises: OSError.
        """
        self.flush()
        if not is_readable:
            return self._decrypt(b"")
        try:
            return self.receive()
        except (BlockingIOError, InterruptedError):
            return b""

    def write(self, frames: Sequence[bytes]) -> None:
        """Encrypt and gather frames to send. Raises: ssl.SSLError."""
        for frame in frames:
            self._session.encrypt(frame)
        super().write((self._session.take_output(),))

    def receive(self) -> bytes | None:
        """Return decrypted bytes, perhaps none, otherwise as `SocketWire.receive` does."""
        data = super().receive()
        return None if data is None else self._decrypt(data)

    def _decrypt(self, data: bytes) -> bytes | None:
        session = self._session
        try:
            plain = session.receive_data(data)
        except OSError:
            # The alert gives the peer the reason.
            with suppress(OSError):
                self._send_output()
            raise
        self._send_output()
        return None if session.is_ended and not plain else plain

    def _send_output(self) -> None:
        if output := self._session.take_output():
            super().write((output,))
            self.flush()

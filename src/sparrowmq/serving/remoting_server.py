"""A TCP server for machines that speak the remoting protocol.

It owns the sockets and nothing else: bytes in, commands to the machine, outputs to bytes. All
runs on one event loop. Writes are gathered per connection and handed to the transport once per
turn of the loop; a turn ends with `on_turn`, where the owner does what belongs to a group of
requests (dispatch, flush) rather than to one.

Every resource of a peer is bounded (`ServerLimits`): connections, frames begun and not finished,
silence, and answers the peer does not take.

A server with a certificate speaks TLS and nothing else; the time for a peer's first frame is then
the time for its handshake too.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from sparrowmq.calling import clock
from sparrowmq.calling.tls import HANDSHAKE_RECORD, TlsSession, describe
from sparrowmq.errors import ProtocolError
from sparrowmq.protocol.codes import ResponseCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.framing import FrameDecoder, encode_head
from sparrowmq.protocol.record import encode_host
from sparrowmq.serving.connections import (
    Close,
    Connection,
    Fact,
    Output,
    PauseReading,
    Push,
    Reply,
)
from sparrowmq.serving.descriptors import peer_descriptors_max
from sparrowmq.serving.requests import Request, answer

# A peer that does not take its last answers within this is cut off.
_CLOSING_TURNS_MAX = 50
_CLOSING_TURN_S = 0.02
# From here on a write of its own costs less than a copy.
_LARGE_BYTES_MIN = 64 * 1024

LOG = logging.getLogger("sparrowmq.serving")


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Bounds on what peers may take from a server.

    Args:
        connections_max: accepted at once; further ones are closed at once. Fewer, where the
            process may have fewer descriptors (`serving/descriptors.py`).
        first_frame_ms: from the connection to its first whole frame.
        started_frame_ms: from a frame's first byte to its last.
        idle_ms: without a byte in either direction. NettyServerConfig:
            serverChannelMaxIdleTimeSeconds.
        frame_bytes_max: a whole frame. NettyDecoder: com.rocketmq.remoting.frameMaxLength.
        started_frame_bytes_max: of all frames begun and not finished, over all connections.
        send_buffer_bytes_max: answers a peer has not taken; beyond, we stop reading from it.
        send_stall_ms: how long a peer may stay beyond that before its connection is closed.
        sweep_ms: how often the limits on time are checked.
    """

    connections_max: int = 20_000
    first_frame_ms: int = 10_000
    started_frame_ms: int = 30_000
    idle_ms: int = 120_000
    frame_bytes_max: int = 16 * 1024 * 1024
    started_frame_bytes_max: int = 256 * 1024 * 1024
    send_buffer_bytes_max: int = 8 * 1024 * 1024
    send_stall_ms: int = 30_000
    sweep_ms: int = 1_000


class Machine(Protocol):
    """What a server serves."""

    def handle(
        self, command: RemotingCommand, connection: Connection, *, now_ms: int, timestamp_ms: int
    ) -> Sequence[Output]:
        """Take one command and return what to do."""
        ...

    def connection_closed(
        self, connection: Connection, *, now_ms: int, timestamp_ms: int
    ) -> Sequence[Output]:
        """Forget a connection and return what to do."""
        ...


class RemotingServer:
    """Serves one machine on one listening socket.

    Args:
        machine: gets every command; set before `start`.
        limits: bounds on peers.
        tls: the context of a server that speaks TLS.
        on_turn: called once at the end of each turn of the loop in which commands came.
    """

    def __init__(
        self,
        machine: Machine,
        *,
        limits: ServerLimits | None = None,
        tls: ssl.SSLContext | None = None,
        on_turn: Callable[[], None] | None = None,
    ) -> None:
        self._machine = machine
        self._tls = tls
        self._limits = limits or ServerLimits()
        self._on_turn = on_turn
        self._links: dict[Connection, _Link] = {}
        self._unwritten: list[_Link] = []
        self._turn_due = False
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._accepted = 0
        self._refused = 0
        self._descriptors_max = peer_descriptors_max()
        self._started_bytes = 0

    @property
    def connection_count(self) -> int:
        """Connections open now."""
        return len(self._links)

    async def start(self, listening: socket.socket) -> None:
        """Accept connections on a bound socket, which the server owns from here on.

        Raises: OSError if another socket listens at its address already.
        """
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: _Link(self, loop), sock=listening, backlog=1024
            )
        except OSError as error:
            raise _cannot_listen(error, *listening.getsockname()[:2]) from error
        self._sweeper = loop.call_later(self._limits.sweep_ms / 1000, self._sweep)

    def stop_reading(self) -> None:
        """Accept no more connections and read no more requests; answers still go out."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._server is not None:
            self._server.close()
        for link in self._links.values():
            link.pause_reading()

    async def stop(self) -> None:
        """Write what is due and close every connection."""
        self.stop_reading()
        self._write_out()
        for link in list(self._links.values()):
            link.close("the server stops")
        for _ in range(_CLOSING_TURNS_MAX):
            if not self._links:
                return
            await asyncio.sleep(_CLOSING_TURN_S)
        for link in list(self._links.values()):
            link.transport.abort()

    def perform(self, outputs: Sequence[Output]) -> None:
        """Carry out what the machine said; writes go out at the end of this turn."""
        for output in outputs:
            if isinstance(output, Fact):
                LOG.log(logging.WARNING if output.warning else logging.INFO, "%s", output.text)
                continue
            link = self._links.get(output.connection)
            if link is None:
                continue
            if isinstance(output, Reply | Push):
                self._write(link, output.command)
            elif isinstance(output, Close):
                self._write_out()
                link.close(output.reason)
            elif isinstance(output, PauseReading):
                link.pause_reading()
            else:
                link.resume_reading()

    def _write(self, link: _Link, command: RemotingCommand) -> None:
        if not link.pending:
            self._unwritten.append(link)
            self._end_turn_soon()
        link.pending.append(_encode_head(command))
        if command.body:
            link.pending.append(command.body)

    def _end_turn_soon(self) -> None:
        if not self._turn_due:
            self._turn_due = True
            asyncio.get_running_loop().call_soon(self._end_turn)

    def _end_turn(self) -> None:
        try:
            if self._on_turn is not None:
                self._on_turn()
        except Exception:
            LOG.exception("the end of a turn failed")
        finally:
            self._turn_due = False
            self._write_out()

    def _write_out(self) -> None:
        links, self._unwritten = self._unwritten, []
        for link in links:
            link.write_out()

    def _opened(self, link: _Link) -> Connection | None:
        self._accepted += 1
        if (
            len(self._links) >= self._limits.connections_max
            or _descriptor(link.transport) >= self._descriptors_max
        ):
            self._refused += 1
            return None
        address = _peer_address(link.transport)
        connection = Connection(self._accepted, address, encode_host(address))
        self._links[connection] = link
        return connection

    def _received(self, link: _Link, data: bytes) -> None:
        now_ms = clock.monotonic_ms()
        decoder = link.decoder
        buffered = decoder.buffered_bytes
        try:
            commands = decoder.receive_data(data)
        except ProtocolError as error:
            self._started_bytes -= buffered
            link.started_bytes = 0
            link.refuse(str(error))
            return
        left = decoder.buffered_bytes
        self._started_bytes += left - buffered
        link.started_bytes = left
        link.note_received(now_ms, has_frames=bool(commands), has_rest=left > 0)
        if self._started_bytes > self._limits.started_frame_bytes_max:
            link.close("too many bytes of unfinished frames")
        if not commands:
            return
        timestamp_ms = clock.timestamp_ms()
        self._end_turn_soon()
        for command in commands:
            try:
                outputs = self._machine.handle(
                    command, link.connection, now_ms=now_ms, timestamp_ms=timestamp_ms
                )
            except Exception as error:
                LOG.exception("request %d of %s failed", command.code, link.connection.address)
                outputs = answer(
                    Request(command, link.connection, now_ms, timestamp_ms),
                    ResponseCode.SYSTEM_ERROR,
                    remark=f"{type(error).__name__}: {error}",
                )
            self.perform(outputs)

    def _lost(self, link: _Link) -> None:
        self._started_bytes -= link.started_bytes
        link.started_bytes = 0
        if self._links.pop(link.connection, None) is None:
            return
        try:
            outputs = self._machine.connection_closed(
                link.connection, now_ms=clock.monotonic_ms(), timestamp_ms=clock.timestamp_ms()
            )
        except Exception:
            LOG.exception("closing of %s failed", link.connection.address)
        else:
            self.perform(outputs)
            self._end_turn_soon()

    def _sweep(self) -> None:
        now_ms = clock.monotonic_ms()
        if self._refused:
            LOG.warning(
                "%d connections refused: %d are open, and the process may have %d descriptors "
                "for connections; raise the limit (ulimit -n) if clients need more",
                self._refused,
                len(self._links),
                self._descriptors_max,
            )
            self._refused = 0
        for link in list(self._links.values()):
            reason = link.overdue(now_ms)
            if reason is not None:
                link.refuse(reason)
        self._sweeper = asyncio.get_running_loop().call_later(
            self._limits.sweep_ms / 1000, self._sweep
        )


class _Link(asyncio.Protocol):
    """One connection's transport and its times."""

    def __init__(self, server: RemotingServer, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._loop = loop
        self._limits = server._limits
        self.decoder = FrameDecoder(frame_bytes_max=self._limits.frame_bytes_max)
        self.pending: list[bytes] = []
        self.started_bytes = 0
        self._tls: TlsSession | None = None
        if server._tls is not None:
            self._tls = TlsSession(server._tls, server_hostname=None)
        self._has_received = False
        self.transport: asyncio.Transport
        self.connection: Connection
        self._opened_ms = 0
        self._active_ms = 0
        self._started_ms: int | None = None
        self._stalled_ms: int | None = None
        self._has_frame = False
        self._paused_by_machine = False
        self._refused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none by inheritance.
        self.transport = cast(asyncio.Transport, transport)
        self._opened_ms = self._active_ms = clock.monotonic_ms()
        connection = self._server._opened(self)
        if connection is None:
            self._refused = True
            self.transport.abort()
            return
        self.connection = connection
        self.transport.set_write_buffer_limits(high=self._limits.send_buffer_bytes_max)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._tls is None:
            self._server._received(self, data)
            return
        if not self._has_received and data[0] != HANDSHAKE_RECORD:
            self.refuse("it does not speak TLS, and this server speaks nothing else")
            return
        self._has_received = True
        plain = self._decrypt(self._tls, data)
        if plain:
            self._server._received(self, plain)
        if self._tls.is_ended:
            self.close("the peer has ended TLS")

    def _decrypt(self, tls: TlsSession, data: bytes) -> bytes:
        plain, failure = b"", None
        try:
            plain = tls.receive_data(data)
        except ssl.SSLError as error:
            failure = describe(error)
        # Of a failure too: it tells the peer why.
        if output := tls.take_output():
            self.transport.write(output)
        if failure is not None:
            self.refuse(failure)
        return plain

    def refuse(self, reason: str) -> None:
        LOG.info("%s closed: %s", self.connection.address, reason)
        self.close(reason)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._refused:
            self.pending.clear()
            self._server._lost(self)

    def pause_writing(self) -> None:
        """Stop reading too: a peer that takes no answers gets no further ones."""
        self._stalled_ms = clock.monotonic_ms()
        self._read_or_not()

    def resume_writing(self) -> None:
        self._stalled_ms = None
        self._active_ms = clock.monotonic_ms()
        self._read_or_not()

    def pause_reading(self) -> None:
        self._paused_by_machine = True
        self._read_or_not()

    def resume_reading(self) -> None:
        self._paused_by_machine = False
        self._read_or_not()

    def _read_or_not(self) -> None:
        if self.transport.is_closing():
            return
        wanted = self._stalled_ms is None and not self._paused_by_machine
        if wanted and not self.transport.is_reading():
            self.transport.resume_reading()
        elif not wanted and self.transport.is_reading():
            self.transport.pause_reading()

    def note_received(self, now_ms: int, *, has_frames: bool, has_rest: bool) -> None:
        self._active_ms = now_ms
        if has_frames:
            self._has_frame = True
        if not has_rest:
            self._started_ms = None
        elif has_frames or self._started_ms is None:
            self._started_ms = now_ms

    def write_out(self) -> None:
        pending, self.pending = self.pending, []
        if self.transport.is_closing():
            return
        self._active_ms = clock.monotonic_ms()
        if self._tls is not None:
            try:
                self._tls.encrypt(b"".join(pending))
            except ssl.SSLError as error:
                self.refuse(describe(error) or str(error))
                return
            self.transport.write(self._tls.take_output())
            return
        if max(map(len, pending)) < _LARGE_BYTES_MIN:
            pending = [b"".join(pending)]
        for data in pending:
            self.transport.write(data)

    def overdue(self, now_ms: int) -> str | None:
        limits = self._limits
        if not self._has_frame and now_ms - self._opened_ms > limits.first_frame_ms:
            return "no whole frame came in time"
        if self._started_ms is not None and now_ms - self._started_ms > limits.started_frame_ms:
            return "a frame was begun and not finished in time"
        if self._stalled_ms is not None and now_ms - self._stalled_ms > limits.send_stall_ms:
            return "the peer does not take its answers"
        if now_ms - self._active_ms > limits.idle_ms:
            return "idle"
        return None

    def close(self, reason: str) -> None:
        if self.transport.is_closing():
            return
        LOG.debug("close %s: %s", self.connection.address, reason)
        if self._stalled_ms is not None:
            self.transport.abort()
        else:
            self.transport.close()


def bind(host: str, port: int) -> socket.socket:
    """Return a bound, not yet listening TCP socket; port 0 takes any free one.

    Raises: OSError, with the address in its text, if that is not possible.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        raise _cannot_listen(error, host, port) from error
    return listening


def _cannot_listen(error: OSError, host: str, port: int) -> OSError:
    reason = error.strerror or str(error)
    if error.errno == errno.EADDRINUSE:
        reason += "; stop what listens there or choose another port (0 takes any free one)"
    return OSError(error.errno, f"cannot listen on {host}:{port}: {reason}")


def _encode_head(command: RemotingCommand) -> bytes:
    try:
        return encode_head(command)
    except ProtocolError as error:
        LOG.warning("an answer cannot be written: %s", error)
        command.code = ResponseCode.SYSTEM_ERROR
        command.remark = "the answer does not fit into a frame"
        command.ext_fields = command.body = None
        return encode_head(command)


def _descriptor(transport: asyncio.Transport) -> int:
    descriptor: int = transport.get_extra_info("socket").fileno()
    return descriptor


def _peer_address(transport: asyncio.Transport) -> str:
    peer = transport.get_extra_info("peername")
    if not peer:
        return "0.0.0.0:0"
    return f"[{peer[0]}]:{peer[1]}" if ":" in peer[0] else f"{peer[0]}:{peer[1]}"

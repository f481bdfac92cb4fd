"""A TCP server for machines that speak the remoting protocol.

The server owns only the sockets: it decodes bytes, passes commands to the machine, and encodes
outputs. The server runs on one event loop. Writes are gathered per connection and passed to the
transport once per turn of the loop. A turn ends with `on_turn`, where the owner does the work of a
group of requests (dispatch, flush). Requests without such work, such as pulls that find messages,
need no end of a turn: their answers are written as soon as the requests are served.

Every resource of a peer is bounded (`ServerLimits`): connections, unfinished frames, silence, and
answers that the peer does not take. Requests are decoded and served one by one, only while the turn
has time left and there is room for an answer. A connection with requests left is *behind*: the
server reads no more from it, and goes on with it after the other connections' turn.

Speed matters here: a single send in flight pays the whole cost of a turn, and many sends share it
(benchmarks/against_apache.py).

A server with a certificate speaks only TLS. The time for a peer's first frame then includes its
handshake.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from sparrowmq.calling.bounded_log import BoundedLog
from sparrowmq.calling.line_bound import LineBound
from sparrowmq.calling.sockets import join_address
from sparrowmq.errors import ProtocolError
from sparrowmq.protocol.codes import ResponseCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.foreign import Foreign, ForeignProtocolError
from sparrowmq.protocol.framing import RefusedHeader, encode_head
from sparrowmq.protocol.record import encode_host
from sparrowmq.serving.acceptor import Acceptor
from sparrowmq.serving.connections import (
    Aside,
    Close,
    Connection,
    Fact,
    Output,
    PauseReading,
    Produce,
    Push,
    Reply,
    ResumeReading,
    Written,
)
from sparrowmq.serving.descriptors import descriptor_limit, peer_descriptors_max
from sparrowmq.serving.limits import ServerLimits
from sparrowmq.serving.link import Link
from sparrowmq.serving.refusals import Refusals
from sparrowmq.serving.requests import Request, answer
from sparrowmq.serving.world import LoopWorld, ServerTimer, ServerWorld

# A peer that does not take its last answers within this many turns is cut off.
_CLOSING_TURNS_MAX = 50
_CLOSING_TURN_S = 0.02

# The most lines in a period about the connections and requests of one host, failures excepted.
PEER_LINES_MAX = 100
# One line in this time counts the connections that were refused for their number.
REFUSALS_MS = 60_000

LOG = logging.getLogger("sparrowmq.serving")


class Machine(Protocol):
    """The machine that handles a server's commands."""

    def handle(
        self, command: RemotingCommand, connection: Connection, *, now_ms: int, timestamp_ms: int
    ) -> Sequence[Output]:
        """Handle one command and return its outputs."""
        ...

    def connection_closed(
        self, connection: Connection, *, now_ms: int, timestamp_ms: int
    ) -> Sequence[Output]:
        """Forget a connection and return outputs."""
        ...


class RemotingServer:
    """Serves one machine on one listening socket.

    Args:
        machine: the machine that handles every command; set before `start`.
        limits: the bounds on peers.
        tls: the TLS context; None for no TLS.
        takes_plain: whether a server with TLS also serves peers without TLS.
        on_turn: called once at the end of each turn of the loop in which commands came.
        awaits_turn: returns whether the served requests need `on_turn`; None if they always do.
        world: the loop and the clocks; None for the running event loop.
        on_failure: called with a text and the error, for failures of the server and for bytes of a
            peer that cannot be read; None logs them.
    """

    def __init__(
        self,
        machine: Machine,
        *,
        limits: ServerLimits | None = None,
        tls: ssl.SSLContext | None = None,
        takes_plain: bool = False,
        on_turn: Callable[[], None] | None = None,
        awaits_turn: Callable[[], bool] | None = None,
        world: ServerWorld | None = None,
        on_failure: Callable[[str, Exception], None] | None = None,
    ) -> None:
        self._machine = machine
        self._world = world or LoopWorld()
        self._monotonic_ms = self._world.monotonic_ms
        self._failures = BoundedLog(LOG)
        self._events = BoundedLog(LOG, lines_max=PEER_LINES_MAX)
        self._on_failure = on_failure
        self._tls = tls
        self._takes_plain = takes_plain
        self._limits = limits or ServerLimits()
        self._on_turn = on_turn
        self._awaits_turn = awaits_turn or (lambda: True)
        self._links: dict[Connection, Link] = {}
        self._unwritten: list[Link] = []
        # The connections that go on in the next turn.
        self._behind: deque[Link] = deque()
        self._is_turn_due = False
        # Whether the running call writes out the answers at its end.
        self._is_writer_near = False
        # When the current turn began.
        self._turn_began_ms = 0
        self._is_stopping = False
        self._acceptor: Acceptor | None = None
        self._sweeper: ServerTimer | None = None
        self._accepted = 0
        self._refused = 0
        self._refusals = LineBound(period_ms=REFUSALS_MS)
        self._descriptors_max = peer_descriptors_max(descriptor_limit())
        self._started_bytes = 0
        self._foreign = Refusals(Foreign)
        # An upper bound of the bytes that all peers have not taken.
        self._unsent_bytes = 0

    @property
    def connection_count(self) -> int:
        """The number of open connections."""
        return len(self._links)

    async def start(self, listening: socket.socket) -> None:
        """Accept connections on a bound socket; the server owns the socket from now on.

        Raises: OSError if another socket listens at the address already.
        """
        try:
            self._acceptor = Acceptor(listening, self.make_link)
        except OSError as error:
            host, port = listening.getsockname()[:2]
            raise _cannot_listen(error, host, port, "the server", "") from error
        self.begin_sweeps()

    def make_link(self) -> Link:
        """Return the server's side of a connection that is being accepted."""
        return Link(self, self._limits, self._world, tls=self._tls, takes_plain=self._takes_plain)

    def make_local_link(self) -> Link:
        """Return the server's side of a connection inside this process, which needs no TLS."""
        return Link(self, self._limits, self._world, tls=None)

    def begin_sweeps(self) -> None:
        """Begin to check the limits on time, every `sweep_ms`."""
        self._sweeper = self._world.call_later(self._limits.sweep_ms, self._sweep)

    def use_tls(self, tls: ssl.SSLContext) -> None:
        """Use another TLS context for new connections; the server must have had a context."""
        assert self._tls is not None
        self._tls = tls

    def stop_reading(self) -> None:
        """Accept no more connections and serve no more requests; answers are still written."""
        self._is_stopping = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._acceptor is not None:
            self._acceptor.close()
        for link in self._links.values():
            link.pause()

    async def stop(self) -> None:
        """Write the remaining answers and close every connection."""
        self.stop_reading()
        self._write_out(self._monotonic_ms())
        for link in list(self._links.values()):
            link.close("the server stops")
        for _ in range(_CLOSING_TURNS_MAX):
            if not self._links:
                return
            await asyncio.sleep(_CLOSING_TURN_S)
        for link in list(self._links.values()):
            link.transport.abort()

    def perform(self, outputs: Sequence[Output], *, peer: Connection | None = None) -> None:
        """Carry out the machine's outputs; writes go out at the end of this turn.

        Args:
            peer: the connection that caused the outputs, whose facts are bounded.
        """
        links = self._links
        for output in outputs:
            if isinstance(output, Fact):
                if peer is None:
                    LOG.log(output.level, "%s", output.text)
                else:
                    self._events.log(output.level, ("fact", _host_of(peer)), "%s", output.text)
                continue
            link = links.get(output.connection)
            if link is None:
                continue
            if isinstance(output, Written):
                self._write(link, output.head, output.body)
            elif isinstance(output, Reply | Push):
                head = self._encode_head(output.command, output.connection)
                self._write(link, head, output.command.body)
            elif isinstance(output, Produce):
                link.unmade.append(output)
                self._serve_soon(link)
            elif isinstance(output, Aside):
                self._serve_aside(link, output)
            elif isinstance(output, Close):
                link.close(output.reason)
            elif isinstance(output, PauseReading):
                link.pause()
            else:
                link.resume()
                self._serve_soon(link)

    def _serve_aside(self, link: Link, aside: Aside) -> None:
        connection = link.connection

        def serve() -> Sequence[Output] | Exception:
            try:
                return aside.serve()
            except Exception as error:
                return error

        def done(result: Sequence[Output] | Exception) -> None:
            if isinstance(result, Exception):
                result = self._answer_failure(aside.command, connection, result)
            self.perform([*result, ResumeReading(connection)], peer=connection)

        link.pause()
        self._world.call_aside(serve, done)

    def _answer_failure(
        self, command: RemotingCommand, connection: Connection, error: Exception
    ) -> Sequence[Output]:
        """Log a failure of the machine, and return the answer to its request."""
        self._fail(f"request {command.code} of {connection.address}", error, connection)
        remark = f"{type(error).__name__}: {error}"
        now_ms, timestamp_ms = self._monotonic_ms(), self._world.timestamp_ms()
        request = Request(command, connection, now_ms, timestamp_ms)
        return answer(request, ResponseCode.SYSTEM_ERROR, remark=remark)

    def _write(self, link: Link, head: bytes, body: bytes | None) -> None:
        if link.write(head, body):
            self._unwritten.append(link)
            if not self._is_writer_near:
                self.end_turn_soon()

    def end_turn_soon(self) -> None:
        """End a turn, and call `on_turn`, once the loop has served all events that are ready."""
        if not self._is_turn_due:
            self._is_turn_due = True
            self._turn_began_ms = self._monotonic_ms()
            self._world.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._is_turn_due = False
        self._is_writer_near = True
        try:
            if self._on_turn is not None:
                self._on_turn()
        except Exception as error:
            self._fail("the end of a turn", error)
        finally:
            is_more = False
            if self._behind:
                self._serve_behind()
                is_more = bool(self._behind) or self._awaits_turn()
            self._write_out(self._monotonic_ms())
            self._is_writer_near = False
            if is_more:
                self.end_turn_soon()

    def _write_out(self, now_ms: int) -> None:
        # A connection whose bytes the kernel takes at once has none left from earlier turns.
        if self._unsent_bytes > self._limits.unsent_bytes_max:
            self._measure_unsent()
        if not self._unwritten:
            return
        links, self._unwritten = self._unwritten, []
        for link in links:
            self._unsent_bytes += link.write_out(now_ms)

    def _measure_unsent(self) -> None:
        """Measure the bytes not taken, and cut off the peers that have left some for longest."""
        slow = [link for link in self._links.values() if link.unsent_bytes]
        total = sum(link.unsent_bytes for link in slow)
        slow.sort(key=lambda link: link.unsent_since_ms, reverse=True)
        while total > self._limits.unsent_bytes_max:
            link = slow.pop()
            total -= link.unsent_bytes
            link.cut_off("peers leave too many answers, and this one has left some for longest")
        self._unsent_bytes = total

    def _bound_started(self) -> None:
        """Cut off the peers whose requests have been incomplete or unserved for longest."""
        # One that is cut off counts until its connection is gone.
        waiting = [
            link
            for link in self._links.values()
            if link.buffered_bytes and not link.transport.is_closing()
        ]
        total = sum(link.buffered_bytes for link in waiting)
        for link in sorted(waiting, key=lambda link: link.waiting_since_ms):
            if total <= self._limits.started_frame_bytes_max:
                return
            total -= link.buffered_bytes
            link.cut_off("peers leave too many requests incomplete, and this one has for longest")

    def opened(self, link: Link) -> Connection | None:
        """Register an accepted connection, unless there are too many; None refuses it."""
        if self._is_stopping:
            return None
        self._accepted += 1
        if (
            self.connection_count >= self._limits.connections_max
            or _descriptor(link.transport) >= self._descriptors_max
        ):
            self._refused += 1
            return None
        address = _peer_address(link.transport)
        connection = Connection(self._accepted, address, encode_host(address))
        self._links[connection] = link
        return connection

    def received(self, link: Link, data: bytes) -> None:
        """Process received bytes, and serve the requests that they complete."""
        now_ms = self._monotonic_ms()
        if now_ms > self._turn_began_ms and not self._is_turn_due:
            self._turn_began_ms = now_ms
        self._is_writer_near = True
        try:
            link.feed(data, now_ms)
            self._serve(link, now_ms, self._turn_began_ms + self._limits.turn_ms_max)
        finally:
            self._is_writer_near = False
        if self._started_bytes > self._limits.started_frame_bytes_max and link.buffered_bytes:
            self._bound_started()
        if self._is_turn_due:
            return
        # A turn that has lasted ends in any case: connections that are behind go on then.
        now_ms = self._monotonic_ms()
        if self._behind or now_ms > self._turn_began_ms or self._awaits_turn():
            self.end_turn_soon()
        else:
            self._write_out(now_ms)

    def go_on(self, link: Link) -> None:
        """Serve the waiting requests of a connection that has room again."""
        self._serve_soon(link)

    def _serve_soon(self, link: Link) -> None:
        if not link.is_queued:
            link.is_queued = True
            self._behind.append(link)
        if not self._is_writer_near:
            self.end_turn_soon()

    def _serve_behind(self) -> None:
        now_ms = self._monotonic_ms()
        until_ms = now_ms + self._limits.turn_ms_max
        for _ in range(len(self._behind)):
            if now_ms >= until_ms:
                return
            link = self._behind.popleft()
            link.is_queued = False
            self._serve(link, now_ms, until_ms)
            now_ms = self._monotonic_ms()

    def _serve(self, link: Link, now_ms: int, until_ms: int) -> None:
        """Serve the waiting requests of a connection while there is time and room."""
        if self._is_stopping:
            return
        timestamp_ms = self._world.timestamp_ms()
        room_bytes = link.room_bytes
        while now_ms < until_ms and link.can_serve(room_bytes):
            if link.unmade:
                outputs: Sequence[Output] | None = self._make(link)
            else:
                outputs = self._handle_next(link, now_ms, timestamp_ms)
            if outputs is None:
                link.catch_up(now_ms)
                break
            if outputs:
                self.perform(outputs, peer=link.connection)
            if link.decoder.is_empty and not link.unmade:
                link.catch_up(now_ms)
                break
            now_ms = self._monotonic_ms()
        else:
            link.fall_behind()
            if link.is_to_go_on():
                self._serve_soon(link)
        self._started_bytes += link.note_buffered()

    def _make(self, link: Link) -> Sequence[Output]:
        produce = link.unmade.popleft()
        try:
            return produce.make()
        except Exception as error:
            self._fail(f"an answer to {link.connection.address}", error, link.connection)
            return ()

    def _handle_next(self, link: Link, now_ms: int, timestamp_ms: int) -> Sequence[Output] | None:
        """Pass the next request to the machine; None if there is no request."""
        connection = link.connection
        try:
            command = link.decoder.next_command()
        except RefusedHeader as refused:
            link.note_frame()
            return _refuse(Request(refused.command, connection, now_ms, timestamp_ms), refused)
        except ForeignProtocolError as error:
            text = f"{connection.address} was sent away: {error}"
            link.write(error.foreign.answer, None)
            link.close(text)
            return self._foreign.note(error.foreign, text, now_ms=now_ms)
        except ProtocolError as error:
            self._fail(f"bytes of {connection.address}", error, connection)
            link.close(str(error))
            return None
        if command is None:
            return None
        link.note_frame()
        try:
            return self._machine.handle(
                command, connection, now_ms=now_ms, timestamp_ms=timestamp_ms
            )
        except Exception as error:
            return self._answer_failure(command, connection, error)

    def lost(self, link: Link) -> None:
        """Forget a connection that is closed."""
        self._started_bytes -= link.buffered_bytes
        if self._links.pop(link.connection, None) is None:
            return
        try:
            outputs = self._machine.connection_closed(
                link.connection,
                now_ms=self._monotonic_ms(),
                timestamp_ms=self._world.timestamp_ms(),
            )
        except Exception as error:
            self._fail(f"closing of {link.connection.address}", error, link.connection)
        else:
            self.perform(outputs, peer=link.connection)
            self.end_turn_soon()

    def _encode_head(self, command: RemotingCommand, peer: Connection) -> bytes:
        try:
            return encode_head(command)
        except ProtocolError as error:
            kind = ("answer", _host_of(peer))
            self._failures.log(logging.WARNING, kind, "an answer cannot be written: %s", error)
        command.code = ResponseCode.SYSTEM_ERROR
        command.remark = "the answer does not fit into a frame"
        command.ext_fields = command.body = None
        return encode_head(command)

    def log_closing(self, link: Link, how: str, reason: str) -> None:
        """Log why a connection is closed."""
        peer = link.connection
        self._events.log(
            logging.INFO, ("closing", _host_of(peer)), "%s %s: %s", peer.address, how, reason
        )

    def _fail(self, what: str, error: Exception, peer: Connection | None = None) -> None:
        """Report a failure, in the log without a traceback if the peer is at fault."""
        if self._on_failure is not None:
            self._on_failure(what, error)
            return
        kind = (what if peer is None else _host_of(peer), type(error))
        if isinstance(error, ProtocolError):
            self._failures.log(logging.INFO, kind, "%s are closed: %s", what, error)
        else:
            self._failures.log(logging.ERROR, kind, "%s failed", what, error=error)

    def _sweep(self) -> None:
        # First of all: a failed sweep must not be the last.
        self.begin_sweeps()
        now_ms = self._monotonic_ms()
        if self._refused and self._refusals.admit("refused", now_ms) is not None:
            LOG.warning(
                "%d connections refused: %d are open, and the process may have %d descriptors "
                "for connections; raise the limit (ulimit -n) if clients need more",
                self._refused,
                self.connection_count,
                self._descriptors_max,
            )
            self._refused = 0
        for link in list(self._links.values()):
            reason = link.overdue(now_ms)
            if reason is not None:
                link.refuse(reason)
        self._measure_unsent()


def bind(host: str, port: int, server: str = "the server", option: str = "") -> socket.socket:
    """Return a bound, not yet listening TCP socket; port 0 takes any free one.

    Args:
        server, option: whose port it is, and the option that chooses it, for the error.

    Raises: OSError, with the address in its text, if the address cannot be bound.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise _cannot_listen(error, host, port, server, option) from error
    return listening


def _cannot_listen(error: OSError, host: str, port: int, server: str, option: str) -> OSError:
    reason = error.strerror or str(error)
    other = f"choose another port{option and ' by '}{option} (0 takes any free one)"
    if error.errno == errno.EADDRINUSE:
        reason += f"; stop what listens there, or {other}"
    elif error.errno == errno.EACCES:
        reason += f"; {other}"
    return OSError(error.errno, f"{server} cannot listen on {join_address(host, port)}: {reason}")


def _refuse(request: Request, refused: RefusedHeader) -> Sequence[Output]:
    """Answer a request whose header is refused; a refused answer is dropped."""
    if request.command.is_response:
        return ()
    return answer(request, ResponseCode.MESSAGE_ILLEGAL, remark=str(refused))


def _descriptor(transport: asyncio.Transport) -> int:
    descriptor: int = transport.get_extra_info("socket").fileno()
    return descriptor


def _host_of(peer: Connection) -> str:
    """Return a peer's host: the bound on its lines outlives its connections."""
    return peer.address.rpartition(":")[0]


def _peer_address(transport: asyncio.Transport) -> str:
    peer = transport.get_extra_info("peername")
    if not peer:
        return "0.0.0.0:0"
    return join_address(peer[0], peer[1])

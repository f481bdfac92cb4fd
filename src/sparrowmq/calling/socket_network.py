"""The blocking driver's connections: one selector, the sockets, and the wake-up bytes.

A `SocketNetwork` passes requests of tasks to their channels and makes the connections. The leading
thread waits in it. Only the leading thread may call its methods, except `wake`.
Tests: test_sockets.py.
"""

from __future__ import annotations

import selectors
import socket
import ssl
from collections import deque
from collections.abc import Callable, Sized
from contextlib import suppress
from functools import partial
from typing import Any

from sparrowmq.calling import clock
from sparrowmq.calling.call_pool import CallPool, log_left
from sparrowmq.calling.channel import CONNECT_TIMEOUT_MS, Channel, OnConnectionLost, OnRequest
from sparrowmq.calling.channel_table import ChannelTable
from sparrowmq.calling.scheduler import INTERRUPTED, NEVER_MS, Scheduler, Timed, Waiter
from sparrowmq.calling.sockets import (
    Candidate,
    SocketWire,
    TlsWire,
    begin_connect,
    end_connect,
    is_quick,
    look_up,
    split_address,
)
from sparrowmq.calling.tls import (
    CLOSED_IN_HANDSHAKE,
    HANDSHAKE_TIMED_OUT,
    HANDSHAKE_TIMEOUT_MS,
    TlsSession,
    check_context,
    describe,
)
from sparrowmq.protocol.signatures import Credentials

# The threads that look names up. They are not in the pool for `Call`, whose threads may all be busy
# with slow listeners.
LOOK_UP_THREADS = 2

# The longest wait in the selector: epoll takes 32 bit milliseconds.
SELECT_MS_MAX = 3_600_000

READ = selectors.EVENT_READ
WRITE = selectors.EVENT_WRITE


class _Dial:
    """A connection being made: the addresses to try, and the socket until its TLS handshake."""

    __slots__ = ("candidates", "channel", "error", "host", "sock", "wire")

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.host = ""
        self.candidates: deque[Candidate] = deque()
        self.sock: socket.socket | None = None
        self.wire: TlsWire | None = None
        self.error: OSError | None = None


class SocketNetwork:
    """The blocking driver's channels, over non-blocking sockets.

    `channels` is the table of the channels.

    Args:
        scheduler: the driver's scheduler; the network ends its tasks' waits.
        on_request: answers the peers' requests.
        on_connection_lost: called with the address of each open connection that ends.
        call_soon_threadsafe: passes the results of look-ups to the leading thread.
        incoming: what other threads hand in, each before `wake`; it ends a wait.
        tls: the TLS context of every connection; None for no TLS.
        credentials: the credentials that sign every request; None for no signatures.

    Raises: ConfigError if `tls` is not a TLS context.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        on_request: OnRequest | None,
        on_connection_lost: OnConnectionLost | None,
        call_soon_threadsafe: Callable[[Callable[[], Any]], None],
        incoming: Sized,
        tls: ssl.SSLContext | None,
        credentials: Credentials | None,
    ) -> None:
        self._tls = check_context(tls)
        self._scheduler = scheduler
        self.channels = ChannelTable(
            scheduler,
            self._open,
            hang_up=self._leave,
            on_request=on_request,
            on_connection_lost=on_connection_lost,
            is_tls=self._tls is not None,
            credentials=credentials,
        )
        self._call_soon_threadsafe = call_soon_threadsafe
        self._incoming = incoming
        self._look_ups: CallPool | None = None
        self._dials: dict[Channel, _Dial] = {}
        self._write_watched: set[Channel] = set()
        self._is_closed = False
        self._selector = selectors.DefaultSelector()
        # When the sockets were last checked.
        self.attended_ms = clock.monotonic_ms()
        self._is_waiting = self._wake_sent = False
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        self._selector.register(self._wake_reader, READ, self._woken)

    @property
    def is_connecting(self) -> bool:
        """Whether a connection is being made."""
        return bool(self._dials)

    def flush(self) -> bool:
        """Send the bytes that channels have written; return whether that made them write more."""
        if not self.channels.unflushed:
            return False
        for channel in self.channels.take_unflushed():
            self._flush(channel)
        return bool(self.channels.unflushed)

    def attend(self, deadline_ms: int) -> int:
        """Wait for the sockets until the deadline, handle those that are ready, return the time."""
        timeout_s = None
        if deadline_ms != NEVER_MS:
            wait_ms = deadline_ms - clock.monotonic_ms()
            timeout_s = min(max(wait_ms, 0), SELECT_MS_MAX) / 1000
        # What comes before the flag is set is found here; what comes later sends a byte.
        self._is_waiting = True
        ready = self._selector.select(0 if self._incoming else timeout_s)
        self._is_waiting = False
        self.attended_ms = now_ms = self._scheduler.read_clock()
        for key, mask in ready:
            key.data(mask)
        return now_ms

    def wake(self) -> None:
        """End the current wait at once. From any thread, and from signal handlers."""
        if self._wake_sent or not self._is_waiting:
            return
        self._wake_sent = True
        try:
            self._wake_writer.send(b"\0")
        except (BlockingIOError, InterruptedError):
            pass  # Enough bytes are there.
        except OSError:
            if not self._is_closed:
                raise

    def recover(self) -> bool:
        """Make the network usable after an interrupt, such as Ctrl-C, in the leading thread.

        In a wait nothing was under way. Elsewhere the interrupt may have come between two steps
        that belong together, so that no connection can be trusted: all are closed.

        Returns: whether it may have.
        """
        if self._is_waiting:
            self._is_waiting = False
            return False
        for key in tuple(self._selector.get_map().values()):
            if key.fileobj is not self._wake_reader:
                self._selector.unregister(key.fileobj)
                assert isinstance(key.fileobj, socket.socket)
                key.fileobj.close()
        for dial in self._dials.values():
            if dial.sock is not None:
                dial.sock.close()
        self._dials.clear()
        self._write_watched.clear()
        self.channels.abandon(INTERRUPTED)
        # Its byte may have been read. A byte too many ends one wait early.
        self._wake_sent = False
        return True

    def expire(self, timed: Timed | Waiter) -> None:
        """Handle one result of `Scheduler.expire`."""
        dial = self._dials.get(timed) if isinstance(timed, Channel) else None
        if dial is None:
            self.channels.expire(timed)
        elif dial.wire is not None:
            self.channels.lose(dial.channel, HANDSHAKE_TIMED_OUT, None)
        else:
            self._hang_up(dial)
            self._try_next(dial)

    def close(self, *, timeout_ms: int) -> None:
        """Close all connections, and wait for the look-ups under way."""
        self._is_closed = True
        self.channels.close()
        if self._look_ups is not None:
            self._look_ups.close()
            log_left(self._look_ups.join(timeout_ms=timeout_ms))
        self._close_own()

    def close_copy(self) -> None:
        """Close the sockets that a fork copied, without touching the parent's connections."""
        self._is_closed = True
        self.channels.close_copies()
        for dial in self._dials.values():
            if dial.sock is not None:
                dial.sock.close()
        self._close_own()

    def _close_own(self) -> None:
        self._selector.close()
        self._wake_reader.close()
        self._wake_writer.close()

    def _woken(self, _: int) -> None:
        with suppress(BlockingIOError, InterruptedError):
            self._wake_reader.recv(4096)
        # The flag is cleared after its byte is read and before functions are taken. A function
        # appended before is found by the next check; one appended afterwards sends a byte.
        self._wake_sent = False

    def _open(self, channel: Channel) -> None:
        dial = self._dials[channel] = _Dial(channel)
        self._scheduler.set_deadline(channel, self._scheduler.now_ms + CONNECT_TIMEOUT_MS)
        try:
            host, port = split_address(channel.address)
        except ValueError as error:
            self.channels.lose(channel, str(error), None)
            return
        dial.host = host
        if not is_quick(host):
            if self._look_ups is None:
                self._look_ups = CallPool(size=LOOK_UP_THREADS, name="sparrowmq-look-up")
            self._look_ups.submit(look_up, (host, port), partial(self._name_returned, dial))
            return
        try:
            candidates = look_up(host, port)
        except OSError as error:
            self._looked_up(dial, [], error)
        else:
            self._looked_up(dial, candidates, None)

    def _name_returned(self, dial: _Dial, result: Any, error: BaseException | None) -> None:
        self._call_soon_threadsafe(partial(self._looked_up, dial, result or [], error))

    def _looked_up(
        self, dial: _Dial, candidates: list[Candidate], error: BaseException | None
    ) -> None:
        if dial.channel.is_closed:
            return
        if error is not None or not candidates:
            self.channels.lose(dial.channel, f"host name not found ({error})", error)
            return
        dial.candidates.extend(candidates)
        self._try_next(dial)

    def _try_next(self, dial: _Dial) -> None:
        """Begin a connection to the next address of the name."""
        channel = dial.channel
        while dial.candidates:
            share_ms = CONNECT_TIMEOUT_MS // len(dial.candidates)
            try:
                dial.sock = begin_connect(dial.candidates.popleft())
            except OSError as error:
                dial.error = error
                continue
            self._scheduler.set_deadline(channel, self._scheduler.now_ms + share_ms)
            self._selector.register(dial.sock, WRITE, partial(self._connected, dial))
            return
        failure = dial.error or TimeoutError(f"no answer within {CONNECT_TIMEOUT_MS} ms")
        self.channels.lose(channel, failure.strerror or str(failure), failure)

    def _connected(self, dial: _Dial, _: int) -> None:
        sock = dial.sock
        assert sock is not None
        try:
            end_connect(sock)
        except OSError as error:
            dial.error = error
            self._hang_up(dial)
            self._try_next(dial)
            return
        if self._tls is None:
            self._opened(dial.channel, SocketWire(sock))
            return
        dial.wire = TlsWire(sock, TlsSession(self._tls, server_hostname=dial.host))
        deadline_ms = self._scheduler.now_ms + HANDSHAKE_TIMEOUT_MS
        self._scheduler.set_deadline(dial.channel, deadline_ms)
        self._shake_hands(dial, WRITE)

    def _shake_hands(self, dial: _Dial, mask: int) -> None:
        wire, channel = dial.wire, dial.channel
        assert wire is not None
        if mask & WRITE:
            wire.is_blocked = False
        try:
            data = wire.shake_hands(is_readable=bool(mask & READ))
        except OSError as error:
            self.channels.lose(channel, _reason_of(error), error)
            return
        if data is None:
            self.channels.lose(channel, CLOSED_IN_HANDSHAKE, None)
        elif wire.is_established:
            self._opened(channel, wire)
            if data:
                self.channels.received(channel, data)
        else:
            events = READ | WRITE if wire.is_blocked else READ
            self._selector.modify(wire.sock, events, partial(self._shake_hands, dial))

    def _opened(self, channel: Channel, wire: SocketWire) -> None:
        del self._dials[channel]
        self._selector.modify(wire.sock, READ, partial(self._attend_channel, channel))
        self.channels.log_opened(channel)
        channel.opened(wire, self._scheduler)

    def _hang_up(self, dial: _Dial) -> None:
        if dial.sock is not None:
            self._selector.unregister(dial.sock)
            dial.sock.close()
            dial.sock = None

    def _attend_channel(self, channel: Channel, mask: int) -> None:
        if mask & WRITE and channel.wire is not None:
            assert isinstance(channel.wire, SocketWire)
            channel.wire.is_blocked = False
            self._flush(channel)
        if mask & READ and channel.wire is not None:
            self._receive(channel)

    def _receive(self, channel: Channel) -> None:
        assert isinstance(channel.wire, SocketWire)
        try:
            data = channel.wire.receive()
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.channels.lose(channel, channel.ended_by_peer(_reason_of(error)), error)
            return
        if data is None:
            self.channels.lose(channel, channel.ended_by_peer("closed by the peer"), None)
        elif data:
            self.channels.received(channel, data)

    def _flush(self, channel: Channel) -> None:
        wire = channel.wire
        if wire is None:
            return
        assert isinstance(wire, SocketWire)
        try:
            channel.flush(self._scheduler)
        except OSError as error:
            self.channels.lose(channel, channel.ended_by_peer(_reason_of(error)), error)
            return
        if wire.is_blocked != (channel in self._write_watched):
            data = partial(self._attend_channel, channel)
            if wire.is_blocked:
                self._write_watched.add(channel)
                self._selector.modify(wire.sock, READ | WRITE, data)
            else:
                self._write_watched.discard(channel)
                self._selector.modify(wire.sock, READ, data)

    def _leave(self, channel: Channel) -> None:
        """Forget the socket of a channel that is about to close; the channel closes the socket."""
        dial = self._dials.pop(channel, None)
        if dial is not None:
            self._hang_up(dial)
        if channel.wire is not None:
            assert isinstance(channel.wire, SocketWire)
            self._selector.unregister(channel.wire.sock)
            self._write_watched.discard(channel)


def _reason_of(error: OSError) -> str:
    return describe(error) or error.strerror or str(error)

"""One accepted connection: its transport, its times, and its waiting requests and answers.

Tests: test_remoting_server.py.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from typing import Protocol, cast

from sparrowmq.calling.tls import HANDSHAKE_RECORD, TlsSession, describe
from sparrowmq.protocol.request_decoder import RequestDecoder
from sparrowmq.serving.connections import Connection, Produce
from sparrowmq.serving.limits import ServerLimits
from sparrowmq.serving.world import ServerWorld

# From this size on a separate write costs less than a copy.
_LARGE_BYTES_MIN = 64 * 1024

LOG = logging.getLogger("sparrowmq.serving")


class LinkOwner(Protocol):
    """The server of a connection."""

    def opened(self, link: Link) -> Connection | None:
        """Accept a connection; None refuses it."""
        ...

    def received(self, link: Link, data: bytes) -> None:
        """Process received bytes."""
        ...

    def go_on(self, link: Link) -> None:
        """Go on with a connection that has room for answers again."""
        ...

    def lost(self, link: Link) -> None:
        """Forget a connection."""
        ...

    def log_closing(self, link: Link, how: str, reason: str) -> None:
        """Log why a connection is closed."""
        ...


class Link(asyncio.Protocol):
    """One connection.

    Attributes:
        decoder: the decoder, with the bytes of requests that are not served yet.
        unmade: answers to make once there is room for them.
        is_queued: whether the link is in the owner's queue.
        buffered_bytes: the size of the decoder's bytes at the last note.
        unsent_since_ms: when the peer had last taken all answers.
    """

    def __init__(
        self,
        owner: LinkOwner,
        limits: ServerLimits,
        world: ServerWorld,
        *,
        tls: ssl.SSLContext | None,
        takes_plain: bool = False,
    ) -> None:
        self._owner = owner
        self._limits = limits
        self._world = world
        self._room_bytes = limits.send_buffer_bytes_max // 2
        self.decoder = RequestDecoder(frame_bytes_max=limits.frame_bytes_max)
        self.unmade: deque[Produce] = deque()
        self.is_queued = False
        self.buffered_bytes = 0
        self.unsent_since_ms = 0
        self._unwritten: list[bytes] = []
        self._unwritten_bytes = 0
        self._tls = None if tls is None else TlsSession(tls, server_hostname=None)
        self._takes_plain = takes_plain
        self._has_received = False
        self.transport: asyncio.Transport
        self.connection: Connection
        self._opened_ms = 0
        self._active_ms = 0
        self._started_ms: int | None = None
        self._stalled_ms: int | None = None
        self._has_frame = False
        self._has_ended_frame = False
        self._is_behind = False
        self._pause_count = 0
        self._is_refused = False

    # -- what the transport says ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport, or refuse the connection."""
        # uvloop's transports do not inherit from asyncio's.
        self.transport = cast(asyncio.Transport, transport)
        self._opened_ms = self._active_ms = self.unsent_since_ms = self._world.monotonic_ms()
        connection = self._owner.opened(self)
        if connection is None:
            self._is_refused = True
            self.transport.abort()
            return
        self.connection = connection
        self.transport.set_write_buffer_limits(high=self._room_bytes)

    def data_received(self, data: bytes) -> None:
        """Pass received bytes, decrypted, to the owner."""
        if self.transport.is_closing():
            return
        if self._tls is None:
            self._owner.received(self, data)
            return
        if not self._has_received and data[0] != HANDSHAKE_RECORD:
            # No frame begins with this byte: its length would exceed every limit.
            if not self._takes_plain:
                self.refuse("it does not speak TLS, and this server speaks nothing else")
                return
            self._tls = None
            self._owner.received(self, data)
            return
        self._has_received = True
        plain = self._decrypt(self._tls, data)
        if plain:
            self._owner.received(self, plain)
        if self._tls.is_ended:
            self.close("the peer has ended TLS")

    def _decrypt(self, tls: TlsSession, data: bytes) -> bytes:
        plain, failure = b"", None
        try:
            plain = tls.receive_data(data)
        except ssl.SSLError as error:
            failure = describe(error)
        # A failed handshake has output too: the alert gives the reason.
        if output := tls.take_output():
            self.transport.write(output)
        if failure is not None:
            self.refuse(failure)
        return plain

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop the unsent answers."""
        if not self._is_refused:
            self._unwritten.clear()
            self.unmade.clear()
            self._owner.lost(self)

    def pause_writing(self) -> None:
        """Stop reading: a peer that does not take answers gets no further ones."""
        self._stalled_ms = self._world.monotonic_ms()
        self._read_or_not()

    def resume_writing(self) -> None:
        """Go on reading: the peer has taken most of its answers."""
        self._stalled_ms = None
        self._active_ms = self._world.monotonic_ms()
        self._read_or_not()
        self._owner.go_on(self)

    # -- requests ------------------------------------------------------------------------------

    def feed(self, data: bytes, now_ms: int) -> None:
        """Process bytes of requests."""
        self._active_ms = now_ms
        self.decoder.feed(data)

    def note_frame(self) -> None:
        """Note that a whole frame has come."""
        self._has_frame = self._has_ended_frame = True

    def note_buffered(self) -> int:
        """Note how many bytes `decoder` has; return how many more than at the last note."""
        before, self.buffered_bytes = self.buffered_bytes, self.decoder.buffered_bytes
        return self.buffered_bytes - before

    @property
    def waiting_since_ms(self) -> int:
        """Since when the decoder's bytes wait: for the rest of a frame, or for the peer."""
        if self._started_ms is not None:
            return self._started_ms
        return self._active_ms if self._stalled_ms is None else self._stalled_ms

    @property
    def room_bytes(self) -> int:
        """How many bytes may be written in this turn before no further answer is made."""
        return self._room_bytes - self.transport.get_write_buffer_size()

    def can_serve(self, room_bytes: int) -> bool:
        """Return whether a waiting request may be served within `room_bytes`."""
        return (
            self._unwritten_bytes <= room_bytes
            and (not self._pause_count or bool(self.unmade))
            and not self.transport.is_closing()
        )

    def is_to_go_on(self) -> bool:
        """Return whether the next turn may serve the requests that are left."""
        if self._stalled_ms is not None or self.transport.is_closing():
            return False
        return not self._pause_count or bool(self.unmade)

    def fall_behind(self) -> None:
        """Stop reading, since requests may be left."""
        self._started_ms = None
        if not self._is_behind:
            self._is_behind = True
            self._read_or_not()

    def catch_up(self, now_ms: int) -> None:
        """Note that no request is left, except perhaps the start of an unfinished frame."""
        if not self.decoder.buffered_bytes:
            self._started_ms = None
        elif self._has_ended_frame or self._started_ms is None:
            self._started_ms = now_ms
        self._has_ended_frame = False
        if self._is_behind:
            self._is_behind = False
            self._read_or_not()

    def pause(self) -> None:
        """Serve no request until `resume` was called as often as `pause`."""
        self._pause_count += 1
        self._read_or_not()

    def resume(self) -> None:
        """Undo one `pause`."""
        self._pause_count -= 1
        self._read_or_not()

    def _read_or_not(self) -> None:
        if self.transport.is_closing():
            return
        wanted = self._stalled_ms is None and not self._pause_count and not self._is_behind
        if wanted and not self.transport.is_reading():
            self.transport.resume_reading()
        elif not wanted and self.transport.is_reading():
            self.transport.pause_reading()

    # -- answers -------------------------------------------------------------------------------

    @property
    def unsent_bytes(self) -> int:
        """The size of the written answers that the peer has not taken."""
        return self.transport.get_write_buffer_size()

    def write(self, head: bytes, body: bytes | None) -> bool:
        """Gather a frame for the next `write_out`; return whether the frame is the first."""
        unwritten = self._unwritten
        is_first = not unwritten
        unwritten.append(head)
        self._unwritten_bytes += len(head)
        if body:
            unwritten.append(body)
            self._unwritten_bytes += len(body)
        return is_first

    def write_out(self, now_ms: int) -> int:
        """Pass the gathered frames to the transport; return their size."""
        unwritten, self._unwritten = self._unwritten, []
        size, self._unwritten_bytes = self._unwritten_bytes, 0
        if not unwritten or self.transport.is_closing():
            return 0
        self._active_ms = now_ms
        unsent = self.transport.get_write_buffer_size()
        if unsent == 0:
            self.unsent_since_ms = now_ms
        elif unsent + size > self._limits.send_buffer_bytes_max + self._limits.frame_bytes_max:
            self.cut_off("it does not take what is sent to it")
            return 0
        if self._tls is not None:
            try:
                self._tls.encrypt(b"".join(unwritten))
            except ssl.SSLError as error:
                self.refuse(describe(error) or str(error))
                return 0
            self.transport.write(self._tls.take_output())
            return size
        if size < _LARGE_BYTES_MIN or max(map(len, unwritten)) < _LARGE_BYTES_MIN:
            self.transport.write(b"".join(unwritten))
            return size
        for data in unwritten:
            self.transport.write(data)
        return size

    # -- the end -------------------------------------------------------------------------------

    def overdue(self, now_ms: int) -> str | None:
        """Return the exceeded limit for which the connection must be closed, None without one."""
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

    def refuse(self, reason: str) -> None:
        """Close the connection and log why; one that is closed already is cut off."""
        if self.transport.is_closing():
            # The peer does not take its last answers.
            self.transport.abort()
            return
        self._owner.log_closing(self, "closed", reason)
        self.close(reason)

    def cut_off(self, reason: str) -> None:
        """Close the connection, drop the answers that the peer has not taken, and log why."""
        self._owner.log_closing(self, "cut off", reason)
        self.transport.abort()

    def close(self, reason: str) -> None:
        """Close the connection after its written answers, unless the peer takes no answers."""
        if self.transport.is_closing():
            return
        LOG.debug("close %s: %s", self.connection.address, reason)
        self.write_out(self._world.monotonic_ms())
        if self._stalled_ms is not None:
            self.transport.abort()
        else:
            self.transport.close()

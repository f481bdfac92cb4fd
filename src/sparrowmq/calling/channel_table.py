"""The connections of one driver: a channel per address, over any kind of network.

A driver gives the table a function that begins a connection, and reports each connection's events
to the table: bytes, a deadline, an end. The sockets, the event loop and the simulated network
belong to the drivers. Tests: test_async_driver.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from sparrowmq.calling.bounded_log import BoundedLog
from sparrowmq.calling.channel import IDLE_MS, Channel, OnConnectionLost, OnFailure, OnRequest
from sparrowmq.calling.effects import Invoke, Oneway
from sparrowmq.calling.forks import tell_in_forks
from sparrowmq.calling.scheduler import NEVER_MS, OperationTask, Scheduler, Timed, Waiter
from sparrowmq.errors import RemoteProtocolError, UsageError
from sparrowmq.protocol.signatures import Credentials

LOG = logging.getLogger("sparrowmq.calling")


class ChannelTable:
    """One driver's channels by address.

    Args:
        scheduler: the driver's scheduler; the table ends its tasks' waits.
        dial: begins the connection of a new channel.
        hang_up: ends the driver's part of a connection, before the channel closes.
        on_request: answers the peers' requests.
        on_connection_lost: called with the address of each open connection that ends.
        on_failure: called with a text and an error that no caller gets; None logs it.
        is_tls: whether connections use TLS.
        credentials: the credentials that sign every request; None for no signatures.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        dial: Callable[[Channel], None],
        *,
        hang_up: Callable[[Channel], None] | None = None,
        on_request: OnRequest | None,
        on_connection_lost: OnConnectionLost | None,
        on_failure: OnFailure | None = None,
        is_tls: bool = False,
        credentials: Credentials | None = None,
    ) -> None:
        self._scheduler = scheduler
        scheduler.submit = self.submit
        self._dial = dial
        self._hang_up = hang_up
        self._on_request = on_request
        self._on_connection_lost = on_connection_lost
        self._log = BoundedLog(LOG)
        self._on_failure = on_failure or self.log_failure
        self._is_tls = is_tls
        self._credentials = credentials
        self._by_address: dict[str, Channel] = {}
        self._is_closed = False
        # Whether a fork copied the table: the connections serve the process that made them.
        self.is_copy = False
        tell_in_forks(self)
        # Channels that have written since `take_unflushed`.
        self.unflushed: list[Channel] = []

    def submit(self, task: Waiter, effect: Invoke | Oneway) -> None:
        """Send a request on the connection to its address; make a missing connection."""
        channel = self._by_address.get(effect.address)
        if channel is not None:
            channel.submit(task, effect)
            return
        channel = Channel(
            effect.address,
            self.unflushed,
            on_failure=self._on_failure,
            on_request=self._on_request,
            is_tls=self._is_tls,
            credentials=self._credentials,
        )
        self._by_address[effect.address] = channel
        channel.submit(task, effect)
        self._dial(channel)

    def become_copy(self) -> None:
        """Note that the table is a fork's copy."""
        self.is_copy = True

    def check_process(self) -> None:
        """Raise a UsageError if the table was made before a fork."""
        if self.is_copy:
            raise UsageError(
                "this client was made before a fork, and a connection serves one process; open a "
                "client in each process, after the fork"
            )

    def take_unflushed(self) -> list[Channel]:
        """Return the channels that have written since the last call; each needs a `flush`."""
        channels = self.unflushed.copy()
        self.unflushed.clear()
        return channels

    def received(self, channel: Channel, data: bytes) -> None:
        """Process a connection's bytes; close the connection if the bytes cannot be read."""
        try:
            channel.received(data, self._scheduler)
        except Exception as error:
            # Whoever waits for an answer gets the peer's mistake as an error.
            if channel.is_idle or not isinstance(error, RemoteProtocolError):
                what = f"closing connection to {channel.address}, whose bytes are bad"
                self._on_failure(what, error)
            self.lose(channel, str(error) or repr(error), error)

    def expire(self, timed: Timed | Waiter) -> None:
        """Handle one result of `Scheduler.expire`: a connection or a task."""
        if isinstance(timed, Channel):
            if timed.wire is not None and timed.is_idle:
                self.lose(timed, "idle", None)
            else:
                self._scheduler.set_deadline(timed, self._scheduler.now_ms + IDLE_MS)
        elif isinstance(timed, OperationTask) and timed.done:
            self._report_unjoined(timed)
        # An earlier result may have ended a wait: its connection was given up just now.
        elif isinstance(timed, Waiter) and timed.effect and timed.deadline_ms == NEVER_MS:
            self._scheduler.throw(timed, timed.place.time_out(timed))

    def lose(self, channel: Channel, reason: str, cause: BaseException | None) -> None:
        """Close a connection, open or being opened, and forget it."""
        if self._by_address.get(channel.address) is channel:
            del self._by_address[channel.address]
        if self._hang_up is not None:
            self._hang_up(channel)
        self._close_channel(channel, reason, cause)

    def abandon(self, reason: str) -> None:
        """Close and forget all connections; the driver has ended its part of each."""
        channels = tuple(self._by_address.values())
        self._by_address.clear()
        self.unflushed.clear()
        for channel in channels:
            self._close_channel(channel, reason, None)

    def _close_channel(self, channel: Channel, reason: str, cause: BaseException | None) -> None:
        was_open = channel.close(reason, cause, self._scheduler)
        if was_open and not self._is_closed:
            kind = ("lost", channel.address)
            self._log.log(logging.INFO, kind, "connection to %s lost: %s", channel.address, reason)
            if self._on_connection_lost is not None:
                try:
                    self._on_connection_lost(channel.address)
                except Exception as error:
                    self._on_failure("on_connection_lost failed", error)

    def close(self) -> None:
        """Close all connections without calling `on_connection_lost`."""
        self._is_closed = True
        for channel in tuple(self._by_address.values()):
            self.lose(channel, "the driver is closed", None)

    def close_copies(self) -> None:
        """Close the connections that a fork copied, without sending bytes to the peers."""
        self._is_closed = True
        for channel in self._by_address.values():
            if channel.wire is not None:
                channel.wire.close()

    def log_opened(self, channel: Channel) -> None:
        """Log that a connection is open."""
        kind = ("opened", channel.address)
        self._log.log(logging.INFO, kind, "connected to %s", channel.address)

    def log_failure(self, what: str, error: BaseException) -> None:
        """Log an error that no caller gets; without a traceback if the peer is at fault."""
        kind = (what, type(error))
        if isinstance(error, RemoteProtocolError):
            self._log.log(logging.WARNING, kind, "%s: %s", what, error)
        else:
            self._log.log(logging.ERROR, kind, "%s", what, error=error)

    def report_unjoined(self) -> None:
        """Report the failed tasks whose errors no caller has taken."""
        for task in self._scheduler.unjoined():
            self._report_unjoined(task)

    def _report_unjoined(self, task: OperationTask) -> None:
        task.joined = True
        assert task.error is not None
        self._on_failure(f"task {task.name} failed and nobody joined it", task.error)

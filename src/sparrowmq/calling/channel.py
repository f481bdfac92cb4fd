"""One connection to one address above its bytes: the tasks that wait, and their requests.

A driver keeps one channel per address and gives it the tasks that yielded `Invoke` and `Oneway`.
The channel decides what is written and when, ends the tasks' waits, and answers requests of the
peer. The driver owns the socket and reports the socket's events to the channel.

The error of a waiting task shows whether the peer may have acted:

| The task's request is              | time-out          | connection lost  |
|------------------------------------|-------------------|------------------|
| waiting for the connection         | `ConnectFailed`   | `ConnectFailed`  |
| waiting for room in the buffer     | `TooManyInFlight` | `ConnectFailed`  |
| written in part (one-way) or whole | `InvokeTimeout`   | `ConnectionLost` |

A time-out never closes the connection; a late answer is dropped by the session.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Generator, Sequence
from typing import Protocol, TypeAlias

from sparrowmq.calling.effects import Answer, Invoke, Oneway, Operation
from sparrowmq.calling.scheduler import NEVER_MS, OperationTask, Scheduler, Waiter
from sparrowmq.errors import (
    ConnectFailed,
    ConnectionLost,
    InvokeTimeout,
    RemoteProtocolError,
    TooManyInFlight,
    TransportError,
)
from sparrowmq.protocol.codes import ResponseCode
from sparrowmq.protocol.command import RemotingCommand, response_to
from sparrowmq.protocol.session import RemotingSession, RequestReceived
from sparrowmq.protocol.signatures import Credentials, signed

# NettyClientConfig.connectTimeoutMillis.
CONNECT_TIMEOUT_MS = 3_000

# NettyClientConfig.clientChannelMaxIdleTimeSeconds: the time without a byte in either direction.
IDLE_MS = 120_000

# Bytes per connection that the kernel has not taken yet. Beyond it, requests wait for room.
WRITE_BUFFER_BYTES_MAX = 8 * 1024 * 1024

OnRequest: TypeAlias = Callable[[str, RemotingCommand], Answer]
OnConnectionLost: TypeAlias = Callable[[str], None]
OnFailure: TypeAlias = Callable[[str, BaseException], None]


class Wire(Protocol):
    """An open connection's bytes, as a driver sends them."""

    @property
    def room(self) -> int:
        """How many bytes of `WRITE_BUFFER_BYTES_MAX` are left; 0 or less if none are."""
        ...

    def write(self, frames: Sequence[bytes]) -> None:
        """Gather frames for the next `flush`."""
        ...

    def flush(self) -> bool:
        """Send as many bytes as the kernel takes; return whether all were sent.

        Raises: OSError, if the connection is broken.
        """
        ...

    def close(self) -> None:
        """Close the connection at once, without a further call to the channel."""
        ...


class Channel:
    """The tasks and requests of one connection.

    Args:
        address: the peer as `host:port`.
        unflushed: the driver's list of channels whose wire must be flushed soon.
        on_failure: called with a text and an error that no caller gets.
        on_request: answers the peer's requests.
        is_tls: whether the connection uses TLS.
        credentials: the credentials that sign every request; None for no signatures.
    """

    __slots__ = (
        "_credentials",
        "_flushing",
        "_is_tls",
        "_is_unflushed",
        "_on_failure",
        "_on_request",
        "_session",
        "_unflushed",
        "_unwritten",
        "address",
        "deadline_ms",
        "has_received",
        "is_closed",
        "timer_ms",
        "wire",
    )

    def __init__(
        self,
        address: str,
        unflushed: list[Channel],
        *,
        on_failure: OnFailure,
        on_request: OnRequest | None = None,
        is_tls: bool = False,
        credentials: Credentials | None = None,
    ) -> None:
        self.address = address
        self.wire: Wire | None = None
        self.is_closed = False
        self.has_received = False
        # While connecting, when to give up. While open, when the idle time is too long.
        self.deadline_ms = NEVER_MS
        self.timer_ms = NEVER_MS
        self._session = RemotingSession()
        self._on_failure = on_failure
        self._on_request = on_request
        self._is_tls = is_tls
        self._credentials = credentials
        self._unflushed = unflushed
        self._is_unflushed = False
        self._unwritten: dict[Waiter, Invoke | Oneway] = {}
        self._flushing: dict[Waiter, None] = {}

    @property
    def is_idle(self) -> bool:
        """Whether no task waits for this connection."""
        return not (self._unwritten or self._flushing or self._session.outstanding_count)

    def submit(self, task: Waiter, effect: Invoke | Oneway) -> None:
        """Keep a task's request; the next `flush` writes it with others, if the wire takes it."""
        task.place = self
        self._unwritten[task] = effect
        if not self._is_unflushed and self.wire is not None:
            self._flush_soon()

    def forget(self, task: Waiter) -> None:
        """Drop a task's request; if the request was written, drop its answer when it comes."""
        if task in self._unwritten:
            del self._unwritten[task]
        elif task in self._flushing:
            del self._flushing[task]
        else:
            self._session.abandon(task)

    def _unanswered(self, code: int, within: str, verb: str = "answer") -> InvokeTimeout:
        message = f"{self.address} did not {verb} request {code} {within}"
        return InvokeTimeout(message, address=self.address)

    def time_out(self, task: Waiter) -> TransportError:
        """Forget a task whose time is up and return the task's error."""
        effect = task.effect
        assert isinstance(effect, Invoke | Oneway)
        within = f"within {effect.timeout_ms} ms"
        is_unwritten = task in self._unwritten
        self.forget(task)
        if is_unwritten and self.wire is None:
            what = "TLS connection" if self._is_tls else "connection"
            return connect_failed(self.address, f"no {what} {within}")
        if is_unwritten:
            message = f"{self.address} takes no more bytes; request not written {within}"
            return TooManyInFlight(message, address=self.address)
        verb = "answer" if isinstance(effect, Invoke) else "take one-way"
        return self._unanswered(effect.request.code, within, verb)

    def opened(self, wire: Wire, scheduler: Scheduler) -> None:
        """Take the wire of the new connection; `flush` writes the requests that waited for it."""
        self.wire = wire
        scheduler.set_deadline(self, scheduler.now_ms + IDLE_MS)
        self._flush_soon()

    def flush(self, scheduler: Scheduler) -> None:
        """Write the requests and send. Raises: OSError, if the connection is broken."""
        self._is_unflushed = False
        if (wire := self.wire) is not None:
            self._write_waiting(wire, scheduler)
            if wire.flush():
                self.drained(scheduler)

    def drained(self, scheduler: Scheduler) -> None:
        """Note that all bytes were sent: end the waits for it; there is room for more requests."""
        flushing, self._flushing = self._flushing, {}
        for task in flushing:
            scheduler.resume(task, None)
        if self._unwritten:
            self._flush_soon()

    def received(self, data: bytes | memoryview, scheduler: Scheduler) -> None:
        """Process received bytes.

        Raises: RemoteProtocolError; the driver must then call `close` with the error.
        """
        self.deadline_ms = scheduler.now_ms + IDLE_MS
        self.has_received = True
        for event in self._session.receive_data(data):
            if isinstance(event, RequestReceived):
                self._answer(event.command, scheduler)
            else:
                scheduler.resume(event.token, event.answer)  # type: ignore[arg-type]

    def ended_by_peer(self, reason: str) -> str:
        """Return why the peer ended the connection, with advice if the peer never answered."""
        if self.has_received or "; " in reason:
            return reason
        wanted = "a client certificate (TLS)" if self._is_tls else "TLS"
        return f"{reason}; it has sent nothing, and may want {wanted}"

    def close(self, reason: str, cause: BaseException | None, scheduler: Scheduler) -> bool:
        """Close the wire and throw an error into every task that waits for this connection.

        Returns: whether the connection was open.
        """
        if self.is_closed:
            return False
        self.is_closed = True
        wire, self.wire = self.wire, None
        scheduler.set_deadline(self, NEVER_MS)
        if wire is not None:
            wire.close()
        waits: list[tuple[Waiter, TransportError]] = []
        for token in (*self._flushing, *self._session.outstanding):
            assert isinstance(token, Waiter)
            message = f"connection to {self.address} lost: {reason}"
            waits.append((token, ConnectionLost(message, address=self.address)))
        for task in self._unwritten:
            if wire is None:
                waits.append((task, connect_failed(self.address, _advised(reason, cause))))
            else:
                message = f"connection to {self.address} lost before the request was sent: {reason}"
                waits.append((task, ConnectFailed(message, address=self.address)))
        self._session = RemotingSession()
        self._flushing = {}
        self._unwritten = {}
        for task, error in waits:
            error.__cause__ = cause
            scheduler.throw(task, error)
        return wire is not None

    def _flush_soon(self) -> None:
        if not self._is_unflushed:
            self._is_unflushed = True
            self._unflushed.append(self)

    def _write_waiting(self, wire: Wire, scheduler: Scheduler) -> None:
        frames: list[bytes] = []
        refused: list[tuple[Waiter, Exception]] = []
        session, room = self._session, wire.room
        waiting, self._unwritten = self._unwritten, {}
        for task, effect in waiting.items():
            if room <= 0:
                self._unwritten[task] = effect
                continue
            try:
                request = effect.request
                if self._credentials is not None:
                    command = request if isinstance(request, RemotingCommand) else request.command()
                    request = signed(command, self._credentials)
                if isinstance(effect, Invoke):
                    frame = session.start_request(request, task)
                else:
                    assert isinstance(request, RemotingCommand)
                    frame = session.write_oneway(request)
                    self._flushing[task] = None
            except TooManyInFlight as error:
                named = TooManyInFlight(f"{self.address}: {error}", address=self.address)
                refused.append((task, named))
            # A faulty request fails its operation, not the connection.
            except Exception as error:
                refused.append((task, error))
            else:
                frames.append(frame)
                room -= len(frame)
        if frames:
            self.deadline_ms = scheduler.now_ms + IDLE_MS
            wire.write(frames)
        for task, failure in refused:
            scheduler.throw(task, failure)

    def _answer(self, request: RemotingCommand, scheduler: Scheduler) -> None:
        response: Answer
        if self._on_request is None:
            remark = f" request type {request.code} not supported"
            response = response_to(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
        else:
            try:
                response = self._on_request(self.address, request)
            except Exception as error:
                response = self._failure_of(request, error)
        if isinstance(response, Generator):
            later = self._answer_later(request, response)
            scheduler.add(OperationTask(later, f"answer to request {request.code}"))
        else:
            self._write_answer(request, response)

    def _answer_later(
        self, request: RemotingCommand, operation: Operation[RemotingCommand]
    ) -> Operation[None]:
        try:
            response = yield from operation
        except Exception as error:
            response = self._failure_of(request, error)
        self._write_answer(request, response)

    def _failure_of(self, request: RemotingCommand, error: Exception) -> RemotingCommand:
        self._on_failure(f"request {request.code} of {self.address} failed", error)
        return response_to(request, ResponseCode.SYSTEM_ERROR, remark=repr(error))

    def _write_answer(self, request: RemotingCommand, response: RemotingCommand | None) -> None:
        if response is None or request.is_oneway or self.wire is None:
            return
        if self.wire.room <= 0:
            raise RemoteProtocolError("the peer sends requests and takes no answers")
        self.wire.write((self._session.write_response(response),))
        self._flush_soon()


def _advised(reason: str, cause: BaseException | None) -> str:
    """Return why no connection was begun, with advice if this process is short of descriptors."""
    if isinstance(cause, OSError) and cause.errno in (errno.EMFILE, errno.ENFILE):
        return f"{reason}; close some, or raise this process's limit (ulimit -n)"
    return reason


def connect_failed(address: str, reason: str) -> ConnectFailed:
    """Make the error for an address that cannot be reached, with advice."""
    if "; " not in reason:
        reason += "; check the address, that the server runs, and that no firewall stands between"
    return ConnectFailed(f"cannot connect to {address}: {reason}", address=address)

"""The effects an operation may yield. Pure.

An *operation* is a generator that yields effects and returns a result. It performs no I/O itself:
a driver (`async_driver`, `blocking_driver`) carries out each effect and sends its result back in.
Operations yield through the typed helpers at the end of this file:

    reply = yield from invoke(address, request, timeout_ms=3000)

Rules of this file:
- An effect is a value. Its docstring names its result and the errors that it may raise inside the
  operation.
- Cancelling a task throws `Cancelled` into its operation at the effect that the task waits for.
  Clean-up that needs effects is a separate operation, never a `yield` while closing.

Tests: test_operations.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from typing import Any, Protocol, TypeAlias, TypeVar, overload

import msgspec

from sparrowmq.errors import InvokeTimeout, TransportError
from sparrowmq.protocol.command import PreparedRequest, RemotingCommand
from sparrowmq.protocol.send_request import SendAnswered

T = TypeVar("T")

# How long the calls of one `CallEach` go on. Handing calls to a thread and results back costs more
# than many calls. A result is reported at most this much later (benchmarks/against_apache.py).
CALLS_MS = 2


class Cancelled(BaseException):
    """Thrown into an operation whose task is cancelled."""


class Task(Protocol):
    """An operation under way in a driver."""

    name: str

    @property
    def done(self) -> bool:
        """Whether the operation has returned, raised or been cancelled."""
        ...


class Event:
    """A flag that operations wait for with `wait`. Set it only on the driver's own thread."""

    __slots__ = ("_wakers", "is_set")

    def __init__(self) -> None:
        self.is_set = False
        self._wakers: list[Callable[[], None]] = []

    def set(self) -> None:
        """Set the flag and wake every waiting operation."""
        self.is_set = True
        wakers, self._wakers = self._wakers, []
        for wake in wakers:
            wake()

    def clear(self) -> None:
        """Clear the flag."""
        self.is_set = False

    def add_waker(self, wake: Callable[[], None]) -> None:
        """Call `wake` once at the next `set`. For drivers."""
        self._wakers.append(wake)

    def discard_waker(self, wake: Callable[[], None]) -> None:
        """Forget a waker, if it was not called yet. For drivers."""
        if wake in self._wakers:
            self._wakers.remove(wake)


class Invoke(msgspec.Struct, frozen=True, gc=False):
    """Send a request and wait for its answer: a `RemotingCommand`, whatever its code.

    The usual answer to a `SendRequest` is a `SendAnswered`, to a `PullRequest` a `PullAnswered`.

    Raises: ConnectFailed, ConnectionLost, InvokeTimeout, TooManyInFlight.
    """

    address: str
    request: RemotingCommand | PreparedRequest
    timeout_ms: int


class Oneway(msgspec.Struct, frozen=True, gc=False):
    """Write a one-way request; the result is None once the connection has the request.

    Raises: ConnectFailed, ConnectionLost, InvokeTimeout.
    """

    address: str
    request: RemotingCommand
    timeout_ms: int


class Sleep(msgspec.Struct, frozen=True, gc=False):
    """Wait; the result is None."""

    duration_ms: int


class Now(msgspec.Struct, frozen=True, gc=False):
    """The result is the monotonic time in milliseconds."""


class Timestamp(msgspec.Struct, frozen=True, gc=False):
    """The result is the wall-clock time in milliseconds since 1970."""


class Spawn(msgspec.Struct, frozen=True):
    """Start an operation beside this one; the result is its `Task`.

    The driver logs the error of a task that is never joined.
    """

    operation: Operation[Any]
    name: str


class Join(msgspec.Struct, frozen=True):
    """Wait for a task's end; the result is the task's result, or the task's error is raised.

    Raises: InvokeTimeout if `timeout_ms` passes first; UsageError if the task was cancelled.
    """

    task: Task
    timeout_ms: int | None


class Cancel(msgspec.Struct, frozen=True):
    """Throw `Cancelled` into a task unless the task is done; the result is None, at once."""

    task: Task


class Wait(msgspec.Struct, frozen=True):
    """Wait until the event is set; the result is False if `timeout_ms` passed first."""

    event: Event
    timeout_ms: int | None


class Call(msgspec.Struct, frozen=True):
    """Call the user's code; its return value is the result, and its errors are raised.

    The blocking driver calls the function in its pool of threads. The async driver awaits a
    coroutine function on its loop and calls a plain function in a thread.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]


class WaitingCalls(Protocol):
    """Calls of the user's code that wait. Several threads may take and end them at once."""

    def begin(self) -> tuple[int, tuple[Any, ...]] | None:
        """Take the next call; return its place and the arguments, None if no call waits."""
        ...

    def end(
        self,
        at: int,
        arguments: tuple[Any, ...],
        value: Any,
        error: BaseException | None,
        duration_ms: int,
    ) -> None:
        """Note the end of a call.

        Args:
            value: the function's return value; None if it raised.
            error: the function's error; None if it returned.
        """
        ...


def drop_empty(waiting: deque[WaitingCalls], calls: WaitingCalls) -> None:
    """Drop calls of which none waits, unless another thread has dropped them. For drivers."""
    if calls in waiting:
        with suppress(ValueError):
            waiting.remove(calls)


class CallEach(msgspec.Struct, frozen=True):
    """Call the user's code several times in turn, each time as `Call` does.

    Each call is the next of the first in `waiting`, which leaves when it has none. The call's end
    is noted at once. Several tasks may share `waiting`. The calls go on until none waits or they
    have taken `CALLS_MS` together. The result is None.

    If the task is cancelled, the call under way goes on, and no further call begins.

    Args:
        is_quick: whether the function has returned at once lately. A driver with a thread may then
            call it on that thread, if another thread takes over should the call last.
    """

    function: Callable[..., Any]
    waiting: deque[WaitingCalls]
    is_quick: bool = False


Effect: TypeAlias = (
    Invoke | Oneway | Sleep | Now | Timestamp | Spawn | Join | Cancel | Wait | Call | CallEach
)
Operation: TypeAlias = Generator[Effect, Any, T]
# The answer to a server's request: none, a command, or the result of an operation.
Answer: TypeAlias = RemotingCommand | Operation[RemotingCommand] | None
# What ends a send: the answer, or why there is none.
Outcome: TypeAlias = RemotingCommand | SendAnswered | TransportError


def invoke(
    address: str, request: RemotingCommand, *, timeout_ms: int
) -> Operation[RemotingCommand]:
    """Yield `Invoke`."""
    reply: RemotingCommand = yield Invoke(address, request, timeout_ms)
    return reply


def try_invoke(effect: Invoke) -> Operation[Outcome]:
    """Yield an effect; return the error of the connection instead of raising it."""
    try:
        answer: RemotingCommand | SendAnswered = yield effect
        return answer
    except TransportError as error:
        return error


def sleep(duration_ms: int) -> Operation[None]:
    """Yield `Sleep`."""
    yield Sleep(duration_ms)


def now() -> Operation[int]:
    """Yield `Now`."""
    instant: int = yield Now()
    return instant


def timestamp() -> Operation[int]:
    """Yield `Timestamp`."""
    instant: int = yield Timestamp()
    return instant


def spawn(operation: Operation[Any], *, name: str) -> Operation[Task]:
    """Yield `Spawn`."""
    task: Task = yield Spawn(operation, name)
    return task


def join(task: Task, *, timeout_ms: int | None = None) -> Operation[Any]:
    """Yield `Join`."""
    return (yield Join(task, timeout_ms))


def cancel(task: Task) -> Operation[None]:
    """Yield `Cancel`."""
    yield Cancel(task)


def bounded(operation: Operation[T], *, timeout_ms: int, name: str) -> Operation[T]:
    """Run an operation as a separate task and cancel the task when its time is up.

    Raises: the operation's errors; InvokeTimeout after `timeout_ms`.
    """
    task = yield from spawn(operation, name=name)
    try:
        result: T = yield from join(task, timeout_ms=timeout_ms)
    except (Cancelled, InvokeTimeout):
        yield from cancel(task)
        raise
    return result


def wait(event: Event, *, timeout_ms: int | None = None) -> Operation[bool]:
    """Yield `Wait`."""
    is_set: bool = yield Wait(event, timeout_ms)
    return is_set


@overload
def call(function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> Operation[T]: ...


@overload
def call(function: Callable[..., T], *args: Any) -> Operation[T]: ...


def call(function: Callable[..., Any], *args: Any) -> Operation[Any]:
    """Yield `Call`."""
    result: Any = yield Call(function, args)
    return result

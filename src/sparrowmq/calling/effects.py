"""The effects an operation may yield. Pure.

An *operation* is a generator that yields effects and returns a result. It performs no I/O itself:
a driver (`async_driver`, `blocking_driver`) carries out each effect and sends its result back in.
Operations yield through the typed helpers at the end of this file:

    reply = yield from invoke(address, request, timeout_ms=3000)

Rules of this file:
- An effect is a value. Its result, or the error it may raise inside the operation, is in its
  docstring.
- Cancelling a task throws `Cancelled` into its operation at the effect it waits for. Clean-up
  that needs effects of its own is a separate operation, never a `yield` while closing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar, overload

import msgspec

from sparrowmq.errors import InvokeTimeout
from sparrowmq.protocol.command import RemotingCommand

T = TypeVar("T")

# How long the calls of one `CallEach` go on: handing calls to a thread and results back costs more
# than many a call, and its result may be reported so much later (benchmarks/against_apache.py).
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
        """Lower the flag."""
        self.is_set = False

    def add_waker(self, wake: Callable[[], None]) -> None:
        """Have `wake` called once at the next `set`. For drivers."""
        self._wakers.append(wake)

    def discard_waker(self, wake: Callable[[], None]) -> None:
        """Forget a waker, if it is still there. For drivers."""
        if wake in self._wakers:
            self._wakers.remove(wake)


class Invoke(NamedTuple):
    """Send a request and wait for its answer: a `RemotingCommand`, whatever its code.

    Raises: ConnectFailed, ConnectionLost, InvokeTimeout, TooManyInFlight.
    """

    address: str
    request: RemotingCommand
    timeout_ms: int


class Oneway(NamedTuple):
    """Write a one-way request; the result is None once it is handed to the connection.

    Raises: ConnectFailed, ConnectionLost, InvokeTimeout.
    """

    address: str
    request: RemotingCommand
    timeout_ms: int


class Sleep(NamedTuple):
    """Wait; the result is None."""

    duration_ms: int


class Now(NamedTuple):
    """The result is the monotonic time in milliseconds."""


class Timestamp(NamedTuple):
    """The result is the wall-clock time in milliseconds since 1970."""


class Spawn(NamedTuple):
    """Start an operation beside this one; the result is its `Task`.

    An error that nobody joins is logged by the driver.
    """

    operation: Operation[Any]
    name: str


class Join(NamedTuple):
    """Wait for a task's end; the result is its result, or its error is raised.

    Raises: InvokeTimeout if `timeout_ms` passes first; UsageError if the task was cancelled.
    """

    task: Task
    timeout_ms: int | None


class Cancel(NamedTuple):
    """Throw `Cancelled` into a task, unless it is done; the result is None, at once."""

    task: Task


class Wait(NamedTuple):
    """Wait until the event is set; the result is False if `timeout_ms` passed first."""

    event: Event
    timeout_ms: int | None


class Call(NamedTuple):
    """Call the user's code; the result is what it returns, and what it raises is raised.

    The blocking driver runs it in its pool of threads. The async driver awaits a coroutine
    function on its loop and runs a plain function in a thread.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]


class Returned(msgspec.Struct, frozen=True):
    """How a call of `CallEach` ended; a struct, made in half a named tuple's time.

    Args:
        call: what stood beside its arguments.
        value: what the function returned; None if it raised.
        error: what it raised.
        duration_ms: how long it took.
    """

    call: Any
    value: Any
    error: Exception | None
    duration_ms: int


class CallEach(NamedTuple):
    """Call the user's code, as `Call` does, with one after the other of several arguments.

    A call and its arguments are taken from the left of `waiting`, and how it ended is put to the
    right of `returned` at once; several tasks may share both. It goes on until nothing waits or
    the calls have taken `CALLS_MS` together. The result is None.

    When the task is cancelled, the call under way goes on, and none begins after it.
    """

    function: Callable[..., Any]
    waiting: deque[tuple[tuple[Any, ...], Any]]
    returned: deque[Returned]


Effect: TypeAlias = (
    Invoke | Oneway | Sleep | Now | Timestamp | Spawn | Join | Cancel | Wait | Call | CallEach
)
Operation: TypeAlias = Generator[Effect, Any, T]
# How a request of a server is answered: not at all, at once, or with what an operation returns.
Answer: TypeAlias = RemotingCommand | Operation[RemotingCommand] | None


def invoke(
    address: str, request: RemotingCommand, *, timeout_ms: int
) -> Operation[RemotingCommand]:
    """Yield `Invoke`."""
    reply: RemotingCommand = yield Invoke(address, request, timeout_ms)
    return reply


def oneway(address: str, request: RemotingCommand, *, timeout_ms: int) -> Operation[None]:
    """Yield `Oneway`."""
    yield Oneway(address, request, timeout_ms)


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
    """Run an operation as a task of its own and cancel it when its time is up.

    Raises: what the operation raises; InvokeTimeout after `timeout_ms`.
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

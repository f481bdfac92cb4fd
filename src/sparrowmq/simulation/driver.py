"""The third driver: operations under virtual time, on a simulated network.

The scheduler and the channels are those of the other drivers. The world's events step a process's
driver, while the process is neither frozen nor killed.

A function in `Call` or `CallEach` runs at once. If the function returns `Later`, the call lasts for
the given time, and `Later.finish` makes the result at the end.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec

from sparrowmq.calling.channel import (
    WRITE_BUFFER_BYTES_MAX,
    Channel,
    OnConnectionLost,
    OnFailure,
    OnRequest,
)
from sparrowmq.calling.channel_table import ChannelTable
from sparrowmq.calling.effects import (
    CALLS_MS,
    Call,
    CallEach,
    Event,
    Invoke,
    Operation,
    Outcome,
    Wait,
    WaitingCalls,
    drop_empty,
    try_invoke,
)
from sparrowmq.calling.scheduler import (
    NEVER_MS,
    Continuation,
    OperationTask,
    Scheduler,
    Waiter,
)
from sparrowmq.simulation.network import End, Network
from sparrowmq.simulation.process import Process
from sparrowmq.simulation.virtual_time import Timer

T = TypeVar("T")


class Later(NamedTuple):
    """The return value of a function whose call lasts in virtual time.

    Args:
        finish: called at the end of the call; returns or raises the call's result.
    """

    duration_ms: int
    finish: Callable[[], Any]


class _Calls(NamedTuple):
    """A `CallEach` under way, and the instant of its start."""

    effect: CallEach
    first_ms: int


class _Run(Continuation, kw_only=True):
    """An operation that a coroutine awaits; the coroutine runs in an operation too."""

    ended: Event = msgspec.field(default_factory=Event)
    result: Any = None
    error: BaseException | None = None

    def __await__(self) -> Operation[Any]:
        self.go_on()
        try:
            yield Wait(self.ended, None)
        except BaseException:
            self.cancel()
            raise
        if self.error is not None:
            raise self.error
        return self.result

    def end(self, result: Any, error: BaseException | None) -> None:
        """Wake the coroutine."""
        self.result, self.error = result, error
        self.ended.set()


class SimulatedDriver:
    """Runs the operations of one process.

    Args:
        network: the world's network.
        on_failure: called with the name and the error of a failed task, unless another joins it.
        on_request: answers the requests of servers.
        on_connection_lost: called with the address of each lost connection.
    """

    def __init__(
        self,
        process: Process,
        network: Network,
        *,
        on_failure: OnFailure,
        on_request: OnRequest | None = None,
        on_connection_lost: OnConnectionLost | None = None,
    ) -> None:
        self.monotonic_ms = process.monotonic_ms
        self.timestamp_ms = process.timestamp_ms
        self._process = process
        self._network = network
        self._on_failure = on_failure
        self._scheduler = Scheduler(
            monotonic_ms=process.monotonic_ms,
            timestamp_ms=process.timestamp_ms,
            carry=self._carry,
            drop=self._drop,
        )
        self._channels = ChannelTable(
            self._scheduler,
            self._dial,
            on_request=on_request,
            on_connection_lost=on_connection_lost,
            on_failure=on_failure,
        )
        self._timer: Timer | None = None
        self._timer_ms = NEVER_MS
        self._is_closed = False
        self._is_running = False

    def start(
        self, operation: Operation[Any], *, name: str, on_done: Callable[[Any], None] | None = None
    ) -> OperationTask:
        """Start an operation; it runs at once, or after the running ones.

        Args:
            on_done: called with the operation's result; an error goes to `on_failure`.
        """
        task = OperationTask(operation, name)
        task.on_done = partial(self._ended, task, on_done)
        self._scheduler.add(task)
        self.turn()
        return task

    def run(self, operation: Operation[T]) -> Awaitable[T]:
        """Run an operation as the other drivers do, for a coroutine in an operation of this one."""
        return _Run(self._scheduler, operation=operation, name="run")

    def ask(self, invoke: Invoke) -> Awaitable[Outcome]:
        """Send a request for such a coroutine."""
        return self.run(try_invoke(invoke))

    def close(self) -> None:
        """Cancel all tasks and close all connections."""
        self._is_closed = True
        scheduler = self._scheduler
        for task in scheduler.tasks:
            task.on_done = None
            scheduler.abort(task)
        self._channels.close()
        if self._timer is not None:
            self._timer.cancel()

    def turn(self) -> None:
        """Step tasks and send their bytes, until no task is ready and no bytes are left."""
        if self._is_running or self._is_closed:
            return
        self._is_running = True
        scheduler, channels = self._scheduler, self._channels
        while True:
            scheduler.run_ready()
            if not channels.unflushed:
                break
            for channel in channels.take_unflushed():
                channel.flush(scheduler)
        self._is_running = False
        due_ms = scheduler.next_deadline_ms()
        # An operation may have closed this driver.
        if due_ms < self._timer_ms and not self._is_closed:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_ms = due_ms
            delay_ms = max(0, due_ms - self._process.monotonic_ms())
            self._timer = self._process.call_in(delay_ms, self._expire)

    def _ended(self, task: OperationTask, on_done: Callable[[Any], None] | None) -> None:
        if task.error is not None:
            self._on_failure(task.name, task.error)
        elif on_done is not None:
            on_done(task.outcome())

    def _expire(self) -> None:
        if self._is_closed:
            return
        self._timer = None
        self._timer_ms = NEVER_MS
        for timed in self._scheduler.expire(self._process.monotonic_ms()):
            self._channels.expire(timed)
        self.turn()

    # --- effects ----------------------------------------------------------------------------

    def _carry(self, task: OperationTask, effect: Call | CallEach) -> None:
        if isinstance(effect, Call):
            self._call(task, effect)
        else:
            task.place = run = _Calls(effect, self._process.monotonic_ms())
            self._call_next(task, run)

    def _dial(self, channel: Channel) -> None:
        self._network.dial(
            self._process,
            channel.address,
            opened=partial(self._opened, channel),
            failed=partial(self._dial_failed, channel),
        )

    def _drop(self, task: Waiter, place: Any) -> None:
        if isinstance(place, Channel):
            place.forget(task)

    def _call(self, task: OperationTask, effect: Call) -> None:
        try:
            result = effect.function(*effect.args)
        except Exception as error:
            self._scheduler.throw(task, error)
            return
        if isinstance(result, Later):
            task.place = ticket = object()
            end = partial(self._end_call, task, ticket, result.finish)
            self._process.call_in(result.duration_ms, end)
        else:
            self._scheduler.resume(task, result)

    def _end_call(self, task: OperationTask, ticket: object, finish: Callable[[], Any]) -> None:
        # The user's code comes to its end whether or not anybody waits for it.
        result: Any = None
        failure: Exception | None = None
        try:
            result = finish()
        except Exception as error:
            failure = error
        self._scheduler.end_call(task, ticket, result, failure)
        self.turn()

    def _call_next(self, task: OperationTask, run: _Calls) -> None:
        """Make the calls of a `CallEach` up to the first that returns `Later`."""
        effect, first_ms = run
        while effect.waiting and self._process.monotonic_ms() - first_ms < CALLS_MS:
            calls: WaitingCalls = effect.waiting[0]
            call = calls.begin()
            if call is None:
                drop_empty(effect.waiting, calls)
                continue
            at, arguments = call
            result: Any = None
            failure: Exception | None = None
            try:
                result = effect.function(*arguments)
            except Exception as error:
                failure = error
            end = partial(calls.end, at, arguments)
            if isinstance(result, Later):
                later = partial(self._end_one, task, run, end, result)
                self._process.call_in(result.duration_ms, later)
                return
            end(result, failure, 0)
        self._scheduler.end_call(task, run, None, None)

    def _end_one(
        self, task: OperationTask, run: _Calls, end: Callable[..., None], later: Later
    ) -> None:
        # The user's code comes to its end whether or not anybody waits for it.
        value: Any = None
        failure: Exception | None = None
        try:
            value = later.finish()
        except Exception as error:
            failure = error
        end(value, failure, later.duration_ms)
        if task.place is run:
            self._call_next(task, run)
        self.turn()

    # --- connections ------------------------------------------------------------------------

    def _opened(self, channel: Channel, end: End) -> None:
        if channel.is_closed:
            end.close()
            return
        end.on_data = partial(self._received, channel)
        end.on_closed = partial(self._closed, channel)
        self._scheduler.read_clock()
        channel.opened(_Wire(end), self._scheduler)
        self.turn()

    def _dial_failed(self, channel: Channel, reason: str) -> None:
        self._channels.lose(channel, reason, None)
        self.turn()

    def _received(self, channel: Channel, data: bytes) -> None:
        if channel.is_closed:
            return
        self._scheduler.read_clock()
        self._channels.received(channel, data)
        self.turn()

    def _closed(self, channel: Channel, reason: str) -> None:
        self._channels.lose(channel, reason, None)
        self.turn()


class _Wire:
    """A channel's bytes on a simulated connection."""

    __slots__ = ("_end", "_unsent")

    def __init__(self, end: End) -> None:
        self._end = end
        self._unsent: list[bytes] = []

    @property
    def room(self) -> int:
        """The whole bound: the simulated kernel accepts every write."""
        return WRITE_BUFFER_BYTES_MAX

    def write(self, frames: Sequence[bytes]) -> None:
        """Take frames for the next `flush`."""
        self._unsent += frames

    def flush(self) -> bool:
        """Send everything."""
        unsent, self._unsent = self._unsent, []
        self._end.send(b"".join(unsent))
        return True

    def close(self) -> None:
        """Close the connection."""
        self._end.close()

"""Steps operations, and keeps what each operation waits for and until when. No I/O of its own.

A driver owns one scheduler. The scheduler carries out the effects that concern tasks and time
(`Sleep, Now, Timestamp, Spawn, Join, Cancel, Wait`) and hands those that concern the world
(`Invoke, Oneway, Call, CallEach`) to its driver, which later calls `resume` or `throw`.

Rules of this file:
- A task has one of four states: ready (once in `ready`), running, waiting (for `effect`), or done.
  The code that ends a wait clears `effect` and makes the task ready. No task is stepped from within
  a step, however deep the calls.
- Everything with a deadline (`Timed`) has at most one entry in the heap. A deadline that moves
  later leaves the entry in its place; when the entry comes up, it is put back. A task that invokes
  thousands of times with a time-out of seconds therefore touches the heap about once in that time.
- A request's deadline stands in a line of all requests with its time-out, which end in the order in
  which they began. A line has one entry in the heap.
- One thread at a time. Errors of operations do not leave a step, except those that are not
  `Exception`s (`KeyboardInterrupt`): they end the task and reach the driver's caller.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Any, Protocol, TypeAlias

import msgspec

from sparrowmq.calling.effects import (
    Call,
    CallEach,
    Cancel,
    Cancelled,
    Effect,
    Invoke,
    Join,
    Now,
    Oneway,
    Operation,
    Sleep,
    Spawn,
    Timestamp,
    Wait,
)
from sparrowmq.errors import (
    ConnectFailed,
    ConnectionLost,
    InvokeTimeout,
    SparrowError,
    UsageError,
)

# A deadline that never comes; the largest that every platform's clock stays below.
NEVER_MS = 2**63 - 1

# An error of a task that nobody has joined for this long is reported as lost.
UNJOINED_ERROR_MS = 1_000

# Why requests fail when Ctrl-C comes amid the work of the thread that serves them.
INTERRUPTED = "a call was interrupted"

# The heap is rebuilt when it has doubled since it last held only live entries, plus this many.
HEAP_SLACK = 256

_REQUESTS = (Invoke, Oneway)
_CALLS = (Call, CallEach)

# What `_begin` returns for a wait; the driver must carry out the effect of the second.
_PENDING: Any = object()
_CARRIED: Any = object()


class Timed(Protocol):
    """An object with a deadline: a task or a connection."""

    deadline_ms: int
    timer_ms: int  # When its entry in the heap comes up; NEVER_MS if it has none.


class OperationTask(msgspec.Struct, eq=False):
    """An operation under way: the `effects.Task` of every driver.

    A struct is made in half the time of a class with slots; a send makes one.

    Args:
        operation: the generator, not yet started.
        name: the task's name in logs.
        place: the driver's place of the wait: a connection or a call.
        joined: whether the error, if any, is taken by a caller.
        context: the context variables of whoever began it, for the calls of users' code; None where
            threads make these, which have their own.
    """

    operation: Operation[Any]
    name: str
    joined: bool = False
    context: Context | None = None
    done: bool = False
    effect: Effect | None = None
    place: Any = None
    value: Any = None
    thrown: BaseException | None = None
    deadline_ms: int = NEVER_MS
    timer_ms: int = NEVER_MS
    waker: Callable[[], None] | None = None
    joiners: list[OperationTask] = []
    on_done: Callable[[], None] | None = None
    result: Any = None
    error: BaseException | None = None

    def __repr__(self) -> str:
        return f"<task {self.name} {'done' if self.done else self.effect or 'ready'}>"

    @property
    def is_unjoined(self) -> bool:
        """Whether the operation failed and its error was not taken."""
        return isinstance(self.error, Exception) and not self.joined

    def outcome(self) -> Any:
        """Return the operation's result, or raise its error; the task is done."""
        self.joined = True
        if self.error is None:
            return self.result
        if isinstance(self.error, Cancelled):
            raise UsageError(f"task {self.name} was cancelled") from self.error
        raise self.error


class Asking(msgspec.Struct, eq=False):
    """A wait for the answer to an `Invoke`, without a task."""

    scheduler: Scheduler
    effect: Invoke | None = None
    place: Any = None
    deadline_ms: int = NEVER_MS

    def ask(self, effect: Invoke) -> None:
        """Begin to wait."""
        self.effect, self.place = effect, None
        self.scheduler.set_time_out(self, effect.timeout_ms)
        self.scheduler.submit(self, effect)

    def go_on(self, value: Any = None, thrown: BaseException | None = None) -> None:
        """Take the answer, or why there is none."""
        raise NotImplementedError

    def cancel(self) -> None:
        """Wait no longer."""
        if self.effect is not None:
            self.scheduler.drop(self, self.place)
            self.effect = None
            self.deadline_ms = NEVER_MS


class Continuation(Asking, kw_only=True):
    """An operation without a task: stepped in place while it asks for clocks and answers alone.

    Most operations ask for no more. A step then costs half of a task's. At any other effect a task
    takes over. Each driver has its own kind, which tells the caller the end.
    """

    operation: Operation[Any]
    name: str
    context: Context | None = None
    task: OperationTask | None = None

    def go_on(self, value: Any = None, thrown: BaseException | None = None) -> None:
        """Step the operation with an answer or an error until it waits again or ends."""
        scheduler = self.scheduler
        try:
            if scheduler.is_stopped:
                scheduler.advance(self.operation, None, Cancelled())
                self.operation.close()
                raise Cancelled
            effect = scheduler.advance(self.operation, value, thrown)
        except StopIteration as stop:
            self.end(stop.value, None)
        except BaseException as error:
            _cut_traceback(error)
            self.end(None, error)
            if not isinstance(error, Exception | Cancelled):
                raise
        else:
            if type(effect) is Invoke:
                self.ask(effect)
            else:
                self.task = OperationTask(
                    self.operation, self.name, joined=True, context=self.context
                )
                self.task.on_done = self._take_end
                scheduler.adopt(self.task, effect)
        finally:
            thrown = None

    def cancel(self) -> None:
        """Throw `Cancelled` into the operation soon; a task of its own ends it."""
        scheduler, task = self.scheduler, self.task
        if task is not None:
            task.on_done = None
            task.joined = False  # Its later errors are logged.
            scheduler.cancel(task)
        elif self.effect is not None:
            Asking.cancel(self)
            task = OperationTask(
                self.operation, self.name, thrown=Cancelled(), context=self.context
            )
            scheduler.add(task)

    def end(self, result: Any, error: BaseException | None) -> None:
        """Tell the caller the end of the operation."""
        raise NotImplementedError

    def _take_end(self) -> None:
        assert self.task is not None
        self.end(self.task.result, self.task.error)


Waiter: TypeAlias = OperationTask | Asking
Carry: TypeAlias = Callable[[OperationTask, Call | CallEach], None]
Submit: TypeAlias = Callable[[Waiter, Invoke | Oneway], None]
Drop: TypeAlias = Callable[[Waiter, Any], None]


class _Line(msgspec.Struct, eq=False):
    """The deadlines of requests with one time-out, the first first, and who waits."""

    timeout_ms: int
    waits: deque[tuple[int, Waiter]]
    deadline_ms: int = NEVER_MS
    timer_ms: int = NEVER_MS


class Scheduler:
    """The tasks of one driver.

    Args:
        monotonic_ms: reads the clock that deadlines are measured on.
        timestamp_ms: reads the wall clock.
        carry: begins to carry out a `Call` or `CallEach` of a task, which waits from now on.
        drop: forgets the effect of a cancelled operation; takes its former `place`.
        on_ready: called when a task becomes ready while `run_ready` does not run.
    """

    def __init__(
        self,
        *,
        monotonic_ms: Callable[[], int],
        timestamp_ms: Callable[[], int],
        carry: Carry,
        drop: Drop,
        on_ready: Callable[[], None] | None = None,
    ) -> None:
        self.ready: deque[OperationTask] = deque()
        self.now_ms = monotonic_ms()
        self._monotonic_ms = monotonic_ms
        self._timestamp_ms = timestamp_ms
        self._carry_call = carry
        self.drop = drop
        self._on_ready = on_ready
        # Begins to carry out an `Invoke` or `Oneway`; the table of connections sets it.
        self.submit: Submit = _submit_nowhere
        # Whether all operations must end: a continuation that goes on is cancelled.
        self.is_stopped = False
        self._tasks: dict[OperationTask, None] = {}
        self._dropped: list[tuple[OperationTask, Any]] = []
        self._lines: dict[int, _Line] = {}
        self._heap: list[tuple[int, int, Timed]] = []
        self._heap_entries_max = HEAP_SLACK
        self._entry_count = 0

    @property
    def tasks(self) -> tuple[OperationTask, ...]:
        """The tasks that are not done, the oldest first."""
        return tuple(self._tasks)

    def add(self, task: OperationTask) -> None:
        """Add a new task, which is ready."""
        self._tasks[task] = None
        self._make_ready(task)

    def adopt(self, task: OperationTask, effect: Effect) -> None:
        """Add a task whose operation has begun and has yielded an effect."""
        self._tasks[task] = None
        try:
            task.value = self._begin(task, effect)
        except SparrowError as error:
            task.thrown = error
        if task.value is _CARRIED:
            task.value = None
            self._carry(task, effect)
        elif task.value is _PENDING:
            task.value = None
        else:
            # Before the operations that it has spawned.
            self.ready.appendleft(task)
            if self._on_ready is not None:
                self._on_ready()

    def resume(self, task: Waiter, value: Any) -> None:
        """End a wait with a result; do nothing if the wait has ended already."""
        if isinstance(task, Asking):
            if task.effect is not None:
                task.effect = None
                task.deadline_ms = NEVER_MS
                task.go_on(value)
        elif task.effect is not None:
            task.value = value
            self._end_wait(task)

    def throw(self, task: Waiter, error: BaseException) -> None:
        """End a wait with an error; do nothing if the wait has ended already."""
        if isinstance(task, Asking):
            if task.effect is not None:
                task.effect = None
                task.deadline_ms = NEVER_MS
                task.go_on(None, error)
        elif task.effect is not None:
            task.thrown = error
            self._end_wait(task)

    def cancel(self, task: OperationTask) -> None:
        """Throw `Cancelled` into a task at its wait; do nothing if the task is done."""
        if task.done:
            return
        task.value = None
        task.thrown = Cancelled()
        effect = task.effect
        if effect is None:  # Ready or running: it finds the error at its next step.
            return
        self._release(task, effect)
        self._end_wait(task)

    def abort(self, task: OperationTask) -> None:
        """End a task by force, if it goes on after `Cancelled` although all tasks must end."""
        if task.done:
            return
        if task.effect is not None:
            self._release(task, task.effect)
            task.effect = None
        failure: BaseException = Cancelled()
        try:
            task.operation.close()
        except Exception as error:
            failure = error
        self._finish(task, None, failure)

    def end_cut_off(self, waiter: Waiter) -> None:
        """End a wait that an interrupt has cut off between two steps, if it is one.

        Its request is in no connection, or the way on from its last wait was lost.
        """
        effect = waiter.effect
        if effect is not None:
            if isinstance(effect, _REQUESTS) and waiter.place is None:
                message = f"{effect.address}: {INTERRUPTED}, and the request was not sent"
                self.throw(waiter, ConnectFailed(message, address=effect.address))
        elif isinstance(waiter, OperationTask):
            if not waiter.done and waiter not in self.ready:
                waiter.thrown = waiter.thrown or ConnectionLost(INTERRUPTED)
                self._end_wait(waiter)
        elif not isinstance(waiter, Continuation) or waiter.task is None:
            waiter.go_on(None, ConnectionLost(INTERRUPTED))
        elif waiter.task.done:
            waiter.end(waiter.task.result, waiter.task.error)

    def end_call(
        self, task: OperationTask, ticket: object, result: Any, error: BaseException | None
    ) -> None:
        """End the `Call` of a task with this `place`; do nothing if the call was cancelled."""
        if task.place is not ticket:
            return
        if error is None:
            self.resume(task, result)
        elif isinstance(error, Exception):
            self.throw(task, error)
        else:
            # SystemExit and the like of the user's code must not end the driver of all operations.
            failure = UsageError(f"the function raised {error!r}")
            failure.__cause__ = error
            self.throw(task, failure)

    def stop(self) -> None:
        """End every task: cancel it, and abort it if it goes on after that.

        The continuations end with their connections.
        """
        self.is_stopped = True
        for task in self.tasks:
            self.cancel(task)
        self.run_ready()
        for task in self.tasks:
            self.abort(task)

    def run_ready(self) -> None:
        """Step ready tasks until none is ready."""
        ready = self.ready
        dropped = self._dropped
        while True:
            while dropped:
                self.drop(*dropped.pop())
            if not ready:
                return
            task = ready.popleft()
            if not task.done:
                effect = self._step(task)
                if effect is None:
                    continue
                if self.is_stopped:
                    self.abort(task)
                else:
                    self._carry(task, effect)

    def read_clock(self) -> int:
        """Read the monotonic clock and keep the time as `now_ms`."""
        self.now_ms = now_ms = self._monotonic_ms()
        return now_ms

    def set_deadline(self, timed: Timed, deadline_ms: int) -> None:
        """Replace the deadline of a task or a connection."""
        timed.deadline_ms = deadline_ms
        if deadline_ms < timed.timer_ms:
            self._push(timed, deadline_ms)

    def set_time_out(self, task: Waiter, timeout_ms: int) -> None:
        """Set the deadline of a request.

        Requests with the same time-out end in the order in which they began, unless they are
        answered: a line of them has one entry in the heap.
        """
        self.now_ms = now_ms = self._monotonic_ms()
        task.deadline_ms = deadline_ms = now_ms + timeout_ms
        line = self._lines.get(timeout_ms)
        if line is None:
            line = self._lines[timeout_ms] = _Line(timeout_ms, deque())
            self.set_deadline(line, deadline_ms)
        waits = line.waits
        while waits:
            first_ms, first = waits[0]
            if first.deadline_ms == first_ms:
                break
            waits.popleft()
        waits.append((deadline_ms, task))

    def next_deadline_ms(self) -> int:
        """Return when `expire` must be called next, or a little earlier; perhaps `NEVER_MS`."""
        return self._heap[0][0] if self._heap else NEVER_MS

    def expire(self, now_ms: int) -> list[Timed | Waiter]:
        """End the waits whose deadline has come.

        Returns: the tasks and connections for the driver to handle. A task that waits for an
            `Invoke` or `Oneway` must get an error; a failed task that was not joined must be
            reported; a connection's deadline has come.
        """
        self.now_ms = now_ms
        due: list[Timed | Waiter] = []
        while self._heap and self._heap[0][0] <= now_ms:
            timer_ms, _, timed = heappop(self._heap)
            if timed.timer_ms != timer_ms:
                continue  # An earlier deadline was set later and has its own entry.
            timed.timer_ms = NEVER_MS
            if isinstance(timed, OperationTask) and isinstance(timed.effect, Invoke | Oneway):
                continue  # Its line watches it.
            if timed.deadline_ms > now_ms:
                if timed.deadline_ms != NEVER_MS:
                    self._push(timed, timed.deadline_ms)
            elif isinstance(timed, _Line):
                due.extend(self._expire_line(timed))
            elif not isinstance(timed, OperationTask):
                due.append(timed)
            else:
                due.extend(self._expire_task(timed))
        return due

    def _expire_line(self, line: _Line) -> list[Waiter]:
        due: list[Waiter] = []
        waits = line.waits
        while waits:
            deadline_ms, task = waits[0]
            if task.deadline_ms == deadline_ms and isinstance(task.effect, Invoke | Oneway):
                if deadline_ms > self.now_ms:
                    self.set_deadline(line, deadline_ms)
                    return due
                # The line may have the same wait twice, if a request was answered at once.
                task.deadline_ms = NEVER_MS
                due.append(task)
            waits.popleft()
        del self._lines[line.timeout_ms]
        return due

    def _expire_task(self, task: OperationTask) -> Iterable[OperationTask]:
        effect = task.effect
        if task.done:
            task.deadline_ms = NEVER_MS
            return (task,) if task.is_unjoined else ()
        if isinstance(effect, Sleep):
            self.resume(task, None)
        elif isinstance(effect, Wait):
            self._release(task, effect)
            self.resume(task, False)
        elif isinstance(effect, Join):
            self._release(task, effect)
            message = f"task {effect.task.name} did not end within {effect.timeout_ms} ms"
            self.throw(task, InvokeTimeout(message))
        return ()

    def unjoined(self) -> list[OperationTask]:
        """Return the failed tasks that were neither joined nor reported yet."""
        found = (entry[2] for entry in self._heap)
        return [task for task in found if isinstance(task, OperationTask) and task.is_unjoined]

    def _carry(self, task: OperationTask, effect: Effect) -> None:
        if isinstance(effect, _REQUESTS):
            self.submit(task, effect)
        else:
            assert isinstance(effect, _CALLS)
            self._carry_call(task, effect)

    def _make_ready(self, task: OperationTask) -> None:
        self.ready.append(task)
        if self._on_ready is not None:
            self._on_ready()

    def _end_wait(self, task: OperationTask) -> None:
        task.effect = None
        task.place = None
        task.deadline_ms = NEVER_MS
        self._make_ready(task)

    def _release(self, task: OperationTask, effect: Effect) -> None:
        """Remove the traces of an ended wait: its waker, its joiner, or its place at the driver."""
        if isinstance(effect, Wait):
            if task.waker is not None:
                effect.event.discard_waker(task.waker)
                task.waker = None
        elif isinstance(effect, Join):
            target = effect.task
            assert isinstance(target, OperationTask)
            # Ctrl-C may have come amid the end of the target.
            if task in target.joiners:
                target.joiners.remove(task)
        elif isinstance(effect, Invoke | Oneway | Call | CallEach):
            self._dropped.append((task, task.place))

    def advance(
        self, operation: Operation[Any], value: Any = None, thrown: BaseException | None = None
    ) -> Effect:
        """Step an operation up to its next effect beside the clocks.

        Raises: StopIteration with the operation's result; the operation's errors.
        """
        effect = operation.send(value) if thrown is None else operation.throw(thrown)
        while True:
            # `isinstance` would cost as much as all other steps.
            kind = type(effect)
            if kind is Now:
                effect = operation.send(self.read_clock())
            elif kind is Timestamp:
                effect = operation.send(self._timestamp_ms())
            else:
                return effect

    def _step(self, task: OperationTask) -> Effect | None:
        """Run a task up to its next wait; return the effect if the driver must carry it out."""
        value, task.value = task.value, None
        thrown, task.thrown = task.thrown, None
        try:
            while True:
                effect = self.advance(task.operation, value, thrown)
                value = thrown = None
                try:
                    value = self._begin(task, effect)
                except SparrowError as error:
                    thrown = error
                if value is _PENDING:
                    return None
                if value is _CARRIED:
                    return effect
                if task.thrown is not None:
                    thrown, task.thrown = task.thrown, None
        except StopIteration as stop:
            self._finish(task, stop.value, None)
        except BaseException as error:
            # The frames of the steps would make a cycle of the error, the task and its operation.
            _cut_traceback(error)
            self._finish(task, None, error)
            if not isinstance(error, Exception | Cancelled):
                raise
        finally:
            thrown = None
        return None

    def _begin(self, task: OperationTask, effect: Effect) -> Any:
        """Return an effect's result, or that the task waits: `_PENDING`, or `_CARRIED`."""
        # `X | Y` makes an object at each call.
        if isinstance(effect, _REQUESTS):
            task.effect = effect
            self.set_time_out(task, effect.timeout_ms)
            return _CARRIED
        if isinstance(effect, _CALLS):
            task.effect = effect
            return _CARRIED
        if isinstance(effect, Sleep):
            task.effect = effect
            self.set_deadline(task, self.read_clock() + effect.duration_ms)
            return _PENDING
        if isinstance(effect, Wait):
            return self._begin_wait(task, effect)
        if isinstance(effect, Spawn):
            spawned = OperationTask(effect.operation, effect.name, context=task.context)
            self.add(spawned)
            return spawned
        if isinstance(effect, Join):
            return self._begin_join(task, effect)
        if isinstance(effect, Cancel):
            target = effect.task
            if not isinstance(target, OperationTask):
                raise UsageError(f"{target!r} is not a task of this driver")
            self.cancel(target)
            return None
        raise UsageError(f"{effect!r} is not an effect; yield one by the functions of effects")

    def _begin_wait(self, task: OperationTask, effect: Wait) -> Any:
        if effect.event.is_set:
            return True
        task.effect = effect
        task.waker = partial(self._wake, task)
        effect.event.add_waker(task.waker)
        if effect.timeout_ms is not None:
            self.set_deadline(task, self.read_clock() + effect.timeout_ms)
        return _PENDING

    def _wake(self, task: OperationTask) -> None:
        task.waker = None
        self.resume(task, True)

    def _begin_join(self, task: OperationTask, effect: Join) -> Any:
        target = effect.task
        if not isinstance(target, OperationTask):
            raise UsageError(f"{target!r} is not a task of this driver")
        if target is task:
            raise UsageError(f"task {task.name} joins itself and would wait forever")
        if target.done:
            self._hand_outcome(task, target)
            value, task.value = task.value, None
            return value
        task.effect = effect
        target.joiners.append(task)
        if effect.timeout_ms is not None:
            self.set_deadline(task, self.read_clock() + effect.timeout_ms)
        return _PENDING

    def _hand_outcome(self, joiner: OperationTask, target: OperationTask) -> None:
        try:
            joiner.value = target.outcome()
        except BaseException as error:
            joiner.thrown = error

    def _finish(self, task: OperationTask, result: Any, error: BaseException | None) -> None:
        task.done = True
        task.result, task.error = result, error
        task.deadline_ms = NEVER_MS
        self._tasks.pop(task, None)
        if task.joiners:
            joiners, task.joiners = task.joiners, []
            for joiner in joiners:
                self._hand_outcome(joiner, task)
                self._end_wait(joiner)
        if task.on_done is not None:
            task.joined = True
            task.on_done()
        elif task.is_unjoined:
            self.set_deadline(task, self.read_clock() + UNJOINED_ERROR_MS)

    def _push(self, timed: Timed, deadline_ms: int) -> None:
        if len(self._heap) >= self._heap_entries_max:
            self._rebuild_heap()
        timed.timer_ms = deadline_ms
        self._entry_count += 1
        heappush(self._heap, (deadline_ms, self._entry_count, timed))

    def _rebuild_heap(self) -> None:
        """Rebuild the heap without entries that are out of date."""
        kept = []
        for entry in self._heap:
            timer_ms, _, timed = entry
            if timed.timer_ms != timer_ms:
                continue
            if timed.deadline_ms == NEVER_MS:
                timed.timer_ms = NEVER_MS
            else:
                kept.append(entry)
        heapify(kept)
        self._heap = kept
        self._heap_entries_max = 2 * len(kept) + HEAP_SLACK


def _cut_traceback(error: BaseException) -> None:
    trace = error.__traceback__
    for _ in range(2):
        trace = trace and trace.tb_next
    error.with_traceback(trace)


def _submit_nowhere(_waiter: Waiter, effect: Invoke | Oneway) -> None:
    raise AssertionError(f"no connections for {effect!r}")

"""Steps operations, and keeps what each operation waits for and until when. No I/O of its own.

A driver owns one scheduler. The scheduler carries out the effects that concern tasks and time
(`Sleep, Now, Timestamp, Spawn, Join, Cancel, Wait`) and hands those that concern the world
(`Invoke, Oneway, Call, CallEach`) to its driver, which later calls `resume` or `throw` for the
task.

Rules of this file:
- A task has one of four states: ready (once in `ready`), running, waiting (for `effect`), or done.
  The code that ends a wait clears `effect` and makes the task ready. No task is stepped from within
  a step, however deep the calls.
- Everything with a deadline (`Timed`) has at most one entry in the heap. A deadline that moves
  later leaves the entry in its place; when the entry comes up, it is put back. A task that invokes
  thousands of times with a time-out of seconds therefore touches the heap about once in that time.
- One thread at a time. Errors of operations do not leave a step, except those that are not
  `Exception`s (`KeyboardInterrupt`): they end the task and reach the driver's caller.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Any, Protocol

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
from sparrowmq.errors import InvokeTimeout, SparrowError, UsageError

# A deadline that never comes; the largest that every platform's clock stays below.
NEVER_MS = 2**63 - 1

# An error of a task that nobody has joined for this long is reported as lost.
UNJOINED_ERROR_MS = 1_000

# The heap is rebuilt when it has doubled since it last held only live entries, plus this many.
HEAP_SLACK = 256

_PENDING: Any = object()


class Timed(Protocol):
    """An object with a deadline: a task or a connection."""

    deadline_ms: int
    timer_ms: int  # When its entry in the heap comes up; NEVER_MS if it has none.


class OperationTask:
    """An operation under way: the `effects.Task` of every driver.

    Args:
        operation: the generator, not yet started.
        name: the task's name in logs.
    """

    __slots__ = (
        "_error",
        "_result",
        "deadline_ms",
        "done",
        "effect",
        "joined",
        "joiners",
        "name",
        "on_done",
        "operation",
        "place",
        "thrown",
        "timer_ms",
        "value",
        "waker",
    )

    def __init__(self, operation: Operation[Any], name: str) -> None:
        self.operation = operation
        self.name = name
        self.done = False
        self.effect: Effect | None = None
        # The driver's place of the wait: a connection or a call.
        self.place: Any = None
        self.value: Any = None
        self.thrown: BaseException | None = None
        self.deadline_ms = NEVER_MS
        self.timer_ms = NEVER_MS
        self.waker: Callable[[], None] | None = None
        self.joiners: list[OperationTask] = []
        self.joined = False
        self.on_done: Callable[[], None] | None = None
        self._result: Any = None
        self._error: BaseException | None = None

    def __repr__(self) -> str:
        return f"<task {self.name} {'done' if self.done else self.effect or 'ready'}>"

    @property
    def error(self) -> BaseException | None:
        """The error of a done operation, None for a result."""
        return self._error

    @property
    def is_unjoined(self) -> bool:
        """Whether the operation failed and its error was not taken."""
        return isinstance(self._error, Exception) and not self.joined

    def outcome(self) -> Any:
        """Return the operation's result, or raise its error; the task is done."""
        self.joined = True
        if self._error is None:
            return self._result
        if isinstance(self._error, Cancelled):
            raise UsageError(f"task {self.name} was cancelled") from self._error
        raise self._error

    def end(self, result: Any, error: BaseException | None) -> None:
        """Record the result or the error of the operation."""
        self.done = True
        self._result = result
        self._error = error


class Scheduler:
    """The tasks of one driver.

    Args:
        monotonic_ms: reads the clock that deadlines are measured on.
        timestamp_ms: reads the wall clock.
        on_ready: called when a task becomes ready while `run_ready` does not run.
    """

    def __init__(
        self,
        *,
        monotonic_ms: Callable[[], int],
        timestamp_ms: Callable[[], int],
        on_ready: Callable[[], None] | None = None,
    ) -> None:
        self.ready: deque[OperationTask] = deque()
        self.now_ms = monotonic_ms()
        self._monotonic_ms = monotonic_ms
        self._timestamp_ms = timestamp_ms
        self._on_ready = on_ready
        self._tasks: dict[OperationTask, None] = {}
        self._dropped: list[tuple[OperationTask, Any]] = []
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

    def resume(self, task: OperationTask, value: Any) -> None:
        """End a task's wait with a result; do nothing if the wait has ended already."""
        if task.effect is not None:
            task.value = value
            self._end_wait(task)

    def throw(self, task: OperationTask, error: BaseException) -> None:
        """End a task's wait with an error; do nothing if the wait has ended already."""
        if task.effect is not None:
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

    def stop(self, drop: Callable[[OperationTask, Any], None]) -> None:
        """End every task: cancel it, and abort it if it goes on after that.

        Args:
            drop: the function of `run_ready`.
        """
        for task in self.tasks:
            self.cancel(task)
        self.run_ready(lambda task, _: self.abort(task), drop)
        for task in self.tasks:
            self.abort(task)

    def run_ready(
        self,
        carry: Callable[[OperationTask, Effect], None],
        drop: Callable[[OperationTask, Any], None],
    ) -> None:
        """Step ready tasks until none is ready.

        Args:
            carry: begins to carry out an `Invoke`, `Oneway`, `Call` or `CallEach` of a task, which
                waits from now on.
            drop: forgets the effect of a cancelled task; takes the task and its former `place`.
        """
        ready = self.ready
        dropped = self._dropped
        while True:
            while dropped:
                drop(*dropped.pop())
            if not ready:
                return
            task = ready.popleft()
            if not task.done:
                effect = self._step(task)
                if effect is not None:
                    carry(task, effect)

    def read_clock(self) -> int:
        """Read the monotonic clock and keep the time as `now_ms`."""
        self.now_ms = now_ms = self._monotonic_ms()
        return now_ms

    def set_deadline(self, timed: Timed, deadline_ms: int) -> None:
        """Replace the deadline of a task or a connection."""
        timed.deadline_ms = deadline_ms
        if deadline_ms < timed.timer_ms:
            self._push(timed, deadline_ms)

    def next_deadline_ms(self) -> int:
        """Return when `expire` must be called next, or a little earlier; perhaps `NEVER_MS`."""
        return self._heap[0][0] if self._heap else NEVER_MS

    def expire(self, now_ms: int) -> list[Timed]:
        """End the waits whose deadline has come.

        Returns: the tasks and connections for the driver to handle. A task that waits for an
            `Invoke` or `Oneway` must get an error; a failed task that was not joined must be
            reported; a connection's deadline has come.
        """
        self.now_ms = now_ms
        due: list[Timed] = []
        while self._heap and self._heap[0][0] <= now_ms:
            timer_ms, _, timed = heappop(self._heap)
            if timed.timer_ms != timer_ms:
                continue  # An earlier deadline was set later and has its own entry.
            timed.timer_ms = NEVER_MS
            if timed.deadline_ms > now_ms:
                if timed.deadline_ms != NEVER_MS:
                    self._push(timed, timed.deadline_ms)
            elif not isinstance(timed, OperationTask):
                due.append(timed)
            else:
                due.extend(self.expire_task(timed))
        return due

    def expire_task(self, task: OperationTask) -> Iterable[OperationTask]:
        """End the wait of one task whose deadline has come, or return it, as `expire` does."""
        effect = task.effect
        if task.done:
            task.deadline_ms = NEVER_MS
            return (task,) if task.is_unjoined else ()
        if isinstance(effect, Invoke | Oneway):
            return (task,)
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
            target.joiners.remove(task)
        elif isinstance(effect, Invoke | Oneway | Call | CallEach):
            self._dropped.append((task, task.place))

    def _step(self, task: OperationTask) -> Effect | None:
        """Run a task up to its next wait; return the effect if the driver must carry it out."""
        operation = task.operation
        try:
            while True:
                if task.thrown is None:
                    value, task.value = task.value, None
                    effect = operation.send(value)
                else:
                    thrown, task.thrown = task.thrown, None
                    try:
                        effect = operation.throw(thrown)
                    finally:
                        del thrown
                kind = type(effect)
                if kind is Invoke or kind is Oneway:
                    task.effect = effect
                    # `isinstance` would convince the type checker, but cost as much as all other
                    # steps.
                    timeout_ms: int = effect.timeout_ms  # type: ignore[union-attr, assignment]
                    self.set_deadline(task, self.read_clock() + timeout_ms)
                    return effect
                if kind is Call or kind is CallEach:
                    task.effect = effect
                    return effect
                try:
                    task.value = self._begin(task, effect)
                except SparrowError as error:
                    task.thrown = error
                    continue
                if task.value is _PENDING:
                    task.value = None
                    return None
        except StopIteration as stop:
            self._finish(task, stop.value, None)
        except BaseException as error:
            # The frame of this method would make a cycle of the error, the task and its operation.
            error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)
            self._finish(task, None, error)
            if not isinstance(error, Exception | Cancelled):
                raise
        return None

    def _begin(self, task: OperationTask, effect: Effect) -> Any:
        """Return an effect's result, or `_PENDING` if the task waits for the effect."""
        if isinstance(effect, Now):
            return self.read_clock()
        if isinstance(effect, Timestamp):
            return self._timestamp_ms()
        if isinstance(effect, Sleep):
            task.effect = effect
            self.set_deadline(task, self.read_clock() + effect.duration_ms)
            return _PENDING
        if isinstance(effect, Wait):
            return self._begin_wait(task, effect)
        if isinstance(effect, Spawn):
            spawned = OperationTask(effect.operation, effect.name)
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
            return task.value
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
        task.end(result, error)
        task.deadline_ms = NEVER_MS
        self._tasks.pop(task, None)
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

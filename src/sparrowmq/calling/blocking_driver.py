"""The driver without an event loop of its own: the thread that calls `run` does the I/O.

The driver has one selector, the scheduler's timers, one channel per address, and a pool of threads
that starts with the first `Call`. There are two ways to use the driver:

- *One-shot*: a producer, a Spark executor or a command calls `run(operation)`. The calling thread
  runs this operation and all spawned ones until the operation is done. Between two calls nothing
  runs; bytes that came meanwhile are read when the next call begins.
- *Served*: a push consumer gives the driver a thread that runs the member's loop (`serve`).
  Spawned tasks then run all the time.

Threads may share a driver. The first thread that calls `run` leads: it runs the scheduler for all
threads. The other threads hand over their operations and wait. When the leader's own operation is
done, the leader passes the lead to a thread that still waits. Concurrent calls therefore share one
connection and overlap, which a lock around `run` would not allow, and no background thread is
needed.

A thread that leads in `serve` makes quick calls of the user's functions itself: to pass a call to
another thread and its outcome back costs more than the call. A *stand-in* watches it. If a call
lasts, or calls the driver, the stand-in takes the lead until the call has returned.

Only the leading thread may use the driver, except for `run`, `spawn`, `cancel`,
`call_soon_threadsafe` and `close`. `Event.set`, `on_request` and `on_connection_lost` belong to the
leading thread too.
"""

from __future__ import annotations

import logging
import ssl
import threading
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from queue import SimpleQueue
from typing import Any, Self, TypeVar

from sparrowmq.calling import clock
from sparrowmq.calling.call_pool import (
    CLOSE_TIMEOUT_MS,
    POOL_SIZE,
    CallPool,
    OnReturned,
    log_left,
)
from sparrowmq.calling.call_run import CallRun, UserCalls
from sparrowmq.calling.channel import Channel, OnConnectionLost, OnRequest
from sparrowmq.calling.effects import (
    Call,
    CallEach,
    Cancelled,
    Invoke,
    Operation,
    Outcome,
)
from sparrowmq.calling.forks import tell_in_forks
from sparrowmq.calling.scheduler import (
    Asking,
    Continuation,
    OperationTask,
    Scheduler,
    Timed,
    Waiter,
)
from sparrowmq.calling.socket_network import SocketNetwork
from sparrowmq.errors import TransportError, UsageError
from sparrowmq.protocol.signatures import Credentials

LOG = logging.getLogger("sparrowmq.calling")

T = TypeVar("T")

# A call on the leading thread that the stand-in sees twice at this interval lasts too long.
WATCH_MS = 10

# If the sockets were not checked for this long, `run` checks them before it writes. The peer may
# have closed a connection meanwhile, and a request written into it would be lost.
UNATTENDED_MS = 20


class _Run(Continuation, kw_only=True):
    """An operation in `run` or `serve`.

    Args:
        makes_calls: whether its thread, while it leads, makes quick calls itself.
    """

    makes_calls: bool = False
    done: bool = False
    result: Any = None
    error: BaseException | None = None
    on_done: Callable[[], None] | None = None

    def end(self, result: Any, error: BaseException | None) -> None:
        """Keep the result or the error."""
        self.done = True
        self.result, self.error = result, error
        if self.on_done is not None:
            self.on_done()


class _Answer(Asking, kw_only=True):
    """A request in `ask`."""

    invoke: Invoke
    done: bool = False
    result: Any = None
    error: BaseException | None = None
    on_done: Callable[[], None] | None = None

    def go_on(self, value: Any = None, thrown: BaseException | None = None) -> None:
        """Send the request; then keep its answer, or why there is none."""
        if self.scheduler.is_stopped:
            self.error = Cancelled()
        elif thrown is None and value is None:
            self.ask(self.invoke)
            return
        elif thrown is None or isinstance(thrown, TransportError):
            self.result = value if thrown is None else thrown
        else:
            self.error = thrown
        self.done = True
        if self.on_done is not None:
            self.on_done()


class _Follower:
    """A thread that waits in `run` while another thread leads.

    Args:
        has_begun: whether the run has begun, when the thread led before.
    """

    __slots__ = ("has_begun", "ident", "is_added", "leads", "run", "signal")

    def __init__(self, run: _Run | _Answer, ident: int, *, has_begun: bool = False) -> None:
        self.run = run
        self.ident = ident
        self.has_begun = has_begun
        # Whether the leading thread knows that this one waits.
        self.is_added = False
        self.leads = False
        # Ctrl-C cannot split its `put`, as it can the steps of an `Event.set`.
        self.signal: SimpleQueue[None] = SimpleQueue()


class BlockingDriver:
    """Runs operations on the threads that call it.

    Args:
        on_request: answers the requests that servers send, on the leading thread; if it returns
            None, no answer is sent. Without `on_request` such requests are answered as not
            supported.
        on_connection_lost: called with the address of each open connection that ends.
        pool_size: the most threads for `Call`.
        tls: the TLS context of every connection; None for no TLS.
        credentials: the credentials that sign every request; None for no signatures.

    Raises: ConfigError if `tls` is not a TLS context.
    """

    # The clocks of operations, which the faces read too.
    monotonic_ms = staticmethod(clock.monotonic_ms)
    timestamp_ms = staticmethod(clock.timestamp_ms)

    def __init__(
        self,
        *,
        on_request: OnRequest | None = None,
        on_connection_lost: OnConnectionLost | None = None,
        pool_size: int = POOL_SIZE,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self._pool_size = pool_size
        self._pool: CallPool | None = None
        self._user_calls = UserCalls()
        self._scheduler = Scheduler(
            monotonic_ms=clock.monotonic_ms,
            timestamp_ms=clock.timestamp_ms,
            carry=self._carry,
            drop=_drop,
        )
        # Functions that other threads hand to the leading thread.
        self._incoming: deque[Callable[[], Any]] = deque()
        self._network = SocketNetwork(
            self._scheduler,
            on_request=on_request,
            on_connection_lost=on_connection_lost,
            call_soon_threadsafe=self.call_soon_threadsafe,
            incoming=self._incoming,
            tls=tls,
            credentials=credentials,
        )
        self._make_mutex()
        self._leader: int | None = None
        self._followers: dict[_Follower, None] = {}
        self._stand_in: threading.Thread | None = None
        self._is_watched = self._is_calling = self._is_call_urgent = False
        self._call_number = 0
        # Whether the thread for which the stand-in leads can lead again.
        self._has_led_enough = False
        # Quick calls for the leading thread to make.
        self._calls: deque[tuple[OperationTask, CallRun]] = deque()
        self._makes_calls = False
        self._is_closing = False
        # Set by a `close` whose wait timed out: the leading thread then closes when it returns.
        self._is_left_to_leader = False
        tell_in_forks(self)

    def _make_mutex(self) -> None:
        # The mutex guards the leader, the followers and the end of the driver.
        self._mutex = threading.Lock()
        self._lead_left = threading.Condition(self._mutex)
        # The stand-in sleeps while the leading thread makes no calls, each of which has a number.
        self._watch = threading.Condition(self._mutex)

    def become_copy(self) -> None:
        """Let a forked process find the mutex free, which another thread may have had then."""
        self._make_mutex()

    def __enter__(self) -> Self:
        self.check_usable()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_connecting(self) -> bool:
        """Whether a connection is being made, for which requests wait."""
        return self._network.is_connecting

    @property
    def is_in_call(self) -> bool:
        """Whether the user's code in a `Call` or `CallEach` of this driver asks."""
        return self._user_calls.is_inside

    def run(self, operation: Operation[T], *, name: str = "run") -> T:
        """Run an operation and return its result.

        Args:
            operation: the operation, not started yet.
            name: the operation's name in logs.

        Raises: the operation's errors; UsageError if the driver is closed (now or meanwhile), was
            made by another process, or if this is the leading thread already (yield from the
            operation instead).
        """
        result: T = self._run(_Run(self._scheduler, operation=operation, name=name))
        return result

    def serve(self, operation: Operation[T], *, name: str) -> T:
        """Run an operation as `run` does, on a thread of ours, which makes quick calls itself."""
        run = _Run(self._scheduler, operation=operation, name=name, makes_calls=True)
        result: T = self._run(run)
        return result

    def _run(self, run: _Run) -> Any:
        if (error := self._wait_for(run, run.name)) is not None:
            raise error
        return run.result

    def _wait_for(self, run: _Run | _Answer, name: str) -> BaseException | None:
        """Lead or follow until something is done; return its error."""
        ident = threading.get_ident()
        follower, leads = None, False
        try:
            with self._mutex:
                self.check_usable()
                if self._leader is None:
                    leads, self._leader = True, ident
                else:
                    self._check_outside()
                    if self._leader == ident:
                        self._give_lead()
                    follower = _Follower(run, ident)
                    self._followers[follower] = None
            if follower is None:
                self._lead(run, is_new=True)
            else:
                self._follow(follower)
        except BaseException:
            # An interrupt may come just before the thread leads or follows, or just after.
            if follower is not None:
                self._leave(follower)
                leads = follower.leads
            if leads and self._leader == ident:
                self._pass_lead()
            raise
        if isinstance(run.error, Cancelled):
            what = "this client was closed meanwhile"
            return UsageError(what if self._is_closing else f"operation {name} was cancelled")
        return run.error

    def ask(self, invoke: Invoke) -> Outcome:
        """Send a request and return its answer, or the error that `invoke` would raise.

        Raises: LocalProtocolError if the request cannot be encoded; UsageError as `run`.
        """
        answer = _Answer(self._scheduler, invoke=invoke)
        if (error := self._wait_for(answer, "ask")) is not None:
            raise error
        outcome: Outcome = answer.result
        return outcome

    def spawn(self, operation: Operation[Any], *, name: str) -> OperationTask:
        """Start an operation beside others; it runs while a thread leads. From any thread."""
        task = OperationTask(operation, name)
        with self._mutex:
            self.check_usable()
            self.call_soon_threadsafe(partial(self._scheduler.add, task))
        return task

    def cancel(self, task: OperationTask) -> None:
        """Cancel a task soon, unless it is done. From any thread."""
        self.call_soon_threadsafe(partial(self._scheduler.cancel, task))

    def grow_pool(self, count: int) -> None:
        """Allow `count` more threads for `Call`. From any thread."""
        self._pool_size += count
        if self._pool is not None:
            self._pool.grow(count)

    def call_soon_threadsafe(self, function: Callable[[], Any]) -> None:
        """Let the leading thread call a function soon. From any thread.

        Without a leading thread the function waits for the next one; after `close` it is dropped.
        """
        self._incoming.append(function)
        # The leading thread is woken even by itself: a signal handler may run there between the
        # check of `_incoming` and the wait.
        self._network.wake()

    def close(self, *, timeout_ms: int = CLOSE_TIMEOUT_MS) -> None:
        """Cancel all tasks, close all connections and end the pool. A second call does nothing.

        Args:
            timeout_ms: how long to wait for threads in `run` and in `Call` functions. Threads
                that have not ended then are logged and left running.
        """
        if self._network.channels.is_copy:
            self._is_closing = True
            self._network.close_copy()
            return
        ident = threading.get_ident()
        with self._lead_left:
            if self._is_closing:
                return
            self._check_outside()
            self._is_closing = True
            if self._leader == ident:
                self._leader, self._is_calling = None, False
            self._watch.notify()
            self.call_soon_threadsafe(_look)
            if not self._lead_left.wait_for(lambda: self._leader is None, timeout_ms / 1000):
                LOG.warning("driver not closed yet: its leading thread does not return")
                self._is_left_to_leader = True
                return
            self._leader = ident
        self._shut(timeout_ms)

    def check_outside(self) -> None:
        """Raise a UsageError in a callback that this driver makes, where `run` and `close` do.

        A client asks before it begins to close.
        """
        with self._mutex:
            self._check_outside()

    def check_usable(self) -> None:
        """Raise a UsageError after `close`, and in a forked process."""
        if self._is_closing:
            raise UsageError("this client is closed; open a new one")
        self._network.channels.check_process()

    # The lead.

    def _check_outside(self) -> None:
        if self._leader == threading.get_ident() and not self._is_calling:
            raise UsageError(
                "the client was called in a callback of its own (of a future, or one that chooses "
                "a queue), which would wait for itself; make the call in another thread, or only "
                "queue a message there, by send_nowait"
            )

    def _lead(self, run: _Run | _Answer, *, is_new: bool) -> None:
        self._makes_calls = isinstance(run, _Run) and run.makes_calls
        try:
            leads = self._loop(run, is_new=is_new)
        except BaseException:
            try:
                if not self._is_closing:
                    self._recover()
                run.cancel()
                self._run_ready()
            finally:
                # Also after a second Ctrl-C.
                self._pass_lead()
            raise
        if leads:
            self._pass_lead()
            return
        follower = _Follower(run, threading.get_ident(), has_begun=True)
        with self._mutex:
            if self._is_closing:
                run.cancel()
                raise UsageError("this client was closed meanwhile")
            self._followers[follower] = None
        self._follow(follower)

    def _follow(self, follower: _Follower) -> None:
        run = follower.run
        self.call_soon_threadsafe(partial(self._add_follower, follower))
        try:
            follower.signal.get()
        except BaseException:
            self._leave(follower)
            if follower.leads:
                self._pass_lead()
            raise
        with self._mutex:
            self._followers.pop(follower, None)
        if follower.leads:
            self._lead(run, is_new=False)
        elif not run.done:
            assert self._is_closing
            raise UsageError("this client was closed meanwhile")

    def _leave(self, follower: _Follower) -> None:
        """Cancel what a thread has waited for; the lead is not passed to this thread any more."""
        with self._mutex:
            self._followers.pop(follower, None)
        follower.run.on_done = None
        self.call_soon_threadsafe(follower.run.cancel)

    def _add_follower(self, follower: _Follower) -> None:
        if follower.is_added:
            return
        follower.is_added = True
        follower.run.on_done = partial(follower.signal.put, None)
        if not follower.has_begun:
            follower.run.go_on()
            return
        self._has_led_enough = True
        if follower.run.done:
            follower.signal.put(None)

    def _recover(self) -> None:
        """Make the driver usable after an interrupt, such as Ctrl-C, in the leading thread.

        The interrupt may have come between two steps that belong together. No other thread may wait
        for ever then.
        """
        if not self._network.recover():
            return
        with self._mutex:
            followers = list(self._followers)
        for task in self._scheduler.tasks:
            self._scheduler.end_cut_off(task)
        for follower in followers:
            if not follower.is_added:
                self._incoming.append(partial(self._add_follower, follower))
            elif not follower.run.done:
                self._scheduler.end_cut_off(follower.run)
            if follower.run.done:
                follower.signal.put(None)

    def _pass_lead(self) -> None:
        try:
            self._choose_leader()
        except BaseException:
            # Ctrl-C: nobody would lead, if it came before a thread was chosen.
            if self._leader in (None, threading.get_ident()):
                self._choose_leader()
            raise

    def _choose_leader(self) -> None:
        with self._mutex:
            self._leader = None
            followers = list(self._followers)
            if self._is_closing:
                for follower in followers:
                    follower.signal.put(None)
                self._lead_left.notify_all()
                followers = []
            for follower in followers:
                del self._followers[follower]
                if not follower.run.done:
                    self._leader = follower.ident
                    follower.leads = True
                    follower.signal.put(None)
                    return
        if self._is_left_to_leader:
            self._shut(CLOSE_TIMEOUT_MS)

    # The loop.

    def _loop(self, run: _Run | _Answer | None, *, is_new: bool) -> bool:
        """Run all operations until one is done, or, for None, until its thread can lead again.

        Returns: False if a stand-in has taken the lead.
        """
        scheduler, network = self._scheduler, self._network
        if clock.monotonic_ms() - network.attended_ms > UNATTENDED_MS:
            self._expire(scheduler.expire(network.attend(0)))
        while self._calls and not self._makes_calls:
            self._submit(*self._calls.popleft())
        if is_new and run is not None:
            run.go_on()
        while True:
            self._run_ready()
            if run.done if run is not None else self._has_led_enough:
                return True
            if self._is_closing:
                raise UsageError("this client was closed meanwhile")
            deadline_ms = scheduler.next_deadline_ms()
            while self._calls:
                if not self._make_call(*self._calls.popleft()):
                    return False
                if self._is_closing:
                    raise UsageError("this client was closed meanwhile")
                # What came meanwhile is processed together with the outcomes.
                deadline_ms = 0
            now_ms = network.attend(deadline_ms)
            if scheduler.next_deadline_ms() <= now_ms:
                self._expire(scheduler.expire(now_ms))

    def _run_ready(self) -> None:
        """Step tasks and send their writes, until no task is ready and no bytes wait."""
        scheduler = self._scheduler
        while True:
            while self._incoming:
                self._call_safely(self._incoming.popleft())
            scheduler.run_ready()
            if not self._network.flush() and not self._incoming and not scheduler.ready:
                return

    def _expire(self, due: Iterable[Timed | Waiter]) -> None:
        for timed in due:
            self._network.expire(timed)

    def _call_safely(self, function: Callable[[], Any]) -> None:
        try:
            function()
        except Exception as error:
            self._network.channels.log_failure("a callback failed", error)

    # Calls on the leading thread.

    def _make_call(self, task: OperationTask, run: CallRun) -> bool:
        """Make calls; return False if a stand-in has taken the lead meanwhile."""
        with self._mutex:
            if not self._is_watched and not self._begin_watch():
                self._submit(task, run)
                return True
            self._call_number += 1
            self._is_calling = True
        self._user_calls.make(run.run)
        with self._mutex:
            leads = self._leader == threading.get_ident()
            if leads:
                self._is_calling = False
        if leads:
            self._scheduler.end_call(task, run, None, None)
        else:
            self._returned(task, run, None, None)
        return leads

    def _begin_watch(self) -> bool:
        """Return False if the system refuses the thread of the stand-in."""
        if self._stand_in is None:
            stand_in = threading.Thread(
                target=self._stand_by, name="sparrowmq-stand-in", daemon=True
            )
            try:
                stand_in.start()
            except RuntimeError:
                return False
            self._stand_in = stand_in
        else:
            self._watch.notify()
        self._is_watched = True
        return True

    def _give_lead(self) -> None:
        """Let the stand-in lead at once; the mutex is held."""
        self._is_call_urgent = True
        self._watch.notify()

    def _stand_by(self) -> None:
        """Watch the leading thread's calls, and lead while one of them lasts."""
        seen = 0
        while True:
            with self._mutex:
                lasts = self._is_calling and (self._is_call_urgent or self._call_number == seen)
                if lasts:
                    self._is_calling = self._is_call_urgent = self._makes_calls = False
                    self._leader = threading.get_ident()
                elif self._is_closing and not self._is_calling:
                    return
                else:
                    self._is_watched = self._is_calling or self._call_number != seen
                    seen = self._call_number
                    self._watch.wait(WATCH_MS / 1000 if self._is_watched else None)
            if lasts:
                self._lead_meanwhile()

    def _lead_meanwhile(self) -> None:
        try:
            self._loop(None, is_new=False)
        except UsageError:
            pass  # The driver is being closed.
        except BaseException as error:
            self._network.channels.log_failure("an operation failed", error)
        finally:
            self._has_led_enough = False
            self._pass_lead()

    # Effects.

    def _carry(self, task: OperationTask, effect: Call | CallEach) -> None:
        if isinstance(effect, CallEach):
            task.place = run = CallRun(effect)
            if effect.is_quick and self._makes_calls:
                self._calls.append((task, run))
            else:
                self._submit(task, run)
            return
        task.place = ticket = object()
        returned = partial(self._returned, task, ticket)
        self._call_in_pool(effect.function, effect.args, returned)

    def _submit(self, task: OperationTask, run: CallRun) -> None:
        self._call_in_pool(run.run, (), partial(self._returned, task, run))

    def _call_in_pool(
        self, function: Callable[..., Any], args: tuple[Any, ...], on_returned: OnReturned
    ) -> None:
        if self._pool is None:
            self._pool = CallPool(size=self._pool_size, name="sparrowmq-call")
        self._pool.submit(self._user_calls.make, (function, *args), on_returned)

    def _returned(
        self, task: OperationTask, ticket: object, result: Any, error: BaseException | None
    ) -> None:
        self.call_soon_threadsafe(partial(self._scheduler.end_call, task, ticket, result, error))

    # The end.

    def _shut(self, timeout_ms: int) -> None:
        while self._incoming:
            self._call_safely(self._incoming.popleft())
        self._scheduler.stop()
        self._network.close(timeout_ms=timeout_ms)
        self._network.channels.report_unjoined()
        if self._pool is not None:
            self._pool.close()
            log_left(self._pool.join(timeout_ms=timeout_ms))
        if self._stand_in not in (None, threading.current_thread()):
            self._stand_in.join(timeout_ms / 1000)


def _look() -> None:
    """Do nothing: the leading thread, woken for this, sees that the driver is being closed."""


def _drop(waiter: Waiter, place: Any) -> None:
    if isinstance(place, Channel):
        place.forget(waiter)
    elif isinstance(place, CallRun):
        place.is_cancelled = True

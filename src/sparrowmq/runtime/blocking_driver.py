"""The driver without an event loop of its own: the thread that calls `run` does the I/O.

One selector, the scheduler's timers, one channel per address, and a pool of threads for `Call`
that exists only once a `Call` was made. Two ways to use it:

- *One-shot*: a producer, a Spark executor or a command calls `run(operation)`, and the calling
  thread runs everything (this operation and all spawned ones) until that operation is done.
  Between two calls nothing runs; what came meanwhile is read when the next call begins.
- *Served*: a push consumer gives the driver a thread that calls `serve_until(event)`, and then
  spawned tasks run all the time.

Threads may share a driver. The first to call `run` leads: it runs the scheduler for everybody.
Others hand their operation over and wait; when the leader's own operation is done, it passes the
lead to one that still waits. So concurrent calls share one connection and overlap, which a lock
around `run` would not allow, and nobody needs a thread in the background.

Everything but `run`, `serve_until`, `spawn`, `cancel`, `call_soon_threadsafe` and `close` belongs
to the leading thread; so do `Event.set`, `on_request` and `on_connection_lost`.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Self, TypeVar

from sparrowmq.errors import InvokeTimeout, RemoteProtocolError, UsageError
from sparrowmq.runtime import clock, effects
from sparrowmq.runtime.call_pool import CallPool
from sparrowmq.runtime.channel import (
    CONNECT_TIMEOUT_MS,
    IDLE_MS,
    Channel,
    OnConnectionLost,
    OnRequest,
    Wire,
)
from sparrowmq.runtime.effects import Call, Cancelled, Effect, Event, Invoke, Oneway, Operation
from sparrowmq.runtime.scheduler import NEVER_MS, OperationTask, Scheduler, Timed, log_unjoined
from sparrowmq.runtime.sockets import (
    Candidate,
    SocketWire,
    begin_connect,
    end_connect,
    is_quick,
    look_up,
    split_address,
)

LOG = logging.getLogger("sparrowmq.runtime")

T = TypeVar("T")

# DefaultMQPushConsumer.consumeThreadMax.
POOL_SIZE = 20

# Threads that look names up, apart from the pool: its threads may all be in slow listeners.
LOOK_UP_THREADS = 2

# Bytes asked from the kernel at once.
RECEIVE_BYTES = 64 * 1024

# After this long without a look at the sockets, `run` looks before it writes: the peer may have
# closed a connection meanwhile, and a request written into it would be lost.
UNATTENDED_MS = 20

# How long `close` waits for threads of the pool, and for the leading thread to leave.
CLOSE_TIMEOUT_MS = 5_000

# The longest wait in the selector: epoll takes 32 bit milliseconds.
SELECT_MS_MAX = 3_600_000

READ = selectors.EVENT_READ
WRITE = selectors.EVENT_WRITE


class _Follower:
    """A thread that waits in `run` while another leads."""

    __slots__ = ("ident", "leads", "signal", "task")

    def __init__(self, task: OperationTask, ident: int) -> None:
        self.task = task
        self.ident = ident
        self.leads = False
        self.signal = threading.Event()


class _Dial:
    """A connection being made: addresses not yet tried, and the one that is."""

    __slots__ = ("candidates", "channel", "error", "sock")

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.candidates: deque[Candidate] = deque()
        self.sock: socket.socket | None = None
        self.error: OSError | None = None


class BlockingDriver:
    """Runs operations on the threads that call it.

    Args:
        on_request: answers requests that servers send, on the leading thread; None from it means
            no answer. Without it they are answered as not supported.
        on_connection_lost: told the address of each connection that was open and is not.
        pool_size: threads for `Call` at most.
    """

    def __init__(
        self,
        *,
        on_request: OnRequest | None = None,
        on_connection_lost: OnConnectionLost | None = None,
        pool_size: int = POOL_SIZE,
    ) -> None:
        self._on_request = on_request
        self._on_connection_lost = on_connection_lost
        self._pool_size = pool_size
        self._pool: CallPool | None = None
        self._look_ups: CallPool | None = None
        self._pid = os.getpid()
        self._scheduler = Scheduler(
            monotonic_ms=clock.monotonic_ms, timestamp_ms=clock.timestamp_ms
        )
        self._channels: dict[str, Channel] = {}
        self._dials: dict[Channel, _Dial] = {}
        self._unflushed: list[Channel] = []
        self._write_watched: set[Channel] = set()
        self._selector = selectors.DefaultSelector()
        self._attended_ms = clock.monotonic_ms()
        # Other threads' functions for the leading thread, and the bytes that wake it for them.
        self._incoming: deque[Callable[[], Any]] = deque()
        self._wake_sent = False
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        self._selector.register(self._wake_reader, READ, self._woken)
        # Who leads; guarded by the mutex, and so are the followers and the end.
        self._mutex = threading.Lock()
        self._lead_left = threading.Condition(self._mutex)
        self._leader: int | None = None
        self._followers: dict[_Follower, None] = {}
        self._is_closing = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(
        self, operation: Operation[T], *, timeout_ms: int | None = None, name: str = "run"
    ) -> T:
        """Run an operation and return its result.

        Args:
            operation: started by this call.
            timeout_ms: bounds the whole operation; it is cancelled then.
            name: for logs.

        Raises: what the operation raises; InvokeTimeout after `timeout_ms`; UsageError if the
            driver is closed (now or meanwhile), was made by another process, or if this is the
            leading thread already (yield from the operation instead).
        """
        if timeout_ms is not None:
            operation = _bounded(operation, timeout_ms, name)
        task = OperationTask(operation, name)
        task.joined = True  # Its error is raised here.
        ident = threading.get_ident()
        follower = None
        with self._mutex:
            self._check_usable()
            if self._leader is None:
                self._leader = ident
            elif self._leader == ident:
                raise UsageError("run was called by an operation or callback of the same driver")
            else:
                follower = _Follower(task, ident)
                self._followers[follower] = None
        if follower is None:
            self._scheduler.add(task)
            self._lead(task)
        else:
            self._follow(follower)
        if self._is_closing and isinstance(task.error, Cancelled):
            raise UsageError("the driver was closed meanwhile")
        result: T = task.outcome()
        return result

    def serve_until(self, event: Event) -> None:
        """Run all tasks until the event is set: by one of them, or by `call_soon_threadsafe`.

        Raises: UsageError if the driver is closed meanwhile.
        """
        self.run(effects.wait(event), name="serve")

    def spawn(self, operation: Operation[Any], *, name: str) -> OperationTask:
        """Start an operation beside others; it runs while some thread leads. From any thread."""
        task = OperationTask(operation, name)
        with self._mutex:
            self._check_usable()
            self.call_soon_threadsafe(partial(self._scheduler.add, task))
        return task

    def cancel(self, task: OperationTask) -> None:
        """Cancel a task soon, unless it is done. From any thread."""
        self.call_soon_threadsafe(partial(self._scheduler.cancel, task))

    def call_soon_threadsafe(self, function: Callable[[], Any]) -> None:
        """Have the leading thread call a function soon. From any thread.

        Without a leading thread it waits for the next; after `close` it is dropped.
        """
        self._incoming.append(function)
        # Also on the leading thread: a signal handler runs there, between a look at what came in
        # and the wait.
        if not self._wake_sent:
            self._wake_sent = True
            self._wake()

    def close(self, *, timeout_ms: int = CLOSE_TIMEOUT_MS) -> None:
        """Cancel all tasks, close all connections and end the pool. A second call does nothing.

        Args:
            timeout_ms: how long to wait for threads in `run` and in `Call` functions. What has
                not ended then is logged and left.
        """
        if os.getpid() != self._pid:
            self._close_copy()
            return
        ident = threading.get_ident()
        with self._lead_left:
            if self._is_closing:
                return
            if self._leader == ident:
                raise UsageError("close was called by an operation or callback of the same driver")
            self._is_closing = True
            self._wake()
            if not self._lead_left.wait_for(lambda: self._leader is None, timeout_ms / 1000):
                LOG.warning("driver not closed: its leading thread does not return")
                return
            self._leader = ident
        self._shut(timeout_ms)

    # The lead.

    def _check_usable(self) -> None:
        if self._is_closing:
            raise UsageError("the driver is closed")
        if os.getpid() != self._pid:
            raise UsageError("the driver was made before a fork; make one in this process")

    def _lead(self, task: OperationTask) -> None:
        try:
            self._loop(task)
        except BaseException:
            task.joined = False  # What it raises from here on is logged.
            self._scheduler.cancel(task)
            self._run_ready()
            raise
        finally:
            self._pass_lead()

    def _follow(self, follower: _Follower) -> None:
        task = follower.task
        self.call_soon_threadsafe(partial(self._add_follower, follower))
        try:
            follower.signal.wait()
        except BaseException:
            with self._mutex:
                self._followers.pop(follower, None)
            task.on_done = None
            task.joined = False  # What it raises from here on is logged.
            self.cancel(task)
            if follower.leads:
                self._pass_lead()
            raise
        with self._mutex:
            self._followers.pop(follower, None)
        if follower.leads:
            self._lead(task)
        elif not task.done:
            assert self._is_closing
            raise UsageError("the driver was closed meanwhile")

    def _add_follower(self, follower: _Follower) -> None:
        follower.task.on_done = follower.signal.set
        self._scheduler.add(follower.task)

    def _pass_lead(self) -> None:
        with self._lead_left:
            self._leader = None
            followers = list(self._followers)
            if self._is_closing:
                for follower in followers:
                    follower.signal.set()
                self._lead_left.notify_all()
                return
            for follower in followers:
                del self._followers[follower]
                if not follower.task.done:
                    self._leader = follower.ident
                    follower.leads = True
                    follower.signal.set()
                    return

    # The loop.

    def _loop(self, main: OperationTask) -> None:
        """Run everything until the task is done."""
        scheduler = self._scheduler
        # This loop looks at its own task's deadline itself and keeps it out of the heap.
        main.timer_ms = min(main.timer_ms, 0)
        if clock.monotonic_ms() - self._attended_ms > UNATTENDED_MS:
            self._expire(scheduler.expire(self._attend(0)))
        try:
            while True:
                self._run_ready()
                if main.done:
                    return
                if self._is_closing:
                    raise UsageError("the driver was closed meanwhile")
                deadline_ms = min(main.deadline_ms, scheduler.next_deadline_ms())
                now_ms = self._attend(deadline_ms)
                if main.deadline_ms <= now_ms:
                    self._expire(list(scheduler.expire_task(main)))
                if scheduler.next_deadline_ms() <= now_ms:
                    self._expire(scheduler.expire(now_ms))
        finally:
            main.timer_ms = NEVER_MS
            if not main.done and main.deadline_ms != NEVER_MS:
                scheduler.set_deadline(main, main.deadline_ms)

    def _attend(self, deadline_ms: int) -> int:
        """Wait for the sockets until the deadline, see to those that are ready, return the time."""
        timeout_s = None
        if deadline_ms != NEVER_MS:
            wait_ms = deadline_ms - clock.monotonic_ms()
            timeout_s = min(max(wait_ms, 0), SELECT_MS_MAX) / 1000
        ready = self._selector.select(timeout_s)
        self._attended_ms = now_ms = self._scheduler.read_clock()
        for key, mask in ready:
            key.data(mask)
        return now_ms

    def _run_ready(self) -> None:
        """Step tasks and send what they wrote, until there is nothing of either."""
        scheduler = self._scheduler
        unflushed = self._unflushed
        while True:
            while self._incoming:
                self._call_safely(self._incoming.popleft())
            scheduler.run_ready(self._carry, self._drop)
            if not unflushed:
                if not self._incoming:
                    return
                continue
            channels = unflushed.copy()
            unflushed.clear()
            for channel in channels:
                self._flush(channel)

    def _expire(self, due: list[Timed]) -> None:
        for timed in due:
            if isinstance(timed, Channel):
                self._expire_channel(timed)
            elif isinstance(timed, OperationTask):
                if timed.done:
                    log_unjoined(timed)
                else:
                    self._scheduler.throw(timed, timed.place.time_out(timed))

    def _call_safely(self, function: Callable[[], Any]) -> None:
        try:
            function()
        except Exception:
            LOG.exception("a callback failed")

    def _wake(self) -> None:
        try:
            self._wake_writer.send(b"\0")
        except (BlockingIOError, InterruptedError):
            pass  # Enough bytes are there.
        except OSError:
            if not self._is_closing:
                raise

    def _woken(self, _: int) -> None:
        with suppress(BlockingIOError, InterruptedError):
            self._wake_reader.recv(4096)
        # Lowered after its byte is gone and before functions are taken: whoever appended one
        # before is served by the coming look, whoever does so after sends a byte.
        self._wake_sent = False

    # Effects.

    def _carry(self, task: OperationTask, effect: Effect) -> None:
        if isinstance(effect, Call):
            if self._pool is None:
                self._pool = CallPool(size=self._pool_size, name="sparrowmq-call")
            task.place = ticket = object()
            returned = partial(self._returned, task, ticket)
            self._pool.submit(effect.function, effect.args, returned)
            return
        assert isinstance(effect, Invoke | Oneway)
        channel = self._channels.get(effect.address)
        if channel is not None:
            channel.submit(task, effect, self._scheduler)
            return
        channel = Channel(effect.address, self._unflushed, on_request=self._on_request)
        self._channels[effect.address] = channel
        channel.submit(task, effect, self._scheduler)
        self._open(channel)

    def _drop(self, task: OperationTask, place: Any) -> None:
        if isinstance(place, Channel):
            place.forget(task)

    def _returned(
        self, task: OperationTask, ticket: object, result: Any, error: BaseException | None
    ) -> None:
        self.call_soon_threadsafe(partial(self._end_call, task, ticket, result, error))

    def _end_call(
        self, task: OperationTask, ticket: object, result: Any, error: BaseException | None
    ) -> None:
        if task.place is not ticket:
            return  # Cancelled meanwhile.
        if error is None:
            self._scheduler.resume(task, result)
        else:
            self._scheduler.throw(task, error)

    # Connections.

    def _open(self, channel: Channel) -> None:
        dial = self._dials[channel] = _Dial(channel)
        self._scheduler.set_deadline(channel, self._scheduler.now_ms + CONNECT_TIMEOUT_MS)
        try:
            host, port = split_address(channel.address)
        except ValueError as error:
            self._lose(channel, str(error), None)
            return
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
        self.call_soon_threadsafe(partial(self._looked_up, dial, result or [], error))

    def _looked_up(
        self, dial: _Dial, candidates: list[Candidate], error: BaseException | None
    ) -> None:
        if dial.channel.is_closed:
            return
        if error is not None or not candidates:
            self._lose(dial.channel, f"host name not found ({error})", error)
            return
        dial.candidates.extend(candidates)
        self._try_next(dial)

    def _try_next(self, dial: _Dial) -> None:
        """Begin a connection to the next address that the name stands for."""
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
        self._lose(channel, failure.strerror or str(failure), failure)

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
        channel = dial.channel
        del self._dials[channel]
        self._selector.modify(sock, READ, partial(self._attend_channel, channel))
        LOG.info("connected to %s", channel.address)
        channel.opened(SocketWire(sock), self._scheduler)

    def _hang_up(self, dial: _Dial) -> None:
        if dial.sock is not None:
            self._selector.unregister(dial.sock)
            dial.sock.close()
            dial.sock = None

    def _expire_channel(self, channel: Channel) -> None:
        dial = self._dials.get(channel)
        if dial is not None:
            self._hang_up(dial)
            self._try_next(dial)
        elif channel.is_idle:
            self._lose(channel, "idle", None)
        else:
            self._scheduler.set_deadline(channel, self._scheduler.now_ms + IDLE_MS)

    def _attend_channel(self, channel: Channel, mask: int) -> None:
        if mask & WRITE:
            self._flush(channel)
        if mask & READ and channel.wire is not None:
            self._receive(channel, channel.wire)

    def _receive(self, channel: Channel, wire: Wire) -> None:
        assert isinstance(wire, SocketWire)
        try:
            data = wire.sock.recv(RECEIVE_BYTES)
            if data:
                channel.received(data, self._scheduler)
            else:
                self._lose(channel, "closed by the peer", None)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lose(channel, error.strerror or str(error), error)
        except RemoteProtocolError as error:
            LOG.warning("closing connection to %s: %s", channel.address, error)
            self._lose(channel, str(error), error)
        except Exception as error:
            LOG.exception("closing connection to %s: its bytes cannot be read", channel.address)
            self._lose(channel, repr(error), error)

    def _flush(self, channel: Channel) -> None:
        wire = channel.wire
        if wire is None:
            return
        assert isinstance(wire, SocketWire)
        try:
            channel.flush(self._scheduler)
        except OSError as error:
            self._lose(channel, error.strerror or str(error), error)
            return
        if wire.is_blocked != (channel in self._write_watched):
            data = partial(self._attend_channel, channel)
            if wire.is_blocked:
                self._write_watched.add(channel)
                self._selector.modify(wire.sock, READ | WRITE, data)
            else:
                self._write_watched.discard(channel)
                self._selector.modify(wire.sock, READ, data)

    def _lose(self, channel: Channel, reason: str, cause: BaseException | None) -> None:
        """Close a connection, made or being made, and forget it."""
        self._channels.pop(channel.address, None)
        dial = self._dials.pop(channel, None)
        if dial is not None:
            self._hang_up(dial)
        if channel.wire is not None:
            assert isinstance(channel.wire, SocketWire)
            self._selector.unregister(channel.wire.sock)
            self._write_watched.discard(channel)
        was_open = channel.close(reason, cause, self._scheduler)
        if was_open and not self._is_closing:
            LOG.info("connection to %s lost: %s", channel.address, reason)
            if self._on_connection_lost is not None:
                self._call_safely(partial(self._on_connection_lost, channel.address))

    # The end.

    def _shut(self, timeout_ms: int) -> None:
        scheduler = self._scheduler
        while self._incoming:
            self._call_safely(self._incoming.popleft())
        for task in scheduler.tasks:
            scheduler.cancel(task)
        scheduler.run_ready(lambda task, _: scheduler.abort(task), self._drop)
        for task in scheduler.tasks:
            scheduler.abort(task)
        for channel in tuple(self._channels.values()):
            self._lose(channel, "the driver is closed", None)
        for task in scheduler.unjoined():
            log_unjoined(task)
        pools = [pool for pool in (self._pool, self._look_ups) if pool is not None]
        for pool in pools:
            pool.close()
        for pool in pools:
            left = pool.join(timeout_ms=timeout_ms)
            if left:
                LOG.warning("threads left in their calls: %s", ", ".join(left))
        self._selector.close()
        self._wake_reader.close()
        self._wake_writer.close()

    def _close_copy(self) -> None:
        """Close what a fork copied into this process, without touching what the parent shares."""
        self._is_closing = True
        for channel in self._channels.values():
            if channel.wire is not None:
                channel.wire.close()
        for dial in self._dials.values():
            if dial.sock is not None:
                dial.sock.close()
        self._selector.close()
        self._wake_reader.close()
        self._wake_writer.close()


def _bounded(operation: Operation[T], timeout_ms: int, name: str) -> Operation[T]:
    """Run an operation as a task of its own and cancel it when its time is up."""
    task = yield from effects.spawn(operation, name=name)
    try:
        result: T = yield from effects.join(task, timeout_ms=timeout_ms)
    except effects.Cancelled:
        yield from effects.cancel(task)
        raise
    except InvokeTimeout:
        yield from effects.cancel(task)
        raise
    return result

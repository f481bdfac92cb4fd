"""The driver on an asyncio event loop (also uvloop's).

Operations are stepped from the loop's callbacks and not wrapped in asyncio tasks: bytes that
arrive resume the waiting operations in the same callback, and one loop timer serves all
deadlines. Only a caller of `run` waits as asyncio code does, for one future.

The driver belongs to the loop on which it is first used, and to that loop's thread; from another
thread use `loop.call_soon_threadsafe`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import socket
import ssl
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Self, TypeVar, cast

from sparrowmq.calling import clock
from sparrowmq.calling.call_pool import CLOSE_TIMEOUT_MS, POOL_SIZE, CallPool, log_left
from sparrowmq.calling.call_run import CallRun, UserCalls
from sparrowmq.calling.channel import (
    CONNECT_TIMEOUT_MS,
    WRITE_BUFFER_BYTES_MAX,
    Channel,
    OnConnectionLost,
    OnRequest,
)
from sparrowmq.calling.channel_table import ChannelTable
from sparrowmq.calling.effects import (
    CALLS_MS,
    Call,
    CallEach,
    Cancelled,
    Invoke,
    Operation,
    Outcome,
    drop_empty,
)
from sparrowmq.calling.scheduler import (
    NEVER_MS,
    Asking,
    Continuation,
    OperationTask,
    Scheduler,
    Waiter,
)
from sparrowmq.calling.sockets import is_quick, look_up, split_address, tune
from sparrowmq.calling.tls import (
    CLOSED_IN_HANDSHAKE,
    HANDSHAKE_TIMED_OUT,
    HANDSHAKE_TIMEOUT_MS,
    check_context,
    describe,
)
from sparrowmq.errors import TransportError, UsageError
from sparrowmq.protocol.signatures import Credentials

LOG = logging.getLogger("sparrowmq.calling")

T = TypeVar("T")


class AsyncDriver:
    """Runs operations on an event loop.

    Args:
        on_request: answers the requests that servers send; if it returns None, no answer is sent.
            Without `on_request` such requests are answered as not supported.
        on_connection_lost: called with the address of each open connection that ends.
        pool_size: the most threads for `Call` of plain functions. Coroutine functions run on the
            loop.
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
        self._tls = check_context(tls)
        self._pool_size = pool_size
        self._pool: CallPool | None = None
        self._user_calls = UserCalls()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._scheduler = Scheduler(
            monotonic_ms=clock.monotonic_ms,
            timestamp_ms=clock.timestamp_ms,
            carry=self._carry,
            drop=_drop,
            on_ready=self._run_soon,
        )
        self._channels = ChannelTable(
            self._scheduler,
            self._dial,
            on_request=on_request,
            on_connection_lost=on_connection_lost,
            is_tls=self._tls is not None,
            credentials=credentials,
        )
        # True while a turn is under way or scheduled on the loop.
        self._turn_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = NEVER_MS
        self._dials: dict[Channel, asyncio.Future[None]] = {}
        # The futures that `aclose` waits for: dials, coroutine calls, open connections.
        self._awaited: set[asyncio.Future[Any]] = set()
        self._is_closing = False

    async def __aenter__(self) -> Self:
        self._bind()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def use_tls(self, tls: ssl.SSLContext) -> None:
        """Use another TLS context for new connections; the driver must have had a context."""
        assert self._tls is not None
        self._tls = tls

    def check_outside(self) -> None:
        """Raise a UsageError on another event loop, which cannot await this driver's tasks.

        A client asks before it begins to close.
        """
        if self._loop not in (None, running_loop()):
            raise other_loop()

    def check_usable(self) -> None:
        """Raise a UsageError after `aclose`, on another event loop, and in a forked process."""
        self._bind()

    @property
    def is_in_call(self) -> bool:
        """Whether the user's code in a `Call` or `CallEach` of this driver asks."""
        return self._user_calls.is_inside

    async def run(self, operation: Operation[T], *, name: str = "run") -> T:
        """Run an operation and return its result.

        If the awaiting asyncio task is cancelled, the operation is cancelled as well.

        Raises: the operation's errors; UsageError if the driver is closed (now or meanwhile) or
            belongs to another loop or process.
        """
        run = _Run(
            self._scheduler,
            operation=operation,
            name=name,
            context=copy_context(),
            future=self._bind().create_future(),
        )
        run.go_on()
        if not self._turn_due:
            # Concurrent callers, such as the sends of one `gather`, then share one write
            # (benchmarks/client.py).
            self._run_soon()
        try:
            result: T = await run.future
        except BaseException as error:
            if not run.future.done() or run.future.cancelled():
                run.cancel()
            elif isinstance(error, Cancelled):
                raise UsageError(
                    "this client was closed meanwhile"
                    if self._is_closing
                    else f"operation {name} was cancelled"
                ) from error
            raise
        return result

    def ask(self, invoke: Invoke) -> asyncio.Future[Outcome]:
        """Send a request; the future gets its answer, or the error that `invoke` would raise.

        A future that is cancelled keeps its place among the requests under way until its answer
        comes or its time is up.

        Raises: UsageError as `run`.
        """
        future: asyncio.Future[Outcome] = self._bind().create_future()
        _Answer(self._scheduler, future=future).ask(invoke)
        if not self._turn_due:
            self._run_soon()
        return future

    def spawn(self, operation: Operation[Any], *, name: str) -> OperationTask:
        """Start an operation beside others; it begins at the loop's next turn."""
        self._bind()
        task = OperationTask(operation, name, context=copy_context())
        self._scheduler.add(task)
        return task

    def cancel(self, task: OperationTask) -> None:
        """Cancel a task at the loop's next turn, unless it is done."""
        self._scheduler.cancel(task)

    def grow_pool(self, count: int) -> None:
        """Allow `count` more threads for `Call`. From any thread."""
        self._pool_size += count
        if self._pool is not None:
            self._pool.grow(count)

    async def aclose(self, *, timeout_ms: int = CLOSE_TIMEOUT_MS) -> None:
        """Cancel all tasks, close all connections and end the pool. A second call does nothing.

        Args:
            timeout_ms: how long to wait for functions in `Call`. Functions that have not ended
                then are logged and left running.

        Raises: UsageError on another event loop.
        """
        if self._is_closing:
            return
        self.check_outside()
        self._is_closing = True
        self._turn_due = True  # No further turn begins.
        self._scheduler.stop()
        self._channels.close()
        for dial in self._dials.values():
            dial.cancel()
        self._channels.report_unjoined()
        if self._timer is not None:
            self._timer.cancel()
        if self._awaited:
            _, left = await asyncio.wait(self._awaited, timeout=timeout_ms / 1000)
            if left:
                LOG.warning("%d connections or calls did not end", len(left))
        if self._pool is not None:
            await self._close_pool(self._pool, timeout_ms)

    # Turns.

    def _bind(self) -> asyncio.AbstractEventLoop:
        loop = running_loop()
        if self._loop is not loop:
            self.check_outside()
            self._loop = loop
        if self._is_closing:
            raise UsageError("this client is closed; open a new one")
        if self._channels.is_copy:
            self._channels.check_process()
        return loop

    def _run_soon(self) -> None:
        if not self._turn_due and self._loop is not None:
            self._turn_due = True
            self._loop.call_soon(self._end_turn)

    def _begin_turn(self) -> None:
        """Leave tasks that become ready to `_end_turn`, which the caller will call."""
        self._turn_due = True

    def _end_turn(self) -> None:
        """Step tasks and send their writes, until no task is ready and no bytes wait."""
        if self._is_closing:
            return
        scheduler, channels = self._scheduler, self._channels
        try:
            while True:
                scheduler.run_ready()
                if not channels.unflushed:
                    break
                for channel in channels.take_unflushed():
                    channel.flush(scheduler)
        finally:
            self._turn_due = False
            if scheduler.ready:
                self._run_soon()
            self._update_timer()

    def _update_timer(self) -> None:
        deadline_ms = self._scheduler.next_deadline_ms()
        if deadline_ms < self._timer_ms:
            self._set_timer(deadline_ms)

    def _set_timer(self, deadline_ms: int) -> None:
        assert self._loop is not None
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = deadline_ms
        delay_ms = max(0, deadline_ms - clock.monotonic_ms())
        self._timer = self._loop.call_later(delay_ms / 1000, self._expire)

    def _expire(self) -> None:
        if self._is_closing:
            return
        self._begin_turn()
        self._timer = None
        self._timer_ms = NEVER_MS
        for timed in self._scheduler.expire(clock.monotonic_ms()):
            self._channels.expire(timed)
        self._end_turn()

    # Effects.

    def _carry(self, task: OperationTask, effect: Call | CallEach) -> None:
        if isinstance(effect, Call):
            self._call(task, effect)
        else:
            run = _CoroutineRun(effect)
            is_async = _is_coroutine_function(effect.function)
            self._call(task, Call(run.run_coroutines if is_async else run.run, ()), run)

    def _call(self, task: OperationTask, effect: Call, run: CallRun | None = None) -> None:
        assert self._loop is not None
        if _is_coroutine_function(effect.function):
            future = self._await(self._call_coroutine(effect), task.context)
            task.place = future
            future.add_done_callback(partial(self._awaited_call_done, task))
            return
        if self._pool is None:
            self._pool = CallPool(size=self._pool_size, name="sparrowmq-call")
        task.place = ticket = object() if run is None else run
        returned = partial(_hand_over, self._loop, partial(self._scheduler.end_call, task, ticket))
        self._pool.submit(self._user_calls.make, (effect.function, *effect.args), returned)

    async def _call_coroutine(self, effect: Call) -> Any:
        try:
            with self._user_calls.one():
                return await effect.function(*effect.args)
        except (SystemExit, KeyboardInterrupt) as error:
            # A task that ends so would stop the event loop, and every operation with it.
            raise UsageError(f"the function raised {error!r}") from error

    def _awaited_call_done(self, task: OperationTask, future: asyncio.Future[Any]) -> None:
        end_call = partial(self._scheduler.end_call, task, future)
        if future.cancelled():
            end_call(None, UsageError("the coroutine was cancelled"))
        elif (error := future.exception()) is not None:
            end_call(None, error)
        else:
            end_call(future.result(), None)

    def _await(
        self, coroutine: Coroutine[Any, Any, Any], context: Context | None = None
    ) -> asyncio.Future[Any]:
        """Start a coroutine and keep it until it ends.

        It sees the context variables of `context` or none, and not those of whoever has woken the
        driver: of another client, or of the one that has opened the connection.
        """
        context = Context() if context is None else context.copy()
        future: asyncio.Future[Any] = asyncio.create_task(coroutine, context=context)
        self._awaited.add(future)
        future.add_done_callback(self._awaited.discard)
        return future

    # Connections.

    def _dial(self, channel: Channel) -> None:
        dial = self._dials[channel] = self._await(self._open(channel))
        dial.add_done_callback(partial(self._dialled, channel))

    async def _open(self, channel: Channel) -> None:
        assert self._loop is not None
        closed: asyncio.Future[None] = self._loop.create_future()
        settings: dict[str, Any] = {}
        try:
            host, port = split_address(channel.address)
            if self._tls is not None:
                settings = {
                    "ssl": self._tls,
                    "server_hostname": host,
                    "ssl_handshake_timeout": HANDSHAKE_TIMEOUT_MS / 1000,
                }
            async with asyncio.timeout(CONNECT_TIMEOUT_MS / 1000):
                sock = await self._connect(host, port)
            try:
                await self._loop.create_connection(
                    lambda: _Connection(self, channel, closed), sock=sock, **settings
                )
            except BaseException:
                sock.close()
                raise
        except TimeoutError as error:
            self._lose(channel, f"no answer within {CONNECT_TIMEOUT_MS} ms", error)
        # Event loops raise this for a handshake that times out or that the peer breaks off.
        except ConnectionAbortedError as error:
            self._lose(channel, HANDSHAKE_TIMED_OUT, error)
        except ConnectionResetError as error:
            reason = _reason_of(error) if self._tls is None else CLOSED_IN_HANDSHAKE
            self._lose(channel, reason, error)
        except OSError as error:
            self._lose(channel, _reason_of(error), error)
        # A wrong address or name, or no thread to look the name up in.
        except Exception as error:
            self._lose(channel, str(error), error)

    async def _connect(self, host: str, port: int) -> socket.socket:
        """Return a socket that is connected to one of a name's addresses.

        An address that drops packets leaves the others their part of the time.

        Raises: OSError of the last address.
        """
        assert self._loop is not None
        if is_quick(host):
            candidates = look_up(host, port)
        else:
            candidates = await asyncio.to_thread(look_up, host, port)
        failure: OSError = socket.gaierror(socket.EAI_NONAME, "no address of this name")
        for family, sockaddr in candidates:
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                sock.setblocking(False)
                async with asyncio.timeout(CONNECT_TIMEOUT_MS / len(candidates) / 1000):
                    await self._loop.sock_connect(sock, sockaddr)
            except OSError as error:
                sock.close()
                failure = error
            except BaseException:
                sock.close()
                raise
            else:
                return sock
        raise failure

    def _dialled(self, channel: Channel, dial: asyncio.Future[None]) -> None:
        del self._dials[channel]
        if dial.cancelled():
            # Some programs cancel all tasks of their loop, and then close their clients.
            self._lose(channel, "the task that connects was cancelled", None)

    def opened(self, channel: Channel, connection: _Connection) -> None:
        """Take over an open connection. For `_Connection`."""
        self._channels.log_opened(channel)
        self._awaited.add(connection.closed)
        connection.closed.add_done_callback(self._awaited.discard)
        self._begin_turn()
        self._scheduler.read_clock()
        channel.opened(connection, self._scheduler)
        self._end_turn()

    def received(self, channel: Channel, data: bytes) -> None:
        """Process bytes and step the operations that waited for them. For `_Connection`."""
        self._begin_turn()
        self._scheduler.read_clock()
        self._channels.received(channel, data)
        self._end_turn()

    def drained(self, channel: Channel) -> None:
        """Write the requests that waited for room. For `_Connection`."""
        self._begin_turn()
        channel.drained(self._scheduler)
        self._end_turn()

    def lost(self, channel: Channel, error: Exception | None) -> None:
        """Fail the tasks that wait for a connection that has ended. For `_Connection`."""
        said = _reason_of(error) if isinstance(error, OSError) else "closed by the peer"
        self._lose(channel, channel.ended_by_peer(said), error)

    def _lose(self, channel: Channel, reason: str, error: Exception | None) -> None:
        """Close a connection, and write what those that waited for it ask for instead."""
        self._begin_turn()
        self._channels.lose(channel, reason, error)
        self._end_turn()

    async def _close_pool(self, pool: CallPool, timeout_ms: int) -> None:
        assert self._loop is not None
        ended = asyncio.Event()
        pool.close(on_ended=partial(_hand_over, self._loop, ended.set))
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await ended.wait()
        except TimeoutError:
            pass
        log_left(pool.join(timeout_ms=100 if ended.is_set() else 0))


def other_loop() -> UsageError:
    """Return the error of a client that is used on a second event loop."""
    return UsageError(
        "this client runs on another event loop, where it was used first; use and close a client "
        "in one loop (asyncio.run makes a new one at each call)"
    )


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the thread's running event loop. Raises: UsageError if there is none."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise UsageError(
            "a client of asyncio is used in its event loop, and this thread runs none; from "
            "another thread use asyncio.run_coroutine_threadsafe(..., loop), or a client without "
            "Async"
        ) from None


class _Run(Continuation, kw_only=True):
    """An operation in `run`, whose end resolves the caller's future."""

    future: asyncio.Future[Any]

    def end(self, result: Any, error: BaseException | None) -> None:
        """Resolve the future, unless its caller was cancelled."""
        if self.future.done():
            return
        if error is None:
            self.future.set_result(result)
        else:
            self.future.set_exception(error)


class _Answer(Asking, kw_only=True):
    """A request in `ask`."""

    future: asyncio.Future[Outcome]

    def go_on(self, value: Any = None, thrown: BaseException | None = None) -> None:
        """Resolve the future, unless it was cancelled."""
        if self.future.done():
            return
        if self.scheduler.is_stopped:
            self.future.set_exception(UsageError("this client was closed meanwhile"))
        elif thrown is None or isinstance(thrown, TransportError):
            self.future.set_result(value if thrown is None else thrown)
        else:
            self.future.set_exception(thrown)


class _CoroutineRun(CallRun):
    """The calls of one `CallEach`, of a plain or a coroutine function."""

    __slots__ = ()

    async def run_coroutines(self) -> None:
        """Make the calls of a coroutine function."""
        effect = self.effect
        function, waiting = effect.function, effect.waiting
        first_ms = begun_ms = clock.monotonic_ms()
        while waiting and not self.is_cancelled and begun_ms - first_ms < CALLS_MS:
            calls = waiting[0]
            call = calls.begin()
            if call is None:
                drop_empty(waiting, calls)
                continue
            at, arguments = call
            value = None
            raised: BaseException | None = None
            try:
                value = await function(*arguments)
            except GeneratorExit as error:
                # The user's code has raised it, or the event loop is closed: then nothing may be
                # awaited any more.
                raised, self.is_cancelled = error, True
            except asyncio.CancelledError:
                raised = UsageError("the coroutine was cancelled")
                task = asyncio.current_task()
                self.is_cancelled = task is not None and task.cancelling() > 0
            except BaseException as error:
                # The user's code may raise anything.
                raised = error
            ended_ms = clock.monotonic_ms()
            calls.end(at, arguments, value, raised, ended_ms - begun_ms)
            begun_ms = ended_ms


class _Connection(asyncio.Protocol):
    """One TCP connection: the `Wire` of its channel."""

    def __init__(self, driver: AsyncDriver, channel: Channel, closed: asyncio.Future[None]) -> None:
        self._driver = driver
        self._channel = channel
        self._unsent: list[bytes] = []
        self._size = 0
        self._is_paused = False
        self._transport: asyncio.Transport | None = None
        self.closed = closed

    @property
    def room(self) -> int:
        """How many more bytes to gather."""
        return 0 if self._is_paused else WRITE_BUFFER_BYTES_MAX - self._size

    def write(self, frames: Sequence[bytes]) -> None:
        """Gather frames to send."""
        self._unsent += frames
        self._size += sum(map(len, frames))

    def flush(self) -> bool:
        """Pass the bytes to the transport; return whether the transport may take more."""
        if self._transport is None or not self._unsent:
            return not self._is_paused
        # Frames of tasks that ran together go out in one call.
        unsent, self._unsent, self._size = self._unsent, [], 0
        self._transport.write(unsent[0] if len(unsent) == 1 else b"".join(unsent))
        return not self._is_paused

    def close(self) -> None:
        """Close the transport without a further callback."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, because uvloop's transports do not derive from asyncio's.
        transport = cast(asyncio.Transport, transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES_MAX)
        sock: socket.socket = transport.get_extra_info("socket")
        tune(sock)
        if self._channel.is_closed:
            transport.abort()
        elif sock.getsockname() == sock.getpeername():
            # See `sockets.end_connect`.
            self._driver.lost(self._channel, ConnectionRefusedError("connected to itself"))
            transport.abort()
        else:
            self._driver.opened(self._channel, self)

    def data_received(self, data: bytes) -> None:
        if not self._channel.is_closed:
            self._driver.received(self._channel, data)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)
        if not self._channel.is_closed:
            self._driver.lost(self._channel, exc)

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        if not self._channel.is_closed:
            self._driver.drained(self._channel)


def _reason_of(error: OSError) -> str:
    if (words := describe(error)) is not None:
        return words
    # asyncio replaces the system's text by its own; a failed look-up has no system error.
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error)


def _drop(waiter: Waiter, place: Any) -> None:
    if isinstance(place, Channel):
        place.forget(waiter)
    elif isinstance(place, asyncio.Future):
        place.cancel()
    elif isinstance(place, CallRun):
        place.is_cancelled = True


def _hand_over(loop: asyncio.AbstractEventLoop, function: Callable[..., Any], *args: Any) -> None:
    """Call a function on the loop's thread; drop it if the loop is closed."""
    try:
        loop.call_soon_threadsafe(function, *args)
    except RuntimeError:
        LOG.debug("a result came after its event loop was closed")


def _is_coroutine_function(function: Callable[..., Any]) -> bool:
    while isinstance(function, partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004
    )

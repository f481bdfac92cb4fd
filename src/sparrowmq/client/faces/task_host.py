"""The host of the asyncio face: its driver, and the task in which a consumer runs.

`thread_host` has the same names for the synchronous face, which tools/generate.py makes from the
asyncio face: only these two files differ in more than words. Tests: client/test_push_consumer.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakSet

from sparrowmq.calling.async_driver import AsyncDriver, other_loop, running_loop
from sparrowmq.calling.effects import Operation
from sparrowmq.client.config import ClientConfig
from sparrowmq.client.instances import INSTANCES, ClientInstance
from sparrowmq.client.name_servers import NameServers
from sparrowmq.model import SendResult

Future = asyncio.Future
# Whether users' functions may be coroutine functions.
TAKES_COROUTINES = True


def open_driver(client: ClientConfig) -> AsyncDriver:
    """Make a driver that no other client shares."""
    return AsyncDriver(tls=client.tls, credentials=client.credentials)


def open_instance(
    client_id: str, name_servers: NameServers, client: ClientConfig
) -> ClientInstance[AsyncDriver]:
    """Return the instance of a client id on this event loop."""
    return INSTANCES.open(
        AsyncDriver, client_id, addresses=name_servers.addresses, scope=_scope(), client=client
    )


def _scope() -> Hashable:
    """Return the key of the running loop's instances; without a loop nothing is shared."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return object()


class TaskFuture(asyncio.Future[SendResult]):
    """The future of a queued message.

    A function for its making would take as long as the rest of it.

    Attributes:
        note_unread: called with the error of a future that ends without anybody reading it.
    """

    __slots__ = ("note_unread",)

    note_unread: Callable[[BaseException], None]

    def take_unread(self) -> BaseException | None:
        """Return an error that nobody has read, once; None for none."""
        if not self._log_traceback:
            return None
        # asyncio would log a traceback for each message.
        self._log_traceback = False
        return self.exception()

    def __del__(self) -> None:
        if self._log_traceback and (error := self.take_unread()) is not None:
            self.note_unread(error)


class TaskFutures:
    """The futures of a producer's queued messages.

    Args:
        note_unread: called with the error of a future that ends without anybody reading it.
    """

    def __init__(self, note_unread: Callable[[BaseException], None]) -> None:
        self._note_unread = note_unread
        # Failed futures that somebody holds, perhaps without a look at them.
        self._failed: WeakSet[TaskFuture] = WeakSet()
        # That of the first message, whose task sends all.
        self._loop: asyncio.AbstractEventLoop | None = None

    def make(self) -> TaskFuture:
        """Return the future of a message. Raises: UsageError on another event loop."""
        loop = running_loop()
        if loop is not self._loop:
            if self._loop is not None:
                raise other_loop()
            self._loop = loop
        future = TaskFuture(loop=loop)
        future.note_unread = self._note_unread
        return future

    def settle(
        self, futures: Sequence[TaskFuture], outcome: Sequence[SendResult] | Exception
    ) -> None:
        """End futures with a result each, or all with one error."""
        if isinstance(outcome, Exception):
            for future in futures:
                if not future.done():
                    future.set_exception(outcome)
                    self._failed.add(future)
            return
        for future, result in zip(futures, outcome, strict=True):
            # It may have been cancelled.
            if not future.done():
                future.set_result(result)

    def note_unread(self) -> None:
        """Note the errors that nobody has read yet."""
        for future in tuple(self._failed):
            if (error := future.take_unread()) is not None:
                self._note_unread(error)


class TaskHost:
    """The task that runs a membership's loop."""

    def __init__(self, driver: AsyncDriver) -> None:
        self._driver = driver
        self._task: asyncio.Task[None] | None = None
        # Whether `start` was called.
        self.is_started = False
        self._ending = asyncio.Event()
        self._closing: asyncio.Task[None] | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the loop has returned, failed or been cancelled."""
        return self._task is not None and self._task.done()

    def start(
        self,
        loop: Callable[[], Coroutine[Any, Any, None]],
        *,
        name: str,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        """Run the loop beside the caller, and then `on_end`, also if the loop is cancelled.

        Raises: UsageError on another event loop.
        """
        self._driver.check_outside()
        self._task = asyncio.create_task(loop(), name=name)
        if on_end is not None:
            # A task that is cancelled before its first step runs none of its code.
            self._task.add_done_callback(lambda _: on_end())
        self.is_started = True

    async def serve(self, operation: Operation[None]) -> None:
        """Run the operation of the membership, in the loop."""
        await self._driver.run(operation, name="consume")

    def call(self, change: Callable[[], None]) -> None:
        """Run a function that changes the state of the membership, now or soon."""
        if self._task is None or self._task.get_loop() is _scope():
            change()
        else:
            # The cyclic collector may end a client in any thread.
            self._task.get_loop().call_soon_threadsafe(change)

    def close_beside(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begin to close the client beside the caller, once."""
        if self._closing is None:
            self._closing = asyncio.create_task(close(), name="sparrowmq-close")

    async def wait_closed_beside(self) -> None:
        """Wait for the end of `close_beside`, if it was called."""
        if self._closing is not None:
            await asyncio.shield(self._closing)

    async def pause(self, seconds: float) -> None:
        """Wait in the loop; `end` ends the wait."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ending.wait()

    async def end(self, timeout_s: float, *, give_up: Callable[[], None]) -> None:
        """Wait for the loop to return, and end it when the time is up."""
        assert self._task is not None
        self._ending.set()
        _, left = await asyncio.wait({self._task}, timeout=timeout_s)
        for task in left:
            give_up()
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

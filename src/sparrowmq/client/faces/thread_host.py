"""The host of the synchronous face: its driver, and the thread in which a consumer runs.

The names are those of `task_host`, which gives the reason. Consumers that share an instance share
its driver: one of their threads leads, the others follow. Tests: client/test_push_consumer.py.
"""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable, Sequence
from concurrent.futures._base import FINISHED, RUNNING
from functools import partial
from typing import Any
from weakref import WeakSet

from sparrowmq.calling.blocking_driver import BlockingDriver
from sparrowmq.calling.effects import Operation
from sparrowmq.client.config import ClientConfig
from sparrowmq.client.instances import INSTANCES, ClientInstance
from sparrowmq.client.name_servers import NameServers
from sparrowmq.errors import UsageError
from sparrowmq.model import SendResult

Future = concurrent.futures.Future
TAKES_COROUTINES = False

# All clients of the synchronous face may share an instance.
_SCOPE = "threads"


def open_driver(client: ClientConfig) -> BlockingDriver:
    """Make a driver that no other client shares."""
    return BlockingDriver(tls=client.tls, credentials=client.credentials)


def open_instance(
    client_id: str, name_servers: NameServers, client: ClientConfig
) -> ClientInstance[BlockingDriver]:
    """Return the instance of a client id in this process."""
    return INSTANCES.open(
        BlockingDriver, client_id, addresses=name_servers.addresses, scope=_SCOPE, client=client
    )


class ThreadFuture(concurrent.futures.Future[SendResult]):
    """The future of a queued message; it cannot be cancelled.

    What the base makes for each future costs as much as a message's other steps. So a future has a
    condition only once a thread waits for it, and one lock guards all futures of a producer.

    Args:
        futures: the producer's futures.
    """

    _is_read = False

    def __init__(self, futures: ThreadFutures) -> None:
        self._futures = futures
        # The fields of the base, but for the condition and the lists of those who wait.
        self._state = RUNNING
        self._result = None
        self._exception = None

    def __getattr__(self, name: str) -> Any:
        if name != "_condition":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        with self._futures.lock:
            if name not in self.__dict__:
                self._waiters = []
                self._condition = threading.Condition()
                self._futures.watch(self)
            return self._condition

    def done(self) -> bool:
        """Return whether there is a result or an error."""
        return self._result is not None or self._state == FINISHED

    def result(self, timeout: float | None = None) -> SendResult:
        """Return the result, or raise the error."""
        if self._result is not None:
            return self._result
        self._is_read = True
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error, None for a result."""
        self._is_read = True
        return super().exception(timeout)

    def add_done_callback(self, fn: Callable[[Future[SendResult]], Any]) -> None:
        """Call a function at the end; the function reads the result."""

        def call(future: Future[SendResult]) -> None:
            try:
                fn(future)
            except Exception:
                # The library logs it.
                raise
            except BaseException as error:
                # It would end the thread that sends.
                raise UsageError(f"{fn!r} raised {error!r}") from error

        self._is_read = True
        with self._futures.lock:
            if self._state != FINISHED:
                self.__dict__.setdefault("_done_callbacks", []).append(call)
                self._futures.watch(self)
                return
        super().add_done_callback(call)

    def tell(self) -> None:
        """Wake the threads that wait for the end, and call the callbacks."""
        if "_condition" in self.__dict__:
            with self._condition:
                for waiter in self._waiters:
                    if self._exception is None:
                        waiter.add_result(self)
                    else:
                        waiter.add_exception(self)
                self._condition.notify_all()
        if "_done_callbacks" in self.__dict__:
            self._invoke_callbacks()

    def take_unread(self) -> BaseException | None:
        """Return an error that nobody has read, once; None for none."""
        if self._is_read or self._exception is None:
            return None
        self._is_read = True
        return self._exception

    def __del__(self) -> None:
        # One whose making was interrupted has no fields.
        is_whole = "_exception" in self.__dict__
        if is_whole and self._result is None and (error := self.take_unread()) is not None:
            self._futures.note(error)


class ThreadFutures:
    """The futures of a producer's queued messages.

    Args:
        note_unread: called with the error of a future that ends without anybody reading it.
    """

    def __init__(self, note_unread: Callable[[BaseException], None]) -> None:
        self.lock = threading.Lock()
        self.note = note_unread
        # Those that somebody waits for, in a thread or by a function.
        self._watched: set[ThreadFuture] = set()
        # Failed futures that somebody holds, perhaps without a look at them.
        self._failed: WeakSet[ThreadFuture] = WeakSet()
        # Returns the future of a message.
        self.make = partial(ThreadFuture, self)

    def watch(self, future: ThreadFuture) -> None:
        """Tell a future of its end. The caller has the lock."""
        if future._state != FINISHED:
            self._watched.add(future)

    def settle(
        self, futures: Sequence[ThreadFuture], outcome: Sequence[SendResult] | Exception
    ) -> None:
        """End futures with a result each, or all with one error."""
        watched = self._watched
        with self.lock:
            if isinstance(outcome, Exception):
                for future in futures:
                    future._exception = outcome
                    self._failed.add(future)
                    future._state = FINISHED
            else:
                for future, result in zip(futures, outcome, strict=True):
                    # In this order: `result` reads without the lock.
                    future._result = result
                    future._state = FINISHED
            ended = [future for future in futures if future in watched] if watched else ()
            watched.difference_update(ended)
        for future in ended:
            future.tell()

    def note_unread(self) -> None:
        """Note the errors that nobody has read yet."""
        for future in tuple(self._failed):
            if (error := future.take_unread()) is not None:
                self.note(error)


class ThreadHost:
    """The thread that runs a membership's loop."""

    def __init__(self, driver: BlockingDriver) -> None:
        self._driver = driver
        self._thread: threading.Thread | None = None
        # Whether `start` was called.
        self.is_started = False
        self._ending = threading.Event()
        self._closing: threading.Thread | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the loop has returned or failed."""
        return self._thread is not None and not self._thread.is_alive()

    def start(
        self, loop: Callable[[], None], *, name: str, on_end: Callable[[], None] | None = None
    ) -> None:
        """Run the loop beside the caller, and then `on_end`, whatever ends the loop."""

        def run() -> None:
            try:
                loop()
            finally:
                if on_end is not None:
                    on_end()

        self._thread = threading.Thread(target=run, name=name, daemon=True)
        self._thread.start()
        self.is_started = True

    def serve(self, operation: Operation[None]) -> None:
        """Run the operation of the membership, in the loop."""
        self._driver.serve(operation, name="consume")

    def call(self, change: Callable[[], None]) -> None:
        """Run a function that changes the state of the membership, now or soon."""
        if self._thread is None:
            change()
        else:
            self._driver.call_soon_threadsafe(change)

    def close_beside(self, close: Callable[[], None]) -> None:
        """Begin to close the client beside the caller, once; the process does not end before."""
        if self._closing is None:
            self._closing = threading.Thread(target=close, name="sparrowmq-close", daemon=False)
            self._closing.start()

    def wait_closed_beside(self) -> None:
        """Wait for the end of `close_beside`, if it was called."""
        if self._closing is not None:
            self._closing.join()

    def pause(self, seconds: float) -> None:
        """Wait in the loop; `end` ends the wait."""
        self._ending.wait(seconds)

    def end(self, timeout_s: float, *, give_up: Callable[[], None]) -> None:
        """Wait for the loop to return; when the time is up, make the driver abandon it."""
        assert self._thread is not None
        self._ending.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._driver.call_soon_threadsafe(give_up)

"""The host of the synchronous face: its driver, and the thread in which a consumer runs.

The names are those of `task_host`, which gives the reason. Consumers that share an instance share
its driver: one of their threads leads, the others follow. Tests: client/test_push_consumer.py.
"""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable
from typing import Any

from sparrowmq.calling.blocking_driver import BlockingDriver
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

    Args:
        note_unread: called with the error of a future that ends without anybody reading it.
    """

    def __init__(self, note_unread: Callable[[BaseException], None]) -> None:
        super().__init__()
        self._note_unread = note_unread
        self._is_read = False
        self.set_running_or_notify_cancel()

    def result(self, timeout: float | None = None) -> SendResult:
        """Return the result, or raise the error."""
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
        super().add_done_callback(call)

    def take_unread(self) -> BaseException | None:
        """Return an error that nobody has read, once; None for none."""
        if self._is_read or not self.done():
            return None
        return self.exception()

    def __del__(self) -> None:
        if (error := self.take_unread()) is not None:
            self._note_unread(error)


class ThreadHost:
    """The thread that runs a membership's loop."""

    def __init__(self, driver: BlockingDriver) -> None:
        self._driver = driver
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()

    @property
    def is_started(self) -> bool:
        """Whether `start` was called."""
        return self._thread is not None

    @property
    def has_ended(self) -> bool:
        """Whether the loop has returned or failed."""
        return self._thread is not None and not self._thread.is_alive()

    def start(self, loop: Callable[[], None], *, name: str) -> None:
        """Run the loop beside the caller."""
        self._thread = threading.Thread(target=loop, name=name, daemon=True)
        self._thread.start()

    def call(self, change: Callable[[], None]) -> None:
        """Run a function that changes the state of the membership, now or soon."""
        if self._thread is None:
            change()
        else:
            self._driver.call_soon_threadsafe(change)

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

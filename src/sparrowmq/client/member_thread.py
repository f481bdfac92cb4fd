"""The thread in which a consumer of the synchronous face is a member of its group.

Consumers that share an instance share its driver: one of their threads leads, the others follow.
"""

from __future__ import annotations

import logging
import ssl
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from sparrowmq.calling import clock
from sparrowmq.calling.blocking_driver import CLOSE_TIMEOUT_MS, BlockingDriver
from sparrowmq.calling.effects import Operation
from sparrowmq.client.assembly import (
    CLOSE_MARGIN_MS,
    DRIVER_CLOSE_MS,
    RESTART_S,
    check_start,
    give_up,
)
from sparrowmq.client.instances import INSTANCES
from sparrowmq.client.member_events import begin_leaving
from sparrowmq.client.notices import warn_no_subscription, warn_not_started
from sparrowmq.client.subscriber import Subscriber
from sparrowmq.errors import UsageError

T = TypeVar("T")

LOG = logging.getLogger("sparrowmq.client")

# All clients of the synchronous face may share an instance.
SCOPE = "threads"


class MemberThread:
    """A consumer's share of a driver, and the thread that serves it from `start` to `close`.

    Args:
        subscriber: the consumer's state.
        serve: makes the operation that is the membership; it is made anew if it fails.
        pool_size: threads for the user's functions.
        tls: the driver's.
    """

    def __init__(
        self,
        subscriber: Subscriber,
        serve: Callable[[], Operation[None]],
        *,
        pool_size: int,
        tls: ssl.SSLContext | None,
    ) -> None:
        self._subscriber = subscriber
        self._serve = serve
        config = subscriber.config
        self._instance = INSTANCES.open(
            BlockingDriver,
            config.client_id,
            addresses=subscriber.name_servers.addresses,
            scope=SCOPE,
            tls=tls,
        )
        self.driver = self._instance.driver
        self.driver.grow_pool(pool_size)
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        # A consumer that nobody starts does nothing, without an error.
        self._forgotten = weakref.finalize(self, warn_not_started, subscriber)

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closing.is_set()

    def start(self) -> None:
        """Begin the membership.

        Raises: UsageError if it was begun or closed before; as `check_start` and
        `ClientInstances.register`.
        """
        config = self._subscriber.config
        if self._thread is not None or self.is_closed:
            raise UsageError(f"consumer {config.client_id} was started before; make a new one")
        check_start(self._subscriber)
        warn_no_subscription(self._subscriber)
        self._forgotten.detach()
        INSTANCES.register(self._subscriber, self._instance)
        name = f"sparrowmq-consumer-{config.group}"
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._thread.start()

    def check_running(self) -> None:
        """Raise a UsageError before `start` and after `close`."""
        client_id = self._subscriber.config.client_id
        if self.is_closed:
            raise UsageError(f"consumer {client_id} is closed")
        if self._thread is None:
            raise UsageError(f"consumer {client_id} is not started; call start first")

    def run(self, operation: Operation[T]) -> T:
        """Run an operation, also before `start`; a UsageError after `close`."""
        if self.is_closed:
            # The driver may live on, of other clients of the same id.
            raise UsageError(f"consumer {self._subscriber.config.client_id} is closed")
        return self.driver.run(operation)

    def call(self, change: Callable[[], None]) -> None:
        """Have a function change the state, now or soon. Raises: UsageError after `close`."""
        if self.is_closed:
            raise UsageError(f"consumer {self._subscriber.config.client_id} is closed")
        if self._thread is None:
            change()
        else:
            self.driver.call_soon_threadsafe(change)

    def close(self, end: Callable[[], None] | None = None) -> None:
        """Leave the group and close the connections. A second call does nothing.

        It takes at most `drain_timeout_ms` and CLOSE_MARGIN_MS, whatever the loop is at.

        Args:
            end: called on the driver's thread before the membership ends.
        """
        if self.is_closed:
            return
        self._closing.set()
        timeout_ms = self._subscriber.config.drain_timeout_ms + CLOSE_MARGIN_MS
        deadline_ms = clock.monotonic_ms() + timeout_ms
        # Says so now if it was never started.
        self._forgotten()
        if self._thread is not None:
            if end is not None:
                self.driver.call_soon_threadsafe(end)
            self.driver.call_soon_threadsafe(self._begin_leaving)
            self._thread.join((timeout_ms - DRIVER_CLOSE_MS) / 1000)
            if self._thread.is_alive():
                self.driver.call_soon_threadsafe(partial(give_up, self._subscriber))
            INSTANCES.unregister(self._subscriber)
        if INSTANCES.close(self._instance):
            left_ms = max(0, deadline_ms - clock.monotonic_ms())
            self.driver.close(timeout_ms=min(left_ms, CLOSE_TIMEOUT_MS))

    def _begin_leaving(self) -> None:
        begin_leaving(self._subscriber, now_ms=clock.monotonic_ms())

    def _loop(self) -> None:
        while not self._subscriber.member.is_done:
            try:
                self.driver.run(self._serve(), name="consume")
            except Exception:
                if self.is_closed:
                    # The driver was closed: the loop did not end in time.
                    return
                # Outermost: the member keeps its state, and a consumer must not fall silent.
                LOG.exception("consumer %s failed and goes on", self._subscriber.config.client_id)
                self._closing.wait(RESTART_S)

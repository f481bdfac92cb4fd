"""The asyncio task in which a consumer of the asyncio face is a member of its group."""

from __future__ import annotations

import asyncio
import logging
import ssl
import weakref
from collections.abc import Callable, Hashable
from typing import TypeVar

from sparrowmq.calling import clock
from sparrowmq.calling.async_driver import CLOSE_TIMEOUT_MS, AsyncDriver
from sparrowmq.calling.effects import Operation
from sparrowmq.client.assembly import (
    CLOSE_MARGIN_MS,
    DRIVER_CLOSE_MS,
    RESTART_S,
    check_start,
)
from sparrowmq.client.instances import INSTANCES
from sparrowmq.client.member_events import begin_leaving
from sparrowmq.client.notices import warn_no_subscription, warn_not_started
from sparrowmq.client.subscriber import Subscriber
from sparrowmq.errors import UsageError

T = TypeVar("T")

LOG = logging.getLogger("sparrowmq.client")


def loop_scope() -> Hashable:
    """Return what tells instances of different loops apart; without a loop nothing is shared."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return object()


class MemberTask:
    """A consumer's share of a driver, and the task that serves it from `start` to `close`.

    Its methods are those of `member_thread.MemberThread`.
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
            AsyncDriver,
            config.client_id,
            addresses=subscriber.name_servers.addresses,
            scope=loop_scope(),
            tls=tls,
        )
        self.driver = self._instance.driver
        self.driver.grow_pool(pool_size)
        self._task: asyncio.Task[None] | None = None
        self.is_closed = False
        # A consumer that nobody starts does nothing, without an error.
        self._forgotten = weakref.finalize(self, warn_not_started, subscriber)

    def start(self) -> None:
        """Begin the membership.

        Raises: UsageError if it was begun or closed before; as `check_start` and
        `ClientInstances.register`.
        """
        config = self._subscriber.config
        if self._task is not None or self.is_closed:
            raise UsageError(f"consumer {config.client_id} was started before; make a new one")
        check_start(self._subscriber)
        warn_no_subscription(self._subscriber)
        self._forgotten.detach()
        INSTANCES.register(self._subscriber, self._instance)
        name = f"sparrowmq-consumer-{config.group}"
        self._task = asyncio.create_task(self._loop(), name=name)

    def check_running(self) -> None:
        """Raise a UsageError before `start` and after `close`."""
        client_id = self._subscriber.config.client_id
        if self.is_closed:
            raise UsageError(f"consumer {client_id} is closed")
        if self._task is None:
            raise UsageError(f"consumer {client_id} is not started; call start first")

    async def run(self, operation: Operation[T]) -> T:
        """Run an operation, also before `start`; a UsageError after `close`."""
        if self.is_closed:
            # The driver may live on, of other clients of the same id.
            raise UsageError(f"consumer {self._subscriber.config.client_id} is closed")
        return await self.driver.run(operation)

    def call(self, change: Callable[[], None]) -> None:
        """Change the state. Raises: UsageError after `close`."""
        if self.is_closed:
            raise UsageError(f"consumer {self._subscriber.config.client_id} is closed")
        change()

    async def close(self, end: Callable[[], None] | None = None) -> None:
        """Leave the group and close the connections. A second call does nothing."""
        if self.is_closed:
            return
        self.is_closed = True
        timeout_ms = self._subscriber.config.drain_timeout_ms + CLOSE_MARGIN_MS
        deadline_ms = clock.monotonic_ms() + timeout_ms
        # Says so now if it was never started.
        self._forgotten()
        if self._task is not None:
            if end is not None:
                end()
            begin_leaving(self._subscriber, now_ms=clock.monotonic_ms())
            wait_s = (timeout_ms - DRIVER_CLOSE_MS) / 1000
            _, left = await asyncio.wait({self._task}, timeout=wait_s)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            INSTANCES.unregister(self._subscriber)
        if INSTANCES.close(self._instance):
            left_ms = max(0, deadline_ms - clock.monotonic_ms())
            await self.driver.aclose(timeout_ms=min(left_ms, CLOSE_TIMEOUT_MS))

    async def _loop(self) -> None:
        while not self._subscriber.member.is_done:
            try:
                await self.driver.run(self._serve(), name="consume")
            except Exception:
                if self.is_closed:
                    return
                # Outermost: the member keeps its state, and a consumer must not fall silent.
                LOG.exception("consumer %s failed and goes on", self._subscriber.config.client_id)
                await asyncio.sleep(RESTART_S)

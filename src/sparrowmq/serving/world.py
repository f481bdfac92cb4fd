"""The clocks and the loop that a server needs besides its connections.

Production runs on an event loop; the simulation runs the same server in virtual time.
Tests: test_remoting_server.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

from sparrowmq.calling import clock

Result = TypeVar("Result")


class ServerTimer(Protocol):
    """A call that is to be made later."""

    def cancel(self) -> None:
        """Cancel the call."""
        ...


class ServerWorld(Protocol):
    """The clocks and the loop under a server."""

    def monotonic_ms(self) -> int:
        """Read the monotonic clock."""
        ...

    def timestamp_ms(self) -> int:
        """Read the wall clock."""
        ...

    def call_soon(self, function: Callable[[], None], /) -> object:
        """Call a function after all events that are ready now."""
        ...

    def call_later(self, delay_ms: int, function: Callable[[], None], /) -> ServerTimer:
        """Call a function after a time."""
        ...

    def call_aside(
        self, function: Callable[[], Result], done: Callable[[Result], None], /
    ) -> object:
        """Call a function, which raises nothing, in a thread, and then `done` on the loop."""
        ...


class LoopWorld:
    """The running event loop, and the machine's clocks.

    Args:
        timestamp_ms: a wall clock that replaces the machine's.
    """

    def __init__(self, *, timestamp_ms: Callable[[], int] = clock.timestamp_ms) -> None:
        self.monotonic_ms = clock.monotonic_ms
        self.timestamp_ms = timestamp_ms
        # The loop itself keeps no task.
        self._calls: set[asyncio.Task[None]] = set()

    def call_soon(self, function: Callable[[], None]) -> object:
        """Call a function at the loop's next step."""
        return asyncio.get_running_loop().call_soon(function)

    def call_later(self, delay_ms: int, function: Callable[[], None]) -> asyncio.TimerHandle:
        """Call a function after a time."""
        return asyncio.get_running_loop().call_later(delay_ms / 1000, function)

    def call_aside(self, function: Callable[[], Result], done: Callable[[Result], None]) -> object:
        """Call a function in a thread of the loop's executor, and then `done` on the loop."""

        async def call() -> None:
            done(await asyncio.to_thread(function))

        task = asyncio.get_running_loop().create_task(call())
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        return task

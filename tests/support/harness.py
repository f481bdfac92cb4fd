"""Every driver behind one face, for plain test functions."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import uvloop

from sparrowmq.calling.async_driver import AsyncDriver
from sparrowmq.calling.blocking_driver import BlockingDriver


class Returned(NamedTuple):
    """The end of a call of `CallEach`."""

    number: int
    value: Any
    error: BaseException | None
    duration_ms: int


class Numbers:
    """Calls of `CallEach`, each with a number, and their ends."""

    def __init__(self, *numbers: int) -> None:
        self.waiting = deque(numbers)
        self.returned: list[Returned] = []

    def begin(self) -> tuple[int, tuple[int]] | None:
        if not self.waiting:
            return None
        number = self.waiting.popleft()
        return number, (number,)

    def end(
        self,
        at: int,
        arguments: tuple[int],
        value: Any,
        error: BaseException | None,
        duration_ms: int,
    ) -> None:
        assert arguments == (at,)
        self.returned.append(Returned(at, value, error, duration_ms))


class Harness:
    """A driver, and the way to run an operation on it from a plain test function."""

    def __init__(self, kind: str, **settings: Any) -> None:
        self.kind = kind
        self.is_blocking = kind == "blocking"
        self._runner: asyncio.Runner | None = None
        self.driver: Any
        if self.is_blocking:
            self.driver = BlockingDriver(**settings)
            return
        factory = uvloop.new_event_loop if kind == "uvloop" else None
        self._runner = asyncio.Runner(loop_factory=factory)
        self.driver = AsyncDriver(**settings)

    def run(self, operation: Any) -> Any:
        if self._runner is None:
            return self.driver.run(operation)
        return self._runner.run(self.driver.run(operation))

    def call_soon_threadsafe(self, function: Callable[[], Any]) -> None:
        if self._runner is None:
            self.driver.call_soon_threadsafe(function)
        else:
            self._runner.get_loop().call_soon_threadsafe(function)

    def close_driver(self, **settings: Any) -> None:
        if self._runner is None:
            self.driver.close(**settings)
        else:
            self._runner.run(self.driver.aclose(**settings))

    def close(self) -> None:
        self.close_driver()
        if self._runner is not None:
            self._runner.close()

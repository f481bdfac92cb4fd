"""Carry out one `CallEach` in a thread, and know the user's code that a driver calls.

Tests: test_blocking_driver.py, client/test_push_consumer.py.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from sparrowmq.calling import clock
from sparrowmq.calling.effects import CALLS_MS, CallEach, drop_empty

# The call in which the running code is. What a call starts inherits it, also tasks of asyncio.
_CALL: ContextVar[object] = ContextVar("sparrowmq_call")


class UserCalls:
    """The calls of the user's code that a driver has under way. Threads share one."""

    def __init__(self) -> None:
        self._under_way: set[object] = set()

    @property
    def is_inside(self) -> bool:
        """Whether the caller runs in one of the calls, or was started by one."""
        return _CALL.get(None) in self._under_way

    def make(self, function: Callable[..., Any], *args: Any) -> Any:
        """Make a call of a plain function."""
        with self.one():
            return function(*args)

    @contextmanager
    def one(self) -> Generator[None]:
        """Note a call for as long as the block lasts."""
        call = object()
        self._under_way.add(call)
        token = _CALL.set(call)
        try:
            yield
        finally:
            # The call may have been made in one of another driver.
            _CALL.reset(token)
            self._under_way.discard(call)


class CallRun:
    """The calls of one `CallEach`.

    Attributes:
        is_cancelled: set it to True to stop before the next call.
    """

    __slots__ = ("effect", "is_cancelled")

    def __init__(self, effect: CallEach) -> None:
        self.effect = effect
        self.is_cancelled = False

    def run(self) -> None:
        """Make the calls on this thread."""
        effect = self.effect
        function, waiting = effect.function, effect.waiting
        first_ms = begun_ms = clock.monotonic_ms()
        while not self.is_cancelled and begun_ms - first_ms < CALLS_MS:
            try:
                calls = waiting[0]
            except IndexError:
                break
            call = calls.begin()
            if call is None:
                drop_empty(waiting, calls)
                continue
            at, arguments = call
            value = raised = None
            try:
                value = function(*arguments)
            except BaseException as error:
                # The user's code may raise anything: sys.exit, a test's failure, a cancellation.
                raised = error
            ended_ms = clock.monotonic_ms()
            calls.end(at, arguments, value, raised, ended_ms - begun_ms)
            begun_ms = ended_ms

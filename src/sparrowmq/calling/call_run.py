"""Carry out one `CallEach` in a thread. Tests: test_blocking_driver.py."""

from __future__ import annotations

from sparrowmq.calling import clock
from sparrowmq.calling.effects import CALLS_MS, CallEach, drop_empty


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

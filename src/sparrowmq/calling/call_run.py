"""Carry out one `CallEach` in a thread. Tests: test_blocking_driver.py."""

from __future__ import annotations

from sparrowmq.calling import clock
from sparrowmq.calling.effects import CALLS_MS, CallEach, Returned


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
        function, waiting, returned = effect.function, effect.waiting, effect.returned
        first_ms = begun_ms = clock.monotonic_ms()
        while not self.is_cancelled and begun_ms - first_ms < CALLS_MS:
            try:
                # Other threads may take the last call at any time.
                call = waiting.popleft()
            except IndexError:
                break
            value = raised = None
            try:
                value = function(*call.arguments())
            except BaseException as error:
                # The user's code may raise anything: sys.exit, a test's failure, a cancellation.
                raised = error
            ended_ms = clock.monotonic_ms()
            returned.append(Returned(call, value, raised, ended_ms - begun_ms))
            del call  # It may refer to much memory.
            begun_ms = ended_ms

"""The end of servers by a signal before they serve.

A broker recovers a large store for minutes on the thread of its event loop, which hears of a signal
only afterwards. Meanwhile the signal raises an error in that thread. The store is then as after a
kill, from which the next start recovers. Tests: test_stop_at_start.py.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Generator
from contextlib import contextmanager

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StoppedAtStart(BaseException):
    """A signal has ended the start; no handler of failures may treat this as a failure."""


@contextmanager
def stopping_at_signals(stop: asyncio.Event) -> Generator[None]:
    """Raise StoppedAtStart in the main thread for a signal while the block runs, or before.

    Args:
        stop: set once the event loop has heard of a signal.
    """
    if stop.is_set():
        raise StoppedAtStart

    def end(*_: object) -> None:
        raise StoppedAtStart

    loops = {number: signal.signal(number, end) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in loops.items():
            signal.signal(number, handler)
            # Event loops let system calls go on; `signal.signal` has changed that.
            signal.siginterrupt(number, False)

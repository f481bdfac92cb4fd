"""Signals to the process that runs the tests, for code that handles them."""

from __future__ import annotations

import os
import signal

from waiting import wait_until

_DEFAULTS = (signal.SIG_DFL, signal.default_int_handler)


def send_when_handled(number: int, *, timeout_s: float = 250.0) -> None:
    """Send this process a signal, but not before somebody handles it: it would end the run."""
    wait_until("handled", lambda: signal.getsignal(number) not in _DEFAULTS, timeout_s=timeout_s)
    os.kill(os.getpid(), number)

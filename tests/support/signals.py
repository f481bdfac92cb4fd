"""Signals to processes that handle them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from waiting import wait_until

_DEFAULTS = (signal.SIG_DFL, signal.default_int_handler)


def send_when_handled(number: int, *, timeout_s: float = 250.0) -> None:
    """Send this process a signal, but not before somebody handles it: it would end the run."""
    wait_until("handled", lambda: signal.getsignal(number) not in _DEFAULTS, timeout_s=timeout_s)
    os.kill(os.getpid(), number)


def wait_asleep(pid: int) -> None:
    """Wait until a process's main thread waits for something, and not for Python's lock.

    A signal that comes as CPython begins to wait for a lock is noticed with the next signal only.
    """

    def is_asleep() -> bool:
        before = _switches(pid)
        time.sleep(0.1)
        return _switches(pid) == before

    wait_until("asleep", is_asleep)


def _switches(pid: int) -> list[str]:
    status = Path(f"/proc/{pid}/task/{pid}/status").read_text().splitlines()
    return [line for line in status if "ctxt_switches" in line or line.startswith("State")]

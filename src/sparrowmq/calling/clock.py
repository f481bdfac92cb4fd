"""The clocks; no other module of the client's side reads the time.

Monotonic instants (`*_ms`) measure durations and deadlines; wall-clock instants
(`*_timestamp_ms`) go into messages and never decide how long anything lasts.

Tests: test_blocking_driver.py.
"""

from __future__ import annotations

import time


def monotonic_ms() -> int:
    """Return milliseconds since an arbitrary start; the value never decreases."""
    return time.monotonic_ns() // 1_000_000


def timestamp_ms() -> int:
    """Return milliseconds since 1970 on the wall clock."""
    return time.time_ns() // 1_000_000


def nano_time() -> int:
    """Return nanoseconds since an arbitrary start; distinguishes two clients of one process."""
    return time.monotonic_ns()

"""How tests wait for another thread, process or broker: for a condition, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

# What JVMs do: several start at once, perhaps on a busy machine.
JVM_LIMIT_S = 180.0


def wait_until(
    what: str,
    is_so: Callable[[], object],
    *,
    timeout_s: float = 60.0,
    found: Callable[[], object] = lambda: "",
) -> float:
    """Wait until `is_so()` holds; return how many seconds it took.

    After the timeout it fails, and says what there is instead.
    """
    begun = time.monotonic()
    while not is_so():
        if time.monotonic() - begun > timeout_s:
            pytest.fail(f"not {what} within {timeout_s:g} s {found()}".rstrip())
        time.sleep(0.01)
    return time.monotonic() - begun

"""The processor time of a step, without other threads of the test process and its garbage."""

from __future__ import annotations

import gc
import time
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def takes_less_than(limit_s: float) -> Generator[None]:
    """Fail if the block takes the thread longer; nothing is collected meanwhile."""
    gc.disable()
    begin_s = time.thread_time()
    try:
        yield
        taken_s = time.thread_time() - begin_s
    finally:
        gc.enable()
    assert taken_s < limit_s

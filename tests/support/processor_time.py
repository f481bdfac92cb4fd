"""The processor time of a step, without other threads of the test process and its garbage."""

from __future__ import annotations

import gc
import time
from collections.abc import Generator
from contextlib import contextmanager


class Taken:
    """What a block took its thread."""

    seconds = 0.0


@contextmanager
def measuring() -> Generator[Taken]:
    """Measure what the block takes the thread; nothing is collected meanwhile."""
    taken = Taken()
    gc.disable()
    begin_s = time.thread_time()
    try:
        yield taken
    finally:
        taken.seconds = time.thread_time() - begin_s
        gc.enable()


@contextmanager
def takes_less_than(limit_s: float) -> Generator[None]:
    """Fail if the block takes the thread longer; nothing is collected meanwhile."""
    with measuring() as taken:
        yield
    assert taken.seconds < limit_s

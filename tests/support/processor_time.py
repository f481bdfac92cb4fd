"""The processor time of a step, without other threads of the test process and its garbage.

And that of other processes, by that of a Python that only starts: machines differ, and a busy one
takes twice the time for the same step.
"""

from __future__ import annotations

import gc
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Generator
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


def python_start_s() -> float:
    """Return what a new Python takes to start and to import what each server imports."""
    command = (sys.executable, "-c", "import asyncio, json, logging, ssl, typing")
    return children_s(lambda: subprocess.run(command, check=True))


def children_s(step: Callable[[], object]) -> float:
    """Return what the child processes that end in a step have taken."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    step()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

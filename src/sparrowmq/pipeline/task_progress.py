"""Reports the tasks of a job while it runs. Tests: pipeline/test_cli.py."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROGRESS_INTERVAL_S = 1.0


class TaskProgress(NamedTuple):
    """The tasks of the stages that Spark runs at the moment.

    Args:
        seconds: the time since the job's begin.
        tasks: all tasks; 0 while Spark plans.
    """

    seconds: float
    tasks_done: int
    tasks: int


OnProgress: TypeAlias = Callable[[TaskProgress], None]


@contextmanager
def reporting_progress(session: SparkSession, on_progress: OnProgress | None) -> Generator[None]:
    """Call a function every second, in a thread of its own, until the block ends."""
    if on_progress is None:
        yield
        return
    is_over, begin = Event(), time.monotonic()

    def watch() -> None:
        while not is_over.wait(PROGRESS_INTERVAL_S):
            on_progress(TaskProgress(time.monotonic() - begin, *_count_tasks(session)))

    thread = Thread(target=watch, name="sparrowmq-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _count_tasks(session: SparkSession) -> tuple[int, int]:
    tracker = session.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(each) for each in tracker.getActiveStageIds()]
    found = [stage for stage in stages if stage is not None]
    return sum(each.numCompletedTasks for each in found), sum(each.numTasks for each in found)

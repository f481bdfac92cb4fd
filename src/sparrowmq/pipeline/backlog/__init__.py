"""The job `backlog`: finds queues with backlogs, their start, their owners and their causes.

from sparrowmq.pipeline import backlog
result = backlog.run(session, backlog.BacklogSettings(snapshots="snapshots", out="backlog-out"))
"""

from __future__ import annotations

from sparrowmq.pipeline.backlog.job import (
    Accumulation,
    BacklogResult,
    BacklogSettings,
    Cause,
    QueueSnapshot,
    run,
)
from sparrowmq.pipeline.backlog.report import main_table, render

__all__ = [
    "Accumulation",
    "BacklogResult",
    "BacklogSettings",
    "Cause",
    "QueueSnapshot",
    "main_table",
    "render",
    "run",
]

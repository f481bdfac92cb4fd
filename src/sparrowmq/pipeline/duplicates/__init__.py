"""The job `duplicates`: finds messages consumed more than once or never, the members and causes.

from sparrowmq.pipeline import duplicates
result = duplicates.run(session, duplicates.DuplicatesSettings(
    consumed="consumed.jsonl", produced="flights-out/table", out="duplicates-out"))
"""

from __future__ import annotations

from sparrowmq.pipeline.duplicates.job import (
    DuplicatesResult,
    DuplicatesSettings,
    EventFigures,
    GroupFigures,
    LostMessage,
    StrategyFigures,
    run,
    sum_up,
)
from sparrowmq.pipeline.duplicates.report import main_table, render

__all__ = [
    "DuplicatesResult",
    "DuplicatesSettings",
    "EventFigures",
    "GroupFigures",
    "LostMessage",
    "StrategyFigures",
    "main_table",
    "render",
    "run",
    "sum_up",
]

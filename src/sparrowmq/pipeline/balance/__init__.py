"""The job `balance`: evaluates every strategy for every consumer group of a cluster.

from sparrowmq.pipeline import balance
result = balance.run(session, balance.BalanceSettings(snapshot="snapshot", out="balance-out"))
"""

from __future__ import annotations

from sparrowmq.pipeline.balance.job import (
    BalanceResult,
    BalanceSettings,
    StrategySummary,
    WorstGroup,
    run,
)
from sparrowmq.pipeline.balance.report import main_table, render

__all__ = [
    "BalanceResult",
    "BalanceSettings",
    "StrategySummary",
    "WorstGroup",
    "main_table",
    "render",
    "run",
]

"""The lookout: one loop that reads logbooks, samples backlogs, and redraws the screen.

Stages wait only here, each for a condition and with a deadline. The loop sees other events (a
process dies, a batch can be killed) during the wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from sparrowmq.calling.clock import monotonic_ms
from sparrowmq.client.faces.blocking_admin import Admin
from sparrowmq.demo.board import Board, QueueLagSample
from sparrowmq.errors import SparrowError
from sparrowmq.processes.crew import Child, Crew

_ROUND_S = 0.02
_LAG_INTERVAL_MS = 400
_USAGE_INTERVAL_MS = 1_500
_DRAW_INTERVAL_MS = 200


class StageFailed(SparrowError):
    """The condition of a stage did not hold in time, or a process failed."""


class Screen(Protocol):
    """A view of the board."""

    def draw(self, board: Board) -> None:
        """Show the present state."""
        ...

    def say(self, line: str) -> None:
        """Show a line that stays."""
        ...


class Lookout:
    """Updates the board and the screen repeatedly while a stage waits.

    Args:
        crew: the processes.
        board: the state to update.
        screen: the view of the board.
    """

    def __init__(self, crew: Crew, board: Board, screen: Screen) -> None:
        self.board = board
        self.screen = screen
        # Processes whose end is a failure during any wait.
        self.vital: list[Child] = []
        # Called in every round, for work beside the stages.
        self.beside: Callable[[], None] | None = None
        self._crew = crew
        self._admin: Admin | None = None
        self._topic = ""
        self._lag_due_ms = self._usage_due_ms = self._draw_due_ms = 0

    def sample_backlogs(self, admin: Admin | None, *, topic: str = "") -> None:
        """Begin to sample both groups' backlogs of a topic; None ends the sampling."""
        self._admin, self._topic = admin, topic

    def wait_for(self, condition: Callable[[], bool], what: str, *, timeout_s: float) -> None:
        """Update the board until the condition holds.

        Raises: StageFailed if the condition does not hold in time, or a process failed;
            ProcessFailed if a vital process ended.
        """
        deadline = time.monotonic() + timeout_s
        self.look()
        while not condition():
            if time.monotonic() >= deadline:
                raise StageFailed(f"waited {timeout_s:.0f} s in vain until {what}")
            time.sleep(_ROUND_S)
            self.look()

    def look(self) -> None:
        """Run one round: everything that is due."""
        now_ms = monotonic_ms()
        for member in self.board.members.values():
            member.read()
        self.board.production.read()
        self.board.ingest.read()
        for name, reason in self.board.failures:
            raise StageFailed(f"{name} failed: {reason}")
        self._crew.check(self.vital)
        if self.beside is not None:
            self.beside()
        self._sample(now_ms)

    def _sample(self, now_ms: int) -> None:
        if self._admin is not None and now_ms >= self._lag_due_ms:
            self._lag_due_ms = now_ms + _LAG_INTERVAL_MS
            self.board.lags.append(self._sample_lag(self._admin, now_ms))
        if now_ms >= self._usage_due_ms:
            self._usage_due_ms = now_ms + _USAGE_INTERVAL_MS
            self.board.usage.add(self._crew.find_processes())
        if now_ms >= self._draw_due_ms:
            self._draw_due_ms = now_ms + _DRAW_INTERVAL_MS
            self.screen.draw(self.board)

    def _sample_lag(self, admin: Admin, now_ms: int) -> QueueLagSample:
        first, second = (
            [lag.lag for lag in admin.group_lag(group, self._topic)]
            for group in (self.board.first_group, self.board.second_group)
        )
        return QueueLagSample(now_ms, first, second)

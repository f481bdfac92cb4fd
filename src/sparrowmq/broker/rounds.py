"""Counts the rounds of slow work, so that replies can wait for a round's end.

A write of config files or a registration at name servers is slow and covers all changes since the
last round. A change that comes while a round runs is covered by the next round. Flushes of the
commit log work alike, but are counted in bytes (`PendingReplies`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Rounds:
    """Counts rounds of one kind of work."""

    begun: int = 0
    finished: int = 0
    asked: int = 0

    def ask(self) -> int:
        """Ask for a round; return the number of the round that covers the change."""
        self.asked = self.begun + 1
        return self.asked

    @property
    def is_asked(self) -> bool:
        """Whether a round that was asked for has not begun yet."""
        return self.asked > self.begun

    def begin(self) -> int | None:
        """Begin a round and return its number; None if a round runs or none is asked for."""
        if self.begun != self.finished or self.asked <= self.begun:
            return None
        self.begun += 1
        return self.begun

    def finish(self) -> None:
        """Note that the running round has ended."""
        assert self.begun == self.finished + 1
        self.finished = self.begun

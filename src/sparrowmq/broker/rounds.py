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
    # Whether a round that was asked for has not begun yet.
    is_asked: bool = False

    @property
    def asked(self) -> int:
        """The number of the last round that was asked for."""
        return self.begun + self.is_asked

    @property
    def is_running(self) -> bool:
        """Whether a round has begun and not ended."""
        return self.begun != self.finished

    def ask(self) -> int:
        """Ask for a round; return the number of the round that covers the change."""
        self.is_asked = True
        return self.begun + 1

    def begin(self) -> int | None:
        """Begin a round and return its number; None if a round runs or none is asked for."""
        if self.is_running or not self.is_asked:
            return None
        self.is_asked = False
        self.begun += 1
        return self.begun

    def finish(self) -> None:
        """Note that the running round has ended."""
        assert self.begun == self.finished + 1
        self.finished = self.begun

"""Work that runs one round at a time, and what waits for it.

Writing config files and registering at name servers are slow and take everything that changed
since the last time. So they run in rounds: a change asked for while a round runs is covered by the
next one. Flushes of the commit log work alike, but are counted in bytes (`PendingReplies`).
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
        """Ask for a round; returns the number of the one that will cover this."""
        self.asked = self.begun + 1
        return self.asked

    @property
    def is_asked(self) -> bool:
        """Whether a round is asked for that has not begun."""
        return self.asked > self.begun

    def begin(self) -> int | None:
        """Begin a round and return its number, or None if one runs or none is asked for."""
        if self.begun != self.finished or self.asked <= self.begun:
            return None
        self.begun += 1
        return self.begun

    def finish(self) -> None:
        """Note that the round that ran is over."""
        assert self.begun == self.finished + 1
        self.finished = self.begun

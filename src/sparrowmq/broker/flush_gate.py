"""Progress counts only behind the flush.

A file beside the log may say how far a part of the log is done: delayed messages are delivered,
messages are consumed, half messages are decided on. What was done stands in the log, or was read
from it, perhaps beyond the flushed position, and a power cut takes the log's end back. A file that
said "done" about this end would lose messages: those that were delivered there, and those that are
stored there next. So the owner of such progress takes a copy, and holds it in a gate until the log
is flushed as far as it was written when the copy was taken.
"""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class FlushGate(Generic[T]):
    """Holds one copy of some progress until the log is flushed far enough.

    After a failed sync nothing more is flushed, and the gate stays closed.
    """

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: tuple[int, T] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is held."""
        return self._held is None

    def hold(self, progress: T, *, position: int) -> None:
        """Hold progress until the log is flushed up to `position`."""
        assert self._held is None
        self._held = position, progress

    def is_open(self, flushed_position: int) -> bool:
        """Whether something is held, and the log is flushed far enough for it."""
        return self._held is not None and self._held[0] <= flushed_position

    def take(self, flushed_position: int) -> T | None:
        """Return the progress if the log is flushed far enough; None if not, or if none is held."""
        if self._held is None or not self.is_open(flushed_position):
            return None
        progress, self._held = self._held[1], None
        return progress

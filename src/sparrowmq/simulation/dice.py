"""The source of the simulation's choices. Tests: test_runs.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")


class Dice(Protocol):
    """The part of `random.Random` that the simulation uses."""

    def random(self) -> float:
        """Return a number from 0 up to, but not including, 1."""
        ...

    def randrange(self, start: int, stop: int, /) -> int:
        """Return a whole number from `start` up to, but not including, `stop`."""
        ...

    def choice(self, seq: Sequence[T], /) -> T:
        """Return one element."""
        ...

    def expovariate(self, lambd: float, /) -> float:
        """Return the time until the next event of a Poisson process with a rate."""
        ...

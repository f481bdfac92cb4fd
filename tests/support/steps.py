"""Runs to its end what lets others go first in between."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")


def run_steps(steps: Generator[None, None, T]) -> tuple[T, int]:
    """Return what it returns, and how often it let others go first."""
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result, count
        count += 1

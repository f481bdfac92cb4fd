"""What fails once, for the tests of loops that go on."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import TypeVar

T = TypeVar("T")


def failing_once(function: Callable[..., T]) -> Callable[..., T]:
    """Return a function that fails at its first call, and does then as the given one."""
    calls = count()

    def call(*arguments: object) -> T:
        if next(calls) == 0:
            raise LookupError("a mistake")
        return function(*arguments)

    return call

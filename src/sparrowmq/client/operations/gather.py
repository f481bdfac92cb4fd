"""Several operations at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from sparrowmq.errors import SparrowError
from sparrowmq.runtime.effects import Operation, join, spawn

T = TypeVar("T")


def gather(operations: Sequence[Operation[T]], *, name: str) -> Operation[list[T]]:
    """Run operations at the same time and return their results in order.

    Raises: the first error, once all have ended.
    """
    tasks = []
    for operation in operations:
        tasks.append((yield from spawn(operation, name=name)))
    results: list[T] = []
    failure: SparrowError | None = None
    for task in tasks:
        try:
            results.append((yield from join(task)))
        except SparrowError as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return results

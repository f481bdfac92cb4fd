"""Run several operations at the same time. Tests: test_with_broker.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from sparrowmq.calling.effects import Operation, join, spawn
from sparrowmq.errors import SparrowError

T = TypeVar("T")

# The number of requests under way at once, of those that may be many.
WIDTH = 8


def gather(
    operations: Sequence[Operation[T]], *, name: str, at_once: int | None = None
) -> Operation[list[T]]:
    """Run operations at the same time, or so many at once, and return their results in order.

    Raises: the first error, once all have ended.
    """
    results: list[T] = []
    failure: SparrowError | None = None
    for outcome in (yield from gather_outcomes(operations, name=name, at_once=at_once)):
        if isinstance(outcome, SparrowError):
            failure = failure or outcome
        else:
            results.append(outcome)
    if failure is not None:
        raise failure
    return results


def gather_outcomes(
    operations: Sequence[Operation[T]], *, name: str, at_once: int | None = None
) -> Operation[list[T | SparrowError]]:
    """Run operations as `gather` and return, in order, what each returned or raised."""
    outcomes: list[T | SparrowError] = []
    count = at_once or max(1, len(operations))
    for start in range(0, len(operations), count):
        tasks = []
        for operation in operations[start : start + count]:
            tasks.append((yield from spawn(_catch(operation), name=name)))
        for task in tasks:
            outcomes.append((yield from join(task)))
    return outcomes


def split_outcomes(
    names: Sequence[str], outcomes: Sequence[T | SparrowError]
) -> tuple[dict[str, T], dict[str, SparrowError]]:
    """Return what some of several brokers answered, and the errors of the others, by their names.

    Raises: the first error if all failed.
    """
    found: dict[str, T] = {}
    failures: dict[str, SparrowError] = {}
    for name, outcome in zip(names, outcomes, strict=True):
        if isinstance(outcome, SparrowError):
            failures[name] = outcome
        else:
            found[name] = outcome
    if not found:
        raise_first(failures)
    return found, failures


def raise_first(failures: Mapping[str, SparrowError]) -> None:
    """Raise the first of these errors, if there is one."""
    for failure in failures.values():
        raise failure


def _catch(operation: Operation[T]) -> Operation[T | SparrowError]:
    # An uncaught error would count as lost while the join of an earlier task still waits.
    try:
        return (yield from operation)
    except SparrowError as error:
        return error

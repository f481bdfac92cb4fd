"""Runs to its end what lets others go first in between."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TypeVar

from sparrowmq.serving.connections import Aside, Output, Produce

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


def made(outputs: Sequence[Output]) -> list[Output]:
    """Return the outputs, and in the place of those to be made later what is made."""
    found: list[Output] = []
    for output in outputs:
        if isinstance(output, Produce):
            found += made(output.make())
        else:
            found += output.serve() if isinstance(output, Aside) else [output]
    return found


def make_in_steps(output: Output) -> tuple[Output, int]:
    """Return what is made in the end, and how often others could go first."""
    count = 0
    while isinstance(output, Produce):
        (output,) = output.make()
        count += 1
    (output,) = made([output])
    return output, count

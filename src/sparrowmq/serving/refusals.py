"""Counts refused requests that contradict a machine's state, and spaces their warnings. Pure.

A wrong peer repeats its requests: a warning for each refusal would drown all other warnings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Generic, TypeVar

from sparrowmq.calling.line_bound import LineBound
from sparrowmq.serving.connections import Fact

# The time from one warning of a kind to the next.
WARNING_INTERVAL_MS = 60_000

Kind = TypeVar("Kind", bound=Enum)


class Refusals(Generic[Kind]):
    """Counts of refusals by kind.

    Args:
        kinds: all kinds of refusals; each has a count from the start.
    """

    def __init__(self, kinds: type[Kind]) -> None:
        self._counts: dict[Kind, int] = dict.fromkeys(kinds, 0)
        self._warnings = LineBound(period_ms=WARNING_INTERVAL_MS)

    @property
    def counts(self) -> Mapping[Kind, int]:
        """The number of refusals of each kind."""
        return self._counts

    def note(self, kind: Kind, text: str, *, now_ms: int) -> Sequence[Fact]:
        """Count a refusal; return the warning to log, () if the last warning is too recent."""
        self._counts[kind] += 1
        more = self._warnings.admit(kind, now_ms)
        if more is None:
            return ()
        return (Fact(f"{text} ({more} more of the kind before)" if more else text, warning=True),)

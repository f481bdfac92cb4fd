"""Counts refused requests that contradict a machine's state, and spaces their warnings. Pure.

A wrong peer repeats its requests: a warning for each refusal would drown all other warnings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Generic, TypeVar

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
        # By kind, the time of the last warning and the count at that time.
        self._warned: dict[Kind, tuple[int, int]] = {}

    @property
    def counts(self) -> Mapping[Kind, int]:
        """The number of refusals of each kind."""
        return self._counts

    def note(self, kind: Kind, text: str, *, now_ms: int) -> Sequence[Fact]:
        """Count a refusal; return the warning to log, () if the last warning is too recent."""
        self._counts[kind] += 1
        warned_ms, warned_count = self._warned.get(kind, (None, 0))
        if warned_ms is not None and now_ms - warned_ms < WARNING_INTERVAL_MS:
            return ()
        count = self._counts[kind]
        self._warned[kind] = now_ms, count
        more = count - warned_count - 1
        return (Fact(f"{text} ({more} more of the kind before)" if more else text, warning=True),)

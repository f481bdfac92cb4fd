"""What a machine refused since it contradicts what the machine knows: counted, and logged spaced.

A peer that is wrong is wrong again and again: a warning for each would drown all others. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Generic, TypeVar

from sparrowmq.serving.connections import Fact

# From one warning of a kind to the next.
WARNING_INTERVAL_MS = 60_000

Kind = TypeVar("Kind", bound=Enum)


class Refusals(Generic[Kind]):
    """Counts of refusals by kind.

    Args:
        kinds: all there are; each has a count from the start.
    """

    def __init__(self, kinds: type[Kind]) -> None:
        self._counts: dict[Kind, int] = dict.fromkeys(kinds, 0)
        # When a kind was warned of last, and how many there were then.
        self._warned: dict[Kind, tuple[int, int]] = {}

    @property
    def counts(self) -> Mapping[Kind, int]:
        """How often each kind was refused."""
        return self._counts

    def note(self, kind: Kind, text: str, *, now_ms: int) -> Sequence[Fact]:
        """Count a refusal; returns the warning to log, nothing if there was one a moment ago."""
        self._counts[kind] += 1
        warned_ms, warned_count = self._warned.get(kind, (None, 0))
        if warned_ms is not None and now_ms - warned_ms < WARNING_INTERVAL_MS:
            return ()
        count = self._counts[kind]
        self._warned[kind] = now_ms, count
        more = count - warned_count - 1
        return (Fact(f"{text} ({more} more of the kind before)" if more else text, warning=True),)

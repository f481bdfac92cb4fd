"""Converts values to coordinates: a linear scale, round ticks, and formats of numbers."""

from __future__ import annotations

import math
from typing import NamedTuple


class Scale(NamedTuple):
    """Maps the values `low`..`high` to the coordinates `begin`..`end`."""

    low: float
    high: float
    begin: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the coordinate of a value."""
        if self.high == self.low:
            return self.begin
        share = (value - self.low) / (self.high - self.low)
        return self.begin + share * (self.end - self.begin)


def choose_ticks(low: float, high: float, *, count_max: int = 6) -> list[float]:
    """Return round values within `low`..`high`, at most `count_max` and at least one if any fit.

    Steps are 1, 2 or 5 times a power of ten.
    """
    if not high > low:
        return [low]
    rough = (high - low) / max(count_max - 1, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def round_up(value: float) -> float:
    """Return the tick at or above a positive value, where an axis may end."""
    if value <= 0:
        return 1.0
    ticks = choose_ticks(0, value)
    step = ticks[1] - ticks[0] if len(ticks) > 1 else value
    return math.ceil(value / step - 1e-9) * step

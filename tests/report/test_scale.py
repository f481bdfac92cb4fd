from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparrowmq.report.scale import Scale, choose_ticks, round_up


def test_scale_maps_linearly_and_may_turn_around() -> None:
    assert Scale(0, 10, 10, 20)(5) == 15.0
    assert Scale(0, 10, 200, 100)(0) == 200.0
    assert Scale(3, 3, 7, 9)(3) == 7.0


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 100, [0, 20, 40, 60, 80, 100]),
        (0, 7, [0, 2, 4, 6]),
        (3, 9, [4, 6, 8]),
        (0, 43_000, [0, 10_000, 20_000, 30_000, 40_000]),
        (5, 5, [5]),
    ],
)
def test_ticks_are_round(low: float, high: float, ticks: list[float]) -> None:
    assert ticks == choose_ticks(low, high)


@given(st.floats(0, 1e9), st.floats(1e-3, 1e9))
def test_ticks_lie_within_and_are_few(low: float, width: float) -> None:
    high = low + width

    ticks = choose_ticks(low, high)

    assert len(ticks) <= 7
    assert all(low - 1e-6 * width <= tick <= high + 1e-6 * width for tick in ticks)


@given(st.floats(1e-3, 1e9))
def test_axis_ends_at_or_above_the_value(value: float) -> None:
    end = round_up(value)

    assert value * (1 - 1e-6) <= end <= 2 * value

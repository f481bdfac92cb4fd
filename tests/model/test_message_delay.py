"""A message that is delayed by a time instead of a level."""

from __future__ import annotations

from datetime import timedelta

import pytest

from sparrowmq import Message
from sparrowmq.errors import UsageError


def test_delay_is_the_nearest_level() -> None:
    assert Message("T", b"x", delay=timedelta(seconds=1)).delay_level == 1
    assert Message("T", b"x", delay=timedelta(minutes=5, seconds=10)).delay_level == 10
    assert Message("T", b"x", delay=timedelta(minutes=5), delay_level=9).delay_level == 9


def test_delay_and_another_level_or_no_delay_are_refused() -> None:
    with pytest.raises(UsageError, match="which is level 9; give one of them"):
        Message("T", b"x", delay=timedelta(minutes=5), delay_level=3)
    for nothing in (timedelta(0), timedelta(seconds=-1), timedelta(microseconds=999), 5):
        with pytest.raises(UsageError, match="give a timedelta of a millisecond or more"):
            Message("T", b"x", delay=nothing)  # type: ignore[arg-type]


def test_delay_above_all_levels_has_the_longest() -> None:
    assert Message("T", b"x", delay=timedelta(days=3)).delay_level == 18

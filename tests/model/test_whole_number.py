from __future__ import annotations

import pytest

from sparrowmq.model.whole_number import OFFSET_DIGITS_MAX, read_whole_number


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("007", 7), ("9" * OFFSET_DIGITS_MAX, 10**OFFSET_DIGITS_MAX - 1)],
)
def test_digits_are_a_number(text: str, number: int) -> None:
    assert read_whole_number(text) == number


@pytest.mark.parametrize(
    "text", [None, "", "-1", "+1", " 1", "1_0", "1.0", "\N{SUPERSCRIPT TWO}", "\u0661"]
)
def test_other_texts_are_none(text: str | None) -> None:
    assert read_whole_number(text) is None


def test_more_digits_are_no_number() -> None:
    assert (read_whole_number("12", 2), read_whole_number("123", 2)) == (12, None)
    assert read_whole_number("1" * (OFFSET_DIGITS_MAX + 1)) is None

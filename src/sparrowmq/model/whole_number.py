"""Whole numbers in texts that others have written. Tests: test_whole_number.py."""

from __future__ import annotations

# Of an offset or a position in a log.
OFFSET_DIGITS_MAX = 18


def read_whole_number(text: str | None, digits_max: int = OFFSET_DIGITS_MAX) -> int | None:
    """Return the number that a text writes in ASCII digits alone; None for any other text.

    Python reads no text of thousands of digits, and other scripts have digits too.

    Args:
        text: None stands for no text.
        digits_max: a longer text gives None.
    """
    if text is None or len(text) > digits_max or not (text.isascii() and text.isdigit()):
        return None
    return int(text)

"""Numbers as Java reads and compares them: Integer, Long and Double. Pure.

An Integer is an `int`, a Long is a `Long`, a Double is a `float`.
Source: java.lang.Integer.parseInt, Long.parseLong, Double.valueOf, Double.compareTo.
Tests: test_sql92.py.
"""

from __future__ import annotations

import math
import re

_INTEGER = re.compile(r"[+-]?\d+")
# Possessive (`++`): to try digits in every split takes quadratic time, and a property may have
# 32,767 digits.
_DECIMAL = re.compile(
    r"[+-]?(?:NaN|Infinity|(?:[0-9]++\.?[0-9]*+|\.[0-9]++)(?:[eE][+-]?[0-9]++)?[fFdD]?)"
)
_HEXADECIMAL = re.compile(
    r"[+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]++[fFdD]?"
)
# String.trim removes every character up to U+0020.
_BLANKS = "".join(map(chr, range(0x21)))


class Long(int):
    """A number of Java's type long; a plain `int` is Java's int."""


def is_int32(value: int) -> bool:
    """Return whether a number fits Java's int."""
    return -(2**31) <= value < 2**31


def parse_like(model: int | float, text: str) -> int | float:
    """Read a text as a number of the same Java type as `model`.

    Raises: ValueError if the text is not a number of this type, or the number is too large.
    """
    if isinstance(model, float):
        return parse_double(text)
    if not _INTEGER.fullmatch(text):
        raise ValueError(f"{text!r} is not an integer")
    value = int(text)
    bits = 63 if isinstance(model, Long) else 31
    if not -(2**bits) <= value < 2**bits:
        raise ValueError(f"{text!r} does not fit {bits + 1} bits")
    return type(model)(value)


def parse_double(text: str) -> float:
    """Read a text as a Double.

    Raises: ValueError if the text is not a Double.
    """
    trimmed = text.strip(_BLANKS)
    if _HEXADECIMAL.fullmatch(trimmed):
        try:
            return float.fromhex(trimmed.rstrip("fFdD"))
        except OverflowError:
            return -math.inf if trimmed.startswith("-") else math.inf
    if not _DECIMAL.fullmatch(trimmed):
        raise ValueError(f"{text!r} is not a number")
    return float(trimmed if trimmed.endswith("Infinity") else trimmed.rstrip("fFdD"))


def compare_numbers(left: int | float, right: int | float) -> int:
    """Return -1, 0 or 1. Integers are compared exactly, others as Doubles: NaN last, -0.0 < 0.0."""
    if not isinstance(left, float) and not isinstance(right, float):
        return (left > right) - (left < right)
    return _compare_doubles(float(left), float(right))


def _compare_doubles(left: float, right: float) -> int:
    if math.isnan(left) or math.isnan(right):
        return math.isnan(left) - math.isnan(right)
    if left == right:
        return int(math.copysign(1.0, left) - math.copysign(1.0, right)) // 2
    return 1 if left > right else -1


def negate(value: int | float) -> int | float:
    """Return the number of the same type with the opposite sign."""
    return type(value)(-value)

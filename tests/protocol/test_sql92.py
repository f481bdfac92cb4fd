from __future__ import annotations

import math
import sqlite3
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from processor_time import takes_less_than
from sparrowmq.errors import LocalProtocolError
from sparrowmq.protocol.java_numbers import Long, compare_numbers, parse_double, parse_like
from sparrowmq.protocol.sql92 import NESTING_MAX, parse_condition

PROPERTIES = {"a": "5", "b": "x", "d": "3.5", "t": "True", "big": "3000000000", "quote": "it's"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a > 3", True),
        ("a > 5", False),
        ("A > 3", False),
        ("3 < a AND a <= 5", True),
        ("a = 5 and b = 'x'", True),
        ("b <> 'y'", True),
        ("quote = 'it''s'", True),
        ("a BETWEEN 5 AND 6", True),
        ("a NOT BETWEEN 1 AND 4", True),
        ("a BETWEEN -3 AND 4", False),
        ("b IN ('w', 'x')", True),
        ("b NOT IN ('w', 'x')", False),
        ("missing NOT IN ('w')", False),
        ("missing IS NULL", True),
        ("b IS NOT NULL", True),
        ("t = TRUE", True),
        ("t = FALSE", False),
        ("TRUE", True),
        ("NULL", False),
        ("a > 3 -- so far\n AND b /* the letter */ = 'x'", True),
        # A property is read as a number of the constant's kind, or nothing matches.
        ("d > 3.0", True),
        ("d > 3", False),
        ("d > 3 OR TRUE", False),
        ("TRUE OR d > 3", True),
        ("NOT (d > 3)", False),
        ("big > 5", False),
        ("big > 2999999999", True),
        ("b = 5", False),
        ("a > d", True),
        ("a > b", False),
        # Unknown.
        ("missing > 3 OR a = 5", True),
        ("NOT (missing > 3)", False),
        ("missing = 'x' AND a = 5", False),
        ("missing <> 'x'", False),
        ("b <> missing", True),
        ("missing = absent", True),
        # What stands right behind NOT is negated, and a bare property is never true.
        ("NOT a = 5", False),
        ("NOT (a = 6)", True),
        ("a", False),
        ("NOT a", True),
        ("a = 5 = TRUE", True),
        ("(a = 5) = b", False),
    ],
)
def test_condition_is_evaluated_as_rocketmq_does(text: str, expected: bool) -> None:
    assert parse_condition(text).matches(PROPERTIES) == expected


@pytest.mark.parametrize(
    ("text", "at", "why"),
    [
        ("", 1, "a property, a value or a condition is expected here"),
        ("a >", 4, "a property, a value or a condition is expected here"),
        ("a > 1 b", 7, "the condition is complete before this"),
        ("a = 'x", 5, "a string without its closing quote"),
        ("a # 3", 3, "not understood"),
        ("5", 1, "a condition is expected here, not a value"),
        ("a = 1 AND 'b'", 11, "a condition is expected here, not a value"),
        ("a = NULL", 3, "write IS NULL or IS NOT NULL"),
        ("TRUE = 1", 6, "cannot be compared with another constant"),
        ("a > 'x'", 3, "only numbers and properties have an order"),
        ("a > TRUE", 3, "only numbers and properties have an order"),
        ("a > 1 > 2", 7, "only numbers and properties have an order"),
        ("a BETWEEN 5 AND 3", 3, "the lower bound 5 is above the upper, 3"),
        ("a BETWEEN 5", 12, "BETWEEN needs AND"),
        ("a IN (1)", 7, "a string in single quotes is expected here"),
        ("a IN 'x'", 6, "IN needs strings in parentheses"),
        ("'a' IN ('x')", 5, "IN asks of a property"),
        ("(a = 1", 7, "a closing parenthesis is missing here"),
        ("a = 9223372036854775808", 5, "integers go up to 9223372036854775807"),
        ("a > 0.0", 5, "write 0 for 0.0"),
        ("a CONTAINS 'x'", 3, "an operator that RocketMQ has only from 5.x on"),
        ("(" * NESTING_MAX + "a = 1" + ")" * NESTING_MAX, NESTING_MAX + 1, "nests deeper"),
        ("a" + " = a" * 60, 203, "nests deeper"),
    ],
)
def test_wrong_condition_is_refused_with_the_place(text: str, at: int, why: str) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        parse_condition(text)

    assert f"wrong at character {at}, " in str(caught.value)
    assert why in str(caught.value)


def test_length_is_bounded_and_a_long_row_of_conditions_is_not_deep() -> None:
    many = " OR ".join(f"a = {number}" for number in range(300))

    assert parse_condition(many).matches({"a": "299"})
    with pytest.raises(LocalProtocolError, match="the limit is 4096"):
        parse_condition(f"{many} OR {many}")


NAMES = st.sampled_from(("a", "b", "c"))
COMPARISONS = st.one_of(
    st.builds(
        "{} {} {}".format,
        NAMES,
        st.sampled_from(["=", "<>", "<", "<=", ">", ">="]),
        st.integers(0, 9),
    ),
    st.builds(
        "{} {}BETWEEN {} AND {}".format,
        NAMES,
        st.sampled_from(("", "NOT ")),
        st.integers(0, 4),
        st.integers(4, 9),
    ),
    st.builds("{} IS {}NULL".format, NAMES, st.sampled_from(("", "NOT "))),
)
CONDITIONS = st.recursive(
    COMPARISONS,
    lambda inner: st.one_of(
        st.builds("({}) AND ({})".format, inner, inner),
        st.builds("({}) OR ({})".format, inner, inner),
        st.builds("NOT ({})".format, inner),
    ),
    max_leaves=8,
)


@given(CONDITIONS, st.dictionaries(NAMES, st.integers(-3, 12).map(str)))
def test_readable_numbers_follow_the_logic_of_sql(text: str, properties: dict[str, str]) -> None:
    """Where nothing is unreadable and nothing that is there is compared with what is missing."""
    values = {name: int(properties[name]) if name in properties else None for name in "abc"}
    database = sqlite3.connect(":memory:")
    row = database.execute(
        f"select coalesce({text}, 0) from (select :a as a, :b as b, :c as c)", values
    ).fetchone()
    database.close()

    assert bool(row[0]) == parse_condition(text).matches(properties)


@given(st.text(alphabet="ab3. '()=<>,+-*/\nNOTANDORINISNULL", max_size=40))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    with suppress(LocalProtocolError):
        parse_condition(text).matches({"a": "3", "b": "x"})


@given(st.integers(-(2**63), 2**63 - 1))
def test_integers_are_read_back(number: int) -> None:
    assert number == parse_like(Long(0), str(number))
    assert number == parse_like(Long(0), f"{number:+d}")
    assert number == parse_double(f" {number}.0d\n") or abs(number) > 2**53


@pytest.mark.parametrize(
    ("text", "expected"),
    [("NaN", math.nan), ("-Infinity", -math.inf), ("1e3f", 1000.0), (".5", 0.5), ("0x1.8p1", 3.0)],
)
def test_doubles_are_read_as_java_writes_them(text: str, expected: float) -> None:
    assert compare_numbers(expected, parse_double(text)) == 0


@pytest.mark.parametrize("text", ["", " ", "inf", "nan", "1_0", "0x10", "1e", "١.٥"])
def test_texts_that_java_does_not_read_are_no_doubles(text: str) -> None:
    with pytest.raises(ValueError, match="is not a number"):
        parse_double(text)


def test_doubles_are_ordered_as_java_orders_them() -> None:
    values = [math.nan, 0.0, -0.0, math.inf, 1.5, -math.inf]

    signs = [[compare_numbers(left, right) for right in values] for left in values]

    assert signs[0] == [0, 1, 1, 1, 1, 1]
    assert signs[1] == [-1, 0, 1, -1, -1, 1]
    assert signs[2] == [-1, -1, 0, -1, -1, 1]


@pytest.mark.parametrize("text", ["a" + " " * 4_000 + "\xff", "a = '" + "''" * 2_000, "/*" * 2_000])
def test_text_that_is_no_condition_is_refused_at_once(text: str) -> None:
    """Blanks that are tried in every split would take longer than the universe has."""
    with takes_less_than(1), pytest.raises(LocalProtocolError):
        parse_condition(text)


@pytest.mark.parametrize(
    "text", ["1" * 32_000 + "x", "0x" + "1" * 32_000, "1e" + "1" * 32_000 + "x"]
)
def test_property_that_is_no_number_is_found_out_at_once(text: str) -> None:
    with takes_less_than(1), pytest.raises(ValueError, match="is not a number"):
        parse_double(text)

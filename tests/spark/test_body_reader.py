from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from sparrowmq.spark.body_reader import BodyReader


def field(name: str, kind: Any, *, nullable: bool = True) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": nullable, "metadata": {}}


SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [
            field("id", "integer", nullable=False),
            field("the name", "string"),
            field("at", "timestamp"),
            field("price", "decimal(10,2)"),
            field("rate", "double"),
            field("paid", "boolean"),
            field("big", "long"),
            field("any", "variant"),
            field("tags", {"type": "array", "elementType": "string", "containsNull": False}),
            field("by", {"type": "map", "keyType": "string", "valueType": "long"}),
            field("of", {"type": "struct", "fields": [field("x", "byte", nullable=False)]}),
            field("small", "float"),
            field("day", "date"),
            field("local", "timestamp_ntz"),
        ],
    }
)
READER = BodyReader(SCHEMA)


def error_of(body: bytes) -> str | None:
    found = READER.read(body)
    return found if isinstance(found, str) else None


FITTING = [
    b'{"id": 1}',
    b' {"id": -2147483648} \n',
    b'{"id": 1, "the name": null, "unknown": [NULL]}'.replace(b"NULL", b"null"),
    '{"id": 1, "the name": "麻雀"}'.encode(),
    b'{"id": 1, "at": "2026-03-01", "price": 1.5, "rate": 3, "paid": true}',
    b'{"id": 1, "price": "12.50", "any": {"a": [1, "b"]}, "big": 9223372036854775807}',
    b'{"id": 1, "tags": ["a"], "by": {"k": 1, "l": null}, "of": {"x": 127}}',
    b'{"id": 1, "price": 1.1000}',
    b'{"id": 1, "price": 1e7}',
    b'{"id": 1, "price": -99999999.99}',
    b'{"id": 1, "small": 3.4028234e38, "day": "2026-03-01", "local": "2026-03-01 12:30:00.5"}',
    b'{"id": 1, "at": "2026-03-01T12:30:00.123456789+01:00"}',
    b'{"id": 1, "at": "2026-03-01t12:30z", "local": "2026-03-01t12:30"}',
    b'{"id": 1, "unknown": [{"x": 1}, {"x": 1}], "of": {"x": 1}, "the name": "\\":"}',
    # As deep as may be, and brackets in a text.
    b'{"id": 1, "unknown": ' + b"[" * 499 + b"]" * 499 + b"}",
    b'{"id": 1, "unknown": "' + b'\\"[' * 501 + b'"}',
    b'{"id": 1, "unknown": ' + b"9" * 5_000 + b"}",
]
REFUSED = {
    b"": "empty body",
    b" \n": "empty body",
    b"hello": "not JSON",
    b"{'id': 1}": "not JSON",
    b'{"id": NaN}': "not JSON",
    b'{"id": 01}': "not JSON",
    b'{"id": 1,}': "not JSON",
    b'{"id": 1} // one': "more than one JSON value",
    b'{"id": 3}{"id": 4}': "more than one JSON value",
    b'{"id": 3}\n{"id": 4}': "more than one JSON value",
    b'{"id": 3}]': "more than one JSON value",
    b'\xef\xbb\xbf{"id": 1}': "not JSON",
    b"[1]": "not a JSON object",
    b"null": "not a JSON object",
    b'{"id": 1, "the name": "\xfc"}': "not UTF-8",
    b'{"id": 1, "unknown": "\xfc"}': "not UTF-8",
    b"{}": "field id: missing",
    b'{"id": null}': "field id: expected a whole number, found null",
    b'{"id": "1"}': "field id: expected a whole number, found a text",
    b'{"id": 1.0}': "field id: expected a whole number, found a number",
    b'{"id": 2147483648}': "field id: expected a whole number <= 2147483647",
    b'{"id": 1, "the name": 12}': "field the name: expected a text, found a whole number",
    b'{"id": 1, "the name": {}}': "field the name: expected a text, found an object",
    b'{"id": 1, "at": 1700000000000}': "field at: expected a text, found a whole number",
    b'{"id": 1, "price": true}': "field price: not a value of decimal(10,2)",
    b'{"id": 1, "price": {}}': "field price: not a value of decimal(10,2)",
    # What Spark's reader of JSON alters without a word: it rounds, drops commas, takes today.
    b'{"id": 1, "price": 1.005}': "field price: not a value of decimal(10,2)",
    b'{"id": 1, "price": "1.005"}': "field price: not a value of decimal(10,2)",
    b'{"id": 1, "price": "1,5"}': "field price: not a value of decimal(10,2)",
    b'{"id": 1, "price": "NaN"}': "field price: not a value of decimal(10,2)",
    b'{"id": 1, "price": 1e8}': "field price: not a value of decimal(10,2)",
    b'{"id": 1, "price": 1e' + b"9" * 30 + b"}": "field price: number out of range",
    b'{"id": 1, "small": 1e39}': "field small: expected a number <= 3.4028235677973366e+38",
    b'{"id": 1, "rate": 1e400}': "field rate: number out of range",
    b'{"id": 1, "at": "12:30"}': "field at: expected a time by ISO 8601, with its date",
    b'{"id": 1, "at": "2026"}': "field at: expected a time by ISO 8601, with its date",
    b'{"id": 1, "at": "2026-03-01 12:30 Asia/Shanghai"}': (
        "field at: expected a time by ISO 8601, with its date"
    ),
    b'{"id": 1, "day": "2026-03-01T23:00:00-05:00"}': "field day: expected a date, YYYY-MM-DD",
    b'{"id": 1, "day": "2026-03-01 and more"}': "field day: expected a date, YYYY-MM-DD",
    b'{"id": 1, "day": "19000"}': "field day: expected a date, YYYY-MM-DD",
    b'{"id": 1, "local": "2026-03-01T12:30:00Z"}': (
        "field local: expected a time by ISO 8601, with its date and no zone"
    ),
    b'{"id": 3, "id": 4}': "field id: more than once",
    b'{"id" : 3, "i\\u0064": 4}': "field id: more than once",
    b'{"id": 1, "by": {"k": 1, "k": 2}}': "a name twice in an object",
    b'{"id": 1, "of": {"x": 1, "x": 2}}': "a name twice in an object",
    b'{"id": 1, "the name": "\\ud800"}': "not JSON",
    b'{"id": 1}\x00': "more than one JSON value",
    b'{"id": 1, "rate": "NaN"}': "field rate: expected a number, found a text",
    b'{"id": 1, "paid": 1}': "field paid: expected true or false, found a whole number",
    b'{"id": 1, "big": 9223372036854775808}': (
        "field big: expected a whole number <= 9223372036854775807"
    ),
    b'{"id": 1, "tags": ["a", 7]}': "field tags[]: expected a text, found a whole number",
    b'{"id": 1, "tags": [null]}': "field tags[]: expected a text, found null",
    b'{"id": 1, "by": {"k": "v"}}': "field by[...]: expected a whole number, found a text",
    b'{"id": 1, "of": {}}': "field of.x: missing",
    b'{"id": 1, "unknown": ' + b"[" * 500 + b"]" * 500 + b"}": "nested too deeply",
    b'{"id": 1, "unknown": ' + b"[" * 9_000 + b"]" * 9_000 + b"}": "nested too deeply",
}


def test_one_whole_json_value_of_the_types_fits() -> None:
    assert [error_of(body) for body in FITTING] == [None] * len(FITTING)


def test_a_field_that_the_schema_does_not_name_changes_nothing_about_a_time() -> None:
    days, clocks = ("2026-03-01", "0000-02-30", "26-03-01"), ("12:30", "12:30:59", "24:00:00")
    ends = ("", ".5", ".1234567890123", ",5", "Z", "z", "+01", "-0100", "+01:00", "+99:00", " UTC")
    times = [f"{day}{mark}{clock}{end}" for day in days for mark in "Tt _" for clock in clocks
             for end in ends]  # fmt: skip
    bodies = [
        f'{{"id": 1, "{name}": "{at}"' for name in ("at", "local", "day") for at in (*days, *times)
    ]

    found, errors = READER.read_all([f"{body}}}".encode() for body in bodies])
    more, reasons = READER.read_all([f'{body}, "more": 1}}'.encode() for body in bodies])
    assert (found, errors) == (more, reasons)
    assert 0 < found.null_count < len(found)


def test_digits_beyond_microseconds_are_rounded_in_every_year() -> None:
    micros = {
        "0000-01-01": -62_167_219_200_000_000,
        "9999-12-31T23:59:59.9999995-05:00": 253_402_318_800_000_000,
        "2026-03-01t12:30:00.0000014z": 1_772_368_200_000_001,
    }

    found, _ = READER.read_all([b'{"id": 1, "at": "%s"}' % at.encode() for at in micros])

    assert found.field("at").cast("int64").to_pylist() == [*micros.values()]


def test_every_other_body_has_its_reason() -> None:
    assert {body: error_of(body) for body in REFUSED} == REFUSED


def one_field_of(kind: str) -> BodyReader:
    fields = [field("n", "integer", nullable=False), field("a", kind)]
    return BodyReader(json.dumps({"type": "struct", "fields": fields}))


@pytest.mark.parametrize(
    "kind",
    [
        *("string", "binary", "boolean", "byte", "long", "float", "double", "decimal(10,2)"),
        *("date", "timestamp", "timestamp_ntz"),
    ],
)
def test_bodies_that_have_together_as_many_names_as_fields_are_read_one_by_one_where_one_lacks_one(
    kind: str,
) -> None:
    reader = one_field_of(kind)

    found, errors = reader.read_all([b'{"n": 1}', b'{"n": 2, "n": 3, "a": null}'])

    assert found.to_pylist() == [{"n": 1, "a": None}, None]
    assert errors.to_pylist() == [None, "field n: more than once"]


@pytest.mark.parametrize(
    "other",
    [
        b'{"n": 2, "a": "y"}',
        b'{"n" : 2,\t"a"\n:"y"}',
        b'{"n": 2, "a": "\\":"}',
        b'{"n": 2, "b": "y"}',
        b'{"n": 2, "b": "y", "c": {"d": [{"e": 1}], "f": ":"}}',
        b'{"n": 2, "b": "y", "c": {"d": [{"e": 1, "e": 1}]}}',
        b'{"n": 2, "a": "y", "b": 1, "a": "y"}',
        b'{"n": 2, "b": "\xfc", "c": 1}',
        b'{"n": 2, "b": 1e999, "c": 123456789012345678901234567890}',
        b'{"n": 2}',
        b'{"a": "y"}',
        b'{"n": 2, "a": 5}',
        b'{"n": 2, "a": "\xfc"}',
        b'{"n": 2, "b": ' + b"[" * 5_000 + b"]" * 5_000 + b"}",
        b'{"n": 2, "a": "y"},{"n": 2, "a": "y"}',
        b":",
        b"",
    ],
)
def test_a_body_is_read_alike_whatever_bodies_are_beside_it(other: bytes) -> None:
    reader = one_field_of("string")
    bodies = [b'{"n": 1, "a": "x"}', other]

    found, errors = reader.read_all(bodies)

    alone = [reader.read(body) for body in bodies]
    rows = [None if row is None else (row["n"], row["a"]) for row in found.to_pylist()]
    assert rows == [each if isinstance(each, tuple) else None for each in alone]
    assert errors.to_pylist() == [each if isinstance(each, str) else None for each in alone]


VALUES: list[tuple[str, str, Any]] = [
    ("string", '"麻\\u96c0\\n"', "麻雀\n"),
    ("binary", '"aGk="', b"hi"),
    ("boolean", "true", True),
    ("byte", "-128", -128),
    ("short", "32767", 32_767),
    ("integer", "-2147483648", -(2**31)),
    ("long", "9223372036854775807", 2**63 - 1),
    ("float", "0.1", 0.10000000149011612),
    ("double", "0.1", 0.1),
    ("double", "3", 3.0),
    ("decimal(10,2)", "1.5", Decimal("1.50")),
    ("decimal(10,2)", '"-12.50"', Decimal("-12.50")),
    ("decimal(38,0)", "1" * 38, Decimal("1" * 38)),
    ("date", '"1969-12-31"', date(1969, 12, 31)),
    ("timestamp", '"2026-03-01T00:30:00+01:00"', datetime(2026, 2, 28, 23, 30, tzinfo=UTC)),
    ("timestamp", '"2026-03-01 00:30-0130"', datetime(2026, 3, 1, 2, 0, tzinfo=UTC)),
    ("timestamp", '"2026-03-01"', datetime(2026, 3, 1, tzinfo=UTC)),
    ("timestamp_ntz", '"2026-03-01T12:30:00.000001"', datetime(2026, 3, 1, 12, 30, 0, 1)),
]


@pytest.mark.parametrize(("kind", "text", "value"), VALUES)
@pytest.mark.parametrize("more", ["", ', "more": {"n": [1]}'], ids=["alone", "beside others"])
def test_a_value_is_read_as_it_is_written(kind: str, text: str, value: Any, more: str) -> None:
    bodies = [f'{{"n": 1, "a": {text}{more}}}'.encode(), b'{"n": 2, "a": null}']

    found, errors = one_field_of(kind).read_all(bodies)

    assert (found.to_pylist(), errors.null_count) == (
        [{"n": 1, "a": value}, {"n": 2, "a": None}],
        2,
    )


def test_values_within_values_are_read_whole() -> None:
    item = {"type": "struct", "fields": [field("s", "string", nullable=False), field("n", "long")]}
    inner = {"type": "struct", "fields": [field("in", {"type": "array", "elementType": "date"})]}
    fields = [
        field("items", {"type": "array", "elementType": item}),
        field("by", {"type": "map", "keyType": "string", "valueType": item}),
        field("of", inner),
    ]
    bodies = [
        b'{"items": [{"s": "a", "n": 1}, null, {"s": "b"}], "by": {"k": {"s": "c"}, "l": null}}',
        b'{"of": {"in": ["1970-01-02", null]}, "by": {}, "items": [], "more": {"s": [1]}}',
        b'{"of": {}}',
        b'{"items": [{"n": 1}]}',
        b'{"items": [{"s": "a", "s": "b"}]}',
    ]

    found, errors = BodyReader(json.dumps({"type": "struct", "fields": fields})).read_all(bodies)

    by = [("k", {"s": "c", "n": None}), ("l", None)]
    assert found.to_pylist() == [
        {"items": [{"s": "a", "n": 1}, None, {"s": "b", "n": None}], "by": by, "of": None},
        {"items": [], "by": [], "of": {"in": [date(1970, 1, 2), None]}},
        {"items": None, "by": None, "of": {"in": None}},
        None,
        None,
    ]
    missing = "field items[].s: missing"
    assert errors.to_pylist() == [None, None, None, missing, "a name twice in an object"]

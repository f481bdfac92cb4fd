from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from sparrowmq.errors import ConfigError
from sparrowmq.spark.body_reader import _INTEGERS, _TYPES
from sparrowmq.spark.body_schema import TYPES, fields_ddl, parse_ddl, parse_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMAS = (
    "id BIGINT NOT NULL, name STRING",
    "a TINYINT, b BYTE, c SMALLINT, d SHORT, e INT, f INTEGER, g LONG, h REAL, i FLOAT, j DOUBLE",
    "a DECIMAL, b DEC(9), c NUMERIC( 38 , 18 ), d BOOLEAN, e BINARY, f DATE, g VARIANT, h VOID",
    "a TIMESTAMP, b TIMESTAMP_LTZ NOT NULL, c timestamp_ntz",
    "a: array<struct<x: int not null, y map<string, array<date>>>>\n, b struct<c:struct<d:int>>",
    "`a.b` INT, `c``d e` STRING, `麻雀` STRING COMMENT 'a, \"b\" \\' >', `NOT` INT NOT NULL",
    "1a INT, 1e INT, 5Q INT, 1_2 INT, 0x1f INT, `12` INT, a DECIMAL(38,38), b DECIMAL(0)",
    "not INT, comment STRING, struct STRUCT<array: ARRAY<INT>, map: INT>",
)
WRONG = {
    "": "a column's name is missing at its end",
    "id": "a type is missing at its end",
    "id INT,": "a column's name is missing at its end",
    "id INT name STRING": "',' is missing before 'name STRING'",
    "a ARRAY<STRUCT<>>": "a column's name is missing before '>>'",
    "a ARRAY<INT": "'>' is missing at its end",
    "a MAP<STRING>": "',' is missing before '>'",
    "a DECIMAL(9,)": "a number is missing before ')'",
    "a INT NOT": "',' is missing before 'NOT'",
    "a INT COMMENT": "a text is missing at its end",
    "a-b INT": "a type is missing before '-b INT'",
    "12 INT": "the backquote of a name is missing before '12 INT'",
    "1e5 INT": "the backquote of a name is missing before '1e5 INT'",
    "5s INT": "the backquote of a name is missing before '5s INT'",
    "麻雀 INT": "the backquote of a name is missing before '麻雀 INT'",
}

# Spark reads no columns, or a type alone, which no body has.
SPARKS_ALONE = {"", "a ARRAY<STRUCT<>>"}
DECIMALS = {
    "id INT, a DECIMAL(50,0)": "'a' of the schema: decimal(50,0)",
    "a ARRAY<NUMERIC(39)>": "'a[]' of the schema: decimal(39,0)",
    "a MAP<STRING, STRUCT<b: DEC(4, 9)>>": "'a[].b' of the schema: decimal(4,9)",
}


@pytest.mark.parametrize(("text", "words"), WRONG.items())
def test_what_is_not_ddl_is_refused_with_its_place(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_ddl(text)

    assert str(caught.value) == f"the schema is not DDL: {words}"


@pytest.mark.parametrize(
    "schema", ["", "{}", "[]", '"string"', '{"type": "array"}', '{"type": "struct"}', "id INT"]
)
def test_what_is_not_the_json_of_a_schema_is_refused(schema: str) -> None:
    with pytest.raises(ConfigError, match="is not the JSON of a Spark schema"):
        fields_ddl(schema)


def test_types_that_json_has_no_value_for_are_refused() -> None:
    interval = {"type": "struct", "fields": [{"name": "t", "type": "interval day to second"}]}
    by_number = {"type": "map", "keyType": "integer", "valueType": "long"}

    with pytest.raises(ConfigError, match="type 'interval day to second' cannot be read in JSON"):
        parse_schema(json.dumps(interval))
    with pytest.raises(ConfigError, match="has texts as keys, not 'integer'"):
        parse_schema(json.dumps({"type": "struct", "fields": [{"name": "by", "type": by_number}]}))


@pytest.mark.parametrize(("text", "words"), DECIMALS.items())
def test_decimals_that_spark_does_not_have_are_refused_with_their_column(
    text: str, words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_schema(text)

    assert str(caught.value) == (
        f"column {words} is not a type of Spark's; a decimal has at most 38 digits, and at most "
        f"all of them after the point"
    )


def test_a_name_that_stands_twice_is_refused() -> None:
    for text, column in {
        "a INT, b INT, a STRING": "a",
        "a ARRAY<STRUCT<b: INT, b: INT>>": "a[].b",
    }.items():
        with pytest.raises(ConfigError, match="is named twice; leave one out") as caught:
            parse_schema(text)
        assert repr(column) in str(caught.value)

    assert parse_schema("a INT, A INT")


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "\x1f"])
def test_a_name_that_json_escapes_is_refused(name: str) -> None:
    for text in (f"id INT, a STRUCT<`{name}`: INT>", json.dumps(parse_ddl(f"`{name}` INT"))):
        with pytest.raises(ConfigError, match="with a quote, a backslash or a control character"):
            parse_schema(text)


def test_each_type_has_a_reader() -> None:
    assert {*_INTEGERS, *_TYPES} == set(TYPES)


def test_who_plans_a_read_of_bodies_imports_no_library_of_columns() -> None:
    plan = (
        "import sys; from sparrowmq.spark.source import RocketMQDataSource as Source;"
        "Source({'nameServer': 'a:1', 'topic': 'T', 'bodySchema': 'id INT'}).schema();"
        "print([each for each in ('numpy', 'pyarrow') if each in sys.modules])"
    )

    found = subprocess.run([sys.executable, "-c", plan], check=True, capture_output=True, text=True)

    assert found.stdout == "[]\n"


@pytest.mark.spark
@pytest.mark.slow
def test_ddl_is_read_as_spark_reads_it(spark: SparkSession) -> None:
    for text in SCHEMAS:
        expected = StructType.fromDDL(text)
        assert isinstance(expected, StructType)
        for each in expected.fields:
            each.metadata = {}

        assert StructType.fromJson(parse_ddl(text)) == expected
    for text in (*WRONG.keys() - SPARKS_ALONE, *DECIMALS):
        with pytest.raises(PySparkException):
            StructType.fromDDL(text)

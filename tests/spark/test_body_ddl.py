from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import StructType

from sparrowmq.errors import ConfigError
from sparrowmq.spark.body_ddl import parse_ddl

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMAS = (
    "id BIGINT NOT NULL, name STRING",
    "a TINYINT, b BYTE, c SMALLINT, d SHORT, e INT, f INTEGER, g LONG, h REAL, i FLOAT, j DOUBLE",
    "a DECIMAL, b DEC(9), c NUMERIC( 38 , 18 ), d BOOLEAN, e BINARY, f DATE, g VARIANT, h VOID",
    "a TIMESTAMP, b TIMESTAMP_LTZ NOT NULL, c timestamp_ntz",
    "a: array<struct<x: int not null, y map<string, array<date>>>>\n, b struct<c:struct<d:int>>",
    "`a.b` INT, `c``d e` STRING, `麻雀` STRING COMMENT 'a, \"b\" \\' >', `NOT` INT NOT NULL",
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
}


@pytest.mark.parametrize(("text", "words"), WRONG.items())
def test_what_is_not_ddl_is_refused_with_its_place(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_ddl(text)

    assert str(caught.value) == f"the schema is not DDL: {words}"


@pytest.mark.spark
@pytest.mark.slow
def test_ddl_is_read_as_spark_reads_it(spark: SparkSession) -> None:
    for text in SCHEMAS:
        expected = StructType.fromDDL(text)
        assert isinstance(expected, StructType)
        for each in expected.fields:
            each.metadata = {}

        assert StructType.fromJson(parse_ddl(text)) == expected

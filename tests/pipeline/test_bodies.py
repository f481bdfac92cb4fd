from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.functions import unix_micros

from sparrowmq.errors import ConfigError
from sparrowmq.pipeline.ingest.body_parsing import parse_ddl, parse_schema, with_fields
from sparrowmq.spark.body_check import BodyCheck

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORDER = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "required": ["id"],
    "properties": {
        "id": {"type": "integer", "description": "a number"},
        "price": {"type": ["number", "null"]},
        "paid": {"type": "boolean"},
        "at": {"type": "string", "format": "date-time"},
        "day": {"type": "string", "format": "date"},
        "lines": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"sku": {"type": "string"}},
                "required": ["sku"],
            },
        },
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
    },
}


def test_a_json_schema_becomes_columns_and_required_fields() -> None:
    found = parse_schema(json.dumps(ORDER))

    assert found.struct.simpleString() == (
        "struct<id:bigint,price:double,paid:boolean,at:timestamp,day:date,"
        "lines:array<struct<sku:string>>,labels:map<string,string>>"
    )
    assert found.required == ("id",)
    # Nested fields are required too.
    assert '"name":"sku","nullable":false' in found.struct.json()


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("{", "is not JSON"),
        ('{"type": "string"}', "it has no 'properties'"),
        ('{"properties": {}}', "it has no 'properties'"),
        ('{"properties": {"a": {"enum": [1]}}}', r"'enum' at \$.a, which cannot be checked"),
        ('{"properties": {"a": {"type": ["string", "integer"]}}}', r"at \$.a; one type is needed"),
        (
            '{"properties": {"a": {}}, "required": ["b"]}',
            r"requires 'b' at \$, which is not a property",
        ),
        (
            '{"properties": {"a": {"type": "object", "properties": {"c": {}}, "required": ["b"]}}}',
            r"requires 'b' at \$.a, which is not a property",
        ),
    ],
)
def test_what_cannot_be_checked_is_refused(schema: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_schema(schema)


@pytest.mark.spark
def test_ddl_says_what_is_required(spark: object) -> None:
    found = parse_ddl("id BIGINT NOT NULL, name STRING")

    assert (
        found.struct.simpleString(),
        found.required,
    ) == ("struct<id:bigint,name:string>", ("id",))
    with pytest.raises(ConfigError, match="is not DDL"):
        parse_ddl("id BIGINTT")


@pytest.mark.spark
def test_fields_may_have_names_of_any_characters(spark: SparkSession) -> None:
    names = ["a.b", "`", "c`d e", "'", "$[0]", "麻雀"]
    schema = parse_schema(json.dumps({"properties": {name: {} for name in names}}))
    body = json.dumps({name: name for name in names}).encode()
    messages = spark.createDataFrame([(body, None)], "body binary, bodyError string")

    (row,) = with_fields(messages, schema).collect()

    assert [row[name] for name in names] == names
    assert row["misread"] is False


@pytest.mark.spark
def test_spark_judges_the_times_that_pass_the_check_of_bodies(spark: SparkSession) -> None:
    day, moment = "2026-03-01", datetime(2026, 3, 1, 12, 30, 0, 123456, UTC)
    times = [f"{day}T12:30:00.123456789012Z", f"{day}t12:30:00Z", f"{day}T12:30:00z"]
    times.append("2026-02-30T12:30:00Z")
    schema = parse_ddl("at TIMESTAMP")
    check = BodyCheck(schema.struct.json())
    bodies = [json.dumps({"at": at}).encode() for at in times]
    messages = spark.createDataFrame([(b, None) for b in bodies], "body binary, bodyError string")

    rows = with_fields(messages, schema).select("misread", unix_micros("at")).collect()

    assert [check.find_error(body) for body in bodies] == [None] * len(bodies)
    micros = round(moment.timestamp() * 1e6)
    assert [tuple(row) for row in rows] == [(False, micros), *[(True, None)] * 3]


@pytest.mark.spark
def test_avro_needs_sparks_package_for_it(spark: SparkSession) -> None:
    record = {"type": "record", "name": "Sale", "fields": [{"name": "id", "type": "long"}]}

    with pytest.raises(ConfigError, match="Spark has no package for Avro; start it with"):
        parse_schema(json.dumps(record))

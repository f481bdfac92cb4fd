from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from sparrowmq.errors import ConfigError
from sparrowmq.pipeline.ingest.body_parsing import parse_ddl, parse_schema

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


@pytest.mark.parametrize("others", [True, {}])
def test_a_json_schema_may_allow_any_other_fields(others: object) -> None:
    nested = {"type": "object", "properties": {"b": {}}, "additionalProperties": others}
    free = {"type": "object", "additionalProperties": others}
    schema = {"properties": {"a": nested, "m": free}, "additionalProperties": others}

    found = parse_schema(json.dumps(schema)).struct.simpleString()

    assert found == "struct<a:struct<b:string>,m:map<string,string>>"


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
            '{"properties": {"a": {}}, "additionalProperties": false}',
            r"restricts 'additionalProperties' at \$, which cannot be checked",
        ),
        (
            '{"properties": {"a": {"type": "object", "additionalProperties": false}}}',
            r"restricts 'additionalProperties' at \$.a",
        ),
        (
            '{"properties": {"a": {}}, "additionalProperties": {"type": "string"}}',
            r"restricts 'additionalProperties' at \$",
        ),
        (
            '{"properties": {"a": {}}, "required": ["b"]}',
            r"requires 'b' at \$, which is not a property",
        ),
        (
            '{"properties": {"a": {"type": "object", "properties": {"c": {}}, "required": ["b"]}}}',
            r"requires 'b' at \$.a, which is not a property",
        ),
        (
            '{"properties": {"a": {"type": "object", "required": ["b"]}}}',
            r"requires 'b' at \$.a, which is not a property",
        ),
        (
            '{"properties": {"a": {"type": ["string", "null"]}}, "required": ["a"]}',
            r"requires 'a' at \$ and lets it be null, which cannot be checked",
        ),
        (
            '{"properties": {"a": {"type": "object", "properties": {"b\\"c": {}}}}}',
            r"column 'a.b\"c' of the schema: a name with a quote",
        ),
    ],
)
def test_what_cannot_be_checked_is_refused(schema: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_schema(schema)


def test_ddl_says_what_is_required() -> None:
    found = parse_ddl("id BIGINT NOT NULL, name STRING")

    assert (
        found.struct.simpleString(),
        found.required,
    ) == ("struct<id:bigint,name:string>", ("id",))
    for ddl, words in {
        "id BIGINT id": "^the schema is not DDL: ',' is missing before 'id'$",
        "id BIGINTT": "column .id. of the schema: type .bigintt. cannot be read in JSON",
        "a INTERVAL": "column .a. of the schema: type .interval. cannot be read in JSON",
    }.items():
        with pytest.raises(ConfigError, match=words):
            parse_ddl(ddl)


@pytest.mark.spark
def test_avro_needs_sparks_package_for_it(spark: SparkSession) -> None:
    record = {"type": "record", "name": "Sale", "fields": [{"name": "id", "type": "long"}]}

    with pytest.raises(ConfigError, match="Spark has no package for Avro; start it with"):
        parse_schema(json.dumps(record))

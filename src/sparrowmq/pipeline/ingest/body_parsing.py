"""Parses message bodies by a schema, and finds the bodies that do not fit.

A schema is a DDL string, where NOT NULL makes a field required, or a JSON Schema. Of JSON Schema
(draft 2020-12) the keywords that determine the columns are read: `type`, `properties`, `required`,
`items`, `format` (date, date-time), `additionalProperties` for maps, and `["T", "null"]`. Keywords
that restrict values further (`enum`, `pattern`, `minimum` ...) are refused: the author of a schema
expects them to be checked, and the job does not check them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import reduce
from typing import Any, NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as t
from pyspark.sql.types import DataType, StringType, StructField, StructType

from sparrowmq.errors import ConfigError

REASON = "reason"
_CORRUPT, _ROW = "_corrupt", "_row"
# The most characters of a value that a reason shows.
_SHOWN = 40

_NOTES = {"$schema", "$id", "$comment", "title", "description", "examples", "default", "deprecated"}
_KNOWN = {"type", "properties", "required", "items", "format", "additionalProperties"} | _NOTES


class BodySchema(NamedTuple):
    """The schema of bodies.

    Args:
        struct: the columns, all nullable, so that bodies that break the rules can be read too.
        required: the top-level fields that must exist and not be null.
    """

    struct: StructType
    required: tuple[str, ...]


def parse_schema(text: str) -> BodySchema:
    """Parse a DDL string or a JSON Schema; a JSON Schema begins with a brace.

    DDL needs a Spark session.

    Raises: ConfigError, as `parse_ddl` and `parse_json_schema`.
    """
    return parse_json_schema(text) if text.lstrip().startswith("{") else parse_ddl(text)


def parse_ddl(text: str) -> BodySchema:
    """Parse DDL such as `id BIGINT NOT NULL, name STRING`; NOT NULL makes a field required.

    Raises: ConfigError with Spark's reason.
    """
    try:
        struct = StructType.fromDDL(text)
    except PySparkException as error:
        reason = str(error).strip().splitlines()[0].partition("SQLSTATE")[0].rstrip(" .")
        raise ConfigError(f"schema {text!r} is no DDL: {reason}") from None
    if not isinstance(struct, StructType) or not struct.fields:
        raise ConfigError(f"schema {text!r} has no column; write 'name TYPE, name TYPE'")
    required = tuple(field.name for field in struct if not field.nullable)
    return BodySchema(StructType([StructField(f.name, f.dataType) for f in struct]), required)


def parse_json_schema(text: str) -> BodySchema:
    """Parse a JSON Schema of an object.

    Raises: ConfigError with the place and the unsupported keyword.
    """
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"the JSON Schema is not JSON: {error}") from None
    if not isinstance(schema, dict) or not isinstance(schema.get("properties"), dict):
        raise ConfigError("the JSON Schema must describe an object: it has no 'properties'")
    struct = _data_type({**schema, "type": "object"}, "$")
    required = tuple(schema.get("required", ()))
    unknown = [name for name in required if name not in schema["properties"]]
    if unknown:
        raise ConfigError(f"the JSON Schema requires {unknown[0]!r}, which is no property")
    return BodySchema(struct, required)  # type: ignore[arg-type]


def with_fields(messages: DataFrame, schema: BodySchema | None) -> DataFrame:
    """Add each body's fields, and `reason`, which is null if the body fits the schema."""
    if schema is None:
        return messages.withColumn(REASON, F.lit(None).cast("string"))
    text = F.col("body").cast("string")
    with_corrupt = StructType([*schema.struct.fields, StructField(_CORRUPT, StringType())])
    row = F.from_json(text, with_corrupt, {"columnNameOfCorruptRecord": _CORRUPT})
    parsed = messages.withColumn(_ROW, row).withColumn(REASON, _reason(schema, text))
    fields = (F.col(f"{_ROW}.`{name}`") for name in schema.struct.names)
    return parsed.select(*messages.columns, *fields, REASON)


def _reason(schema: BodySchema, text: Column) -> Column:
    """Return the reason why a body does not fit; a fitting body costs only the first test."""

    def field_of(name: str) -> Column:
        return F.col(f"{_ROW}.`{name}`")

    def text_of(name: str) -> Column:
        quoted = name.replace("'", "\\'")
        return F.get_json_object(text, f"$['{quoted}']")

    conditions = [F.length(F.trim(text)) > 0, F.col(f"{_ROW}.{_CORRUPT}").isNull()]
    conditions += [field_of(name).isNotNull() for name in schema.required]
    fits = reduce(lambda left, right: left & right, conditions)
    found = (
        F.when(fits, None)
        .when(text.isNull() | (F.length(F.trim(text)) == 0), "empty body")
        .when(~F.is_valid_utf8(text), "not UTF-8")
        .when(F.try_parse_json(text).isNull(), "not JSON")
        .when(~F.startswith(F.ltrim(text), F.lit("{")), "not a JSON object")
    )
    for name in schema.required:
        found = found.when(text_of(name).isNull(), f"field {name}: missing")
    for column in schema.struct.fields:
        kind = column.dataType.simpleString()
        shown = F.substring(text_of(column.name), 1, _SHOWN)
        found = found.when(
            text_of(column.name).isNotNull() & field_of(column.name).isNull(),
            F.concat(F.lit(f"field {column.name}: expected {kind}, found '"), shown, F.lit("'")),
        )
    return found.otherwise("a nested field has another type than the schema says")


def _data_type(schema: Mapping[str, Any], place: str) -> DataType:
    if not isinstance(schema, dict):
        raise ConfigError(f"the JSON Schema has no object at {place}")
    unknown = sorted(schema.keys() - _KNOWN)
    if unknown:
        raise ConfigError(
            f"the JSON Schema has {unknown[0]!r} at {place}, which cannot be checked here; "
            f"known are {', '.join(sorted(_KNOWN - _NOTES))}"
        )
    name = _type_name(schema, place)
    if name == "object":
        properties = schema.get("properties")
        if properties:
            return t.StructType(
                [t.StructField(n, _data_type(s, f"{place}.{n}")) for n, s in properties.items()]
            )
        values = schema.get("additionalProperties")
        value_type = _data_type(values, f"{place}.*") if isinstance(values, dict) else None
        return t.MapType(t.StringType(), value_type or t.StringType())
    if name == "array":
        items = schema.get("items")
        element = _data_type(items, f"{place}[]") if items else t.StringType()
        return t.ArrayType(element)
    if name == "string":
        formats = {"date": t.DateType(), "date-time": t.TimestampType()}
        return formats.get(schema.get("format", ""), t.StringType())
    return {"integer": t.LongType(), "number": t.DoubleType(), "boolean": t.BooleanType()}[name]


def _type_name(schema: Mapping[str, Any], place: str) -> str:
    kind = schema.get("type", "string")
    names = [n for n in (kind if isinstance(kind, list) else [kind]) if n != "null"]
    if len(names) != 1 or names[0] not in {
        "object", "array", "string", "integer", "number", "boolean",
    }:  # fmt: skip
        raise ConfigError(f"the JSON Schema has type {kind!r} at {place}; one type is needed")
    return str(names[0])

"""Parses message bodies by a schema.

A schema of JSON bodies is a DDL string, where NOT NULL makes a field required, or a JSON Schema. Of
JSON Schema (draft 2020-12) the keywords that determine the columns are read: `type`, `properties`,
`required`, `items`, `format` (date, date-time), `additionalProperties` for maps, and `["T",
"null"]`. Keywords that restrict values further (`enum`, `pattern`, `minimum` ...) are refused: the
author of a schema expects them to be checked, and the job does not check them.

An Avro schema, of type record, reads bodies in Avro's binary encoding, by Spark's package for Avro.
Tests: pipeline/test_bodies.py, interop/test_spark_versions.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as t
from pyspark.sql.avro.functions import from_avro, to_avro
from pyspark.sql.types import DataType, StringType, StructField, StructType

from sparrowmq.errors import ConfigError
from sparrowmq.spark import body_schema

# The columns that the data source makes of bodies in JSON.
FIELDS, ERROR = "bodyFields", "bodyError"
_ROW, _FOUND = "_row", "_found"

_NOTES = {"$schema", "$id", "$comment", "title", "description", "examples", "default", "deprecated"}
_KNOWN = {"type", "properties", "required", "items", "format", "additionalProperties"} | _NOTES


class BodySchema(NamedTuple):
    """The schema of bodies; a field that is not nullable must exist and not be null.

    Args:
        avro: the Avro schema of the record `_row` alone, which bodies are encoded by; None for
            bodies in JSON.
    """

    struct: StructType
    avro: str | None = None

    @property
    def columns(self) -> StructType:
        """The columns of the table, all nullable."""
        return StructType([StructField(each.name, each.dataType) for each in self.struct.fields])

    @property
    def required(self) -> tuple[str, ...]:
        """The top-level fields that must exist and not be null."""
        return tuple(each.name for each in self.struct.fields if not each.nullable)


def parse_schema(text: str) -> BodySchema:
    """Parse a DDL string, a JSON Schema or an Avro schema; the last two begin with a brace.

    An Avro schema needs a Spark session.

    Raises: ConfigError, as `parse_ddl`, `parse_json_schema` and `parse_avro`.
    """
    schema = _load_json(text)
    if schema is None:
        return parse_ddl(text)
    return parse_avro(schema) if _is_record(schema) else parse_json_schema(schema)


def is_avro(text: str) -> bool:
    """Return whether this is an Avro schema, which only Spark can parse.

    Raises: ConfigError if the text begins with a brace and is not JSON.
    """
    schema = _load_json(text)
    return schema is not None and _is_record(schema)


def parse_avro(schema: Mapping[str, Any]) -> BodySchema:
    """Parse an Avro schema of a record.

    Raises: ConfigError if Spark has no package for Avro, or with Spark's reason.
    """
    # A record has the bytes of its fields alone. Spark gives nulls for a record that it cannot
    # read, and for one within another a null.
    fields = [{"name": _ROW, "type": schema}]
    avro = json.dumps({"type": "record", "name": "SparrowMQBody", "fields": fields})
    try:
        row = SparkSession.active().range(0).select(from_avro(F.lit(b""), avro)[_ROW].alias(_ROW))
        struct: Any = row.schema[_ROW].dataType
    except PySparkException as error:
        if error.getCondition() == "AVRO_NOT_LOADED_SQL_FUNCTIONS_UNUSABLE":
            raise ConfigError(
                "Spark has no package for Avro; start it with the setting spark.jars.packages="
                "org.apache.spark:spark-avro_2.13:4.2.0, or of Spark's version"
            ) from None
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(f"the Avro schema cannot be read: {reason}") from None
    except Py4JJavaError as error:
        reason = error.java_exception.getMessage()
        raise ConfigError(f"the Avro schema cannot be read: {reason}") from None
    return BodySchema(struct, avro)


def parse_ddl(text: str) -> BodySchema:
    """Parse DDL such as `id BIGINT NOT NULL, name STRING`; NOT NULL makes a field required.

    Raises: ConfigError for a text that is not DDL, or a type that JSON has no value for.
    """
    return BodySchema(StructType.fromJson(json.loads(body_schema.parse_schema(text))))


def parse_json_schema(schema: Mapping[str, Any]) -> BodySchema:
    """Parse a JSON Schema of an object.

    Raises: ConfigError with the place and the unsupported keyword.
    """
    properties = schema.get("properties")
    if not isinstance(properties, dict) or not properties:
        raise ConfigError("the JSON Schema must describe an object: it has no 'properties'")
    struct = _data_type({**schema, "type": "object"}, "$")
    body_schema.fields_ddl(struct.json())
    return BodySchema(struct)  # type: ignore[arg-type]


def with_avro_fields(messages: DataFrame, schema: BodySchema) -> DataFrame:
    """Add what the data source adds for JSON: each body's fields, and why it does not fit.

    Spark ignores what follows a record, may give the entries of a map in another order, and takes
    bytes that are not UTF-8 for texts, which no reader of the table could read.
    """
    assert schema.avro is not None
    body, found = F.col("body"), F.col(_FOUND)
    parsed = messages.withColumn(_FOUND, from_avro(body, schema.avro, {"mode": "PERMISSIVE"}))
    encoded, has_map = to_avro(found, schema.avro), '"map"' in schema.avro
    is_whole = F.length(encoded) == F.length(body) if has_map else encoded == body
    is_text = F.forall(F.concat(*_texts(found[_ROW], schema.struct), _no_texts()), _is_text)
    fits = found[_ROW].isNotNull() & is_whole & is_text
    error = F.when(~F.coalesce(fits, F.lit(False)), "not one Avro record of the schema")
    return parsed.select(*messages.columns, found[_ROW].alias(FIELDS), error.alias(ERROR))


def _texts(value: Column, kind: DataType) -> list[Column]:
    """Return arrays of all texts of a value, which has this type."""
    if isinstance(kind, StringType):
        found = [F.array(value)]
    elif isinstance(kind, StructType):
        found = [text for each in kind for text in _texts(value.getField(each.name), each.dataType)]
    elif isinstance(kind, t.ArrayType):
        inner = kind.elementType
        found = [
            F.flatten(F.transform(value, lambda each: F.concat(*_texts(each, inner), _no_texts())))
        ]
    elif isinstance(kind, t.MapType):
        keys, values = F.map_keys(value), F.map_values(value)
        found = _texts(keys, t.ArrayType(kind.keyType))
        found += _texts(values, t.ArrayType(kind.valueType))
    else:
        found = []
    return [F.coalesce(each, _no_texts()) for each in found]


def _no_texts() -> Column:
    return F.array().cast("array<string>")


def _is_text(value: Column) -> Column:
    return value.isNull() | F.is_valid_utf8(value)


def table_rows(
    messages: DataFrame, schema: BodySchema, observation: Observation, columns: Sequence[str]
) -> DataFrame:
    """Return the messages that fit, with some of their columns and the fields of their bodies.

    The observation counts `misfits`. Spark moves no filter before an observation, so it parses an
    Avro body once: before the parsing a filter would parse it a second time.
    """
    fields = F.col(FIELDS)
    return (
        messages.observe(observation, F.count_if(F.col(ERROR).isNotNull()).alias("misfits"))
        .where(F.col(ERROR).isNull())
        .select(*columns, *(fields[name].alias(name) for name in schema.struct.names))
    )


def quoted(name: str) -> str:
    """Return a column's name for Spark, whatever characters it has."""
    return "`" + name.replace("`", "``") + "`"


def _load_json(text: str) -> dict[str, Any] | None:
    """Return a schema that begins with a brace; None for another."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        found: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"the schema is not JSON: {error}") from None
    return found


def _is_record(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "record"


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
        properties, values = schema.get("properties"), schema.get("additionalProperties", True)
        if values is False or (properties and values not in (True, {})):
            raise ConfigError(
                f"the JSON Schema restricts 'additionalProperties' at {place}, which cannot be "
                "checked here; leave it out"
            )
        required = schema.get("required", ())
        unknown = [name for name in required if name not in (properties or ())]
        if unknown:
            raise ConfigError(
                f"the JSON Schema requires {unknown[0]!r} at {place}, which is not a property"
            )
        if properties:
            fields = [
                t.StructField(n, _data_type(s, f"{place}.{n}"), n not in required)
                for n, s in properties.items()
            ]
            nullable = [name for name in required if "null" in properties[name].get("type", ())]
            if nullable:
                raise ConfigError(
                    f"the JSON Schema requires {nullable[0]!r} at {place} and lets it be null, "
                    f"which cannot be checked here; take it out of 'required', or 'null' out of "
                    f"its type"
                )
            return t.StructType(fields)
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

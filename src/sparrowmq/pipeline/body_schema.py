"""The schema of message bodies: from JSON Schema or a DDL string to columns and required fields.

Of JSON Schema (draft 2020-12) the part that says which columns there are: `type`, `properties`,
`required`, `items`, `format` (date, date-time), `additionalProperties` for maps, `["T", "null"]`.
What restricts values further (`enum`, `pattern`, `minimum` ...) is refused rather than ignored:
whoever writes it expects that it is checked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from sparrowmq.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_NOTES = {"$schema", "$id", "$comment", "title", "description", "examples", "default", "deprecated"}
_KNOWN = {"type", "properties", "required", "items", "format", "additionalProperties"} | _NOTES


class BodySchema(NamedTuple):
    """What a body must look like.

    Args:
        struct: the columns; all nullable, for a body that breaks the rules is read too.
        required: top-level fields that must be there and not be null.
    """

    struct: StructType
    required: tuple[str, ...]


def parse_ddl(text: str) -> BodySchema:
    """Read `id BIGINT NOT NULL, name STRING`; NOT NULL makes a field required.

    Raises: ConfigError with Spark's reason.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructField, StructType

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
    """Read a JSON Schema of an object.

    Raises: ConfigError naming the place and the keyword that cannot be read.
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


def _data_type(schema: Mapping[str, Any], place: str) -> DataType:
    from pyspark.sql import types as t

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
    told = schema.get("type", "string")
    names = [n for n in (told if isinstance(told, list) else [told]) if n != "null"]
    if len(names) != 1 or names[0] not in {
        "object", "array", "string", "integer", "number", "boolean",
    }:  # fmt: skip
        raise ConfigError(f"the JSON Schema has type {told!r} at {place}; one type is needed")
    return str(names[0])

"""Checks whether a message's body is one JSON value of a schema. Pure.

Spark's `from_json` reads the first JSON value of a body and ignores what follows; it replaces bytes
that are not UTF-8, and takes a number for a text, and a count of seconds for a time. This check is
strict: UTF-8, one whole value by RFC 8259, and the types of the schema. Dates, times and binary
values are texts here; whether a text is a date, Spark says, which reads it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from sparrowmq.errors import ConfigError

_INTEGER_BITS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
_PLAIN: dict[str, Any] = {"boolean": bool, "float": float, "double": float, "variant": Any}
_WORDS = {
    "str": "a text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "object": "an object",
    "array": "an array",
    "null": "null",
}
_PLACE = re.compile(r" - at `\$\.?(.*)`$")
_TYPES = re.compile(r"`([a-z |]+)`")
_INDEX = re.compile(r"\[[0-9]+\]")
_MISSING = re.compile(r"Object missing required field `(.*)`$")


class BodyCheck:
    """Says why a body does not fit a schema.

    Args:
        schema: a Spark schema as JSON, by `StructType.json()`; a field that is not nullable must
            exist and not be null.

    Raises: ConfigError if the text is no such schema.
    """

    def __init__(self, schema: str) -> None:
        try:
            found = json.loads(schema)
            self._decode = msgspec.json.Decoder(_struct_type(found)).decode
        except (ValueError, LookupError, TypeError) as error:
            raise ConfigError(
                f"the schema {schema[:80]!r} is not the JSON of a Spark schema ({error}); "
                f"give schema.json() of a StructType"
            ) from error

    def find_error(self, body: bytes) -> str | None:
        """Return the reason why a body does not fit; None for a body that fits.

        A reason names the field, the expected type and the type found, and no value: equal faults
        have equal reasons.
        """
        try:
            # The decoder does not look into the texts of fields that the schema does not name.
            body.decode()
            self._decode(body)
        except UnicodeDecodeError:
            return "not UTF-8"
        except msgspec.ValidationError as error:
            return _describe(str(error))
        except msgspec.DecodeError as error:
            if not body.strip():
                return "empty body"
            is_more = "trailing characters" in str(error)
            return "more than one JSON value" if is_more else "not JSON"
        except RecursionError:
            return "nested too deeply"
        return None


@lru_cache(maxsize=8)
def body_check(schema: str) -> BodyCheck:
    """Return the check of a schema; a process makes it once."""
    return BodyCheck(schema)


def _describe(error: str) -> str:
    """Return msgspec's words in ours; a path without its `$`."""
    place = _PLACE.search(error)
    path = _INDEX.sub("[]", place[1]) if place else ""
    text = error[: place.start()] if place else error
    missing = _MISSING.match(text)
    if missing is not None:
        return f"field {path}.{missing[1]}: missing" if path else f"field {missing[1]}: missing"
    if not path:
        return "not a JSON object"
    words = _TYPES.sub(lambda found: _name(found[1]), text).replace(", got ", ", found ")
    return f"field {path}: {words[:1].lower()}{words[1:]}"


def _name(types: str) -> str:
    """Return words for one of msgspec's types, or for the alternatives `int | float | null`."""
    names = types.split(" | ")
    first = "float" if "float" in names else names[0]
    return _WORDS.get(first, first)


def _struct_type(schema: Mapping[str, Any]) -> Any:
    """Return a type of msgspec for a struct, by the JSON of Spark's schema."""
    if schema["type"] != "struct":
        raise TypeError(f"type {schema['type']!r} is not a struct")
    fields: list[Any] = []
    for index, each in enumerate(schema["fields"]):
        kind = _type(each["type"])
        name = f"f{index}"
        fields.append(
            (name, kind | None | UnsetType, UNSET) if each.get("nullable", True) else (name, kind)
        )
    names = {f"f{index}": each["name"] for index, each in enumerate(schema["fields"])}
    return msgspec.defstruct("Body", fields, kw_only=True, rename=names, gc=False)


def _type(kind: str | Mapping[str, Any]) -> Any:
    if isinstance(kind, str):
        if kind in _INTEGER_BITS:
            limit = 2 ** (_INTEGER_BITS[kind] - 1)
            return Annotated[int, Meta(ge=-limit, le=limit - 1)]
        if kind.startswith("decimal"):
            return int | float | str
        return _PLAIN.get(kind, str)
    if kind["type"] == "array":
        element = _type(kind["elementType"])
        return list[element | None] if kind.get("containsNull", True) else list[element]  # type: ignore[valid-type]
    if kind["type"] == "map":
        value = _type(kind["valueType"])
        is_nullable = kind.get("valueContainsNull", True)
        return dict[str, value | None] if is_nullable else dict[str, value]  # type: ignore[valid-type]
    return _struct_type(kind)

"""Checks whether a message's body is one JSON value of a schema. Pure.

Spark's `from_json` reads the first JSON value of a body and ignores what follows; it replaces bytes
that are not UTF-8, and takes a number for a text, and a count of seconds for a time. It takes the
last of two equal names, rounds to the scale of a decimal, reads "1,5" as 15, "12:30" as a time of
today, and what follows a date as nothing. This check is strict: UTF-8, one whole value by RFC 8259,
each name once in its object, the types of the schema, and dates and times by ISO 8601. Whether
there is such a day, and whether a text is base64, Spark says, which reads it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from sparrowmq.errors import ConfigError

# Spark's reader of JSON refuses deeper bodies than 1,000; how deep Python's goes, its version says.
DEPTH_MAX = 500
_TEXT_OR_BRACKET = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]')
_INTEGER_BITS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
# Beyond it a number that is rounded to 32 bits becomes infinite.
_FLOAT_MAX = 3.4028235677973366e38
_DAY, _CLOCK = r"[0-9]{4}-[0-9]{2}-[0-9]{2}", r"[ Tt][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:[.][0-9]+)?)?"
_ZONE = r"(?:[Zz]|[+-][0-9]{2}(?::?[0-9]{2})?)"
_FORMATS = {
    "date": (rf"^{_DAY}\Z", "a date, YYYY-MM-DD"),
    "timestamp": (rf"^{_DAY}(?:{_CLOCK}{_ZONE}?)?\Z", "a time by ISO 8601, with its date"),
    "timestamp_ntz": (rf"^{_DAY}(?:{_CLOCK})?\Z", "a time by ISO 8601, with its date and no zone"),
}
# What msgspec takes for dates and times is a part of what these patterns match.
_READ_FORMATS: dict[str, Any] = {
    "date": date,
    "timestamp": datetime,
    "timestamp_ntz": Annotated[datetime, Meta(tz=False)],
}
_FORMAT_WORDS = {f"`str` matching regex {regex!r}": words for regex, words in _FORMATS.values()}
_PLAIN: dict[str, Any] = {
    "boolean": bool,
    "float": Annotated[float, Meta(ge=-_FLOAT_MAX, le=_FLOAT_MAX)],
    "double": float,
    "variant": Any,
}
_QUICK = _PLAIN | _READ_FORMATS
_EXACT = _PLAIN | {
    kind: Annotated[str, Meta(pattern=regex)] for kind, (regex, _) in _FORMATS.items()
}
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
_DECIMAL = re.compile(r"decimal\(([0-9]+), ?(-?[0-9]+)\)")


class _Number:
    """The type of a decimal, whose subclasses have its digits."""

    precision: ClassVar[int]
    scale: ClassVar[int]

    @classmethod
    def holds(cls, value: Any) -> bool:
        """Return whether the decimal holds exactly this value of a body."""
        if isinstance(value, bool) or not isinstance(value, int | Decimal | str):
            return False
        try:
            _, digits, exponent = (number := Decimal(value)).as_tuple()
        except InvalidOperation:
            return False
        if not isinstance(exponent, int):
            return False
        is_rounded = any(digits[max(0, len(digits) + exponent + cls.scale) :])
        return not is_rounded and (not number or number.adjusted() < cls.precision - cls.scale)


def _check_number(kind: type[_Number], value: Any) -> _Number:
    if not kind.holds(value):
        raise ValueError(f"not a value of {kind.__name__}")
    return kind()


def _read_number(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        raise ValueError("number out of range") from None


class _TwiceError(Exception):
    """An object has this name twice."""


def _check_names(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) != len(pairs):
        names = [name for name, _ in pairs]
        raise _TwiceError(next(name for name in names if names.count(name) > 1))


# The digits of a number do not matter here, and Python reads only so many.
_look_through = json.JSONDecoder(
    object_pairs_hook=_check_names, parse_int=len, parse_float=len
).decode


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
            self._names = frozenset(each["name"] for each in found["fields"])
            # Most bodies pass the quick look, which takes half the time of the exact one.
            self._decode_quickly, self._decode = (
                msgspec.json.Decoder(
                    _struct_type(found, plain), dec_hook=_check_number, float_hook=_read_number
                ).decode
                for plain in (_QUICK, _EXACT)
            )
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
        if len(body) > 2 * DEPTH_MAX and _depth(body) > DEPTH_MAX:
            return "nested too deeply"
        try:
            if _has_names_alone(body, self._decode_quickly(body)):
                return None
        except (msgspec.MsgspecError, UnicodeDecodeError):
            pass
        try:
            # The decoder does not look into the texts of fields that the schema does not name.
            text = body.decode()
            if not _has_names_alone(body, self._decode(body)):
                _look_through(text.strip())
        except UnicodeDecodeError:
            return "not UTF-8"
        except msgspec.ValidationError as error:
            return _describe(str(error))
        except msgspec.DecodeError as error:
            if not body.strip():
                return "empty body"
            is_more = "trailing characters" in str(error)
            return "more than one JSON value" if is_more else "not JSON"
        except _TwiceError as error:
            # Other names, those of a map among them, are as many and as long as their writers like.
            is_known = str(error) in self._names
            return f"field {error}: more than once" if is_known else "a name twice in an object"
        return None


@lru_cache(maxsize=8)
def body_check(schema: str) -> BodyCheck:
    """Return the check of a schema; a process makes it once."""
    return BodyCheck(schema)


def _has_names_alone(body: bytes, row: Any) -> bool:
    """Return whether a body surely has each name of a row once, and no other: a quick look.

    Behind each name are its quote, blanks and a colon. Where there are as many of these, in texts
    too, as fields were found, there is no other name.
    """
    values = msgspec.structs.astuple(row)
    found = len(values) - values.count(UNSET)
    return body.translate(None, b" \t\r\n").count(b'":') == found


def _depth(body: bytes) -> int:
    """Return how deep the arrays and objects of a body stand in one another."""
    if body.count(b"[") + body.count(b"{") <= DEPTH_MAX:
        return 0
    depth = deepest = 0
    for found in _TEXT_OR_BRACKET.finditer(body):
        first = found[0][:1]
        if first in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif first in b"]}":
            depth -= 1
    return deepest


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
    for pattern, words in _FORMAT_WORDS.items():
        text = text.replace(pattern, words)
    words = _TYPES.sub(lambda found: _name(found[1]), text).replace(", got ", ", found ")
    return f"field {path}: {words[:1].lower()}{words[1:]}"


def _name(types: str) -> str:
    """Return words for one of msgspec's types, or for the alternatives `int | float | null`."""
    names = types.split(" | ")
    first = "float" if "float" in names else names[0]
    return _WORDS.get(first, first)


def _struct_type(schema: Mapping[str, Any], plain: Mapping[str, Any]) -> Any:
    """Return a type of msgspec for a struct, by the JSON of Spark's schema.

    Args:
        plain: the types of msgspec for the types without parts, by Spark's names.
    """
    if schema["type"] != "struct":
        raise TypeError(f"type {schema['type']!r} is not a struct")
    fields: list[Any] = []
    for index, each in enumerate(schema["fields"]):
        kind = _type(each["type"], plain)
        name = f"f{index}"
        fields.append(
            (name, kind | None | UnsetType, UNSET) if each.get("nullable", True) else (name, kind)
        )
    names = {f"f{index}": each["name"] for index, each in enumerate(schema["fields"])}
    return msgspec.defstruct("Body", fields, kw_only=True, rename=names, gc=False)


def _type(kind: str | Mapping[str, Any], plain: Mapping[str, Any]) -> Any:
    if isinstance(kind, str):
        if kind in _INTEGER_BITS:
            limit = 2 ** (_INTEGER_BITS[kind] - 1)
            return Annotated[int, Meta(ge=-limit, le=limit - 1)]
        if (digits := _DECIMAL.fullmatch(kind)) is not None:
            places = {"precision": int(digits[1]), "scale": int(digits[2])}
            return type(kind, (_Number,), places)
        return plain.get(kind, str)
    if kind["type"] == "array":
        element = _type(kind["elementType"], plain)
        return list[element | None] if kind.get("containsNull", True) else list[element]  # type: ignore[valid-type]
    if kind["type"] == "map":
        value = _type(kind["valueType"], plain)
        is_nullable = kind.get("valueContainsNull", True)
        return dict[str, value | None] if is_nullable else dict[str, value]  # type: ignore[valid-type]
    return _struct_type(kind, plain)

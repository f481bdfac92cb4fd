"""Reads message bodies in JSON by a schema, or says why a body does not fit it. Pure.

Spark's `from_json` reads the first JSON value of a body and ignores what follows; it replaces bytes
that are not UTF-8, and takes a number for a text, and a count of seconds for a time. It takes the
last of two equal names, rounds to the scale of a decimal, reads "1,5" as 15, "12:30" as a time of
today, and what follows a date as nothing. This reader is strict: UTF-8, one whole value by RFC
8259, each name once in its object, the types of the schema, binaries in base64, and dates and times
by ISO 8601, those without a zone in UTC. A body is parsed once: what was checked is what is read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, InvalidOperation
from functools import lru_cache
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import astuple
from pyspark.sql.types import VariantVal

from sparrowmq.spark.body_schema import DECIMAL

# How deep Python's reader of JSON goes, its version says.
DEPTH_MAX = 500
_TEXT_OR_BRACKET = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]')
# Beyond it a number that is rounded to 32 bits becomes infinite.
_FLOAT_MAX = 3.4028235677973366e38
_DAY = r"([0-9]{4})(-[0-9]{2}-[0-9]{2})"
_CLOCK = r"([ T](?:[01][0-9]|2[0-3]):[0-9]{2}(?::[0-9]{2})?)([.][0-9]+)?"
_ZONE = r"(Z|[+-][0-9]{2}(?::?[0-9]{2})?)?"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# The most digits that a decimal has.
_DIGITS = Context(prec=38)
_WORDS = {
    "str": "a text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "object": "an object",
    "array": "an array",
    "dict": "an object",
    "list": "an array",
    "null": "null",
}
_PLACE = re.compile(r" - at `\$\.?(.*)`$")
_TYPE_NAMES = re.compile(r"`([a-z |]+)`")
_INDEX = re.compile(r"\[[0-9]+\]")
_MISSING = re.compile(r"Object missing required field `(.*)`$")

_encode = msgspec.json.Encoder(decimal_format="number").encode
_decode_any = msgspec.json.Decoder().decode


class _Value:
    """A value that JSON has as a text or a number; a subclass for each of Spark's types."""

    @classmethod
    def read(cls, value: Any) -> Any:
        """Return the value, as Arrow takes it. Raises: ValueError with the reason."""
        raise NotImplementedError


class _Moment(_Value, int):
    """A date or a time, as Arrow counts it from 1970 on.

    Python's own types have neither the year 0 nor the year 10000, in which UTC may have a time.
    """

    name: ClassVar[str]
    pattern: ClassVar[re.Pattern[str]]
    words: ClassVar[str]
    unit = timedelta(microseconds=1)

    @classmethod
    def read(cls, value: Any) -> _Moment:
        """Return the moment that a text has."""
        if not isinstance(value, str):
            raise ValueError(f"expected a text, found {_WORDS[type(value).__name__]}")
        found = cls.pattern.fullmatch(value.upper())
        if found is None:
            raise ValueError(f"expected {cls.words}")
        year, day, clock, fraction, zone = (each or "" for each in found.groups())
        try:
            # The calendar is the same every 400 years.
            near = f"{2000 + int(year) % 400}{day}{clock or 'T00'}{zone or 'Z'}"
            moment = datetime.fromisoformat(near)
        except ValueError:
            raise ValueError(f"not a value of {cls.name}") from None
        # Rounded as msgspec does.
        micros = (int(fraction[1:8].ljust(7, "0")) + 5) // 10
        days = (int(year) // 400 - 5) * 146_097
        return cls((moment - _EPOCH + timedelta(days=days, microseconds=micros)) // cls.unit)


class _Date(_Moment):
    name = "date"
    pattern = re.compile(f"{_DAY}()()()")
    words = "a date, YYYY-MM-DD"
    unit = timedelta(days=1)


class _Timestamp(_Moment):
    name = "timestamp"
    pattern = re.compile(f"{_DAY}(?:{_CLOCK}{_ZONE})?")
    words = "a time by ISO 8601, with its date"


class _TimestampNtz(_Moment):
    name = "timestamp_ntz"
    pattern = re.compile(f"{_DAY}(?:{_CLOCK})?()")
    words = "a time by ISO 8601, with its date and no zone"


class _Number(_Value, Decimal):
    """A decimal, whose subclasses have its digits."""

    precision: ClassVar[int]
    scale: ClassVar[int]

    @classmethod
    def read(cls, value: Any) -> Decimal:
        """Return the number, if the decimal holds exactly this value of a body."""
        try:
            if not isinstance(value, int | Decimal | str) or isinstance(value, bool):
                raise InvalidOperation
            _, digits, exponent = (number := Decimal(value)).as_tuple()
            if not isinstance(exponent, int):
                raise InvalidOperation
            is_rounded = any(digits[max(0, len(digits) + exponent + cls.scale) :])
            if is_rounded or (number and number.adjusted() >= cls.precision - cls.scale):
                raise InvalidOperation
            return cls(number.quantize(Decimal(1).scaleb(-cls.scale), context=_DIGITS))
        except InvalidOperation:
            raise ValueError(f"not a value of {cls.__name__}") from None


class _Variant(_Value, tuple[bytes, bytes]):
    """A value of any type, as Spark encodes it."""

    @classmethod
    def read(cls, value: Any) -> _Variant:
        """Return the encoded value and the names in it."""
        found = VariantVal.parseJson(_encode(value).decode())
        return cls((found.value, found.metadata))


def _read_value(kind: type[_Value], value: Any) -> Any:
    return kind.read(value)


def _read_number(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        raise ValueError("number out of range") from None


_Float = Annotated[float, Meta(ge=-_FLOAT_MAX, le=_FLOAT_MAX)]
_BYTES = pa.field("value", pa.binary(), nullable=False)
_VARIANT = pa.struct([_BYTES, _BYTES.with_name("metadata").with_metadata({b"variant": b"true"})])
# By Spark's names: Arrow's type, msgspec's for most values, and its type for every value. The quick
# types read times as msgspec does, which is a part of what is allowed.
_INTEGERS = {"byte": pa.int8(), "short": pa.int16(), "integer": pa.int32(), "long": pa.int64()}
_TYPES: dict[str, tuple[pa.DataType, Any, Any]] = {
    "string": (pa.string(), str, str),
    "binary": (pa.binary(), bytes, bytes),
    "boolean": (pa.bool_(), bool, bool),
    "float": (pa.float32(), _Float, _Float),
    "double": (pa.float64(), float, float),
    "date": (pa.date32(), date, _Date),
    "timestamp": (pa.timestamp("us", tz="UTC"), datetime, _Timestamp),
    "variant": (_VARIANT, _Variant, _Variant),
    "timestamp_ntz": (pa.timestamp("us"), Annotated[datetime, Meta(tz=False)], _TimestampNtz),
}


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


class BodyReader:
    """Reads bodies by a schema.

    Args:
        schema: a schema of `body_schema` as JSON; a field that is not nullable must exist and not
            be null.
    """

    def __init__(self, schema: str) -> None:
        found = json.loads(schema)
        self.arrow_type = _arrow_type(found)
        self._names = frozenset(each["name"] for each in found["fields"])
        self._is_flat = not any(pa.types.is_nested(each.type) for each in self.arrow_type)
        # Most bodies pass the quick look, which takes half the time of the exact one.
        self._decode_quickly, self._decode = (
            msgspec.json.Decoder(
                _struct_type(found, at), dec_hook=_read_value, float_hook=_read_number
            ).decode
            for at in (1, 2)
        )

    def read_all(self, bodies: Sequence[bytes]) -> tuple[pa.Array, pa.Array]:
        """Return the fields of each body, null for one that does not fit, and its reason."""
        whole = self._read_whole(bodies)
        if whole is not None:
            return whole, pa.nulls(len(bodies), pa.string())
        found = [self.read(body) for body in bodies]
        rows = [None if isinstance(each, str) else each for each in found]
        errors = [each if isinstance(each, str) else None for each in found]
        return pa.array(rows, self.arrow_type), pa.array(errors, pa.string())

    def _read_whole(self, bodies: Sequence[bytes]) -> pa.Array | None:
        """Return the fields of bodies that all have all fields, each once; None for others.

        Most producers write every field, and then a body of 19 fields costs two thirds of what
        `read` takes (benchmarks/pipeline_ingest.py).
        """
        text = np.frombuffer(b"".join(bodies), np.uint8)
        # Before the colon behind a name is its quote or a blank; in texts there may be one too.
        names = np.count_nonzero((text[1:] == ord(":")) & (text[:-1] <= ord('"')))
        if not self._is_flat or names != len(bodies) * len(self._names):
            return None
        decode = self._decode_quickly
        try:
            # Arrow takes no UNSET. So each body has all fields, hence as many names at least, and
            # together they have no more.
            return pa.array([astuple(decode(body)) for body in bodies], self.arrow_type)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, pa.ArrowException):
            return None

    def read(self, body: bytes) -> tuple[Any, ...] | str:
        """Return the fields of a body; the reason, for a body that does not fit.

        A reason names the field, the expected type and the type found, and no value: equal faults
        have equal reasons.
        """
        if len(body) > 2 * DEPTH_MAX and _depth(body) > DEPTH_MAX:
            return "nested too deeply"
        try:
            values = astuple(self._decode_quickly(body))
            missing = values.count(UNSET)
            names = _count_names(body)
            if names == len(values) - missing or names == _count_keys(_decode_any(body)):
                return values if self._is_flat and not missing else _plain(values)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            pass
        try:
            # The decoder does not look into the texts of fields that the schema does not name.
            text = body.decode()
            values = astuple(self._decode(body))
            if _count_names(body) != len(values) - values.count(UNSET):
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
        return _plain(values)


@lru_cache(maxsize=8)
def body_reader(schema: str) -> BodyReader:
    """Return the reader of a schema; a process makes it once."""
    return BodyReader(schema)


def _count_names(body: bytes) -> int:
    """Return how many names a body has at most: where so many fields were found, each is alone.

    Behind each name are its quote, blanks and a colon; in texts they may be too.
    """
    return body.translate(None, b" \t\r\n").count(b'":')


def _count_keys(value: Any) -> int:
    """Return how many keys the objects of a decoded value have."""
    if isinstance(value, dict):
        return len(value) + sum(map(_count_keys, value.values()))
    return sum(map(_count_keys, value)) if isinstance(value, list) else 0


def _plain(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return values as Arrow takes them."""
    return tuple(map(_plain_value, values))


def _plain_value(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return _plain(astuple(value))
    if isinstance(value, list):
        return [_plain_value(each) for each in value]
    if isinstance(value, dict):
        return [(name, _plain_value(each)) for name, each in value.items()]
    return None if value is UNSET else value


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
    words = _TYPE_NAMES.sub(lambda found: _name(found[1]), text).replace(", got ", ", found ")
    return f"field {path}: {words[:1].lower()}{words[1:]}"


def _name(types: str) -> str:
    """Return words for one of msgspec's types, or for the alternatives `int | float | null`."""
    names = types.split(" | ")
    first = "float" if "float" in names else names[0]
    return _WORDS.get(first, first)


def _struct_type(schema: Mapping[str, Any], at: int) -> Any:
    """Return a type of msgspec for a struct, of column `at` of `_TYPES`."""
    fields: list[Any] = []
    for index, each in enumerate(schema["fields"]):
        kind = _type(each["type"], at)
        name = f"f{index}"
        fields.append(
            (name, kind | None | UnsetType, UNSET) if each.get("nullable", True) else (name, kind)
        )
    names = {f"f{index}": each["name"] for index, each in enumerate(schema["fields"])}
    return msgspec.defstruct("Body", fields, kw_only=True, rename=names, gc=False)


def _type(kind: str | Mapping[str, Any], at: int) -> Any:
    if isinstance(kind, str):
        if kind in _INTEGERS:
            limit = 2 ** (_INTEGERS[kind].bit_width - 1)
            return Annotated[int, Meta(ge=-limit, le=limit - 1)]
        if (digits := DECIMAL.fullmatch(kind)) is not None:
            places = {"precision": int(digits[1]), "scale": int(digits[2])}
            return type(kind, (_Number,), places)
        return _TYPES[kind][at]
    if kind["type"] == "array":
        element = _type(kind["elementType"], at)
        return list[element | None] if kind.get("containsNull", True) else list[element]  # type: ignore[valid-type]
    if kind["type"] == "map":
        value = _type(kind["valueType"], at)
        is_nullable = kind.get("valueContainsNull", True)
        return dict[str, value | None] if is_nullable else dict[str, value]  # type: ignore[valid-type]
    return _struct_type(kind, at)


def _arrow_type(kind: str | Mapping[str, Any]) -> Any:
    """Return Arrow's type exactly as Spark requires it; anything may be null."""
    if isinstance(kind, str):
        if (digits := DECIMAL.fullmatch(kind)) is not None:
            return pa.decimal128(int(digits[1]), int(digits[2]))
        return _INTEGERS[kind] if kind in _INTEGERS else _TYPES[kind][0]
    if kind["type"] == "array":
        return pa.list_(pa.field("element", _arrow_type(kind["elementType"])))
    if kind["type"] == "map":
        return pa.map_(pa.string(), _arrow_type(kind["valueType"]))
    return pa.struct([pa.field(each["name"], _arrow_type(each["type"])) for each in kind["fields"]])

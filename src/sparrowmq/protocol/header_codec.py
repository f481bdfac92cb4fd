"""Typed headers to ext fields and back. Pure.

The rules of reading (golden `headerdecode-*`): an unknown field is ignored. A malformed number, or
a number out of its Java type's range, counts as absent. "true" in any case is true, any other text
is false. Differs from RocketMQ: an absent required field is an error at once, as in RocketMQ's
hand-written decoders of the send headers. RocketMQ's generic decoder leaves null, on which the
processor fails later.

Speed matters here: benchmarks/protocol.py.
Source: RocketMQ 4.9.3 remoting/protocol/RemotingCommand.java, decodeCommandCustomHeader.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple, TypeVar, get_type_hints

import msgspec
from msgspec import Meta, Struct, convert

from sparrowmq.errors import RemoteProtocolError

H = TypeVar("H", bound=Struct)


class _Field(NamedTuple):
    name: str
    wire_name: str
    kind: type
    required: bool
    # The number on the wire that means "unknown", for a field that is None then.
    unknown: str | None
    lowest: int
    highest: int


class _Plan(NamedTuple):
    fields: tuple[_Field, ...]
    # The wire names of the booleans.
    flags: tuple[str, ...]


@cache
def _plan(header_type: type[Struct]) -> _Plan:
    """Return the plan for a type's fields, made once for each type."""
    hints = get_type_hints(header_type, include_extras=True)
    unknown: dict[str, int] = getattr(header_type, "__wire_unknown__", {})
    fields: list[_Field] = []
    for field in msgspec.structs.fields(header_type):
        parts = list(_parts(hints[field.name]))
        limits = next((part for part in parts if isinstance(part, Meta)), Meta(ge=0, le=0))
        fields.append(
            _Field(
                name=field.name,
                wire_name=field.encode_name,
                kind=next(kind for kind in (bool, int, str) if kind in parts),
                required=field.required,
                unknown=str(unknown[field.name]) if field.name in unknown else None,
                lowest=int(limits.ge or 0),
                highest=int(limits.le or 0),
            )
        )
    return _Plan(tuple(fields), tuple(field.wire_name for field in fields if field.kind is bool))


def _parts(hint: Any) -> Iterator[Any]:
    yield hint
    yield from getattr(hint, "__metadata__", ())
    for part in getattr(hint, "__args__", ()):
        yield from _parts(part)


def encode_header(header: Struct) -> dict[str, str]:
    """Write a typed header as ext fields, without the fields that are None."""
    ext_fields: dict[str, str] = {}
    for name, wire_name, kind, _, unknown, _, _ in _plan(type(header)).fields:
        value = getattr(header, name)
        if value is None:
            if unknown is not None:
                ext_fields[wire_name] = unknown
        elif kind is str:
            ext_fields[wire_name] = value
        elif kind is bool:
            ext_fields[wire_name] = "true" if value else "false"
        else:
            ext_fields[wire_name] = str(value)
    return ext_fields


def decode_header(header_type: type[H], ext_fields: Mapping[str, str] | None) -> H:
    """Read a typed header from ext fields.

    Raises: RemoteProtocolError, in RocketMQ's words, if a required field is missing or malformed.
    """
    fields = ext_fields or {}
    for name in _plan(header_type).flags:
        # msgspec reads "1" as true, Java does not.
        if fields.get(name, "true") not in ("true", "false"):
            return _decode_as_java_does(header_type, fields)
    try:
        return convert(fields, header_type, strict=False)
    except msgspec.ValidationError:
        return _decode_as_java_does(header_type, fields)


def _decode_as_java_does(header_type: type[H], ext_fields: Mapping[str, str]) -> H:
    values: dict[str, Any] = {}
    for field in _plan(header_type).fields:
        value = _parse_field(field, ext_fields.get(field.wire_name))
        if value is not None:
            values[field.wire_name] = value
        elif field.required:
            text = ext_fields.get(field.wire_name)
            fault = "null" if text is None else f"{text[:40]!r}, not a number of its size"
            raise RemoteProtocolError(f"the custom field <{field.wire_name}> is {fault}")
    return convert(values, header_type)


# int() would also accept blanks, underscores and other scripts' digits.
_NUMBER = re.compile(r"[+-]?[0-9]{1,20}", re.ASCII)


def _parse_field(field: _Field, text: str | None) -> str | int | bool | None:
    if text is None or field.kind is str:
        return text
    if field.kind is bool:
        return text.lower() == "true"
    number = int(text) if _NUMBER.fullmatch(text) else None
    return number if number is not None and field.lowest <= number <= field.highest else None

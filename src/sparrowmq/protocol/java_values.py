"""Values of another kind than a field's, read as fastjson reads them. Pure.

RocketMQ's brokers read bodies by fastjson, so clients in other languages get away with much: C++
clients write numbers for enumerations and texts for numbers. `adapt` makes the usual values of
these. Differs from fastjson: the names of members must be exact, and an object in place of a text
or a number that does not fit is refused.
Source: fastjson 1.2.69: EnumDeserializer, BooleanCodec, IntegerCodec, LongCodec, StringCodec,
TypeUtils.castToInt.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

from sparrowmq.model import MessageQueue

_INT32_MAX = 2**31 - 1
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_BOOLEANS = {
    **dict.fromkeys(("true", "1", "y", "t"), True),
    **dict.fromkeys(("false", "0", "n", "f"), False),
}
_QUEUE_ID = inspect.IntType(ge=-_INT32_MAX - 1, le=_INT32_MAX)


def adapt(value: Any, kind: inspect.Type) -> Any:
    """Return what fastjson makes of a value for a type; None if it leaves the field as it was.

    A value that fastjson refuses is returned unchanged, and is not a value of the type.
    """
    if isinstance(kind, inspect.UnionType):
        (kind,) = (each for each in kind.types if not isinstance(each, inspect.NoneType))
    if value is None or (value in ("", "null") and not isinstance(kind, inspect.StrType)):
        return None
    if isinstance(kind, inspect.StructType):
        return _adapt_members(value, kind.cls) if isinstance(value, dict) else value
    if isinstance(kind, inspect.NamedTupleType):
        return _adapt_queue(value)
    if isinstance(kind, inspect.DictType) and isinstance(value, dict):
        pairs = ((adapt(key, kind.key_type), adapt(v, kind.value_type)) for key, v in value.items())
        return {key: item for key, item in pairs if item is not None}
    if isinstance(kind, inspect.ListType | inspect.FrozenSetType) and isinstance(value, list):
        return [item for item in (adapt(v, kind.item_type) for v in value) if item is not None]
    return _adapt_scalar(value, kind)


def _adapt_scalar(value: Any, kind: inspect.Type) -> Any:
    if isinstance(kind, inspect.EnumType):
        return _adapt_enum(value, kind.cls)
    if isinstance(kind, inspect.BoolType):
        return _adapt_bool(value)
    if isinstance(kind, inspect.IntType):
        return _adapt_int(value, kind)
    if isinstance(kind, inspect.StrType) and isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(kind, inspect.StrType) and isinstance(value, int | float):
        return str(value)
    return value


def _adapt_enum(value: Any, kind: type[Enum]) -> Any:
    names = tuple(kind.__members__)
    adapted = _adapt_ordinal(value, names)
    if not isinstance(adapted, str):
        return adapted
    # An unknown name, such as one of a later version, says nothing.
    return next((kind[name] for name in names if name.lower() == adapted.lower()), None)


def _adapt_ordinal(value: Any, names: Iterable[str]) -> Any:
    """Return the name at a place; another value unchanged."""
    if isinstance(value, int) and not isinstance(value, bool):
        return next((name for at, name in enumerate(names) if at == value), value)
    return value


def _adapt_bool(value: Any) -> Any:
    if isinstance(value, str):
        return _BOOLEANS.get(value.lower(), value)
    return value == 1 if isinstance(value, int | float) else value


def _adapt_int(value: Any, kind: inspect.IntType) -> Any:
    if isinstance(value, bool):
        # fastjson takes a boolean for an int, and none for a long.
        return int(value) if kind.le == _INT32_MAX else value
    if isinstance(value, float):
        return int(value)
    if isinstance(value, str) and _INTEGER.fullmatch(digits := value.replace(",", "")):
        return int(digits)
    return value


def _adapt_queue(value: Any) -> Any:
    """Return a queue without an id as queue 0, and without members that no queue has."""
    if not isinstance(value, dict | tuple) or isinstance(value, MessageQueue):
        return value
    # An object that is a key is a tuple of pairs.
    members = dict(value)
    topic, broker_name = members.get("topic"), members.get("brokerName")
    queue_id = _adapt_int(members.get("queueId", 0), _QUEUE_ID)
    if isinstance(topic, str) and isinstance(broker_name, str) and type(queue_id) is int:
        return MessageQueue(topic, broker_name, queue_id)
    return value


def _adapt_members(value: dict[Any, Any], kind: type[msgspec.Struct]) -> dict[str, Any]:
    # By field, the names in Java's order of a text that is an enumeration in Java.
    ordinals: dict[str, tuple[str, ...]] = getattr(kind, "__ordinals__", {})
    found: dict[str, Any] = {}
    for field in _fields_of(kind):
        item = value.get(field.encode_name)
        item = adapt(_adapt_ordinal(item, ordinals.get(field.name, ())), field.type)
        if item is not None:
            found[field.encode_name] = item
    return found


@cache
def _fields_of(kind: type[msgspec.Struct]) -> tuple[inspect.Field, ...]:
    found = inspect.type_info(kind)
    assert isinstance(found, inspect.StructType)
    return found.fields

"""The JSON dialect of Java's fastjson, which RocketMQ writes and reads. Pure.

The dialect adds to JSON: map keys that are numbers (`{0:"a"}`) or objects (`{{"topic":"T",…}:5}`),
unquoted and single-quoted keys, single-quoted strings, commas before a closing bracket, numbers
with a type suffix, and `{"$ref":"$.a[0]"}` for an earlier value.

The values that `loads` returns:
- an object of exactly `brokerName, queueId, topic` is a `MessageQueue`, as a value and as a key;
- another object used as a key is a tuple of its pairs;
- an unquoted number used as a key is an `int`, a quoted one a `str`;
- a member that is null is left out of its object, as fastjson leaves it out on writing.

Rules of this file: time and memory are linear in the input, except that `$ref` may repeat values up
to a bound. Values nest at most `DEPTH_MAX` deep. A text has at most `MARKS_MAX` marks. `loads`
raises no error but RemoteProtocolError.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import cache
from typing import Any, TypeAlias

import msgspec
from msgspec import inspect

from sparrowmq.errors import LocalProtocolError, RemoteProtocolError
from sparrowmq.model import MessageQueue

# Marks are the characters at which a reader takes a step: each value, key, escape and reference has
# at least one. This many take about 20 ms.
MARKS_MAX = 16_384
_MARKS = b"{[,:$\\"
# The most bytes of a text, for each mark that the text may have.
BYTES_PER_MARK = 64
DEPTH_MAX = 16
DIGITS_MAX = 20
# The most values that all `$ref`s of one text may repeat together.
REFERENCED_VALUES_MAX = 65_536

Key: TypeAlias = str | int | tuple[Any, ...]

_QUEUE_FIELDS = frozenset({"brokerName", "queueId", "topic"})
_encode_text = msgspec.json.Encoder().encode
_encode_sorted = msgspec.json.Encoder(order="sorted").encode

_BLANK = re.compile(r"[ \t\r\n\f\b]*")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?[LSBFD]?", re.ASCII)
_NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_$.\-]*", re.ASCII)
_QUOTED = {
    '"': re.compile(r'[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL),
    "'": re.compile(r"[^'\\]*+(?:\\.[^'\\]*+)*+'", re.DOTALL),
}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPED = {
    **{character: character for character in "\"'\\/"},
    **dict(zip("bfnrtv0", "\b\f\n\r\t\v\0", strict=True)),
}
_WORDS = {"true": True, "false": False, "null": None}
# All but the brackets outside of strings. A string without an end reaches to the end of the text.
# Otherwise the match would fail and start again at every later quote, in quadratic time.
_NO_BRACKETS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[^\[\]{}"]++', re.DOTALL)
_LONG_DIGITS = re.compile(rb"[0-9]{%d}" % (DIGITS_MAX + 1))


def loads(data: bytes | str, *, marks_max: int | None = MARKS_MAX) -> Any:
    """Read one value of fastjson's dialect.

    Args:
        data: the text.
        marks_max: the most marks of the text; None for a text of our own, of any size.

    Raises: RemoteProtocolError if the text is neither JSON nor the dialect, or exceeds a limit.
    """
    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    if marks_max is not None:
        check_size(raw, marks_max=marks_max)
    text = _to_text(raw)
    # References and escaped surrogates are left to the slow reader.
    if b"$ref" not in raw and b"\\UD" not in raw.upper() and _is_within_limits(raw):
        try:
            return _decode_json(text)
        except (ValueError, RecursionError):
            pass
    return _Reader(text).read()


def check_size(data: bytes, *, marks_max: int) -> None:
    """Refuse a text that would take too long to read.

    Raises: RemoteProtocolError for a text with too many marks or bytes.
    """
    if len(data) <= marks_max:
        return
    bytes_max = marks_max * BYTES_PER_MARK
    if len(data) > bytes_max:
        raise RemoteProtocolError(f"JSON of {len(data)} bytes; the limit is {bytes_max}")
    marks = len(data) - len(data.translate(None, _MARKS))
    if marks > marks_max:
        raise RemoteProtocolError(
            f"JSON of {len(data)} bytes with {marks} values, keys and escapes; "
            f"the limit is {marks_max}"
        )


def _is_within_limits(data: bytes) -> bool:
    """Return whether JSON text nests at most `DEPTH_MAX` deep and has no overlong number."""
    if _LONG_DIGITS.search(data) is not None:
        # The digits may be part of a string: the slow reader finds out.
        return False
    if data.count(b"{") + data.count(b"[") <= DEPTH_MAX:
        return True
    depth = 0
    for bracket in _NO_BRACKETS.sub(b"", data):
        if bracket in b"{[":
            depth += 1
            if depth > DEPTH_MAX:
                return False
        else:
            depth -= 1
    return True


def _to_text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise RemoteProtocolError("JSON text is not UTF-8", position=error.start) from error


def _finish_pairs(pairs: list[tuple[str, Any]]) -> Any:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise RemoteProtocolError(
            f"malformed JSON: a key comes twice among {list(members)[:8]!r:.300}"
        )
    return _finish_object({key: value for key, value in pairs if value is not None})


def _finish_object(members: dict[Any, Any]) -> Any:
    """Return an object's members, or the queue that they describe."""
    if len(members) == 3 and members.keys() == _QUEUE_FIELDS:
        topic, broker_name = members["topic"], members["brokerName"]
        queue_id = members["queueId"]
        if isinstance(topic, str) and isinstance(broker_name, str) and type(queue_id) is int:
            return MessageQueue(topic, broker_name, queue_id)
    return members


def _parse_float(text: str) -> float:
    number = float(text)
    if number - number != 0:
        raise RemoteProtocolError(f"malformed JSON: a number out of range: {text:.40}")
    return number


def _refuse_constant(name: str) -> Any:
    raise RemoteProtocolError(f"malformed JSON: {name} is not a number")


_decode_json = json.JSONDecoder(
    object_pairs_hook=_finish_pairs, parse_float=_parse_float, parse_constant=_refuse_constant
).decode


class _Reference:
    """An unresolved `$ref`."""

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path


class _Reader:
    """Reads the dialect by recursive descent over one text."""

    __slots__ = ("at", "has_references", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.has_references = False

    def read(self) -> Any:
        value = self._value(0)
        self._skip_blank()
        if self.at != len(self.text):
            raise self._wrong("text after the end of the value")
        return _resolve(value) if self.has_references else value

    def _wrong(self, what: str) -> RemoteProtocolError:
        before = self.text[: self.at].encode("utf-8", "surrogatepass")
        return RemoteProtocolError(f"malformed JSON: {what}", position=len(before))

    def _skip_blank(self) -> str:
        """Skip blanks; return the next character, "" at the end."""
        match = _BLANK.match(self.text, self.at)
        self.at = match.end() if match else self.at
        return self.text[self.at : self.at + 1]

    def _value(self, depth: int) -> Any:
        first = self._skip_blank()
        if first == "{":
            return self._object(depth + 1)
        if first == "[":
            return self._array(depth + 1)
        if first in _QUOTED:
            return self._string(first)
        if first.isdigit() or first == "-":
            return self._number()
        return self._word()

    def _enter(self, depth: int) -> None:
        if depth > DEPTH_MAX:
            raise self._wrong(f"nested deeper than {DEPTH_MAX}")
        self.at += 1

    def _object(self, depth: int) -> Any:
        self._enter(depth)
        members: dict[Key, Any] = {}
        while (first := self._skip_blank()) != "}":
            key = self._key(first, depth)
            if self._skip_blank() != ":":
                raise self._wrong("no ':' after a key")
            self.at += 1
            value = self._value(depth)
            if key in members:
                raise self._wrong(f"the key {key!r:.100} comes twice")
            members[key] = value
            self._skip_comma("}")
        self.at += 1
        path = members.get("$ref")
        if len(members) == 1 and isinstance(path, str):
            self.has_references = True
            return _Reference(path)
        return _finish_object({k: v for k, v in members.items() if v is not None})

    def _array(self, depth: int) -> list[Any]:
        self._enter(depth)
        items: list[Any] = []
        while self._skip_blank() != "]":
            items.append(self._value(depth))
            self._skip_comma("]")
        self.at += 1
        return items

    def _skip_comma(self, closing: str) -> None:
        following = self._skip_blank()
        if following == ",":
            self.at += 1
        elif following != closing:
            raise self._wrong(f"neither ',' nor '{closing}'")

    def _key(self, first: str, depth: int) -> Key:
        if first in _QUOTED:
            return self._string(first)
        if first == "{":
            return _freeze(self._value(depth))
        if first.isdigit() or first == "-":
            number = self._number()
            return number if isinstance(number, int) else str(number)
        match = _NAME.match(self.text, self.at)
        if match is None:
            raise self._wrong("no key")
        self.at = match.end()
        return match.group()

    def _string(self, quote: str) -> str:
        match = _QUOTED[quote].match(self.text, self.at + 1)
        if match is None:
            raise self._wrong("a string without an end")
        content = self.text[self.at + 1 : match.end() - 1]
        if "\\" in content:
            content = self._unescape(content)
        self.at = match.end()
        return content

    def _unescape(self, content: str) -> str:
        def replace(match: re.Match[str]) -> str:
            escape = match.group(1)
            if len(escape) > 1:
                return chr(int(escape[1:], 16))
            if escape not in _ESCAPED:
                raise self._wrong(f"unknown escape \\{escape}")
            return _ESCAPED[escape]

        plain = _ESCAPE.sub(replace, content)
        try:
            # A pair of escaped surrogates becomes one character; a lone surrogate is refused.
            return plain.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
        except UnicodeDecodeError:
            raise self._wrong("a lone surrogate") from None

    def _number(self) -> int | float:
        match = _NUMBER.match(self.text, self.at)
        if match is None:
            raise self._wrong("no number")
        digits = match.group().rstrip("LSBFD")
        if _LONG_DIGITS.search(digits.encode()) is not None:
            raise self._wrong(f"a number of more than {DIGITS_MAX} digits")
        self.at = match.end()
        return _parse_float(digits) if match.group(1) or match.group(2) else int(digits)

    def _word(self) -> bool | None:
        match = _NAME.match(self.text, self.at)
        if match is None or match.group() not in _WORDS:
            raise self._wrong("no value")
        self.at = match.end()
        return _WORDS[match.group()]


def _freeze(value: Any) -> Key:
    """Return a hashable form of a value that is a key."""
    if isinstance(value, dict):
        return tuple((key, _freeze(item)) for key, item in value.items())
    if isinstance(value, list):
        return tuple(_freeze(item) for item in value)
    if isinstance(value, _Reference):
        raise RemoteProtocolError("malformed JSON: a $ref used as a key")
    frozen: Key = value
    return frozen


_STEP = re.compile(r"\.([A-Za-z0-9_]+)|\[([0-9]{1,9})\]", re.ASCII)


def _resolve(root: Any) -> Any:
    """Replace each `$ref` by the value that it points at.

    A `$ref` to an enclosing value, or to a value that holds a `$ref`, is refused: no body of
    RocketMQ has such a `$ref`, and the expansion might never end.
    """
    left = REFERENCED_VALUES_MAX

    def target(path: str) -> Any:
        nonlocal left
        value = root
        matches = list(_STEP.finditer(path, 1))
        if path[:1] != "$" or path[1:] != "".join(match.group() for match in matches):
            raise RemoteProtocolError(f"malformed JSON: unknown $ref {path[:64]!r}")
        for match in matches:
            try:
                value = value[int(match[2]) if match[2] else match[1]]
            except (KeyError, IndexError, TypeError) as error:
                raise RemoteProtocolError(
                    f"malformed JSON: $ref to nothing: {path[:64]!r}"
                ) from error
        left -= _count_values(value)
        if left < 0:
            raise RemoteProtocolError("malformed JSON: $ref repeats too many values")
        return value

    def walk(value: Any) -> Any:
        if isinstance(value, _Reference):
            return target(value.path)
        if isinstance(value, dict):
            return {key: walk(item) for key, item in value.items()}
        if isinstance(value, list):
            return [walk(item) for item in value]
        return value

    return walk(root)


def _count_values(value: Any) -> int:
    if isinstance(value, _Reference):
        raise RemoteProtocolError("malformed JSON: $ref to a value that holds a $ref")
    if isinstance(value, dict):
        return 1 + sum(map(_count_values, value.values()))
    if isinstance(value, list):
        return 1 + sum(map(_count_values, value))
    return 1


def dumps(value: Any, *, pretty: bool = False) -> bytes:
    """Write a value as fastjson does: without null members, with number and object keys bare.

    Structs are written under their wire names, enumerations by name, `MessageQueue`s as
    objects, sets sorted.

    Args:
        pretty: break lines and indent with tabs, as in RocketMQ's config files.

    Raises: LocalProtocolError for a value that the dialect cannot carry.
    """
    parts: list[bytes] = []
    _write(value, parts.append, b"\n" if pretty else None)
    return b"".join(parts)


_INTS, _TEXTS = {int}, {str}
_Write: TypeAlias = Callable[[bytes], None]


def _write(value: Any, write: _Write, line: bytes | None) -> None:
    if value is None:
        write(b"null")
    elif isinstance(value, MessageQueue):
        write(_queue_text(value))
    elif isinstance(value, Enum):
        write(_text(value.name))
    elif isinstance(value, str):
        write(_text(value))
    elif isinstance(value, bool):
        write(b"true" if value else b"false")
    elif isinstance(value, int):
        write(b"%d" % value)
    elif isinstance(value, float):
        write(_number_text(value))
    elif isinstance(value, dict):
        if line is None and _INTS == set(map(type, value)) == set(map(type, value.values())):
            # Offsets by queue id: a table may have hundreds of thousands.
            write(b"{%b}" % b",".join([b"%d:%d" % item for item in value.items()]))
            return
        if line is None and _is_flat_table(value):
            # The topics of a broker: there may be tens of thousands.
            write(_flat_text(value))
            return
        members = [(_key_text(key), item) for key, item in value.items()]
        _write_object(members, write, line)
    elif isinstance(value, (set, frozenset)):
        _write_array(sorted(value), write, line)
    elif isinstance(value, (list, tuple)):
        if line is None and set(map(type, value)) == _TEXTS:
            # The members of a group: every member asks for them at each change.
            write(_flat_text(value))
            return
        _write_array(value, write, line)
    elif isinstance(value, msgspec.Struct):
        nullable = _nullable_fields(type(value)) if line is None else None
        if nullable is None or any(getattr(value, name) is None for name in nullable):
            _write_object(_struct_members(value), write, line)
        else:
            write(_flat_text(value))
    else:
        raise LocalProtocolError(f"JSON cannot carry a {type(value).__name__}: {value!r}")


_FLAT = (inspect.StrType, inspect.IntType, inspect.BoolType, inspect.NoneType)


def _is_flat(kind: inspect.Type) -> bool:
    if isinstance(kind, inspect.DictType):
        return isinstance(kind.key_type, inspect.StrType) and _is_flat(kind.value_type)
    return isinstance(kind, _FLAT)


@cache
def _nullable_fields(struct_type: type[msgspec.Struct]) -> tuple[str, ...] | None:
    """Return the names of the fields that may be None.

    A Struct none of whose fields is None is written in the dialect as in JSON.

    Returns: None for a type with fields other than texts, integers, and texts by name.
    """
    found = inspect.type_info(struct_type)
    assert isinstance(found, inspect.StructType)
    nullable: list[str] = []
    for field in found.fields:
        kinds = field.type.types if isinstance(field.type, inspect.UnionType) else (field.type,)
        if not all(_is_flat(kind) for kind in kinds):
            return None
        if any(isinstance(kind, inspect.NoneType) for kind in kinds):
            nullable.append(field.name)
    return tuple(nullable)


def _is_flat_table(value: dict[Any, Any]) -> bool:
    """Return whether a dict is the same in the dialect and in JSON: texts to flat Structs."""
    kinds = set(map(type, value.values()))
    if len(kinds) != 1 or set(map(type, value)) != {str}:
        return False
    kind = kinds.pop()
    return issubclass(kind, msgspec.Struct) and _nullable_fields(kind) == ()


def _flat_text(value: msgspec.Struct | dict[str, msgspec.Struct] | Sequence[str]) -> bytes:
    try:
        return _encode_sorted(value)
    except UnicodeEncodeError as error:
        raise LocalProtocolError(
            f"UTF-8 cannot carry the lone surrogate in {value!r:.1000}"
        ) from error


def _struct_members(value: msgspec.Struct) -> Iterable[tuple[bytes, Any]]:
    # A field with a number on the wire that means "unknown" is None in the Struct.
    unknown: dict[str, int] = getattr(value, "__wire_unknown__", {})
    for field, key in _sorted_fields(type(value)):
        item = getattr(value, field)
        yield key, unknown.get(field) if item is None else item


@cache
def _sorted_fields(struct_type: type[msgspec.Struct]) -> tuple[tuple[str, bytes], ...]:
    """Return each field and its key, in the order of writing."""
    names = zip(struct_type.__struct_fields__, struct_type.__struct_encode_fields__, strict=True)
    return tuple((field, _text(name)) for field, name in sorted(names, key=lambda pair: pair[1]))


def _write_object(members: Iterable[tuple[bytes, Any]], write: _Write, line: bytes | None) -> None:
    inner = None if line is None else line + b"\t"
    separator = b"{"
    for key, item in members:
        if item is None or item is msgspec.UNSET:
            continue
        write(separator)
        if inner is not None and key[:1] == b'"':
            # fastjson breaks no line before a key that is a number.
            write(inner)
        write(key)
        write(b":")
        _write(item, write, inner)
        separator = b","
    if separator == b"{":
        write(b"{}")
    else:
        write(b"}" if line is None else line + b"}")


def _write_array(items: Iterable[Any], write: _Write, line: bytes | None) -> None:
    write(b"[")
    for index, item in enumerate(items):
        if index:
            write(b",")
        _write(item, write, line)
    write(b"]")


def _key_text(key: Any) -> bytes:
    if isinstance(key, MessageQueue):
        return _queue_text(key)
    if isinstance(key, str):
        return _text(key)
    if isinstance(key, int) and not isinstance(key, bool):
        return b"%d" % key
    raise LocalProtocolError(f"JSON cannot carry a {type(key).__name__} as a key: {key!r}")


def _queue_text(queue: MessageQueue) -> bytes:
    return b'{"brokerName":%b,"queueId":%d,"topic":%b}' % (
        _text(queue.broker_name),
        queue.queue_id,
        _text(queue.topic),
    )


def _text(text: str) -> bytes:
    try:
        return _encode_text(text)
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"UTF-8 cannot carry the lone surrogate in {text!r}") from error


def _number_text(number: float) -> bytes:
    if number - number != 0:
        raise LocalProtocolError(f"JSON cannot carry {number}")
    return repr(number).encode()

"""Checks schemas of bodies, in Spark's DDL or JSON, without a library of columns. Pure.

Spark's own parser of DDL is in Java, which the Python processes that plan a read do not have. The
import of PyArrow would take them a quarter of a second of a core.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from sparrowmq.errors import ConfigError

# A name in backquotes, a word, a comment's text, or a sign.
_TOKEN = re.compile(r"`(?:[^`]|``)+`|\w+|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|\S", re.DOTALL)
# Without backquotes Spark takes no name of other letters, nor one that is a number.
_NAME = re.compile(
    r"`.*`|(?!\d+(?:[lsydf]|bd|e\d+)?\b)[a-z0-9_]+", re.DOTALL | re.IGNORECASE | re.ASCII
)
# In JSON such a name stands in another form, by which bodies are not read.
_ESCAPED = re.compile(r"[\"\\\x00-\x1f]")
# The names in JSON of the types that have another one in DDL.
_JSON_NAMES = {
    "tinyint": "byte",
    "smallint": "short",
    "int": "integer",
    "bigint": "long",
    "real": "float",
    "dec": "decimal",
    "numeric": "decimal",
    "timestamp_ltz": "timestamp",
}
# The types that JSON has a value for, by their names in JSON.
TYPES = (
    *("byte", "short", "integer", "long", "string", "binary", "boolean", "float", "double"),
    *("date", "timestamp", "variant", "timestamp_ntz"),
)
DECIMAL = re.compile(r"decimal\(([0-9]+), ?(-?[0-9]+)\)")
# DecimalType.MAX_PRECISION
_DIGITS_MAX = 38


def parse_schema(text: str) -> str:
    """Return the JSON of a schema that is given as DDL or JSON.

    Raises: ConfigError for another text, or a type that JSON has no value for.
    """
    try:
        schema = text if text.lstrip().startswith("{") else json.dumps(parse_ddl(text))
        fields_ddl(schema)
    except RecursionError:
        raise ConfigError(f"the schema {text[:80]!r} is nested too deeply") from None
    return schema


def fields_ddl(schema: str) -> str:
    """Return the type of the fields in Spark's DDL, where anything may be null.

    Args:
        schema: the schema as JSON.

    Raises: ConfigError if the text is no such schema, or has a type that JSON has no value for.
    """
    try:
        found = json.loads(schema)
        if found["type"] != "struct":
            raise TypeError(f"type {found['type']!r} is not a struct")
        return _ddl(found, "")
    except ConfigError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"the schema {schema[:80]!r} is not the JSON of a Spark schema ({error}); "
            f"give schema.json() of a StructType"
        ) from error


def parse_ddl(text: str) -> dict[str, Any]:
    """Return the schema as the value that `StructType.json()` writes; a comment is left out.

    A name of no known type stays as it is.

    Raises: ConfigError that shows the place.
    """
    return _read_struct(_Tokens(text), end="")


class _Tokens:
    """The tokens of a text, taken one by one; behind the last one are empty ones."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._found = list(_TOKEN.finditer(text))
        self._at = 0

    def skip(self, *words: str) -> bool:
        """Take these tokens if they come next; return whether they did."""
        found = [each[0].upper() for each in self._found[self._at : self._at + len(words)]]
        is_next = (found or [""]) == list(words)
        self._at += len(words) * is_next
        return is_next

    def expect(self, word: str) -> None:
        """Take this token."""
        if not self.skip(word):
            raise self.error(repr(word))

    def has_next(self, pattern: str | re.Pattern[str]) -> bool:
        """Return whether a token of a pattern comes next."""
        at = self._at
        return at < len(self._found) and bool(re.fullmatch(pattern, self._found[at][0]))

    def take(self, pattern: str | re.Pattern[str], what: str) -> str:
        """Take and return a token of a pattern."""
        if not self.has_next(pattern):
            raise self.error(what)
        self._at += 1
        return self._found[self._at - 1][0]

    def error(self, expected: str) -> ConfigError:
        """Return the error that something else comes next."""
        rest = self._text[self._found[self._at].start() :] if self._at < len(self._found) else ""
        where = f"before {rest[:40]!r}" if rest else "at its end"
        return ConfigError(f"the schema is not DDL: {expected} is missing {where}")


def _read_struct(tokens: _Tokens, *, end: str) -> dict[str, Any]:
    fields: list[dict[str, Any]] = []
    while not fields or not tokens.skip(end):
        if fields:
            tokens.expect(",")
        is_word = tokens.has_next(r"\w+")
        name = tokens.take(_NAME, "the backquote of a name" if is_word else "a column's name")
        if name[0] == "`":
            name = name[1:-1].replace("``", "`")
        tokens.skip(":")
        kind, is_required = _read_type(tokens), tokens.skip("NOT", "NULL")
        if tokens.skip("COMMENT"):
            tokens.take(r"['\"].*", "a text")
        fields.append({"name": name, "type": kind, "nullable": not is_required, "metadata": {}})
    return {"type": "struct", "fields": fields}


def _read_type(tokens: _Tokens) -> Any:
    name = tokens.take(r"\w+", "a type").lower()
    kind = _JSON_NAMES.get(name, name)
    if kind == "struct":
        tokens.expect("<")
        return _read_struct(tokens, end=">")
    if kind == "array":
        (element,) = _read_inner(tokens, 1)
        return {"type": kind, "elementType": element, "containsNull": True}
    if kind == "map":
        key, value = _read_inner(tokens, 2)
        return {"type": kind, "keyType": key, "valueType": value, "valueContainsNull": True}
    digits = ["10", "0"] if kind == "decimal" else []
    if tokens.skip("("):
        digits[:1] = [tokens.take(r"\d+", "a number")]
        if tokens.skip(","):
            digits[1:] = [tokens.take(r"\d+", "a number")]
        tokens.expect(")")
    return f"{kind}({','.join(digits)})" if digits else kind


def _read_inner(tokens: _Tokens, count: int) -> list[Any]:
    """Return the types in angle brackets."""
    found: list[Any] = []
    for sign in "<,"[:count]:
        tokens.expect(sign)
        found.append(_read_type(tokens))
    tokens.expect(">")
    return found


def _ddl(kind: str | Mapping[str, Any], place: str) -> str:
    if isinstance(kind, str):
        _check_type(kind, place)
        # The name alone would be what the session takes for it.
        return "timestamp_ltz" if kind == "timestamp" else kind
    if kind["type"] == "array":
        return f"array<{_ddl(kind['elementType'], f'{place}[]')}>"
    if kind["type"] == "map":
        if kind["keyType"] != "string":
            raise ConfigError(
                f"column {place!r} of the schema: a map in JSON has texts as keys, not "
                f"{kind['keyType']!r}"
            )
        return f"map<string,{_ddl(kind['valueType'], f'{place}[]')}>"
    found: dict[str, str] = {}
    for each in kind["fields"]:
        name = each["name"]
        inner = f"{place}.{name}" if place else name
        if name in found:
            raise ConfigError(f"column {inner!r} of the schema is named twice; leave one out")
        if _ESCAPED.search(name):
            raise ConfigError(
                f"column {inner!r} of the schema: a name with a quote, a backslash or a control "
                f"character cannot be read in JSON; leave it out"
            )
        found[name] = _ddl(each["type"], inner)
    quoted = (f"`{name.replace('`', '``')}`:{ddl}" for name, ddl in found.items())
    return f"struct<{','.join(quoted)}>"


def _check_type(kind: str, place: str) -> None:
    digits = DECIMAL.fullmatch(kind)
    if digits is None and kind not in TYPES:
        known = ", ".join((*TYPES, "decimal"))
        raise ConfigError(
            f"column {place!r} of the schema: type {kind!r} cannot be read in JSON; there are "
            f"{known}, struct, array, map of texts"
        )
    if digits is not None and not int(digits[2]) <= int(digits[1]) <= _DIGITS_MAX:
        raise ConfigError(
            f"column {place!r} of the schema: {kind} is not a type of Spark's; a decimal has at "
            f"most {_DIGITS_MAX} digits, and at most all of them after the point"
        )

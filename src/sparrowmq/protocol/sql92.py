"""SQL92 message filters: the subset that RocketMQ's brokers evaluate over properties. Pure.

    price > 3 AND region IN ('eu', 'us') OR urgent IS NOT NULL

Operators, weakest first: OR; AND; `=` `<>` IS [NOT] NULL; `>` `>=` `<` `<=` [NOT] BETWEEN
[NOT] IN; unary NOT, `-` and `+`. NOT binds strongest: `NOT a = 1` is `(NOT a) = 1`. Names are
case-sensitive, keywords are not. Comments are `-- to the line's end` and `/* */`.

Every property is a string. In a comparison with a number, the string is read as a number of the
same type: against `3`, "3.5" is not an integer; against `3.0`, "3.5" is read. A message whose
property cannot be read does not match, whatever the rest of the condition says. A missing property
is unknown in three-valued logic. A message for which the whole condition is unknown does not match.

Differs from RocketMQ: text behind a complete condition is refused, which RocketMQ ignores; length
and nesting are bounded. CONTAINS, STARTSWITH and ENDSWITH, which brokers know from 5.x on, are
refused.

Source: RocketMQ 4.9.7 and 5.5.0, filter/parser/SelectorParser.jj, filter/expression/*.java.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import Enum, auto
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from sparrowmq.errors import LocalProtocolError
from sparrowmq.protocol.java_numbers import (
    Long,
    compare_numbers,
    is_int32,
    negate,
    parse_double,
    parse_like,
)

EXPRESSION_LENGTH_MAX = 4_096
NESTING_MAX = 50
_CONDITIONS_MAX = 256
_LONG_MAX = 2**63 - 1
_DOUBLE_MIN = 5e-324

Value: TypeAlias = "str | bool | int | Long | float | None"
Evaluate: TypeAlias = Callable[[Mapping[str, str]], Value]


class Condition(NamedTuple):
    """A parsed condition.

    Args:
        text: the user's text.
        evaluate: returns whether properties match: True, False, or None for unknown. Raises
            ValueError where RocketMQ's evaluation fails; see `matches`.
    """

    text: str
    evaluate: Evaluate

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Return whether a message with these properties matches; a failed evaluation is False."""
        try:
            return self.evaluate(properties) is True
        except ValueError:
            return False


@lru_cache(maxsize=_CONDITIONS_MAX)
def parse_condition(text: str) -> Condition:
    """Parse a condition.

    Raises: LocalProtocolError that names the fault and the character.
    """
    if len(text) > EXPRESSION_LENGTH_MAX:
        raise LocalProtocolError(
            f"the SQL92 condition has {len(text)} characters; the limit is {EXPRESSION_LENGTH_MAX}"
        )
    parser = _Parser(text)
    whole = parser.boolean(parser.disjunction(), parser.tokens[0])
    last = parser.next()
    if last.kind is not _Kind.END:
        raise parser.fault(last, "the condition is complete before this")
    return Condition(text, whole.evaluate)


class _Kind(Enum):
    NUMBER = auto()
    STRING = auto()
    NAME = auto()
    SIGN = auto()
    WORD = auto()
    END = auto()


class _Token(NamedTuple):
    kind: _Kind
    text: str
    at: int


class _Is(Enum):
    """The kind of a part of a condition; the kind decides where the part may stand."""

    PROPERTY = auto()
    CONSTANT = auto()
    TRUTH_CONSTANT = auto()
    TRUTH = auto()
    OTHER = auto()


class _Part(NamedTuple):
    kind: _Is
    evaluate: Evaluate
    value: Value = None
    depth: int = 1


# Possessive (`++`, `*+`): the ways to split fifty blanks are 2**50.
_SKIPPED = r"(?:[ \t\n\r\f]++|--[^\n\r]*+(?:\r\n|\n|\r)|/\*.*?\*/)*+"
_TOKEN = re.compile(
    rf"{_SKIPPED}(?:"
    r"(?P<NUMBER>[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?"
    r"|[0-9]+[eE][+-]?[0-9]+|0|[1-9][0-9]*[lL]?)"
    r"|(?P<STRING>'(?:''|[^'])*+')"
    r"|(?P<NAME>[A-Za-z_$][A-Za-z0-9_$]*)"
    r"|(?P<SIGN><>|<=|>=|[=<>(),+-])"
    r"|(?P<END>\Z))",
    re.DOTALL,
)
_WORDS = frozenset(("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS"))
_NEWER_WORDS = frozenset(("CONTAINS", "STARTSWITH", "ENDSWITH"))
_ORDERS: dict[str, Callable[[int], bool]] = {
    ">": lambda order: order > 0,
    ">=": lambda order: order >= 0,
    "<": lambda order: order < 0,
    "<=": lambda order: order <= 0,
}
_CONSTANTS: dict[str, Value] = {"TRUE": True, "FALSE": False, "NULL": None}


class _Parser:
    """Reads tokens from left to right; each method parses one level of the grammar."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._next = 0
        self._depth = 0
        self.tokens = self._split(text)

    def _split(self, text: str) -> list[_Token]:
        tokens: list[_Token] = []
        at = 0
        while not tokens or tokens[-1].kind is not _Kind.END:
            match = _TOKEN.match(text, at)
            if match is None:
                skipped = re.compile(_SKIPPED, re.DOTALL).match(text, at)
                at = at if skipped is None else skipped.end()
                why = "a string without its closing quote" if text[at] == "'" else "not understood"
                raise self.fault(_Token(_Kind.SIGN, text[at : at + 20], at), why)
            name = str(match.lastgroup)
            token = _Token(_Kind[name], match[name], match.start(name))
            if token.kind is _Kind.NAME and token.text.upper() in _WORDS:
                token = _Token(_Kind.WORD, token.text.upper(), token.at)
            elif token.kind is _Kind.NAME and token.text.upper() in _NEWER_WORDS:
                raise self.fault(token, "an operator that RocketMQ has only from 5.x on")
            tokens.append(token)
            at = match.end()
        return tokens

    def fault(self, token: _Token, why: str) -> LocalProtocolError:
        """Return the error for a token, with its place in the text."""
        what = repr(token.text) if token.text else "the end"
        return LocalProtocolError(
            f"the SQL92 condition {self._text[:200]!r} is wrong at character {token.at + 1}, "
            f"{what}: {why}"
        )

    def next(self) -> _Token:
        """Take the next token."""
        token = self.tokens[self._next]
        self._next = min(self._next + 1, len(self.tokens) - 1)
        return token

    def _peek(self) -> _Token:
        return self.tokens[self._next]

    def _take(self, *texts: str) -> _Token | None:
        """Take the next tokens if they are these words or signs, and return the first."""
        found = self.tokens[self._next : self._next + len(texts)]
        for token, text in zip(found, texts, strict=False):
            if token.text != text or token.kind not in (_Kind.WORD, _Kind.SIGN):
                return None
        if len(found) < len(texts):
            return None
        self._next += len(texts)
        return found[0]

    def boolean(self, part: _Part, at: _Token) -> _Part:
        """Return a part as a truth value; a property is never true."""
        if part.kind in (_Is.TRUTH, _Is.TRUTH_CONSTANT):
            return part
        if part.kind is not _Is.PROPERTY:
            raise self.fault(at, "a condition is expected here, not a value")
        read = part.evaluate
        return self._truth(lambda properties: None if read(properties) is None else False, part)

    def _truth(self, evaluate: Evaluate, *parts: _Part) -> _Part:
        depth = 1 + max(part.depth for part in parts)
        if depth > NESTING_MAX:
            raise self.fault(self._peek(), f"it nests deeper than {NESTING_MAX} levels")
        return _Part(_Is.TRUTH, evaluate, depth=depth)

    def disjunction(self) -> _Part:
        """Parse conditions joined by OR."""
        return self._joined("OR", self._conjunction, True)

    def _conjunction(self) -> _Part:
        return self._joined("AND", self._equality, False)

    def _joined(self, word: str, parse: Callable[[], _Part], decisive: bool) -> _Part:
        at = self._peek()
        part = parse()
        if self._peek() != (_Kind.WORD, word, self._peek().at):
            return part
        parts = [self.boolean(part, at)]
        while self._take(word):
            at = self._peek()
            parts.append(self.boolean(parse(), at))
        return self._truth(_join([part.evaluate for part in parts], decisive), *parts)

    def _equality(self) -> _Part:
        left = self._comparison()
        while True:
            if self._take("IS", "NULL"):
                left = self._truth(_equal(left.evaluate, _nothing), left)
            elif self._take("IS", "NOT", "NULL"):
                left = self._truth(_negate_truth(_equal(left.evaluate, _nothing)), left)
            elif sign := self._take("=") or self._take("<>"):
                right = self._comparison()
                self._check_equality(left, right, sign)
                evaluate = _equal(left.evaluate, right.evaluate)
                if sign.text == "<>":
                    evaluate = _negate_truth(evaluate)
                left = self._truth(evaluate, left, right)
            else:
                return left

    def _check_equality(self, left: _Part, right: _Part, at: _Token) -> None:
        for part in (left, right):
            if part.kind is _Is.TRUTH_CONSTANT and part.value is None:
                raise self.fault(at, "NULL equals nothing; write IS NULL or IS NOT NULL")
        if left.kind is _Is.TRUTH_CONSTANT and right.kind is _Is.CONSTANT:
            raise self.fault(at, "TRUE and FALSE cannot be compared with another constant")

    def _comparison(self) -> _Part:
        left = self._unary()
        while True:
            token = self._peek()
            if token.kind is _Kind.SIGN and token.text in _ORDERS:
                self.next()
                left = self._ordered(left, token, self._unary())
            elif self._take("BETWEEN"):
                left = self._between(left, token, ">=", "<=")
            elif self._take("NOT", "BETWEEN"):
                left = self._between(left, token, "<", ">")
            elif self._take("IN"):
                left = self._in_list(left, token, is_in=True)
            elif self._take("NOT", "IN"):
                left = self._in_list(left, token, is_in=False)
            else:
                return left

    def _ordered(self, left: _Part, sign: _Token, right: _Part, name: str = "") -> _Part:
        for part in (left, right):
            is_text = part.kind is _Is.CONSTANT and isinstance(part.value, str)
            if is_text or part.kind in (_Is.TRUTH, _Is.TRUTH_CONSTANT):
                raise self.fault(sign, "only numbers and properties have an order")
        evaluate = _compare(left.evaluate, right.evaluate, _ORDERS[name or sign.text])
        return self._truth(evaluate, left, right)

    def _between(self, value: _Part, at: _Token, low_order: str, high_order: str) -> _Part:
        low = self._unary()
        if not self._take("AND"):
            raise self.fault(self._peek(), "BETWEEN needs AND and an upper bound")
        high = self._unary()
        is_between = low_order == ">="
        is_constant = low.kind is _Is.CONSTANT and high.kind is _Is.CONSTANT
        if is_between and is_constant and _is_above(low.value, high.value):
            raise self.fault(at, f"the lower bound {low.value} is above the upper, {high.value}")
        parts = (
            self._ordered(value, at, low, low_order),
            self._ordered(value, at, high, high_order),
        )
        return self._truth(_join([part.evaluate for part in parts], not is_between), *parts)

    def _in_list(self, left: _Part, at: _Token, *, is_in: bool) -> _Part:
        if left.kind is not _Is.PROPERTY:
            raise self.fault(at, "IN asks of a property, nothing else")
        values: set[str] = set()
        sign = self.next()
        while sign.text == "(" if not values else sign.text == ",":
            values.add(self._string())
            sign = self.next()
        if not values or sign.text != ")":
            raise self.fault(sign, "IN needs strings in parentheses: IN ('a', 'b')")
        read, wanted = left.evaluate, frozenset(values)

        def evaluate(properties: Mapping[str, str]) -> Value:
            value = read(properties)
            return None if value is None else (value in wanted) is is_in

        return self._truth(evaluate, left)

    def _string(self) -> str:
        token = self.next()
        if token.kind is not _Kind.STRING:
            raise self.fault(token, "a string in single quotes is expected here")
        return token.text[1:-1].replace("''", "'")

    def _unary(self) -> _Part:
        self._depth += 1
        try:
            if self._depth > NESTING_MAX:
                raise self.fault(self._peek(), f"it nests deeper than {NESTING_MAX} levels")
            if self._take("+"):
                return self._unary()
            if self._take("-"):
                part = self._unary()
                return _Part(_Is.OTHER, _negate_number(part.evaluate), depth=part.depth + 1)
            if self._take("NOT"):
                at = self._peek()
                part = self.boolean(self._unary(), at)
                return self._truth(_negate_truth(part.evaluate), part)
            return self._primary()
        finally:
            self._depth -= 1

    def _primary(self) -> _Part:
        token = self.next()
        if token.kind is _Kind.STRING:
            return _constant(_Is.CONSTANT, token.text[1:-1].replace("''", "'"))
        if token.kind is _Kind.NUMBER:
            return _constant(_Is.CONSTANT, self._number(token))
        if token.kind is _Kind.WORD and token.text in _CONSTANTS:
            return _constant(_Is.TRUTH_CONSTANT, _CONSTANTS[token.text])
        if token.kind is _Kind.NAME:
            name = token.text
            return _Part(_Is.PROPERTY, lambda properties: properties.get(name))
        if token.kind is _Kind.SIGN and token.text == "(":
            part = self.disjunction()
            if not self._take(")"):
                raise self.fault(self._peek(), "a closing parenthesis is missing here")
            return part
        raise self.fault(token, "a property, a value or a condition is expected here")

    def _number(self, token: _Token) -> int | Long | float:
        digits = token.text.rstrip("lL")
        if digits.isdigit():
            if int(digits) > _LONG_MAX:
                raise self.fault(token, f"integers go up to {_LONG_MAX}")
            return int(digits) if is_int32(int(digits)) else Long(digits)
        value = float(digits)
        if not _DOUBLE_MIN <= value < float("inf"):
            raise self.fault(token, "RocketMQ takes no such decimal; write 0 for 0.0")
        return value


def _is_above(low: Value, high: Value) -> bool:
    if isinstance(low, str) or isinstance(high, str) or low is None or high is None:
        return False
    return compare_numbers(low, high) > 0


def _nothing(properties: Mapping[str, str]) -> None:
    del properties


def _constant(kind: _Is, value: Value) -> _Part:
    return _Part(kind, lambda properties: value, value)


def _join(parts: list[Evaluate], decisive: bool) -> Evaluate:
    """Join truth values: by OR if True decides alone, by AND if False does."""

    def evaluate(properties: Mapping[str, str]) -> Value:
        is_unknown = False
        for part in parts:
            value = part(properties)
            if value is decisive:
                return decisive
            is_unknown = is_unknown or value is None
        return None if is_unknown else not decisive

    return evaluate


def _negate_truth(part: Evaluate) -> Evaluate:
    def evaluate(properties: Mapping[str, str]) -> Value:
        value = part(properties)
        return None if value is None else not value

    return evaluate


def _negate_number(part: Evaluate) -> Evaluate:
    def evaluate(properties: Mapping[str, str]) -> Value:
        value = part(properties)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return negate(value)

    return evaluate


def _equal(left: Evaluate, right: Evaluate) -> Evaluate:
    """Compare for equality: two missing values are equal, a missing left value is unknown."""

    def evaluate(properties: Mapping[str, str]) -> Value:
        lv, rv = left(properties), right(properties)
        if lv is None:
            return True if rv is None else None
        if rv is None:
            return False
        if isinstance(lv, str) and isinstance(rv, str):
            return lv == rv
        if isinstance(lv, bool):
            if isinstance(rv, str):
                raise ValueError(f"cannot compare a truth value with {rv!r}")
            return lv is rv
        if isinstance(rv, bool):
            return isinstance(lv, str) and (lv.lower() == "true") is rv
        return _order(lv, rv) == 0

    return evaluate


def _compare(left: Evaluate, right: Evaluate, is_wanted: Callable[[int], bool]) -> Evaluate:
    """Compare by order, as numbers."""

    def evaluate(properties: Mapping[str, str]) -> Value:
        lv, rv = left(properties), right(properties)
        if lv is None or rv is None:
            return None
        if isinstance(lv, str) and isinstance(rv, str):
            lv, rv = parse_double(lv), parse_double(rv)
        return is_wanted(_order(lv, rv))

    return evaluate


def _order(left: str | int | float, right: str | int | float) -> int:
    """Compare two values; at most one is a string, which is read as the other's type."""
    if isinstance(left, str):
        assert not isinstance(right, str)
        left = parse_like(right, left)
    elif isinstance(right, str):
        right = parse_like(left, right)
    return compare_numbers(left, right)

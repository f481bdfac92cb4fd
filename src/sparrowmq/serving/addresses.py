"""Patterns of IP addresses as RocketMQ's access control writes them. Pure.

`*`; `10.0.0.1`; `10.0.0.*`; `10.0.0-3.*`; `10.0.0.{1,2}`; several patterns, separated by commas;
and the same forms for IPv6 addresses, in hexadecimal. Source: RemoteAddressStrategyFactory.java,
4.9. Tests: test_access_control.py.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from itertools import pairwise

_EVERYWHERE = ("*", "*.*.*.*", "*:*:*:*:*:*:*:*")
# Braces with all that is in them, or a comma outside of braces.
_BRACES_OR_COMMA = re.compile(r"\{[^{}]*\}|,")
_PATTERNS_MAX = 1_000


class AddressFault(ValueError):
    """A text that is not a pattern of addresses."""


@dataclass(frozen=True, slots=True)
class AddressPattern:
    """A set of allowed values for each part of an address; no sets match every address."""

    parts: tuple[frozenset[int] | range, ...]

    def matches(self, ip: str) -> bool:
        """Return whether an address matches the pattern."""
        if not self.parts:
            return True
        address = ipaddress.ip_address(ip)
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        packed = address.packed
        if isinstance(address, ipaddress.IPv4Address):
            numbers = list(packed)
        else:
            numbers = [packed[at] << 8 | packed[at + 1] for at in range(0, 16, 2)]
        return len(numbers) == len(self.parts) and all(
            number in part for number, part in zip(numbers, self.parts, strict=True)
        )


def parse_addresses(text: str) -> tuple[AddressPattern, ...]:
    """Return the patterns of a text; none for a blank text.

    Raises: AddressFault.
    """
    if not text.strip():
        return ()
    commas = [found.start() for found in _BRACES_OR_COMMA.finditer(text) if found[0] == ","]
    texts = [text[before + 1 : at].strip() for before, at in pairwise([-1, *commas, len(text)])]
    if len(texts) > _PATTERNS_MAX:
        raise AddressFault(f"{len(texts)} patterns of addresses; the limit is {_PATTERNS_MAX}")
    return tuple(_parse(part) for part in texts)


def _parse(text: str) -> AddressPattern:
    if text in _EVERYWHERE:
        return AddressPattern(())
    is_v6 = ":" in text
    parts = _expand(text).split(":") if is_v6 else text.split(".")
    if len(parts) != (8 if is_v6 else 4):
        raise _fault(text)
    return AddressPattern(tuple(_parse_part(part, text, is_v6=is_v6) for part in parts))


def _expand(text: str) -> str:
    """Replace `::` by the zeros that it stands for."""
    if "::" not in text:
        return text
    before, after = text.split("::", 1)
    given = [part for part in (*before.split(":"), *after.split(":")) if part]
    zeros = ["0"] * (8 - len(given))
    return ":".join([*filter(None, before.split(":")), *zeros, *filter(None, after.split(":"))])


def _parse_part(part: str, text: str, *, is_v6: bool) -> frozenset[int] | range:
    base, highest = (16, 0xFFFF) if is_v6 else (10, 255)
    if part == "*":
        return range(highest + 1)
    inner = part[1:-1] if part.startswith("{") and part.endswith("}") else part
    separator = "," if inner != part else "-"
    try:
        numbers = [int(number, base) for number in inner.split(separator)]
    except ValueError:
        raise _fault(text) from None
    if not all(0 <= number <= highest for number in numbers):
        raise _fault(text)
    if separator == ",":
        return frozenset(numbers)
    if len(numbers) > 2 or numbers[0] > numbers[-1]:
        raise _fault(text)
    return range(numbers[0], numbers[-1] + 1)


def _fault(text: str) -> AddressFault:
    return AddressFault(
        f"{text!r} is not a pattern of addresses: 10.0.0.1, 10.0.0.*, 10.0.0.1-9, 10.0.0.{{1,2}}"
    )

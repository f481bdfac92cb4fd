"""The properties string: a message's properties as one text. Pure.

Pairs are `name 0x01 value`, joined by 0x02, without any escape. RocketMQ 4.7.1-4.9.0 and 5.2.0 and
later end the text with a further 0x02, the versions between do not; the parser accepts both.

Source: RocketMQ 4.9.3 common/message/MessageDecoder.java, messageProperties2String and
string2messageProperties.
"""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Iterator, Mapping

from msgspec import Struct

from sparrowmq.errors import LocalProtocolError

NAME_VALUE_SEPARATOR = "\x01"
PROPERTY_SEPARATOR = "\x02"
# The length is written as a signed short.
PROPERTIES_BYTES_MAX = 32_767


def encode_properties(properties: Mapping[str, str | None]) -> str:
    """Join properties to one text, in the mapping's order, without values that are None.

    Raises: LocalProtocolError if a name or value contains a separator.
    """
    pairs = [f"{name}\x01{value}" for name, value in properties.items() if value is not None]
    text = PROPERTY_SEPARATOR.join(pairs)
    if text.count(NAME_VALUE_SEPARATOR) != len(pairs) or text.count(PROPERTY_SEPARATOR) != max(
        0, len(pairs) - 1
    ):
        _check_separators(properties)
    return text


def _check_separators(properties: Mapping[str, str | None]) -> None:
    for name, value in properties.items():
        if NAME_VALUE_SEPARATOR in name or PROPERTY_SEPARATOR in f"{name}{value}":
            raise LocalProtocolError(
                f"property {name!r} holds 0x01 or 0x02, which separate properties: {value!r}"
            )


def parse_properties(text: str) -> dict[str, str]:
    """Split a properties text as Java's parser does.

    A pair with an empty name, with an empty value, or without a 0x01 is dropped. A second 0x01
    belongs to the value. The last of several equal names wins.
    """
    properties: dict[str, str] = {}
    for pair in text.split("\x02"):
        name, _, value = pair.partition("\x01")
        if name and value:
            properties[name] = value
    return properties


class _StructAndAbstract(type(Struct), ABCMeta):  # type: ignore[misc]
    """The metaclass of a struct that has the methods of an abstract class."""


class StoredProperties(Mapping[str, str], Struct, metaclass=_StructAndAbstract, eq=False, gc=False):
    """The properties of a stored message, split at the first look-up.

    Equal to every mapping with the same items. To split them takes as long as to read the rest of a
    message, and many listeners read the body alone (benchmarks/client.py). A struct is made in half
    the time of a class with slots, and the garbage collector does not track it.

    Args:
        stored: the stored text; bytes that are not UTF-8 become U+FFFD, as in Java.
    """

    stored: bytes
    parsed: dict[str, str] | None = None

    def _all(self) -> dict[str, str]:
        if self.parsed is None:
            self.parsed = parse_properties(self.stored.decode("utf-8", "replace"))
        return self.parsed

    def __getitem__(self, name: str) -> str:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def __repr__(self) -> str:
        return repr(self._all())


def find_property(text: str, name: str) -> str:
    """Return the value of a name by the rules of `parse_properties`, "" for none."""
    wanted = name + NAME_VALUE_SEPARATOR
    at = len(text)
    while True:
        at = text.rfind(wanted, 0, at)
        if at < 0:
            return ""
        if at == 0 or text[at - 1] == PROPERTY_SEPARATOR:
            value_at = at + len(wanted)
            end = text.find(PROPERTY_SEPARATOR, value_at)
            value = text[value_at:] if end < 0 else text[value_at:end]
            if value:
                return value

"""Texts that keep their template and values, so that a catalogue can translate them. Pure.

Tests: test_catalog.py.
"""

from __future__ import annotations

from typing import Any, Self


class Phrase(str):
    """An English text that keeps its template and values, so that a catalogue can translate it.

    A phrase is a `str`: callers that want English use it as any other text.

    Args:
        template: a format string of `str.format`.
        values: texts by name, which may be phrases; a tuple of texts is joined by `; `.
    """

    __slots__ = ("template", "values")

    template: str
    values: dict[str, str | tuple[str, ...]]

    def __new__(cls, template: str, /, **values: str | tuple[str, ...]) -> Self:
        """Format the English text."""
        english = {k: v if isinstance(v, str) else "; ".join(v) for k, v in values.items()}
        phrase = super().__new__(cls, template.format(**english))
        phrase.template, phrase.values = template, values
        return phrase


def encode_phrase(text: str | tuple[str, ...]) -> Any:
    """Return a text as a JSON value; a phrase becomes an object of its template and values."""
    if isinstance(text, tuple):
        return [encode_phrase(each) for each in text]
    if not isinstance(text, Phrase):
        return text
    values = {name: encode_phrase(value) for name, value in text.values.items()}
    return {"template": text.template, "values": values}


def decode_phrase(found: Any) -> Any:
    """Return the text, or tuple of texts, that `encode_phrase` encoded."""
    if isinstance(found, list):
        return tuple(decode_phrase(each) for each in found)
    if not isinstance(found, dict):
        return found
    values = {name: decode_phrase(value) for name, value in found["values"].items()}
    return Phrase(found["template"], **values)

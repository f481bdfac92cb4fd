"""Text that is safe to put into HTML or SVG, and how to make it.

Everything that is not `Markup` is escaped when it becomes part of an element.
"""

from __future__ import annotations

import html
from typing import TypeAlias

Attribute: TypeAlias = str | int | float | None


class Markup(str):
    """Text that is markup already and is not escaped again."""

    __slots__ = ()


def tag(name: str, *children: str, **attributes: Attribute) -> Markup:
    """Make an element.

    Args:
        name: the element's name.
        children: texts, which are escaped, and `Markup`, which is not.
        attributes: `class_` becomes class, `stroke_width` stroke-width; None is left out.
    """
    opening = name + "".join(
        f' {_attribute_name(key)}="{_attribute_value(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if not children:
        return Markup(f"<{opening}></{name}>" if name in _NEVER_EMPTY else f"<{opening}/>")
    return Markup(f"<{opening}>{join(*children)}</{name}>")


def join(*parts: str) -> Markup:
    """Put texts and markup one after the other."""
    return Markup("".join(escape(part) for part in parts))


def escape(text: str) -> Markup:
    """Return markup as it is, and any other text escaped."""
    return text if isinstance(text, Markup) else Markup(html.escape(text, quote=True))


def number(value: float) -> str:
    """Write a coordinate: at most two decimals, none where they are zero."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


# HTML reads `<div/>` as an opening tag.
_NEVER_EMPTY = frozenset({"div", "span", "td", "th", "p", "ul", "table", "section"})


def _attribute_name(key: str) -> str:
    return key.rstrip("_").replace("_", "-") if key != "viewBox" else key


def _attribute_value(value: str | int | float) -> str:
    return html.escape(value, quote=True) if isinstance(value, str) else number(value)

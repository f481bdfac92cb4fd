"""Makes text that is safe in HTML and SVG.

An element escapes every text in it that is not `Markup`.
"""

from __future__ import annotations

import html
from typing import TypeAlias

Attribute: TypeAlias = str | int | float | None


class Markup(str):
    """Text that is markup already, so that nothing escapes it again."""

    __slots__ = ()


def tag(name: str, *children: str, **attributes: Attribute) -> Markup:
    """Make an element.

    Args:
        name: the element's name.
        children: the content; texts are escaped, `Markup` is not.
        attributes: `class_` becomes class, `stroke_width` stroke-width; an attribute of None is
            left out.
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
    """Concatenate texts, which are escaped, and markup."""
    return Markup("".join(escape(part) for part in parts))


def escape(text: str) -> Markup:
    """Return markup as it is, and any other text escaped."""
    return text if isinstance(text, Markup) else Markup(html.escape(text, quote=True))


def number(value: float) -> str:
    """Write a coordinate with at most two decimals, without trailing zeros."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


# HTML reads `<div/>` as an opening tag.
_NEVER_EMPTY = frozenset({"div", "span", "td", "th", "p", "ul", "table", "section"})


def _attribute_name(key: str) -> str:
    return key.rstrip("_").replace("_", "-") if key != "viewBox" else key


def _attribute_value(value: str | int | float) -> str:
    return html.escape(value, quote=True) if isinstance(value, str) else number(value)

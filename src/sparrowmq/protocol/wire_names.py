"""From Python's field names to the wire's, and the ranges of Java's numbers. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeAlias

from msgspec import Meta

Int32: TypeAlias = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Int64: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


def wire_names(**exceptions: str) -> Callable[[str], str]:
    """Return the rule for a Struct's `rename`: camel case without the unit `_ms`, and exceptions.

    Args:
        exceptions: wire names that do not follow the rule, by Python field name.
    """

    def rename(name: str) -> str:
        if name in exceptions:
            return exceptions[name]
        first, *rest = name.removesuffix("_ms").split("_")
        return first + "".join(word.capitalize() for word in rest)

    return rename

"""The wire's names of fields, the ranges of Java's numbers, and the preparation of types. Pure.

Tests: test_wire.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Annotated, TypeAlias

from msgspec import Meta, Struct, ValidationError, convert

Int32: TypeAlias = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Int64: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


def wire_names(**exceptions: str) -> Callable[[str], str]:
    """Return the rule for a Struct's `rename`: camel case without the unit `_ms`.

    Args:
        exceptions: wire names that do not follow the rule, by Python field name.
    """

    def rename(name: str) -> str:
        if name in exceptions:
            return exceptions[name]
        first, *rest = name.removesuffix("_ms").split("_")
        return first + "".join(word.capitalize() for word in rest)

    return rename


def prepare_types(found: Iterable[object]) -> None:
    """Make msgspec analyse the Structs among these values now.

    msgspec analyses a type at its first use. Two threads that do so at the same time end the
    process with a segmentation fault (msgspec 0.22): one uses the other's unfinished result.
    Modules with types that any thread may read therefore call this function at import.
    """
    for each in found:
        if isinstance(each, type) and issubclass(each, Struct) and each is not Struct:
            # Most Structs have required fields.
            with suppress(ValidationError):
                convert({}, each, strict=False)

"""From Python's field names to the wire's, the ranges of Java's numbers, types made ready. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Annotated, TypeAlias

from msgspec import Meta, Struct, ValidationError, convert

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


def prepare_types(found: Iterable[object]) -> None:
    """Have msgspec work out now what the Structs among these are made of.

    It does so when a type is first read. Two threads that do this at the same time end the process
    with a segmentation fault (msgspec 0.22): one takes what the other has half done. So modules
    whose types are read by any thread do it as they are imported.
    """
    for each in found:
        if isinstance(each, type) and issubclass(each, Struct) and each is not Struct:
            # Most have fields that must be given.
            with suppress(ValidationError):
                convert({}, each, strict=False)

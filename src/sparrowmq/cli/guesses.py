"""Names that hands try first, from other tools or by habit, as our commands.

`sparrowmq doctor` runs `sparrowmq rebalance doctor` and prints that name, which its user so learns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

GUESSES: Mapping[str, tuple[str, ...]] = {
    "brokers": ("broker", "ls"),
    "consume": ("tail",),
    "doctor": ("rebalance", "doctor"),
    "groups": ("group", "ls"),
    "list": ("ls",),
    "produce": ("send",),
    "start": ("up",),
    "status": ("check",),
    "topics": ("topic", "ls"),
}


def translate_guess(arguments: Sequence[str]) -> list[str] | None:
    """Return our command line for a guessed one; None for any other name."""
    name, *rest = arguments
    if name == "lag":
        # With a group, the command shows that group.
        has_group = bool(rest) and not rest[0].startswith("-")
        return ["group", "lag" if has_group else "ls", *rest]
    if name == "tail":
        # `tail -n 5` is the shell's; our -n is every command's option for the name server.
        return _count_by_last(arguments)
    return [*GUESSES[name], *rest] if name in GUESSES else None


def _count_by_last(arguments: Sequence[str]) -> list[str] | None:
    for at, (option, value) in enumerate(pairwise(arguments)):
        if option == "-n" and value.isdecimal():
            return [*arguments[:at], "--last", *arguments[at + 1 :]]
    return None

"""Names that hands try first, from other tools or by habit, as our commands.

`sparrowmq doctor` runs `sparrowmq rebalance doctor` and prints that name, which its user so learns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

GUESSES: Mapping[str, tuple[str, ...]] = {
    "acl add": ("acl", "put"),
    "backlog": ("pipeline", "backlog"),
    "brokers": ("broker", "ls"),
    "consume": ("tail",),
    "context add": ("context", "set"),
    "doctor": ("rebalance", "doctor"),
    "drill": ("rebalance", "drill"),
    "duplicates": ("pipeline", "duplicates"),
    "explain": ("rebalance", "explain"),
    "groups": ("group", "ls"),
    "ingest": ("pipeline", "ingest"),
    "list": ("ls",),
    "msg show": ("msg", "get"),
    "produce": ("send",),
    "simulate": ("rebalance", "simulate"),
    "start": ("up",),
    "status": ("check",),
    "topics": ("topic", "ls"),
}
# Commands of ours whose second word may be a guess.
GUESSED_WITHIN = {"tail", *(first for guess in GUESSES for first, *more in [guess.split()] if more)}


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
    if name in GUESSES:
        return [*GUESSES[name], *rest]
    first_two = " ".join(arguments[:2])
    return [*GUESSES[first_two], *arguments[2:]] if first_two in GUESSES else None


def _count_by_last(arguments: Sequence[str]) -> list[str] | None:
    for at, (option, value) in enumerate(pairwise(arguments)):
        # A wrong count such as -1 too, as its error must name --last and no name server.
        if option == "-n" and value.removeprefix("-").isdecimal():
            return [*arguments[:at], "--last", *arguments[at + 1 :]]
    return None

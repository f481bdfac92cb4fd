"""The language of the command line: that of LANGUAGE, LC_ALL, LC_MESSAGES or LANG.

Tests: cli/test_language.py.
"""

from __future__ import annotations

import gettext
import inspect
import os
from collections.abc import Iterator
from functools import cache
from typing import Any

from sparrowmq.words.catalog import DOMAIN, LOCALE, Words, find_language

# What follows in a command's help is examples and keys, which stay as they are.
_EXAMPLES = "\n\n\b\n"


@cache
def words() -> Words:
    """Return the texts of this process's language."""
    return Words(find_language(os.environ))


def translate_help(command: Any) -> None:
    """Translate the help of a command and of its subcommands, and typer's own words in it."""
    if words().language == "en":
        return
    # Where typer looks for its words.
    gettext.bindtextdomain(DOMAIN, LOCALE)
    gettext.textdomain(DOMAIN)
    for each in _commands(command):
        prose, mark, examples = split_help(each)
        each.help = words()(prose) + mark + examples if prose else None


def help_texts(command: Any) -> Iterator[str]:
    """Return the texts of help that are translated."""
    for each in _commands(command):
        yield split_help(each)[0]
        yield from (p.help for p in each.params if getattr(p, "help", None))


def split_help(command: Any) -> tuple[str, str, str]:
    """Return the prose of a command's help, and its examples behind their mark."""
    return inspect.cleandoc(command.help or "").partition(_EXAMPLES)


def _commands(command: Any) -> Iterator[Any]:
    yield command
    for each in getattr(command, "commands", {}).values():
        yield from _commands(each)

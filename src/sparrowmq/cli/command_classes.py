"""Typer's commands and groups with what all of ours do alike. Tests: test_main.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from typer.core import TyperCommand, TyperGroup

from sparrowmq.cli.language import words

# Longer than what any command says of itself in its first sentence, which lists show whole.
_SENTENCE_CHARS_MAX = 200


def _refusing_repeated(parse_args: Callable[..., list[str]]) -> Callable[..., list[str]]:
    """Return a `parse_args` that refuses an option with one value if it is given twice.

    The last value would win.
    """

    def parse_once(command: Any, ctx: Any, args: list[str]) -> list[str]:
        # A line that is being completed may have an option again.
        given = [] if ctx.resilient_parsing else command.make_parser(ctx).parse_args([*args])[2]
        for option in given:
            takes_one = option.param_type_name == "option" and not option.multiple
            if takes_one and not option.is_flag and given.count(option) > 1:
                name = max(option.opts, key=len)
                ctx.fail(
                    words()(
                        "{option} is given {n} times and takes one value: {help}",
                        option=name,
                        n=given.count(option),
                        help=option.help,
                    )
                )
        return parse_args(command, ctx, args)

    return parse_once


class Command(TyperCommand):
    """A command that refuses an option with one value if it is given twice."""

    parse_args = _refusing_repeated(TyperCommand.parse_args)


class Group(TyperGroup):
    """A group whose list shows each command's whole first sentence; options as of `Command`."""

    parse_args = _refusing_repeated(TyperGroup.parse_args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands."""
        rows = [
            (name, each.get_short_help_str(_SENTENCE_CHARS_MAX))
            for name, each in self.commands.items()
        ]
        with formatter.section(words()("Commands")):
            formatter.write_dl(rows)


def use_classes(app: Any) -> None:
    """Have a Typer application, and those within it, make commands and groups of these classes."""
    app.info.cls = Group
    for command in app.registered_commands:
        command.cls = Command
    for group in app.registered_groups:
        use_classes(group.typer_instance)

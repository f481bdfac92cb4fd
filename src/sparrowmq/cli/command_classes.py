"""Typer's commands and groups with what all of ours do alike. Tests: test_main.py."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable
from typing import Any, cast

from typer import BadParameter, Context, Typer
from typer.core import TyperCommand, TyperGroup

from sparrowmq.cli.language import words

# Longer than what any command says of itself in its first sentence, which lists show whole.
_SENTENCE_CHARS_MAX = 200


# Typer does not export it, nor the error of an unknown option.
_Misuse = cast("type[Exception]", BadParameter.__base__)
_WITH_UNIT = re.compile(r"[0-9.]+ ?[A-Za-z]+")


def _checking(parse_args: Callable[..., list[str]]) -> Callable[..., list[str]]:
    """Return a `parse_args` that refuses an option with one value if it is given twice.

    The last value would win. An empty path is refused too, and the error of a number names the
    bounds.
    """

    def parse(command: Any, ctx: Context, args: list[str]) -> list[str]:
        try:
            given, _, order = command.make_parser(ctx).parse_args([*args])
        except _Misuse as error:
            _show_order(error, command, ctx, args)
            raise
        # A line that is being completed may have an option again.
        for option in [] if ctx.resilient_parsing else order:
            takes_one = option.param_type_name == "option" and not option.multiple
            if takes_one and not option.is_flag and order.count(option) > 1:
                ctx.fail(
                    words()(
                        "{option} is given {n} times and takes one value: {help}",
                        option=_name(option),
                        n=order.count(option),
                        help=option.help,
                    )
                )
            # Python would take it for the current directory.
            if option.type.name == "path" and given[option.name] == "":
                ctx.fail(
                    words()(
                        "{option} is empty; give {help}, or leave the option out",
                        option=_name(option),
                        help=option.help,
                    )
                )
        try:
            left = parse_args(command, ctx, args)
            if not ctx.resilient_parsing:
                _check_finite(command, ctx)
            return left
        except BadParameter as error:
            option = error.param
            if option is None or (wanted := _number_wanted(option)) is None:
                raise
            value, _ = option.consume_value(ctx, given)
            if isinstance(value, str) and _WITH_UNIT.fullmatch(value.strip()):
                wanted += words()(", without a unit")
            ctx.fail(
                words()(
                    "{option} is {value}; give {wanted}",
                    option=_name(option),
                    value=repr(value),
                    wanted=wanted,
                )
            )

    return parse


def _show_order(error: Exception, command: Any, ctx: Context, args: list[str]) -> None:
    """End with the line that may have been meant, if an unknown option stands before a command."""
    commands = getattr(command, "commands", {})
    at = next((at for at, word in enumerate(args) if word in commands), 0)
    if at and hasattr(error, "possibilities"):
        ctx.fail(
            words()(
                "{problem}; options stand after the command: {line}",
                problem=str(error),
                line=f"{ctx.command_path} {shlex.join([*args[at:], *args[:at]])}",
            )
        )


def _check_finite(command: Any, ctx: Context) -> None:
    """Raise a BadParameter for `nan`, which is within any bounds, and for `inf`."""
    for option in command.params:
        value = ctx.params.get(option.name)
        if isinstance(value, float) and not math.isfinite(value):
            raise BadParameter(str(value), ctx=ctx, param=option)


def _name(parameter: Any) -> str:
    """Return an option's long name, or an argument's name as help shows it."""
    is_option = parameter.param_type_name == "option"
    return str(max(parameter.opts, key=len) if is_option else parameter.human_readable_name)


def _number_wanted(option: Any) -> str | None:
    """Return what to give to an option that takes a number; None for another option."""
    name = option.type.name
    if not name.startswith(("int", "float")):
        return None
    low, high = getattr(option.type, "min", None), getattr(option.type, "max", None)
    wanted = words()("a whole number" if name.startswith("int") else "a number")
    if low is not None and high is not None:
        return words()("{number} from {low} to {high}", number=wanted, low=low, high=high)
    if low is not None:
        return words()("{number} from {low} on", number=wanted, low=low)
    return wanted


def _translating(get_params: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """Return a `get_params` that translates the help of options, typer's own too."""

    def get(command: Any, ctx: Context) -> list[Any]:
        found = get_params(command, ctx)
        for parameter in found:
            if getattr(parameter, "help", None):
                parameter.help = words()(parameter.help)
        return found

    return get


def _write_usage(self: Any, ctx: Any, formatter: Any) -> None:
    pieces = " ".join(self.collect_usage_pieces(ctx))
    formatter.write_usage(ctx.command_path, pieces, prefix=words()("Usage: "))


class Command(TyperCommand):
    """A command that explains options given twice and wrong numbers."""

    parse_args = _checking(TyperCommand.parse_args)
    get_params = _translating(TyperCommand.get_params)
    format_usage = _write_usage


class Group(TyperGroup):
    """A group whose list shows each command's whole first sentence; options as of `Command`."""

    parse_args = _checking(TyperGroup.parse_args)
    get_params = _translating(TyperGroup.get_params)
    format_usage = _write_usage

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands."""
        rows = [
            (name, each.get_short_help_str(_SENTENCE_CHARS_MAX))
            for name, each in self.commands.items()
        ]
        with formatter.section(words()("Commands")):
            formatter.write_dl(rows)


def make_group(summary: str) -> Typer:
    """Make the Typer application of a command that has subcommands."""
    return Typer(help=summary, no_args_is_help=True, rich_markup_mode=None)


def use_classes(app: Any) -> None:
    """Have a Typer application, and those within it, make commands and groups of these classes."""
    app.info.cls = Group
    for command in app.registered_commands:
        command.cls = Command
    for group in app.registered_groups:
        use_classes(group.typer_instance)

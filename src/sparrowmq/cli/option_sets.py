"""Sets of options that several commands have.

A set is a `NamedTuple` whose fields are the options. A command takes the whole set as one
parameter, and Typer sees the fields. Tests: test_brokers_and_contexts.py, test_messages.py.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any, get_type_hints

from sparrowmq.errors import ConfigError, UsageError

_KEYWORD = inspect.Parameter.KEYWORD_ONLY


def options_of(option_set: type[Any]) -> list[inspect.Parameter]:
    """Return the fields of a set as parameters of a command."""
    hints = get_type_hints(option_set, include_extras=True)
    # Of NamedTuples, which have no common type.
    fields, defaults = option_set._fields, option_set._field_defaults
    return [
        inspect.Parameter(
            name,
            _KEYWORD,
            default=defaults.get(name, inspect.Parameter.empty),
            annotation=hints[name],
        )
        for name in fields
    ]


@contextmanager
def naming_options(options: Mapping[str, str]) -> Generator[None]:
    """Turn the error of a setting, which begins with its name, into one that names its option.

    Args:
        options: by setting, the option without its dashes.

    Raises: ConfigError.
    """
    try:
        yield
    except ConfigError as error:
        name, _, rest = str(error).partition(" ")
        if name not in options:
            raise
        raise ConfigError(f"--{options[name]} {rest}") from None


def parse_pairs(option: str, texts: Iterable[str] | None) -> dict[str, str]:
    """Return the values of an option NAME=VALUE that is repeated, by name. Raises: UsageError."""
    pairs = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise UsageError(f"{option} is {text!r}; write NAME=VALUE")
        pairs[name] = value
    return pairs


def take(option_set: type[Any], given: dict[str, Any]) -> Any:
    """Make a set of the values of its options, and take them away from the others."""
    return option_set(**{name: given.pop(name) for name in option_set._fields})


def parameters_of(command: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return a command's parameters; Typer calls it by their names."""
    signature = inspect.signature(command, eval_str=True)
    return [each.replace(kind=_KEYWORD) for each in signature.parameters.values()]


def declare(
    start: Callable[..., None], command: Callable[..., None], parameters: Iterable[Any]
) -> Callable[..., None]:
    """Return `start` in place of a command, with these parameters for Typer."""
    functools.update_wrapper(start, command)
    del start.__wrapped__  # type: ignore[attr-defined]
    shown = list(parameters)
    start.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    start.__annotations__ = {each.name: each.annotation for each in shown}
    return start


def with_option_sets(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command, behind its own options, those of the sets among its parameters."""
    sets: dict[str, type[Any]] = {}
    own: list[inspect.Parameter] = []
    for each in parameters_of(command):
        if hasattr(each.annotation, "_fields"):
            sets[each.name] = each.annotation
        else:
            own.append(each)

    def start(**given: Any) -> None:
        made = {name: take(each, given) for name, each in sets.items()}
        command(**made, **given)

    shared = [option for each in sets.values() for option in options_of(each)]
    return declare(start, command, own + shared)

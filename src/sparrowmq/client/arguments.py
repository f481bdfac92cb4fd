"""Checks of what users pass: a mistake is said where it is made, not by what comes of it. Pure.

Without them a text that stands where a constant belongs would choose another behaviour without a
word, and a function that cannot be called would make a dead letter of every message.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import partial
from types import UnionType
from typing import Any

from sparrowmq.errors import ConfigError, UsageError
from sparrowmq.model import Message, MessageExt, MessageQueue


def check_range(name: str, value: int, low: int, high: int) -> None:
    """Raise a ConfigError that names the setting unless `low <= value <= high`."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(f"{name} is {value!r}; it must be a whole number from {low} to {high}")


def check_kind(name: str, value: object, kind: type | UnionType) -> None:
    """Raise a ConfigError that names the setting unless it is a text, a flag or a constant."""
    if isinstance(value, kind):
        return
    wanted = "a text"
    if kind is bool:
        wanted = "True or False"
    elif isinstance(kind, type) and issubclass(kind, Enum):
        wanted = f"a {kind.__name__}, such as {next(iter(kind))}"
    raise ConfigError(f"{name} is {value!r}; it must be {wanted}")


def check_function(
    name: str, function: object, arguments: tuple[str, ...], *, is_async: bool
) -> None:
    """Raise a ConfigError unless a user's function can be called so.

    Args:
        arguments: what it will be called with, by name.
        is_async: whether it may be a coroutine function.
    """
    called = f"({', '.join(arguments)})"
    if not callable(function):
        raise ConfigError(f"{name} is {function!r}; it must be a function of {called}")
    bare = _bare(function)
    if inspect.isgeneratorfunction(bare) or inspect.isasyncgenfunction(bare):
        raise ConfigError(
            f"{name} is {function!r}, a function with `yield`, which is not run when it is called; "
            f"give one that returns"
        )
    if not is_async and is_coroutine_function(function):
        raise ConfigError(
            f"{name} is the coroutine function {function!r}, but this consumer calls functions in "
            f"threads: give a plain function, or take the consumer of the same name with Async"
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        # Some functions in C have no signature.
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise ConfigError(
            f"{name} is {function!r}, which cannot be called as {called}: {error}"
        ) from (error)


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """Return whether what a call of the function returns is to be awaited."""
    return inspect.iscoroutinefunction(_bare(function))


def _bare(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function whose code is run when an object is called."""
    while isinstance(function, partial):
        function = function.func
    if inspect.isroutine(function) or isinstance(function, type):
        return function
    called: Callable[..., Any] = type(function).__call__
    return called


def check_message(message: Message) -> None:
    """Raise a UsageError unless this is a message to send."""
    if isinstance(message, Message):
        return
    hint = "give Message(topic, body)"
    if isinstance(message, MessageExt):
        hint = "a MessageExt came from a queue; make a new Message of its topic, body and tags"
    elif isinstance(message, list | tuple):
        hint = "send_batch sends several"
    raise UsageError(f"{_short(message)} is no Message: {hint}")


def check_messages(messages: Sequence[Message]) -> None:
    """Raise a UsageError unless these are messages to send."""
    if not isinstance(messages, Sequence):
        raise UsageError(f"{_short(messages)} is no list of messages; give a list")
    if {*map(type, messages)} != {Message}:
        for message in messages:
            check_message(message)


def check_queue(queue: MessageQueue) -> MessageQueue:
    """Return a queue unchanged. Raises: UsageError if it is none."""
    if not isinstance(queue, MessageQueue):
        raise UsageError(
            f"{_short(queue)} is no queue; give a MessageQueue, such as fetch_publish_queues, "
            f"fetch_subscribe_queues or assignment return"
        )
    return queue


def check_queues(queues: Iterable[MessageQueue]) -> tuple[MessageQueue, ...]:
    """Return queues. Raises: UsageError for what is none."""
    if isinstance(queues, MessageQueue) or not isinstance(queues, Iterable):
        raise UsageError(f"{_short(queues)} is no list of queues; give a list")
    return tuple(map(check_queue, queues))


def check_offset(offset: int) -> int:
    """Return an offset unchanged. Raises: UsageError if no queue can have it."""
    if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
        raise UsageError(f"offset is {offset!r}; it must be a whole number from 0 on")
    return offset


def refuse_awaitable(name: str, value: object) -> None:
    """Raise a UsageError for what a function returned if somebody had to await it."""
    if not inspect.isawaitable(value):
        return
    if inspect.iscoroutine(value):
        # Nobody will: it would be reported as forgotten.
        value.close()
    raise UsageError(
        f"{name} returned {_short(value)}, which nobody awaits: give a coroutine function itself "
        f"to a consumer of the asyncio face, not a plain function that calls one"
    )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."

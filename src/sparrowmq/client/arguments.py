"""Checks of users' arguments, so that an error names the mistake and not its consequence. Pure.

Without these checks a text in place of a constant would silently choose another behaviour, and a
listener that cannot be called would turn every message into a dead letter. Tests: test_mistakes.py.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from sparrowmq.errors import ConfigError, UsageError
from sparrowmq.model import Message, MessageExt, MessageQueue, MessageSelector
from sparrowmq.model.names import check_topic

_LISTS = (list, tuple)


def check_function(
    name: str, function: object, arguments: tuple[str, ...], *, is_async: bool
) -> None:
    """Raise a ConfigError unless a user's function can be called with these arguments.

    Args:
        arguments: the arguments of the call, by name.
        is_async: whether a coroutine function is allowed.
    """
    called = f"({', '.join(arguments)})"
    if not callable(function):
        raise ConfigError(f"{name} is {function!r}; it must be a function of {called}")
    bare = _bare(function)
    if inspect.isgeneratorfunction(bare) or inspect.isasyncgenfunction(bare):
        raise ConfigError(
            f"{name} is {function!r}, a function with `yield`, whose call runs nothing; give a "
            "function without `yield`"
        )
    if not is_async and is_coroutine_function(function):
        raise ConfigError(
            f"{name} is the coroutine function {function!r}, but this client calls plain "
            "functions in threads; give a plain function, or use the client whose name begins "
            "with Async"
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        # Some functions written in C have no signature.
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise ConfigError(
            f"{name} is {function!r}, which cannot be called as {called}: {error}"
        ) from None


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """Return whether the result of a call must be awaited."""
    return inspect.iscoroutinefunction(_bare(function))


def _bare(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that runs when an object is called."""
    while isinstance(function, partial):
        function = function.func
    if inspect.isroutine(function) or isinstance(function, type):
        return function
    called: Callable[..., Any] = type(function).__call__
    return called


def check_message(message: Message) -> None:
    """Raise a UsageError unless this is a `Message`."""
    if isinstance(message, Message):
        return
    hint = "give Message(topic, body)"
    if isinstance(message, MessageExt):
        hint = "a MessageExt was received; make a new Message from its topic, body and tags"
    elif isinstance(message, list | tuple):
        hint = "use send_batch for several messages"
    raise UsageError(f"{short(message)} is not a Message: {hint}")


def check_messages(messages: Sequence[Message]) -> None:
    """Raise a UsageError unless this is a list of messages."""
    # The check of an abstract type costs as much as those of the messages.
    if not isinstance(messages, _LISTS) and not isinstance(messages, Sequence):
        raise UsageError(f"{short(messages)} is not a list of messages; give a list")
    if {*map(type, messages)} != {Message}:
        for message in messages:
            check_message(message)


def check_queue(queue: MessageQueue) -> MessageQueue:
    """Return a queue unchanged. Raises: UsageError if it is not a MessageQueue of a broker."""
    if not isinstance(queue, MessageQueue):
        raise UsageError(
            f"{short(queue)} is not a queue; give a MessageQueue, such as fetch_publish_queues, "
            f"fetch_subscribe_queues or assignment return"
        )
    topic, broker_name, queue_id = queue
    for name, text in (("topic", topic), ("broker_name", broker_name)):
        if not isinstance(text, str):
            raise UsageError(f"{name} of a queue is {short(text)}; it must be a text")
    if isinstance(queue_id, bool) or not isinstance(queue_id, int) or queue_id < 0:
        raise UsageError(
            f"queue_id of a queue of {topic!r} is {short(queue_id)}; it must be a whole number "
            "from 0 on"
        )
    return queue


def check_queues(queues: Iterable[MessageQueue]) -> tuple[MessageQueue, ...]:
    """Return the queues as a tuple. Raises: UsageError unless each is a MessageQueue."""
    if isinstance(queues, MessageQueue) or not isinstance(queues, Iterable):
        raise UsageError(f"{short(queues)} is not a list of queues; give a list")
    return tuple(map(check_queue, queues))


def read_topics(
    topics: str | Sequence[str] | Mapping[str, str | MessageSelector] | None,
) -> Mapping[str, str | MessageSelector]:
    """Return the expression of each topic that a consumer was given. Raises: ConfigError."""
    if topics is None:
        return {}
    if isinstance(topics, Mapping):
        given = topics
    elif isinstance(topics, str):
        given = {topics: "*"}
    elif isinstance(topics, Sequence) and not isinstance(topics, bytes | bytearray):
        given = dict.fromkeys(map(check_topic, topics), "*")
    else:
        given = {}
    if not given:
        raise ConfigError(
            f"topics is {short(topics)}; give a topic, a list of topics, or a dict of topics and "
            'expressions, such as {"orders": "new || paid"}'
        )
    return given


def check_offset(offset: int) -> int:
    """Return an offset unchanged. Raises: UsageError unless it is a whole number from 0 on."""
    if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
        raise UsageError(f"offset is {offset!r}; it must be a whole number from 0 on")
    return offset


def check_timestamp(timestamp_ms: int) -> None:
    """Raise a UsageError unless a time is a whole number."""
    if isinstance(timestamp_ms, bool) or not isinstance(timestamp_ms, int):
        raise UsageError(
            f"timestamp_ms is {timestamp_ms!r}; give milliseconds since 1970, such as "
            "round(time.timestamp() * 1000)"
        )


def check_milliseconds(name: str, value: int) -> None:
    """Raise a UsageError unless a time to wait is a whole number.

    The loop of a client fails with a `Decimal`, and NaN is a time that is always over.
    """
    if not isinstance(value, int):
        raise UsageError(f"{name} is {value!r}; give whole milliseconds, such as 1500")


def refuse_awaitable(name: str, value: object) -> None:
    """Raise a UsageError if a user's plain function returned an awaitable."""
    if not inspect.isawaitable(value):
        return
    if inspect.iscoroutine(value):
        # Closed, because Python warns of a coroutine that was never awaited.
        value.close()
    raise UsageError(
        f"{name} returned {short(value)}, which is never awaited; give the coroutine function "
        "itself to a client whose name begins with Async, not a plain function that calls it"
    )


def short(value: object) -> str:
    """Write a value for an error, cut if it is long."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."

"""What users meet at the clients' classes: hints for wrong calls, and tracebacks of their own code.

Python says of `send(message, timeout=3)` that the argument is unexpected, and not which is meant.
Tests: client/test_mistakes.py, client/test_errors.py.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import wraps
from typing import Any, NamedTuple, Never, TypeVar

from sparrowmq.client.arguments import check_message, short
from sparrowmq.client.config import KINDS, did_you_mean_argument
from sparrowmq.errors import SparrowError, UsageError, did_you_mean, drop_own_frames
from sparrowmq.model import Message, MessageExt, MessageQueue

T = TypeVar("T")

# What other clients call a method of ours; of several, the first that the class has.
_METHODS_ELSEWHERE = {
    "acknowledge": ("ack",),
    "commit": ("ack",),
    "consume": ("getmany", "receive"),
    "get": ("getone", "receive"),
    "nack": ("change_invisible",),
    "poll": ("receive",),
    "produce": ("send",),
    "publish": ("send",),
    "receive": ("getmany",),
    "reset_offset": ("reset_offsets",),
    "run": ("start",),
    "run_forever": ("start",),
    "send_async": ("send_nowait",),
    "send_message": ("send",),
    "send_one_way": ("send_oneway",),
    "send_sync": ("send",),
    "shutdown": ("close",),
    "stop": ("close",),
}
_ENTRIES = ("__init__", "__enter__", "__aenter__")


def for_administrators(cls: type[T]) -> type[T]:
    """As `for_users`, and check each argument's type and texts before a method runs.

    A group of another type would be one of which brokers know nothing.
    """
    return for_users(cls, checks_first=True)


def for_users(cls: type[T], *, checks_first: bool = False) -> type[T]:
    """Let a class's public methods explain wrong calls, and hide the frames below them."""
    for name, member in list(vars(cls).items()):
        if name.startswith("_") and name not in _ENTRIES:
            continue
        if inspect.isfunction(member) and not (
            inspect.isgeneratorfunction(member) or inspect.isasyncgenfunction(member)
        ):
            setattr(cls, name, _guarded(cls.__name__, member, checks_first=checks_first))
    cls.__getattr__ = _refuse_name  # type: ignore[attr-defined]
    cls.__reduce__ = _refuse_copy  # type: ignore[method-assign]
    return cls


def _guarded(owner: str, function: Callable[..., Any], *, checks_first: bool) -> Callable[..., Any]:
    # A bare `raise` adds no frame of this function to the traceback.
    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            if checks_first and (refusal := _explain(owner, function, args, kwargs)):
                raise refusal
            try:
                return function(*args, **kwargs)
            except (TypeError, AttributeError):
                if (refusal := _explain(owner, function, args, kwargs)) is None:
                    raise
                raise refusal from None
        except SparrowError as error:
            drop_own_frames(error)
            raise

    @wraps(function)
    async def awaited(*args: Any, **kwargs: Any) -> Any:
        try:
            if checks_first and (refusal := _explain(owner, function, args, kwargs)):
                raise refusal
            try:
                return await function(*args, **kwargs)
            except (TypeError, AttributeError):
                if (refusal := _explain(owner, function, args, kwargs)) is None:
                    raise
                raise refusal from None
        except SparrowError as error:
            drop_own_frames(error)
            raise

    return awaited if inspect.iscoroutinefunction(function) else called


def _explain(
    owner: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> SparrowError | None:
    """Return what is wrong with a call; None if the function can be called so."""
    signature = inspect.signature(function)
    called = owner if function.__name__ == "__init__" else f"{owner}.{function.__name__}"
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        reason = str(error)
    else:
        return _explain_kinds(called, bound)
    _, *parameters = signature.parameters.values()
    names = [each.name for each in parameters if each.kind is not each.VAR_KEYWORD]
    by_place = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    unknown = [name for name in kwargs if name not in names]
    if unknown and len(parameters) == len(names):
        hint = _hint(owner, unknown[0], names)
        return UsageError(f"{called} has no argument {unknown[0]!r}{hint}")
    count = len(args) - 1
    if count > len(by_place):
        if by_place and by_place[0] == "message":
            try:
                check_message(args[1])
            except UsageError as refusal:
                return refusal
        others = ", ".join(f"{name}=..." for name in names if name not in by_place)
        return UsageError(
            f"{called} takes {' and '.join(by_place) or 'nothing'} by place, and got {count} values"
            + (others and f"; give by name: {others}")
        )
    return UsageError(f"{called}: {reason}")


class _Kind(NamedTuple):
    """A type of arguments in words: one of it, and several."""

    type: type
    one: str
    several: str


_KINDS = {
    "str": _Kind(str, "a text", "texts"),
    "int": _Kind(int, "a whole number", "whole numbers"),
    "bool": _Kind(bool, "True or False", "True or False"),
    "bytes": _Kind(bytes, "bytes", "bytes"),
    "timedelta": _Kind(timedelta, "a timedelta", "timedeltas"),
    "MessageExt": _Kind(MessageExt, "a received message", "received messages"),
    "MessageQueue": _Kind(
        MessageQueue,
        "a MessageQueue, such as fetch_publish_queues, fetch_subscribe_queues or assignment return",
        "MessageQueues",
    ),
}
_SEVERAL = re.compile(r"(?:Sequence|Mapping)\[(\w+)(?:, (\w+))?\]")


def _explain_kinds(called: str, bound: inspect.BoundArguments) -> SparrowError | None:
    """Return which argument is not of its type; None if all are, as far as is known."""
    for name, given in bound.arguments.items():
        parameter = bound.signature.parameters[name]
        for value in given if parameter.kind is parameter.VAR_POSITIONAL else (given,):
            wanted = _wanted(str(parameter.annotation).split(" | "), value)
            if wanted is not None:
                return UsageError(f"{called}: {name} is {short(value)}; it must be {wanted}")
            for text in _texts_of(value):
                try:
                    text.encode()
                except UnicodeEncodeError:
                    # The value may be a secret.
                    fault = "has a character that UTF-8 cannot encode"
                    return UsageError(f"{called}: {name} {fault}")
    return None


def _texts_of(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts_of([*value.keys(), *value.values()])
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts_of(each)


def _wanted(annotations: Sequence[str], value: object) -> str | None:
    """Return what a value must be; None if it is of one of the types, or one is not known here."""
    wanted = []
    for each in annotations:
        several = _SEVERAL.fullmatch(each)
        kind = _KINDS.get(several[1] if several else each)
        if each == "None" and value is not None:
            continue
        if kind is None:
            return None
        if several is None:
            is_wanted = _is_of(kind, value)
            wanted.append(kind.one)
        elif several[2]:
            of = _KINDS[several[2]]
            is_wanted = isinstance(value, Mapping) and all(
                _is_of(kind, key) and _is_of(of, item) for key, item in value.items()
            )
            wanted.append(f"a dict of {kind.several} and {of.several}")
        else:
            is_wanted = isinstance(value, list | tuple) and all(_is_of(kind, v) for v in value)
            wanted.append(f"a list of {kind.several}")
        if is_wanted:
            return None
    return " or ".join(wanted)


def _is_of(kind: _Kind, value: object) -> bool:
    return isinstance(value, kind.type) and (kind.type is bool or not isinstance(value, bool))


def _hint(owner: str, name: str, names: list[str]) -> str:
    """Return the end of an error about an argument that a method does not have."""
    if hint := did_you_mean_argument(name, names):
        return hint
    if "message" in names and (hint := did_you_mean_argument(name, Message.__struct_fields__)):
        return f"{hint} A Message takes it"
    kind = next((kind for kind in KINDS if owner.endswith(kind)), None)
    if kind is not None and (hint := did_you_mean_argument(name, KINDS[kind].rows())):
        return f"{hint} {owner}(...) takes it"
    return f"; there are {', '.join(names)}" if names else "; it takes none"


def _refuse_copy(self: object) -> Never:
    """Answer `pickle` and `copy`. Raises: UsageError."""
    raise UsageError(
        f"a {type(self).__name__} cannot be copied or sent to another process, as it has "
        "connections; make one in each process, or inside the function that is sent there"
    )


def _refuse_name(self: object, name: str) -> Never:
    """Answer for an attribute that is not there. Raises: AttributeError."""
    owner = type(self).__name__
    if name.startswith("_"):
        raise AttributeError(f"{owner!r} object has no attribute {name!r}")
    known = [each for each in dir(type(self)) if not each.startswith("_")]
    ours = next((each for each in _METHODS_ELSEWHERE.get(name, ()) if each in known), None)
    hint = f"; did you mean {ours}?" if ours else did_you_mean(name, known)
    # With an object, Python would add a hint of its own.
    raise AttributeError(f"{owner} has no {name!r}{hint}", name=name, obj=None)

"""What users meet at the clients' classes: hints for wrong calls, and tracebacks of their own code.

Python says of `send(message, timeout=3)` that the argument is unexpected, and not which is meant.
Tests: client/test_mistakes.py, client/test_errors.py.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, Never, TypeVar

from sparrowmq.client.arguments import check_message
from sparrowmq.client.config import KINDS, did_you_mean_argument
from sparrowmq.errors import SparrowError, UsageError, did_you_mean, drop_own_frames
from sparrowmq.model import Message

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


def for_users(cls: type[T]) -> type[T]:
    """Let a class's public methods explain wrong calls, and hide the frames below them."""
    for name, member in list(vars(cls).items()):
        if name.startswith("_") and name not in _ENTRIES:
            continue
        if inspect.isfunction(member) and not (
            inspect.isgeneratorfunction(member) or inspect.isasyncgenfunction(member)
        ):
            setattr(cls, name, _guarded(cls.__name__, member))
    cls.__getattr__ = _refuse_name  # type: ignore[attr-defined]
    return cls


def _guarded(owner: str, function: Callable[..., Any]) -> Callable[..., Any]:
    # A bare `raise` adds no frame of this function to the traceback.
    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            try:
                return function(*args, **kwargs)
            except TypeError:
                if (refusal := _explain(owner, function, args, kwargs)) is None:
                    raise
                raise refusal from None
        except SparrowError as error:
            drop_own_frames(error)
            raise

    @wraps(function)
    async def awaited(*args: Any, **kwargs: Any) -> Any:
        try:
            try:
                return await function(*args, **kwargs)
            except TypeError:
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
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        reason = str(error)
    else:
        return None
    called = owner if function.__name__ == "__init__" else f"{owner}.{function.__name__}"
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

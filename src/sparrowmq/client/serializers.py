"""Serializers of values to message bodies and back, shared by producers and consumers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast, overload

import msgspec

from sparrowmq.errors import UnreadableMessage, UsageError
from sparrowmq.model import Message, MessageExt

T = TypeVar("T")


class JsonSerializer(Generic[T]):
    """Values of one type as JSON.

    Args:
        kind: a `msgspec.Struct`, a dataclass, a model of pydantic, or another type that msgspec
            reads; by default any JSON value.

    Raises: UsageError for a type that cannot be read from JSON.
    """

    @overload
    def __init__(self: JsonSerializer[Any]) -> None: ...

    @overload
    def __init__(self, kind: type[T]) -> None: ...

    def __init__(self, kind: Any = Any) -> None:
        self._kind = kind
        self._class: Any = _class_of(kind)
        # Pydantic is not imported here: the user's model imported it.
        self._is_model = hasattr(kind, "model_validate_json")
        self._decode: Callable[[bytes], Any]
        if self._is_model:
            self._decode = getattr(kind, "model_validate_json")  # noqa: B009
        else:
            try:
                self._decode = msgspec.json.Decoder(kind).decode
            except TypeError as error:
                raise UsageError(f"{kind!r} cannot be read from JSON: {error}") from error
        self._encoder = msgspec.json.Encoder()

    def encode(self, value: T) -> bytes:
        """Return a value as a body.

        Raises: UsageError for a value that is not of the class, or that JSON cannot carry. What a
        value of the class contains is not checked.
        """
        # The JSON of another type could not be read back: True is an int, and its JSON is not.
        is_flag = self._class is int and isinstance(value, bool)
        if self._class is not None and (is_flag or not isinstance(value, self._class)):
            raise UsageError(f"{_short(value)} is not a {self._kind.__name__}")
        try:
            if self._is_model:
                text: str = value.model_dump_json()  # type: ignore[attr-defined]
                return text.encode()
            return self._encoder.encode(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(f"{_short(value)} cannot be written as JSON: {error}") from error

    def decode(self, body: bytes) -> T:
        """Return the value of a body. Raises: ValueError with the fault of the body."""
        try:
            return cast(T, self._decode(body))
        except RecursionError as error:
            # Any sender can write a thousand brackets.
            raise ValueError(f"it is nested too deeply: {error}") from error

    def message(self, topic: str, value: T, **fields: Any) -> Message:
        """Return the message of a value.

        Args:
            fields: the message's other fields, such as `keys`.

        Raises: UsageError.
        """
        return Message(topic, self.encode(value), **fields)

    def read(self, message: MessageExt) -> T:
        """Return the value of a message. Raises: UnreadableMessage that names the message."""
        try:
            return self.decode(message.body)
        except ValueError as error:
            name = getattr(self._kind, "__name__", str(self._kind))
            reason = " ".join(str(error).split())
            raise UnreadableMessage(
                f"message {message.msg_id} of topic {message.topic!r} at offset "
                f"{message.queue_offset} of queue {message.queue_id} holds no {name}: {reason}; "
                f"make the message a dead letter, or change its producer to send this type"
            ) from error


def _class_of(kind: Any) -> type | None:
    """Return the class of a type's values; None where no class says which values are of it."""
    # Any is a class too.
    if not isinstance(kind, type) or kind is Any:
        return None
    try:
        isinstance(None, kind)
    except TypeError:
        # Python refuses to compare values with a TypedDict, which are dicts.
        return dict if dict in kind.__mro__ else None
    return kind


def _short(value: object) -> str:
    try:
        return f"{value!r:.80}"
    except RecursionError:
        return f"a {type(value).__name__}"

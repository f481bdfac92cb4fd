"""Call a producer's observers for each of its sends.

The first part of an observer runs in the caller's thread or task and not on the driver, so that
the observer finds the caller's context. Without observers a send is the operation itself.
Tests: client/test_spans.py, client/test_metrics.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from sparrowmq.calling.effects import Operation
from sparrowmq.client.arguments import check_message, check_messages
from sparrowmq.client.publisher import Ended, Publisher
from sparrowmq.errors import SparrowError
from sparrowmq.model import Message, SendResult

T = TypeVar("T")
F = TypeVar("F", bound="AnyFuture")


class AnyFuture(Protocol):
    """The methods that asyncio's futures and the futures of threads have in common."""

    def cancelled(self) -> bool:
        """Return whether the future was cancelled."""
        ...

    def result(self) -> SendResult:
        """Return the result. Raises: the error of a failed future."""
        ...

    def exception(self) -> BaseException | None:
        """Return the error of a failed future, None for a result."""
        ...

    def add_done_callback(self, function: Callable[..., object], /) -> None:
        """Call a function with the future once the future is done."""
        ...


def observe(
    publisher: Publisher,
    message: Message,
    send: Callable[[Message], Operation[T]],
    *,
    is_half: bool = False,
) -> Operation[T]:
    """Return the operation that sends a message and calls the observers."""
    if not publisher.observers:
        return send(message)
    check_message(message)
    (message,), ended = _begin(publisher, (message,), is_half=is_half)
    return _observed(send(message), ended)


def observe_batch(
    publisher: Publisher,
    messages: Sequence[Message],
    send: Callable[[Sequence[Message]], Operation[T]],
) -> Operation[T]:
    """Return the operation that sends messages of one topic and calls the observers."""
    if not publisher.observers or not messages:
        return send(messages)
    check_messages(messages)
    messages, ended = _begin(publisher, messages)
    return _observed(send(messages), ended)


def observe_later(publisher: Publisher, message: Message, hand_over: Callable[[Message], F]) -> F:
    """Hand a message over to be sent later; the observers see it until its future is done.

    Raises: the errors of `hand_over`.
    """
    if not publisher.observers:
        return hand_over(message)
    (message,), ended = _begin(publisher, (message,))
    try:
        future = hand_over(message)
    except SparrowError as error:
        ended(None, error)
        raise

    def done(future: F) -> None:
        # Asking a cancelled future for its error would raise.
        error = None if future.cancelled() else future.exception()
        ended(None if future.cancelled() or error else future.result(), error)

    future.add_done_callback(done)
    return future


def _begin(
    publisher: Publisher, messages: Sequence[Message], *, is_half: bool = False
) -> tuple[Sequence[Message], Ended]:
    ends: list[Ended] = []
    for observer in publisher.observers:
        messages, ended = observer.begin(messages, is_half=is_half)
        ends.append(ended)

    def end(result: SendResult | None, error: BaseException | None) -> None:
        for ended in ends:
            ended(result, error)

    return messages, end


def _observed(operation: Operation[T], ended: Ended) -> Operation[T]:
    try:
        result = yield from operation
    except BaseException as error:
        # A cancelled send has ended too.
        ended(None, error)
        raise
    ended(result if isinstance(result, SendResult) else None, None)
    return result

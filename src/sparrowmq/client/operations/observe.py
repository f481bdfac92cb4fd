"""Call a producer's observers for each of its sends.

The first part of an observer runs in the caller's thread or task and not on the driver, so that
the observer finds the caller's context. Without observers a send is the operation itself.
Whatever an observer raises is reported, and changes no send.
Tests: client/test_spans.py, client/test_metrics.py, client/test_trace.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from sparrowmq.calling.effects import Operation
from sparrowmq.client.arguments import check_message, check_messages
from sparrowmq.client.operations.trace_reports import find_tracer, start_sending
from sparrowmq.client.publisher import Ended, ObserverFailed, Publisher
from sparrowmq.model import Message, SendResult

T = TypeVar("T")


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
    (message,), ended = begin_send(publisher, (message,), is_half=is_half)
    return _observed(publisher, send(message), ended)


def observe_batch(
    publisher: Publisher,
    messages: Sequence[Message],
    send: Callable[[Sequence[Message]], Operation[T]],
) -> Operation[T]:
    """Return the operation that sends messages of one topic and calls the observers."""
    if not publisher.observers or not messages:
        return send(messages)
    check_messages(messages)
    messages, ended = begin_send(publisher, messages)
    return _observed(publisher, send(messages), ended)


def begin_send(
    publisher: Publisher, messages: Sequence[Message], *, is_half: bool = False
) -> tuple[Sequence[Message], Ended]:
    """Return the messages to send, as the observers want them, and the function for the end."""
    ends: list[Ended] = []
    for observer in publisher.observers:
        try:
            messages, ended = observer.begin(messages, is_half=is_half)
        except Exception as failure:
            _report(publisher, failure)
        else:
            ends.append(ended)

    def end(result: SendResult | None, error: BaseException | None) -> None:
        for ended in ends:
            try:
                ended(result, error)
            except Exception as failure:
                _report(publisher, failure)

    return messages, end


def _report(publisher: Publisher, failure: Exception) -> None:
    """Report that an observer has raised: the message is sent, or stored, all the same."""
    if publisher.report is not None:
        publisher.report(ObserverFailed("a send", failure))


def _observed(publisher: Publisher, operation: Operation[T], ended: Ended) -> Operation[T]:
    try:
        result = yield from operation
    except BaseException as error:
        # A cancelled send has ended too.
        ended(None, error)
        raise
    ended(result if isinstance(result, SendResult) else None, None)
    yield from start_sending(find_tracer(publisher))
    return result

"""Who sees what a client does, as its settings say. Libraries are imported where one is set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

from sparrowmq.client.arguments import is_coroutine_function
from sparrowmq.client.config import ConsumerConfig, SightConfig
from sparrowmq.client.lite_pull import LitePull
from sparrowmq.client.publisher import Publisher, SendObserver
from sparrowmq.client.subscriber import AsyncListener, AsyncOrderlyListener
from sparrowmq.errors import ConfigError
from sparrowmq.model import MessageExt

# Around one call of a listener with these messages; what it returned is reported inside.
Watch: TypeAlias = Callable[
    [Sequence[MessageExt]], AbstractContextManager[Callable[[object], None]]
]


def add_send_observers(publisher: Publisher, sight: SightConfig) -> None:
    """Have the sends of a new producer seen. Raises: ConfigError."""
    observers: list[SendObserver] = []
    if sight.tracer_provider is not None:
        spans = _import_spans()
        address_of = publisher.routes.master_address
        observers.append(spans.SendSpans(sight.tracer_provider, publisher.config, address_of))
    publisher.observers = tuple(observers)


def watch_listener(
    listener: AsyncListener | AsyncOrderlyListener, config: ConsumerConfig, sight: SightConfig
) -> AsyncListener | AsyncOrderlyListener:
    """Return a listener whose calls are seen; itself if nobody wants to. Raises: ConfigError."""
    if sight.tracer_provider is None:
        return listener
    spans = _import_spans().ConsumeSpans(sight.tracer_provider, config)
    return _watched(listener, spans.watch)


def watch_polls(state: LitePull, sight: SightConfig) -> None:
    """Have what a new lite pull consumer's polls return seen. Raises: ConfigError."""
    if sight.tracer_provider is not None:
        spans = _import_spans().ConsumeSpans(sight.tracer_provider, state.subscriber.config)
        state.received = spans.received


def _watched(listener: Any, watch: Watch) -> AsyncListener:
    if is_coroutine_function(listener):

        async def call(messages: list[MessageExt], context: Any) -> Any:
            with watch(messages) as report:
                returned = await listener(messages, context)
                report(returned)
                return returned

        return call

    def call_in_thread(messages: list[MessageExt], context: Any) -> Any:
        with watch(messages) as report:
            returned = listener(messages, context)
            report(returned)
            return returned

    return call_in_thread


def _import_spans() -> Any:
    try:
        from sparrowmq.client import spans
    except ImportError as error:
        raise ConfigError(
            f"tracer_provider is given, but {error.name} is not installed; "
            f"pip install 'sparrowmq[opentelemetry]'"
        ) from error
    return spans

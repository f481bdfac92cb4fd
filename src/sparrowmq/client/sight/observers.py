"""Attach the observers that a client's settings name; only their libraries are imported.

Tests: client/test_spans.py, client/test_metrics.py.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

from sparrowmq.client.arguments import is_coroutine_function
from sparrowmq.client.config import SightConfig
from sparrowmq.client.operations.deliver import why_undone
from sparrowmq.client.polling import Polling
from sparrowmq.client.publisher import Publisher, SendObserver
from sparrowmq.client.subscriber import AsyncListener, AsyncOrderlyListener, Subscriber
from sparrowmq.errors import ConfigError, install_command
from sparrowmq.model import MessageExt

# A context around one call of a listener; the caller reports inside why messages are undone.
Watch: TypeAlias = Callable[[Sequence[MessageExt]], AbstractContextManager[Callable[[str], None]]]


def observe_sends(publisher: Publisher, sight: SightConfig) -> None:
    """Attach the observers of sends to a new producer. Raises: ConfigError."""
    observers: list[SendObserver] = []
    if sight.tracer_provider is not None:
        make = _import("spans", "tracer_provider", "opentelemetry").SendSpans
        address_of = publisher.routes.master_address
        observers.append(make(sight.tracer_provider, publisher.config, address_of))
    if sight.metrics_registry is not None:
        make = _import("prometheus", "metrics_registry", "prometheus").SendMetrics
        observers.append(make(sight.metrics_registry, publisher.config))
    publisher.observers = tuple(observers)


def observe_consumer(subscriber: Subscriber, sight: SightConfig) -> None:
    """Attach the observers of listener calls to a new push consumer. Raises: ConfigError."""
    if sight.tracer_provider is not None:
        make = _import("spans", "tracer_provider", "opentelemetry").ConsumeSpans
        spans = make(sight.tracer_provider, subscriber.config)
        subscriber.listener = _watched(subscriber.listener, spans.watch)
    if sight.metrics_registry is not None:
        make = _import("prometheus", "metrics_registry", "prometheus").ConsumeMetrics
        metrics = make(sight.metrics_registry, subscriber)
        subscriber.listener = _watched(subscriber.listener, metrics.watch)


def observe_polls(state: Polling, sight: SightConfig) -> None:
    """Attach the observers of polls to a new poll consumer. Raises: ConfigError."""
    subscriber = state.subscriber
    if sight.tracer_provider is not None:
        make = _import("spans", "tracer_provider", "opentelemetry").ConsumeSpans
        state.received = make(sight.tracer_provider, subscriber.config).received
    if sight.metrics_registry is not None:
        make = _import("prometheus", "metrics_registry", "prometheus").ConsumeMetrics
        make(sight.metrics_registry, subscriber)


def _watched(listener: AsyncListener | AsyncOrderlyListener, watch: Watch) -> AsyncListener:
    called: Any = listener
    if is_coroutine_function(listener):

        async def call(messages: list[MessageExt], context: Any) -> Any:
            with watch(messages) as report:
                returned = await called(messages, context)
                report(why_undone(returned, context, messages))
                return returned

        return call

    def call_in_thread(messages: list[MessageExt], context: Any) -> Any:
        with watch(messages) as report:
            returned = called(messages, context)
            report(why_undone(returned, context, messages))
            return returned

    return call_in_thread


def _import(module: str, setting: str, extra: str) -> Any:
    try:
        return importlib.import_module(f"sparrowmq.client.sight.{module}")
    except ImportError as error:
        raise ConfigError(
            f"{setting} is given, but {error.name} is not installed; {install_command(extra)}"
        ) from error

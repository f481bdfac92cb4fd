"""Attach the observers that a client's settings name; only their libraries are imported.

Whatever an observer raises is reported, and changes no call of a listener and no poll: a processor
of spans is the user's code too.
Tests: client/test_spans.py, client/test_metrics.py.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, TypeAlias

from sparrowmq.client.arguments import is_coroutine_function
from sparrowmq.client.config import SightConfig
from sparrowmq.client.operations.deliver import why_undone
from sparrowmq.client.polling import Polling
from sparrowmq.client.publisher import ObserverFailed, Publisher, SendObserver
from sparrowmq.client.subscriber import AsyncListener, Subscriber
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
        subscriber.listener = _watched(subscriber, spans.watch)
    if sight.metrics_registry is not None:
        make = _import("prometheus", "metrics_registry", "prometheus").ConsumeMetrics
        metrics = make(sight.metrics_registry, subscriber)
        subscriber.listener = _watched(subscriber, metrics.watch)


def observe_polls(state: Polling, sight: SightConfig) -> None:
    """Attach the observers of polls to a new poll consumer. Raises: ConfigError."""
    subscriber = state.subscriber
    if sight.tracer_provider is not None:
        make = _import("spans", "tracer_provider", "opentelemetry").ConsumeSpans
        received = make(sight.tracer_provider, subscriber.config).received
        state.received = partial(_attempt, subscriber, "a poll", received)
    if sight.metrics_registry is not None:
        make = _import("prometheus", "metrics_registry", "prometheus").ConsumeMetrics
        make(sight.metrics_registry, subscriber)


def _watched(subscriber: Subscriber, watch: Watch) -> AsyncListener:
    called: Any = subscriber.listener
    if is_coroutine_function(called):

        async def call(messages: list[MessageExt], context: Any) -> Any:
            with _unfailing(subscriber, watch, messages) as report:
                returned = await called(messages, context)
                report(why_undone(returned, context, messages))
                return returned

        return call

    def call_in_thread(messages: list[MessageExt], context: Any) -> Any:
        with _unfailing(subscriber, watch, messages) as report:
            returned = called(messages, context)
            report(why_undone(returned, context, messages))
            return returned

    return call_in_thread


@contextmanager
def _unfailing(
    subscriber: Subscriber, watch: Watch, messages: Sequence[MessageExt]
) -> Generator[Callable[[object], None]]:
    """Watch a call of the listener; failures of the observer are reported."""
    attempt = partial(_attempt, subscriber, "a call of the listener")
    watched = attempt(watch, messages)
    report = None if watched is None else attempt(watched.__enter__)
    if watched is None or report is None:
        yield _ignore
        return
    try:
        yield partial(attempt, report)
    except BaseException as error:
        attempt(watched.__exit__, type(error), error, error.__traceback__)
        raise
    attempt(watched.__exit__, None, None, None)


def _attempt(subscriber: Subscriber, what: str, function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except Exception as error:
        subscriber.report(ObserverFailed(what, error))
        return None


def _ignore(returned: object) -> None:
    """Report nothing to an observer that has failed."""


def _import(module: str, setting: str, extra: str) -> Any:
    try:
        return importlib.import_module(f"sparrowmq.client.sight.{module}")
    except ImportError as error:
        raise ConfigError(
            f"{setting} is given, but {error.name} is not installed; {install_command(extra)}"
        ) from error

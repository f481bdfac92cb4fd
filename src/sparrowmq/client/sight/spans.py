"""OpenTelemetry spans of producers and consumers, by the semantic conventions of messaging.

A producer's span is the creation context of its messages. Each message carries the span's context
in its properties (`traceparent` with the W3C propagator), as in Java's instrumentation of RocketMQ.
A consumer's span links to the context of each of its messages, since a call with several messages
belongs to several traces. If the listener gets one message, its context is also the span's parent.

Only clients with a tracer provider import this module.
Source: OpenTelemetry semantic conventions 1.28, messaging spans and RocketMQ.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version

from msgspec.structs import replace
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, StatusCode, Tracer, TracerProvider
from opentelemetry.util.types import AttributeValue

from sparrowmq.client.config import ConsumerConfig, ProducerConfig
from sparrowmq.client.publisher import Ended
from sparrowmq.errors import ConfigError
from sparrowmq.model import (
    ConsumeOrderlyStatus,
    ConsumeStatus,
    Message,
    MessageExt,
    SendResult,
)

SCHEMA_URL = "https://opentelemetry.io/schemas/1.28.0"
_FAILED = (
    ConsumeStatus.RECONSUME_LATER,
    ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT,
    ConsumeOrderlyStatus.ROLLBACK,
)


class SendSpans:
    """Makes a producer's spans.

    Args:
        address_of: returns the `host:port` of a broker's master by the broker's name, if it is
            known.

    Raises: ConfigError for an object that is not a tracer provider.
    """

    def __init__(
        self,
        provider: TracerProvider,
        config: ProducerConfig,
        address_of: Callable[[str], str | None],
    ) -> None:
        self._tracer = _tracer_of(provider)
        self._config = config
        self._address_of = address_of

    def begin(
        self, messages: Sequence[Message], *, is_half: bool
    ) -> tuple[Sequence[Message], Ended]:
        """Begin the span of a send; return the messages with the span's context."""
        topic, config = messages[0].topic, self._config
        attributes = _attributes_of("send", "send", topic, config)
        if len(messages) == 1:
            attributes |= _attributes_of_message(messages[0], is_half=is_half)
        else:
            attributes["messaging.batch.message_count"] = len(messages)
        span = self._tracer.start_span(
            f"send {topic}", kind=SpanKind.PRODUCER, attributes=attributes
        )
        carrier: dict[str, str] = {}
        propagate.inject(carrier, trace.set_span_in_context(span))
        marked = [
            replace(message, properties={**message.properties, **carrier}) for message in messages
        ]
        return marked, partial(self._end, span)

    def _end(self, span: Span, result: SendResult | None, error: BaseException | None) -> None:
        if error is not None:
            _fail(span, error)
        elif result is not None:
            # A batch has a comma list of ids.
            if "," not in result.msg_id:
                span.set_attribute("messaging.message.id", result.msg_id)
            span.set_attribute("messaging.destination.partition.id", str(result.queue.queue_id))
            if (address := self._address_of(result.queue.broker_name)) is not None:
                span.set_attributes(_attributes_of_server(address))
        span.end()


class ConsumeSpans:
    """Makes a consumer's spans. Raises: ConfigError without a tracer provider."""

    def __init__(self, provider: TracerProvider, config: ConsumerConfig) -> None:
        self._tracer = _tracer_of(provider)
        self._attributes = {
            "messaging.consumer.group.name": config.namespace.unwrap(config.group),
            "messaging.rocketmq.consumption_model": config.message_model.value.lower(),
        }
        self._config = config

    @contextmanager
    def watch(self, messages: Sequence[MessageExt]) -> Generator[Callable[[object], None]]:
        """Make the span of a listener call; the span is the current one inside the context."""
        first = messages[0]
        contexts = [propagate.extract(message.properties) for message in messages]
        # None would mean the current span: in a coroutine, the one of the start of the consumer.
        parent = contexts[0] if len(messages) == 1 else Context()
        attributes = self._attributes_of("process", "process", messages)
        if len(messages) == 1:
            attributes["messaging.message.id"] = first.msg_id
            attributes["messaging.message.body.size"] = len(first.body)
            attributes |= _attributes_of_properties(first.tags, first.keys)
        with self._tracer.start_as_current_span(
            f"process {first.topic}",
            parent,
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=_links_to(contexts),
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield partial(_report, span)
            except BaseException as error:
                _fail(span, error)
                raise

    def received(self, messages: Sequence[MessageExt], begun_timestamp_ms: int) -> None:
        """Make the span of a poll that has returned messages, at least one."""
        topics = {message.topic for message in messages}
        name = f"receive {messages[0].topic}" if len(topics) == 1 else "receive"
        contexts = [propagate.extract(message.properties) for message in messages]
        self._tracer.start_span(
            name,
            kind=SpanKind.CLIENT,
            attributes=self._attributes_of("poll", "receive", messages),
            links=_links_to(contexts),
            start_time=begun_timestamp_ms * 1_000_000,
        ).end()

    def _attributes_of(
        self, name: str, kind: str, messages: Sequence[MessageExt]
    ) -> dict[str, AttributeValue]:
        first = messages[0]
        attributes = _attributes_of(name, kind, first.topic, self._config) | self._attributes
        attributes |= _attributes_of_server(first.store_host)
        if len({message.queue for message in messages}) == 1:
            attributes["messaging.destination.partition.id"] = str(first.queue_id)
        if len(messages) > 1 or kind == "receive":
            attributes["messaging.batch.message_count"] = len(messages)
        return attributes


def _tracer_of(provider: TracerProvider) -> Tracer:
    if not isinstance(provider, TracerProvider):
        raise ConfigError(
            f"tracer_provider is {provider!r}; it must be an OpenTelemetry TracerProvider, such as "
            f"opentelemetry.trace.get_tracer_provider()"
        )
    return provider.get_tracer("sparrowmq", version("sparrowmq"), schema_url=SCHEMA_URL)


def _attributes_of(
    name: str, kind: str, topic: str, config: ProducerConfig | ConsumerConfig
) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {
        "messaging.system": "rocketmq",
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        "messaging.destination.name": topic,
        "messaging.client.id": config.client_id,
    }
    if config.namespace.name:
        attributes["messaging.rocketmq.namespace"] = config.namespace.name
    return attributes


def _attributes_of_message(message: Message, *, is_half: bool) -> dict[str, AttributeValue]:
    attributes = _attributes_of_properties(message.tags, message.keys)
    attributes["messaging.message.body.size"] = len(message.body)
    kind = "transaction" if is_half else "normal"
    if message.delay_level:
        kind = "delay"
        attributes["messaging.rocketmq.message.delay_time_level"] = message.delay_level
    elif message.sharding_key:
        kind = "fifo"
        attributes["messaging.rocketmq.message.group"] = message.sharding_key
    attributes["messaging.rocketmq.message.type"] = kind
    return attributes


def _attributes_of_properties(tags: str | None, keys: tuple[str, ...]) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {}
    if tags:
        attributes["messaging.rocketmq.message.tag"] = tags
    if keys:
        attributes["messaging.rocketmq.message.keys"] = keys
    return attributes


def _attributes_of_server(address: str) -> Mapping[str, AttributeValue]:
    host, _, port = address.rpartition(":")
    return {"server.address": host, "server.port": int(port)} if port.isdigit() else {}


def _links_to(contexts: Sequence[Context]) -> list[Link]:
    found = [trace.get_current_span(context).get_span_context() for context in contexts]
    return [Link(context) for context in found if context.is_valid]


def _report(span: Span, returned: object) -> None:
    if returned in _FAILED:
        name = getattr(returned, "name", str(returned))
        span.set_attribute("error.type", name)
        span.set_status(StatusCode.ERROR, f"the listener returned {name}")


def _fail(span: Span, error: BaseException) -> None:
    kind = type(error)
    span.record_exception(error)
    span.set_attribute("error.type", f"{kind.__module__}.{kind.__qualname__}")
    span.set_status(StatusCode.ERROR, str(error))

"""OpenTelemetry spans of the clients, on our broker: who sent, who consumed, in which trace."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from prometheus_client import CollectorRegistry

from sparrowmq import (
    AsyncProducer,
    AsyncPushConsumer,
    ConsumeStatus,
    Message,
    PollConsumer,
    Producer,
    PushConsumer,
    TransactionProducer,
    TransactionState,
)
from sparrowmq.errors import ConfigError, UsageError
from sparrowmq.testing import EmbeddedCluster
from waiting import wait_until


class Spans:
    """The spans of one test, and what makes them."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def of(self, operation: str) -> list[ReadableSpan]:
        finished = self.exporter.get_finished_spans()
        return [each for each in finished if each.name.startswith(f"{operation} ")]


@pytest.fixture
def spans() -> Iterator[Spans]:
    made = Spans()
    yield made
    made.provider.shutdown()


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    return {
        name.removeprefix("messaging."): value for name, value in (span.attributes or {}).items()
    }


def context_of(span: ReadableSpan) -> tuple[int, int]:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id


def links_of(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def test_one_trace_goes_from_the_sender_through_the_message_into_the_listener(
    cluster: EmbeddedCluster, topic: str, group: str, spans: Spans
) -> None:
    settings: dict[str, Any] = {
        "name_server": cluster.name_server,
        "tracer_provider": spans.provider,
    }
    inside: list[Any] = []
    baggages: list[object] = []

    def take(messages: Any, _context: Any) -> None:
        inside.append(trace.get_current_span().get_span_context())
        baggages.append(baggage.get_baggage("user"))

    tracer = spans.provider.get_tracer("test")
    with Producer("GID_p", **settings) as producer, tracer.start_as_current_span("order") as order:
        message = Message(topic, b"LH1234", tags="paid", keys=("k1", "k2"), sharding_key="LH")
        token = context.attach(baggage.set_baggage("user", "Ana"))
        result = producer.send(message)
        context.detach(token)
        client_id = producer.client_id
    with PushConsumer(group, topic, listener=take, start="first", **settings) as consumer:
        wait_until("consumed", lambda: bool(spans.of("process")))

    (sent,), (processed,) = spans.of("send"), spans.of("process")
    assert (sent.kind, processed.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert sent.parent is not None
    assert order.get_span_context().span_id == sent.parent.span_id
    assert processed.parent is not None
    assert context_of(sent) == (processed.parent.trace_id, processed.parent.span_id)
    assert [context_of(sent)] == links_of(processed)
    assert [context_of(processed)] == [(each.trace_id, each.span_id) for each in inside]
    assert baggages == ["Ana"]
    host, port = cluster.broker.rsplit(":", 1)
    shared = {
        "system": "rocketmq",
        "destination.name": topic,
        "destination.partition.id": str(result.queue.queue_id),
        "message.id": result.msg_id,
        "message.body.size": 6,
        "rocketmq.message.tag": "paid",
        "rocketmq.message.keys": ("k1", "k2"),
        "server.address": host,
        "server.port": int(port),
    }
    assert attributes_of(sent) == {
        **shared,
        "operation.name": "send",
        "operation.type": "send",
        "client.id": client_id,
        "rocketmq.message.group": "LH",
        "rocketmq.message.type": "fifo",
    }
    assert attributes_of(processed) == {
        **shared,
        "operation.name": "process",
        "operation.type": "process",
        "client.id": consumer.client_id,
        "consumer.group.name": group,
        "rocketmq.consumption_model": "clustering",
    }


def test_batch_is_one_span_and_a_call_with_several_messages_links_to_all(
    cluster: EmbeddedCluster, topic: str, group: str, spans: Spans
) -> None:
    settings: dict[str, Any] = {
        "name_server": cluster.name_server,
        "tracer_provider": spans.provider,
    }
    with Producer("GID_p", **settings) as producer:
        queue = producer.fetch_publish_queues(topic)[0]
        producer.send_batch([Message(topic, b"a"), Message(topic, b"b")], queue=queue)
        producer.send(Message(topic, b"c"), queue=queue)
    batch, single = spans.of("send")
    assert attributes_of(batch)["batch.message_count"] == 2
    with PushConsumer(
        group,
        topic,
        listener=lambda messages, context: None,
        start="first",
        consume_message_batch_max_size=8,
        **settings,
    ):
        wait_until("consumed", lambda: bool(spans.of("process")))

    (processed,) = spans.of("process")
    assert processed.parent is None
    assert [context_of(batch), context_of(batch), context_of(single)] == links_of(processed)
    assert attributes_of(processed)["batch.message_count"] == 3


def test_send_nowait_has_a_span_of_its_own_for_each_message(
    cluster: EmbeddedCluster, topic: str, spans: Spans
) -> None:
    tracer = spans.provider.get_tracer("test")
    with Producer(
        "GID_p", name_server=cluster.name_server, tracer_provider=spans.provider
    ) as producer:
        with tracer.start_as_current_span("order") as order:
            futures = [producer.send_nowait(Message(topic, b"%d" % n)) for n in range(5)]
        producer.flush()
        ids = {future.result().msg_id for future in futures}

    sent = spans.of("send")
    assert ids == {attributes_of(span)["message.id"] for span in sent}
    parents = {span.parent.span_id for span in sent if span.parent}
    assert {order.get_span_context().span_id} == parents


def test_failed_send_and_failed_delivery_are_errors(
    cluster: EmbeddedCluster, topic: str, group: str, spans: Spans
) -> None:
    settings: dict[str, Any] = {
        "name_server": cluster.name_server,
        "tracer_provider": spans.provider,
    }
    outcomes = iter((RuntimeError("no seat"), ConsumeStatus.RECONSUME_LATER))

    def take(messages: Any, context: Any) -> ConsumeStatus:
        context.delay_level = -1
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    with Producer("GID_p", **settings) as producer:
        with pytest.raises(UsageError):
            producer.send(Message(topic, b"x", delay_level=19))
        producer.send_batch([Message(topic, b"a"), Message(topic, b"b")])
    (failed, _) = spans.of("send")
    assert failed.status.status_code is StatusCode.ERROR
    assert (failed.attributes or {})["error.type"] == "sparrowmq.errors.UsageError"
    assert attributes_of(failed)["rocketmq.message.type"] == "delay"
    assert [event.name for event in failed.events] == ["exception"]
    with PushConsumer(group, topic, listener=take, start="first", **settings):
        wait_until("delivered", lambda: len(spans.of("process")) == 2)

    found = sorted(str(attributes_of(span)["error.type"]) for span in spans.of("process"))
    assert found == ["RECONSUME_LATER", "builtins.RuntimeError"]
    assert {span.status.status_code for span in spans.of("process")} == {StatusCode.ERROR}


def test_a_call_that_decides_against_a_message_is_an_error(
    cluster: EmbeddedCluster, topic: str, group: str, spans: Spans
) -> None:
    settings: dict[str, Any] = {"name_server": cluster.name_server}

    def take(messages: Any, context: Any) -> Any:
        match messages[0].body:
            case b"dead":
                context.dead_letter(reason="a test")
            case b"acked":
                context.ack()
                return ConsumeStatus.RECONSUME_LATER
            case b"wrong":
                context.delay_level = -1
                return "done"
            case _:
                pass
        return None

    registry = CollectorRegistry()
    with Producer("GID_p", **settings) as producer:
        for body in (b"dead", b"acked", b"wrong", b"done"):
            producer.send(Message(topic, body, keys=(body.decode(),)))
    settings |= {"tracer_provider": spans.provider, "metrics_registry": registry}
    with PushConsumer(group, topic, listener=take, start="first", **settings) as consumer:
        wait_until("delivered", lambda: len(spans.of("process")) == 4)
        counters = consumer.counters
        wait_until("settled", lambda: (counters.succeeded, counters.failed) == (2, 2))

    errors = {
        attributes_of(span)["rocketmq.message.keys"][0]: attributes_of(span).get("error.type")
        for span in spans.of("process")
    }
    assert errors == {
        "dead": "RECONSUME_LATER",
        "acked": None,
        "wrong": "sparrowmq.errors.UsageError",
        "done": None,
    }
    for outcome in ("ok", "failed"):
        labels = {"group": group, "topic": topic, "outcome": outcome}
        name = "sparrowmq_client_process_seconds_count"
        assert registry.get_sample_value(name, labels) == 2


@pytest.mark.parametrize("size", [1, 8])
async def test_calls_do_not_join_the_trace_in_which_the_consumer_was_started(
    cluster: EmbeddedCluster, topic: str, group: str, spans: Spans, size: int
) -> None:
    done = asyncio.Event()

    async def take(messages: Any, _context: Any) -> None:
        done.set()

    settings: dict[str, Any] = {"name_server": cluster.name_server}
    async with AsyncProducer("GID_p", **settings) as producer:
        await producer.send_batch([Message(topic, b"a"), Message(topic, b"b")])
    settings |= {"tracer_provider": spans.provider, "consume_message_batch_max_size": size}
    with spans.provider.get_tracer("test").start_as_current_span("start of the program"):
        consumer = AsyncPushConsumer(group, topic, listener=take, start="first", **settings)
        await consumer.start()
    async with asyncio.timeout(30):
        await done.wait()
    await consumer.close()

    processed = spans.of("process")
    assert processed
    assert not any(span.parent or span.links for span in processed)


async def test_coroutine_listener_runs_in_its_span(
    cluster: EmbeddedCluster, topic: str, group: str, spans: Spans
) -> None:
    settings: dict[str, Any] = {
        "name_server": cluster.name_server,
        "tracer_provider": spans.provider,
    }
    done = asyncio.Event()

    async def take(messages: Any, _context: Any) -> None:
        with spans.provider.get_tracer("test").start_as_current_span("inner of listener"):
            await asyncio.sleep(0)
        done.set()

    async with AsyncProducer("GID_p", **settings) as producer:
        await producer.send_oneway(Message(topic, b"x"))
        (sent,) = spans.of("send")
        async with AsyncPushConsumer(group, topic, listener=take, start="first", **settings):
            async with asyncio.timeout(30):
                await done.wait()

    (processed,), (inner,) = spans.of("process"), spans.of("inner")
    assert inner.parent is not None
    assert context_of(processed) == (inner.parent.trace_id, inner.parent.span_id)
    assert context_of(sent)[0] == context_of(processed)[0]


async def test_calls_with_several_messages_are_no_part_of_the_trace_of_the_start(
    cluster: EmbeddedCluster, topic: str, group: str, spans: Spans
) -> None:
    done = asyncio.Event()

    async def take(messages: Any, _context: Any) -> None:
        done.set()

    async with AsyncProducer("GID_p", name_server=cluster.name_server) as producer:
        await producer.send_batch([Message(topic, b"a"), Message(topic, b"b")])
    with spans.provider.get_tracer("test").start_as_current_span("the start of a service"):
        async with AsyncPushConsumer(
            group,
            topic,
            name_server=cluster.name_server,
            listener=take,
            start="first",
            consume_message_batch_max_size=8,
            tracer_provider=spans.provider,
        ):
            async with asyncio.timeout(30):
                await done.wait()

    (processed,) = spans.of("process")
    assert attributes_of(processed)["batch.message_count"] == 2
    assert processed.parent is None
    assert links_of(processed) == []


def test_poll_is_a_span_with_links_once_it_returns_messages(
    cluster: EmbeddedCluster, topic: str, group: str, spans: Spans
) -> None:
    settings: dict[str, Any] = {
        "name_server": cluster.name_server,
        "tracer_provider": spans.provider,
    }
    with Producer("GID_p", **settings) as producer:
        producer.send(Message(topic, b"a"))
    with PollConsumer(group, topic, start="first", **settings) as consumer:
        wait_until("polled", lambda: bool(consumer.poll(timeout_ms=1_000)))
        assert consumer.poll(timeout_ms=1) == []

    (received,) = spans.of("receive")
    assert received.kind is SpanKind.CLIENT
    assert [context_of(spans.of("send")[0])] == links_of(received)
    assert (received.start_time or 0) < (received.end_time or 0)


def test_half_message_is_of_type_transaction(
    cluster: EmbeddedCluster, topic: str, spans: Spans
) -> None:
    with TransactionProducer(
        "GID_tx",
        name_server=cluster.name_server,
        check=lambda message: TransactionState.UNKNOWN,
        tracer_provider=spans.provider,
    ) as producer:
        half = producer.send_half(Message(topic, b"x"))
        producer.rollback(half)

    (sent,) = spans.of("send")
    assert attributes_of(sent)["rocketmq.message.type"] == "transaction"
    assert attributes_of(sent)["message.id"] == half.msg_id


class Broken(SpanProcessor):
    """Raises at the begin or the end of each span."""

    def __init__(self, where: str) -> None:
        self._where = where

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        if self._where == "begin":
            raise LookupError("no room for a span")

    def on_end(self, span: ReadableSpan) -> None:
        if self._where == "end":
            raise LookupError("the exporter has gone")


@pytest.mark.parametrize("where", ["begin", "end"])
async def test_processor_that_raises_is_logged_and_changes_nothing(
    cluster: EmbeddedCluster,
    topic: str,
    group: str,
    where: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    provider = TracerProvider()
    provider.add_span_processor(Broken(where))
    settings: dict[str, Any] = {"name_server": cluster.name_server, "tracer_provider": provider}
    taken: list[tuple[bytes, int]] = []

    def take(messages: Any, _context: Any) -> None:
        taken.extend((message.body, message.reconsume_times) for message in messages)

    async def take_too(messages: Any, _context: Any) -> None:
        take(messages, None)

    with Producer("GID_p", **settings) as producer:
        producer.send(Message(topic, b"1"))
        producer.send_nowait(Message(topic, b"2")).result(30)
        producer.send_batch([Message(topic, b"3")])
    with PushConsumer(group, topic, listener=take, start="first", **settings) as consumer:
        wait_until("consumed", lambda: consumer.counters.succeeded == 3)
    async with AsyncPushConsumer(
        f"{group}_2", topic, listener=take_too, start="first", **settings
    ) as asyncio_consumer:
        async with asyncio.timeout(30):
            while asyncio_consumer.counters.succeeded < 3:
                await asyncio.sleep(0.01)
    with PollConsumer(f"{group}_3", topic, start="first", **settings) as poller:
        polled = [message.body for message in poller.getmany(1, 30_000)]

    assert sorted(taken) == sorted(2 * [(b"1", 0), (b"2", 0), (b"3", 0)])
    assert len(polled) == 1
    events = {vars(record).get("event") for record in caplog.records if record.levelname != "INFO"}
    assert events == {"observer_failed"}
    lines = [line for line in caplog.messages if "an observer failed" in line]
    assert {line.partition(" failed at ")[2].partition(",")[0] for line in lines} == {
        "a send",
        "a call of the listener",
        "a poll",
    }


def test_what_is_no_provider_is_refused() -> None:
    wrong: Any = True

    with pytest.raises(ConfigError, match="tracer_provider is True; it must be an OpenTelemetry"):
        Producer("GID_p", name_server="127.0.0.1:1", tracer_provider=wrong)


def test_without_a_provider_the_library_is_not_imported() -> None:
    code = (
        "import sys; from sparrowmq import Producer, PushConsumer\n"
        "Producer('GID_p', name_server='127.0.0.1:1').close()\n"
        "PushConsumer('GID_c', name_server='127.0.0.1:1', listener=lambda m, c: None).close()\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )

    assert printed_by(code) == "[]"


def test_missing_library_is_named() -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from sparrowmq import Producer\n"
        "from sparrowmq.errors import ConfigError\n"
        "try: Producer('GID_p', name_server='127.0.0.1:1', tracer_provider=1)\n"
        "except ConfigError as error: print(error)"
    )

    assert printed_by(code) == (
        "tracer_provider is given, but opentelemetry is not installed; "
        "pip install '.[opentelemetry]' in a checkout"
    )


def printed_by(code: str) -> str:
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    return found.stdout.strip()

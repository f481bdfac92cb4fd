"""The context of OpenTelemetry's spans goes through Apache's broker with the message."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sparrowmq import Admin, Message, Producer, PushConsumer
from waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

TOPIC = "spans-interop"


def test_consumer_is_in_the_trace_of_the_producer(apache_cluster: Any) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    settings: dict[str, Any] = {
        "name_server": apache_cluster.name_server,
        "tracer_provider": provider,
    }
    with Admin(name_server=apache_cluster.name_server) as admin:
        admin.create_topic(TOPIC, 2)
    with Producer("GID_spans_p", **settings) as producer:
        producer.send(Message(TOPIC, b"alone", properties={"flight": "LH1234"}))
        producer.send_batch([Message(TOPIC, b"one"), Message(TOPIC, b"two")])
    with PushConsumer(
        "GID_spans_c", TOPIC, listener=lambda messages, context: None, start="first", **settings
    ):
        wait_until("consumed", lambda: len(exporter.get_finished_spans()) == 5, timeout_s=60)

    sent, processed = [], []
    for span in exporter.get_finished_spans():
        context = span.get_span_context()
        assert context is not None
        if span.name.startswith("send"):
            sent.append(context.span_id)
        else:
            assert span.parent is not None
            processed.append(span.parent.span_id)
    assert sorted([sent[0], sent[1], sent[1]]) == sorted(processed)
    provider.shutdown()

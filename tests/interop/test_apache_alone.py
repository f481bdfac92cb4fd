"""Apache's client on Apache's broker: the rig itself works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]


def test_a_java_consumer_gets_every_message_of_a_java_producer(
    apache_cluster: Any, java_producer: Callable[..., Any], java_push_consumer: Callable[..., Any]
) -> None:
    topic = apache_cluster.create_topic("alone", queues=4)
    consumer = java_push_consumer(apache_cluster, topic=topic, group="GID_alone")

    sent = java_producer(apache_cluster, topic=topic, count=20)
    consumer.wait_for("20 messages", lambda: len(consumer.named("message")) >= 20)

    assert len(sent) == 20
    assert sorted(line["body"] for line in sent) == sorted(
        line["body"] for line in consumer.named("message")
    )
    assert consumer.stop() == 0

"""Apache's producer and push consumer, unchanged, on our name server and broker."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

Events = list[dict[str, Any]]


def bodies(events: Events) -> list[str]:
    return sorted(event["body"] for event in events)


def places(events: Events) -> dict[str, tuple[str, int, int]]:
    return {event["body"]: (event["broker"], event["queueId"], event["offset"]) for event in events}


def test_every_message_arrives_once_with_its_properties(
    java: Any,
    our_cluster: Any,
    java_producer: Callable[..., Events],
    java_push_consumer: Callable[..., Any],
) -> None:
    topic, addresses = "java-all", (our_cluster.name_server, our_cluster.broker)
    java.run_peer("create-topic", nameServer=addresses[0], broker=addresses[1], topic=topic)
    consumer = java_push_consumer(our_cluster, topic=topic, group="GID_java_all")

    sent = java_producer(our_cluster, topic=topic, count=200, tags="A,B,C")
    consumer.wait_for("200 messages", lambda: len(consumer.named("message")) >= 200)
    got = consumer.named("message")

    assert {event["status"] for event in sent} == {"SEND_OK"}
    assert bodies(sent) == bodies(got)
    assert places(sent) == places(got)
    assert {event["body"]: event["msgId"] for event in sent} == {
        event["body"]: event["msgId"] for event in got
    }
    assert {(f"m-{n}", "ABC"[n % 3], f"k{n}", str(n)) for n in range(200)} == {
        (event["body"], event["tags"], event["keys"], event["number"]) for event in got
    }
    assert consumer.stop() == 0


def test_a_second_consumer_of_the_group_begins_where_the_first_one_ended(
    our_cluster: Any, java_producer: Callable[..., Events], java_push_consumer: Callable[..., Any]
) -> None:
    topic = our_cluster.create_topic("java-resume", queues=4)
    first = java_push_consumer(our_cluster, topic=topic, group="GID_java_resume")
    java_producer(our_cluster, topic=topic, count=20, prefix="early-")
    first.wait_for("20 messages", lambda: len(first.named("message")) >= 20)
    assert first.stop() == 0

    java_producer(our_cluster, topic=topic, count=20, prefix="late-")
    second = java_push_consumer(our_cluster, topic=topic, group="GID_java_resume")
    second.wait_for("20 messages", lambda: len(second.named("message")) >= 20)

    assert sorted(f"late-{n}" for n in range(20)) == bodies(second.named("message"))
    assert second.stop() == 0


def test_a_failing_message_comes_again_from_the_retry_topic(
    java: Any,
    our_cluster: Any,
    java_producer: Callable[..., Events],
    java_push_consumer: Callable[..., Any],
) -> None:
    topic = our_cluster.create_topic("java-retry", queues=4)
    if java.version.startswith("5"):
        # The group's first heartbeat makes this topic; 5.x looks for it anew after 40 s only.
        our_cluster.create_retry_topic("GID_java_retry")
    consumer = java_push_consumer(
        our_cluster, topic=topic, group="GID_java_retry", failPrefix="m-3", failTimes=2
    )

    java_producer(our_cluster, topic=topic, count=10)
    consumer.wait_for("12 deliveries", lambda: len(consumer.named("message")) >= 12)

    deliveries = [
        (event["reconsumeTimes"], event["ok"], event["topic"])
        for event in consumer.named("message")
        if event["body"] == "m-3"
    ]
    assert deliveries == [(0, False, topic), (1, False, topic), (2, True, topic)]
    assert len(consumer.named("message")) == 12
    assert consumer.stop() == 0


def test_a_consumer_gets_only_the_tags_it_subscribes(
    our_cluster: Any, java_producer: Callable[..., Events], java_push_consumer: Callable[..., Any]
) -> None:
    topic = our_cluster.create_topic("java-tags", queues=4)
    consumer = java_push_consumer(
        our_cluster, topic=topic, group="GID_java_tags", expression="A || C"
    )

    java_producer(our_cluster, topic=topic, count=30, tags="A,B,C")
    consumer.wait_for("20 messages", lambda: len(consumer.named("message")) >= 20)

    assert Counter(event["tags"] for event in consumer.named("message")) == {"A": 10, "C": 10}
    assert consumer.stop() == 0


def test_an_orderly_consumer_sees_each_queue_in_order_and_a_failure_in_place(
    our_cluster: Any, java_producer: Callable[..., Events], java_push_consumer: Callable[..., Any]
) -> None:
    topic = our_cluster.create_topic("java-orderly", queues=2)
    consumer = java_push_consumer(
        our_cluster, topic=topic, group="GID_java_orderly", orderly=True, failPrefix="m-4"
    )

    java_producer(our_cluster, topic=topic, count=20)
    consumer.wait_for("21 deliveries", lambda: len(consumer.named("message")) >= 21)

    offsets = defaultdict(list)
    for event in consumer.named("message"):
        offsets[event["queueId"]].append((event["offset"], event["ok"]))
    assert [len(offsets), len({len(offsets[0]), len(offsets[1])})] == [2, 2]
    for of_queue in offsets.values():
        assert list(range(10)) == [offset for offset, ok in of_queue if ok]
        assert sorted(of_queue) == of_queue
    assert consumer.stop() == 0


def test_batches_and_compressed_bodies_pass(
    our_cluster: Any, java_producer: Callable[..., Events], java_push_consumer: Callable[..., Any]
) -> None:
    topic = our_cluster.create_topic("java-batch", queues=2)
    consumer = java_push_consumer(our_cluster, topic=topic, group="GID_java_batch")

    java_producer(our_cluster, topic=topic, count=10, prefix="batch-", batch=True)
    java_producer(our_cluster, topic=topic, count=3, prefix="large-", padding=100_000)
    consumer.wait_for("13 messages", lambda: len(consumer.named("message")) >= 13)

    got = consumer.named("message")
    assert {f"batch-{n}" for n in range(10)} | {f"large-{n}" + "x" * 100_000 for n in range(3)} == {
        event["body"] for event in got
    }
    assert len({event["queueId"] for event in got if event["body"].startswith("batch")}) == 1
    assert consumer.stop() == 0

"""What a consumer's life leaves in the log, and what clients say of themselves."""

from __future__ import annotations

import gc
import logging
import time
from pathlib import Path
from typing import Any

import pytest

from sparrowmq import (
    Admin,
    AsyncProducer,
    ConfigError,
    Message,
    MessageModel,
    PollConsumer,
    Producer,
    PushConsumer,
    TransactionProducer,
    TransactionState,
)
from sparrowmq.testing import EmbeddedCluster, read_messages
from waiting import wait_until


def consume(messages: Any, context: Any) -> None: ...


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [str(vars(record).get("event")) for record in caplog.records]


def send(cluster: EmbeddedCluster, topic: str, count: int) -> None:
    with Producer("GID_p", name_server=cluster.name_server) as producer:
        for number in range(count):
            producer.send(Message(topic, b"%d" % number))


def test_joined_assigned_first_message_and_left_are_each_a_line(
    cluster: EmbeddedCluster, topic: str, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sparrowmq.client")
    send(cluster, topic, 3)
    with PushConsumer(
        group, topic, name_server=cluster.name_server, listener=consume, start="first"
    ) as consumer:
        wait_until("consumed", lambda: consumer.counters.succeeded == 3)

    found = events(caplog)
    assert {found.count(event) for event in ("joined_group", "first_message", "left_group")} == {1}
    assert (found[0], found[-1]) == ("joined_group", "left_group")
    assert found.index("assignment_changed") < found.index("first_message")
    left = next(r for r in caplog.records if vars(r)["event"] == "left_group")
    assert (group, consumer.client_id, 3) == tuple(
        vars(left)[name] for name in ("group", "client_id", "succeeded")
    )


def test_beginning_at_the_end_of_a_full_topic_is_one_line(
    cluster: EmbeddedCluster,
    topic: str,
    group: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    send(cluster, topic, 16)
    # A broker that has a queue's first message in memory says 0 where a group has committed
    # nothing, and the group begins there; offsets of BROADCASTING are the member's own.
    settings: dict[str, Any] = {
        "name_server": cluster.name_server,
        "listener": consume,
        "message_model": MessageModel.BROADCASTING,
        "local_offset_dir": tmp_path,
        "instance_name": "stays",
    }
    for _ in range(2):
        with PushConsumer(group, topic, **settings) as consumer:
            assert len(consumer.wait_assigned()) == 8

    (record,) = caplog.records
    assert vars(record)["event"] == "begun_at_end"
    assert "CONSUME_FROM_FIRST_OFFSET begins with those" in record.getMessage()


def test_consumer_that_is_dropped_without_close_says_so(
    cluster: EmbeddedCluster, topic: str, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = PushConsumer(group, name_server=cluster.name_server, listener=consume)
    consumer.subscribe(topic)
    consumer.start()
    consumer.wait_assigned()
    member = consumer._member

    del consumer
    gc.collect()

    (record,) = caplog.records
    assert vars(record)["event"] == "not_closed"
    assert "was dropped without close" in record.getMessage()
    member.close()


def test_consumer_whose_start_was_refused_is_not_said_to_consume(
    cluster: EmbeddedCluster, topic: str, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    at: dict[str, Any] = {"name_server": cluster.name_server, "listener": consume}
    with PushConsumer(group, topic, **at):
        other = PushConsumer(group, {topic: "TagX"}, **at)
        for _ in range(2):
            with pytest.raises(ConfigError, match="of the same group in this process"):
                other.start()
        other.close()

        del other
        gc.collect()

    assert "not_closed" not in events(caplog)


def test_reprs_tell_group_id_and_state(cluster: EmbeddedCluster, topic: str, group: str) -> None:
    at: dict[str, Any] = {"name_server": cluster.name_server}
    shown = []
    with PushConsumer(group, listener=consume, **at) as consumer:
        consumer.subscribe(topic)
        shown.append(repr(consumer))
        consumer.start()
        consumer.wait_assigned()
        shown.append(repr(consumer))
    shown.append(repr(consumer))
    start = f"<PushConsumer of {group}: {consumer.client_id}, "
    assert shown == [f"{start}not started>", f"{start}running, 8 queues>", f"{start}closed>"]

    with Producer("GID_p", **at) as producer:
        assert repr(producer) == f"<Producer of GID_p: {producer.client_id}, open>"
    assert repr(producer).endswith("closed>")
    with PollConsumer(group, **at) as polled:
        assert repr(polled) == f"<PollConsumer of {group}: {polled.client_id}, not started>"
    with TransactionProducer("GID_t", check=lambda m: TransactionState.UNKNOWN, **at) as half:
        assert repr(half) == f"<TransactionProducer of GID_t: {half.client_id}, open>"
    with Admin(**at) as admin:
        assert repr(admin) == f"<Admin of {cluster.name_server}>"


async def test_repr_of_the_asyncio_face_names_its_class(cluster: EmbeddedCluster) -> None:
    async with AsyncProducer("GID_p", name_server=cluster.name_server) as producer:
        assert repr(producer).startswith("<AsyncProducer of GID_p: ")


def wait_a_millisecond() -> None:
    begin_ns = time.time_ns()
    wait_until("a millisecond later", lambda: time.time_ns() - begin_ns > 1_000_000)


def test_seek_to_time_goes_on_at_the_message_of_that_time(
    cluster: EmbeddedCluster, group: str, numbers: Any
) -> None:
    topic = f"T{next(numbers)}"
    cluster.create_topic(topic, queues=1)
    for _ in range(3):
        send(cluster, topic, 1)
        wait_a_millisecond()
    third = read_messages(cluster.name_server, topic)[2]
    with PollConsumer(group, topic, name_server=cluster.name_server) as consumer:
        queues = consumer.wait_assigned()
        consumer.seek_to_time(third.store_timestamp_ms, *queues)
        found: list[int] = []
        while not found:
            found += [message.queue_offset for message in consumer.poll(timeout_ms=1_000)]

    assert found == [2]

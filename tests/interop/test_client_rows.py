"""What the Python client promises, row by row, on Apache's broker of both versions, and on ours.

The other rows have modules of their own: docs/reference/compatibility.md lists all.
"""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from typing import Any

import msgspec
import pydantic
import pytest

from sparrowmq import (
    Admin,
    AsyncPollConsumer,
    AsyncProducer,
    AsyncPushConsumer,
    ConsumeContext,
    JsonSerializer,
    Message,
    MessageExt,
    PollConsumer,
    Producer,
    PushConsumer,
    SendFailed,
    UnreadableMessage,
    select_at_random,
    select_by_hash,
    select_in_turn,
)
from waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


class Flight(msgspec.Struct):
    number: str
    connections: int


class Guest(pydantic.BaseModel):
    name: str


class Keeper:
    """A listener that keeps bodies."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.times_s: list[float] = []

    def __call__(self, messages: list[MessageExt], context: ConsumeContext) -> None:
        self.bodies += [message.body for message in messages]
        self.times_s += [time.monotonic()] * len(messages)


def test_selectors_choose_the_queue(java: Any, cluster: Any) -> None:
    topic = cluster.create_topic("rows-selectors", queues=4)
    with Producer("GID_rows", name_server=cluster.name_server) as producer:
        by_key, in_turn = select_by_hash(lambda m: m.keys[0]), select_in_turn()
        keyed = [producer.send(Message(topic, b"x", keys=("k7",)), queue=by_key) for _ in range(5)]
        turns = [producer.send(Message(topic, b"x"), queue=in_turn) for _ in range(8)]
        free = producer.send(Message(topic, b"x"), queue=select_at_random)
        last = producer.send(Message(topic, b"x"), queue=lambda queues, _: queues[-1])

    assert len({result.queue for result in keyed}) == 1
    assert sorted([0, 1, 2, 3] * 2) == sorted(result.queue.queue_id for result in turns)
    assert free.queue.queue_id in range(4)
    assert last.queue.queue_id == 3


async def test_bodies_of_a_type_come_as_they_were_sent(java: Any, cluster: Any) -> None:
    topic = cluster.create_topic("rows-typed", queues=1)
    flights, guests = JsonSerializer(Flight), JsonSerializer(Guest)
    async with (
        AsyncProducer("GID_rows", name_server=cluster.name_server) as producer,
        AsyncPollConsumer(
            "GID_rows_typed", name_server=cluster.name_server, start="first"
        ) as consumer,
    ):
        await producer.send(flights.message(topic, Flight("LH1234", 180)))
        await producer.send(guests.message(topic, Guest(name="Ada")))
        await producer.send(Message(topic, b"bytes as they are"))
        await consumer.subscribe(topic)
        await consumer.start()
        flight, guest, other = [await consumer.getone(60_000) for _ in range(3)]

    assert flight is not None
    assert guest is not None
    assert other is not None
    assert flights.read(flight) == Flight("LH1234", 180)
    assert guests.read(guest) == Guest(name="Ada")
    assert other.body == b"bytes as they are"
    with pytest.raises(UnreadableMessage, match=other.msg_id):
        flights.read(other)


def test_listener_decides_on_each_message_and_a_dead_letter_is_resent(
    java: Any, cluster: Any
) -> None:
    topic, group = cluster.create_topic("rows-decided", queues=1), "GID_rows_decided"
    delivered: list[bytes] = []

    def decide(messages: list[MessageExt], context: ConsumeContext) -> None:
        for message in messages:
            delivered.append(message.body)
            if delivered.count(message.body) > 1:
                context.ack(message)
            elif message.body == b"again":
                context.retry(message, delay=timedelta(seconds=1))
            elif message.body == b"dead":
                context.dead_letter(message, reason="no such flight")
        # Counts for what was not decided.

    with Producer("GID_rows", name_server=cluster.name_server) as producer:
        producer.send_batch([Message(topic, body) for body in (b"fine", b"again", b"dead")])
    with (
        Admin(name_server=cluster.name_server) as admin,
        PushConsumer(
            group,
            topic,
            name_server=cluster.name_server,
            listener=decide,
            start="first",
            consume_message_batch_max_size=3,
        ),
    ):
        wait_until("the retry", lambda: delivered.count(b"again") > 1, timeout_s=90)
        wait_until("the dead letter", lambda: admin.dead_letters(group), timeout_s=60)
        (dead,) = admin.dead_letters(group)
        assert (dead.body, dead.properties["RETRY_TOPIC"]) == (b"dead", topic)
        assert admin.resend_dead_letters(group, [dead]) == 1
        wait_until("it once more", lambda: delivered.count(b"dead") > 1, timeout_s=90)

    assert sorted(delivered) == [b"again", b"again", b"dead", b"dead", b"fine"]


async def test_members_wait_and_keep_to_their_rate(java: Any, cluster: Any) -> None:
    topic, keeper = cluster.create_topic("rows-waits", queues=4), Keeper()
    async with AsyncProducer("GID_rows", name_server=cluster.name_server) as producer:
        for _ in range(4):
            await producer.send_batch([Message(topic, b"%d" % n) for n in range(25)])
    async with AsyncPushConsumer(
        "GID_rows_waits",
        topic,
        name_server=cluster.name_server,
        listener=keeper,
        start="first",
        messages_per_s_max=40,
        pull_batch_size=5,
    ) as consumer:
        assert len(await consumer.wait_assigned(60_000)) == 4
        assert await consumer.wait_idle(60_000)
        with Admin(name_server=cluster.name_server) as admin:
            lags = admin.group_lag("GID_rows_waits", topic)

    assert len(keeper.bodies) == 100
    assert [lag.lag for lag in lags] == [0] * 4
    assert sum(lag.committed_offset or 0 for lag in lags) == 100
    # 100 messages at 40 a second, but for the first pull of each queue.
    assert keeper.times_s[-1] - keeper.times_s[0] >= 1.5


def test_live_group_goes_back_to_a_time(java: Any, cluster: Any) -> None:
    topic, keeper = cluster.create_topic("rows-back", queues=1), Keeper()
    name_server = cluster.name_server
    with (
        Admin(name_server=name_server) as admin,
        Producer("GID_rows", name_server=name_server) as producer,
        PushConsumer("GID_rows_back", name_server=name_server, listener=keeper) as consumer,
        PollConsumer("GID_rows_sought", name_server=name_server) as polled,
    ):
        for each in (consumer, polled):
            each.subscribe(topic)
            each.start()
            (queue,) = each.wait_assigned(60_000)
        old = producer.send(Message(topic, b"old"))
        # Apache's brokers list a message a moment after it is stored.
        wait_until("the first", lambda: admin.messages_at(queue, old.queue_offset))
        (first,) = admin.messages_at(queue, old.queue_offset)
        later_ms = first.store_timestamp_ms + 2
        wait_until("a later millisecond", lambda: time.time() * 1000 > later_ms)
        middle = producer.send(Message(topic, b"new"))
        assert consumer.wait_idle(60_000)
        wait_until("both", lambda: len(keeper.bodies) == 2)
        (stored,) = admin.messages_at(queue, middle.queue_offset)
        plan = admin.reset_offsets("GID_rows_back", topic, timestamp_ms=stored.store_timestamp_ms)
        wait_until("the newer again", lambda: len(keeper.bodies) >= 3, timeout_s=60)
        polled.seek_to_time(stored.store_timestamp_ms, queue)
        sought = polled.getone(60_000)

    assert keeper.bodies == [b"old", b"new", b"new"]
    assert [each.after for each in plan.queues] == [1]
    assert sought is not None
    assert sought.body == b"new"


def test_one_deadline_over_all_attempts_at_a_broker_that_stands_still(
    java: Any, apache_cluster: Any
) -> None:
    topic = apache_cluster.create_topic("rows-deadline", queues=2)
    broker = apache_cluster.broker_pid
    with Producer(
        "GID_rows",
        name_server=apache_cluster.name_server,
        send_timeout_ms=1_000,
        retry_times=5,
        avoid_slow_brokers=True,
    ) as producer:
        producer.send(Message(topic, b"before"))
        os.kill(broker, signal.SIGSTOP)
        try:
            begun_s = time.monotonic()
            with pytest.raises(SendFailed, match="may have stored it") as caught:
                producer.send(Message(topic, b"meanwhile"))
            took_s = time.monotonic() - begun_s
        finally:
            os.kill(broker, signal.SIGCONT)
        # There is no other broker, so the slow one is not avoided.
        after = producer.send(Message(topic, b"after"))

    assert caught.value.outcome_unknown
    assert 0.9 <= took_s < 2.0
    assert after.queue.broker_name == "broker-a"

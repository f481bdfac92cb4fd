"""Push consumers against a real broker: balance, hand-over, retries, closing."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, tzinfo
from queue import Queue
from typing import Any

import pytest

from members import MemberProcess
from sparrowmq import (
    Admin,
    AsyncProducer,
    AsyncPushConsumer,
    ConsumeContext,
    ConsumeStatus,
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
    Producer,
    PushConsumer,
)
from sparrowmq.client.operations import waiting as waiting_operations
from sparrowmq.errors import ConfigError, UsageError
from sparrowmq.testing.embedded import EmbeddedCluster
from waiting import wait_until

PATIENCE_S = 60
# What closes without waiting for itself takes far less.
DRAIN_MS = 20_000


class Seen:
    """What the listeners of a group were given."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.bodies: Counter[bytes] = Counter()
        self.messages: list[MessageExt] = []

    def __call__(self, messages: list[MessageExt], _: ConsumeContext) -> None:
        with self._lock:
            self.messages += messages
            self.bodies.update(message.body for message in messages)


def counts(consumers: list[PushConsumer]) -> list[int]:
    return sorted(len(consumer.assignment()) for consumer in consumers)


def owned(consumers: list[PushConsumer]) -> list[int]:
    return sorted(queue.queue_id for c in consumers for queue in c.assignment())


def send_numbers(producer: Producer, topic: str, count: int, *, begin: int = 0) -> set[bytes]:
    bodies = [str(n).encode() for n in range(begin, begin + count)]
    for at in range(0, count, 50):
        producer.send_batch([Message(topic, body) for body in bodies[at : at + 50]])
    return set(bodies)


@pytest.fixture
def waits_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entering a consumer ends only by what it waits for."""
    monkeypatch.setattr(waiting_operations, "SHARE_WAIT_MS", 3_600_000)


@pytest.mark.usefixtures("waits_without_end")
def test_block_of_a_consumer_with_topics_begins_with_its_share(
    cluster: EmbeddedCluster, producer: Producer, topic: str, group: str
) -> None:
    producer.send(Message(topic, b"before"))
    seen = Seen()
    settings: dict[str, Any] = {"name_server": cluster.name_server, "start": datetime.now(UTC)}
    with PushConsumer(group, {topic: "late"}, listener=seen, **settings) as first:
        shares = [len(first.assignment())]
        with PushConsumer(group, {topic: "late"}, listener=seen, **settings) as second:
            shares.append(len(second.assignment()))
            for tag in ("early", "late"):
                producer.send(Message(topic, tag.encode(), tags=tag))
            wait_until("the message of the tag", lambda: b"late" in seen.bodies)

    assert shares == [8, 4]
    assert set(seen.bodies) == {b"late"}


@pytest.mark.usefixtures("waits_without_end")
async def test_asyncio_consumer_of_several_topics_begins_with_its_share(
    cluster: EmbeddedCluster, topic: str, group: str
) -> None:
    cluster.create_topic(f"{topic}_more", queues=2)
    both = [topic, f"{topic}_more"]
    async with AsyncPushConsumer(
        group, both, name_server=cluster.name_server, listener=Seen()
    ) as consumer:
        shares = Counter(queue.topic for queue in consumer.assignment())

    assert shares == {topic: 8, f"{topic}_more": 2}


@pytest.mark.usefixtures("waits_without_end")
def test_block_begins_for_a_spare_member_and_without_the_topic(
    cluster: EmbeddedCluster, numbers: Iterator[int], group: str
) -> None:
    single = f"T{next(numbers)}"
    cluster.create_topic(single, queues=1)
    settings: dict[str, Any] = {"name_server": cluster.name_server, "listener": Seen()}

    with (
        PushConsumer(group, single, **settings) as first,
        PushConsumer(group, single, **settings) as second,
        PushConsumer(f"{group}_later", f"{single}_later", **settings) as early,
    ):
        wait_until("one owner", lambda: counts([first, second]) == [0, 1])
        found = early.assignment()

    assert found == []


def test_consumer_whose_start_is_refused_is_closed(
    cluster: EmbeddedCluster, topic: str, group: str
) -> None:
    settings: dict[str, Any] = {"name_server": cluster.name_server, "listener": Seen()}
    settings |= {"instance_name": "one"}
    refused = PushConsumer(group, topic, **settings)

    with PushConsumer(group, topic, **settings), pytest.raises(UsageError), refused:
        raise AssertionError("two consumers of one id ran")

    assert "closed" in repr(refused)


@pytest.mark.slow
def test_three_members_share_eight_queues_and_all_is_consumed(
    make_consumer: Callable[..., PushConsumer],
    producer: Producer,
    admin: Admin,
    topic: str,
    group: str,
) -> None:
    seen = Seen()
    consumers = [make_consumer(seen, consume_message_batch_max_size=16) for _ in range(3)]
    for consumer in consumers:
        consumer.start()
    wait_until("balance of 3/3/2", lambda: counts(consumers) == [2, 3, 3])

    sent = send_numbers(producer, topic, 2_000)
    wait_until("all messages", lambda: sent <= set(seen.bodies))

    assert list(range(8)) == owned(consumers)
    assert sorted(c.client_id for c in consumers) == sorted(admin.consumer_ids(group))
    by_order = sorted(consumers, key=lambda c: c.client_id.encode("utf-16-be"))
    assert [queue.queue_id for queue in by_order[0].assignment()] == [0, 1, 2]
    for consumer in consumers:
        consumer.close()
    assert [lag.lag for lag in admin.group_lag(group, topic)] == [0] * 8
    assert admin.consumer_ids(group) == []


@pytest.mark.slow
def test_nothing_is_lost_while_members_come_and_go(
    make_consumer: Callable[..., PushConsumer], producer: Producer, topic: str
) -> None:
    seen = Seen()
    first, second, third = (make_consumer(seen, pull_batch_size=64) for _ in range(3))
    first.start()
    sent = send_numbers(producer, topic, 500)
    second.start()
    sent |= send_numbers(producer, topic, 500, begin=500)
    wait_until("balance of 4/4", lambda: counts([first, second]) == [4, 4])
    third.start()
    sent |= send_numbers(producer, topic, 500, begin=1_000)
    first.close()
    wait_until("balance after a leave", lambda: counts([second, third]) == [4, 4])
    sent |= send_numbers(producer, topic, 500, begin=1_500)

    wait_until("all messages", lambda: sent <= set(seen.bodies))

    assert list(range(8)) == owned([second, third])


MEMBER_PROGRAM = """
import sys, threading
from sparrowmq import PushConsumer
name_server, group, topic = sys.argv[1:]
consumer = PushConsumer(
    group,
    name_server=name_server,
    listener=lambda messages, context: None,
    start="first",
    on_assign=lambda queues: print(len(queues), flush=True),
)
consumer.subscribe(topic)
consumer.start()
threading.Event().wait()
"""


@pytest.mark.slow
def test_queues_of_a_member_that_is_killed_are_owned_again(
    make_consumer: Callable[..., PushConsumer],
    cluster: EmbeddedCluster,
    producer: Producer,
    topic: str,
    group: str,
) -> None:
    seen = Seen()
    consumer = make_consumer(seen)
    consumer.start()
    command = [sys.executable, "-c", MEMBER_PROGRAM, cluster.name_server, group, topic]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as member:
        assert member.stdout is not None
        assert member.stdout.readline() in (b"4\n", b"8\n")
        wait_until("balance of 4/4", lambda: counts([consumer]) == [4])
        member.kill()
        member.wait()
        sent = send_numbers(producer, topic, 400)

        wait_until("all queues at the one that is left", lambda: counts([consumer]) == [8])
        wait_until("all messages", lambda: sent <= set(seen.bodies))


@pytest.mark.slow
def test_failed_message_comes_again_with_its_topic_and_count(
    make_consumer: Callable[..., PushConsumer], producer: Producer, topic: str
) -> None:
    calls: list[tuple[bytes, int, str]] = []

    def listener(messages: list[MessageExt], context: ConsumeContext) -> ConsumeStatus | None:
        (message,) = messages
        calls.append((message.body, message.reconsume_times, message.topic))
        context.delay_level = 1
        if message.body == b"bad" and message.reconsume_times == 0:
            raise ValueError("cannot digest this")
        if message.body == b"bad" and message.reconsume_times == 1:
            return ConsumeStatus.RECONSUME_LATER
        return None

    consumer = make_consumer(listener)
    consumer.start()
    producer.send(Message(topic, b"bad"))
    producer.send(Message(topic, b"good"))

    wait_until("two retries", lambda: len(calls) >= 4)

    assert [(b"bad", n, topic) for n in range(3)] == [call for call in calls if call[0] == b"bad"]
    assert [call for call in calls if call[0] == b"good"] == [(b"good", 0, topic)]
    wait_until("counters", lambda: consumer.counters.succeeded == 2)
    assert (
        consumer.counters.delivered,
        consumer.counters.failed,
        consumer.counters.succeeded,
        consumer.counters.sent_back,
    ) == (4, 2, 2, 2)


@pytest.mark.slow
def test_ack_index_parts_a_batch(
    make_consumer: Callable[..., PushConsumer], producer: Producer, topic: str
) -> None:
    calls: list[list[tuple[bytes, int]]] = []

    def listener(messages: list[MessageExt], context: ConsumeContext) -> ConsumeStatus:
        calls.append([(message.body, message.reconsume_times) for message in messages])
        if len(messages) == 3:
            context.ack_index, context.delay_level = 0, 1
        return ConsumeStatus.CONSUME_SUCCESS

    consumer = make_consumer(listener, consume_message_batch_max_size=8)
    producer.send_batch([Message(topic, body) for body in (b"0", b"1", b"2")])
    consumer.start()

    wait_until("the two that were not acknowledged", lambda: sum(map(len, calls)) >= 5)

    assert calls[0] == [(b"0", 0), (b"1", 0), (b"2", 0)]
    assert sorted(part for call in calls[1:] for part in call) == [(b"1", 1), (b"2", 1)]


@pytest.mark.slow
def test_equal_client_ids_take_one_share_twice_and_leave_the_other(
    make_consumer: Callable[..., PushConsumer],
    admin: Admin,
    producer: Producer,
    cluster: EmbeddedCluster,
    topic: str,
    group: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The failure of the articles: two containers on one host's network, both with process id 9."""
    caplog.set_level(logging.WARNING, "sparrowmq.client")
    seen = Seen()
    consumer = make_consumer(seen, client_ip="172.17.0.1", instance_name="9")
    with MemberProcess(cluster, group, topic=topic, instance="9") as other:
        consumer.start()
        wait_until("both take the first half", lambda: sizes(consumer, other) == [4, 4])
        sent = send_numbers(producer, topic, 8 * 50)
        wait_until("the half here", lambda: len(seen.messages) >= 4 * 50)
        wait_until("and there", lambda: len(other.consumed) >= 4 * 50)

        assert admin.consumer_ids(group) == ["172.17.0.1@9"] * 2
        assert [0, 1, 2, 3] == owned([consumer]) == other.queue_ids
        taken = {message.queue_id for message in seen.messages}
        assert {0, 1, 2, 3} == taken == {queue_id for queue_id, _ in other.consumed}
        assert sent > set(seen.bodies)
        assert sum(lag.lag for lag in admin.group_lag(group, topic)[4:]) == 200
        told = [r.getMessage() for r in caplog.records if "listed 2 times" in r.getMessage()]
        assert len(told) == 1
        assert group in told[0]
        assert "172.17.0.1@9" in told[0]
        addresses = {c.client_addr for c in admin.consumer_connections(group).connection_set}
        assert len(addresses) == 2
        assert all(address in told[0] for address in addresses)


def sizes(consumer: PushConsumer, other: MemberProcess) -> list[int]:
    return [len(consumer.assignment()), len(other.queue_ids)]


@pytest.mark.slow
def test_broker_can_refuse_a_client_id_in_use(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "sparrowmq.client")
    with EmbeddedCluster(options=("--duplicate-client-id", "reject")) as cluster, ExitStack() as up:
        cluster.create_topic("T", queues=4)

        first = up.enter_context(MemberProcess(cluster, "GID_r", topic="T", instance="1"))
        wait_until("the first", lambda: len(first.queue_ids) == 4)
        second = PushConsumer(
            "GID_r",
            name_server=cluster.name_server,
            listener=Seen(),
            client_ip="172.17.0.1",
            instance_name="1",
        )
        up.enter_context(second)
        second.subscribe("T")
        second.start()
        wait_until("the refusal to be told", lambda: "is in use at" in caplog.text)

        assert sizes(second, first) == [0, 4]
        first.close()
        wait_until("the second to take over", lambda: counts([second]) == [4])


@pytest.mark.slow
def test_callbacks_hear_of_queues_before_the_first_and_after_the_last_delivery(
    make_consumer: Callable[..., PushConsumer], producer: Producer, topic: str
) -> None:
    heard: list[tuple[str, list[int]]] = []
    lock = threading.Lock()

    def hear(what: str) -> Callable[[list[MessageQueue]], None]:
        def note(queues: list[MessageQueue]) -> None:
            assert {queue.topic for queue in queues} == {topic}
            with lock:
                heard.append((what, [queue.queue_id for queue in queues]))

        return note

    def listener(messages: list[MessageExt], context: ConsumeContext) -> None:
        with lock:
            heard.append(("message", [context.queue.queue_id]))

    first = make_consumer(
        listener, on_assign=hear("assign"), on_revoke=hear("revoke"), instance_name="1"
    )
    second = make_consumer(Seen(), instance_name="2")
    send_numbers(producer, topic, 400)
    first.start()
    wait_until("all messages", lambda: sum(what == "message" for what, _ in heard) == 400)
    second.start()
    wait_until("balance of 4/4", lambda: counts([first, second]) == [4, 4])
    wait_until("the revokes", lambda: sum(len(q) for what, q in heard if what == "revoke") == 4)
    first.close()

    for queue_id in range(8):
        told = [what for what, queue_ids in heard if queue_id in queue_ids]
        assert [told[0], told[-1]] == ["assign", "revoke"]
        assert set(told[1:-1]) == {"message"}
    revoked = [queue_ids for what, queue_ids in heard if what == "revoke"]
    assert sorted(q for queue_ids in revoked[:-1] for q in queue_ids) == [4, 5, 6, 7]
    assert sorted(revoked[-1]) == [0, 1, 2, 3]


@pytest.mark.slow
def test_next_owner_begins_when_on_revoke_has_returned(
    make_consumer: Callable[..., PushConsumer], producer: Producer, topic: str
) -> None:
    entered, proceed, seen = threading.Event(), threading.Event(), Seen()

    # Queues are given up as they drain, so the four may come in several calls.
    def on_revoke(queues: list[MessageQueue]) -> None:
        entered.set()
        assert proceed.wait(PATIENCE_S)

    held: list[MessageQueue] = []
    first = make_consumer(Seen(), on_assign=held.extend, on_revoke=on_revoke, instance_name="1")
    first.start()
    # Only what a member has locked, and so was told of, is revoked.
    wait_until("the first", lambda: len(held) == 8)
    send_numbers(producer, topic, 8)
    second = make_consumer(seen, instance_name="2")
    second.start()
    assert entered.wait(PATIENCE_S)
    sent = {
        producer.send(Message(topic, b"late-%d" % n), queue=MessageQueue(topic, "broker-a", n))
        for n in range(4, 8)
    }

    assert len(sent) == 4
    assert len(seen.messages) == 0
    proceed.set()
    wait_until("the queues handed over", lambda: len(seen.messages) == 4)


@pytest.mark.slow
def test_closing_waits_for_the_listener_and_commits_what_it_did(
    make_consumer: Callable[..., PushConsumer],
    producer: Producer,
    admin: Admin,
    topic: str,
    group: str,
) -> None:
    entered, proceed = threading.Event(), threading.Event()

    def listener(messages: list[MessageExt], _: ConsumeContext) -> None:
        entered.set()
        assert proceed.wait(60)

    queue = MessageQueue(topic, "broker-a", 5)
    producer.send(Message(topic, b"x"), queue=queue)
    consumer = make_consumer(listener)
    consumer.start()
    assert entered.wait(60)
    closing = threading.Thread(target=consumer.close)
    closing.start()
    wait_until("leaving to begin", lambda: consumer.assignment() == [])
    assert admin.consumer_ids(group) == [consumer.client_id]
    proceed.set()
    closing.join(60)

    assert admin.committed_offset(group, queue) == 1
    assert admin.consumer_ids(group) == []


@pytest.mark.slow
# The first call has a thread of its own; by the last, the loop's own thread may call.
@pytest.mark.parametrize("count", [1, 100])
def test_a_listener_may_close_its_consumer(
    make_consumer: Callable[..., PushConsumer],
    producer: Producer,
    admin: Admin,
    topic: str,
    group: str,
    count: int,
) -> None:
    closed: Queue[BaseException | None] = Queue()
    seen = 0

    def listener(messages: list[MessageExt], _: ConsumeContext) -> None:
        nonlocal seen
        seen += len(messages)
        if seen == count:
            try:
                consumer.close()
            except BaseException as error:
                closed.put(error)
            closed.put(None)

    queue = producer.fetch_publish_queues(topic)[0]
    producer.send_batch([Message(topic, b"x") for _ in range(count)], queue=queue)
    consumer = make_consumer(listener, drain_timeout_ms=DRAIN_MS)
    consumer.start()

    assert closed.get(timeout=60) is None
    assert consumer.health().state == "closed"
    # It waits for the end.
    begun = time.monotonic()
    consumer.close()
    assert time.monotonic() - begun < DRAIN_MS / 2000
    assert (admin.committed_offset(group, queue), admin.consumer_ids(group)) == (count, [])


@pytest.mark.slow
def test_a_listener_may_close_its_consumer_while_the_consumer_is_entered(
    cluster: EmbeddedCluster, producer: Producer, admin: Admin, topic: str, group: str
) -> None:
    queue = producer.fetch_publish_queues(topic)[0]
    producer.send(Message(topic, b"x"), queue=queue)

    async def consume(settings: dict[str, Any]) -> None:
        async def listener(messages: list[MessageExt], _: ConsumeContext) -> None:
            # Python 3.11 waits in another task.
            await asyncio.wait_for(consumer.close(), DRAIN_MS / 2000)
            closed.set()

        closed = asyncio.Event()
        consumer = AsyncPushConsumer(group, topic, listener=listener, **settings)
        async with consumer:
            await asyncio.wait_for(closed.wait(), 60)

    asyncio.run(consume({"name_server": cluster.name_server, "start": "first"}))

    assert (admin.committed_offset(group, queue), admin.consumer_ids(group)) == (1, [])


@pytest.mark.slow
def test_a_callback_may_close_its_consumer(
    make_consumer: Callable[..., PushConsumer], admin: Admin, group: str
) -> None:
    closed, may_return = threading.Event(), threading.Event()
    ended: list[str] = []

    def on_assign(queues: list[MessageQueue]) -> None:
        consumer.close()
        closed.set()
        may_return.wait(DRAIN_MS / 2000)
        ended.append("the callback")

    consumer = make_consumer(Seen(), on_assign=on_assign, drain_timeout_ms=DRAIN_MS)
    consumer.start()

    assert closed.wait(DRAIN_MS / 2000)
    # The process does not end before its consumer is closed.
    assert [each.daemon for each in threading.enumerate() if each.name == "sparrowmq-close"] == [
        False
    ]
    returning = threading.Timer(0.05, may_return.set)
    returning.start()
    consumer.close()
    ended.append("close")
    assert ended == ["the callback", "close"]
    assert admin.consumer_ids(group) == []
    returning.join()


@pytest.mark.slow
def test_listener_that_outlasts_the_drain_is_left_and_its_message_comes_again(
    make_consumer: Callable[..., PushConsumer], producer: Producer, topic: str
) -> None:
    entered, proceed = threading.Event(), threading.Event()

    def stuck(messages: list[MessageExt], _: ConsumeContext) -> None:
        entered.set()
        proceed.wait(60)

    producer.send(Message(topic, b"x"))
    first = make_consumer(stuck, drain_timeout_ms=50)
    first.start()
    assert entered.wait(60)
    closing = threading.Thread(target=first.close)
    closing.start()
    seen = Seen()
    make_consumer(seen).start()

    wait_until("the message at another member", lambda: seen.bodies == {b"x": 1})
    proceed.set()
    closing.join(60)


@pytest.mark.slow
@pytest.mark.parametrize("zone", [None, UTC])
def test_a_new_group_begins_at_a_time(
    make_consumer: Callable[..., PushConsumer],
    producer: Producer,
    admin: Admin,
    topic: str,
    zone: tzinfo | None,
) -> None:
    queue = producer.fetch_publish_queues(topic)[0]
    first = producer.send(Message(topic, b"before"), queue=queue)
    begun_ms = time.time() * 1000
    wait_until("a later time of storing", lambda: time.time() * 1000 > begun_ms + 2)
    last = producer.send(Message(topic, b"after"), queue=queue)
    stored = [admin.view_message(topic, each.msg_id) for each in (first, last)]
    stored_ms = [each.store_timestamp_ms for each in stored if each is not None]
    assert stored_ms[0] < stored_ms[1]

    seen = Seen()
    make_consumer(seen, start=datetime.fromtimestamp(stored_ms[1] / 1000, zone)).start()
    wait_until("the message of that time", lambda: seen.messages)

    assert seen.bodies == {b"after": 1}


@pytest.mark.slow
def test_tags_are_filtered(
    cluster: EmbeddedCluster, producer: Producer, topic: str, group: str
) -> None:
    seen = Seen()
    # "Aa" and "BB" have one hash code in Java, by which brokers filter.
    with PushConsumer(
        group, {topic: "Aa || C"}, name_server=cluster.name_server, listener=seen, start="first"
    ):
        for tag in ("Aa", "BB", "C", None):
            producer.send(Message(topic, str(tag).encode(), tags=tag))
        wait_until("two messages", lambda: len(seen.messages) >= 2)
        producer.send(Message(topic, b"last", tags="C"))
        wait_until("the last message", lambda: len(seen.messages) >= 3)

    assert seen.bodies == {b"Aa": 1, b"C": 1, b"last": 1}


@pytest.mark.slow
def test_broadcasting_gives_every_member_everything(
    make_consumer: Callable[..., PushConsumer], producer: Producer, topic: str
) -> None:
    groups = [Seen(), Seen()]
    consumers = [
        make_consumer(seen, message_model=MessageModel.BROADCASTING, instance_name=str(n))
        for n, seen in enumerate(groups)
    ]
    for consumer in consumers:
        consumer.start()
    sent = send_numbers(producer, topic, 100)

    wait_until("all messages twice", lambda: all(sent == set(seen.bodies) for seen in groups))

    assert counts(consumers) == [8, 8]


@pytest.mark.slow
def test_the_wait_for_queues_includes_topics_that_were_just_subscribed(
    make_consumer: Callable[..., PushConsumer], cluster: EmbeddedCluster, topic: str
) -> None:
    other = f"{topic}_other"
    cluster.create_topic(other, queues=2)
    consumer = make_consumer(Seen())
    consumer.start()
    consumer.wait_assigned()
    consumer.subscribe("nowhere")
    consumer.subscribe(other)

    assert {queue.topic for queue in consumer.wait_assigned()} == {topic, other}


@pytest.mark.slow
def test_message_that_a_new_expression_matches_is_not_passed_over(
    make_consumer: Callable[..., PushConsumer], producer: Producer, topic: str
) -> None:
    queue, seen = MessageQueue(topic, "broker-a", 0), Seen()
    consumer = make_consumer(seen)
    consumer.subscribe(topic, "a")
    consumer.start()
    producer.send(Message(topic, b"first", tags="a"), queue=queue)
    wait_until("the first", lambda: set(seen.bodies) == {b"first"})

    consumer.subscribe(topic, "a || b")
    producer.send(Message(topic, b"second", tags="b"), queue=queue)

    wait_until("the second", lambda: set(seen.bodies) == {b"first", b"second"})


@pytest.mark.slow
def test_topic_subscribed_and_dropped_at_run_time(
    make_consumer: Callable[..., PushConsumer], cluster: EmbeddedCluster, topic: str
) -> None:
    other = f"{topic}_other"
    cluster.create_topic(other, queues=2)
    consumer = make_consumer(Seen())
    consumer.start()
    wait_until("the first topic", lambda: counts([consumer]) == [8])

    consumer.subscribe(other)
    wait_until("the second topic", lambda: counts([consumer]) == [10])
    consumer.unsubscribe(topic)
    wait_until("the second topic alone", lambda: counts([consumer]) == [2])

    assert {queue.topic for queue in consumer.assignment()} == {other}


@pytest.mark.slow
def test_message_reaches_the_listener_without_waiting_for_a_timer(
    make_consumer: Callable[..., PushConsumer], producer: Producer, topic: str
) -> None:
    arrived = threading.Semaphore(0)
    consumer = make_consumer(lambda messages, context: arrived.release(len(messages)))
    consumer.start()
    wait_until("the assignment", lambda: counts([consumer]) == [8])

    for _ in range(50):
        producer.send(Message(topic, b"x"))
        # The shortest timer of consumption is 100 ms; 50 of these would take far longer.
        assert arrived.acquire(timeout=2)


@pytest.mark.slow
def test_everything_goes_on_after_the_broker_was_killed(group: str) -> None:
    seen = Seen()
    with EmbeddedCluster() as cluster:
        cluster.create_topic("T", queues=4)
        with (
            Producer("GID_p", name_server=cluster.name_server, retry_times=6) as producer,
            PushConsumer(
                group, "T", name_server=cluster.name_server, listener=seen, start="first"
            ) as consumer,
        ):
            producer.send(Message("T", b"before"))
            wait_until("the first message", lambda: b"before" in seen.bodies)
            cluster.kill()
            cluster.start()
            producer.send(Message("T", b"after"))
            wait_until("the message after the restart", lambda: b"after" in seen.bodies)
            assert owned([consumer]) == [0, 1, 2, 3]


@pytest.mark.slow
async def test_coroutine_listeners_run_on_the_loop(
    cluster: EmbeddedCluster, topic: str, group: str
) -> None:
    done = asyncio.Event()
    seen: Counter[tuple[bytes, int]] = Counter()
    loop = asyncio.get_running_loop()

    async def listener(messages: list[MessageExt], context: ConsumeContext) -> ConsumeStatus:
        assert asyncio.get_running_loop() is loop
        await asyncio.sleep(0)
        seen.update((message.body, message.reconsume_times) for message in messages)
        if (b"bad", 1) in seen and len(seen) == 101:
            done.set()
        context.delay_level = 1
        if messages[0].body == b"bad" and messages[0].reconsume_times == 0:
            return ConsumeStatus.RECONSUME_LATER
        return ConsumeStatus.CONSUME_SUCCESS

    name_server = cluster.name_server
    async with (
        AsyncProducer("GID_p", name_server=name_server) as producer,
        AsyncPushConsumer(
            group, topic, name_server=name_server, listener=listener, start="first"
        ) as consumer,
    ):
        bodies = [b"bad", *(str(n).encode() for n in range(99))]
        await asyncio.gather(*(producer.send(Message(topic, body)) for body in bodies))
        async with asyncio.timeout(20):
            await done.wait()
        assert list(range(8)) == [queue.queue_id for queue in consumer.assignment()]
    assert set(seen.values()) == {1}


async def test_asyncio_face_takes_plain_listeners_too(
    cluster: EmbeddedCluster, topic: str, group: str
) -> None:
    seen = Seen()
    async with (
        AsyncProducer("GID_p", name_server=cluster.name_server) as producer,
        AsyncPushConsumer(
            group, topic, name_server=cluster.name_server, listener=seen, start="first"
        ),
    ):
        await producer.send(Message(topic, b"x"))
        async with asyncio.timeout(20):
            while not seen.messages:
                await asyncio.sleep(0.005)
    assert seen.bodies == {b"x": 1}


def test_wrong_use_is_refused(cluster: EmbeddedCluster) -> None:
    def make(**settings: Any) -> PushConsumer:
        defaults: dict[str, Any] = {"listener": Seen(), "name_server": cluster.name_server}
        return PushConsumer("GID_wrong", **(defaults | settings))

    with pytest.raises(ConfigError, match="listener is None"):
        make(listener=None)
    with pytest.raises(ConfigError, match=r"did you mean AVG\?"):
        make(strategy="AVGG")
    with pytest.raises(ConfigError, match="name_server"):
        make(name_server="nowhere")
    with make() as consumer, pytest.raises(ConfigError):
        consumer.subscribe("bad topic")
    consumer.close()
    with pytest.raises(UsageError, match="closed"):
        consumer.subscribe("T")
    with pytest.raises(UsageError, match="make a new consumer"):
        consumer.start()

"""Push consumers in order against a real broker: order over retries, joins, leaves and kills."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial

import pytest

import waiting
from sparrowmq import (
    Admin,
    AsyncPushConsumer,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
    Producer,
    PushConsumer,
)
from sparrowmq.model.names import dlq_topic
from sparrowmq.testing.embedded import EmbeddedCluster

SUSPEND = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
PATIENCE_S = 60
wait_until = partial(waiting.wait_until, timeout_s=PATIENCE_S)


class Log:
    """What the listeners of a group were given, by queue, in the order of the calls' ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.offsets: dict[MessageQueue, list[int]] = defaultdict(list)
        self.at_work: dict[MessageQueue, int] = defaultdict(int)
        self.most_at_work = 0

    def __call__(self, messages: list[MessageExt], context: ConsumeOrderlyContext) -> None:
        queue = context.queue
        with self._lock:
            self.at_work[queue] += 1
            self.most_at_work = max(self.most_at_work, self.at_work[queue])
        time.sleep(0.0005)
        with self._lock:
            self.at_work[queue] -= 1
            self.offsets[queue] += [message.queue_offset for message in messages]

    @property
    def count(self) -> int:
        with self._lock:
            return sum(len(set(offsets)) for offsets in self.offsets.values())

    def is_in_order(self) -> bool:
        """Return whether no queue ever went back."""
        return all(offsets == sorted(offsets) for offsets in self.offsets.values())

    def first_times(self) -> dict[MessageQueue, list[int]]:
        """Return the offsets of each queue in the order in which they were first seen."""
        return {queue: list(dict.fromkeys(offsets)) for queue, offsets in self.offsets.items()}


@pytest.fixture
def make_consumer(start_consumer: Callable[..., PushConsumer]) -> Callable[..., PushConsumer]:
    """Start consumers in order of this test's topic and group."""
    return partial(start_consumer, orderly=True)


def fill(producer: Producer, topic: str, per_queue: int) -> int:
    queues = producer.fetch_publish_queues(topic)
    for queue in queues:
        for at in range(0, per_queue, 50):
            count = min(50, per_queue - at)
            bodies = [b"%d" % n for n in range(at, at + count)]
            producer.send_batch([Message(topic, body) for body in bodies], queue=queue)
    return per_queue * len(queues)


def counts(consumers: list[PushConsumer]) -> list[int]:
    return sorted(len(consumer.assignment()) for consumer in consumers)


@pytest.mark.slow
def test_order_is_kept_and_nothing_repeated_over_joins_and_leaves(
    make_consumer: Callable[..., PushConsumer],
    producer: Producer,
    admin: Admin,
    topic: str,
    group: str,
) -> None:
    log = Log()
    total = fill(producer, topic, 300)
    first = make_consumer(log, consume_message_batch_max_size=4)
    wait_until("the first messages", lambda: log.count > 100)
    second = make_consumer(log)
    wait_until("a share of 4 for each", lambda: counts([first, second]) == [4, 4])
    third = make_consumer(log)
    first.close()
    wait_until("all messages", lambda: log.count == total)

    assert log.most_at_work == 1
    assert log.is_in_order()
    assert {queue: list(range(300)) for queue in log.offsets} == dict(log.offsets)
    for consumer in (second, third):
        consumer.close()
    assert [lag.lag for lag in admin.group_lag(group, topic)] == [0] * 8


KILLED = """
import sys, time
from sparrowmq import PushConsumer
def listener(messages, context):
    for message in messages:
        sys.stdout.write(f"{message.queue_id} {message.queue_offset}\\n")
        sys.stdout.flush()
consumer = PushConsumer(sys.argv[2], name_server=sys.argv[1], listener=listener, orderly=True,
    start="first")
consumer.subscribe(sys.argv[3])
consumer.start()
time.sleep(600)
"""


@pytest.mark.slow
def test_after_a_kill_the_next_owner_goes_on_in_order(
    make_consumer: Callable[..., PushConsumer],
    cluster: EmbeddedCluster,
    producer: Producer,
    topic: str,
    group: str,
) -> None:
    log = Log()
    total = fill(producer, topic, 40)
    command = [sys.executable, "-c", KILLED, cluster.name_server, group, topic]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        seen: dict[int, list[int]] = defaultdict(list)
        try:
            for _ in range(100):
                queue_id, offset = map(int, process.stdout.readline().split())
                seen[queue_id].append(offset)
        finally:
            process.kill()
    make_consumer(log)
    wait_until(
        "all messages",
        lambda: (
            sum(
                len({*offsets, *seen.get(queue.queue_id, ())})
                for queue, offsets in log.offsets.items()
            )
            == total
        ),
    )

    assert log.is_in_order()
    for queue, offsets in log.offsets.items():
        # The next owner begins at most one past what the killed one had been given.
        assert offsets == list(range(offsets[0], 40))
        assert offsets[0] <= len(seen.get(queue.queue_id, ()))


@pytest.mark.slow
def test_suspended_queue_gets_the_same_messages_again_before_any_other(
    make_consumer: Callable[..., PushConsumer], producer: Producer, topic: str
) -> None:
    calls: list[tuple[bytes, int]] = []

    def listener(
        messages: list[MessageExt], context: ConsumeOrderlyContext
    ) -> ConsumeOrderlyStatus | None:
        (message,) = messages
        calls.append((message.body, message.reconsume_times))
        context.suspend_ms = 10
        if message.body == b"1" and message.reconsume_times == 0:
            raise ValueError("cannot digest this")
        if message.body == b"1" and message.reconsume_times < 3:
            return SUSPEND
        return None

    queue = producer.fetch_publish_queues(topic)[0]
    producer.send_batch([Message(topic, b"%d" % n) for n in range(3)], queue=queue)
    make_consumer(listener)
    wait_until("all messages", lambda: len(calls) >= 6)

    assert [(b"0", 0), *((b"1", n) for n in range(4)), (b"2", 0)] == calls


@pytest.mark.slow
def test_message_that_may_not_come_again_is_a_dead_letter_and_the_queue_goes_on(
    make_consumer: Callable[..., PushConsumer],
    producer: Producer,
    admin: Admin,
    topic: str,
    group: str,
) -> None:
    calls: list[bytes] = []

    def listener(
        messages: list[MessageExt], context: ConsumeOrderlyContext
    ) -> ConsumeOrderlyStatus | None:
        calls.extend(message.body for message in messages)
        context.suspend_ms = 10
        return SUSPEND if messages[0].body == b"1" else None

    queue = producer.fetch_publish_queues(topic)[0]
    producer.send_batch([Message(topic, b"%d" % n) for n in range(3)], queue=queue)
    consumer = make_consumer(listener, max_reconsume_times=2)
    wait_until("all messages", lambda: len(calls) >= 5)
    wait_until("the commit", lambda: admin.committed_offset(group, queue) == 3)

    assert calls == [b"0", b"1", b"1", b"1", b"2"]
    assert consumer.counters.sent_back == 1
    dead = MessageQueue(dlq_topic(group), queue.broker_name, 0)
    wait_until("the topic of the dead letters", lambda: admin.route(dead.topic).subscribe_queues)
    assert admin.max_offset(dead) == 1


@pytest.mark.slow
def test_without_auto_commit_a_rollback_repeats_what_was_held(
    make_consumer: Callable[..., PushConsumer],
    producer: Producer,
    admin: Admin,
    topic: str,
    group: str,
) -> None:
    answers = ["SUCCESS", "SUCCESS", "ROLLBACK", "SUCCESS", "SUCCESS", "COMMIT", "SUCCESS"]
    calls: list[bytes] = []

    def listener(
        messages: list[MessageExt], context: ConsumeOrderlyContext
    ) -> ConsumeOrderlyStatus:
        context.auto_commit, context.suspend_ms = False, 10
        calls.append(messages[0].body)
        return ConsumeOrderlyStatus[answers[len(calls) - 1]]

    queue = producer.fetch_publish_queues(topic)[0]
    producer.send_batch([Message(topic, b"%d" % n) for n in range(4)], queue=queue)
    consumer = make_consumer(listener)
    wait_until("all messages", lambda: len(calls) >= 7)
    consumer.close()

    assert calls == [b"0", b"1", b"2", b"0", b"1", b"2", b"3"]
    # What was held when the consumer was closed comes again elsewhere.
    assert admin.committed_offset(group, queue) == 3


@pytest.mark.slow
def test_queue_is_consumed_as_soon_as_it_is_locked_and_others_wait(
    make_consumer: Callable[..., PushConsumer], producer: Producer, topic: str
) -> None:
    log, gate = Log(), threading.Event()
    entered = threading.Event()

    def holds(messages: list[MessageExt], context: ConsumeOrderlyContext) -> None:
        entered.set()
        gate.wait(PATIENCE_S)
        log(messages, context)

    queues = producer.fetch_publish_queues(topic)
    for queue in queues:
        producer.send(Message(topic, b"0"), queue=queue)
    first = make_consumer(holds, drain_timeout_ms=50)
    wait_until("a listener at work", entered.is_set)
    second = make_consumer(log)
    wait_until("a share of 4 for each", lambda: counts([first, second]) == [4, 4])
    mine = second.assignment()
    for queue in queues:
        producer.send(Message(topic, b"1"), queue=queue)
    # The bound of the drain is long past; while the listener runs nobody else begins.
    assert not gate.wait(1)
    assert not any(log.offsets.get(queue) for queue in mine)

    begin = time.monotonic()
    gate.set()
    wait_until("all messages", lambda: log.count == 16)

    # Java's clients up to 4.9.4 wait for the next renewal of all locks, up to 20 s.
    assert time.monotonic() - begin < 5
    assert {queue: [0, 1] for queue in queues} == dict(log.offsets)


@pytest.mark.slow
def test_broadcasting_in_order_needs_no_lock(
    make_consumer: Callable[..., PushConsumer], producer: Producer, topic: str
) -> None:
    total = fill(producer, topic, 30)
    logs = [Log(), Log()]
    for number, log in enumerate(logs):
        make_consumer(log, message_model=MessageModel.BROADCASTING, instance_name=f"I{number}")
    wait_until("all messages at both", lambda: [log.count for log in logs] == [total] * 2)

    for log in logs:
        assert {queue: list(range(30)) for queue in log.offsets} == dict(log.offsets)


@pytest.mark.slow
def test_consumer_goes_on_after_it_was_suspended(
    make_consumer: Callable[..., PushConsumer], producer: Producer, topic: str
) -> None:
    log = Log()
    consumer = make_consumer(log, orderly=False)
    wait_until("assignment", lambda: len(consumer.assignment()) == 8)
    producer.send_batch([Message(topic, b"0")] * 8)
    wait_until("the messages", lambda: log.count == 8)
    consumer.suspend()
    producer.send_batch([Message(topic, b"1")] * 8)
    consumer.resume()

    wait_until("the messages sent meanwhile", lambda: log.count == 16)
    assert len(consumer.assignment()) == 8


@pytest.mark.slow
async def test_coroutine_listeners_in_order(
    cluster: EmbeddedCluster, producer: Producer, topic: str, group: str
) -> None:
    total = fill(producer, topic, 50)
    offsets: dict[MessageQueue, list[int]] = defaultdict(list)
    done = asyncio.Event()

    async def listener(messages: list[MessageExt], context: ConsumeOrderlyContext) -> None:
        await asyncio.sleep(0)
        offsets[context.queue] += [message.queue_offset for message in messages]
        if sum(map(len, offsets.values())) == total:
            done.set()

    async with AsyncPushConsumer(
        group,
        topic,
        name_server=cluster.name_server,
        listener=listener,
        orderly=True,
        start="first",
    ):
        async with asyncio.timeout(PATIENCE_S):
            await done.wait()

    assert {queue: list(range(50)) for queue in offsets} == dict(offsets)

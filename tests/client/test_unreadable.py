"""Messages that cannot be read, and messages that inflate to much, against a real broker."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

from poison import send_stored
from sparrowmq import (
    Admin,
    CompressionType,
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
    PollConsumer,
    Producer,
    PushConsumer,
    UnreadablePolicy,
)
from sparrowmq.calling.effects import Invoke, Sleep
from sparrowmq.client.operations.pull import PullReply, PullStatus
from sparrowmq.client.operations.pull_answer import Answer, read_answer
from sparrowmq.client.subscriber import ConsumeCounters
from sparrowmq.errors import ConfigError, UnreadableMessage
from sparrowmq.protocol.compression import compress_body
from sparrowmq.protocol.record import Record, encode_batch, encode_record
from sparrowmq.testing.embedded import EmbeddedCluster
from waiting import wait_until

MIB = 1024 * 1024
GARBAGE = b"no zlib stream"


class Seen:
    """What a listener was given; it waits while it is held."""

    def __init__(self) -> None:
        self.messages: list[MessageExt] = []
        self.goes_on = threading.Event()
        self.goes_on.set()

    def __call__(self, messages: list[MessageExt], _: object) -> None:
        self.messages += messages
        self.goes_on.wait(60)

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]


@pytest.fixture
def seen() -> Iterator[Seen]:
    made = Seen()
    yield made
    made.goes_on.set()


@pytest.fixture
def queue(cluster: EmbeddedCluster, group: str) -> MessageQueue:
    """The one queue of a topic of this test's."""
    topic = f"T_{group}"
    cluster.create_topic(topic, queues=1)
    return MessageQueue(topic, "broker-a", 0)


@pytest.fixture
def poisoned(cluster: EmbeddedCluster, producer: Producer, queue: MessageQueue) -> MessageQueue:
    """A queue of whose four messages the one at offset 2 cannot be read."""
    for body in (b"0", b"1"):
        producer.send(Message(queue.topic, body))
    send_stored(cluster.broker, queue, GARBAGE, msg_id="POISON")
    producer.send(Message(queue.topic, b"3"))
    return queue


Start = Callable[..., PushConsumer]


@pytest.fixture
def start(cluster: EmbeddedCluster, group: str, seen: Seen) -> Iterator[Start]:
    """Start a consumer of a queue's topic; it is closed at the end."""
    started: list[PushConsumer] = []

    def run(queue: MessageQueue, **settings: Any) -> PushConsumer:
        consumer = PushConsumer(
            group,
            name_server=cluster.name_server,
            listener=seen,
            start="first",
            **settings,
        )
        started.append(consumer)
        consumer.subscribe(queue.topic)
        consumer.start()
        return consumer

    yield run
    seen.goes_on.set()
    for consumer in started:
        consumer.close()


def lines(caplog: pytest.LogCaptureFixture, words: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if words in record.getMessage()]


@pytest.mark.slow
def test_a_queue_stops_at_the_message_and_one_line_says_how_to_go_on(
    start: Start,
    poisoned: MessageQueue,
    admin: Admin,
    group: str,
    seen: Seen,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "sparrowmq.client")
    consumer = start(poisoned)
    pulls: set[int] = set()

    def has_tried_three_times() -> bool:
        pulls.update(
            owned.process_queue.last_pull_ms
            for owned in consumer._subscriber.member.owned_queues()
            if owned.queue == poisoned and owned.process_queue.pull_offset == 2
        )
        return len(pulls) >= 3

    wait_until("three attempts", has_tried_three_times)
    wait_until("the commit", lambda: admin.committed_offset(group, poisoned) == 2)

    assert seen.bodies == [b"0", b"1"]
    (line,) = caplog.records
    assert line.levelno == logging.ERROR
    text = line.getMessage()
    assert f"consumer group {group}: a queue stands still: message POISON at offset 2" in text
    assert f"{poisoned.topic}/broker-a/0 cannot be read: its body is not a zlib stream" in text
    assert "UnreadablePolicy.SKIP or DEAD_LETTER, or set the group's offset to 3" in text
    assert consumer.counters.unreadable == 0


@pytest.mark.slow
@pytest.mark.parametrize("orderly", [False, True])
def test_the_message_is_skipped_and_counted(
    start: Start,
    poisoned: MessageQueue,
    admin: Admin,
    group: str,
    seen: Seen,
    caplog: pytest.LogCaptureFixture,
    *,
    orderly: bool,
) -> None:
    caplog.set_level(logging.WARNING, "sparrowmq.client")
    consumer = start(poisoned, orderly=orderly, unreadable_policy=UnreadablePolicy.SKIP)
    wait_until("the last message", lambda: b"3" in seen.bodies)
    wait_until("the commit", lambda: admin.committed_offset(group, poisoned) == 4)

    assert sorted(seen.bodies) == [b"0", b"1", b"3"]
    assert consumer.counters.unreadable == 1
    (line,) = lines(caplog, "POISON")
    assert "at offset 2" in line.getMessage()
    assert "was skipped: its body is not a zlib stream" in line.getMessage()


@pytest.mark.slow
def test_the_message_goes_to_the_dead_letters_as_it_is(
    start: Start,
    poisoned: MessageQueue,
    cluster: EmbeddedCluster,
    admin: Admin,
    group: str,
    seen: Seen,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "sparrowmq.client")
    consumer = start(poisoned, unreadable_policy=UnreadablePolicy.DEAD_LETTER)
    wait_until("the last message", lambda: b"3" in seen.bodies)
    wait_until("the commit", lambda: admin.committed_offset(group, poisoned) == 4)

    assert consumer.counters.unreadable == 1
    (line,) = lines(caplog, "POISON")
    assert "went to the dead letters" in line.getMessage()
    dead_letters = MessageQueue(f"%DLQ%{group}", "broker-a", 0)
    assert admin.max_offset(dead_letters) == 1
    with (
        PollConsumer("GID_look", name_server=cluster.name_server) as looking,
        pytest.raises(UnreadableMessage, match="message POISON at offset 0 of %DLQ%"),
    ):
        looking.pull(dead_letters, 0)


@pytest.mark.slow
def test_polling_skips_too_and_a_pull_by_hand_names_the_message(
    cluster: EmbeddedCluster, poisoned: MessageQueue, group: str
) -> None:
    with PollConsumer(
        group,
        poisoned.topic,
        name_server=cluster.name_server,
        start="first",
        unreadable_policy=UnreadablePolicy.SKIP,
    ) as skipping:
        bodies = [message.body for _, message in zip(range(3), skipping, strict=False)]
        by_hand = skipping.pull(poisoned, 2)
        assert skipping.counters.unreadable == 2

    assert bodies == [b"0", b"1", b"3"]
    assert ([m.body for m in by_hand.messages], by_hand.next_offset) == ([b"3"], 4)
    with PollConsumer("GID_stopping", name_server=cluster.name_server) as stopping:
        before = stopping.pull(poisoned, 0)
        with pytest.raises(UnreadableMessage, match="message POISON at offset 2"):
            stopping.pull(poisoned, 2)
    assert ([m.body for m in before.messages], before.next_offset) == ([b"0", b"1"], 2)


def test_a_broadcasting_group_has_no_dead_letters(cluster: EmbeddedCluster) -> None:
    with pytest.raises(ConfigError, match="a BROADCASTING group has no dead letters"):
        PushConsumer(
            "GID_b",
            name_server=cluster.name_server,
            listener=print,
            message_model=MessageModel.BROADCASTING,
            unreadable_policy=UnreadablePolicy.DEAD_LETTER,
        )


@pytest.mark.slow
@pytest.mark.parametrize("kind", CompressionType)
def test_what_a_producer_compresses_is_consumed(
    cluster: EmbeddedCluster, start: Start, queue: MessageQueue, seen: Seen, kind: CompressionType
) -> None:
    body = b"flight " * 1_000
    with Producer(
        "GID_compressing", name_server=cluster.name_server, compress_type=kind, compress_level=3
    ) as producer:
        producer.send(Message(queue.topic, body))
    start(queue)
    wait_until("the message", lambda: [body] == seen.bodies)

    assert seen.messages[0].store_size < 1_000


@pytest.mark.slow
def test_a_bomb_fills_the_queue_to_its_limit_and_the_lock_is_kept(
    cluster: EmbeddedCluster,
    start: Start,
    queue: MessageQueue,
    seen: Seen,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Some kilobytes of messages that inflate to 320 MB."""
    caplog.set_level(logging.WARNING, "sparrowmq.client")
    packed, sys_flag = compress_body(bytes(16 * MIB), CompressionType.ZLIB, level=9)
    for _ in range(20):
        send_stored(cluster.broker, queue, packed, sys_flag=sys_flag)
    seen.goes_on.clear()
    consumer = start(queue, pull_batch_size=64, consume_thread_count=1)
    sizes: list[int] = []

    def cached_bytes() -> int:
        sizes.extend(
            owned.process_queue.size_bytes
            for owned in consumer._subscriber.member.owned_queues()
            if owned.queue == queue
        )
        return sizes[-1] if sizes else 0

    wait_until("as much as has room", lambda: cached_bytes() == 32 * MIB)
    seen.goes_on.set()
    wait_until("all messages", lambda: (cached_bytes(), len(seen.messages))[1] == 20)

    assert max(sizes) == 32 * MIB
    assert [message.queue_offset for message in seen.messages] == list(range(20))
    assert caplog.records == []


# --- the operation alone -------------------------------------------------------------------------


class Reader:
    """Steps `read_answer` over records, and notes what it tells and what it yields."""

    def __init__(self, *parts: bytes, offset: int = 0) -> None:
        self.records = b"".join(parts)
        self.offset = offset
        self.counters = ConsumeCounters()
        self.notices: list[Any] = []
        self.effects: list[Any] = []

    def report(self, notice: Any) -> None:
        self.notices.append(notice)

    def read(
        self,
        *,
        room_bytes: Callable[[], int] = lambda: 100 * MIB,
        policy: UnreadablePolicy = UnreadablePolicy.STOP,
    ) -> Answer:
        queue = MessageQueue("T", "b", 0)
        result = PullReply(PullStatus.FOUND, 1_000, 0, 1_000, self.records)
        operation: Generator[Any, Any, Answer] = read_answer(
            self,  # type: ignore[arg-type]
            queue,
            result,
            offset=self.offset,
            room_bytes=room_bytes,
            policy=policy,
        )
        try:
            while True:
                self.effects.append(next(operation))
        except StopIteration as stop:
            answer: Answer = stop.value
            return answer


def record_at(offset: int, body: bytes, sys_flag: int = 0, properties: str = "") -> bytes:
    record = Record(
        topic="T",
        queue_id=0,
        body=body,
        sys_flag=sys_flag,
        queue_offset=offset,
        properties=properties,
    )
    return bytes(encode_record(record))


def batch_at(offset: int, count: int) -> bytes:
    """Return a batch as a broker of RocketMQ 5 stores it in a topic with queue.type=BatchCQ."""
    body = encode_batch((0, b"%d" % number, "") for number in range(count))
    return record_at(offset, body, 0xC0, f"INNER_NUM\x01{count}")


def packed_at(offset: int, size: int) -> bytes:
    return record_at(offset, *compress_body(bytes(size), CompressionType.ZLIB, level=9))


def test_plain_messages_cost_no_turn() -> None:
    reader = Reader(*(record_at(n, bytes(10)) for n in range(32)))

    answer = reader.read(room_bytes=lambda: 0)

    assert (len(answer.messages), answer.next_offset, answer.is_cut) == (32, 1_000, False)
    assert reader.effects == []


def test_the_driver_gets_a_turn_after_each_few_mebibytes() -> None:
    reader = Reader(*(packed_at(n, 3 * MIB) for n in range(10)))

    answer = reader.read()

    assert len(answer.messages) == 10
    assert reader.effects == [Sleep(0)] * 4


def test_the_rest_is_left_for_the_next_pull_where_the_room_ends() -> None:
    reader = Reader(*(packed_at(n, 3 * MIB) for n in range(10)))

    answer = reader.read(room_bytes=lambda: 10 * MIB)

    assert (len(answer.messages), answer.next_offset, answer.is_cut) == (3, 3, True)


def test_nothing_is_inflated_for_a_queue_without_room() -> None:
    answer = Reader(packed_at(7, 10), offset=5).read(room_bytes=lambda: 0)

    assert answer == Answer([], 5, is_cut=True)


def test_an_answer_ends_before_the_message_at_which_it_stops() -> None:
    reader = Reader(record_at(0, b"0"), record_at(1, GARBAGE, 1), record_at(2, b"2"))

    answer = reader.read()

    assert ([m.body for m in answer.messages], *answer[1:]) == ([b"0"], 1, False)
    assert reader.notices == []


def test_messages_before_and_behind_those_that_are_skipped_are_read() -> None:
    reader = Reader(
        record_at(0, GARBAGE, 1),
        record_at(1, b"1"),
        record_at(2, b"x", 0x101),
        record_at(3, GARBAGE, 0x701),
    )

    answer = reader.read(policy=UnreadablePolicy.SKIP)

    assert ([m.body for m in answer.messages], *answer[1:]) == ([b"1"], 1_000, False)
    assert [notice.message.queue_offset for notice in reader.notices] == [0, 2, 3]
    assert reader.counters.unreadable == 3


def test_batch_that_is_stored_as_one_message_is_not_delivered_as_one() -> None:
    reader = Reader(batch_at(4, 3), record_at(7, b"7"), offset=4)

    with pytest.raises(UnreadableMessage, match=r"queue\.type=BatchCQ.*the group's offset to 7"):
        reader.read()
    answer = reader.read(policy=UnreadablePolicy.SKIP)

    assert ([m.body for m in answer.messages], *answer[1:]) == ([b"7"], 1_000, False)


def test_batch_that_has_one_offset_hides_no_message_behind_it() -> None:
    letters = Reader(batch_at(4, 3), record_at(5, GARBAGE, 1), b"garbage", offset=4)
    packed = Reader(batch_at(4, 3), packed_at(5, 10), offset=4)

    with pytest.raises(UnreadableMessage, match=r"the group's offset to 5$"):
        letters.read()
    cut = packed.read(policy=UnreadablePolicy.SKIP, room_bytes=lambda: 0)

    assert cut == Answer([], 5, is_cut=True)


def test_pull_may_begin_within_a_batch() -> None:
    within = Reader(batch_at(4, 3), b"garbage", offset=5)

    assert within.read(policy=UnreadablePolicy.SKIP) == Answer([], 7)


def test_bytes_that_are_no_record_stop_the_queue_whatever_the_policy() -> None:
    reader = Reader(record_at(4, b"0"), b"garbage", offset=4)

    answer = reader.read(policy=UnreadablePolicy.SKIP)
    rest = Reader(b"garbage", offset=5)

    assert (len(answer.messages), *answer[1:]) == (1, 5, False)
    with pytest.raises(UnreadableMessage, match="record from offset 5 of T/b/0 on is damaged"):
        rest.read(policy=UnreadablePolicy.SKIP)


def test_message_that_was_passed_over_is_not_read_again_where_the_answer_ends_behind_it() -> None:
    reader = Reader(record_at(4, GARBAGE, 1), b"garbage", offset=4)

    assert reader.read(policy=UnreadablePolicy.SKIP) == Answer([], 5)
    assert [notice.message.queue_offset for notice in reader.notices] == [4]


def test_no_request_goes_out_for_a_message_that_is_skipped() -> None:
    reader = Reader(record_at(0, GARBAGE, 1))

    reader.read(policy=UnreadablePolicy.SKIP)

    assert not any(isinstance(effect, Invoke) for effect in reader.effects)

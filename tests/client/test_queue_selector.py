"""Which queue a message goes to."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from sparrowmq.client.queue_selector import LATE_MS, QueueSelector, select_queue_by_key
from sparrowmq.model import MessageQueue

A0, A1, B0 = (MessageQueue("T", name[0], int(name[1])) for name in ("a0", "a1", "b0"))
QUEUES = (A0, A1, B0)


def test_queues_come_in_turn() -> None:
    selector = QueueSelector(lambda: 5)

    assert [selector.next_queue(QUEUES) for _ in range(4)] == [B0, A0, A1, B0]


@given(st.integers(min_value=1, max_value=8), st.integers(min_value=1, max_value=8))
def test_each_topic_uses_all_its_queues_however_many_topics_take_turns(
    topic_count: int, queue_count: int
) -> None:
    selector = QueueSelector(lambda: 7)
    topics = [
        [MessageQueue(f"T{t}", "a", n) for n in range(queue_count)] for t in range(topic_count)
    ]

    used = Counter(selector.next_queue(queues) for _ in range(3 * queue_count) for queues in topics)

    assert {queue: 3 for queues in topics for queue in queues} == used


def test_broker_to_avoid_is_the_one_that_serves_the_queue() -> None:
    selector = QueueSelector(lambda: 0)
    served = {A0: "x", A1: "y", B0: "x"}.__getitem__

    assert selector.next_queue(QUEUES, served, avoid_broker="x") == A1
    selector.note_latency("y", LATE_MS, 0)
    assert [selector.next_queue(QUEUES, served) for _ in range(2)] == [A0, B0]


@given(st.integers(min_value=1, max_value=8), st.integers(min_value=2, max_value=4))
def test_retries_use_all_queues_of_the_other_brokers(topic_count: int, broker_count: int) -> None:
    selector = QueueSelector(lambda: 7)
    topics = [
        [MessageQueue(f"T{t}", f"b{b}", n) for b in range(broker_count) for n in range(4)]
        for t in range(topic_count)
    ]

    used: set[MessageQueue] = set()
    for _ in range(4 * broker_count):
        for queues in topics:
            first = selector.next_queue(queues)
            is_down = first.broker_name == "b0"
            used.add(selector.next_queue(queues, avoid_broker="b0") if is_down else first)

    assert {q for queues in topics for q in queues if q.broker_name != "b0"} == used


def test_counters_of_two_topics_begin_apart() -> None:
    starts = iter([0, 2])
    selector = QueueSelector(lambda: next(starts))
    other = [MessageQueue("U", "a", n) for n in range(3)]

    assert (A0, other[2]) == (selector.next_queue(QUEUES), selector.next_queue(other))


def test_broker_that_failed_is_avoided_while_there_is_another() -> None:
    selector = QueueSelector(lambda: 1)

    assert [selector.next_queue(QUEUES, avoid_broker="a") for _ in range(2)] == [B0, B0]
    assert A0 in [selector.next_queue((A0, A1), avoid_broker="a") for _ in range(2)]


def test_late_broker_that_answers_in_time_again_gets_messages_at_once() -> None:
    selector = QueueSelector(lambda: 0)
    selector.note_latency("a", LATE_MS, 0)
    meanwhile = [selector.next_queue(QUEUES, now_ms=1) for _ in QUEUES]
    selector.note_latency("a", 1, 1)

    assert meanwhile == [B0, B0, B0]
    assert {selector.next_queue(QUEUES, now_ms=1) for _ in QUEUES} == set(QUEUES)


def test_key_finds_the_queue_that_javas_hash_says() -> None:
    # "polygenelubricants".hashCode() is Integer.MIN_VALUE, "N123".hashCode() 2372388.
    assert QUEUES[2**31 % 3] == select_queue_by_key(QUEUES, "polygenelubricants")
    assert QUEUES[2372388 % 3] == select_queue_by_key(QUEUES, "N123")


@given(st.text(), st.integers(min_value=1, max_value=9))
def test_key_always_finds_the_same_queue(key: str, count: int) -> None:
    queues = [MessageQueue("T", "b", n) for n in range(count)]

    assert select_queue_by_key(queues, key) == select_queue_by_key(queues, key)

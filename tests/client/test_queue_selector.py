"""Which queue a message goes to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sparrowmq.client.queue_selector import QueueSelector, select_queue_by_key
from sparrowmq.model import MessageQueue

A0, A1, B0 = (MessageQueue("T", name[0], int(name[1])) for name in ("a0", "a1", "b0"))
QUEUES = (A0, A1, B0)


def test_queues_come_in_turn() -> None:
    selector = QueueSelector(start=4)

    assert [B0, A0, A1, B0] == [selector.next_queue(QUEUES) for _ in range(4)]


def test_broker_that_failed_is_avoided_while_there_is_another() -> None:
    selector = QueueSelector()

    assert [B0, B0] == [selector.next_queue(QUEUES, avoid_broker="a") for _ in range(2)]
    assert A0 in [selector.next_queue((A0, A1), avoid_broker="a") for _ in range(2)]


def test_key_finds_the_queue_that_javas_hash_says() -> None:
    # "polygenelubricants".hashCode() is Integer.MIN_VALUE, "N123".hashCode() 2372388.
    assert QUEUES[2**31 % 3] == select_queue_by_key(QUEUES, "polygenelubricants")
    assert QUEUES[2372388 % 3] == select_queue_by_key(QUEUES, "N123")


@given(st.text(), st.integers(min_value=1, max_value=9))
def test_key_always_finds_the_same_queue(key: str, count: int) -> None:
    queues = [MessageQueue("T", "b", n) for n in range(count)]

    assert select_queue_by_key(queues, key) == select_queue_by_key(queues, key)

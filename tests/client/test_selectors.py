"""Named ways to choose a queue, and keeping away from brokers that answer late."""

from __future__ import annotations

from collections import Counter

import pytest

from sparrowmq import (
    Message,
    MessageQueue,
    select_at_random,
    select_by_hash,
    select_by_machine_room,
    select_in_turn,
)
from sparrowmq.client.queue_selector import LATE_MS, QueueSelector

QUEUES = [MessageQueue("T", name, n) for name in ("r1@a", "r2@b", "c") for n in range(2)]


def message(body: bytes) -> Message:
    return Message("T", body)


def test_hash_gives_one_text_one_queue_and_texts_several() -> None:
    select = select_by_hash(lambda message: message.body.decode())

    chosen = [select(QUEUES, message(b"%d" % (n % 20))) for n in range(40)]

    assert chosen[:20] == chosen[20:]
    assert len(set(chosen)) > 3


def test_random_reaches_every_queue() -> None:
    assert set(QUEUES) == {select_at_random(QUEUES, message(b"x")) for _ in range(1_000)}


def test_in_turn_takes_each_queue_as_often() -> None:
    select = select_in_turn()

    used = Counter(select(QUEUES, message(b"x")) for _ in range(18))

    assert dict.fromkeys(QUEUES, 3) == used


@pytest.mark.parametrize(
    ("rooms", "names"), [(("r1",), {"r1@a"}), (("r1", "r2"), {"r1@a", "r2@b"})]
)
def test_machine_room_takes_its_own_queues(rooms: tuple[str, ...], names: set[str]) -> None:
    select = select_by_machine_room(*rooms)

    assert names == {select(QUEUES, message(b"x")).broker_name for _ in range(12)}


def test_machine_room_that_is_not_there_takes_all_queues() -> None:
    select = select_by_machine_room("r9")

    assert set(QUEUES) == {select(QUEUES, message(b"x")) for _ in range(6)}


@pytest.mark.parametrize(
    ("latency_ms", "avoided_ms"),
    [(549, 0), (550, 30_000), (1_000, 60_000), (3_000, 180_000), (15_000, 600_000)],
)
def test_broker_that_answers_late_is_avoided_for_a_while(latency_ms: int, avoided_ms: int) -> None:
    selector = QueueSelector(lambda: 0)
    selector.note_latency("c", latency_ms, now_ms=100)

    def names(now_ms: int) -> set[str]:
        return {selector.next_queue(QUEUES, now_ms=now_ms).broker_name for _ in range(6)}

    assert ("c" in names(100)) is (avoided_ms == 0)
    if avoided_ms:
        assert "c" not in names(100 + avoided_ms - 1)
    assert "c" in names(100 + avoided_ms)


def test_broker_that_answers_in_time_again_is_taken_again() -> None:
    selector = QueueSelector(lambda: 0)
    selector.note_latency("c", LATE_MS, now_ms=0)
    selector.note_latency("c", 5, now_ms=10)

    assert "c" in {selector.next_queue(QUEUES, now_ms=10).broker_name for _ in range(6)}


def test_while_all_are_late_all_are_taken() -> None:
    selector = QueueSelector(lambda: 0)
    for name in ("r1@a", "r2@b", "c"):
        selector.note_latency(name, LATE_MS, now_ms=0)

    assert set(QUEUES) == {selector.next_queue(QUEUES, now_ms=1) for _ in range(6)}

"""Messages that go back to the broker: each once, and consumed here where that fails."""

from __future__ import annotations

from collections.abc import Iterable

from queue_messages import QUEUE, message
from sparrowmq.membership.process_queue import ProcessQueue
from sparrowmq.membership.repeated_job import LOST_MS
from sparrowmq.membership.send_backs import EXPIRED_DELAY_LEVEL, LOCAL_RETRY_MS, SendBacks
from sparrowmq.model import MessageExt


def taken(count: int) -> tuple[ProcessQueue, SendBacks, list[MessageExt]]:
    """Return a queue whose first messages the listener has had since time 0."""
    queue = ProcessQueue(QUEUE, now_ms=0)
    queue.start(0, now_ms=0)
    queue.add([message(offset) for offset in range(count)], next_offset=count)
    return queue, SendBacks(queue), queue.take_batch(count, now_ms=0)


def offsets_of(messages: Iterable[MessageExt]) -> list[int]:
    return [each.queue_offset for each in messages]


def test_message_is_finished_once_the_broker_has_it() -> None:
    queue, backs, messages = taken(2)
    backs.add(messages[:1], 3)
    assert not backs.are_settled

    ((sent, level),) = backs.begin(5)
    assert (offsets_of(sent), level, backs.are_under_way) == ([0], 3, True)
    assert queue.commit_offset == 0

    backs.end(done=[0], failed=[], now_ms=6)
    assert (queue.commit_offset, backs.are_settled) == (1, True)


def test_message_under_way_or_finished_is_not_sent_again() -> None:
    queue, backs, messages = taken(2)
    backs.add(messages[:1], 0)
    backs.begin(0)
    queue.complete([1])

    backs.add(messages, 0)

    assert backs.begin(1) == []


def test_message_that_cannot_be_sent_back_is_consumed_here_after_a_wait() -> None:
    queue, backs, messages = taken(1)
    backs.add(messages, 0)
    backs.begin(0)

    backs.end(done=[], failed=[0], now_ms=10)
    assert (backs.retry_count, backs.retries_due_ms) == (1, [10 + LOCAL_RETRY_MS])
    backs.retry(9 + LOCAL_RETRY_MS)
    assert queue.pending_count == 0

    backs.retry(10 + LOCAL_RETRY_MS)
    (again,) = queue.take_batch(1, now_ms=10 + LOCAL_RETRY_MS)
    assert (again.reconsume_times, backs.are_settled) == (1, True)


def test_request_without_an_answer_counts_as_failed_after_its_bound() -> None:
    _, backs, messages = taken(1)
    backs.add(messages, 0)
    backs.begin(0)

    backs.begin(LOST_MS)
    assert (backs.are_under_way, backs.retry_count) == (True, 0)
    backs.begin(LOST_MS + 1)
    assert (backs.are_under_way, backs.retry_count) == (False, 1)


def test_late_answer_finishes_a_message_that_waits_to_be_consumed_here() -> None:
    queue, backs, messages = taken(1)
    backs.add(messages, 0)
    backs.begin(0)
    backs.begin(LOST_MS + 1)

    backs.end(done=[0], failed=[], now_ms=LOST_MS + 2)
    backs.retry(2 * LOST_MS)

    assert (queue.count, queue.pending_count, queue.commit_offset) == (0, 0, 1)


def test_expired_message_whose_result_comes_before_it_is_sent_back_is_sent_once_or_not() -> None:
    queue, backs, messages = taken(3)
    backs.add_expired(1_001, timeout_ms=1_000)

    # The listener fails for the first and is done with the second.
    backs.add(messages[:1], 5)
    queue.complete([1])

    sent = [(offsets_of(some), level) for some, level in backs.begin(1_002)]
    assert sent == [([0, 2], EXPIRED_DELAY_LEVEL)]


def test_expired_message_is_sent_back_once() -> None:
    _, backs, _ = taken(2)

    backs.add_expired(1_001, timeout_ms=1_000)
    backs.add_expired(1_002, timeout_ms=1_000)

    ((sent, level),) = backs.begin(1_002)
    assert (offsets_of(sent), level) == ([0, 1], EXPIRED_DELAY_LEVEL)
    backs.end(done=[], failed=[0, 1], now_ms=1_003)
    backs.add_expired(1_004, timeout_ms=1_000)
    assert backs.begin(1_004) == []

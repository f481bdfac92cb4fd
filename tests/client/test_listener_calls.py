"""How many tasks call a listener; and listeners that never return: told once, when all hang."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from sparrowmq import (
    ConsumeStatus,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PushConsumer,
    UsageError,
)
from sparrowmq.client.listener_calls import (
    AHEAD_MAX,
    PATIENCE_MS,
    Handed,
    ListenerCalls,
    ListenersStuck,
    Pace,
)
from sparrowmq.client.running_info import describe
from sparrowmq.membership.actions import Deliver
from sparrowmq.membership.deliveries import Deliveries
from sparrowmq.membership.owned_queue import OwnedQueue
from sparrowmq.membership.queue_callbacks import QueueCallbacks
from sparrowmq.membership.queue_lease import QueueLease
from sparrowmq.testing.embedded import EmbeddedCluster
from waiting import wait_until

QUEUE = MessageQueue("T", "b", 3)


def message(number: int) -> MessageExt:
    return MessageExt(
        topic="T",
        body=b"x",
        properties={},
        broker_name="b",
        queue_id=3,
        queue_offset=number,
        commit_log_position=number,
    )


def under_way(*begun: tuple[int, int]) -> Deliveries:
    """Calls by the number of their message and their beginning."""
    owned = OwnedQueue(
        QUEUE,
        epoch=1,
        lease=QueueLease(is_wanted=False),
        calls=QueueCallbacks(is_wanted=False),
        now_ms=0,
    )
    owned.acquired(begun[0][0] if begun else 0, is_committed=True, lock_sent_ms=None, now_ms=0)
    deliveries = Deliveries(count_max=len(begun), batch_size=1, is_in_order=False)
    for number, begun_ms in begun:
        owned.process_queue.add([message(number)], next_offset=number + 1)
        deliveries.begin({QUEUE: owned}, begun_ms)
    return deliveries


@pytest.fixture
def calls() -> ListenerCalls:
    return ListenerCalls()


def find(
    calls: ListenerCalls, now_ms: int, *begun: tuple[int, int], count: int = 2
) -> ListenersStuck | None:
    return calls.find_stuck(under_way(*begun), now_ms, call_count_max=count, timeout_ms=1_000)


def test_all_must_have_run_too_long(calls: ListenerCalls) -> None:
    both = ((1, 0), (2, 500))

    assert find(calls, 1_500, *both) is None
    assert find(calls, 9_000, *both, count=3) is None
    assert find(calls, 1_501, *both) == ListenersStuck(2, 1_001, 1_501, ("T/b/3/1", "T/b/3/2"))


def test_pace_is_of_this_minute_and_the_one_before(calls: ListenerCalls) -> None:
    calls.ended("T", 2_000, calls=1, duration_ms=2_000, done=1)
    calls.ended("T", 1_500, calls=1, duration_ms=1_000, done=0, failed=1)

    assert calls.pace("T", 10_000) == Pace(1_500.0, 0.1, 0.1)
    calls.ended("T", 70_000, calls=1, duration_ms=6_000, done=1)
    assert calls.pace("T", 80_000) == Pace(3_000.0, 2 / 80, 1 / 80)
    # The first minute is too long ago.
    assert calls.pace("T", 130_000) == Pace(6_000.0, 1 / 70, 0.0)
    assert Pace() == calls.pace("T", 190_000) == calls.pace("other", 80_000)


def test_it_is_told_once_until_one_returns(calls: ListenerCalls) -> None:
    assert find(calls, 5_000, (1, 0), (2, 500)) is not None
    assert find(calls, 6_000, (1, 0), (2, 500)) is None

    calls.ended("T", 6_000, calls=1, duration_ms=6_000, done=1)
    assert find(calls, 7_000, (2, 500)) is None
    assert find(calls, 8_000, (2, 500), (3, 7_000)) is None
    again = find(calls, 8_001, (2, 500), (3, 7_000))

    assert again is not None
    assert again.messages == ("T/b/3/2", "T/b/3/3")


def test_nothing_is_stuck_where_nothing_may_run(calls: ListenerCalls) -> None:
    assert find(calls, 9_000, count=0) is None


# --- how many tasks make the calls ----------------------------------------------------------------


def hand_over(calls: ListenerCalls, count: int) -> None:
    """Add a delivery with so many calls; two for several."""
    for numbers in (range(count // 2), range(count // 2, count)):
        batches = tuple((message(number),) for number in numbers)
        if batches:
            delivery = Deliver(QUEUE, 1, numbers.start, batches)
            calls.add(Handed.of(delivery, QUEUE, batches))


def begin(calls: ListenerCalls, now_ms: int, *, under_way: int) -> int:
    return calls.begin_tasks(now_ms, call_count=under_way, task_count_max=20)


def begin_call(calls: ListenerCalls) -> tuple[Handed, int, Any]:
    """Have a task begin a call; return its delivery, its place and its arguments."""
    handed = next(handed for handed in calls.in_hand if handed.waiting)
    begun = handed.begin()
    assert begun is not None
    return handed, *begun


def end_task(calls: ListenerCalls, *durations_ms: int) -> None:
    """Have a task make so many calls of those that wait."""
    for duration_ms in durations_ms:
        handed, at, arguments = begin_call(calls)
        handed.end(at, arguments, None, None, duration_ms)
    calls.task_ended()
    ended = calls.take_ended()
    assert len(durations_ms) == sum(len(each.done) for each in ended)
    assert sum(durations_ms) == sum(each.duration_ms for each in ended)


@pytest.fixture
def quick(calls: ListenerCalls) -> ListenerCalls:
    """Calls of a listener that has shown to be quick."""
    hand_over(calls, 8)
    assert begin(calls, 0, under_way=8) == 8
    end_task(calls, *[0] * 8)
    for _ in range(7):
        end_task(calls)
    return calls


def test_calls_run_side_by_side_as_long_as_nobody_knows_how_long_they_take(
    calls: ListenerCalls,
) -> None:
    hand_over(calls, 3)

    assert (begin(calls, 0, under_way=3), calls.ahead_max) == (3, 0)
    # They have begun nothing yet.
    assert begin(calls, 0, under_way=3) == 0
    hand_over(calls, 30)
    assert begin(calls, 0, under_way=33) == 17
    end_task(calls, 0, 0)
    assert begin(calls, 0, under_way=31) == 1


def test_quick_listener_keeps_one_task_and_has_calls_ahead(quick: ListenerCalls) -> None:
    hand_over(quick, 100)

    assert (begin(quick, 7, under_way=100), quick.ahead_max) == (1, AHEAD_MAX)
    assert begin(quick, 8, under_way=100) == 0
    end_task(quick, *[0] * 60, 1, 1)
    assert (begin(quick, 9, under_way=38), quick.ahead_max) == (1, AHEAD_MAX)
    assert quick.next_due_ms(9) == 9 + PATIENCE_MS


@pytest.mark.parametrize("durations_ms", [(0, 2), (1, 1), (0,) * 9 + (3,)])
def test_listener_that_takes_its_time_is_not_quick_any_more(
    quick: ListenerCalls, durations_ms: tuple[int, ...]
) -> None:
    hand_over(quick, 20)
    assert begin(quick, 0, under_way=20) == 1

    end_task(quick, *durations_ms)

    left = 20 - len(durations_ms)
    assert (begin(quick, 1, under_way=left), quick.ahead_max) == (left, 0)


def test_listener_that_takes_long_to_fail_is_not_quick(quick: ListenerCalls) -> None:
    hand_over(quick, 4)
    handed, at, arguments = begin_call(quick)
    handed.end(at, arguments, None, ValueError(), 30)
    quick.take_ended()

    assert (quick.is_quick, begin(quick, 0, under_way=3)) == (False, 3)


@pytest.mark.parametrize(("stalls_ms", "is_quick"), [((30,), True), ((30, 40), False)])
def test_quick_listener_may_stand_still_for_a_moment(
    quick: ListenerCalls, stalls_ms: tuple[int, ...], is_quick: bool
) -> None:
    for _ in range(100):
        hand_over(quick, 10)
        end_task(quick, *[0] * 10)

    for stall_ms in stalls_ms:
        hand_over(quick, 1)
        end_task(quick, stall_ms)

    assert is_quick == quick.is_quick


def test_calls_behind_one_that_takes_long_go_back_after_a_moment(quick: ListenerCalls) -> None:
    hand_over(quick, 30)
    assert begin(quick, 0, under_way=30) == 1
    begin_call(quick)

    assert quick.take_back(PATIENCE_MS - 1, is_suspended=False) == []
    back = quick.take_back(PATIENCE_MS, is_suspended=False)

    places = {delivery.delivery_id + at for delivery, calls in back for at in calls}
    assert set(range(1, 30)) == places
    hand_over(quick, 19)
    assert begin(quick, PATIENCE_MS, under_way=20) == 19
    assert quick.take_back(PATIENCE_MS, is_suspended=False) == []
    assert quick.next_due_ms(2 * PATIENCE_MS) is None


def test_calls_that_have_not_begun_go_back_when_consumption_is_suspended(
    calls: ListenerCalls,
) -> None:
    hand_over(calls, 2)
    begin(calls, 0, under_way=2)
    handed, at, arguments = begin_call(calls)

    ((back, places),) = calls.take_back(0, is_suspended=True)

    assert (back.batches, places) == (((message(1),),), [0])
    handed.end(at, arguments, None, None, 0)
    assert [each.done for each in calls.take_ended()] == [[0]]
    assert (calls.in_hand, list(calls.waiting)) == ([], [])


def test_calls_that_decide_more_than_done_are_told_one_by_one(calls: ListenerCalls) -> None:
    hand_over(calls, 8)
    second = calls.in_hand[1]
    begun = [begin_call(calls) for _ in range(8)]
    contexts = [arguments[1] for _, _, arguments in begun]
    contexts[4].retry()
    contexts[5].ack_index = -1
    outcomes = [
        (None, None),
        (ConsumeStatus.CONSUME_SUCCESS, None),
        (ConsumeStatus.RECONSUME_LATER, None),
        (None, ValueError()),
        (None, None),
        (None, None),
        (7, None),
    ]
    for (handed, at, arguments), (value, error) in zip(begun, outcomes, strict=False):
        handed.end(at, arguments, value, error, 1)

    ended = calls.take_ended()

    assert [(each.done, each.duration_ms) for each in ended] == [([0, 1], 2), ([], 0)]
    others = [(each.at, each.value) for one in ended for each in one.others]
    assert others == [(2, ConsumeStatus.RECONSUME_LATER), (3, None), (0, None), (1, None), (2, 7)]
    assert calls.in_hand == [second]
    with pytest.raises(UsageError, match="has returned"):
        contexts[0].ack()
    contexts[7].ack()


def test_traced_call_is_a_delivery_of_its_own(calls: ListenerCalls) -> None:
    hand_over(calls, 1)
    one = calls.split()
    assert one is not None
    assert (calls.in_hand, list(calls.waiting), calls.split()) == ([], [], None)

    begun = one.begin()
    assert begun is not None
    one.end(*begun, None, None, 3)

    assert one.take_ended()[1:] == ([0], 3, [])


@pytest.mark.slow
def test_one_slow_call_does_not_hold_up_the_others_of_a_quick_listener(
    cluster: EmbeddedCluster, producer: Producer, group: str, free: threading.Event
) -> None:
    topic = f"T_{group}"
    cluster.create_topic(topic, queues=1)
    done: list[bytes] = []

    def listen(messages: list[MessageExt], _: object) -> None:
        if messages[0].body == b"500":
            free.wait(60)
        done.append(messages[0].body)

    for first in range(0, 1_000, 100):
        batch = [Message(topic, b"%d" % n) for n in range(first, first + 100)]
        producer.send_batch(batch)
    with PushConsumer(
        group, topic, name_server=cluster.name_server, listener=listen, start="first"
    ) as consumer:
        wait_until("all others", lambda: len(done) == 999)
        free.set()
        wait_until("the slow one", lambda: len(done) == 1_000)
        assert consumer.wait_idle()

    assert {b"%d" % n for n in range(1_000)} == set(done)


@pytest.fixture
def free() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.slow
@pytest.mark.parametrize(("orderly", "call_count"), [(False, 2), (True, 1)])
def test_consumer_warns_goes_on_when_one_returns_and_loses_nothing(
    cluster: EmbeddedCluster,
    producer: Producer,
    group: str,
    free: threading.Event,
    caplog: pytest.LogCaptureFixture,
    *,
    orderly: bool,
    call_count: int,
) -> None:
    caplog.set_level(logging.WARNING, "sparrowmq.client")
    topic = f"T_{group}"
    cluster.create_topic(topic, queues=1)
    done: set[bytes] = set()

    def listen(messages: list[MessageExt], _: object) -> None:
        free.wait(60)
        done.update(message.body for message in messages)

    consumer = PushConsumer(
        group,
        name_server=cluster.name_server,
        listener=listen,
        orderly=orderly,
        start="first",
        consume_thread_count=2,
        consume_timeout_ms=1_000,
    )
    sent = {b"%d" % n for n in range(6)}
    with consumer:
        consumer.subscribe(topic)
        consumer.start()
        for body in sorted(sent):
            producer.send(Message(topic, body))
        wait_until("the warning", lambda: "without returning" in caplog.text)
        info = describe(consumer._subscriber, now_ms=1 << 40, timestamp_ms=1 << 50)
        told = [r.getMessage() for r in caplog.records if "without returning" in r.getMessage()]
        free.set()
        wait_until("all messages", lambda: sent == done)

    assert [text[text.index("all ") : text.index(" that may")] for text in told] == [
        f"all {call_count} calls of the listener"
    ]
    assert f"{topic}/broker-a/0/0" in told[0]
    assert f"consumer group {group}" in told[0]
    assert f"--pid {os.getpid()}" in told[0]
    assert str(call_count) == info.properties["listenerCalls"]
    assert int(info.properties["listenerCallsLongestMs"]) > 1_000


@pytest.mark.slow
def test_message_of_a_listener_that_never_returns_comes_again_elsewhere(
    cluster: EmbeddedCluster,
    producer: Producer,
    group: str,
    free: threading.Event,
) -> None:
    """Closing a consumer whose listener hangs takes as long as it says, and loses nothing."""
    topic = f"T_{group}"
    cluster.create_topic(topic, queues=1)
    hangs, done = threading.Event(), threading.Event()
    settings: Any = {
        "name_server": cluster.name_server,
        "drain_timeout_ms": 200,
        "start": "first",
    }

    def hang(_: object, __: object) -> None:
        hangs.set()
        free.wait(60)

    first = PushConsumer(group, listener=hang, **settings)
    second = PushConsumer(group, listener=lambda *_: done.set(), **settings)
    with second, first:
        for consumer in (first, second):
            consumer.subscribe(topic)
        first.start()
        producer.send(Message(topic, b"x"))
        assert hangs.wait(60)
        closing = threading.Thread(target=first.close)
        begun_s = time.monotonic()
        closing.start()
        second.start()
        assert done.wait(60)
        closing.join(60)

        assert not closing.is_alive()
        assert time.monotonic() - begun_s < 18

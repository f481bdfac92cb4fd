"""What becomes of messages that concurrent listeners do not consume, against a real broker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from play import make_idle_subscriber
from sparrowmq import (
    Admin,
    AsyncProducer,
    AsyncPushConsumer,
    ConsumeContext,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    ConsumeStatus,
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
    PollConsumer,
    Producer,
    PushConsumer,
)
from sparrowmq.broker.state import COMMIT_AHEAD_MAX
from sparrowmq.client.listener_calls import Returned
from sparrowmq.client.operations import deliver
from sparrowmq.errors import TopicRouteNotFound, UsageError
from sparrowmq.membership.actions import Deliver
from sparrowmq.membership.in_order import OrderlyOutcome
from sparrowmq.model.names import dlq_topic
from sparrowmq.protocol.trace import ConsumedCode
from sparrowmq.testing.embedded import EmbeddedCluster
from waiting import wait_until

PATIENCE_S = 60
QUEUE = MessageQueue("T", "a", 0)


@pytest.fixture
def dead_letters(cluster: EmbeddedCluster, group: str) -> Iterator[Callable[[], list[MessageExt]]]:
    """Read the group's dead letters, by hand as an operator does."""
    with PollConsumer("GID_operator", name_server=cluster.name_server) as reader:
        queues: list[MessageQueue] = []

        def has_topic() -> bool:
            try:
                queues[:] = reader.fetch_subscribe_queues(dlq_topic(group))
            except TopicRouteNotFound:
                return False
            return True

        def read() -> list[MessageExt]:
            wait_until("the topic of the dead letters", has_topic)
            return [message for queue in queues for message in reader.pull(queue, 0).messages]

        yield read


@pytest.mark.slow
@pytest.mark.parametrize(
    ("delay_level", "max_reconsume_times"), [(0, 0), (-1, None), (-1, 16)], ids=str
)
def test_message_that_may_not_come_again_is_a_dead_letter(
    start_consumer: Callable[..., PushConsumer],
    producer: Producer,
    admin: Admin,
    dead_letters: Callable[[], list[MessageExt]],
    topic: str,
    group: str,
    delay_level: int,
    max_reconsume_times: int | None,
) -> None:
    def listener(messages: list[MessageExt], context: ConsumeContext) -> ConsumeStatus:
        context.delay_level = delay_level
        return ConsumeStatus.RECONSUME_LATER

    sent = producer.send(Message(topic, b"poison", tags="A", keys=("k",)))
    consumer = start_consumer(listener, max_reconsume_times=max_reconsume_times)
    wait_until("the message sent back", lambda: consumer.counters.sent_back == 1)
    (letter,) = dead_letters()

    assert (
        letter.body,
        letter.tags,
        letter.keys,
        letter.reconsume_times,
    ) == (b"poison", "A", ("k",), 1)
    assert topic == letter.properties["RETRY_TOPIC"]
    assert sent.offset_msg_id == letter.properties["ORIGIN_MESSAGE_ID"]
    wait_until("the commit", lambda: sum(g.lag for g in admin.group_lag(group, topic)) == 0)


@pytest.mark.slow
@pytest.mark.parametrize("raises", [False, True])
def test_messages_are_delivered_until_the_times_allowed_are_used_up(
    start_consumer: Callable[..., PushConsumer],
    producer: Producer,
    dead_letters: Callable[[], list[MessageExt]],
    topic: str,
    caplog: pytest.LogCaptureFixture,
    *,
    raises: bool,
) -> None:
    times: list[int] = []
    others: list[bytes] = []

    def listener(messages: list[MessageExt], context: ConsumeContext) -> ConsumeStatus:
        if messages[0].body != b"poison":
            others.extend(message.body for message in messages)
            return ConsumeStatus.CONSUME_SUCCESS
        times.extend(message.reconsume_times for message in messages)
        context.delay_level = 1
        if raises:
            raise ValueError("no such flight")
        return ConsumeStatus.RECONSUME_LATER

    consumer = start_consumer(listener, max_reconsume_times=2)
    queue = producer.fetch_publish_queues(topic)[0]
    sent = [producer.send(Message(topic, body), queue=queue) for body in (b"poison", b"1", b"2")]
    wait_until("the last time sent back", lambda: consumer.counters.sent_back == 3)
    wait_until("those behind it", lambda: sorted(others) == [b"1", b"2"])

    assert times == [0, 1, 2]
    assert [letter.body for letter in dead_letters()] == [b"poison"]
    (line,) = [line for line in caplog.messages if "is now a dead letter in" in line]
    assert f"after 3 deliveries: {sent[0].msg_id} of {topic};" in line
    failures = [line for line in caplog.messages if "the listener failed" in line]
    assert (["to be delivered again"] * 2 + ["to be kept as dead letters"] if raises else []) == [
        wanted
        for wanted in ("to be delivered again", "to be kept as dead letters")
        for line in failures
        if wanted in line
    ]


@pytest.mark.slow
@pytest.mark.parametrize("orderly", [False, True])
def test_message_that_nobody_keeps_is_named_in_the_log(
    start_consumer: Callable[..., PushConsumer],
    producer: Producer,
    topic: str,
    caplog: pytest.LogCaptureFixture,
    *,
    orderly: bool,
) -> None:
    """BROADCASTING sends nothing back."""
    later = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
    consumer = start_consumer(
        lambda *_: later if orderly else ConsumeStatus.RECONSUME_LATER,
        message_model=MessageModel.BROADCASTING,
        orderly=orderly,
        max_reconsume_times=0,
    )
    sent = producer.send(Message(topic, b"poison"))
    wait_until("the failure", lambda: consumer.counters.failed == 1)
    wait_until("the line", lambda: "is given up (BROADCASTING" in caplog.text)

    assert f"after 1 delivery: {sent.msg_id} of {topic};" in caplog.text


@pytest.mark.slow
def test_log_calls_no_message_of_broadcasting_a_dead_letter(
    start_consumer: Callable[..., PushConsumer],
    producer: Producer,
    topic: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def listener(_: list[MessageExt], context: ConsumeContext) -> None:
        context.dead_letter(reason="no such flight")

    consumer = start_consumer(listener, message_model=MessageModel.BROADCASTING)
    sent = producer.send(Message(topic, b"dead"))
    wait_until("the failure", lambda: consumer.counters.failed == 1)
    wait_until("the line", lambda: "no such flight" in caplog.text)

    assert f"gives message {sent.msg_id}" in caplog.text
    assert "(BROADCASTING has no dead letters): no such flight" in caplog.text
    assert "a dead letter:" not in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("stored", [3, 3 + COMMIT_AHEAD_MAX], ids=["at the end", "beyond the end"])
def test_consumption_goes_on_where_the_committed_offset_does_not_exist(
    start_consumer: Callable[..., PushConsumer],
    producer: Producer,
    admin: Admin,
    topic: str,
    group: str,
    stored: int,
) -> None:
    bodies: list[bytes] = []
    queue = producer.fetch_publish_queues(topic)[0]
    producer.send_batch([Message(topic, b"old")] * 3, queue=queue)
    admin.update_committed_offset(group, queue, stored)
    consumer = start_consumer(lambda messages, _: bodies.extend(m.body for m in messages))
    wait_until("the assignment", lambda: len(consumer.assignment()) == 8)
    wait_until("the corrected offset", lambda: admin.committed_offset(group, queue) == 3)

    producer.send(Message(topic, b"new"), queue=queue)
    wait_until("the new message", lambda: bodies)

    assert bodies == [b"new"]


@pytest.mark.slow
def test_slow_listener_holds_the_buffer_within_its_bounds(
    start_consumer: Callable[..., PushConsumer], producer: Producer, topic: str
) -> None:
    gate = threading.Event()
    queue = producer.fetch_publish_queues(topic)[0]
    for _ in range(40):
        producer.send_batch([Message(topic, b"x")] * 50, queue=queue)
    consumer = start_consumer(lambda *_: gate.wait(PATIENCE_S) and None, pull_batch_size=32)
    # A pull is asked for as long as no more than 1000 messages are cached.
    wait_until("the bound", lambda: consumer.counters.pulled > 1_000)
    held = consumer.counters.pulled
    gate.set()
    wait_until("all", lambda: consumer.counters.succeeded == 2_000)

    assert 1_000 < held <= 1_000 + 32


@pytest.mark.slow
@pytest.mark.parametrize("raises", [False, True])
def test_decisions_on_single_messages_go_before_the_return(
    start_consumer: Callable[..., PushConsumer],
    producer: Producer,
    admin: Admin,
    topic: str,
    group: str,
    caplog: pytest.LogCaptureFixture,
    *,
    raises: bool,
) -> None:
    calls: list[tuple[bytes, int]] = []

    def listener(messages: list[MessageExt], context: ConsumeContext) -> None:
        calls.extend((message.body, message.reconsume_times) for message in messages)
        for message in messages:
            if message.reconsume_times or message.body == b"ack":
                context.ack(message)
            elif message.body == b"retry":
                context.retry(message, delay=timedelta(seconds=1))
            elif message.body == b"dead":
                context.dead_letter(message, reason="no such flight")
        context.delay_level = 1
        if raises:
            raise ValueError("the others")

    queue = producer.fetch_publish_queues(topic)[0]
    bodies = (b"dead", b"ack", b"other", b"retry")
    producer.send_batch([Message(topic, body) for body in bodies], queue=queue)
    consumer = start_consumer(listener, consume_message_batch_max_size=8)
    again = {b"retry", b"other"} if raises else {b"retry"}
    wait_until("what comes again", lambda: len(calls) == len(bodies) + len(again))
    assert consumer.wait_idle()

    assert [(body, 0) for body in bodies] == calls[:4]
    assert {(body, 1) for body in again} == set(calls[4:])
    assert {queue.lag for queue in admin.group_lag(group, topic)} == {0}
    counters = consumer.counters
    assert (1 + len(again), 1 + len(again)) == (counters.failed, counters.sent_back)
    assert "a dead letter: no such flight" in caplog.text
    (letter,) = admin.dead_letters(group)
    assert letter.body == b"dead"

    # That it comes again, 10 s later, stands in cli/test_messages.py.
    assert admin.resend_dead_letters(group, [letter]) == 1


@pytest.mark.slow
def test_what_is_sent_once_a_member_is_assigned_is_delivered(
    start_consumer: Callable[..., PushConsumer], producer: Producer, topic: str
) -> None:
    got: list[bytes] = []
    consumer = start_consumer(
        lambda messages, _: got.extend(message.body for message in messages),
        start="last",
    )

    assigned = consumer.wait_assigned()
    for queue in assigned:
        producer.send(Message(topic, b"after"), queue=queue)

    assert sorted(producer.fetch_publish_queues(topic)) == assigned
    assert consumer.wait_idle()
    assert [b"after"] * len(assigned) == got


@pytest.mark.slow
async def test_waits_end_with_their_time(cluster: EmbeddedCluster, topic: str, group: str) -> None:
    hold = asyncio.Event()

    async def listener(messages: list[MessageExt], context: ConsumeContext) -> None:
        await hold.wait()

    settings: dict[str, Any] = {"name_server": cluster.name_server}
    async with (
        AsyncProducer("GID_p", **settings) as producer,
        AsyncPushConsumer(group, listener=listener, start="first", **settings) as member,
    ):
        with pytest.raises(UsageError, match="is not started"):
            await member.wait_idle()
        await member.subscribe(topic)
        await member.start()
        assert await member.wait_assigned(timeout_ms=0) == []
        assert await member.wait_assigned()
        assert await member.wait_idle()
        await producer.send(Message(topic, b"x"))
        assert not await member.wait_idle(timeout_ms=100)
        hold.set()
        assert await member.wait_idle()


@pytest.mark.slow
def test_only_dead_letters_of_the_group_are_sent_again(
    admin: Admin, producer: Producer, topic: str, group: str
) -> None:
    other = MessageExt(
        topic=topic,
        body=b"x",
        properties={},
        broker_name="broker-a",
        queue_id=0,
        queue_offset=0,
        commit_log_position=0,
    )

    assert admin.dead_letters(group) == []
    with pytest.raises(UsageError, match="not in %DLQ%"):
        admin.resend_dead_letters(group, [other])
    with pytest.raises(UsageError, match="count_max is 0; it must be from 1 to 100000"):
        admin.dead_letters(group, 0)


# --- what a listener leaves in its context --------------------------------------------------------


def settle(context: Any, value: Any = None) -> tuple[list[Any], Any]:
    """Settle a call of three messages; return what was reported, and the decision on them."""
    reported: list[Any] = []
    subscriber = make_idle_subscriber(orderly=isinstance(context, ConsumeOrderlyContext))
    subscriber.report = reported.append
    messages = tuple(MessageExt("T", b"x", {}, "a", 0, offset, 0) for offset in range(3))
    delivery = Deliver(QUEUE, 1, 1, (messages,))
    returned = Returned(0, messages, context, value, None, 1)
    if isinstance(context, ConsumeOrderlyContext):
        outcomes: list[Any] = []
        member: Any = SimpleNamespace(consumed_in_order=lambda *given: outcomes.append(given[1]))
        subscriber.member = member
        deliver._settle_in_order(subscriber, delivery, returned, 0)
        return reported, outcomes[0]
    return reported, deliver.judge(subscriber, delivery, returned, 0)


@pytest.mark.parametrize(
    ("ack_index", "acked_count"), [(None, 3), (-9, 0), (-1, 0), (0, 1), (2, 3), (9, 3)]
)
def test_ack_index_beyond_the_messages_is_their_end(
    ack_index: int | None, acked_count: int
) -> None:
    _, judged = settle(ConsumeContext(QUEUE, ack_index))

    assert judged.acked_count == acked_count


@pytest.mark.parametrize(
    ("name", "status"), [("ack_index", None), ("delay_level", ConsumeStatus.RECONSUME_LATER)]
)
@pytest.mark.parametrize("given", [timedelta(seconds=1), "1", 0.5])
def test_number_in_the_context_that_is_none_is_the_listeners_failure(
    name: str, status: ConsumeStatus | None, given: Any
) -> None:
    context = ConsumeContext(QUEUE)
    setattr(context, name, given)
    (failure,), judged = settle(context, status)

    assert f"{name} to {given!r}" in str(failure.error)
    assert judged == deliver.Judged(0, 0, {}, ConsumedCode.EXCEPTION)


@pytest.mark.parametrize("given", [None, timedelta(seconds=1), "1"])
def test_pause_in_the_context_that_is_none_is_the_listeners_failure(given: Any) -> None:
    context = ConsumeOrderlyContext(QUEUE)
    context.suspend_ms = given
    suspended = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
    (failure,), outcome = settle(context, suspended)

    assert f"suspend_ms to {given!r}" in str(failure.error)
    assert outcome == OrderlyOutcome(suspended, auto_commit=True, suspend_ms=1_000)


def test_delay_that_the_listener_chose_is_that_of_its_messages() -> None:
    reported, judged = settle(ConsumeContext(QUEUE, None, 4), ConsumeStatus.RECONSUME_LATER)

    assert (reported, judged.acked_count, judged.delay_level) == ([], 0, 4)


def test_single_message_that_the_listener_gives_up_is_named_though_the_call_succeeded() -> None:
    messages = tuple(MessageExt("T", b"x", {}, "a", 0, offset, 0) for offset in range(3))
    context = ConsumeContext(QUEUE, messages=messages)
    context.dead_letter(messages[1], reason="no such flight")
    (chosen,), judged = settle(context)

    assert (chosen.message, chosen.reason) == (messages[1], "no such flight")
    assert judged.code is ConsumedCode.FAILED
    assert [d.level for _, d in judged.decisions(messages)] == [None, -1, None]


def test_listener_gets_a_message_that_comes_again_under_its_own_topic() -> None:
    subscriber = make_idle_subscriber("GID")
    retries = MessageQueue("%RETRY%GID", "a", 0)
    again = MessageExt(retries.topic, b"x", {"RETRY_TOPIC": "T"}, "a", 0, 0, 0)
    deliver.hand_over(subscriber, [Deliver(retries, 1, 1, ((again,),))])

    (handed,) = subscriber.listener_calls.in_hand
    assert [message.topic for batch in handed.batches for message in batch] == ["T"]
    assert subscriber.counters.delivered == 1

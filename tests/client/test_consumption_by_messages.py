"""Push consumers whose members share messages, by both faces against a running broker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from hostile import HostileCluster
from queue_messages import message as message_at
from sparrowmq import (
    Admin,
    AsyncPushConsumer,
    BrokerError,
    ConfigError,
    ConsumeContext,
    Message,
    MessageExt,
    MessageModel,
    Producer,
    PushConsumer,
    SimpleConsumer,
    UsageError,
)
from sparrowmq.calling.effects import Now, Operation
from sparrowmq.client.operations import pop, pop_loop
from sparrowmq.client.operations.pop import PopSource
from sparrowmq.client.subscriber import Subscriber
from sparrowmq.model.consuming import Start
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.testing.embedded import EmbeddedCluster
from waiting import wait_until

# What a slow machine may need; no test waits so long unless it fails.
PATIENCE_S = 120


@pytest.fixture
def producer(cluster: EmbeddedCluster) -> Iterator[Producer]:
    with Producer("GID_p", name_server=cluster.name_server) as opened:
        yield opened


@pytest.fixture
def consume(cluster: EmbeddedCluster, topic: str, group: str) -> Iterator[Callable[..., Any]]:
    """Start consumers of the topic: `consume(listener, **settings)`."""
    with ExitStack() as stack:

        def start(listener: Any, **settings: Any) -> PushConsumer:
            consumer = stack.enter_context(
                PushConsumer(
                    group,
                    name_server=cluster.name_server,
                    listener=listener,
                    balance="messages",
                    start="first",
                    **settings,
                )
            )
            consumer.subscribe(topic)
            consumer.start()
            return consumer

        yield start


def send(producer: Producer, topic: str, *bodies: str) -> None:
    for body in bodies:
        producer.send(Message(topic, body.encode()))


def wait_until_done(cluster: EmbeddedCluster, group: str, topic: str) -> None:
    """Wait until the broker has the acknowledgements of all messages."""
    with Admin(name_server=cluster.name_server) as admin:

        def is_done() -> bool:
            lags = admin.group_lag(group, topic)
            return all(each.committed_offset == each.max_offset for each in lags if each.max_offset)

        wait_until("acknowledgements", is_done, timeout_s=PATIENCE_S)


def test_members_share_one_queue_and_none_holds_messages_that_another_could_take(
    cluster: EmbeddedCluster, producer: Producer, group: str
) -> None:
    cluster.create_topic(topic := f"T_{group}", queues=1)
    send(producer, topic, "a", "b", "c")
    # Passes only if three members have a message each, at once.
    barrier = threading.Barrier(3)
    found: list[bytes] = []

    def listen(messages: list[MessageExt], context: ConsumeContext) -> None:
        barrier.wait(PATIENCE_S)
        found.append(messages[0].body)

    with ExitStack() as stack:
        for number in range(3):
            consumer = stack.enter_context(
                PushConsumer(
                    group,
                    name_server=cluster.name_server,
                    listener=listen,
                    balance="messages",
                    start="first",
                    consume_thread_count=1,
                    instance_name=f"member-{number}",
                )
            )
            consumer.subscribe(topic)
            consumer.start()
        wait_until("three messages", lambda: len(found) == 3, timeout_s=PATIENCE_S)
        wait_until_done(cluster, group, topic)
    assert sorted(found) == [b"a", b"b", b"c"]


def test_message_that_a_new_expression_matches_is_not_passed_over(
    consume: Callable[..., PushConsumer], producer: Producer, topic: str
) -> None:
    found: list[bytes] = []
    consumer = consume(lambda messages, _: found.extend(message.body for message in messages))
    consumer.subscribe(topic, "a")
    producer.send(Message(topic, b"first", tags="a"))
    wait_until("the first", lambda: found == [b"first"], timeout_s=PATIENCE_S)

    consumer.subscribe(topic, "a || b")
    producer.send(Message(topic, b"second", tags="b"))

    wait_until("the second", lambda: found == [b"first", b"second"], timeout_s=PATIENCE_S)


def test_failed_messages_come_again_and_then_are_dead_letters(
    cluster: EmbeddedCluster,
    consume: Callable[..., Any],
    producer: Producer,
    topic: str,
    group: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    attempts: list[int] = []

    def listen(messages: list[MessageExt], context: ConsumeContext) -> None:
        attempts.append(messages[0].reconsume_times)
        context.retry(delay=timedelta(seconds=1))

    consumer = consume(listen, max_reconsume_times=1)
    send(producer, topic, "a")
    wait_until_done(cluster, group, topic)

    assert attempts == [0, 1]
    assert consumer.counters.failed == consumer.counters.sent_back == 2
    with SimpleConsumer(f"{group}_letters", name_server=cluster.name_server) as letters:
        letters.subscribe(f"%DLQ%{group}")
        (letter,) = letters.receive(wait=timedelta(seconds=30))
        assert letter.body == b"a"
    assert f"is now a dead letter in %DLQ%{group}" in caplog.text


def test_a_listener_that_raises_has_its_messages_again_after_the_delay_of_the_attempt(
    cluster: EmbeddedCluster,
    consume: Callable[..., Any],
    producer: Producer,
    topic: str,
    group: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pop_loop, "DELAY_LEVELS_MS", (0, 0, 100, 200))
    attempts: list[int] = []

    def listen(messages: list[MessageExt], context: ConsumeContext) -> None:
        attempts.append(messages[0].reconsume_times)
        if len(attempts) < 4:
            raise ValueError("not yet")

    consume(listen)
    send(producer, topic, "a")
    wait_until_done(cluster, group, topic)
    assert attempts == [0, 1, 2, 3]


def test_single_messages_of_a_call_are_decided(
    cluster: EmbeddedCluster,
    consume: Callable[..., Any],
    producer: Producer,
    group: str,
    topic: str,
) -> None:
    sizes: list[int] = []
    letters: set[bytes] = set()

    def listen(messages: list[MessageExt], context: ConsumeContext) -> None:
        sizes.append(len(messages))
        bad = [message for message in messages if message.body.startswith(b"bad")]
        if bad:
            letters.update(message.body for message in bad)
            context.dead_letter(*bad, reason="bad")

    queue = producer.fetch_publish_queues(topic)[0]
    for number in range(8):
        body = f"{'bad' if number % 2 else 'good'}-{number}"
        producer.send(Message(topic, body.encode()), queue=queue)
    consumer = consume(listen, consume_message_batch_max_size=8, consume_thread_count=4)
    wait_until_done(cluster, group, topic)

    assert sizes == [8]
    assert (consumer.counters.succeeded, consumer.counters.failed) == (4, 4)
    with SimpleConsumer(f"{group}_letters", name_server=cluster.name_server) as found:
        found.subscribe(f"%DLQ%{group}")
        bodies = set[bytes]()
        while bodies != letters:
            messages = found.receive(wait=timedelta(seconds=30))
            assert messages, bodies
            bodies |= {message.body for message in messages}


def test_messages_are_renewed_while_the_listener_works(
    cluster: EmbeddedCluster,
    consume: Callable[..., Any],
    producer: Producer,
    topic: str,
    group: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Each look renews.
    monkeypatch.setattr(pop_loop, "RENEWAL_MS", pop_loop.INVISIBLE_MS)
    monkeypatch.setattr(pop_loop, "LOOK_MS", 50)
    renewed, may_end = list[bool](), threading.Event()

    def note(*given: Any, is_attempt: bool, **named: Any) -> Any:
        found = yield from pop.change_invisible(*given, is_attempt=is_attempt, **named)
        renewed.append(is_attempt)
        return found

    monkeypatch.setattr(pop_loop, "change_invisible", note)
    calls: list[bytes] = []

    def listen(messages: list[MessageExt], context: ConsumeContext) -> None:
        calls.append(messages[0].body)
        assert may_end.wait(PATIENCE_S)

    consume(listen)
    send(producer, topic, "a")
    wait_until("two renewals", lambda: len(renewed) >= 2, timeout_s=PATIENCE_S)
    assert all(renewed), "if the process dies now, this was an attempt"
    may_end.set()
    # The last handle alone acknowledges.
    wait_until_done(cluster, group, topic)
    assert calls == [b"a"]


def test_a_message_with_a_void_handle_holds_up_no_other_of_its_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changed: list[bytes] = []

    def change(_: object, message: MessageExt, **named: Any) -> Operation[MessageExt]:
        if message.body == b"b":
            raise BrokerError(ResponseCode.NO_MESSAGE, "its time was changed")
        changed.append(message.body)
        yield from ()
        return message

    monkeypatch.setattr(pop_loop, "change_invisible", change)
    messages = [message_at(offset, body=body) for offset, body in enumerate((b"a", b"b", b"c"))]
    batch = pop_loop._Batch(messages[0].queue, messages, until_ms=5, popped_ms=0)
    popping = pop_loop._Popping(cast(Subscriber, None), cast(PopSource, None))
    renewing = pop_loop._renew(popping, batch)
    assert isinstance(next(renewing), Now)
    with pytest.raises(StopIteration):
        renewing.send(1_000)

    assert batch.until_ms == 1_000 + pop_loop.INVISIBLE_MS

    assert changed == [b"a", b"c"]


def test_close_renews_while_it_waits_for_the_listener_and_its_acknowledgement(
    cluster: EmbeddedCluster,
    consume: Callable[..., Any],
    producer: Producer,
    topic: str,
    group: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Each look renews.
    monkeypatch.setattr(pop_loop, "RENEWAL_MS", pop_loop.INVISIBLE_MS)
    monkeypatch.setattr(pop_loop, "LOOK_MS", 50)
    begun, may_end = threading.Event(), threading.Event()
    renewed: list[MessageExt] = []

    def note(*given: Any, **named: Any) -> Any:
        renewed.append((yield from pop.change_invisible(*given, **named)))
        return renewed[-1]

    monkeypatch.setattr(pop_loop, "change_invisible", note)

    def listen(messages: list[MessageExt], context: ConsumeContext) -> None:
        begun.set()
        assert may_end.wait(PATIENCE_S)

    consumer = consume(listen, drain_timeout_ms=PATIENCE_S * 1_000)
    send(producer, topic, "a")
    assert begun.wait(PATIENCE_S)
    closing = threading.Thread(target=consumer.close)
    closing.start()
    count = len(renewed)
    wait_until("renewals", lambda: len(renewed) > count + 2, timeout_s=PATIENCE_S)
    assert closing.is_alive()
    may_end.set()
    closing.join(PATIENCE_S)

    assert not closing.is_alive()
    with Admin(name_server=cluster.name_server) as admin:
        assert sum(each.lag for each in admin.group_lag(group, topic)) == 0


def test_a_quick_listener_with_a_backlog_has_several_pops_and_close_leaves_none_invisible(
    cluster: EmbeddedCluster,
    consume: Callable[..., Any],
    producer: Producer,
    topic: str,
    group: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent = [b"%d" % number for number in range(20_000)]
    for at in range(0, len(sent), 500):
        producer.send_batch([Message(topic, body) for body in sent[at : at + 500]])
    seen, enough, at_once = set[bytes](), threading.Event(), [0, 0]

    def count_pops(*args: Any, **kwargs: Any) -> Operation[list[MessageExt]]:
        at_once[0] += 1
        at_once[1] = max(at_once)
        try:
            return (yield from pop.receive(*args, **kwargs))
        finally:
            at_once[0] -= 1

    monkeypatch.setattr(pop_loop, "receive", count_pops)

    def listen(messages: list[MessageExt], context: ConsumeContext) -> None:
        seen.update(message.body for message in messages)
        if len(seen) >= 5_000:
            enough.set()

    consumer = consume(listen)
    assert enough.wait(PATIENCE_S)
    consumer.close()
    assert at_once[1] > 1
    with SimpleConsumer(group, topic, name_server=cluster.name_server) as other:
        while messages := other.receive(32, wait=timedelta(0)):
            seen.update(message.body for message in messages)
    assert seen == set(sent)


@pytest.mark.parametrize(("start", "mode"), [("first", "0"), ("last", "1")])
def test_broker_is_told_where_a_new_group_begins(
    hostile: HostileCluster, start: Start, mode: str
) -> None:
    with PushConsumer(
        "GID_c",
        name_server=hostile.address,
        listener=lambda messages, context: None,
        balance="messages",
        start=start,
    ) as consumer:
        consumer.subscribe(hostile.topic)
        consumer.start()
        wait_until("a pop", lambda: hostile.broker.count(RequestCode.POP_MESSAGE))
    requests = hostile.broker.requests
    pops = [request for request in requests if request.code == RequestCode.POP_MESSAGE]
    assert (pops[0].ext_fields or {})["initMode"] == mode


def test_a_suspended_consumer_leaves_messages_to_others_and_goes_on_later(
    cluster: EmbeddedCluster,
    consume: Callable[..., Any],
    producer: Producer,
    topic: str,
    group: str,
) -> None:
    found: list[bytes] = []
    consumer = consume(lambda messages, _: found.append(messages[0].body))
    send(producer, topic, "a")
    wait_until("the first", lambda: found == [b"a"], timeout_s=PATIENCE_S)
    consumer.suspend()
    # Its last pop may still take this one.
    send(producer, topic, "b")
    with SimpleConsumer(group, name_server=cluster.name_server) as other:
        other.subscribe(topic)
        taken: list[MessageExt] = []

        def is_taken() -> bool:
            taken.extend(other.receive(wait=timedelta(seconds=1)))
            return bool(taken)

        wait_until("the second elsewhere", is_taken, timeout_s=PATIENCE_S)
        assert (found, [each.body for each in taken]) == ([b"a"], [b"b"])
        assert taken[0].reconsume_times == 0
        other.ack(*taken)
    consumer.resume()
    send(producer, topic, "c")
    wait_until("the third", lambda: found == [b"a", b"c"], timeout_s=PATIENCE_S)


@pytest.mark.asyncio
async def test_coroutine_functions_listen_too(
    cluster: EmbeddedCluster, topic: str, group: str
) -> None:
    found, all_found = set[bytes](), asyncio.Event()

    async def listen(messages: list[MessageExt], context: ConsumeContext) -> None:
        await asyncio.sleep(0)
        found.update(message.body for message in messages)
        if len(found) == 20:
            all_found.set()

    def send_all() -> None:
        with Producer("GID_p", name_server=cluster.name_server) as opened:
            send(opened, topic, *map(str, range(20)))

    await asyncio.to_thread(send_all)
    async with AsyncPushConsumer(
        group,
        topic,
        name_server=cluster.name_server,
        listener=listen,
        balance="messages",
        start="first",
    ) as consumer:
        async with asyncio.timeout(PATIENCE_S):
            await all_found.wait()
        with pytest.raises(UsageError, match="no queues to wait for"):
            await consumer.wait_assigned()
    assert consumer.counters.succeeded == 20


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"balance": "members"}, "balance is 'members'"),
        ({"orderly": True}, "orderly is True"),
        ({"message_model": MessageModel.BROADCASTING}, "message_model"),
        ({"start": datetime(2026, 1, 1, tzinfo=UTC)}, "start is"),
        ({"messages_per_s_max": 5}, "messages_per_s_max is 5"),
        ({"on_assign": lambda queues: None}, "on_assign, on_revoke and on_lost"),
    ],
)
def test_what_needs_queues_is_refused(settings: dict[str, Any], words: str) -> None:
    given: dict[str, Any] = {
        "balance": "messages",
        "listener": lambda messages, context: None,
        **settings,
    }
    with pytest.raises(ConfigError, match=words):
        PushConsumer("GID_refused", name_server="127.0.0.1:1", **given)

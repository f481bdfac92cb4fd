"""What ends other programs must not end a consumer unseen; a close that was cut short goes on."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, NoReturn

import pytest
from prometheus_client import CollectorRegistry

from failures import failing_once
from sparrowmq import (
    Admin,
    AsyncPollConsumer,
    AsyncPushConsumer,
    ConsumeOrderlyStatus,
    Message,
    MessageQueue,
    PollConsumer,
    Producer,
    PushConsumer,
)
from sparrowmq.calling import clock
from sparrowmq.client.faces import aio_member, blocking_member
from sparrowmq.errors import UsageError
from sparrowmq.testing import EmbeddedCluster
from waiting import wait_until

LOG = "sparrowmq.client"


def raising(error: BaseException) -> Callable[..., NoReturn]:
    def function(*_: object) -> NoReturn:
        raise error

    return function


# Tests of users, their shutdown code, and cancelled helpers raise these.
ENDS = {
    "sys.exit": sys.exit,
    "pytest.fail": pytest.fail,
    "interrupt": raising(KeyboardInterrupt()),
    "cancelled": raising(asyncio.CancelledError()),
    "generator exit": raising(GeneratorExit()),
}


@pytest.mark.parametrize("is_orderly", [False, True], ids=["concurrent", "orderly"])
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_listener_that_would_end_a_program_fails_only_its_message(
    cluster: EmbeddedCluster,
    topic: str,
    group: str,
    producer: Producer,
    caplog: pytest.LogCaptureFixture,
    end: Callable[[str], NoReturn],
    is_orderly: bool,
) -> None:
    done: list[bytes] = []
    failures = 0

    def listen(messages: Any, context: Any) -> ConsumeOrderlyStatus | None:
        nonlocal failures
        if messages[0].body == b"bad" and not failures:
            failures += 1
            end("no more")
        done.extend(message.body for message in messages)
        return None

    settings: dict[str, Any] = {"orderly": True} if is_orderly else {}
    caplog.set_level(logging.WARNING, LOG)
    with PushConsumer(
        group, topic, name_server=cluster.name_server, listener=listen, start="first", **settings
    ) as consumer:
        producer.send(Message(topic, b"bad"))
        wait_until("the failure", lambda: failures)
        producer.send(Message(topic, b"good"))
        wait_until("the next message", lambda: b"good" in done)

        assert ", running" in repr(consumer)
        wait_until("its log", lambda: "the listener failed" in caplog.text)


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
async def test_coroutine_that_would_end_a_program_fails_only_its_message(
    cluster: EmbeddedCluster,
    topic: str,
    group: str,
    producer: Producer,
    caplog: pytest.LogCaptureFixture,
    end: Callable[[str], NoReturn],
) -> None:
    done: list[bytes] = []

    async def listen(messages: Any, context: Any) -> None:
        if messages[0].body == b"bad":
            end("no more")
        done.append(messages[0].body)

    async def gain(_: object) -> None:
        end("no more")

    caplog.set_level(logging.WARNING, LOG)
    async with AsyncPushConsumer(
        group,
        topic,
        name_server=cluster.name_server,
        listener=listen,
        on_assign=gain,
        start="first",
    ) as consumer:
        producer.send(Message(topic, b"bad"))
        producer.send(Message(topic, b"good"))
        async with asyncio.timeout(20):
            while b"good" not in done:
                await asyncio.sleep(0.01)

        assert ", running" in repr(consumer)
    assert "the listener failed with 1 message" in caplog.text
    assert "on_assign, on_revoke or on_lost failed" in caplog.text


def test_callback_and_strategy_that_would_end_a_program_are_reported(
    cluster: EmbeddedCluster,
    topic: str,
    group: str,
    producer: Producer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Strategy:
        name = "ODD"
        calls = 0

        def allocate(
            self,
            consumer_group: str,
            current_cid: str | None,
            mq_all: Sequence[MessageQueue] | None,
            cid_all: Sequence[str] | None,
        ) -> list[MessageQueue]:
            self.calls += 1
            if self.calls == 1:
                sys.exit("no more")
            return list(mq_all or ())

    seen: list[bytes] = []
    caplog.set_level(logging.WARNING, LOG)
    with PushConsumer(
        group,
        topic,
        name_server=cluster.name_server,
        listener=lambda messages, _: seen.extend(message.body for message in messages),
        start="first",
        on_assign=lambda _: sys.exit("no more"),
        strategy=Strategy(),
    ):
        producer.send(Message(topic, b"m"))
        wait_until("the message", lambda: seen)

    assert "strategy ODD failed" in caplog.text
    assert "on_assign, on_revoke or on_lost failed" in caplog.text


async def test_consumer_whose_task_is_ended_says_that_it_has_failed(
    cluster: EmbeddedCluster, topic: str, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    registry = CollectorRegistry()
    consumer = AsyncPushConsumer(
        group,
        name_server=cluster.name_server,
        listener=lambda *_: None,
        metrics_registry=registry,
    )
    await consumer.subscribe(topic)
    await consumer.start()
    (task,) = (t for t in asyncio.all_tasks() if t.get_name() == f"sparrowmq-consumer-{group}")
    # Once the loop has begun.
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})

    assert "failed: CancelledError()" in repr(consumer)
    (record,) = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert record.getMessage().startswith(f"consumer group {group}: the task of consumer ")
    assert "close a consumer before its event loop ends" in record.getMessage()
    assert record.exc_info is None
    labels = {"group": group, "event": "ConsumerFailed"}
    assert registry.get_sample_value("sparrowmq_client_events_total", labels) == 1
    with pytest.raises(UsageError, match="has failed; close it and start a new one"):
        await consumer.wait_idle()
    await consumer.close()
    assert "closed" in repr(consumer)


def end_thread(name: str) -> None:
    """End a thread by an error from outside."""
    (thread,) = (each for each in threading.enumerate() if each.name == name)
    assert thread.ident is not None
    ended = ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit)
    )
    thread.join(60)
    assert (ended, thread.is_alive()) == (1, False)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_consumer_whose_thread_is_ended_says_that_it_has_failed(
    cluster: EmbeddedCluster, topic: str, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    registry = CollectorRegistry()
    consumer = PushConsumer(
        group,
        name_server=cluster.name_server,
        listener=lambda *_: None,
        metrics_registry=registry,
    )
    consumer.subscribe(topic)
    consumer.start()
    wait_until("the queues", lambda: len(consumer.assignment()) == 8)
    end_thread(f"sparrowmq-consumer-{group}")

    assert "failed: SystemExit()" in repr(consumer)
    assert " has failed and consumes nothing more: SystemExit()" in caplog.text
    labels = {"group": group, "event": "ConsumerFailed"}
    assert registry.get_sample_value("sparrowmq_client_events_total", labels) == 1
    with pytest.raises(UsageError, match="has failed; close it and start a new one"):
        consumer.wait_idle()
    consumer.close()
    assert "closed" in repr(consumer)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_poll_that_waits_ends_when_the_thread_of_its_consumer_ends(
    cluster: EmbeddedCluster, topic: str, group: str
) -> None:
    errors: list[BaseException] = []

    def poll() -> None:
        try:
            consumer.getone()
        except UsageError as error:
            errors.append(error)

    with PollConsumer(group, topic, name_server=cluster.name_server) as consumer:
        polling = threading.Thread(target=poll)
        polling.start()
        wait_until("the poll", lambda: consumer._pollers)
        end_thread(f"sparrowmq-consumer-{group}")
        polling.join(60)

        assert ["has failed" in str(error) for error in errors] == [True]


@pytest.mark.parametrize("balance", ["queues", "messages"])
def test_consumer_whose_loop_fails_goes_on(
    cluster: EmbeddedCluster,
    topic: str,
    group: str,
    producer: Producer,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    balance: Literal["queues", "messages"],
) -> None:
    monkeypatch.setattr(blocking_member, "RESTART_S", 0.01)
    seen: list[bytes] = []
    consumer = PushConsumer(
        group,
        topic,
        name_server=cluster.name_server,
        listener=lambda messages, _: seen.extend(message.body for message in messages),
        start="first",
        balance=balance,
    )
    consumer._member._serve = failing_once(consumer._member._serve)
    producer.send(Message(topic, b"m"))
    with consumer:
        wait_until("the message", lambda: seen == [b"m"])
        assert ", running" in repr(consumer)

    (line,) = [each for each in caplog.records if "failed, and continues" in each.getMessage()]
    assert line.exc_info is not None


async def test_asyncio_consumer_whose_loop_fails_goes_on(
    cluster: EmbeddedCluster,
    topic: str,
    group: str,
    producer: Producer,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(aio_member, "RESTART_S", 0.01)
    consumer = AsyncPollConsumer(group, topic, name_server=cluster.name_server, start="first")
    consumer._member._serve = failing_once(consumer._member._serve)
    producer.send(Message(topic, b"m"))
    async with consumer:
        message = await consumer.getone(20_000)

    assert message is not None
    assert "failed, and continues" in caplog.text


class LeapingClock:
    """The monotonic clock of a process that can be stopped for a while."""

    def __init__(self) -> None:
        self._real_ms = clock.monotonic_ms
        self.stopped_ms = 0

    def __call__(self) -> int:
        return self._real_ms() + self.stopped_ms


@pytest.fixture
def leaping(monkeypatch: pytest.MonkeyPatch) -> LeapingClock:
    made = LeapingClock()
    monkeypatch.setattr(clock, "monotonic_ms", made)
    return made


@pytest.mark.slow
def test_consumer_whose_process_was_stopped_says_so_and_goes_on(
    cluster: EmbeddedCluster,
    topic: str,
    group: str,
    producer: Producer,
    caplog: pytest.LogCaptureFixture,
    leaping: LeapingClock,
) -> None:
    seen: list[bytes] = []
    begun_s = time.monotonic()
    with PushConsumer(
        group,
        topic,
        name_server=cluster.name_server,
        listener=lambda messages, _: seen.extend(message.body for message in messages),
        start="first",
    ) as consumer:
        producer.send(Message(topic, b"before"))
        wait_until("a message", lambda: seen == [b"before"])
        wait_until("the end of its call", lambda: not consumer.health().oldest_unfinished)
        caplog.clear()
        leaping.stopped_ms = 15_000
        producer.send(Message(topic, b"after"))
        wait_until("the other message", lambda: seen == [b"before", b"after"])

    (line,) = [each for each in caplog.records if each.__dict__.get("event") == "stood_still"]
    # It may have stood still for real, too.
    longest_ms = 15_000 + (time.monotonic() - begun_s) * 1_000
    assert 10_000 <= line.__dict__["still_ms"] <= longest_ms
    assert line.__dict__["call_count"] == 0
    assert "its process was stopped" in line.getMessage()
    assert "was lost" not in caplog.text


@pytest.mark.slow
async def test_coroutine_that_keeps_the_event_loop_is_told_as_the_cause(
    cluster: EmbeddedCluster,
    topic: str,
    group: str,
    producer: Producer,
    caplog: pytest.LogCaptureFixture,
    leaping: LeapingClock,
) -> None:
    seen: list[bytes] = []
    may_end = asyncio.Event()

    async def listen(messages: Any, _: object) -> None:
        seen.extend(message.body for message in messages)
        leaping.stopped_ms = 15_000
        await may_end.wait()

    async with AsyncPushConsumer(
        group, topic, name_server=cluster.name_server, listener=listen, start="first"
    ):
        producer.send(Message(topic, b"m"))
        async with asyncio.timeout(20):
            while "stood still" not in caplog.text:
                await asyncio.sleep(0.01)
        may_end.set()

    (line,) = [each for each in caplog.records if each.__dict__.get("event") == "stood_still"]
    assert seen == [b"m"]
    assert line.__dict__["call_count"] == 1
    assert "use asyncio.to_thread" in line.getMessage()


async def test_close_that_was_cancelled_goes_on_with_the_next_call(
    cluster: EmbeddedCluster, topic: str, group: str, producer: Producer, admin: Admin
) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def listen(messages: Any, context: Any) -> None:
        begun.set()
        await may_end.wait()

    consumer = AsyncPushConsumer(
        group, name_server=cluster.name_server, listener=listen, start="first"
    )
    await consumer.subscribe(topic)
    await consumer.start()
    sent = producer.send(Message(topic, b"m"))
    await asyncio.wait_for(begun.wait(), 20)

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(consumer.close(), 0.05)
    may_end.set()
    await consumer.close()
    await consumer.close()

    assert admin.committed_offset(group, sent.queue) == sent.queue_offset + 1
    assert admin.consumer_ids(group) == []

"""Messages that are handed over, against a real broker: each gets its result or its error."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import FrameType
from typing import Any

import pytest

from failures import failing_once
from hostile import HostileCluster
from sparrowmq import (
    Admin,
    AsyncProducer,
    Message,
    MessageQueue,
    PollConsumer,
    Producer,
    SendResult,
    SendStatus,
)
from sparrowmq.client.batcher import Batcher
from sparrowmq.client.faces import blocking_batches
from sparrowmq.client.operations import batches
from sparrowmq.errors import BufferFull, ConfigError, ConnectFailed, SparrowError, UsageError
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.testing.embedded import EmbeddedCluster

pytestmark = pytest.mark.slow

PATIENCE_S = 60
COUNT = 2_000


def stored(cluster: EmbeddedCluster, topic: str) -> dict[MessageQueue, list[bytes]]:
    """Return what the queues hold."""
    found: dict[MessageQueue, list[bytes]] = {}
    with PollConsumer("GID_look", name_server=cluster.name_server) as reader:
        for queue in reader.fetch_subscribe_queues(topic):
            found[queue], offset = [], 0
            while messages := reader.pull(queue, offset, 1_000).messages:
                found[queue] += [message.body for message in messages]
                offset = messages[-1].queue_offset + 1
    return found


def check(results: list[SendResult], cluster: EmbeddedCluster, topic: str) -> None:
    """Each message stands where its result says, and those of a key in their order."""
    held = stored(cluster, topic)
    by_key: dict[int, list[int]] = defaultdict(list)
    for bodies in held.values():
        for body in bodies:
            by_key[int(body) % 10].append(int(body))

    assert sum(map(len, held.values())) == COUNT
    assert [b"%d" % number for number in range(COUNT)] == [
        held[result.queue][result.queue_offset] for result in results
    ]
    assert {result.status for result in results} == {SendStatus.SEND_OK}
    assert len({result.msg_id for result in results}) == COUNT
    assert len({result.offset_msg_id for result in results}) == COUNT
    assert all(sorted(numbers) == numbers for numbers in by_key.values())


def messages_of(topic: str) -> list[Message]:
    return [Message(topic, b"%d" % n, sharding_key=str(n % 10)) for n in range(COUNT)]


def test_each_message_gets_its_own_result(cluster: EmbeddedCluster, topic: str) -> None:
    with Producer("GID_p", name_server=cluster.name_server) as producer:
        futures = [producer.send_nowait(message) for message in messages_of(topic)]
        producer.flush()
        assert all(future.done() for future in futures)
        results = [future.result() for future in futures]

    check(results, cluster, topic)


async def test_so_it_is_with_asyncio(cluster: EmbeddedCluster, topic: str) -> None:
    async with AsyncProducer("GID_p", name_server=cluster.name_server, linger_ms=0) as producer:
        results = await asyncio.gather(*map(producer.send_nowait, messages_of(topic)))

    await asyncio.to_thread(check, results, cluster, topic)


def test_threads_share_batches(cluster: EmbeddedCluster, topic: str) -> None:
    futures: list[list[Future[SendResult]]] = [[] for _ in range(4)]
    with Producer("GID_p", name_server=cluster.name_server, batch_count_max=50) as producer:

        def hand_over(number: int) -> None:
            for index in range(500):
                body = b"%d-%d" % (number, index)
                futures[number].append(producer.send_nowait(Message(topic, body)))

        threads = [threading.Thread(target=hand_over, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        results = [f.result(PATIENCE_S) for own in futures for f in own]

    assert len({(result.queue, result.queue_offset) for result in results}) == 2_000
    assert sum(map(len, stored(cluster, topic).values())) == 2_000


@pytest.mark.parametrize(
    ("message", "queue", "error"),
    [
        (Message("T", b""), None, UsageError),
        (Message("T", bytes(5 << 20)), None, UsageError),
        (Message("T", b"x", properties={"KEYS": "reserved"}), None, UsageError),
        (Message("T", b"x"), MessageQueue("other", "broker-a", 0), UsageError),
        (Message("T", b"x"), MessageQueue("T", "broker-a", "0"), UsageError),  # type: ignore[arg-type]
        (Message("T", b"x"), MessageQueue("T", "broker-a", []), UsageError),  # type: ignore[arg-type]
        (Message("bad topic", b"x"), None, ConfigError),
        (b"no message", None, UsageError),
        (Message("T", b"x", tags="\udcff"), None, UsageError),
    ],
    ids=["empty", "large", "property", "queue", "text as id", "list as id", "topic", "type", "tag"],
)
def test_wrong_message_is_refused_at_the_call(
    cluster: EmbeddedCluster, message: Any, queue: MessageQueue | None, error: type[Exception]
) -> None:
    with Producer("GID_p", name_server=cluster.name_server) as producer, pytest.raises(error):
        producer.send_nowait(message, queue=queue)


@pytest.mark.parametrize("way", ["key", "queue", "function"])
def test_send_stands_behind_earlier_messages_of_its_queue(
    cluster: EmbeddedCluster, topic: str, way: str
) -> None:
    queue = MessageQueue(topic, "broker-a", 3)
    queues: dict[str, Any] = {"key": None, "queue": queue, "function": lambda *_: queue}
    key = "k" if way == "key" else None
    # One batch is under way then, and another waits.
    settings: dict[str, Any] = {"batch_count_max": 2} if way == "queue" else {}
    with Producer(
        "GID_p", name_server=cluster.name_server, linger_ms=30_000, **settings
    ) as producer:

        def message(number: int) -> Message:
            return Message(topic, b"%d" % number, sharding_key=key)

        for number in range(0, 60, 6):
            for earlier in range(number, number + 3):
                producer.send_nowait(message(earlier), queue=queues[way])
            producer.send(message(number + 3), queue=queues[way])
            producer.send_nowait(message(number + 4), queue=queues[way])
            if way == "function":
                producer.send(message(number + 5), queue=queues[way])
            else:
                producer.send_batch([message(number + 5)], queue=queues[way])

    (held,) = filter(None, stored(cluster, topic).values())
    assert held == [b"%d" % number for number in range(60)]


@pytest.mark.parametrize("moment", ["call", "return"])
def test_ctrl_c_amid_a_call_keeps_no_later_message(
    cluster: EmbeddedCluster, topic: str, moment: str
) -> None:
    def interrupt(frame: FrameType, event: str, _: object) -> None:
        if event == moment and frame.f_code is Batcher.hand_over.__code__:
            sys.setprofile(None)
            raise KeyboardInterrupt

    with Producer("GID_p", name_server=cluster.name_server, linger_ms=0) as producer:
        producer.send_nowait(Message(topic, b"0")).result(PATIENCE_S)
        before = sys.getprofile()
        sys.setprofile(interrupt)
        try:
            with pytest.raises(KeyboardInterrupt):
                producer.send_nowait(Message(topic, b"1"))
        finally:
            sys.setprofile(before)

        producer.send_nowait(Message(topic, b"2")).result(PATIENCE_S)
        flushing = threading.Thread(target=producer.flush, daemon=True)
        flushing.start()
        flushing.join(PATIENCE_S)

        assert not flushing.is_alive()


def test_what_is_not_a_queue_is_refused_behind_earlier_messages_too() -> None:
    with Producer("GID_p", name_server="127.0.0.1:1", linger_ms=30_000) as producer:
        for call in (producer.send, producer.send_oneway, producer.request):
            producer.send_nowait(Message("T", b"1"))
            wrong: Any = "T:3"

            with pytest.raises(UsageError, match="'T:3' is not a queue; give a MessageQueue"):
                call(Message("T", b"2"), queue=wrong)


async def test_send_behind_messages_that_nobody_answers_ends_in_time() -> None:
    settings: dict[str, Any] = {"name_server": "127.0.0.1:1", "send_timeout_ms": 300}
    async with AsyncProducer("GID_p", **settings) as producer:
        waiting = producer.send_nowait(Message("T", b"1", sharding_key="k"))
        with pytest.raises(SparrowError):
            await producer.send(Message("T", b"2", sharding_key="k"))
        assert isinstance((await asyncio.gather(waiting, return_exceptions=True))[0], ConnectFailed)


def test_flush_waits_for_the_messages_before_it_alone(cluster: EmbeddedCluster, topic: str) -> None:
    has_flushed = threading.Event()
    with Producer("GID_p", name_server=cluster.name_server) as producer:

        def send_next(_: object) -> None:
            if not has_flushed.is_set():
                producer.send_nowait(Message(topic, b"later")).add_done_callback(send_next)

        first = [producer.send_nowait(Message(topic, b"first")) for _ in range(10)]
        for future in first:
            future.add_done_callback(send_next)
        producer.flush()

        assert all(future.done() for future in first)
        has_flushed.set()
        producer.flush()


def unread_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if getattr(r, "event", "") == "sends_unread"]


@pytest.mark.parametrize("is_held", [True, False], ids=["held", "dropped"])
async def test_errors_that_nobody_reads_are_one_line(
    is_held: bool, caplog: pytest.LogCaptureFixture
) -> None:
    settings: dict[str, Any] = {"name_server": "127.0.0.1:1", "send_timeout_ms": 300}
    held: list[Any] = []
    with Producer("GID_p", **settings) as producer:
        futures = [producer.send_nowait(Message("T", b"x")) for _ in range(500)]
        held += futures if is_held else []
        del futures
        producer.flush()
    async with AsyncProducer("GID_p", **settings) as asyncio_producer:
        waiting = [asyncio_producer.send_nowait(Message("T", b"x")) for _ in range(500)]
        held += waiting if is_held else []
        del waiting
        await asyncio_producer.flush()

    lines = unread_lines(caplog)
    assert len(lines) == 2
    assert all("500 messages of send_nowait not stored" in line for line in lines)
    assert all("no name server answers" in line for line in lines)
    assert [r for r in caplog.records if r.name == "asyncio"] == []


async def test_errors_that_were_read_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    settings: dict[str, Any] = {"name_server": "127.0.0.1:1", "send_timeout_ms": 300}
    with Producer("GID_p", **settings) as producer:
        assert isinstance(producer.send_nowait(Message("T", b"x")).exception(), ConnectFailed)
    async with AsyncProducer("GID_p", **settings) as asyncio_producer:
        with pytest.raises(ConnectFailed):
            await asyncio_producer.send_nowait(Message("T", b"x"))

    assert unread_lines(caplog) == []


def test_messages_that_close_does_not_send_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        name_server = f"127.0.0.1:{silent.getsockname()[1]}"
        producer = Producer("GID_p", name_server=name_server, send_timeout_ms=100)
        for _ in range(3):
            producer.send_nowait(Message("T", b"x"))
        producer.close()

    (line,) = unread_lines(caplog)
    assert "3 messages of send_nowait not stored" in line


@pytest.mark.parametrize(
    ("rest", "printed"),
    [
        ("", ""),
        ("del producer\nprint({f.result(20).status.name for f in futures})", "{'SEND_OK'}\n"),
    ],
    ids=["exit", "dropped"],
)
def test_producer_that_nobody_closes_says_how_many_messages_wait(
    cluster: EmbeddedCluster, topic: str, rest: str, printed: str
) -> None:
    program = f"""
from sparrowmq import Message, Producer
producer = Producer("GID_p", name_server={cluster.name_server!r}, linger_ms=30_000)
futures = [producer.send_nowait(Message({topic!r}, b"x")) for _ in range(7)]
{rest}
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )

    assert "7 messages of send_nowait waited when the producer ended" in ended.stderr
    assert ended.stdout == printed


def test_producer_that_the_collector_ends_while_its_lock_is_held_sends_what_waits(
    cluster: EmbeddedCluster, topic: str
) -> None:
    """The cyclic collector may run in any allocation, also of the thread that ends messages."""
    program = f"""
import gc
from sparrowmq import Message, Producer

class Counts(dict):
    def __setitem__(self, key, value):
        gc.collect()
        super().__setitem__(key, value)

gc.disable()
producer = Producer("GID_p", name_server={cluster.name_server!r}, linger_ms=500)
producer.itself = producer
futures = [producer.send_nowait(Message({topic!r}, b"x")) for _ in range(7)]
producer._batches._waiting_counts = Counts(producer._batches._waiting_counts)
del producer
print({{future.result(20).status.name for future in futures}})
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )

    assert ended.stdout == "{'SEND_OK'}\n"
    assert "7 messages of send_nowait waited when the producer ended" in ended.stderr


async def test_producer_that_the_collector_ends_in_another_thread_sends_what_waits(
    cluster: EmbeddedCluster, topic: str
) -> None:
    producer = AsyncProducer("GID_p", name_server=cluster.name_server, linger_ms=30_000)
    futures = [producer.send_nowait(Message(topic, b"x")) for _ in range(7)]
    await producer.select_queue(Message(topic, b"x"))
    threading.Timer(0.05, producer._dropped).start()
    # A loop that nothing wakes sleeps until its next timer, for 3 s.
    async with asyncio.timeout(2):
        results = await asyncio.gather(*futures)
    await producer.close()

    assert {result.status for result in results} == {SendStatus.SEND_OK}


@pytest.mark.parametrize("end", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()], ids=repr)
async def test_function_of_the_user_that_would_end_a_program_ends_no_sending(
    cluster: EmbeddedCluster, topic: str, end: BaseException
) -> None:
    def raise_end(*_: object) -> MessageQueue:
        raise end

    with Producer("GID_p", name_server=cluster.name_server) as producer:
        failed = producer.send_nowait(Message(topic, b"0"), queue=raise_end)
        with pytest.raises(UsageError, match=r"raise_end.* raised"):
            producer.send(Message(topic, b"1"), queue=raise_end)
        called_back = producer.send_nowait(Message(topic, b"2"))
        called_back.add_done_callback(raise_end)
        called_back.result(PATIENCE_S)
        last = producer.send_nowait(Message(topic, b"3")).result(PATIENCE_S)
    async with AsyncProducer("GID_p", name_server=cluster.name_server) as asyncio_producer:
        with pytest.raises(UsageError, match=r"raise_end.* raised"):
            await asyncio_producer.send_nowait(Message(topic, b"4"), queue=raise_end)
        with pytest.raises(UsageError, match=r"raise_end.* raised"):
            await asyncio_producer.send(Message(topic, b"5"), queue=raise_end)

    assert isinstance(failed.exception(PATIENCE_S), UsageError)
    assert last.status is SendStatus.SEND_OK


def test_client_that_its_callback_calls_refuses_at_once_and_stays_open(
    cluster: EmbeddedCluster, topic: str
) -> None:
    with Producer("GID_p", name_server=cluster.name_server) as producer:
        calls: list[Callable[[], object]] = [
            producer.close,
            producer.flush,
            lambda: producer.send(Message(topic, b"within")),
        ]
        refused: list[UsageError] = []
        has_called = threading.Event()

        def call_back(_: object) -> None:
            for call in calls:
                with pytest.raises(UsageError, match="in another thread") as caught:
                    call()
                refused.append(caught.value)
            producer.send_nowait(Message(topic, b"queued")).add_done_callback(
                lambda _: has_called.set()
            )

        def choose(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
            with pytest.raises(UsageError, match="in another thread") as caught:
                producer.close()
            refused.append(caught.value)
            return queues[0]

        producer.send_nowait(Message(topic, b"first")).add_done_callback(call_back)
        assert has_called.wait(PATIENCE_S)
        producer.send_nowait(Message(topic, b"last"), queue=choose).result(PATIENCE_S)

    bodies = sorted(body for held in stored(cluster, topic).values() for body in held)
    assert bodies == [b"first", b"last", b"queued"]
    assert len(refused) == 4


def test_delayed_messages_and_large_ones_are_sent_by_themselves(
    cluster: EmbeddedCluster, topic: str, admin: Admin
) -> None:
    with Producer("GID_p", name_server=cluster.name_server) as producer:
        futures = [
            producer.send_nowait(Message(topic, b"late", delay_level=1)),
            producer.send_nowait(Message(topic, bytes(1_000_000))),
            producer.send_nowait(Message(topic, b"small")),
        ]
        producer.flush()

    assert {future.result().status for future in futures} == {SendStatus.SEND_OK}


@pytest.mark.parametrize("count", [1, 2])
def test_observer_that_raises_keeps_no_later_message(
    cluster: EmbeddedCluster, topic: str, count: int
) -> None:
    class Observer:
        def begin(self, messages: Sequence[Message], *, is_half: bool) -> Any:
            def raise_error(*_: object) -> None:
                raise LookupError("the exporter has gone")

            return messages, raise_error

    queue = MessageQueue(topic, "broker-a", 0)
    with Producer("GID_p", name_server=cluster.name_server) as producer:
        producer._publisher.observers = (Observer(),)
        first = [producer.send_nowait(Message(topic, b"1"), queue=queue) for _ in range(count)]
        producer.flush()
        last = producer.send_nowait(Message(topic, b"2"), queue=queue).result(PATIENCE_S)

    assert {future.result(0).status for future in first} == {SendStatus.SEND_OK}
    assert last.queue_offset == count


def test_close_sends_what_lingers(cluster: EmbeddedCluster, topic: str) -> None:
    producer = Producer("GID_p", name_server=cluster.name_server, linger_ms=30_000)
    futures = [producer.send_nowait(Message(topic, b"%d" % number)) for number in range(10)]
    producer.close()

    assert len({future.result(0).offset_msg_id for future in futures}) == 10
    with pytest.raises(UsageError, match="is closed"):
        producer.send_nowait(Message(topic, b"x"))


def test_full_buffer_refuses_until_there_is_room(cluster: EmbeddedCluster, topic: str) -> None:
    with Producer(
        "GID_p", name_server=cluster.name_server, buffer_bytes_max=100, linger_ms=30_000
    ) as producer:
        producer.send_nowait(Message(topic, bytes(60)))
        with pytest.raises(
            BufferFull, match="60 bytes of messages wait to be sent, and buffer_bytes_max is 100"
        ):
            producer.send_nowait(Message(topic, bytes(60)))
        producer.flush()
        producer.send_nowait(Message(topic, bytes(60)))


async def test_every_message_gets_the_error_where_nobody_answers() -> None:
    settings: dict[str, Any] = {"name_server": "127.0.0.1:1", "send_timeout_ms": 300}
    with Producer("GID_p", **settings) as producer:
        futures = [producer.send_nowait(Message("T", b"x")) for _ in range(5)]
        errors = [future.exception(PATIENCE_S) for future in futures]
    async with AsyncProducer("GID_p", **settings) as asyncio_producer:
        waiting = [asyncio_producer.send_nowait(Message("T", b"x")) for _ in range(5)]
        errors += await asyncio.gather(*waiting, return_exceptions=True)  # type: ignore[arg-type]

    assert [type(error) for error in errors] == [ConnectFailed] * 10


def test_messages_are_sent_after_the_loop_that_sends_has_failed(
    cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocking_batches, "RESTART_S", 0.01)
    monkeypatch.setattr(batches, "serve", failing_once(batches.serve))
    with Producer("GID_p", name_server=cluster.name_server) as producer:
        future = producer.send_nowait(Message(topic, b"x"))

        assert future.result(PATIENCE_S).status is SendStatus.SEND_OK


async def test_cancelled_future_holds_up_nothing(cluster: EmbeddedCluster, topic: str) -> None:
    async with AsyncProducer("GID_p", name_server=cluster.name_server) as producer:
        first, second = (producer.send_nowait(Message(topic, b"x")) for _ in range(2))
        first.cancel()

        assert (await second).status is SendStatus.SEND_OK


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("is_running", [False, True])
def test_message_queued_after_a_fork_is_refused(cluster: EmbeddedCluster, is_running: bool) -> None:
    """No thread of the forked process would send it."""
    with Producer("GID_p", name_server=cluster.name_server) as producer:
        topic = "T_forked"
        cluster.create_topic(topic)
        if is_running:
            producer.send_nowait(Message(topic, b"x")).result()
        child = os.fork()
        if child == 0:
            try:
                producer.send_nowait(Message(topic, b"x"))
            except UsageError as error:
                producer.close()
                os._exit(42 if "made before a fork" in str(error) else 2)
            os._exit(1)
        _, status = os.waitpid(child, 0)

        assert os.waitstatus_to_exitcode(status) == 42
        producer.send_nowait(Message(topic, b"x")).result()


async def test_close_that_is_cut_short_closes_the_connections(hostile: HostileCluster) -> None:
    hostile.broker.lies[RequestCode.SEND_MESSAGE_V2] = lambda request, honest: None
    producer = AsyncProducer("GID_p", name_server=hostile.address, linger_ms=0)
    future = producer.send_nowait(Message(hostile.topic, b"x"))
    while not hostile.broker.count(RequestCode.SEND_MESSAGE_V2):
        await asyncio.sleep(0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await producer.close()

    with pytest.raises(UsageError, match="closed"):
        producer._driver.check_usable()
    with pytest.raises(UsageError, match="closed before the message was sent"):
        await future


async def cancel_loops() -> None:
    """Cancel the tasks of clients, as a program does that cancels all tasks before it ends."""
    loops = [task for task in asyncio.all_tasks() if task.get_name().startswith("sparrowmq-")]
    for task in loops:
        task.cancel()
    await asyncio.wait(loops)


async def test_messages_after_the_sending_task_was_cancelled_are_sent(
    cluster: EmbeddedCluster, topic: str
) -> None:
    async with AsyncProducer("GID_p", name_server=cluster.name_server) as producer:
        await producer.send_nowait(Message(topic, b"before"))
        await cancel_loops()
        after = producer.send_nowait(Message(topic, b"after"))
        await producer.flush()

        assert after.result().status is SendStatus.SEND_OK


async def test_messages_that_wait_while_the_sending_task_is_cancelled_fail(
    cluster: EmbeddedCluster, topic: str
) -> None:
    settings: dict[str, Any] = {"name_server": cluster.name_server, "linger_ms": 30_000}
    async with AsyncProducer("GID_p", **settings) as producer:
        waiting = producer.send_nowait(Message(topic, b"x"))
        flushing = asyncio.create_task(producer.flush())
        await cancel_loops()
        await flushing

        with pytest.raises(UsageError, match=r"was cancelled .* before its event loop ends"):
            await waiting


async def test_messages_whose_queues_are_looked_up_while_the_sending_task_is_cancelled_fail(
    hostile: HostileCluster,
) -> None:
    may_answer, code = threading.Event(), RequestCode.GET_ROUTEINFO_BY_TOPIC

    def answer(_: RemotingCommand, honest: RemotingCommand | None) -> RemotingCommand | None:
        may_answer.wait(PATIENCE_S)
        return honest

    hostile.name_server.lies[code] = answer
    async with AsyncProducer("GID_p", name_server=hostile.address) as producer:
        waiting = producer.send_nowait(Message(hostile.topic, b"x"))
        while not hostile.name_server.count(code):
            await asyncio.sleep(0)
        await cancel_loops()
        may_answer.set()

        with pytest.raises(UsageError, match="was cancelled before the message was sent"):
            await asyncio.wait_for(waiting, PATIENCE_S)


async def test_close_that_is_cut_short_while_queues_are_looked_up_fails_the_messages() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        producer = AsyncProducer("GID_p", name_server=f"127.0.0.1:{silent.getsockname()[1]}")
        future = producer.send_nowait(Message("T", b"x"))
        await asyncio.sleep(0)
        while not producer._publisher.batcher._unplaced:  # type: ignore[union-attr]
            await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await producer.close()

        with pytest.raises(UsageError, match="closed before the message was sent"):
            await future

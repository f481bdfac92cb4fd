"""Poll consumers by both faces against a real broker: shares, polling, offsets, closing."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from sparrowmq import (
    Admin,
    AsyncPollConsumer,
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
    MessageSelector,
    PollConsumer,
    Producer,
    PullStatus,
)
from sparrowmq.errors import TopicRouteNotFound, UsageError
from sparrowmq.protocol.bodies import (
    ResetOffsetBody,
    decode_body,
)
from sparrowmq.testing.embedded import EmbeddedCluster
from waiting import wait_until

PATIENCE_S = 60
PATIENCE_MS = 1000 * PATIENCE_S


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    def run(self, awaitable: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(awaitable, self.loop).result(2 * PATIENCE_S)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE_S)
        self.loop.close()


class Awaited:
    """The asyncio face, used from a thread as the synchronous one is."""

    def __init__(self, consumer: AsyncPollConsumer, thread: LoopThread) -> None:
        self._consumer = consumer
        self._thread = thread

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._consumer, name)
        if not inspect.iscoroutinefunction(found):
            return found
        return lambda *args, **named: self._thread.run(found(*args, **named))

    def __iter__(self) -> Iterator[MessageExt]:
        iterator: AsyncIterator[MessageExt] = self._consumer.__aiter__()

        async def step() -> MessageExt | None:
            return await anext(iterator, None)

        while (message := self._thread.run(step())) is not None:
            yield message

    def __enter__(self) -> Awaited:
        return self

    def __exit__(self, *error: Any) -> None:
        self._thread.run(self._consumer.__aexit__(*error))


@pytest.fixture(params=["blocking", "asyncio"])
def make_pull(
    request: pytest.FixtureRequest, cluster: EmbeddedCluster, topic: str, group: str
) -> Iterator[Callable[..., Any]]:
    """Make started consumers of this test's group, by each face; closed at the end."""
    with ExitStack() as stack:
        thread: LoopThread | None = None
        if request.param == "asyncio":
            thread = LoopThread()
            stack.callback(thread.close)

        def make(*, subscribes: bool = True, starts: bool = True, **settings: Any) -> Any:
            defaults: dict[str, Any] = {
                "start": "first",
                "name_server": cluster.name_server,
            }
            settings = defaults | settings
            consumer: Any
            if thread is None:
                consumer = PollConsumer(group, **settings)
            else:
                consumer = Awaited(AsyncPollConsumer(group, **settings), thread)
            stack.callback(consumer.close)
            if subscribes:
                consumer.subscribe(topic)
            if starts:
                consumer.start()
            return consumer

        yield make


def send(producer: Producer, topic: str, bodies: list[str], *, queue_id: int | None = None) -> None:
    queues = producer.fetch_publish_queues(topic)
    for at in range(0, len(bodies), 25):
        messages = [Message(topic, body.encode()) for body in bodies[at : at + 25]]
        queue = None if queue_id is None else queues[queue_id]
        producer.send_batch(messages, queue=queue)


def numbers_of(messages: list[MessageExt]) -> list[int]:
    return [int(message.body) for message in messages]


def poll_all(consumer: Any, count: int) -> list[MessageExt]:
    found: list[MessageExt] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} messages"
        found += consumer.getmany(count, timeout_ms=1_000)
    return found


async def test_consumer_with_topics_is_iterated_without_more_calls(
    cluster: EmbeddedCluster, producer: Producer, topic: str, group: str
) -> None:
    send(producer, topic, ["1", "2"], queue_id=3)
    found = []
    async with AsyncPollConsumer(
        group, topic, name_server=cluster.name_server, start="first"
    ) as consumer:
        begun = len(consumer.assignment())
        async for message in consumer:
            found.append(message)
            if len(found) == 2:
                break

    assert begun == 8
    assert numbers_of(found) == [1, 2]


def lag_of(admin: Admin, group: str, topic: str) -> int:
    return sum(lag.lag for lag in admin.group_lag(group, topic))


@pytest.mark.slow
def test_getmany_gives_every_message_once_and_what_is_done_is_committed(
    make_pull: Callable[..., Any], producer: Producer, admin: Admin, topic: str, group: str
) -> None:
    send(producer, topic, [str(n) for n in range(2_000)])
    consumer = make_pull()

    found = poll_all(consumer, 2_000)

    assert list(range(2_000)) == sorted(numbers_of(found))
    assert consumer.getmany(timeout_ms=1) == []
    wait_until("commit of all", lambda: lag_of(admin, group, topic) == 0)
    assert len(consumer.assignment()) == 8


@pytest.mark.slow
def test_iteration_gives_messages_of_a_queue_in_order_and_ends_at_close(
    make_pull: Callable[..., Any], producer: Producer, topic: str
) -> None:
    send(producer, topic, [str(n) for n in range(100)], queue_id=3)
    consumer = make_pull()
    found: list[int] = []
    closes = threading.Thread(target=consumer.close)

    for message in consumer:
        found.append(int(message.body))
        if len(found) == 100:
            closes.start()
    closes.join(PATIENCE_S)

    assert list(range(100)) == found
    with pytest.raises(UsageError, match="is closed"):
        consumer.getone()


@pytest.mark.slow
def test_iteration_ends_after_the_message_at_which_its_consumer_is_closed(
    make_pull: Callable[..., Any], producer: Producer, topic: str
) -> None:
    send(producer, topic, ["1", "2", "3"], queue_id=3)
    consumer, found = make_pull(), list[int]()
    for message in consumer:
        found.append(int(message.body))
        consumer.close()

    assert found == [1]


@pytest.mark.slow
def test_closing_wakes_a_poll_that_waits(make_pull: Callable[..., Any]) -> None:
    consumer = make_pull()
    results: list[Any] = []
    polls = threading.Thread(target=lambda: results.append(consumer.getone()))
    polls.start()
    wait_until("assignment", lambda: len(consumer.assignment()) == 8)

    consumer.close()
    polls.join(PATIENCE_S)

    assert results == [None]


def test_polls_need_a_start(make_pull: Callable[..., Any]) -> None:
    consumer = make_pull(starts=False)

    with pytest.raises(UsageError, match="call start first"):
        consumer.getone()


@pytest.mark.slow
def test_a_message_counts_as_done_when_the_next_is_asked_for(
    make_pull: Callable[..., Any], producer: Producer, admin: Admin, topic: str, group: str
) -> None:
    send(producer, topic, ["0", "1", "2", "3"], queue_id=0)
    consumer = make_pull()

    def work() -> None:
        with consumer:
            for message in consumer:
                if message.body == b"2":
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()

    assert sum(lag.committed_offset or 0 for lag in admin.group_lag(group, topic)) == 2

    with make_pull() as second:
        assert numbers_of([second.getone(PATIENCE_MS), second.getone(PATIENCE_MS)]) == [2, 3]
    assert lag_of(admin, group, topic) == 0


@pytest.mark.slow
def test_without_auto_commit_only_commit_commits(
    make_pull: Callable[..., Any], producer: Producer, admin: Admin, topic: str, group: str
) -> None:
    send(producer, topic, [str(n) for n in range(3_000)], queue_id=0)
    consumer = make_pull(auto_commit=False)

    # More than the queue may cache: what the user was given does not count as cached.
    found = poll_all(consumer, 2_500)
    queue = found[0].queue
    assert not admin.committed_offset(group, queue)
    consumer.commit()

    assert len(found) == consumer.committed_offset(queue)
    consumer.commit({queue: 7})
    assert admin.committed_offset(group, queue) == 7
    with pytest.raises(UsageError, match="is not assigned"):
        consumer.commit({MessageQueue(topic, "nowhere", 0): 1})


@pytest.mark.slow
def test_members_share_queues_and_a_leave_repeats_nothing(
    make_pull: Callable[..., Any], producer: Producer, topic: str
) -> None:
    first, second = make_pull(), make_pull()
    wait_until(
        "a share of 4 for each", lambda: [len(c.assignment()) for c in (first, second)] == [4, 4]
    )
    send(producer, topic, [str(n) for n in range(400)])
    found = poll_all(first, 100) + poll_all(second, 100)
    second.close()
    found += poll_all(first, 400 - len(found))

    assert list(range(400)) == sorted(numbers_of(found))
    assert first.getmany(timeout_ms=300) == []
    assert len(first.assignment()) == 8


@pytest.mark.slow
def test_assigned_queues_are_consumed_whatever_others_do(
    make_pull: Callable[..., Any], producer: Producer, admin: Admin, topic: str, group: str
) -> None:
    send(producer, topic, ["1", "2", "3"], queue_id=1)
    send(producer, topic, ["50", "51"], queue_id=5)
    both = [make_pull(subscribes=False, starts=False) for _ in range(2)]
    queues = both[0].fetch_subscribe_queues(topic)
    both[0].assign([queues[1], queues[5]])
    both[1].assign([queues[5]])
    for consumer in both:
        consumer.start()

    assert sorted(numbers_of(poll_all(both[0], 5))) == [1, 2, 3, 50, 51]
    assert numbers_of(poll_all(both[1], 2)) == [50, 51]
    assert [queues[1], queues[5]] == both[0].assignment()
    with pytest.raises(UsageError, match="given by assign"):
        both[0].subscribe(topic)
    assert both[0].getmany(timeout_ms=1) == []
    both[0].assign([queues[2]])
    wait_until("another queue", lambda: [queues[2]] == both[0].assignment())
    wait_until("the commit of a queue left", lambda: admin.committed_offset(group, queues[1]) == 3)


@pytest.mark.slow
def test_a_paused_queue_gives_nothing_until_it_is_resumed(
    make_pull: Callable[..., Any], producer: Producer, topic: str
) -> None:
    consumer = make_pull()
    wait_until("assignment", lambda: len(consumer.assignment()) == 8)
    queues = consumer.assignment()
    send(producer, topic, [str(n) for n in range(40)], queue_id=0)
    first = consumer.getone(PATIENCE_MS)
    consumer.pause(queues[0])
    send(producer, topic, ["1000"], queue_id=1)

    assert numbers_of(poll_all(consumer, 1)) == [1000]
    assert consumer.getmany(timeout_ms=50) == []
    consumer.resume(queues[0])
    assert list(range(40)) == numbers_of([first, *poll_all(consumer, 39)])
    with pytest.raises(UsageError, match="is not assigned"):
        consumer.pause(MessageQueue(topic, "nowhere", 0))


@pytest.mark.slow
@pytest.mark.parametrize("is_assigned", [False, True], ids=["subscribed", "assigned"])
def test_seek_goes_on_where_it_says_and_drops_what_had_arrived(
    make_pull: Callable[..., Any], producer: Producer, topic: str, is_assigned: bool
) -> None:
    send(producer, topic, [str(n) for n in range(100)], queue_id=0)
    consumer = make_pull(subscribes=not is_assigned, starts=False)
    queues = consumer.fetch_subscribe_queues(topic)
    if is_assigned:
        consumer.assign(queues[:1])
    consumer.start()
    queue = queues[0]

    assert numbers_of([consumer.getone(PATIENCE_MS) for _ in range(3)]) == [0, 1, 2]
    consumer.seek(queue, 97)
    assert numbers_of([consumer.getone(PATIENCE_MS) for _ in range(3)]) == [97, 98, 99]
    consumer.seek_to_begin(queue)
    assert list(range(100)) == numbers_of(poll_all(consumer, 100))
    consumer.seek(queue, 50)
    consumer.seek_to_end(queue)
    assert consumer.getmany(timeout_ms=200) == []
    send(producer, topic, ["100"], queue_id=0)
    assert numbers_of(poll_all(consumer, 1)) == [100]
    wait_until(
        "the commit of what was given before", lambda: consumer.committed_offset(queue) == 100
    )
    with pytest.raises(UsageError, match="has the offsets 0 to 101; 102 is not among them"):
        consumer.seek(queue, 102)
    with pytest.raises(UsageError, match="is not assigned"):
        consumer.seek(MessageQueue(topic, "nowhere", 0), 0)


def test_consumer_that_seeks_in_on_assign_reads_on_at_once(
    cluster: EmbeddedCluster, producer: Producer, topic: str, group: str
) -> None:
    send(producer, topic, [str(n) for n in range(10)], queue_id=0)

    def go_on(queues: list[MessageQueue]) -> None:
        for queue in queues:
            if queue.queue_id == 0:
                consumer.seek(queue, 7)

    consumer = PollConsumer(
        group, topic, name_server=cluster.name_server, start="first", on_assign=go_on
    )
    with consumer:
        # After 10 s it would no longer wait for on_assign.
        found = consumer.getmany(3, timeout_ms=8_000)

    assert numbers_of(found) == [7, 8, 9]


@pytest.mark.slow
def test_seek_right_after_assign_holds(
    make_pull: Callable[..., Any], producer: Producer, topic: str
) -> None:
    send(producer, topic, [str(n) for n in range(10)], queue_id=0)
    consumer = make_pull(subscribes=False)
    queue = consumer.fetch_subscribe_queues(topic)[0]

    consumer.assign([queue])
    consumer.seek(queue, 7)
    assert numbers_of(poll_all(consumer, 3)) == [7, 8, 9]
    consumer.assign([])
    with pytest.raises(UsageError, match="is not assigned"):
        consumer.seek(MessageQueue(topic, "nowhere", 0), 0)


@pytest.mark.slow
def test_seek_to_a_time_right_after_assign_holds(
    make_pull: Callable[..., Any], producer: Producer, topic: str
) -> None:
    send(producer, topic, ["0"], queue_id=0)
    consumer = make_pull(subscribes=False)
    queue = consumer.fetch_subscribe_queues(topic)[0]
    stored_timestamp_ms = consumer.pull(queue, 0).messages[0].store_timestamp_ms
    wait_until("later time", lambda: time.time() * 1000 > stored_timestamp_ms + 1)
    send(producer, topic, ["1", "2"], queue_id=0)

    consumer.assign([queue])
    consumer.seek_to_time(consumer.pull(queue, 1).messages[0].store_timestamp_ms, queue)
    assert numbers_of(poll_all(consumer, 2)) == [1, 2]


@pytest.mark.slow
def test_pause_right_after_assign_holds_as_long_as_the_queue_is_assigned(
    make_pull: Callable[..., Any], producer: Producer, topic: str
) -> None:
    send(producer, topic, ["0"], queue_id=0)
    send(producer, topic, ["10"], queue_id=1)
    consumer = make_pull(subscribes=False)
    queues = consumer.fetch_subscribe_queues(topic)

    consumer.assign(queues[:2])
    consumer.pause(queues[0])
    assert numbers_of(poll_all(consumer, 1)) == [10]
    assert consumer.getmany(timeout_ms=50) == []
    consumer.resume(queues[0])
    assert numbers_of(poll_all(consumer, 1)) == [0]

    # A queue that was given and taken again before its membership began is not paused either.
    consumer.assign(queues[2:3])
    consumer.pause(queues[2])
    consumer.assign(queues[1:2])
    consumer.assign(queues[1:3])
    send(producer, topic, ["20"], queue_id=2)
    assert numbers_of(poll_all(consumer, 1)) == [20]


def test_seek_needs_a_start(make_pull: Callable[..., Any], topic: str) -> None:
    consumer = make_pull(subscribes=False, starts=False)
    queue = consumer.fetch_subscribe_queues(topic)[0]
    consumer.assign([queue])

    for name, *arguments in (
        ("seek", queue, 0),
        ("seek_to_begin", queue),
        ("seek_to_end", queue),
        ("seek_to_time", 0, queue),
    ):
        with pytest.raises(UsageError, match="is not started"):
            getattr(consumer, name)(*arguments)


@pytest.mark.slow
def test_seek_to_the_offset_of_a_time(
    make_pull: Callable[..., Any], producer: Producer, topic: str
) -> None:
    send(producer, topic, ["0", "1"], queue_id=0)
    consumer = make_pull()
    first, second = (consumer.getone(PATIENCE_MS) for _ in range(2))
    queue = first.queue

    offset = consumer.search_offset(queue, first.store_timestamp_ms)
    consumer.seek(queue, offset)

    assert offset == 0
    assert numbers_of(poll_all(consumer, 2)) == [0, 1]
    assert second.queue == queue


@pytest.mark.slow
def test_only_subscribed_tags_are_given(
    make_pull: Callable[..., Any], producer: Producer, topic: str
) -> None:
    consumer = make_pull(subscribes=False)
    consumer.subscribe(topic, "A || B")
    for n, tag in enumerate("ABCABC"):
        producer.send(Message(topic, str(n).encode(), tags=tag))

    assert sorted(numbers_of(poll_all(consumer, 4))) == [0, 1, 3, 4]
    assert consumer.getmany(timeout_ms=50) == []


def test_only_messages_that_fulfil_a_condition_are_given(
    make_pull: Callable[..., Any], producer: Producer, topic: str
) -> None:
    wanted = MessageSelector.by_sql("n BETWEEN 2 AND 4")
    consumer = make_pull(subscribes=False)
    consumer.subscribe(topic, wanted)
    queue = producer.fetch_publish_queues(topic)[0]
    for n in range(6):
        message = Message(topic, str(n).encode(), properties={"n": str(n)})
        producer.send(message, queue=queue)

    by_hand = consumer.pull(queue, 0, expression=wanted)

    assert sorted(numbers_of(poll_all(consumer, 3))) == [2, 3, 4]
    assert consumer.getmany(timeout_ms=50) == []
    assert numbers_of(by_hand.messages) == [2, 3, 4]
    with pytest.raises(UsageError, match="wrong at character 4"):
        consumer.subscribe(topic, MessageSelector.by_sql("n >"))


@pytest.mark.slow
def test_in_broadcasting_every_member_gets_all(
    make_pull: Callable[..., Any], producer: Producer, topic: str
) -> None:
    settings = {"message_model": MessageModel.BROADCASTING}
    both = [make_pull(instance_name=f"I{n}", **settings) for n in range(2)]
    send(producer, topic, [str(n) for n in range(20)])

    assert [list(range(20))] * 2 == [sorted(numbers_of(poll_all(c, 20))) for c in both]


@pytest.mark.slow
def test_in_broadcasting_a_member_that_comes_again_goes_on_where_it_was(
    make_pull: Callable[..., Any], producer: Producer, topic: str, tmp_path: Path
) -> None:
    settings = {
        "message_model": MessageModel.BROADCASTING,
        "start": "last",
        "local_offset_dir": tmp_path,
        "instance_name": "stays",
    }
    first = make_pull(**settings)
    wait_until("all queues", lambda: len(first.assignment()) == 8)
    # What a queue has when it is begun is not consumed; until then it may be told as not ours.
    wait_until("the start of all", lambda: len(kept(tmp_path)) == 8)
    send(producer, topic, ["0", "1", "2"], queue_id=3)
    assert numbers_of([first.getone(), first.getone()]) == [0, 1]
    # Asking for the next tells that the ones before are done.
    assert numbers_of([first.getone()]) == [2]
    first.commit({first.fetch_subscribe_queues(topic)[3]: 2})
    assert kept(tmp_path)[3] == 2
    first.close()
    send(producer, topic, ["3"], queue_id=3)
    send(producer, topic, ["4"], queue_id=5)

    again = make_pull(**settings)

    assert sorted(numbers_of(poll_all(again, 2))) == [3, 4]
    assert again.committed_offset(again.fetch_subscribe_queues(topic)[3]) == 3


def kept(directory: Path) -> dict[int, int]:
    """Return the offsets in the member's file, by queue id; while it is replaced, the former's."""
    for name in ("offsets.json", "offsets.json.bak"):
        for path in directory.glob(f"*/*/{name}"):
            with contextlib.suppress(FileNotFoundError):
                table = decode_body(ResetOffsetBody, path.read_bytes()).offset_table
                return {queue.queue_id: offset for queue, offset in table.items()}
    return {}


@pytest.mark.slow
@pytest.mark.parametrize("model", list(MessageModel))
@pytest.mark.parametrize("auto_commit", [True, False])
def test_a_topic_that_is_subscribed_again_goes_on_where_it_was(
    make_pull: Callable[..., Any],
    producer: Producer,
    topic: str,
    tmp_path: Path,
    *,
    model: MessageModel,
    auto_commit: bool,
) -> None:
    """Also one of whose messages nothing was committed, and that begins at the end."""
    consumer = make_pull(
        message_model=model,
        local_offset_dir=tmp_path,
        auto_commit=auto_commit,
        start="last",
        drain_timeout_ms=500,
    )
    queue = consumer.fetch_subscribe_queues(topic)[2]
    wait_until("the queue's start", lambda: consumer.committed_offset(queue) is not None)
    send(producer, topic, [str(n) for n in range(20)], queue_id=2)
    given = numbers_of([consumer.getone() for _ in range(5)])

    consumer.unsubscribe(topic)
    wait_until("nothing to be left", lambda: consumer.assignment() == [])
    assert consumer.getmany(timeout_ms=50) == []
    send(producer, topic, [str(n) for n in range(20, 30)], queue_id=2)
    consumer.subscribe(topic)

    more: list[int] = []
    deadline = time.monotonic() + PATIENCE_S
    while 29 not in more:
        assert time.monotonic() < deadline, more
        more += numbers_of(consumer.getmany(10, timeout_ms=1_000))
    assert given == [0, 1, 2, 3, 4]
    assert sorted(more) == more
    # With auto_commit what was given is done; without, nothing was committed, and it comes again.
    assert [5 if auto_commit else 0, 29] == [more[0], more[-1]]
    assert list(range(more[0], 30)) == more


@pytest.mark.slow
def test_a_pull_by_hand_tells_each_status(
    make_pull: Callable[..., Any], producer: Producer, topic: str
) -> None:
    consumer = make_pull(subscribes=False, starts=False)
    for n, tag in enumerate("AAB"):
        message = Message(topic, str(n).encode(), tags=tag)
        producer.send(message, queue=producer.fetch_publish_queues(topic)[0])
    queue = consumer.fetch_subscribe_queues(topic)[0]

    found = consumer.pull(queue, 0)
    some = consumer.pull(queue, 1, 1)
    nothing = consumer.pull(queue, 3)
    unmatched = consumer.pull(queue, 0, expression="C")
    illegal = consumer.pull(queue, 9)

    assert (found.status, *found[2:]) == (PullStatus.FOUND, 3, 0, 3)
    assert numbers_of(found.messages) == [0, 1, 2]
    assert (numbers_of(some.messages), some.next_offset) == ([1], 2)
    assert nothing[:3] == (PullStatus.NO_NEW_MSG, [], 3)
    assert unmatched[:3] == (PullStatus.NO_MATCHED_MSG, [], 3)
    assert illegal[:2] == (PullStatus.OFFSET_ILLEGAL, [])
    with pytest.raises(TopicRouteNotFound):
        consumer.pull(MessageQueue("NoSuchTopic", queue.broker_name, 0), 0)


@pytest.mark.slow
def test_one_poll_at_a_time(make_pull: Callable[..., Any]) -> None:
    consumer = make_pull()
    refused: list[str] = []

    def poll_until_one_is_refused() -> None:
        while not refused:
            try:
                consumer.getmany(timeout_ms=5)
            except UsageError as error:
                refused.append(str(error))

    other = threading.Thread(target=poll_until_one_is_refused)
    other.start()
    poll_until_one_is_refused()
    other.join(PATIENCE_S)

    assert "polled already" in refused[0]


@pytest.mark.parametrize("begin", [AsyncPollConsumer.getone, AsyncPollConsumer.__aiter__])
async def test_poll_that_waits_ends_when_the_task_of_its_consumer_is_cancelled(
    begin: Callable[..., Any],
) -> None:
    group, found = "GID_cancelled", list[MessageExt]()

    async def poll(consumer: AsyncPollConsumer) -> None:
        waiting = begin(consumer)
        if inspect.isawaitable(waiting):
            await waiting
        else:
            found.extend([message async for message in waiting])

    async with AsyncPollConsumer(group, name_server="127.0.0.1:1") as consumer:
        await consumer.subscribe("T")
        await consumer.start()
        polling = asyncio.create_task(poll(consumer))
        await asyncio.sleep(0)
        (loop,) = (t for t in asyncio.all_tasks() if t.get_name() == f"sparrowmq-consumer-{group}")
        loop.cancel()

        with pytest.raises(UsageError, match="has failed; close it and start a new one"):
            await asyncio.wait_for(polling, PATIENCE_S)
    assert found == []

"""Clients of one process that share connections, and consumers that exclude each other."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from contextvars import ContextVar
from typing import Any

import pytest

from sparrowmq import (
    Admin,
    AsyncProducer,
    AsyncPushConsumer,
    Message,
    MessageModel,
    MessageQueue,
    PollConsumer,
    Producer,
    PushConsumer,
)
from sparrowmq.calling.blocking_driver import BlockingDriver
from sparrowmq.client.config import ClientConfig
from sparrowmq.client.instances import INSTANCES, ClientInstance
from sparrowmq.errors import BrokerError, ConfigError, UsageError
from sparrowmq.testing.embedded import EmbeddedCluster
from waiting import wait_until

pytestmark = pytest.mark.slow


class Stage:
    """Makes consumers of one group, and closes them."""

    def __init__(self, cluster: EmbeddedCluster, group: str, stack: ExitStack) -> None:
        self._cluster = cluster
        self._group = group
        self._stack = stack

    def make(self, **settings: Any) -> PushConsumer:
        defaults: dict[str, Any] = {"listener": lambda *_: None, "client_ip": "10.0.0.1"}
        settings = defaults | settings
        group = settings.pop("group", self._group)
        consumer = PushConsumer(group, name_server=self._cluster.name_server, **settings)
        return self._stack.enter_context(consumer)

    def make_poller(self, **settings: Any) -> PollConsumer:
        consumer = PollConsumer(self._group, name_server=self._cluster.name_server, **settings)
        return self._stack.enter_context(consumer)


@pytest.fixture
def stage(cluster: EmbeddedCluster, group: str) -> Any:
    with ExitStack() as stack:
        yield Stage(cluster, group, stack)


def test_second_consumer_of_a_group_under_one_client_id_is_refused(
    stage: Stage, group: str
) -> None:
    first, second = (stage.make(instance_name="same") for _ in range(2))
    other_group = stage.make(instance_name="same", group=f"{group}_other")
    first.start()
    other_group.start()

    with pytest.raises(UsageError) as refused:
        second.start()

    assert group in str(refused.value)
    assert "10.0.0.1@same" in str(refused.value)
    assert "its own instance_name" in str(refused.value)
    first.close()
    second.start()


def test_broadcasting_consumers_that_would_share_their_offsets_are_refused(stage: Stage) -> None:
    first, second = (stage.make(message_model=MessageModel.BROADCASTING) for _ in range(2))
    first.start()

    with pytest.raises(UsageError, match=r"10\.0\.0\.1@DEFAULT"):
        second.start()


def test_other_face_and_other_kind_are_refused_too(
    stage: Stage, cluster: EmbeddedCluster, group: str
) -> None:
    same: dict[str, Any] = {"client_ip": "10.0.0.1", "instance_name": "same"}
    stage.make(**same).start()
    poller = stage.make_poller(**same)

    async def start() -> None:
        async with AsyncPushConsumer(
            group, name_server=cluster.name_server, listener=lambda *_: None, **same
        ) as consumer:
            await consumer.start()

    for begin in (poller.start, lambda: asyncio.run(start())):
        with pytest.raises(UsageError, match=r"10\.0\.0\.1@same in this process already"):
            begin()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"T": "*"}, {"T": "a"}),
        ({"T": "a || b"}, {"T": "a || c"}),
        ({"T": "*"}, {"U": "*"}),
        ({"T": "*"}, {"T": "*", "U": "*"}),
    ],
)
def test_unequal_subscriptions_of_a_group_are_refused(
    stage: Stage, group: str, first: dict[str, str], second: dict[str, str]
) -> None:
    consumers = [stage.make(), stage.make()]
    for consumer, subscriptions in zip(consumers, (first, second), strict=True):
        for topic, expression in subscriptions.items():
            consumer.subscribe(topic, expression)
    consumers[0].start()

    with pytest.raises(ConfigError) as refused:
        consumers[1].start()

    text = str(refused.value)
    assert all(consumer.client_id in text for consumer in consumers)
    assert all(f"{t} ({e})" in text for topics in (first, second) for t, e in topics.items())
    assert f"consumer group {group}" in text
    assert "Subscribe the same" in text


def test_equal_subscriptions_in_other_words_are_equal(stage: Stage) -> None:
    consumers = [stage.make(), stage.make(), stage.make()]
    for consumer, expression in zip(consumers, ("a || b", "b||a", None), strict=True):
        if expression is not None:
            consumer.subscribe("T", expression)
        consumer.start()
    poller = stage.make_poller()
    poller.assign([MessageQueue("U", "broker-a", 0)])
    poller.start()


def addresses_of(admin: Admin, *groups: str) -> list[set[str]]:
    """Return from where the members of each group are connected."""
    return [
        {seat.client_addr for seat in admin.consumer_connections(group).connection_set}
        for group in groups
    ]


def is_listed(admin: Admin, group: str) -> bool:
    try:
        return bool(admin.consumer_ids(group))
    except BrokerError:
        return False


def test_consumers_and_producers_of_one_client_id_share_a_connection(
    stage: Stage, admin: Admin, cluster: EmbeddedCluster, topic: str, group: str
) -> None:
    same: dict[str, Any] = {"client_ip": "10.0.0.1", "instance_name": "shared"}
    got: list[bytes] = []
    first = stage.make(**same, start="first")
    second = stage.make(
        **same,
        group=f"{group}_second",
        listener=lambda messages, _: got.extend(message.body for message in messages),
        start="first",
    )
    for consumer in (first, second):
        consumer.subscribe(topic)
        consumer.start()
    wait_until(
        "both have all queues",
        lambda: [len(first.assignment()), len(second.assignment())] == [8, 8],
    )
    groups = (first.group, second.group)

    at_first, at_second = addresses_of(admin, *groups)
    assert len(at_first) == 1
    assert at_first == at_second
    with Producer("GID_p", name_server=cluster.name_server, **same) as producer:
        producer.send(Message(topic, b"1"))
        wait_until("the message", lambda: b"1" in got)
        first.close()

        assert [is_listed(admin, name) for name in groups] == [False, True]
        assert addresses_of(admin, second.group) == [at_second]
        producer.send(Message(topic, b"2"))
        wait_until("the next message", lambda: b"2" in got)
    second.close()
    with pytest.raises(UsageError, match="closed"):
        producer.send(Message(topic, b"3"))


def test_closed_client_is_closed_also_while_others_of_its_id_go_on(
    stage: Stage, cluster: EmbeddedCluster, topic: str
) -> None:
    same: Any = {"client_ip": "10.0.0.1", "instance_name": "shared"}
    stage.make(**same, group="GID_goes_on").start()
    poller = stage.make_poller(**same)
    producer = Producer("GID_p", name_server=cluster.name_server, **same)
    producer.send(Message(topic, b"1"))
    queue = poller.fetch_subscribe_queues(topic)[0]
    producer.close()
    poller.close()

    for use in (
        lambda: producer.send(Message(topic, b"2")),
        lambda: poller.pull(queue, 0),
        poller.commit,
    ):
        with pytest.raises(UsageError, match=r"10\.0\.0\.1@shared is closed"):
            use()


def test_clients_of_other_ids_share_nothing(
    stage: Stage, admin: Admin, topic: str, group: str
) -> None:
    for name in (group, f"{group}_second"):
        consumer = stage.make(group=name)
        consumer.subscribe(topic)
        consumer.start()
    wait_until("both", lambda: is_listed(admin, group) and is_listed(admin, f"{group}_second"))

    one, other = addresses_of(admin, group, f"{group}_second")

    assert set() == one & other


async def test_asyncio_consumers_of_one_client_id_share_a_connection(
    cluster: EmbeddedCluster, admin: Admin, topic: str, group: str
) -> None:
    got: dict[str, list[bytes]] = {group: [], f"{group}_second": []}

    def listen(name: str) -> Any:
        return lambda messages, _: got[name].extend(message.body for message in messages)

    settings: Any = {"name_server": cluster.name_server, "instance_name": "shared"}
    consumers = [
        AsyncPushConsumer(name, listener=listen(name), start="first", **settings) for name in got
    ]
    async with AsyncExitStack() as stack:
        for consumer in consumers:
            await stack.enter_async_context(consumer)
            await consumer.subscribe(topic)
            await consumer.start()
        async with AsyncProducer("GID_p", **settings) as producer:
            await producer.send(Message(topic, b"1"))
            await until(lambda: list(got.values()) == [[b"1"]] * 2)

            one, other = await asyncio.to_thread(addresses_of, admin, *got)
            await consumers[0].close()
            left = await asyncio.to_thread(lambda: [is_listed(admin, name) for name in got])
            await producer.send(Message(topic, b"2"))
            await until(lambda: got[f"{group}_second"] == [b"1", b"2"])

    assert len(one) == 1
    assert one == other
    assert left == [False, True]


WHO: ContextVar[str] = ContextVar("who", default="nobody")


async def test_coroutines_of_a_consumer_see_the_context_in_which_it_was_started(
    cluster: EmbeddedCluster, topic: str, group: str
) -> None:
    """Whoever has opened the connection, or wakes the driver, has another one."""
    settings: Any = {"name_server": cluster.name_server, "instance_name": "shared"}
    seen: dict[str, set[str]] = {"listener": set(), "on_assign": set()}

    async def listen(*_: Any) -> None:
        seen["listener"].add(WHO.get())
        WHO.set("a call")

    async def note_assigned(_: Any) -> None:
        seen["on_assign"].add(WHO.get())

    WHO.set("the one that connects")
    async with AsyncProducer("GID_p", **settings) as producer:
        await producer.send(Message(topic, b"1"))
        WHO.set("the one that starts")
        async with AsyncPushConsumer(
            group, topic, listener=listen, on_assign=note_assigned, start="first", **settings
        ) as consumer:
            # Two at once may be handed over by one task, whose context they then share.
            await until(lambda: consumer.counters.succeeded == 1)
            WHO.set("the one that sends")
            await producer.send(Message(topic, b"2"))
            await until(lambda: consumer.counters.succeeded == 2)

    assert seen == {"listener": {"the one that starts"}, "on_assign": {"the one that starts"}}


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not is_so():
            await asyncio.sleep(0.005)


def test_one_whose_listener_hangs_does_not_hold_up_the_other(
    stage: Stage, cluster: EmbeddedCluster, topic: str, group: str
) -> None:
    """Threads for listeners are each consumer's own number, also on a shared instance."""
    free = threading.Event()
    got: list[bytes] = []
    same: Any = {"instance_name": "shared", "start": "first", "consume_thread_count": 2}
    hangs = stage.make(
        **same, listener=lambda *_: free.wait(60), drain_timeout_ms=100, group=f"{group}_hangs"
    )
    works = stage.make(**same, listener=lambda found, _: got.extend(m.body for m in found))
    for consumer in (hangs, works):
        consumer.subscribe(topic)
        consumer.start()
    with Producer("GID_p", name_server=cluster.name_server) as producer:
        for n in range(16):
            producer.send(Message(topic, b"%d" % n))

    try:
        wait_until("all messages", lambda: len(got) == 16)
        hangs.close()
    finally:
        free.set()


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_forked_process_has_no_consumers(stage: Stage) -> None:
    first, second = (stage.make(instance_name="same") for _ in range(2))
    first.start()

    child = os.fork()
    if child == 0:
        code = 1
        try:
            INSTANCES.register(second._subscriber, ClientInstance(BlockingDriver, ClientConfig()))
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)

    assert status == 0


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_forked_process_that_ends_logs_nothing_of_its_parents_clients(
    cluster: EmbeddedCluster, topic: str, group: str
) -> None:
    program = f"""
import os, sys
from sparrowmq import Message, Producer, PushConsumer
at = {{"name_server": {cluster.name_server!r}}}
producer = Producer("GID_p", linger_ms=30_000, **at)
producer.send_nowait(Message({topic!r}, b"x"))
running = PushConsumer({group!r}, {topic!r}, listener=lambda messages, context: None, **at)
running.start()
waiting = PushConsumer("GID_other", {topic!r}, listener=lambda messages, context: None, **at)
if os.fork() == 0:
    sys.exit()
os.wait()
waiting.start()
for client in (waiting, running, producer):
    client.close()
"""
    command = [sys.executable, "-W", "ignore", "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)

    assert ended.stderr == ""

"""The cluster in the test's own process, its clock, and what tests ask of a cluster."""

from __future__ import annotations

import asyncio
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from sparrowmq import (
    Admin,
    AsyncProducer,
    AsyncPushConsumer,
    ConsumeStatus,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionProducer,
    TransactionState,
)
from sparrowmq.errors import ConfigError, SparrowError, UsageError
from sparrowmq.model.delay import DELAY_LEVELS_MS
from sparrowmq.testing import (
    ClusterFailed,
    EmbeddedCluster,
    InProcessCluster,
    read_messages,
    wait_until_consumed,
)
from sparrowmq.testing.in_process import START_TIMEOUT_S

pytestmark = pytest.mark.slow
# Half of it or less on a machine that does nothing else.
START_CPU_S_MAX = 0.3


@pytest.fixture(scope="module")
def cluster() -> Iterator[InProcessCluster]:
    with InProcessCluster() as running:
        yield running


def test_start_and_a_topic_take_little_of_the_processor() -> None:
    def start() -> float:
        begun_s = time.process_time()
        with InProcessCluster() as running:
            running.create_topic("T")
            return time.process_time() - begun_s

    assert min(start() for _ in range(3)) < START_CPU_S_MAX / 3


def cluster_threads() -> set[threading.Thread]:
    """Return the threads of clusters: each ends after all that its servers have started.

    A cluster of other tests may run, and start and end threads of its own.
    """
    return {each for each in threading.enumerate() if each.name == "sparrowmq-cluster"}


def test_it_leaves_nothing_behind_and_starts_again() -> None:
    threads = cluster_threads()
    running = InProcessCluster()
    for _ in range(2):
        running.start()
        with pytest.raises(UsageError, match="runs already"):
            running.start()
        running.close()
        running.close()

        assert cluster_threads() == threads


def test_interrupted_start_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    threads = cluster_threads()
    wait = threading.Event.wait

    def wait_and_interrupt(event: threading.Event, timeout: float | None = None) -> bool:
        found = wait(event, timeout)
        if timeout == START_TIMEOUT_S:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(threading.Event, "wait", wait_and_interrupt)
    with pytest.raises(KeyboardInterrupt), InProcessCluster():
        pytest.fail("the cluster started")

    assert cluster_threads() == threads
    assert not list(tmp_path.iterdir())


def test_failed_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparrowmq.testing.in_process.HostSettings", None)

    with pytest.raises(ClusterFailed, match="the cluster did not start: TypeError"):
        InProcessCluster().start()


def test_every_delay_level_is_delivered_when_the_clock_says_so(cluster: InProcessCluster) -> None:
    """Two hours of delays; each message comes once its level is over, and not before."""
    cluster.create_topic("delayed", 1)
    begun_s = time.monotonic()
    with Producer("GID_p", name_server=cluster.name_server) as producer:
        for level in range(1, 1 + len(DELAY_LEVELS_MS)):
            producer.send(Message("delayed", b"%d" % level, delay_level=level))
    last_ms, found = 0, list[MessageExt]()
    for number, delay_ms in enumerate(DELAY_LEVELS_MS, 1):
        # The wall clock itself has gone on for some seconds at most.
        before_ms = delay_ms - last_ms - 60_000
        if before_ms > 0:
            cluster.advance(timedelta(milliseconds=before_ms))
            assert len(read_messages(cluster.name_server, "delayed")) == number - 1
        cluster.advance(timedelta(milliseconds=delay_ms - last_ms - max(before_ms, 0)))
        found = read_messages(cluster.name_server, "delayed")
        last_ms = delay_ms

        assert found[-1].body == b"%d" % number

    assert time.monotonic() - begun_s < 60
    assert [b"%d" % level for level in range(1, 19)] == [message.body for message in found]


def test_clock_does_not_go_back(cluster: InProcessCluster) -> None:
    before_ms = cluster.timestamp_ms

    with pytest.raises(UsageError, match="give a timedelta, zero or above"):
        cluster.advance(timedelta(seconds=-1))
    cluster.advance(timedelta(days=1))

    assert before_ms + 86_400_000 <= cluster.timestamp_ms < before_ms + 86_460_000
    with pytest.raises(UsageError, match="does not run"):
        InProcessCluster().advance(timedelta())


def test_all_that_is_due_is_there_when_the_clock_was_moved(cluster: InProcessCluster) -> None:
    """More than a broker delivers of one level at one tick."""
    cluster.create_topic("many", 1)
    with Producer("GID_p", name_server=cluster.name_server) as producer:
        for _ in range(700):
            producer.send(Message("many", b"x", delay_level=16))

    cluster.advance(timedelta(minutes=30))

    assert len(read_messages(cluster.name_server, "many")) == 700


def test_retries_come_when_the_clock_says_so(cluster: InProcessCluster) -> None:
    cluster.create_topic("retried")
    attempts: list[int] = []

    def listener(messages: object, context: object) -> None:
        attempts.append(1)
        if len(attempts) < 4:
            raise ValueError("not yet")

    with (
        Producer("GID_p", name_server=cluster.name_server) as producer,
        PushConsumer(
            "GID_retried",
            "retried",
            name_server=cluster.name_server,
            listener=listener,
            start="first",
        ),
    ):
        producer.send(Message("retried", b"x"))
        for number in range(1, 5):
            until_s = time.monotonic() + 20
            while len(attempts) < number:
                assert time.monotonic() < until_s
                cluster.advance(timedelta(minutes=10))
                time.sleep(0.01)
        cluster.wait_until_consumed("GID_retried", "retried")

    assert len(attempts) == 4


def test_invisible_messages_come_again_when_the_clock_says_so(cluster: InProcessCluster) -> None:
    cluster.create_topic("invisible")
    with (
        Producer("GID_p", name_server=cluster.name_server) as producer,
        SimpleConsumer("GID_i", "invisible", name_server=cluster.name_server) as consumer,
    ):
        producer.send(Message("invisible", b"x"))
        (first,) = consumer.receive(invisible=timedelta(hours=2))
        cluster.advance(timedelta(hours=1))
        assert consumer.receive(wait=timedelta(milliseconds=300)) == []

        cluster.advance(timedelta(hours=1))
        (second,) = consumer.receive(wait=timedelta(seconds=30))
        consumer.ack(second)

    assert (first.body, second.body) == (b"x", b"x")


def test_producers_are_asked_for_outcomes_when_the_clock_says_so(
    cluster: InProcessCluster,
) -> None:
    cluster.create_topic("asked", 1)
    with TransactionProducer(
        "GID_asked",
        name_server=cluster.name_server,
        check=lambda message: TransactionState.COMMIT,
    ) as producer:
        producer.send_half(Message("asked", b"x"))
        assert read_messages(cluster.name_server, "asked") == []

        cluster.advance(timedelta(minutes=2))

        assert [each.body for each in read_messages(cluster.name_server, "asked", 1)] == [b"x"]


def test_the_broker_takes_settings_by_name() -> None:
    with pytest.raises(ConfigError, match="did you mean transaction_check_max"):
        InProcessCluster(transaction_checks_max=2)

    with (
        InProcessCluster(auto_create_topics=False) as running,
        Producer("GID_p", name_server=running.name_server) as producer,
        pytest.raises(SparrowError, match="nowhere"),
    ):
        producer.send(Message("nowhere", b"x"))


@pytest.mark.parametrize("kind", [InProcessCluster, EmbeddedCluster])
def test_wait_until_consumed_waits_for_the_last_message(
    kind: type[InProcessCluster | EmbeddedCluster],
) -> None:
    seen: list[bytes] = []
    with kind() as running:
        running.create_topic("T")
        with Producer("GID_p", name_server=running.name_server) as producer:
            for number in range(50):
                producer.send(Message("T", b"%d" % number))
        with pytest.raises(ClusterFailed, match=r"GID_c has not consumed T within 100 ms .*nobody"):
            running.wait_until_consumed("GID_c", "T", timeout_ms=100)
        with PushConsumer(
            "GID_c",
            "T",
            name_server=running.name_server,
            listener=lambda messages, context: seen.extend(m.body for m in messages),
            start="first",
        ):
            running.wait_until_consumed("GID_c", "T")

            assert len(seen) == 50


def test_wait_until_consumed_waits_for_retries_that_are_due(cluster: InProcessCluster) -> None:
    cluster.create_topic("T_put_off", queues=1)
    with Producer("GID_p", name_server=cluster.name_server) as producer:
        producer.send(Message("T_put_off", b"x"))
    with PushConsumer(
        "GID_puts_off",
        "T_put_off",
        name_server=cluster.name_server,
        listener=lambda messages, context: ConsumeStatus.RECONSUME_LATER,
        start="first",
    ):
        cluster.wait_until_consumed("GID_puts_off", "T_put_off")
    cluster.advance(timedelta(minutes=1))

    with pytest.raises(ClusterFailed, match=r"%RETRY%GID_puts_off.*: 0 of 1"):
        cluster.wait_until_consumed("GID_puts_off", "T_put_off", timeout_ms=100)


async def test_event_loop_is_not_stopped_by_a_wait(cluster: InProcessCluster) -> None:
    await asyncio.to_thread(cluster.create_topic, "async")
    seen: list[bytes] = []

    async def listener(messages: list[object], context: object) -> None:
        seen.extend(message.body for message in messages)  # type: ignore[attr-defined]

    async with (
        AsyncProducer("GID_p", name_server=cluster.name_server) as producer,
        AsyncPushConsumer(
            "GID_async",
            "async",
            name_server=cluster.name_server,
            listener=listener,  # type: ignore[arg-type]
            start="first",
        ),
    ):
        await producer.send(Message("async", b"x"))
        with pytest.raises(UsageError, match=r"await asyncio\.to_thread\(wait_until_consumed"):
            cluster.wait_until_consumed("GID_async", "async")
        with pytest.raises(UsageError, match=r"await asyncio\.to_thread\(read_messages"):
            read_messages(cluster.name_server, "async")
        await asyncio.to_thread(wait_until_consumed, cluster.name_server, "GID_async", "async")

    assert seen == [b"x"]


def test_messages_are_read_in_the_order_of_the_store(cluster: InProcessCluster) -> None:
    cluster.create_topic("read", 4)
    with Producer("GID_p", name_server=cluster.name_server) as producer:
        for number in range(100):
            producer.send(Message("read", b"%d" % number))

    with Admin(name_server=cluster.name_server) as admin:
        groups = admin.list_groups()

    found = read_messages(cluster.name_server, "read", 100)

    assert [b"%d" % number for number in range(100)] == [message.body for message in found]
    with pytest.raises(ClusterFailed, match="topic read has 100 messages after 50 ms, not 101"):
        read_messages(cluster.name_server, "read", 101, timeout_ms=50)
    with Admin(name_server=cluster.name_server) as admin:
        assert admin.list_groups() == groups


def test_wait_until_consumed_waits_for_each_of_several_topics(cluster: InProcessCluster) -> None:
    for topic in ("T_first_of_two", "T_last_of_two"):
        cluster.create_topic(topic, queues=1)
    with Producer("GID_p", name_server=cluster.name_server) as producer:
        producer.send(Message("T_first_of_two", b"x"))

    with pytest.raises(ClusterFailed, match=r"topic=T_first_of_two.*: 0 of 1"):
        cluster.wait_until_consumed("GID_two", "T_first_of_two", "T_last_of_two", timeout_ms=50)
    with pytest.raises(UsageError, match="name the topics that group GID_two consumes"):
        cluster.wait_until_consumed("GID_two")


def test_clients_of_rocketmq_5_are_served_once_and_anew_after_a_restart() -> None:
    pytest.importorskip("grpc")
    running = InProcessCluster()
    for _ in range(2):
        with running:
            endpoint = running.serve_grpc()
            host, port = endpoint.split(":")

            assert running.serve_grpc() == endpoint
            socket.create_connection((host, int(port)), timeout=20).close()

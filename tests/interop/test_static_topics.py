"""Static topics of RocketMQ 5: queues whose number stays while they move between Apache's brokers.

`mqadmin updateStaticTopic` makes one on two masters, and `remappingStaticTopic` moves all its
queues to one of them. Members of both clients divide the same queues, and nothing is lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sparrowmq import Admin, Message, PollConsumer, Producer
from sparrowmq.spark.options import parse_options
from sparrowmq.spark.planning import QueueRange
from sparrowmq.spark.range_reader import read_ranges
from sparrowmq.spark.topic_queues import Cluster
from steady_traffic import TWICE_MAX, SteadyTraffic, steady_traffic
from waiting import JVM_LIMIT_S, wait_until

pytestmark = [
    pytest.mark.interop,
    pytest.mark.timeout(900),
    # Before 5.0 there are none.
    pytest.mark.parametrize("java", ["5.5.0"], indirect=True, scope="session"),
]

TOPIC, GROUP = "static", "GID_static"
QUEUES = [f"__syslo__global__:{number}" for number in range(6)]


class Masters:
    """Two masters under one name server, and a static topic on both."""

    def __init__(self, java: Any, brokers: list[Any]) -> None:
        self._java = java
        self.first = brokers[0]
        wait_until("both brokers", lambda: len(self._brokers()) == 2, timeout_s=JVM_LIMIT_S)
        self._run("updateStaticTopic", "-qn", str(len(QUEUES)), "-b", "broker-a,broker-b")
        self.wait_at("broker-a", "broker-b")

    def move_to(self, broker_name: str) -> None:
        """Move all queues to one broker."""
        self._run("remappingStaticTopic", "-b", broker_name)
        self.wait_at(broker_name)

    def wait_at(self, *names: str) -> None:
        """Wait until these brokers serve the queues, as the name server says."""
        with Admin(name_server=self.first.name_server) as admin:
            wait_until(
                f"the queues at {names}",
                lambda: set(admin.route(TOPIC).hosts.values()) == set(names),
                timeout_s=JVM_LIMIT_S,
            )

    def _brokers(self) -> list[Any]:
        with Admin(name_server=self.first.name_server) as admin:
            return admin.list_brokers()

    def _run(self, command: str, *options: str) -> None:
        lines = self._java.mqadmin(self.first, command, "-t", TOPIC, *options).lines
        assert any("mapping data is written to file" in line for line in lines), lines


@pytest.fixture
def masters(java: Any, rig: Any, tmp_path: Path) -> Iterator[Masters]:
    brokers: list[Any] = []
    try:
        for name in ("broker-a", "broker-b"):
            settings = {"brokerName": name, "flushDiskType": "SYNC_FLUSH"}
            broker = rig.ApacheCluster(java, tmp_path / name / "store", **settings)
            broker.start(name_server=brokers[0].name_server if brokers else "")
            brokers.append(broker)
        yield Masters(java, brokers)
    finally:
        for broker in reversed(brokers):
            broker.kill()


def test_queues_keep_their_offsets_and_times_when_they_move(
    masters: Masters, java_producer: Callable[..., Any], start_member: Callable[..., Any]
) -> None:
    name_server = masters.first.name_server
    sent: set[str] = set()

    def send(prefix: str) -> None:
        java_producer(masters.first, topic=TOPIC, group="GID_p", count=60, prefix=f"{prefix}-java-")
        with Producer("GID_p", name_server=name_server) as producer:
            results = [
                producer.send(Message(TOPIC, f"{prefix}-ours-{n}".encode())) for n in range(60)
            ]
            together = producer.send_batch([Message(TOPIC, f"{prefix}-batch".encode())] * 2)
        assert {f"__syslo__global__:{each.queue.queue_id}" for each in results} == set(QUEUES)
        assert together.queue.broker_name == "__syslo__global__"
        sent.update(f"{prefix}-{client}-{n}" for client in ("java", "ours") for n in range(60))
        sent.add(f"{prefix}-batch")

    send("before")
    members = [
        start_member(language, masters.first, topic=TOPIC, group=GROUP)
        for language in ("python", "java", "python")
    ]

    def wait_consumed(consumers: list[Any]) -> None:
        def got() -> set[str]:
            return {m["body"] for each in consumers for m in each.named("message")}

        wait_until("all consumed", lambda: got() == sent, timeout_s=JVM_LIMIT_S)

    # A group's members take complementary shares, whoever's they are.
    SteadyTraffic(None, members).wait_shared(QUEUES)
    wait_consumed(members)
    for each in members:
        each.stop()
    masters.move_to("broker-b")
    moved_ms = time.time() * 1000
    send("after")

    with PollConsumer(GROUP, name_server=name_server) as ours:
        ours.subscribe(TOPIC)
        ours.start()
        later = {body for body in sent if body.startswith("after")}
        # The committed offsets came along: nothing of the time before comes again.
        assert poll(ours, later) == later
        ours.commit()
        ours.seek_to_time(int(moved_ms), *ours.assignment())
        # For a time before its own second message, a broker of 5.5.0 answers with the queue's start
        # (AdminBrokerProcessor.rewriteRequestForStaticTopic).
        assert poll(ours, later) >= later
    with Admin(name_server=name_server) as admin:
        assert [each.lag for each in admin.group_lag(GROUP, TOPIC)] == [0] * len(QUEUES)
        queues = admin.route(TOPIC).subscribe_queues
        assert {admin.min_offset(queue) for queue in queues} == {0}
        first, *_ = admin.messages_at(queues[3], 0)
        assert first.queue == queues[3]
        assert first.queue_offset == 0
        assert admin.view_message(TOPIC, first.offset_msg_id) is not None
    assert read_as_spark_does(name_server) == sent
    # New groups read on from the broker that the queues have left.
    for language in ("python", "java"):
        late = start_member(language, masters.first, topic=TOPIC, group=f"GID_late_{language}")
        wait_consumed([late])


def poll(consumer: PollConsumer, wanted: set[str]) -> set[str]:
    """Poll until all these bodies have come; return the bodies that came."""
    found: set[str] = set()

    def is_found() -> bool:
        found.update(message.body.decode() for message in consumer.poll(100))
        return found >= wanted

    wait_until(f"{len(wanted)} messages", is_found, timeout_s=JVM_LIMIT_S)
    return found


def read_as_spark_does(name_server: str) -> set[str]:
    """Return the bodies of all messages, by the reader that Spark's executors run."""
    given = {"nameServer": name_server, "topic": TOPIC, "columns": "body"}
    options = parse_options(given, scope="batch")
    cluster = Cluster((name_server,), request_timeout_ms=5_000)
    try:
        cluster.run(cluster.refresh([TOPIC]))
        bounds = cluster.run(cluster.fetch_bounds(cluster.find_queues([TOPIC])))
        ranges = [
            (QueueRange(queue, at.min_offset, at.max_offset), 0) for queue, at in bounds.items()
        ]
        batches = list(read_ranges(cluster, options, ranges))
    finally:
        cluster.driver.close()
    return {row["body"].decode() for batch in batches for row in batch.to_pylist()}


@pytest.mark.parametrize("languages", [("python",) * 3, ("python", "python", "java")])
def test_keys_stay_in_order_while_their_queues_move(
    java: Any, masters: Masters, start_member: Callable[..., Any], languages: tuple[str, ...]
) -> None:
    members = (java, masters.first, start_member, languages)
    with steady_traffic(*members, topic=TOPIC, group=GROUP, orderly=True, keys=20) as traffic:
        traffic.wait_shared(QUEUES)
        traffic.send_more(300)
        for broker_name in ("broker-b", "broker-a"):
            masters.move_to(broker_name)
            traffic.send_more(1_000)
            traffic.wait_consumed(f"from {broker_name}")
        traffic.wait_shared(QUEUES)
        told = traffic.stop()
        traffic.assert_keys_in_order()
    wait_ms = traffic.longest_wait_ms()
    print(f"\n{java.version}, {languages}, moved twice: {told}; waited at most {wait_ms:.0f} ms")
    assert "java" in languages or traffic.twice_count <= TWICE_MAX

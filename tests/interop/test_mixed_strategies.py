"""Two Java and two Python members under each of RocketMQ's six strategies, and under load.

Members join, leave and are killed. At each rest every member has exactly what the strategy gives
it, so every queue has one owner; at the end every message has been consumed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from sparrowmq import MessageQueue
from sparrowmq.model.queue import java_order
from sparrowmq.strategies import AllocateMessageQueueByMachineRoom, strategy_from

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

QUEUE_COUNT = 8
STRATEGIES = ["AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH", "MACHINE_ROOM", "MACHINE_ROOM_NEARBY-AVG"]
ROOM_BROKER = "room1@broker-a"
# The room of the broker `broker-a` is `broker`; two members are elsewhere.
NEAR = {"clientIp": "broker-1"}
FAR = {"clientIp": "far-1"}


@pytest.fixture(scope="module")
def room_cluster(java: Any, rig: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Apache's broker under a name that tells its machine room, as MACHINE_ROOM wants it."""
    store: Path = tmp_path_factory.mktemp("room") / "store"
    cluster = rig.ApacheCluster(java, store, brokerName=ROOM_BROKER)
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.kill()


class MixedGroup:
    """The members that run, and what all that ever ran have consumed."""

    def __init__(self, cluster: Any, start_member: Callable[..., Any], **options: str) -> None:
        self.members: dict[str, Any] = {}
        self._everybody: list[Any] = []
        self._cluster = cluster
        self._start_member = start_member
        self._options = options

    def join(self, name: str, **options: str) -> None:
        language = name.partition("-")[0]
        member = self._start_member(language, self._cluster, **self._options, **options)
        self.members[name] = member
        self._everybody.append(member)

    def leave(self, name: str) -> None:
        assert self.members.pop(name).stop() == 0

    def kill(self, name: str) -> None:
        self.members.pop(name).kill()

    def client_id(self, name: str) -> str:
        return str(self.members[name].named("started")[0]["clientId"])

    def queue_ids(self) -> dict[str, list[int]]:
        return {name: member.queue_ids() for name, member in self.members.items()}

    def consumed(self) -> set[str]:
        return {event["body"] for member in self._everybody for event in member.named("message")}

    def wait_for_shares(self, expected: dict[str, list[int]]) -> None:
        assert list(range(QUEUE_COUNT)) == sorted(chain.from_iterable(expected.values()))
        wait_until(f"divided as {expected}", self.queue_ids, expected)


def wait_until(what: str, look: Callable[[], Any], expected: Any, timeout_s: float = 60) -> None:
    pause = threading.Event()
    for _ in range(int(timeout_s / 0.05)):
        if look() == expected:
            return
        pause.wait(0.05)
    pytest.fail(f"not {what} within {timeout_s} s, but {look()}")


def shares(group: MixedGroup, strategy: str, *, topic: str, broker: str) -> dict[str, list[int]]:
    """What the strategy gives to each member, worked out by our own."""
    queues = [MessageQueue(topic, broker, queue_id) for queue_id in range(QUEUE_COUNT)]
    ids = {name: group.client_id(name) for name in group.members}
    cids = sorted(ids.values(), key=java_order)
    chosen: Any = (
        AllocateMessageQueueByMachineRoom({"room1"})
        if strategy == "MACHINE_ROOM"
        else strategy_from(strategy)
    )
    return {
        name: sorted(queue.queue_id for queue in chosen.allocate("", cid, queues, cids))
        for name, cid in ids.items()
    }


@pytest.fixture
def load(java: Any) -> Iterator[Callable[..., Any]]:
    """Send 200 messages a second to a topic until told to stop."""
    running: list[Any] = []

    def start(cluster: Any, topic: str) -> Any:
        lines = java.python_peer("produce", nameServer=cluster.name_server, topic=topic, rate=200)
        running.append(lines)
        lines.wait_for("first message sent", lambda: lines.named("sent"))
        return lines

    yield start
    for lines in running:
        lines.kill()


def check_nothing_lost(group: MixedGroup, producer: Any) -> None:
    assert producer.stop() == 0
    sent = {event["body"] for event in producer.named("sent")}
    wait_until("every message consumed", lambda: sent - group.consumed(), set())
    assert len(sent) > 100


def run_scenario(
    cluster: Any,
    strategy: str,
    start_member: Callable[..., Any],
    load: Callable[..., Any],
    *,
    broker: str = "broker-a",
) -> None:
    topic = cluster.create_topic(f"strategies-{strategy}", queues=QUEUE_COUNT)
    options = {"topic": topic, "group": f"GID-{topic}", "strategy": strategy, "rooms": "room1"}
    near, far = (NEAR, FAR) if "NEARBY" in strategy else ({}, {})
    group = MixedGroup(cluster, start_member, **options)

    def settle() -> None:
        group.wait_for_shares(shares(group, strategy, topic=topic, broker=broker))

    group.join("java-1", **near)
    producer = load(cluster, topic)
    group.join("python-1", **near)
    settle()
    group.join("java-2", **far)
    group.join("python-2", **far)
    settle()
    group.leave("python-1")
    settle()
    group.kill("java-1")
    settle()
    group.leave("java-2")
    settle()
    group.join("java-3", **far)
    group.kill("python-2")
    settle()

    check_nothing_lost(group, producer)


@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if name != "MACHINE_ROOM"])
def test_each_queue_has_one_owner_on_apaches_broker(
    apache_cluster: Any,
    strategy: str,
    start_member: Callable[..., Any],
    load: Callable[..., Any],
) -> None:
    run_scenario(apache_cluster, strategy, start_member, load)


def test_each_queue_of_a_machine_room_has_one_owner(
    room_cluster: Any, start_member: Callable[..., Any], load: Callable[..., Any]
) -> None:
    run_scenario(room_cluster, "MACHINE_ROOM", start_member, load, broker=ROOM_BROKER)


@pytest.mark.parametrize("strategy", ["AVG", "CONSISTENT_HASH"])
def test_each_queue_has_one_owner_on_our_broker(
    our_cluster: Any,
    strategy: str,
    start_member: Callable[..., Any],
    load: Callable[..., Any],
) -> None:
    run_scenario(our_cluster, strategy, start_member, load)


def test_with_a_written_list_each_member_has_what_is_written(
    cluster: Any, start_member: Callable[..., Any], load: Callable[..., Any]
) -> None:
    topic = cluster.create_topic("strategies-CONFIG", queues=QUEUE_COUNT)
    options = {"topic": topic, "group": f"GID-{topic}", "strategy": "CONFIG"}
    written = {"java-1": [0, 1], "python-1": [2, 3], "java-2": [4, 5], "python-2": [6, 7]}
    group = MixedGroup(cluster, start_member, **options)
    producer = load(cluster, topic)
    for name, queue_ids in written.items():
        group.join(name, queues=",".join(f"broker-a:{queue_id}" for queue_id in queue_ids))
    group.wait_for_shares(written)

    # Nobody takes over what is not written for him, until someone comes for whom it is.
    group.kill("java-2")
    group.leave("python-1")
    left = {"java-1": [0, 1], "python-2": [6, 7]}
    assert left == group.queue_ids()
    group.join("python-3", queues="broker-a:2,broker-a:3,broker-a:4,broker-a:5")
    group.wait_for_shares(left | {"python-3": [2, 3, 4, 5]})

    check_nothing_lost(group, producer)

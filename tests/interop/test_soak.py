"""Minutes of real faults: a member cut off from the broker, and a broker restarted under load.

Not part of `make interop`; `make soak` runs it. The cut needs the right to make network
namespaces, and is skipped without it.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

QUEUE_COUNT = 8
EVERY_QUEUE = list(range(QUEUE_COUNT))
CUT_S = 150
# Between SparrowMQ members on our broker.
OWNED_AGAIN_S = 30
RESTARTS = 3


def has_sent_more(producer: Any, count: int) -> bool:
    return len(producer.named("sent")) > count


class Network:
    """Two hosts, `hub` and `far`, joined by a switch from which `far` can be unplugged.

    Each is a network namespace. An unplugged host's link stays up, so neither side is told:
    what is sent goes nowhere.
    """

    def __init__(self) -> None:
        self._names = {name: f"sparrow-{os.getpid()}-{name}" for name in ("hub", "far", "switch")}
        self.addresses = {"hub": "10.231.0.1", "far": "10.231.0.2"}

    def build(self) -> None:
        for name in self._names.values():
            _ip("netns", "add", name)
        switch = self._names["switch"]
        _ip("-n", switch, "link", "add", "bridge0", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge0", "up")
        for host, address in self.addresses.items():
            name = self._names[host]
            pair = ("type", "veth", "peer", "name", f"port-{host}", "netns", switch)
            _ip("link", "add", "eth0", "netns", name, *pair)
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "link", "set", "lo", "up")
            self.plug(host)

    def plug(self, host: str) -> None:
        _ip("-n", self._names["switch"], "link", "set", f"port-{host}", "master", "bridge0", "up")

    def unplug(self, host: str) -> None:
        _ip("-n", self._names["switch"], "link", "set", f"port-{host}", "nomaster")

    def inside(self, host: str) -> tuple[str, ...]:
        """Return what to write before a command to run it on a host."""
        return ("ip", "netns", "exec", self._names[host])

    def remove(self) -> None:
        for name in self._names.values():
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _ip(*arguments: str) -> None:
    try:
        subprocess.run(["ip", *arguments], capture_output=True, text=True, check=True)
    except FileNotFoundError:
        pytest.skip("iproute2's ip is not on the PATH")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: ip {' '.join(arguments)}: {error.stderr.strip()}")


@pytest.fixture
def network() -> Iterator[Network]:
    network = Network()
    try:
        network.build()
        yield network
    finally:
        network.remove()


@pytest.fixture
def start(java: Any) -> Iterator[Callable[..., Any]]:
    """Start our client as a process; it is killed at the end."""
    running: list[Any] = []

    def begin(verb: str, **options: Any) -> Any:
        running.append(java.python_peer(verb, **options))
        return running[-1]

    yield begin
    for lines in running:
        lines.kill()


def bodies(lines: Any, event: str) -> set[str]:
    return {each["body"] for each in lines.named(event)}


def is_shared(members: list[Any]) -> bool:
    shares = [member.queue_ids() for member in members]
    return all(shares) and sorted(queue for share in shares for queue in share) == EVERY_QUEUE


def check_nothing_lost(producer: Any, members: list[Any]) -> None:
    assert producer.stop() == 0
    sent = bodies(producer, "sent")
    assert sent

    def missing() -> set[str]:
        return sent - set().union(*(bodies(member, "message") for member in members))

    wait_until("every message consumed", lambda: not missing(), timeout_s=60)


@pytest.mark.parametrize("java", ["4.9.7"], indirect=True, scope="session")
def test_a_member_cut_off_and_healed_loses_nothing_and_finds_its_place(
    java: Any, rig: Any, network: Network, start: Callable[..., Any], tmp_path: Path
) -> None:
    cluster = rig.OurCluster(
        java,
        tmp_path / "data",
        host=network.addresses["hub"],
        prefix=network.inside("hub"),
        options=("--insecure",),
    )
    cluster.start()
    try:
        options = {"nameServer": cluster.name_server, "topic": "cut"}
        hub = network.inside("hub")
        made = start("create-topic", prefix=hub, queues=QUEUE_COUNT, **options)
        made.wait_for("made topic", lambda: made.named("created"))
        producer = start("produce", prefix=hub, rate=100, **options)
        producer.wait_for("first message sent", lambda: producer.named("sent"))
        near, far = (
            start("consume", prefix=network.inside(host), group="GID_cut", **options)
            for host in ("hub", "far")
        )
        members = [near, far]
        wait_until("shared by two", lambda: is_shared(members), timeout_s=30)

        network.unplug("far")
        cut_at = time.monotonic()
        owned_s = wait_until("all at the other", lambda: is_shared([near]), timeout_s=CUT_S)
        wait_until("healed", lambda: time.monotonic() - cut_at > CUT_S, timeout_s=CUT_S + 5)
        healed_ms = time.time() * 1000
        network.plug("far")
        shared_s = wait_until("shared again", lambda: is_shared(members), timeout_s=90)
        check_nothing_lost(producer, members)
    finally:
        cluster.kill()

    places = [(e["queueId"], e["offset"]) for m in members for e in m.named("message")]
    late = [event for event in far.named("message") if event["at"] > healed_ms]
    print(
        f"\nowned again after {owned_s:.1f} s, shared again {shared_s:.1f} s after the cut ended, "
        f"{len(places) - len(set(places))} duplicates of {len(places)}, {len(late)} after healing"
    )
    assert owned_s <= OWNED_AGAIN_S
    assert shared_s <= OWNED_AGAIN_S


@pytest.mark.parametrize("whose", ["ours", "apache"])
def test_a_broker_restarted_under_load_loses_nothing_that_it_acknowledged(
    java: Any, rig: Any, start: Callable[..., Any], tmp_path: Path, whose: str
) -> None:
    if whose == "ours":
        cluster = rig.OurCluster(java, tmp_path / "data")
    else:
        cluster = rig.ApacheCluster(java, tmp_path / "store", flushDiskType="SYNC_FLUSH")
    cluster.start()
    try:
        cluster.create_topic("restart", queues=QUEUE_COUNT)
        options = {"nameServer": cluster.name_server, "topic": "restart"}
        producer = start("produce", rate=100, **options)
        members = [start("consume", group="GID_restart", **options) for _ in range(2)]
        for restart in range(RESTARTS + 1):
            wait_until("shared by two", lambda: is_shared(members), timeout_s=60)
            count = len(producer.named("sent"))
            wait_until(
                "200 messages more",
                partial(has_sent_more, producer, count + 200),
                timeout_s=60,
            )
            if restart < RESTARTS:
                cluster.kill()
                cluster.start()
        check_nothing_lost(producer, members)
        assert is_shared(members)
    finally:
        cluster.kill()

"""Groups on one live cluster, each sick in one way or healthy, and what the doctor says of them.

All groups run at the same time, so that one pair of looks serves all of them.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, Protocol, Self, TypeVar

from foreign_member import ForeignMember
from sparrowmq import (
    Admin,
    ConsumeOrderlyStatus,
    ConsumeStatus,
    Message,
    MessageQueue,
    PollConsumer,
    Producer,
    PushConsumer,
    SimpleConsumer,
)
from sparrowmq.calling.blocking_driver import BlockingDriver
from sparrowmq.client.directory_setup import make_directory
from sparrowmq.client.operations.groups import take_snapshots
from sparrowmq.doctor import Finding, GroupSnapshot, diagnose

# The doctor's own pause between its two looks.
INTERVAL_MS = 6_000
QUEUES = 4
Client = TypeVar("Client", PollConsumer, SimpleConsumer, ForeignMember)


def consume(messages: Any, context: Any) -> ConsumeStatus:
    return ConsumeStatus.CONSUME_SUCCESS


def consume_in_order(messages: Any, context: Any) -> ConsumeOrderlyStatus:
    return ConsumeOrderlyStatus.SUCCESS


def fail(messages: Any, context: Any) -> ConsumeStatus:
    return ConsumeStatus.RECONSUME_LATER


def fail_in_order(messages: Any, context: Any) -> ConsumeOrderlyStatus:
    return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT


class LiveCluster(Protocol):
    """A cluster of ours or of Apache's."""

    @property
    def name_server(self) -> str:
        """The name server's address."""
        ...

    @property
    def broker(self) -> str:
        """The address of the broker `broker-a`."""
        ...

    def create_topic(self, topic: str, *, queues: int) -> object:
        """Create a topic at the broker `broker-a`."""
        ...


class LiveGroups:
    """A cluster with a topic for each group, a steady producer, and the groups' members."""

    def __init__(self, cluster: LiveCluster) -> None:
        self.cluster = cluster
        self._held = ExitStack()
        self._stopped = threading.Event()
        # Messages a second, the tags, and the number of queues that get them, by topic.
        self._rates: dict[str, tuple[float, str, int]] = {}
        self._sending = threading.Lock()
        # The settings of the members of each process.
        self._crews: list[list[dict[str, Any]]] = []
        self._thread = threading.Thread(target=self._produce, name="producer")

    def __enter__(self) -> Self:
        self.admin = self._held.enter_context(
            Admin(name_server=self.cluster.name_server, timeout_ms=10_000)
        )
        self.producer = self._held.enter_context(
            Producer("GID_live_producer", name_server=self.cluster.name_server)
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        self._held.close()

    def hold(self, client: Client) -> Client:
        """Close a client at the end."""
        self._held.callback(client.close)
        return client

    def topic(
        self,
        name: str,
        *,
        per_s: float = 8,
        queues: int = QUEUES,
        tags: str = "A",
        sends_to: int | None = None,
    ) -> str:
        """Make a topic and send to all of its queues in turn; the tags are used in turn too.

        Args:
            sends_to: how many of its queues get messages; None for all.
        """
        self.cluster.create_topic(name, queues=queues)
        with self._sending:
            self._rates[name] = (per_s, tags, sends_to or queues)
        return name

    def stop_sending(self, *topics: str) -> None:
        """Send no more to topics."""
        with self._sending:
            for topic in topics:
                self._rates.pop(topic)
        self.producer.flush()

    def _produce(self) -> None:
        sent: dict[str, int] = {}
        begun: dict[str, float] = {}
        while not self._stopped.wait(0.05):
            now = time.monotonic()
            with self._sending:
                for topic, (per_s, tags, queue_count) in self._rates.items():
                    start = begun.setdefault(topic, now)
                    while (number := sent.get(topic, 0)) < (now - start) * per_s:
                        queue = MessageQueue(topic, "broker-a", number % queue_count)
                        tag = tags[number // queue_count % len(tags)]
                        message = Message(topic, b"%d" % number, tags=tag, properties={"a": tag})
                        self.producer.send_nowait(message, queue=queue)
                        sent[topic] = number + 1

    def join(
        self,
        group: str,
        topic: str | Sequence[str],
        *,
        instance: str = "1",
        expression: Any = "*",
        listener: Callable[[Any, Any], Any] = consume,
        start: Literal["first", "last"] = "first",
        **settings: Any,
    ) -> PushConsumer:
        """Start a member `172.17.0.1@INSTANCE` of a group."""
        member = PushConsumer(
            group,
            listener=consume_in_order
            if settings.get("orderly") and listener is consume
            else listener,
            name_server=self.cluster.name_server,
            client_ip="172.17.0.1",
            instance_name=instance,
            start=start,
            **settings,
        )
        for name in [topic] if isinstance(topic, str) else topic:
            member.subscribe(name, expression)
        self._held.callback(member.close)
        member.start()
        return member

    def plan_process(self, group: str, topic: str, *, instance: str, **settings: Any) -> None:
        """Plan a member `172.17.0.1@INSTANCE`, in another process than the group's others."""
        asked = self._asked(group, topic, instance, settings)
        crew = next((c for c in self._crews if all(a["group"] != group for a in c)), None)
        if crew is None:
            crew = []
            self._crews.append(crew)
        crew.append(asked)

    def start_planned(self) -> None:
        """Start the planned members, in as few processes as there may be."""
        for process in [self._start_process(crew) for crew in self._crews]:
            _await_start(process)

    def start_process(
        self, group: str, topic: str, *, instance: str, **settings: Any
    ) -> subprocess.Popen[str]:
        """Start a member as a process of its own, and return the process."""
        process = self._start_process(self._asked(group, topic, instance, settings))
        _await_start(process)
        return process

    def _asked(
        self, group: str, topic: str, instance: str, settings: dict[str, Any]
    ) -> dict[str, Any]:
        asked = {"group": group, "topic": topic, "instance_name": instance, **settings}
        return {**asked, "name_server": self.cluster.name_server}

    def _start_process(self, asked: dict[str, Any] | list[dict[str, Any]]) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / "live_member.py"), json.dumps(asked)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._held.callback(_end, process)
        return process

    def examine(self, groups: Sequence[str]) -> dict[str, list[Finding]]:
        """Look at the groups twice; return the findings of each, the most important first."""
        found = self._look(groups, interval_ms=INTERVAL_MS)
        return {snapshot.group: diagnose(snapshot) for snapshot in found}

    def is_handing_over(self, group: str) -> bool:
        """Return whether a member drains a queue of the group now."""
        (snapshot,) = self._look([group], interval_ms=0)
        return any(held.is_dropped for report in snapshot.reports for held in report.held)

    def count_owners(self, group: str) -> int:
        """Return how many members have consumed messages of queues that they hold now."""
        (snapshot,) = self._look([group], interval_ms=0)
        return sum(any(h.commit_offset > 0 for h in report.held) for report in snapshot.reports)

    def _look(self, groups: Sequence[str], *, interval_ms: int) -> list[GroupSnapshot]:
        driver = BlockingDriver()
        try:
            directory = make_directory(self.cluster.name_server, timeout_ms=10_000)
            found, failures = driver.run(take_snapshots(directory, groups, interval_ms=interval_ms))
        finally:
            driver.close()
        assert not failures
        return found


def _await_start(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"


def _end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGCONT)
    process.communicate("", timeout=30)

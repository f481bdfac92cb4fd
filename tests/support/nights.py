"""Faults of a night shift, each from the fault to its cure by what `check` and the doctor print.

A night stages its fault, waits until `check` names it and the doctor knows its rule, types the
doctor's commands as they are printed, and ends when the group is well.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from commands import Commands
from live_groups import LiveCluster
from members import MemberProcess
from sparrowmq import (
    ConsumeOrderlyStatus,
    ConsumeStatus,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
)
from waiting import wait_until


class Night:
    """One fault of one group.

    Args:
        name: begins the names of its topic and group.
    """

    def __init__(self, cluster: LiveCluster, name: str, *, queues: int) -> None:
        self.cluster, self.smq = cluster, Commands(cluster.name_server)
        self.topic, self.group = f"T_night_{name}", f"GID_night_{name}"
        self.begun_s = time.monotonic()
        cluster.create_topic(self.topic, queues=queues)

    def begin(self) -> None:
        """Take this as the time of the fault."""
        self.begun_s = time.monotonic()

    def wait_until(self, step: str, is_so: Callable[[], bool]) -> None:
        """Wait, and print how long after the fault it was so (`pytest -rP`)."""
        wait_until(f"{step} of {self.group}", is_so, timeout_s=120)
        print(f"{self.group}: {step} after {time.monotonic() - self.begun_s:.1f} s")

    def join(self, listener: Callable[[Any, Any], Any], **settings: Any) -> PushConsumer:
        """Return a member that begins with the first message."""
        server = self.cluster.name_server
        return PushConsumer(
            self.group, self.topic, name_server=server, listener=listener, start="first", **settings
        )

    def send(self, *bodies: bytes) -> None:
        """Send to the first queue, in order."""
        queue = MessageQueue(self.topic, "broker-a", 0)
        with Producer("GID_sends", name_server=self.cluster.name_server) as producer:
            for body in bodies:
                producer.send(Message(self.topic, body), queue=queue)

    def check(self) -> str:
        """Return what `check` prints of the group on both streams."""
        found = self.smq("check", "--group", self.group, "--warn-wait", "10", "--max-disk", "100")
        return found.stdout + found.stderr

    def await_check(self, words: str) -> None:
        """Wait until `check` says something."""
        self.wait_until("check", lambda: words in self.check())

    def find_commands(self, *rules: str) -> dict[str, list[str]]:
        """Wait until the doctor finds the fault by one of the rules; return its commands.

        The key is a command's second word.
        """
        found: dict[str, list[str]] = {}

        def is_found() -> bool:
            for each in self.smq.json("rebalance", "doctor", self.group)["findings"]:
                if each["rule"] in rules:
                    found.update({command[1]: command for command in each["commands"]})
                    return True
            return False

        self.wait_until("doctor", is_found)
        return found

    def confirm(self, command: list[str]) -> None:
        """Type a command as printed, which shows a change, and again with `--yes`."""
        assert "give --yes" in self.smq(*command).stderr
        assert self.smq(*command, "--yes").exit_code == 0

    def await_cure(self) -> None:
        """Wait until the group has consumed all."""
        self.wait_until("cure", lambda: self.lag() == 0)

    def lag(self) -> int:
        """Return the messages that the group has not consumed."""
        return sum(row["lag"] for row in self.smq.json("group", "lag", self.group))


def poison_in_order(cluster: LiveCluster) -> None:
    """In order, one message fails for ever, and its queue stands still."""
    night = Night(cluster, "poison", queues=2)

    def fail_one(messages: Any, context: Any) -> ConsumeOrderlyStatus:
        if messages[0].body == b"poison":
            return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
        return ConsumeOrderlyStatus.SUCCESS

    with night.join(fail_one, orderly=True):
        night.send(b"one", b"poison", b"two")
        night.begin()
        night.await_check("has waited for")
        commands = night.find_commands("Q13")
        assert "poison" in night.smq(*commands["at"]).stdout
        refused = night.smq(*commands["reset"])
        assert (refused.exit_code, "stop the members" in refused.stderr) == (2, True)
    night.confirm(commands["reset"])
    with night.join(fail_one, orderly=True):
        night.await_cure()


def closed_topic(cluster: LiveCluster) -> None:
    """Somebody takes the permission to write from a topic."""
    night = Night(cluster, "closed", queues=1)
    with night.join(lambda messages, context: None):
        assert night.smq("send", night.topic, "first").exit_code == 0
        wait_until("consumed", lambda: night.lag() == 0, timeout_s=60)
        assert night.smq("topic", "update", night.topic, "--perm", "r", "--yes").exit_code == 0
        night.begin()
        night.await_check(f"no broker accepts messages for topic {night.topic}")
        assert f"sparrowmq topic update {night.topic} --perm rw --nameserver" in night.check()
        commands = night.find_commands("Q02")
        night.confirm(commands["update"])
        night.wait_until("cure", lambda: night.smq("send", night.topic, "second").exit_code == 0)


def dead_letters(cluster: LiveCluster) -> None:
    """A service that the listener calls was down, and messages became dead letters."""
    night = Night(cluster, "letters", queues=1)
    consumed: list[bytes] = []
    is_mended = threading.Event()

    def listen(messages: Any, context: Any) -> ConsumeStatus:
        if not is_mended.is_set():
            return ConsumeStatus.RECONSUME_LATER
        consumed.extend(message.body for message in messages)
        return ConsumeStatus.CONSUME_SUCCESS

    with night.join(listen, max_reconsume_times=0):
        night.send(*(b"%d" % number for number in range(12)))
        night.begin()
        night.await_check("dead letters: 12 messages")
        commands = night.find_commands("Q13")
        is_mended.set()
        night.confirm(commands["resend"])
        night.wait_until("cure", lambda: len(consumed) == 12)


def twins(cluster: LiveCluster) -> None:
    """Two processes of two containers have one client id."""
    night = Night(cluster, "twins", queues=8)
    with (
        MemberProcess(cluster, night.group, topic=night.topic, instance="one"),
        MemberProcess(cluster, night.group, topic=night.topic, instance="one") as second,
    ):
        wait_until("both", lambda: bool(second.queue_ids), timeout_s=60)
        night.begin()
        night.await_check("1 client id used twice")
        commands = night.find_commands("R01")
        assert night.smq(*commands["show"]).stdout.count("id in use twice") == 2
        second.close()
        night.wait_until("cure", lambda: "OK: " in night.check())


def slow_member(cluster: LiveCluster) -> None:
    """A member's listener waits two seconds for each message, with one thread."""
    night = Night(cluster, "slow", queues=1)
    is_over = threading.Event()

    def listen(messages: Any, context: Any) -> None:
        is_over.wait(2)

    with night.join(listen, consume_thread_count=1):
        night.send(*(b"%d" % number for number in range(200)))
        night.begin()
        night.await_check("has waited for")
        commands = night.find_commands("Q12", "Q07")
        assert "SPARROWMQ" in night.smq(*commands["show"]).stdout.upper()
        is_over.set()
        night.await_cure()


NIGHTS: Mapping[str, Callable[[LiveCluster], None]] = MappingProxyType(
    {
        each.__name__: each
        for each in (poison_in_order, closed_topic, dead_letters, twins, slow_member)
    }
)

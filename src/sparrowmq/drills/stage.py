"""The stage of a drill: a cluster, a producer, and the observed members of one group.

Tests: test_drill.py.
"""

from __future__ import annotations

import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from sparrowmq.calling.blocking_driver import BlockingDriver
from sparrowmq.calling.clock import monotonic_ms
from sparrowmq.client.directory_setup import make_directory
from sparrowmq.client.faces.blocking import Producer
from sparrowmq.client.operations.snapshot import take_snapshot
from sparrowmq.doctor.group_snapshot import GroupSnapshot
from sparrowmq.doctor.owner_history import GroupRebalance, Holding, OwnedSpan, list_spans, measure
from sparrowmq.drills.relay import Relay
from sparrowmq.errors import SparrowError
from sparrowmq.model import Message, MessageQueue
from sparrowmq.processes.child_processes import ChildProcesses, ending_on_sigterm
from sparrowmq.processes.group_members import Members
from sparrowmq.processes.member_log import Delivery, MemberLog
from sparrowmq.testing import EmbeddedCluster

GROUP, TOPIC, BROKER = "GID_drill", "drill", "broker-a"
# Members register as if they ran in containers: all with the address of the engine's bridge.
CLIENT_IP = "172.17.0.1"
# The time limit for members to start and to share the queues.
START_LIMIT_MS = 30_000
SETTLE_LIMIT_MS = 40_000
# A group is settled after so long without a change.
QUIET_MS = 1_000
REST_LIMIT_MS = 10_000
TIMEOUT_MS = 5_000
# A member reports each queue alone; reports within this time count as one change.
BREATH_MS = 100
# The owners are shown from so long before the first event.
LEAD_MS = 300
_POLL_S = 0.02


class DrillFailed(SparrowError):
    """A drill could not be measured."""


class Change(NamedTuple):
    """A member's queues, from a time after the first event on.

    Args:
        is_lost: whether the member discovered that it had lost queues, instead of releasing them.
    """

    after_ms: int
    member: str
    queue_ids: tuple[int, ...]
    is_lost: bool


class LateWork(NamedTuple):
    """The work of a member while it was cut off.

    Args:
        delivered: the number of messages that the member's listener received meanwhile.
        again: the number of those messages that other members received too, because the cut-off
            member could not commit their offsets.
        last_ms: the time from the cut to the last of those messages; None if there was none.
        healed_ms: the time from the cut to the healing.
    """

    delivered: int
    again: int
    last_ms: int | None
    healed_ms: int


class Stage:
    """The cluster, the producer and the members of one drill."""

    def __init__(
        self,
        cluster: EmbeddedCluster,
        processes: ChildProcesses,
        directory: Path,
        *,
        queue_count: int,
        rate: int,
    ) -> None:
        self._cluster = cluster
        self._queues = [MessageQueue(TOPIC, BROKER, queue_id) for queue_id in range(queue_count)]
        self._sender = _Sender(cluster.name_server, self._queues, rate)
        self._members = Members(processes, directory, self._queues)
        self._got: list[list[Delivery]] = []
        self._relay: Relay | None = None
        # The cut-off member's holdings from the cut on and from the healing on.
        self._noted: list[Holding] = []
        # The member that is cut off now, "" if none is; its own view does not count.
        self._cut_off = ""

    def start_member(self, instance: str, *, listener_ms: int = 0, can_be_cut: bool = False) -> int:
        """Start a member; return the monotonic time of its start.

        Args:
            instance: the instance name, which is a part of the client id.
            listener_ms: the time that the member's listener takes for a message.
            can_be_cut: whether to put a relay between the member and the cluster.
        """
        name_server = self._cluster.name_server
        if can_be_cut:
            self._relay = Relay(name_server, self._cluster.broker)
            name_server = self._relay.name_server
        member = self._members.start(
            f"member-{len(self._logs) + 1}",
            GROUP,
            name_server=name_server,
            topic=TOPIC,
            client_ip=CLIENT_IP,
            instance_name=instance,
            listener_ms=listener_ms,
        )
        self._got.append([])
        self.wait(
            f"start of {member.name}",
            lambda: member.started_ms is not None,
            limit_ms=START_LIMIT_MS,
        )
        return member.started_ms or 0

    def kill(self) -> int:
        """Kill the first member; return the monotonic time."""
        return self._members.kill(self._logs[0].name)

    def cut(self) -> int:
        """Cut the first member off; return the monotonic time."""
        assert self._relay is not None
        self._relay.cut()
        at_ms, self._cut_off = self._members.begin_event(), self._logs[0].name
        self._noted.append(Holding(at_ms, self._cut_off, frozenset()))
        return at_ms

    def heal(self) -> int:
        """Heal the cut; return the monotonic time. The member's own view counts again."""
        assert self._relay is not None
        self._members.read()
        at_ms = self._members.begin_event()
        self._noted.append(self._logs[0].holdings(self._queues)[-1]._replace(at_ms=at_ms))
        self._cut_off = ""
        self._relay.heal()
        return at_ms

    def part(self, place: int) -> int:
        """Let a member leave gracefully; return the monotonic time."""
        return self._members.leave(self._logs[place].name, limit_ms=START_LIMIT_MS)

    def look(self, interval_ms: int) -> GroupSnapshot:
        """Look at the group from outside twice, `interval_ms` apart."""
        driver = BlockingDriver()
        try:
            directory = make_directory(self._cluster.name_server, timeout_ms=TIMEOUT_MS)
            return driver.run(take_snapshot(directory, GROUP, interval_ms=interval_ms))
        finally:
            driver.close()

    def is_balanced(self) -> bool:
        """Return whether the connected members have even shares of all queues."""
        return self._members.is_balanced(GROUP, without=self._cut_off)

    def has_share(self) -> bool:
        """Return whether the newest member has computed its share, which may be empty."""
        return bool(self._logs[-1].assignments)

    def settle(self) -> None:
        """Wait until the group is balanced and no queue moves any more, or until the limit."""
        start_ms = monotonic_ms()
        pause = threading.Event()
        while monotonic_ms() - start_ms < SETTLE_LIMIT_MS:
            self._sender.check()
            changed_ms = self._holdings()[-1].at_ms
            is_quiet = monotonic_ms() - max(changed_ms, start_ms) >= QUIET_MS
            if is_quiet and self.is_balanced():
                return
            pause.wait(_POLL_S)

    def measure(self, since_ms: int) -> GroupRebalance:
        """Measure the effect of an event until now."""
        return measure(self._holdings(), self._queues, since_ms=since_ms, until_ms=monotonic_ms())

    def wait(self, what: str, is_so: Callable[[], bool], *, limit_ms: int) -> None:
        """Wait for a condition, as `Members.wait` does, while the producer sends."""

        def is_so_meanwhile() -> bool:
            self._sender.check()
            return is_so()

        self._members.wait(what, is_so_meanwhile, limit_ms=limit_ms)

    def finish(self, *, waits: bool) -> tuple[set[tuple[int, int]], Counter[tuple[int, int]]]:
        """End the producer and read the members' deliveries.

        Args:
            waits: whether to wait until the members have consumed all messages, at most 10 s.

        Returns: the queue id and offset of each sent message, and how often each was consumed.
        """
        sent = self._sender.stop()
        deadline_ms = monotonic_ms() + (REST_LIMIT_MS if waits else 0)
        pause = threading.Event()
        while not sent <= self._deliveries().keys() and monotonic_ms() < deadline_ms:
            pause.wait(0.05)
        return sent, self._deliveries()

    def list_spans(self, since_ms: int) -> tuple[OwnedSpan, ...]:
        """Return the owners of each queue until now; times count from an event."""
        holdings, until_ms = self._holdings(), monotonic_ms()
        begin_ms = since_ms - LEAD_MS
        spans = list_spans(holdings, self._queues, since_ms=begin_ms, until_ms=until_ms)
        return tuple(OwnedSpan(s[0], s[1] - since_ms, s[2] - since_ms, s[3]) for s in spans)

    def list_changes(self, since_ms: int) -> tuple[Change, ...]:
        """Return the members' changes of queues from an event on."""
        self._members.read()
        return list_changes(self._logs, since_ms=since_ms)

    def find_late_work(self, cut_ms: int, healed_ms: int) -> LateWork:
        """Return the work of the first member while it was cut off."""
        counts = self._deliveries()
        return find_late_work(self._got[0], counts, cut_ms=cut_ms, healed_ms=healed_ms)

    def close(self) -> None:
        """End the producer and the relay, even after their errors."""
        self._sender.close()
        if self._relay is not None:
            self._relay.close()

    @property
    def _logs(self) -> list[MemberLog]:
        return self._members.of(GROUP)

    def _deliveries(self) -> Counter[tuple[int, int]]:
        for log, got in zip(self._logs, self._got, strict=True):
            got += log.read_deliveries()
        return Counter((each.queue_id, each.queue_offset) for got in self._got for each in got)

    def _holdings(self) -> list[Holding]:
        self._members.read()
        found = [*self._members.holdings(GROUP), *self._noted]
        return sorted(found, key=lambda holding: holding.at_ms)


def list_changes(members: Iterable[MemberLog], *, since_ms: int) -> tuple[Change, ...]:
    """Return the members' changes from an event on; join a member's changes within `BREATH_MS`."""
    # The sort key is the time alone, so a member's last change within a millisecond stays last.
    found = sorted(
        (
            Change(each.at_ms - since_ms, member.name, each.queue_ids, each.is_lost)
            for member in members
            for each in member.assignments
            if each.at_ms >= since_ms
        ),
        key=lambda change: change.after_ms,
    )
    changes: dict[tuple[str, int, bool], Change] = {}
    latest: dict[str, Change] = {}
    for change in found:
        before = latest.get(change.member)
        start_ms = change.after_ms
        if (
            before is not None
            and before.is_lost == change.is_lost
            and start_ms - before.after_ms < BREATH_MS
        ):
            start_ms = before.after_ms
        latest[change.member] = change._replace(after_ms=start_ms)
        changes[change.member, start_ms, change.is_lost] = latest[change.member]
    return tuple(sorted(changes.values(), key=lambda change: change.after_ms))


def find_late_work(
    got: Iterable[Delivery], counts: Mapping[tuple[int, int], int], *, cut_ms: int, healed_ms: int
) -> LateWork:
    """Return what of a member's deliveries came while it was cut off.

    Args:
        counts: how often members got each message, by its queue id and offset.
    """
    late = [each for each in got if cut_ms <= each.at_ms < healed_ms]
    return LateWork(
        delivered=len(late),
        again=sum(counts[each.queue_id, each.queue_offset] > 1 for each in late),
        last_ms=max((each.at_ms - cut_ms for each in late), default=None),
        healed_ms=healed_ms - cut_ms,
    )


class _Sender:
    """A thread that sends to all queues in turn, at a rate in messages a second."""

    def __init__(self, name_server: str, queues: list[MessageQueue], rate: int) -> None:
        self._name_server = name_server
        self._queues = queues
        self._rate = rate
        self._sent: set[tuple[int, int]] = set()
        self._error: BaseException | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="drill-producer")
        self._thread.start()

    def _run(self) -> None:
        start_ms, number = monotonic_ms(), 0
        try:
            with Producer("GID_drill_producer", name_server=self._name_server) as producer:
                while not self._stopped.is_set():
                    queue = self._queues[number % len(self._queues)]
                    result = producer.send(Message(TOPIC, b"%d" % number), queue=queue)
                    self._sent.add((queue.queue_id, result.queue_offset))
                    number += 1
                    due_ms = start_ms + number * 1000 // self._rate
                    self._stopped.wait(max(0, due_ms - monotonic_ms()) / 1000)
        except BaseException as error:
            # An error that nobody foresaw also ends the drill: `check` raises it in its thread.
            self._error = error

    def stop(self) -> set[tuple[int, int]]:
        """End the thread; return each message's queue id and offset. Raises: as `check`."""
        self.close()
        self.check()
        return self._sent

    def check(self) -> None:
        """Raise what ended the thread.

        Raises: DrillFailed for an error of the cluster; any other error as it is.
        """
        if isinstance(self._error, SparrowError):
            raise DrillFailed(f"the producer failed: {self._error}") from self._error
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """End the thread, even after an error."""
        self._stopped.set()
        self._thread.join()


@contextmanager
def set_stage(*, queue_count: int, rate: int) -> Generator[Stage]:
    """Start a cluster with a topic and a producer; end all processes after the block."""
    with (
        ending_on_sigterm(),
        tempfile.TemporaryDirectory(prefix="sparrowmq-drill-") as directory,
        EmbeddedCluster(flush="async") as cluster,
        ChildProcesses(Path(directory)) as processes,
    ):
        cluster.create_topic(TOPIC, queues=queue_count)
        stage = Stage(cluster, processes, Path(directory), queue_count=queue_count, rate=rate)
        try:
            yield stage
        finally:
            stage.close()

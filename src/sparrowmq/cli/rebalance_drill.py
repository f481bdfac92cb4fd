"""Drills: a failure staged with real processes on an embedded cluster, measured and diagnosed.

Each drill starts a name server, a broker, a producer and members, strikes, watches who holds what
until every queue has one owner again (or a bound passes), and has the doctor look. Whatever
happens, no process outlives it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from sparrowmq.calling.blocking_driver import BlockingDriver
from sparrowmq.calling.clock import monotonic_ms
from sparrowmq.cli.rebalance_drill_relay import Relay
from sparrowmq.client.assembly import make_directory
from sparrowmq.client.blocking import Producer
from sparrowmq.client.operations.snapshot import take_snapshot
from sparrowmq.demo.processes import Child, Crew
from sparrowmq.doctor import Finding, diagnose
from sparrowmq.doctor.case import Case, examine
from sparrowmq.doctor.timeline import Episode, Holding, measure, owners_of
from sparrowmq.errors import SparrowError
from sparrowmq.model import Message, MessageQueue
from sparrowmq.testing import EmbeddedCluster

GROUP, TOPIC, BROKER = "GID_drill", "drill", "broker-a"
# Members say that they run in containers, all with the address of the engine's bridge.
CLIENT_IP = "172.17.0.1"
# A member at work is one process; more would only wait for each other's processors.
START_LIMIT_MS = 30_000
SETTLE_LIMIT_MS = 40_000
# Nothing changed hands for so long: it is over.
QUIET_MS = 1_000
REST_LIMIT_MS = 10_000
TIMEOUT_MS = 5_000
# Between the doctor's looks, where something stands still and where nothing should.
LONG_LOOK_MS, SHORT_LOOK_MS = 6_000, 1_000
SLOW_LISTENER_MS = 5_000
# A member that is cut off should have something in hand.
CUT_LISTENER_MS = 400
# A member is told of each queue alone; within this time it is one change.
BREATH_MS = 100


class DrillFailed(SparrowError):
    """The stage of a drill could not be set."""


class DrillKind(StrEnum):
    """What is staged."""

    KILL = "kill"
    JOIN = "join"
    LEAVE = "leave"
    DUPLICATE_ID = "duplicate-id"
    PARTITION = "partition"
    SLOW = "slow"


class Script(NamedTuple):
    """What happens in a drill.

    Args:
        story: what is staged, in a line.
        member_count: members at first.
        is_lasting: whether the group stays ill until it is healed.
        cure: what heals it, "" if nothing has to.
    """

    story: str
    member_count: int
    is_lasting: bool = False
    cure: str = ""


SCRIPTS: Mapping[DrillKind, Script] = MappingProxyType(
    {
        DrillKind.KILL: Script("one of three members is killed (kill -9)", 3),
        DrillKind.JOIN: Script("a third member joins two", 2),
        DrillKind.LEAVE: Script("one of three members leaves gracefully", 3),
        DrillKind.DUPLICATE_ID: Script(
            "a third member joins two, with the client id of the first",
            2,
            is_lasting=True,
            cure="the third member leaves",
        ),
        DrillKind.PARTITION: Script(
            "one of three members is cut off: it runs on, but nothing passes",
            3,
            cure="the cut is healed",
        ),
        DrillKind.SLOW: Script(
            f"the listener of one of two members takes {SLOW_LISTENER_MS / 1000:.0f} s a message",
            2,
            is_lasting=True,
        ),
    }
)


class Phase(NamedTuple):
    """One event of a drill and what it did to the group."""

    event: str
    episode: Episode


class Change(NamedTuple):
    """From a moment on, after the first event, a member holds these queues.

    Args:
        is_lost: whether it found out that some are not its own any more, without giving them up.
    """

    after_ms: int
    member: str
    queue_ids: tuple[int, ...]
    is_lost: bool


class LateWork(NamedTuple):
    """What a member did while it was cut off.

    Args:
        delivered: messages that its listener got meanwhile.
        again: of these, those that others got too, for their offsets could not be committed.
        last_ms: how long after the cut it got the last one; None if it got none.
        healed_ms: how long after the cut it was healed.
    """

    delivered: int
    again: int
    last_ms: int | None
    healed_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a drill showed.

    Args:
        before, after: the group as seen from outside; `after` is what the doctor looked at.
        sent, consumed, twice: messages; those consumed more than once count in both.
        changes: who held what when, from the first event on.
        late_work: of the member that was cut off, None if none was.
    """

    kind: DrillKind
    phases: tuple[Phase, ...]
    before: Case
    after: Case
    findings: tuple[Finding, ...]
    sent: int
    consumed: int
    twice: int
    changes: tuple[Change, ...]
    late_work: LateWork | None


def run_drill(
    kind: DrillKind, *, queue_count: int, rate: int, tell: Callable[[str], None]
) -> Report:
    """Stage a failure, watch, diagnose, clean up.

    Args:
        rate: messages a second that the producer sends.
        tell: is given a line when something happens.

    Raises: DrillFailed, or what the cluster raises.
    """
    script = SCRIPTS[kind]
    with _stage(queue_count, rate) as stage:
        tell(f"starting a broker and {script.member_count} members")
        for number in range(script.member_count):
            stage.start_member(str(number + 1), part=kind if number == 0 else None)
        stage.wait("one owner for each queue", stage.is_shared, limit_ms=START_LIMIT_MS)
        before = stage.look(SHORT_LOOK_MS)
        tell(script.story)
        since_ms = _strike(kind, stage)
        if not script.is_lasting and kind is not DrillKind.PARTITION:
            stage.settle()
        looks_long = script.is_lasting or kind is DrillKind.PARTITION
        tell("the doctor looks")
        after = stage.look(LONG_LOOK_MS if looks_long else SHORT_LOOK_MS)
        if not script.is_lasting:
            stage.settle()
        phases = [Phase(script.story, stage.measure(since_ms))]
        struck_ms = since_ms
        if script.cure:
            tell(script.cure)
            since_ms = _cure(kind, stage)
            stage.settle()
            phases.append(Phase(script.cure, stage.measure(since_ms)))
        sent, got = stage.finish(waits=kind is not DrillKind.SLOW)
        changes = stage.list_changes(struck_ms)
        is_cut = kind is DrillKind.PARTITION
        late_work = stage.find_late_work(struck_ms, since_ms) if is_cut else None
    return Report(
        kind=kind,
        phases=tuple(phases),
        before=before,
        after=after,
        findings=tuple(diagnose(after.snapshot)),
        sent=len(sent),
        consumed=len(sent & got.keys()),
        twice=sum(count > 1 for count in got.values()),
        changes=changes,
        late_work=late_work,
    )


def _strike(kind: DrillKind, stage: _Stage) -> int:
    """Do what the drill is about; return when it was done."""
    if kind is DrillKind.KILL:
        return stage.kill()
    if kind is DrillKind.PARTITION:
        return stage.cut()
    if kind is DrillKind.LEAVE:
        return stage.part(0)
    if kind is DrillKind.SLOW:
        # It was slow from the start: what counts is what follows.
        return monotonic_ms()
    at_ms = stage.start_member("1" if kind is DrillKind.DUPLICATE_ID else "3")
    stage.wait("share of the new member", stage.has_share, limit_ms=START_LIMIT_MS)
    return at_ms


def _cure(kind: DrillKind, stage: _Stage) -> int:
    return stage.heal() if kind is DrillKind.PARTITION else stage.part(-1)


class _Member:
    """A member's process and what it told so far."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.events: list[dict[str, Any]] = []
        self._position = 0

    def read(self) -> None:
        """Take in the lines it has written since."""
        with self.child.output.open("rb") as file:
            file.seek(self._position)
            data = file.read()
        # Not a line that is half written.
        data = data[: data.rfind(b"\n") + 1]
        self._position += len(data)
        self.events += [json.loads(line) for line in data.splitlines() if line.startswith(b"{")]

    def named(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.events if line["event"] == event]


class _Stage:
    """The cluster, the producer and the members of one drill."""

    def __init__(self, cluster: EmbeddedCluster, crew: Crew, sender: _Sender, queues: int) -> None:
        self._cluster = cluster
        self._crew = crew
        self._sender = sender
        self._queues = [MessageQueue(TOPIC, BROKER, queue_id) for queue_id in range(queues)]
        self._members: list[_Member] = []
        # What members cannot tell themselves: they are dead, or cut off from what is so.
        self._noted: list[Holding] = []
        self.relay: Relay | None = None
        # The member that is cut off now, "" if none is: what it believes does not count.
        self._cut_off = ""

    def start_member(self, instance: str, *, part: DrillKind | None = None) -> int:
        """Start a member and return when it set out to join.

        Args:
            part: the drill that the member plays its part in; None for one that only looks on.
        """
        name = f"member-{len(self._members) + 1}"
        name_server, listener_ms = self._cluster.name_server, 0
        if part is DrillKind.SLOW:
            listener_ms = SLOW_LISTENER_MS
        elif part is DrillKind.PARTITION:
            self.relay = Relay(name_server, self._cluster.broker)
            name_server, listener_ms = self.relay.name_server, CUT_LISTENER_MS
        options = {
            "--nameserver": name_server,
            "--group": GROUP,
            "--topic": TOPIC,
            "--ip": CLIENT_IP,
            "--instance": instance,
            "--listener-ms": str(listener_ms),
        }
        child = self._crew.start(
            name,
            [
                "-m",
                "sparrowmq.cli.rebalance_drill_member",
                *(x for p in options.items() for x in p),
            ],
            has_input=True,
        )
        member = _Member(child)
        self._members.append(member)
        self.wait(f"word of {name}", lambda: bool(member.named("starts")), limit_ms=START_LIMIT_MS)
        return int(member.named("starts")[0]["at_ms"])

    def kill(self) -> int:
        """Kill the first member."""
        member = self._members[0]
        os.kill(member.child.pid, signal.SIGKILL)
        at_ms = monotonic_ms()
        self._noted.append(Holding(at_ms, member.child.name, frozenset()))
        return at_ms

    def cut(self) -> int:
        """Cut the first member off."""
        assert self.relay is not None
        self.relay.cut()
        at_ms, self._cut_off = monotonic_ms(), self._members[0].child.name
        self._noted.append(Holding(at_ms, self._cut_off, frozenset()))
        return at_ms

    def heal(self) -> int:
        """Heal the cut; the member believes what it believed."""
        assert self.relay is not None
        at_ms, member = monotonic_ms(), self._members[0].child.name
        told = [h for h in self._holdings() if h.member == member and h not in self._noted]
        self._noted.append(told[-1]._replace(at_ms=at_ms))
        self._cut_off = ""
        self.relay.heal()
        return at_ms

    def part(self, place: int) -> int:
        """Let a member leave as programs do."""
        at_ms = monotonic_ms()
        self._members[place].child.close_input()
        self.wait(
            "a graceful end",
            lambda: bool(self._members[place].named("left")),
            limit_ms=START_LIMIT_MS,
        )
        return at_ms

    def look(self, interval_ms: int) -> Case:
        """Look at the group from outside, twice."""
        driver = BlockingDriver()
        try:
            directory = make_directory(self._cluster.name_server, timeout_ms=TIMEOUT_MS)
            return examine(driver.run(take_snapshot(directory, GROUP, interval_ms=interval_ms)))
        finally:
            driver.close()

    def is_shared(self) -> bool:
        """Tell whether every queue has one owner, and every member a queue."""
        held: dict[str, frozenset[MessageQueue]] = {}
        for holding in self._holdings():
            held[holding.member] = holding.queues
        owners = owners_of(held, self._queues).values()
        sharing = min(len(self._members), len(self._queues))
        return all(len(names) == 1 for names in owners) and len(set(owners)) == sharing

    def has_share(self) -> bool:
        """Tell whether the newest member has told which queues it holds."""
        return bool(self._members[-1].named("holds"))

    def settle(self) -> None:
        """Wait until queues have one owner each and have not moved for a while, or the limit."""
        start_ms = monotonic_ms()
        pause = threading.Event()
        while monotonic_ms() - start_ms < SETTLE_LIMIT_MS:
            changed_ms = max(holding.at_ms for holding in self._holdings())
            held = {h.member: h.queues for h in self._holdings() if h.member != self._cut_off}
            is_single = all(len(o) == 1 for o in owners_of(held, self._queues).values())
            now_ms = monotonic_ms()
            if is_single and now_ms - max(changed_ms, start_ms) >= QUIET_MS:
                return
            pause.wait(0.02)

    def measure(self, since_ms: int) -> Episode:
        """Say what an event did until now."""
        return measure(self._holdings(), self._queues, since_ms=since_ms, until_ms=monotonic_ms())

    def wait(self, what: str, is_so: Callable[[], bool], *, limit_ms: int) -> None:
        """Wait for something; raise DrillFailed if a member ends or the limit passes."""
        deadline_ms = monotonic_ms() + limit_ms
        pause = threading.Event()
        while True:
            self._read()
            if is_so():
                return
            if monotonic_ms() > deadline_ms:
                tails = "; ".join(m.child.output_tail()[-300:] for m in self._members)
                raise DrillFailed(f"no {what} within {limit_ms / 1000:.0f} s: {tails}")
            pause.wait(0.02)

    def finish(self, *, waits: bool) -> tuple[set[tuple[int, int]], Counter[tuple[int, int]]]:
        """End the producer, let members finish, and return what was sent and how often it came."""
        sent = self._sender.stop()
        deadline_ms = monotonic_ms() + (REST_LIMIT_MS if waits else 0)
        pause = threading.Event()
        while not sent <= self._deliveries().keys() and monotonic_ms() < deadline_ms:
            pause.wait(0.05)
        return sent, self._deliveries()

    def list_changes(self, since_ms: int) -> tuple[Change, ...]:
        """Return who held what from an event on; what a member told in one breath is one change."""
        self._read()
        told = sorted(
            (
                Change(
                    line["at_ms"] - since_ms,
                    member.child.name,
                    tuple(line.get("queue_ids", ())),
                    is_lost=line.get("is_lost", False),
                )
                for member in self._members
                for line in member.events
                if line["event"] in ("holds", "left") and line["at_ms"] >= since_ms
            ),
            key=lambda change: change.after_ms,
        )
        changes: dict[tuple[str, int, bool], Change] = {}
        latest: dict[str, Change] = {}
        for change in told:
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
        return tuple(sorted(changes.values()))

    def find_late_work(self, cut_ms: int, healed_ms: int) -> LateWork:
        """Say what the first member's listener got while the member was cut off."""
        deliveries = self._deliveries()
        late = [
            (line["at_ms"], (line["queue_id"], offset))
            for line in self._members[0].named("messages")
            if cut_ms <= line["at_ms"] < healed_ms
            for offset in line["ids"]
        ]
        return LateWork(
            delivered=len(late),
            again=sum(deliveries[message] > 1 for _, message in late),
            last_ms=max((at_ms - cut_ms for at_ms, _ in late), default=None),
            healed_ms=healed_ms - cut_ms,
        )

    def _deliveries(self) -> Counter[tuple[int, int]]:
        self._read()
        return Counter(
            (line["queue_id"], offset)
            for member in self._members
            for line in member.named("messages")
            for offset in line["ids"]
        )

    def _holdings(self) -> list[Holding]:
        self._read()
        told = [
            Holding(
                line["at_ms"],
                member.child.name,
                frozenset(MessageQueue(TOPIC, BROKER, n) for n in line.get("queue_ids", ())),
            )
            for member in self._members
            for line in member.events
            if line["event"] in ("holds", "left")
        ]
        return sorted([*told, *self._noted], key=lambda holding: holding.at_ms)

    def _read(self) -> None:
        for member in self._members:
            member.read()


class _Sender:
    """A thread that sends to all queues in turn, so many messages a second."""

    def __init__(self, name_server: str, queue_count: int, rate: int) -> None:
        self._name_server = name_server
        self._queue_count = queue_count
        self._rate = rate
        self._sent: set[tuple[int, int]] = set()
        self._error: SparrowError | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="drill-producer")
        self._thread.start()

    def _run(self) -> None:
        start_ms, number = monotonic_ms(), 0
        try:
            with Producer("GID_drill_producer", name_server=self._name_server) as producer:
                while not self._stopped.is_set():
                    queue = MessageQueue(TOPIC, BROKER, number % self._queue_count)
                    result = producer.send(Message(TOPIC, b"%d" % number), queue=queue)
                    self._sent.add((queue.queue_id, result.queue_offset))
                    number += 1
                    due_ms = start_ms + number * 1000 // self._rate
                    self._stopped.wait(max(0, due_ms - monotonic_ms()) / 1000)
        except SparrowError as error:
            self._error = error

    def stop(self) -> set[tuple[int, int]]:
        """End it and return the queue and offset of each message. Raises: DrillFailed."""
        self._stopped.set()
        self._thread.join()
        if self._error is not None:
            raise DrillFailed(f"the producer failed: {self._error}") from self._error
        return self._sent

    def close(self) -> None:
        """End it, whatever it met."""
        self._stopped.set()
        self._thread.join()


@contextmanager
def _ending_on_sigterm() -> Iterator[None]:
    """Let SIGTERM end the drill as Ctrl-C does: by an exception, so that it cleans up."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _stage(queue_count: int, rate: int) -> Iterator[_Stage]:
    with (
        _ending_on_sigterm(),
        tempfile.TemporaryDirectory(prefix="sparrowmq-drill-") as directory,
        EmbeddedCluster(flush="async") as cluster,
        Crew(Path(directory)) as crew,
    ):
        cluster.create_topic(TOPIC, queues=queue_count)
        sender = _Sender(cluster.name_server, queue_count, rate)
        stage = _Stage(cluster, crew, sender, queue_count)
        try:
            yield stage
        finally:
            sender.close()
            if stage.relay is not None:
                stage.relay.close()

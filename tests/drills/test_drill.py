"""`sparrowmq rebalance drill`: real processes, real failures, and what is said of them."""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from select import select
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from sparrowmq.calling.clock import monotonic_ms
from sparrowmq.cli.main import build_app
from sparrowmq.doctor.owner_history import QueueMove
from sparrowmq.drills import stage as stage_module
from sparrowmq.drills.__main__ import main
from sparrowmq.drills.drill import decode_report, encode_report
from sparrowmq.drills.kinds import QUEUE_COUNTS, RATES, DrillKind
from sparrowmq.drills.relay import Relay
from sparrowmq.drills.stage import (
    START_LIMIT_MS,
    Change,
    DrillFailed,
    LateWork,
    find_late_work,
    list_changes,
    set_stage,
)
from sparrowmq.model import MessageQueue
from sparrowmq.processes.child_processes import Child, ChildProcesses
from sparrowmq.processes.logbook import EVENTS_SUFFIX, Logbook
from sparrowmq.processes.member_log import (
    CONSUMED_SUFFIX,
    Assigned,
    Delivery,
    MemberLog,
    Started,
)
from waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drills keep their members' logbooks here: the path tells them from those of other tests."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


def drill(kind: str) -> Any:
    result = CliRunner().invoke(build_app(), ["rebalance", "drill", kind, "--json"])
    assert result.exit_code == 0, result.stderr
    assert set() == member_processes()
    return json.loads(result.stdout)


def member_processes() -> set[str]:
    """The command lines of this test's members that run."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if "-m sparrowmq.processes.member_process" in command and tempfile.gettempdir() in command:
            found.add(command)
    return found


def has_thread(name: str) -> bool:
    return name in [thread.name for thread in threading.enumerate()]


def rules(report: Any) -> set[str]:
    return {finding["rule"] for finding in report["findings"]}


@pytest.mark.parametrize("kind", ["kill", "join"])
def test_group_agrees_again_soon(kind: str) -> None:
    report = drill(kind)

    (phase,) = report["phases"]
    assert phase["settled_ms"] is not None
    assert phase["moved"] > 0
    assert report["messages"]["sent"] == report["messages"]["consumed"] > 100
    assert {queue["state"] for queue in report["after"]["queues"]} == {"owned"}
    counts = (len(report["before"]["members"]), len(report["after"]["members"]))
    assert ((3, 2) if kind == "kill" else (2, 3)) == counts
    assert not rules(report) & {"R01", "R02", "R28", "Q06"}


def test_event_begins_before_what_it_does_however_late_its_call_returns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with set_stage(queue_count=4, rate=50) as stage:
        stage.start_member("1", can_be_cut=True)
        stage.start_member("2")
        stage.wait("even shares", stage.is_balanced, limit_ms=START_LIMIT_MS)
        begun_ms = monotonic_ms()
        kill = Child.kill

        def kill_and_dawdle(child: Child) -> None:
            kill(child)
            stage.wait(
                "takeover",
                lambda: (0, 1, 2, 3) in [c.queue_ids for c in stage.list_changes(begun_ms)],
                limit_ms=START_LIMIT_MS,
            )

        monkeypatch.setattr(Child, "kill", kill_and_dawdle)
        since_ms = stage.kill()
        stage.settle()
        rebalance, changes = stage.measure(since_ms), stage.list_changes(since_ms)

    assert not has_thread("drill-relay")
    assert [(c.member, c.queue_ids) for c in changes] == [("member-2", (0, 1, 2, 3))]
    assert (len(rebalance.moves), rebalance.longest_double_ms) == (2, 0)
    assert rebalance.settled_ms is not None
    assert rebalance.settled_ms >= changes[0].after_ms


class Player:
    """Members of a drill that only write what the test says into their logbooks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._books: dict[str, tuple[Logbook, Logbook]] = {}
        monkeypatch.setattr(ChildProcesses, "start", self._start)

    def _start(self, name: str, arguments: Sequence[str]) -> SimpleNamespace:
        directory = Path(arguments[arguments.index("--logbooks") + 1])
        suffixes = EVENTS_SUFFIX, CONSUMED_SUFFIX
        events, consumed = (Logbook(directory / f"{name}{suffix}") for suffix in suffixes)
        self._books[name] = events, consumed
        events.write_event(Started(at_ms=monotonic_ms(), client_id=name, pid=0))
        return SimpleNamespace(name=name, has_failed=False)

    def own(self, name: str, *queue_ids: int) -> int:
        """Let a member have these queues; return the time."""
        at_ms = monotonic_ms()
        self._books[name][0].write_event(Assigned(at_ms=at_ms, queue_ids=queue_ids))
        return at_ms

    def consume(self, name: str, queue_id: int, offsets: Iterable[int]) -> None:
        """Let a member consume messages."""
        lines = (Delivery(monotonic_ms(), queue_id, each, "").encode() for each in offsets)
        self._books[name][1].write("".join(lines).encode())

    def close(self) -> None:
        """Close the logbooks."""
        for book in itertools.chain.from_iterable(self._books.values()):
            book.close()


@pytest.fixture
def player(monkeypatch: pytest.MonkeyPatch) -> Iterator[Player]:
    found = Player(monkeypatch)
    yield found
    found.close()


def test_member_that_is_cut_off_has_no_queues_until_the_healing(
    player: Player, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage_module, "QUIET_MS", 100)
    with set_stage(queue_count=2, rate=5) as stage:
        stage.start_member("1", can_be_cut=True)
        stage.start_member("2")
        player.own("member-1", 0)
        last_ms = player.own("member-2", 1)
        stage.settle()
        quiet_ms = monotonic_ms() - last_ms

        cut_ms = stage.cut()
        player.own("member-2", 0, 1)
        stage.settle()
        ill = stage.measure(cut_ms)
        healed_ms = stage.heal()
        is_balanced = stage.is_balanced()
        player.own("member-2", 1)
        stage.settle()
        cured = stage.measure(healed_ms)

    queues = [MessageQueue("drill", "broker-a", queue_id) for queue_id in (0, 1)]
    assert quiet_ms >= 100
    assert ill.moves == (QueueMove(queues[0], ("member-1",), ("member-2",)),)
    assert (ill.settled_ms is None, ill.longest_double_ms) == (False, 0)
    assert not is_balanced
    assert cured.moves == (QueueMove(queues[0], ("member-2",), ("member-1",)),)
    assert cured.settled_ms is not None


def test_group_that_is_settled_long_ago_is_watched_for_a_while(
    player: Player, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage_module, "QUIET_MS", 50)
    monkeypatch.setattr(stage_module, "SETTLE_LIMIT_MS", 150)
    with set_stage(queue_count=2, rate=5) as stage:
        stage.start_member("1")
        long_ago_ms = player.own("member-1", 0, 1)
        stage.wait("time", lambda: monotonic_ms() >= long_ago_ms + 50, limit_ms=10_000)
        begun_ms = monotonic_ms()
        stage.settle()
        watched_ms = monotonic_ms() - begun_ms

        player.own("member-1", 0)
        begun_ms = monotonic_ms()
        stage.settle()
        limit_ms = monotonic_ms() - begun_ms

    assert watched_ms >= 50
    # Nobody has the other queue.
    assert limit_ms >= 150


def test_drill_counts_what_its_members_consume_after_the_last_message(player: Player) -> None:
    with set_stage(queue_count=1, rate=100) as stage:
        stage.start_member("1")
        stage.start_member("2")
        player.consume("member-1", 0, range(2))
        # The third is not consumed yet, so that `finish` has one to wait for.
        wait_until("three messages", lambda: len(stage._sender._sent) >= 3)
        rest = threading.Timer(0.2, player.consume, ("member-2", 0, range(1, 10_000)))
        rest.start()
        sent, got = stage.finish(waits=True)
        rest.join()

    assert {(0, 0), (0, 1), (0, 2)} <= sent <= got.keys()
    assert [got[0, offset] for offset in range(3)] == [1, 2, 1]


def test_drill_whose_producer_fails_by_an_unforeseen_error_says_so() -> None:
    # A rate of 0 is none.
    with set_stage(queue_count=1, rate=0) as stage:
        wait_until("end of the producer", lambda: not has_thread("drill-producer"))

        with pytest.raises(ZeroDivisionError):
            stage.finish(waits=False)


def test_last_of_several_changes_in_one_millisecond_counts(tmp_path: Path) -> None:
    steps = [Assigned(at_ms=7, queue_ids=queue_ids) for queue_ids in [(), (3,), (0, 3)]]
    member = MemberLog("member-2", "GID", tmp_path, assignments=steps)

    assert list_changes([member], since_ms=5) == (Change(2, "member-2", (0, 3), is_lost=False),)


def test_queues_that_are_lost_are_no_part_of_a_change_shortly_before(tmp_path: Path) -> None:
    steps = [
        Assigned(at_ms=100, queue_ids=(0, 1)),
        Assigned(at_ms=150, queue_ids=(0,)),
        Assigned(at_ms=190, queue_ids=(), is_lost=True),
    ]
    member = MemberLog("member-1", "GID", tmp_path, assignments=steps)

    assert list_changes([member], since_ms=100) == (
        Change(0, "member-1", (0,), is_lost=False),
        Change(90, "member-1", (), is_lost=True),
    )


def test_late_work_is_what_a_member_got_from_the_cut_to_the_healing() -> None:
    times = {0: 99, 1: 100, 2: 150, 3: 199, 4: 200}
    got = [Delivery(at_ms, 1, offset, "") for offset, at_ms in times.items()]
    counts = {(1, offset): count for offset, count in enumerate([2, 2, 1, 3, 2])}

    work = find_late_work(reversed(got), counts, cut_ms=100, healed_ms=200)
    none = find_late_work(got[:1], counts, cut_ms=100, healed_ms=200)

    assert work == LateWork(delivered=3, again=2, last_ms=99, healed_ms=100)
    assert none == LateWork(delivered=0, again=0, last_ms=None, healed_ms=100)


def test_relay_that_cannot_listen_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    listen, count = asyncio.start_server, itertools.count(1)

    async def listen_once(*args: Any) -> asyncio.Server:
        if next(count) == 2:
            raise OSError(errno.EMFILE, "Too many open files")
        return await listen(*args)

    monkeypatch.setattr(asyncio, "start_server", listen_once)
    with pytest.raises(OSError, match="Too many open files"):
        Relay("127.0.0.1:1", "127.0.0.1:2")

    assert not has_thread("drill-relay")


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def address_of(server: socket.socket) -> str:
    host, port = server.getsockname()
    return f"{host}:{port}"


class Cable:
    """A relay between a member and servers of the test, which it reaches by `connect`."""

    def __init__(self, held: ExitStack) -> None:
        self._held = held
        self.name_server, self.broker = (
            held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)
        )
        self.relay = Relay(address_of(self.name_server), address_of(self.broker))
        self._is_over = False
        held.callback(self.end)

    def end(self) -> None:
        """Close the relay."""
        if not self._is_over:
            self._is_over = True
            self.relay.close()

    def connect(self, address: str) -> socket.socket:
        """Connect as a member."""
        host, _, port = address.rpartition(":")
        return self._hold(socket.create_connection((host, int(port)), timeout=10))

    def accept(self, server: socket.socket) -> socket.socket:
        """Return the relay's connection to a server."""
        server.settimeout(10)
        return self._hold(server.accept()[0])

    def ask_for_broker(self) -> str:
        """Return the broker's address as a member reads it in a route."""
        member = self.connect(self.relay.name_server)
        there = self.accept(self.name_server)
        there.sendall(frame(address_of(self.broker).encode()))
        return member.recv(100)[4:].decode()

    def has_nothing_for(self, end: socket.socket) -> bool:
        """Whether the relay has sent nothing to an end, or connected to it, so far."""
        # Each cut is a turn of the relay's loop, which reads and writes what it can.
        for _ in range(5):
            self.relay.cut()
        return not select([end], [], [], 0)[0]

    def _hold(self, connection: socket.socket) -> socket.socket:
        connection.settimeout(10)
        return self._held.enter_context(connection)


@pytest.fixture
def cable() -> Iterator[Cable]:
    with ExitStack() as held:
        yield Cable(held)


def test_relay_gives_its_own_address_for_the_brokers_in_a_whole_frame() -> None:
    with ExitStack() as held:
        name_server = held.enter_context(socket.create_server(("127.0.0.1", 0)))
        # Its address is shorter than the relay's.
        relay = Relay(address_of(name_server), "127.0.0.1:1")
        held.callback(relay.close)
        host, _, port = relay.name_server.rpartition(":")
        member = held.enter_context(socket.create_connection((host, int(port)), timeout=10))
        there = held.enter_context(name_server.accept()[0])
        member.sendall(frame(b"where is 127.0.0.1:1?"))
        asked = there.recv(100)
        answer = frame(b"at 127.0.0.1:1, and 127.0.0.1:1")
        there.sendall(answer[:10])
        there.sendall(answer[10:])
        there.sendall(frame(b"next"))
        got = b""
        while not got.endswith(b"next"):
            got += member.recv(100)

    size = int.from_bytes(got[:4], "big")
    first, second = got[4 : 4 + size].decode().removeprefix("at ").split(", and ")
    assert asked == frame(b"where is 127.0.0.1:1?")
    assert first == second != "127.0.0.1:1"
    assert first.startswith("127.0.0.1:")
    assert got[4 + size :] == frame(b"next")


def test_relay_that_is_cut_delays_all_until_it_is_healed(cable: Cable) -> None:
    address = cable.ask_for_broker()
    member = cable.connect(address)
    broker = cable.accept(cable.broker)
    member.sendall(b"before")
    assert broker.recv(100) == b"before"

    cable.relay.cut()
    member.sendall(b"there")
    broker.sendall(b"back")
    late = cable.connect(address)
    delayed = [cable.has_nothing_for(end) for end in (member, broker, cable.broker)]
    cable.relay.heal()

    assert delayed == [True, True, True]
    assert (broker.recv(100), member.recv(100)) == (b"there", b"back")
    again = cable.accept(cable.broker)
    late.sendall(b"late")
    assert again.recv(100) == b"late"


def test_relay_that_is_cut_delays_the_end_of_a_connection_too(cable: Cable) -> None:
    member = cable.connect(cable.ask_for_broker())
    broker = cable.accept(cable.broker)
    cable.relay.cut()
    member.close()
    is_delayed = cable.has_nothing_for(broker)
    cable.relay.heal()

    assert is_delayed
    assert broker.recv(100) == b""


def test_relay_whose_server_is_gone_or_that_ends_closes_the_members_connections(
    cable: Cable,
) -> None:
    address = cable.ask_for_broker()
    member = cable.connect(address)
    broker = cable.accept(cable.broker)
    broker.close()
    assert member.recv(100) == b""
    cable.broker.close()
    assert cable.connect(address).recv(100) == b""
    idle = cable.connect(cable.relay.name_server)
    there = cable.accept(cable.name_server)

    cable.end()

    assert (idle.recv(100), there.recv(100)) == (b"", b"")
    assert not has_thread("drill-relay")
    with pytest.raises(ConnectionRefusedError):
        cable.connect(cable.relay.name_server)


def test_duplicate_id_is_diagnosed_and_cured() -> None:
    report = drill("duplicate-id")

    ill, cured = report["phases"]
    assert ill["settled_ms"] is None
    assert ill["longest_unowned_ms"] > 5_000
    assert ill["longest_double_ms"] > 5_000
    assert cured["settled_ms"] is not None
    assert "R01" in rules(report)
    assert {"double", "unowned"} <= {queue["state"] for queue in report["after"]["queues"]}
    assert report["messages"]["sent"] == report["messages"]["consumed"]
    assert report["messages"]["twice"] > 0


def test_drill_that_is_terminated_leaves_no_process() -> None:
    command = [sys.executable, "-m", "sparrowmq", "rebalance", "drill", "slow"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        assert "starting" in process.stderr.readline()
        assert "5 s a message" in process.stderr.readline()
        process.terminate()
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()

    assert process.returncode == 128 + signal.SIGTERM
    assert "Traceback" not in err
    assert set() == member_processes()


def test_process_of_a_drill_prints_a_report_that_another_process_reads() -> None:
    command = [sys.executable, "-m", "sparrowmq.drills", "leave", "--queues", "4"]

    ended = subprocess.run(command, capture_output=True, check=True)

    report = decode_report(ended.stdout)
    (phase,) = report.phases
    assert ended.stderr.decode().splitlines()[1] == phase.event
    assert (report.kind, phase.rebalance.settled_ms is None) == (DrillKind.LEAVE, False)
    assert len(report.before.last.brokers[0].connections) == 3
    assert report.sent == report.consumed > 0
    assert encode_report(report) == ended.stdout.strip()


@pytest.mark.parametrize(
    ("option", "allowed"), [("--queues", QUEUE_COUNTS), ("--rate", RATES)], ids=["queues", "rate"]
)
def test_process_of_a_drill_refuses_a_size_that_the_command_refuses(
    option: str, allowed: range, capsys: pytest.CaptureFixture[str]
) -> None:
    for value in (allowed[0] - 1, allowed[-1] + 1):
        with pytest.raises(SystemExit) as ended:
            main(["kill", option, str(value)])
        assert ended.value.code == 2
        assert f"{option} is {value}: it must be {allowed[0]} to {allowed[-1]}" in (
            capsys.readouterr().err
        )
        refused = CliRunner().invoke(
            build_app(), ["rebalance", "drill", "kill", option, str(value)]
        )
        assert refused.exit_code == 2


def test_a_drill_whose_producer_failed_does_not_wait_to_its_end() -> None:
    with set_stage(queue_count=1, rate=100) as stage:
        stage._cluster.close()
        with pytest.raises(DrillFailed, match="the producer failed"):
            stage.wait("what never comes", lambda: False, limit_ms=60_000)

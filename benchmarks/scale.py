"""The cost of a growing broker: `python benchmarks/scale.py [PART ...]`.

    python benchmarks/scale.py [--millions N] [--kept-millions N] [--members N] [--out DIRECTORY]
                               [restart ...]

Each part starts brokers of its own, in processes of their own, and writes its rows into
`scale.json` and `scale.md`; parts that do not run keep their rows. The figures are processor time
of the broker's process from its first instruction on, interpreter and imports included.

- `restart`: starts after a clean stop and after a kill, with `--millions` of messages.
- `topics`: 1,000 topics of 8 queues, created one after another, on our and on Apache's broker;
  needs Java and the jars that `make interop` fetches.
- `grown`: sends, pulls, memory, idle time and a restart with 10,000 topics of 8 queues, each with a
  message, 2,000 groups with offsets, 10,000 connections and `--kept-millions` of messages of 16
  bytes without keys (50 million take 7 GB), beside the same on an empty broker.
- `group`: the division of 512 queues among 500 members, all in one Python process, then a join and
  a leave: seconds by the clock, and processor time beyond that at rest, of the broker and of the
  members; with Java and the jars, the same members on Apache's broker as well.
- `groups`: the same for groups of 125 to 2,000 members on our broker, and the power of the number
  of members with which the processor time grows.
- `brokers`: the single sends that `--brokers 1` and `--brokers 2` accept, with a sender process for
  each broker.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from math import log
from pathlib import Path
from statistics import linear_regression, median
from typing import NamedTuple

from against_apache import load_rig
from sparrowmq import AsyncPushConsumer, ConsumeContext, MessageExt, MessageQueue
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.framing import FrameDecoder, encode_frame
from sparrowmq.protocol.record import BatchEntry, encode_batch
from sparrowmq.testing import EmbeddedCluster

ROOT = Path(__file__).resolve().parents[1]
BODY = bytes(128)
PROPERTIES = "UNIQ_KEY\x017F00000100096B1A3D5C2768F7848F01\x02TAGS\x01UA"
BATCH_COUNT, KEPT_BATCH_COUNT = 100, 500
KEPT_BODY = bytes(16)
QUEUES = 8
# Batches under way at once.
_WINDOW = 16
_TOPICS_CREATED = 1_000
_TOPICS, _GROUPS, _CONNECTIONS = 10_000, 2_000, 10_000
_KEPT_MILLIONS = 50
_MEMBERS, _GROUP_QUEUES = 500, 512
# After the first time without a new owner of a queue, the group is settled.
_GROUP_QUIET_S, _GROUP_PATIENCE_S, _GROUP_REST_S = 2.0, 300, 5
_GROUP_SIZES = (125, 250, 500, 1_000, 2_000)
_CHANGES = 5
_SENDS, _PULLS, _IDLE_S = 20_000, 20_000, 35
_SEND_S = 8
_CHECKPOINT_S, _SETTLE_S, _QUIET_CPU_S = 31, 180, 0.1
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Row(NamedTuple):
    """One figure: its name, the figure with its unit, and the aim, "" for none."""

    what: str
    figure: str
    aim: str = ""


def cpu_s(pid: int) -> float:
    """Return the processor seconds of a process since its start."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process in MB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


class Pipe:
    """One connection for prepared requests, sent as fast as the answers come."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=60)
        self._decoder = FrameDecoder()

    def __enter__(self) -> Pipe:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def run(self, frames: list[bytes], count: int, *, window: int = _WINDOW) -> None:
        """Send `count` requests, the frames in turn, with at most `window` under way."""
        sent = answered = 0
        while answered < count:
            ahead = min(count, answered + window) - sent
            if ahead > 0:
                data = b"".join(frames[(sent + n) % len(frames)] for n in range(ahead))
                self._socket.sendall(data)
                sent += ahead
            data = self._socket.recv(1 << 20)
            if not data:
                raise SystemExit("the broker has closed the connection")
            for answer in self._decoder.receive_data(data):
                if answer.code != 0:
                    raise SystemExit(f"a request was answered by {answer.code}: {answer.remark}")
                answered += 1


def send_frames(
    topic: str, *, batch: int = 0, body: bytes = BODY, properties: str = PROPERTIES
) -> list[bytes]:
    """Return a send, single or of a batch, to each queue of a topic."""
    if batch:
        body = encode_batch([BatchEntry(0, body, properties)] * batch)
    frames = []
    for queue in range(QUEUES):
        fields = {"a": "GID_p", "b": topic, "c": "TBW102", "d": "8", "e": str(queue), "f": "0"}
        fields |= {"g": "1795252251857", "h": "0", "i": "" if batch else properties, "j": "0"}
        fields |= {"k": "false", "m": "true" if batch else "false"}
        code = RequestCode.SEND_BATCH_MESSAGE if batch else RequestCode.SEND_MESSAGE_V2
        command = RemotingCommand(code=code, ext_fields=fields, body=body, opaque=queue)
        frames.append(encode_frame(command))
    return frames


def fill(cluster: EmbeddedCluster, topic: str, millions: float) -> None:
    """Send messages in batches."""
    cluster.create_topic(topic, queues=QUEUES)
    count = int(millions * 1e6) // BATCH_COUNT
    with Pipe(cluster.broker) as pipe:
        pipe.run(send_frames(topic, batch=BATCH_COUNT), count)


def fill_small(cluster: EmbeddedCluster, topic: str, millions: float) -> None:
    """Send small messages in large batches, as many as the disk has room for."""
    frames = send_frames(topic, batch=KEPT_BATCH_COUNT, body=KEPT_BODY, properties="")
    with Pipe(cluster.broker) as pipe:
        pipe.run(frames, int(millions * 1e6) // KEPT_BATCH_COUNT)


def create_frames(topics: Iterable[str]) -> list[bytes]:
    """Return a request for each topic that creates it."""
    frames = []
    for topic in topics:
        fields = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(QUEUES)}
        fields |= {"writeQueueNums": str(QUEUES), "perm": "6", "topicFilterType": "SINGLE_TAG"}
        fields |= {"topicSysFlag": "0", "order": "false"}
        command = RemotingCommand(code=RequestCode.UPDATE_AND_CREATE_TOPIC, ext_fields=fields)
        frames.append(encode_frame(command))
    return frames


def group_frames(groups: Iterable[str]) -> list[bytes]:
    """Return requests for each group that create it and commit an offset."""
    frames = []
    for group in groups:
        body = b'{"groupName":"%s","consumeEnable":true}' % group.encode()
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        frames.append(encode_frame(RemotingCommand(code=code, body=body)))
        fields = {"consumerGroup": group, "topic": "T", "queueId": "0", "commitOffset": "1"}
        command = RemotingCommand(code=RequestCode.UPDATE_CONSUMER_OFFSET, ext_fields=fields)
        frames.append(encode_frame(command))
    return frames


def pull_frames(topic: str) -> list[bytes]:
    """Return a pull of 32 messages from the beginning of each queue of a topic."""
    frames = []
    for queue in range(QUEUES):
        fields = {"consumerGroup": "GID_c", "topic": topic, "queueId": str(queue)}
        fields |= {"queueOffset": "0", "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0"}
        fields |= {"suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0"}
        command = RemotingCommand(code=RequestCode.PULL_MESSAGE, ext_fields=fields)
        frames.append(encode_frame(command))
    return frames


class Costs(NamedTuple):
    """Microseconds of processor time for each request, and for an idle second (`idle`)."""

    send: float
    pull: float
    idle: float


def settle(pid: int) -> None:
    """Wait until a process is idle: after many messages, a broker syncs for a while."""
    deadline = time.monotonic() + _SETTLE_S
    used = cpu_s(pid)
    while time.monotonic() < deadline:
        time.sleep(1)
        before, used = used, cpu_s(pid)
        if used - before < _QUIET_CPU_S:
            return
    raise SystemExit(f"the broker was busy for {_SETTLE_S} s")


def measure_costs(cluster: EmbeddedCluster) -> Costs:
    """Measure sends to and pulls from one topic, and an idle while."""
    pid = cluster.pid
    # The checkpoint with all the new queues comes with the first message after 30 s.
    time.sleep(_CHECKPOINT_S)
    with Pipe(cluster.broker) as pipe:
        pipe.run(send_frames("T"), QUEUES)
        settle(pid)

        def cost(frames: list[bytes], count: int) -> float:
            pipe.run(frames, count // 10)
            begin = cpu_s(pid)
            pipe.run(frames, count)
            return (cpu_s(pid) - begin) / count * 1e6

        send = cost(send_frames("T"), _SENDS)
        pull = cost(pull_frames("T"), _PULLS)
    begin = cpu_s(pid)
    time.sleep(_IDLE_S)
    return Costs(send, pull, (cpu_s(pid) - begin) / _IDLE_S * 1e6)


# --- the parts ------------------------------------------------------------------------------------


def measure_restart(millions: float) -> list[Row]:
    """Measure starts after a clean stop and after a kill."""
    with tempfile.TemporaryDirectory() as directory:
        with EmbeddedCluster(Path(directory, "empty"), flush="async") as empty:
            idle_s = cpu_s(empty.pid)
        with EmbeddedCluster(Path(directory, "full"), flush="async") as cluster:
            fill(cluster, "T", millions)
            before_s = cpu_s(cluster.pid)
            cluster.restart()
            clean_s = cpu_s(cluster.pid)
            cluster.kill()
            cluster.start()
            killed_s = cpu_s(cluster.pid)
            cluster.stop()
    name = f"{millions:g} million messages"
    return [
        Row("start with an empty store", f"{idle_s:.2f} CPU-s"),
        Row(f"start after a clean stop, {name}", f"{clean_s:.2f} CPU-s", "≤ 1 CPU-s"),
        Row(f"start after a kill at rest, {name}", f"{killed_s:.2f} CPU-s"),
        Row("taking one million in batches of 100", f"{before_s / millions:.2f} CPU-s"),
    ]


def send_for(address: str, seconds: float) -> int:
    """Send to one broker for a while; return the number of messages that it accepted."""
    frames, count = send_frames("T"), 0
    with Pipe(address) as pipe:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pipe.run(frames, 1_000, window=64)
            count += 1_000
    return count


def measure_brokers() -> list[Row]:
    """Load one broker, then two, with one sender process for each broker."""
    rates = [_rate_of(count) for count in (1, 2)]
    return [
        Row(
            f"single sends, `--brokers 2` on {os.cpu_count()} cores that senders share",
            f"{rates[1] / rates[0]:.2f} × the rate of `--brokers 1` ({rates[1]:,.0f} against "
            f"{rates[0]:,.0f} messages/s)",
        )
    ]


def _rate_of(count: int) -> float:
    command = [sys.executable, "-m", "sparrowmq.hosting", "--stop-with-stdin", "--flush", "async"]
    options = ["--nameserver-port", "0", "--broker-port", "0", "--brokers", str(count)]
    with tempfile.TemporaryDirectory() as directory:
        servers = subprocess.Popen(
            [*command, *options, "--data", directory],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert servers.stdout is not None
        addresses = re.findall(r" broker=(\S+)", servers.stdout.readline())
        for address in addresses:
            with Pipe(address) as pipe:
                pipe.run(create_frames(["T"]), 1)
        senders = [
            subprocess.Popen(
                [sys.executable, __file__, "--send", address], stdout=subprocess.PIPE, text=True
            )
            for address in addresses
        ]
        sent = [int(sender.communicate()[0]) for sender in senders]
        servers.communicate()
    return sum(sent) / _SEND_S


def measure_topics() -> list[Row]:
    """Create topics one after another, on both brokers in turn."""
    rig = load_rig()
    if shutil.which("java") is None or not (rig.cache_of("4.9.7") / "jars" / "complete").exists():
        raise SystemExit("Java and Apache's jars are not there; `make interop` fetches the jars")

    def create(address: str, prefix: str) -> float:
        frames = create_frames(f"{prefix}_{n}" for n in range(_TOPICS_CREATED))
        with Pipe(address) as pipe:
            begin = time.perf_counter()
            pipe.run(frames, len(frames), window=1)
            return time.perf_counter() - begin

    with tempfile.TemporaryDirectory() as directory, EmbeddedCluster() as ours:
        java = rig.Java("java", Path(directory, "java"), version="4.9.7")
        apache = rig.ApacheCluster(java, Path(directory, "apache", "store"))
        apache.start()
        try:
            # The JVM creates its first topics before the measurement.
            create(apache.broker, "warm")
            create(ours.broker, "warm")
            seconds = {"apache": create(apache.broker, "T"), "ours": create(ours.broker, "T")}
        finally:
            apache.kill()
    name = f"creating {_TOPICS_CREATED:,} topics × {QUEUES}, one after another, where as many are"
    ratio = seconds["ours"] / seconds["apache"]
    shown = f"{ratio:.2f} × Apache's ({seconds['ours']:.1f} s against {seconds['apache']:.1f} s)"
    return [Row(name, shown, "≤ 1.0 ×")]


def measure_grown(millions: float) -> list[Row]:
    """Measure a broker with many topics, groups, connections and messages beside an empty one."""
    # Nothing expires, even on a full disk.
    options = ("--retention-hours", "0")
    with EmbeddedCluster(flush="async") as empty:
        empty.create_topic("T", queues=QUEUES)
        before = measure_costs(empty)
        before_mb = resident_mb(empty.pid)
    with (
        tempfile.TemporaryDirectory() as directory,
        EmbeddedCluster(Path(directory), flush="async", options=options) as cluster,
        contextlib.ExitStack() as peers,
    ):
        cluster.create_topic("T", queues=QUEUES)
        cluster.create_topic("kept", queues=QUEUES)
        topics = [f"T_{n}" for n in range(_TOPICS)]
        with Pipe(cluster.broker) as pipe:
            pipe.run(create_frames(topics), len(topics))
            for topic in ["T", *topics]:
                pipe.run(send_frames(topic), QUEUES)
            frames = group_frames(f"GID_{n}" for n in range(_GROUPS))
            pipe.run(frames, len(frames))
        fill_small(cluster, "kept", millions)
        frame = pull_frames("T")
        for _ in range(_CONNECTIONS):
            peers.enter_context(Pipe(cluster.broker)).run(frame, 1)
        after = measure_costs(cluster)
        after_mb = resident_mb(cluster.pid)
        peers.close()
        cluster.restart()
        restart_s = cpu_s(cluster.pid)
        restarted_mb = resident_mb(cluster.pid)
    scale = f"{_TOPICS:,} topics × {QUEUES}, {_GROUPS:,} groups, {_CONNECTIONS:,} connections, "
    scale += f"{millions:g} million messages"
    return [
        Row(
            f"a send of 128 B, {scale}",
            f"{after.send / before.send:.2f} × ({after.send:.0f} against {before.send:.0f} µs)",
            "≤ 2 ×",
        ),
        Row(
            f"a pull of 32 × 128 B, {scale}",
            f"{after.pull / before.pull:.2f} × ({after.pull:.0f} against {before.pull:.0f} µs)",
            "≤ 2 ×",
        ),
        Row(
            f"an idle second, {scale}",
            f"{after.idle / 1e3:.0f} ms against {before.idle / 1e3:.0f} ms of processor time",
        ),
        Row(f"memory, {scale}", f"{after_mb:.0f} MB against {before_mb:.0f} MB", "≤ 600 MB"),
        Row(f"start after a clean stop, {scale}", f"{restart_s:.2f} CPU-s", "≤ 10 CPU-s"),
        Row("memory after it", f"{restarted_mb:.0f} MB", "≤ 600 MB"),
    ]


class Group:
    """The members of one group in this process, and the queues of each.

    The names of the first members sort in the order in which they start. A newcomer to the whole
    group takes the place at which most queues move: the last, or the first where there are more
    members than queues, as the last member then owns none.
    """

    def __init__(self, name_server: str) -> None:
        self._name_server = name_server
        self._queues: dict[AsyncPushConsumer, set[MessageQueue]] = {}
        self._count = 0
        self._changed_s = 0.0

    async def join(self, *, is_newcomer: bool = False) -> float:
        """Start a member; return the instant of the start."""
        begin_s = time.perf_counter()
        is_first = is_newcomer and len(self._queues) >= _GROUP_QUEUES
        self._count += 1
        queues: set[MessageQueue] = set()

        async def listen(messages: list[MessageExt], context: ConsumeContext) -> None: ...

        async def take(taken: list[MessageQueue]) -> None:
            queues.update(taken)
            self._changed_s = time.perf_counter()

        async def give_up(given: list[MessageQueue]) -> None:
            queues.difference_update(given)
            self._changed_s = time.perf_counter()

        member = AsyncPushConsumer(
            "GID_large",
            name_server=self._name_server,
            instance_name=f"{'first' if is_first else 'member'}-{self._count:05}",
            listener=listen,
            on_assign=take,
            on_revoke=give_up,
            on_lost=give_up,
        )
        await member.subscribe("T")
        await member.start()
        self._queues[member] = queues
        return begin_s

    async def leave(self) -> float:
        """Close the member in the middle of those with queues; return the instant of the close."""
        begin_s = time.perf_counter()
        owners = [member for member, queues in self._queues.items() if queues]
        member = owners[len(owners) // 2]
        await member.close()
        del self._queues[member]
        return begin_s

    async def settle(self, begin_s: float) -> float:
        """Wait until each queue has one owner and shares are even; return how long it took.

        Args:
            begin_s: the instant of the change that the wait is for.
        """
        deadline_s = time.perf_counter() + _GROUP_PATIENCE_S
        while time.perf_counter() < deadline_s:
            await asyncio.sleep(0.2)
            shares = list(self._queues.values())
            is_even = max(map(len, shares)) - min(map(len, shares)) <= 1
            is_divided = sum(map(len, shares)) == len(set().union(*shares)) == _GROUP_QUEUES
            is_quiet = time.perf_counter() - self._changed_s > _GROUP_QUIET_S
            if is_even and is_divided and is_quiet and self._changed_s > begin_s:
                return self._changed_s - begin_s
        why = "is not settled" if self._changed_s > begin_s else "has moved no queue"
        raise SystemExit(f"the group {why} {_GROUP_PATIENCE_S} s after its change")

    async def close(self) -> None:
        """Close all members."""
        await asyncio.gather(*(member.close() for member in self._queues))


class Used(NamedTuple):
    """The processor seconds of the broker and of the members so far, and the time by the clock."""

    broker_s: float
    members_s: float
    clock_s: float

    @classmethod
    def by(cls, pid: int) -> Used:
        """Read the processor seconds of a broker and of this process."""
        return cls(cpu_s(pid), time.process_time(), time.perf_counter())

    def since(self, before: Used, rest: Used | None = None) -> Used:
        """Return the use since `before`, less the use at rest; `rest` is for one second."""
        spent = [now - then for now, then in zip(self, before, strict=True)]
        if rest is not None:
            spent[:2] = [s - spent[2] * idle for s, idle in zip(spent[:2], rest[:2], strict=True)]
        return Used(*spent)


class GroupTimes(NamedTuple):
    """What a group's start, its changes and a second at rest took.

    Args:
        first_s: from the start of the first member until the group was settled.
        last_s: likewise, from the start of the last member.
        start: the use until the group was settled.
        change: the use of one change beyond that at rest.
    """

    first_s: float
    last_s: float
    start: Used
    joins_s: list[float]
    leaves_s: list[float]
    change: Used
    rest: Used


async def _time_group(name_server: str, pid: int, members: int, changes: int) -> GroupTimes:
    group = Group(name_server)
    before = Used.by(pid)
    first_s = await group.join()
    for _ in range(members - 2):
        await group.join()
    last_s = await group.join()
    settled_s = await group.settle(last_s)
    start = Used.by(pid).since(before)
    before = Used.by(pid)
    await asyncio.sleep(_GROUP_REST_S)
    rest = Used.by(pid).since(before)
    rest = Used(rest.broker_s / rest.clock_s, rest.members_s / rest.clock_s, 1.0)
    joins_s, leaves_s = [], []
    before = Used.by(pid)
    for _ in range(changes):
        joins_s.append(await group.settle(await group.join(is_newcomer=True)))
        leaves_s.append(await group.settle(await group.leave()))
    change = Used(*(spent / (2 * changes) for spent in Used.by(pid).since(before, rest)))
    await group.close()
    first_s = settled_s + last_s - first_s
    return GroupTimes(first_s, settled_s, start, joins_s, leaves_s, change, rest)


def _group_rows(times: GroupTimes, members: int, broker: str) -> list[Row]:
    name = f"{members:,} members in one process, {_GROUP_QUEUES} queues, {broker}"
    settled = f"{times.last_s:.1f} s after the last started, {times.first_s:.1f} s after the first"
    return [
        Row(f"a group of {name}: settled", f"{settled}; {_cpu(times.start)}", "≤ 5 s"),
        Row(f"one more joins it, {broker}", _spread(times.joins_s), "≤ 0.5 s"),
        Row(f"one leaves it, {broker}", _spread(times.leaves_s), "≤ 0.5 s"),
        Row(f"each of these changes, {broker}", _cpu(times.change)),
        Row(f"a second of the group at rest, {broker}", _cpu(times.rest)),
    ]


def _cpu(used: Used) -> str:
    return f"broker {used.broker_s:.2f}, members {used.members_s:.2f} CPU-s"


def _spread(times_s: list[float]) -> str:
    return f"{min(times_s):.2f} to {max(times_s):.2f} s, median {median(times_s):.2f} s"


def measure_group(members: int) -> list[Row]:
    """Divide the queues of a topic among many members, on our broker and on Apache's."""
    with EmbeddedCluster(flush="async") as cluster:
        cluster.create_topic("T", queues=_GROUP_QUEUES)
        times = asyncio.run(_time_group(cluster.name_server, cluster.pid, members, _CHANGES))
    rows = _group_rows(times, members, "our broker")
    rig = load_rig()
    if shutil.which("java") is None or not (rig.cache_of("4.9.7") / "jars" / "complete").exists():
        print("without Apache's broker: Java or its jars are missing (`make interop` fetches them)")
        return rows
    with tempfile.TemporaryDirectory() as directory:
        java = rig.Java("java", Path(directory, "java"), version="4.9.7")
        apache = rig.ApacheCluster(java, Path(directory, "apache", "store"))
        apache.start()
        try:
            apache.create_topic("T", queues=_GROUP_QUEUES)
            pid = apache._processes[-1].process.pid
            times = asyncio.run(_time_group(apache.name_server, pid, members, _CHANGES))
            return rows + _group_rows(times, members, "Apache's broker")
        finally:
            apache.kill()


def measure_groups() -> list[Row]:
    """Divide the queues of a topic among groups of several sizes."""
    rows: list[Row] = []
    spent_s: list[float] = []
    for members in _GROUP_SIZES:
        with EmbeddedCluster(flush="async") as cluster:
            cluster.create_topic("T", queues=_GROUP_QUEUES)
            times = asyncio.run(_time_group(cluster.name_server, cluster.pid, members, 1))
        spent_s.append(times.start.broker_s + times.start.members_s)
        changes = f"a join {times.joins_s[0]:.2f} s, a leave {times.leaves_s[0]:.2f} s"
        load = f"load {os.getloadavg()[0]:.0f}"
        figure = f"{spent_s[-1]:.1f} CPU-s, {times.last_s:.1f} s after the last started; {changes}"
        figure = f"{figure}; {load} on {os.cpu_count()} cores"
        rows.append(Row(f"{members:,} members, {_GROUP_QUEUES} queues: settled", figure))
        print(*rows[-1], file=sys.stderr, flush=True)
    sizes = [log(members) for members in _GROUP_SIZES]
    power = linear_regression(sizes, [log(spent) for spent in spent_s]).slope
    span = f"{_GROUP_SIZES[0]} to {_GROUP_SIZES[-1]:,} members"
    rows.append(Row(f"power of the number of members, {span}", f"{power:.2f}", "≤ 1.2"))
    return rows


PARTS: dict[str, Callable[[argparse.Namespace], list[Row]]] = {
    "restart": lambda arguments: measure_restart(arguments.millions),
    "topics": lambda _: measure_topics(),
    "grown": lambda arguments: measure_grown(arguments.kept_millions),
    "group": lambda arguments: measure_group(arguments.members),
    "groups": lambda _: measure_groups(),
    "brokers": lambda _: measure_brokers(),
}


def render(result: dict[str, list[list[str]]]) -> str:
    """Return the rows of all parts as a table."""
    lines = ["| what | measured | aim |", "|---|---|---|"]
    for part in PARTS:
        lines += [f"| {' | '.join(row)} |" for row in result.get(part, [])]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--millions", type=float, default=10)
    parser.add_argument("--kept-millions", type=float, default=_KEPT_MILLIONS)
    parser.add_argument("--members", type=int, default=_MEMBERS, help="members of the group")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--send", metavar="BROKER", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.send is not None:
        print(send_for(arguments.send, _SEND_S))
        return
    if unknown := set(arguments.parts) - PARTS.keys():
        parser.error(f"there is no part {', '.join(sorted(unknown))}; parts are {', '.join(PARTS)}")
    path = arguments.out / "scale.json"
    result = json.loads(path.read_text()) if path.exists() else {}
    for part in arguments.parts or PARTS:
        result[part] = PARTS[part](arguments)
        result["date"] = f"{datetime.now(UTC):%Y-%m-%d}"
        arguments.out.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n")
        (arguments.out / "scale.md").write_text(render(result))
    print(render(result), end="")


if __name__ == "__main__":
    main()

"""What consumption by messages and the gRPC service cost: `python benchmarks/by_message.py`.

    python benchmarks/by_message.py [--rounds N] [--ours] [--out DIRECTORY]

Three comparisons, each in turn for `--rounds`, by the processor time of the server's process:

- our broker's pulls and pops, under our push consumer with a listener by 1;
- our broker and Apache's 5.5.0, under Apache's push consumer that pops (`java/Load.java`);
- our broker's gRPC service and Apache's proxy with its broker in one process, under one and the
  same load: sends, 16 at a time, and receives of 16 messages, each acknowledged by a call.

Then a thousand gRPC clients do nothing for half a minute, each with a connection, a telemetry
stream, a heartbeat every 10 s and a receive that waits. Bodies have 128 bytes, topics eight queues;
both brokers flush asynchronously. `--ours` leaves out Apache's servers. `make generate` takes the
results into `docs/explanation/speed.md`.

The benchmark needs Linux, Java 17 and the jars of Apache RocketMQ, which `make interop` fetches.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc.aio

from against_apache import (
    BODY,
    JAVA_OPTIONS,
    ROOT,
    JavaLoad,
    Row,
    Target,
    describe_machine,
    describe_run,
    load_rig,
    resident_mb,
)
from sparrowmq import Message, MessageExt, Producer, PushConsumer
from sparrowmq.grpc_service import messages as pb
from sparrowmq.testing import EmbeddedCluster

VERSION = "5.5.0"
TOPIC, QUEUES = "bench", 8
DRAIN_COUNT = 100_000
CALLS = 16
SECONDS, SETTLE_S, IDLE_S = 8, 3, 30
CLIENTS = 1_000
BATCH = 16


def processor_s(pid: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Window:
    """Counts messages, and from `begin` on the processor time of a server for a million of them."""

    def __init__(self, pid: int) -> None:
        self.count = 0
        self._pid = pid
        self._begin = (0, 0.0)

    def begin(self) -> None:
        self._begin = (self.count, processor_s(self._pid))

    def end(self) -> float:
        count, used_s = self._begin
        return (processor_s(self._pid) - used_s) / (self.count - count) * 1e6


# --- loads, each in a process of its own ----------------------------------------------------------


def drain(name_server: str, pid: int, balance: Any, group: str) -> float:
    window, lock, done = Window(pid), threading.Lock(), threading.Event()
    found: list[float] = []

    def listener(messages: list[MessageExt], _: object) -> None:
        with lock:
            window.count += len(messages)
            if window.count == DRAIN_COUNT // 5:
                window.begin()
            if window.count == DRAIN_COUNT:
                found.append(window.end())
                done.set()

    with PushConsumer(
        group, name_server=name_server, listener=listener, start="first", balance=balance
    ) as consumer:
        consumer.subscribe(TOPIC)
        consumer.start()
        assert done.wait(300)
    return found[0]


class GrpcClient:
    """A client of a gRPC service, with a channel of its own."""

    def __init__(self, address: str, name: str, group: str) -> None:
        alone = (("grpc.use_local_subchannel_pool", 1),)
        self._channel = grpc.aio.insecure_channel(address, options=alone)
        self._metadata = (
            ("x-mq-client-id", name),
            ("x-mq-language", "PYTHON"),
            ("x-mq-client-version", "5.1.2"),
        )
        self._methods = {method.name: method for method in pb.METHODS}
        self._group = pb.Resource(name=group)
        self._topic = pb.Resource(name=TOPIC)
        self._stream: Any = None

    def call(self, name: str, timeout_s: float, **fields: Any) -> Any:
        method = self._methods[name]
        kind = "unary_stream" if method.streams_responses else "unary_unary"
        caller = getattr(self._channel, kind)(
            f"/{pb.SERVICE}/{name}",
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        return caller(method.request(**fields), timeout=timeout_s, metadata=self._metadata)

    async def settle(self) -> None:
        """Tell the settings of a simple consumer, which Apache's proxy wants first."""
        method = self._methods["Telemetry"]
        self._stream = self._channel.stream_stream(
            f"/{pb.SERVICE}/Telemetry",
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )(metadata=self._metadata)
        every = pb.FilterExpression(type=pb.FilterType.TAG, expression="*")
        entry = pb.SubscriptionEntry(topic=self._topic, expression=every)
        subscription = pb.Subscription(group=self._group, subscriptions=[entry])
        settings = pb.Settings(client_type=pb.ClientType.SIMPLE_CONSUMER, subscription=subscription)
        await self._stream.write(pb.TelemetryCommand(settings=settings))
        await self._stream.read()
        await self.beat()

    async def beat(self) -> None:
        kind = pb.ClientType.SIMPLE_CONSUMER
        answer = await self.call("Heartbeat", 30, group=self._group, client_type=kind)
        assert answer.status.code == pb.Code.OK, answer

    async def send(self, number: int) -> None:
        system = pb.SystemProperties(
            message_id=f"01{os.getpid():012X}{number:020X}",
            message_type=pb.MessageType.NORMAL,
            body_encoding=pb.Encoding.IDENTITY,
        )
        made = pb.Message(topic=self._topic, body=BODY, system_properties=system)
        answer = await self.call("SendMessage", 30, messages=[made])
        assert answer.status.code == pb.Code.OK, answer

    async def receive(self, wait_s: int = 20) -> list[Any]:
        every = pb.FilterExpression(type=pb.FilterType.TAG, expression="*")
        answers = self.call(
            "ReceiveMessage",
            30,
            group=self._group,
            message_queue=pb.MessageQueue(topic=self._topic),
            filter_expression=every,
            batch_size=BATCH,
            invisible_duration=pb.Duration(seconds=60),
            long_polling_timeout=pb.Duration(seconds=wait_s),
        )
        return [each.message async for each in answers if each.HasField("message")]

    async def acknowledge(self, message: Any) -> None:
        system = message.system_properties
        entry = pb.AckMessageEntry(
            message_id=system.message_id, receipt_handle=system.receipt_handle
        )
        answer = await self.call(
            "AckMessage", 30, group=self._group, topic=self._topic, entries=[entry]
        )
        assert answer.status.code == pb.Code.OK, answer


async def repeat(pid: int, width: int, step: Callable[[], Awaitable[int]]) -> float:
    """Repeat a step, `width` at a time; it returns how many messages it handled."""
    window, end_s = Window(pid), time.monotonic() + SETTLE_S + SECONDS

    async def work() -> None:
        while time.monotonic() < end_s:
            # Not `+= await`, which takes the count before the step.
            handled = await step()
            window.count += handled

    workers = [asyncio.create_task(work()) for _ in range(width)]
    await asyncio.sleep(SETTLE_S)
    window.begin()
    await asyncio.sleep(SECONDS - 0.5)
    cost = window.end()
    await asyncio.gather(*workers)
    return cost


async def send_by_grpc(address: str, pid: int, group: str) -> float:
    client, number = GrpcClient(address, f"{group}@{os.getpid()}", group), 0
    await client.settle()

    async def step() -> int:
        nonlocal number
        number += 1
        await client.send(number)
        return 1

    return await repeat(pid, CALLS, step)


async def receive_by_grpc(address: str, pid: int, group: str) -> float:
    client = GrpcClient(address, f"{group}@{os.getpid()}", group)
    await client.settle()

    async def step() -> int:
        received = await client.receive()
        await asyncio.gather(*(client.acknowledge(each) for each in received))
        return len(received)

    return await repeat(pid, 4, step)


async def idle_by_grpc(address: str, pid: int, group: str) -> list[float]:
    """Return the memory in MB, and the processor seconds a minute, that idle clients cost."""
    before_mb = resident_mb(pid)
    clients = [GrpcClient(address, f"idle@{number}", group) for number in range(CLIENTS)]
    for at in range(0, CLIENTS, 50):
        await asyncio.gather(*(client.settle() for client in clients[at : at + 50]))

    async def beat(client: GrpcClient) -> None:
        while True:
            await asyncio.sleep(10)
            await client.beat()

    async def wait(client: GrpcClient) -> None:
        while True:
            await client.receive()

    tasks = [asyncio.create_task(does(each)) for each in clients for does in (beat, wait)]
    await asyncio.sleep(SETTLE_S)
    used_s = processor_s(pid)
    await asyncio.sleep(IDLE_S)
    used_s = processor_s(pid) - used_s
    memory_mb = resident_mb(pid) - before_mb
    # A client whose call failed is not idle.
    failed = [task.exception() for task in tasks if task.done()]
    assert not failed, failed[:3]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return [memory_mb, used_s * 60 / IDLE_S]


def load(kind: str, address: str, pid: int, group: str) -> Any:
    if kind in ("queues", "messages"):
        return drain(address, pid, kind, group)
    loads: dict[str, Callable[[str, int, str], Any]] = {
        "send": send_by_grpc,
        "receive": receive_by_grpc,
        "idle": idle_by_grpc,
    }
    return asyncio.run(loads[kind](address, pid, group))


# --- the comparison -------------------------------------------------------------------------------


def run(kind: str, address: str, pid: int, group: str) -> Any:
    words = [sys.executable, __file__, "--load", kind, address, str(pid), group]
    told = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(told.stdout.splitlines()[-1])


def fill(name_server: str) -> None:
    with Producer("GID_fill", name_server=name_server) as producer:
        for _ in range(DRAIN_COUNT // 400):
            producer.send_batch([Message(TOPIC, BODY) for _ in range(400)])


def command(name_server: str, *words: str) -> None:
    smq = str(Path(sys.executable).with_name("sparrowmq"))
    subprocess.run([smq, *words, "--nameserver", name_server, "--yes"], check=True)


class Table:
    """The figures: by row, by server, one for each round."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[float | None, dict[str, list[float]]]] = {}

    def note(self, row: str, who: str, figure: float, *, wanted: float | None = None) -> None:
        print(f"{row:60}{who:10}{figure:10.2f}", flush=True)
        self._rows.setdefault(row, (wanted, {}))[1].setdefault(who, []).append(figure)

    def rows(self) -> list[dict[str, Any]]:
        found = []
        for name, (wanted, figures) in self._rows.items():
            medians = {who: statistics.median(of) for who, of in figures.items()}
            row: dict[str, Any] = {"name": name, "wanted": wanted}
            row |= {who: round(figure, 2) for who, figure in medians.items()}
            if "peer" in medians:
                row["ratio"] = round(medians["ours"] / medians["peer"], 2)
            found.append(row)
        return found


PULLS = "pops and acknowledgements, beside pulls, our client"
POPS = "pops and acknowledgements, Apache's push consumer"
SENDS = "gRPC: sends"
RECEIVES = "gRPC: receives and acknowledgements"
MEMORY = "gRPC: resident memory after both, MB"
IDLE_MB = "1,000 idle gRPC clients: memory, MB"
IDLE_S_A_MINUTE = "1,000 idle gRPC clients: processor seconds a minute"


def compare_pulls(table: Table, ours: EmbeddedCluster, rounds: int) -> None:
    for number in range(rounds):
        for balance, who in (("queues", "peer"), ("messages", "ours")):
            group = f"GID_{balance}_{number}"
            figure = run(balance, ours.name_server, ours.pid, group)
            table.note(PULLS, who, figure, wanted=1.5)


def compare_pops(table: Table, rig: Any, java: Any, home: Path, ours: Any, rounds: int) -> None:
    apache = rig.ApacheCluster(java, home / "broker" / "store")
    apache.start()
    consumer = JavaLoad(java)
    row = Row("pops", "pop", 1)
    try:
        apache.create_topic(TOPIC, queues=QUEUES)
        fill(apache.name_server)
        # The first round warms the JVMs up.
        for number in range(rounds + 1):
            for who, cluster, pid in (
                ("peer", apache, apache.broker_pid),
                ("ours", ours, ours.pid),
            ):
                group = f"GID_java_{number}"
                command(cluster.name_server, "group", "update", group)
                words = ("group", "mode", group, "--topic", TOPIC, "--mode", "pop")
                command(cluster.name_server, *words)
                target = Target(cluster.name_server, pid)
                sample = consumer.run(row, target, TOPIC, DRAIN_COUNT, group)
                if number > 0:
                    table.note(POPS, who, sample.broker_cpu, wanted=1.0)
    finally:
        consumer.kill()
        apache.kill()


def compare_grpc(table: Table, servers: dict[str, Any], rounds: int) -> None:
    for number in range(rounds):
        for who, (cluster, pid) in servers.items():
            group = f"GID_grpc_{number}"
            command(cluster.name_server, "group", "update", group)
            # Whoever receives first begins at the end of the topic.
            address = cluster.grpc
            asyncio.run(prime(address, group))
            fill(cluster.name_server)
            is_warm = number > 0 or rounds == 1
            sends = run("send", address, pid, group)
            receives = run("receive", address, pid, group)
            if is_warm:
                table.note(SENDS, who, sends, wanted=1.0)
                table.note(RECEIVES, who, receives, wanted=1.0)
                table.note(MEMORY, who, resident_mb(pid), wanted=0.2)
    for who, (cluster, pid) in servers.items():
        command(cluster.name_server, "group", "update", "GID_idle")
        memory_mb, used_s = run("idle", cluster.grpc, pid, "GID_idle")
        table.note(IDLE_MB, who, memory_mb)
        table.note(IDLE_S_A_MINUTE, who, used_s)


async def prime(address: str, group: str) -> None:
    client = GrpcClient(address, f"primer@{group}", group)
    await client.settle()
    await client.receive(wait_s=5)


def measure(rounds: int, *, is_ours_only: bool) -> dict[str, Any]:
    table = Table()
    with (
        tempfile.TemporaryDirectory() as directory,
        EmbeddedCluster(Path(directory, "ours"), flush="async", serves_grpc=True) as ours,
    ):
        home = Path(directory)
        ours.create_topic(TOPIC, queues=QUEUES)
        fill(ours.name_server)
        compare_pulls(table, ours, rounds)
        servers: dict[str, Any] = {"ours": (ours, ours.pid)}
        if is_ours_only:
            compare_grpc(table, servers, rounds)
            return {"machine": describe_machine(), "rounds": rounds, "rows": table.rows()}
        rig = load_rig()
        rig.JAVA_OPTIONS = JAVA_OPTIONS
        rig.fetch_jars(VERSION)
        rig.compile_java("javac", VERSION, [ROOT / "benchmarks" / "java" / "Load.java"])
        java = rig.Java("java", home / "java", version=VERSION)
        compare_pops(table, rig, java, home, ours, rounds)
        proxy = rig.ApacheProxy(java, home / "proxy" / "store")
        proxy.start()
        try:
            proxy.create_topic(TOPIC, queues=QUEUES)
            servers = {"peer": (proxy, proxy.broker_pid), **servers}
            # The first round warms the JVM up.
            compare_grpc(table, servers, rounds + 1)
        finally:
            proxy.kill()
    return {"machine": describe_machine(), "rounds": rounds, "rows": table.rows()}


def render(result: dict[str, Any]) -> str:
    """Return the table as Markdown."""
    machine, rounds = result["machine"], result["rounds"]
    lines = [
        describe_run(machine, f"Python {machine['python']}, {machine['java']}", rounds),
        "",
        "| µs of the server a message | beside | SparrowMQ | ratio | wanted |",
        "|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        wanted = "–" if row["wanted"] is None else f"≤ {row['wanted']}"
        peer, ratio = row.get("peer", "–"), row.get("ratio", "–")
        lines.append(f"| {row['name']} | {peer} | {row['ours']} | {ratio} | {wanted} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ours", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--load", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.load is not None:
        kind, address, pid, group = arguments.load
        print(json.dumps(load(kind, address, int(pid), group)))
        return
    result = measure(arguments.rounds, is_ours_only=arguments.ours)
    if not arguments.ours:
        (arguments.out / "by-message.json").write_text(json.dumps(result, indent=1) + "\n")
        (arguments.out / "by-message.md").write_text(render(result))
    print(render(result), end="")


if __name__ == "__main__":
    main()

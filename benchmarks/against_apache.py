"""SparrowMQ's broker and client beside Apache RocketMQ's: `python benchmarks/against_apache.py`.

    python benchmarks/against_apache.py [--rounds N] [--seconds S] [--out DIRECTORY] [--only TEXT]
    python benchmarks/against_apache.py --compare OLD.json NEW.json

Both brokers run at once with asynchronous flush, each in a process of its own. One JVM with
Apache's client (`java/Load.java`) loads them in turn; then our client loads Apache's broker. Both
JVMs are warm: `WARM_UP_S` of load come first. Bodies have 128 bytes, topics eight queues.

The benchmark compares processor time, which other load on the machine disturbs least: of the
broker's process for a broker, of the client's process for a client. Each figure is the median of
the rounds. At the end a new process of Apache's client sends 200 messages a second and measures the
time of each to its listener (`java/Latency.java`). A broker's memory is the resident memory of its
process, after the start and with a million stored messages.

Before the drains both brokers rest: ours indexes the keys of the sent messages in idle moments. The
results are `apache-speedups.*` with the extension in C, and `apache.*` without it or with
`PYTHONPATH=benchmarks/plain`, which hides it. `make generate` takes the results into
`docs/explanation/speed.md`, and `--compare` sets two of them side by side. `--only` measures only
the broker, in the rows whose names contain the text, and prints the figures.

The benchmark needs Linux, Java 17 and the jars of Apache RocketMQ, which `make interop` fetches.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from sparrowmq import (
    AsyncProducer,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
    SendResult,
)
from sparrowmq.protocol import speedups
from sparrowmq.testing import EmbeddedCluster

ROOT = Path(__file__).resolve().parents[1]
VERSION = "4.9.7"
# The warm-up of Apache's broker and of the loading JVM; both are warm after 20 s.
WARM_UP_S = 24
# The part of each measurement that does not count.
SETTLE_S = 1
# The rest before drains: our broker indexes 10 MiB a second, and may lag by 32 MiB.
REST_S = 4
DRAIN_COUNT = 800_000
# The further messages for the figure of memory: a million with those to drain.
REST_COUNT = 200_000
LATENCY_RATE = 200
LATENCY_S = 10
BODY = bytes(128)
# The options of Apache's own scripts with smaller sizes; the rig's options are for short tests.
JAVA_OPTIONS = (
    "-Xms1g",
    "-Xmx1g",
    "-XX:MaxDirectMemorySize=1g",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
)


class Row(NamedTuple):
    """One kind of load.

    Args:
        mode: sync, async, batch or drain.
        width: the threads, sends under way, messages of a batch, or messages of a listener's call.
        broker_max: the aim for the ratio of our broker's processor time to Apache's.
        client_max: the same for each way in which our client does it; none if it is not measured.
    """

    name: str
    mode: str
    width: int
    broker_max: float = 1.0
    client_max: tuple[float, ...] = ()

    def of_client(self) -> list[Row]:
        """Return the rows of our client, which has two ways to send asynchronously.

        With `send_nowait`, each message has a callback, as with Java's client, and messages of one
        queue share a request, unlike Java's. With `send`, a task awaits each message, and each
        message has a request of its own.
        """
        if self.mode != "async":
            return [self] if self.client_max else []
        ways = ("callbacks", "callbacks"), ("awaited", "async")
        return [
            self._replace(name=f"{self.name}, {how}", mode=mode, client_max=(aim,))
            for (how, mode), aim in zip(ways, self.client_max, strict=True)
        ]


ROWS = (
    Row("sync, 1 thread", "sync", 1, client_max=(1.0,)),
    Row("sync, 16 threads", "sync", 16),
    Row("sync, 64 threads", "sync", 64),
    Row("async, 1,000 under way", "async", 1_000, broker_max=0.9, client_max=(0.8, 1.2)),
    Row("batches of 32", "batch", 32, client_max=(1.0,)),
    Row("batches of 100", "batch", 100),
    Row("drain, a listener by 1", "drain", 1, broker_max=0.7, client_max=(1.3,)),
    Row("drain, a listener by 32", "drain", 32, broker_max=0.7, client_max=(1.2,)),
)


class Sample(NamedTuple):
    """The result of one run: messages a second, and processor seconds for a million messages."""

    rate: float
    client_cpu: float
    broker_cpu: float


class Target(NamedTuple):
    """A broker under load."""

    name_server: str
    broker_pid: int


def to_sample(told: dict[str, float]) -> Sample:
    millions = told["count"] / 1e6
    return Sample(
        told["count"] / told["seconds"],
        told["client_cpu_s"] / millions,
        told["broker_cpu_s"] / millions,
    )


# --- our client, in a process of its own ----------------------------------------------------------


class Window:
    """Counts messages, and measures their processor time, from `begin` on."""

    def __init__(self) -> None:
        self.count = 0
        self._begin: tuple[int, float, float] | None = None

    def begin(self) -> None:
        self._begin = (self.count, time.perf_counter(), time.process_time())

    def end(self) -> dict[str, float]:
        assert self._begin is not None
        count, wall, cpu = self._begin
        return {
            "count": self.count - count,
            "seconds": time.perf_counter() - wall,
            "client_cpu_s": time.process_time() - cpu,
            "broker_cpu_s": 0.0,
        }


def repeat(step: Callable[[], int], seconds: float) -> dict[str, float]:
    """Repeat a step, which returns the number of messages that it sent."""
    window = Window()
    start = time.perf_counter()
    is_warm = False
    while (elapsed := time.perf_counter() - start) < SETTLE_S + seconds:
        if not is_warm and elapsed >= SETTLE_S:
            is_warm = True
            window.begin()
        window.count += step()
    return window.end()


def send_singly(name_server: str, topic: str, seconds: float) -> dict[str, float]:
    with Producer("GID_load", name_server=name_server) as producer:

        def step() -> int:
            producer.send(Message(topic, BODY))
            return 1

        return repeat(step, seconds)


def send_batches(name_server: str, topic: str, size: int, seconds: float) -> dict[str, float]:
    with Producer("GID_load", name_server=name_server) as producer:

        def step() -> int:
            producer.send_batch([Message(topic, BODY) for _ in range(size)])
            return size

        return repeat(step, seconds)


async def send_beside(name_server: str, topic: str, width: int, seconds: float) -> dict[str, float]:
    window = Window()
    deadline = time.perf_counter() + SETTLE_S + seconds
    async with AsyncProducer("GID_load", name_server=name_server) as producer:

        async def sender() -> None:
            while time.perf_counter() < deadline:
                await producer.send(Message(topic, BODY))
                window.count += 1

        senders = asyncio.gather(*(sender() for _ in range(width)))
        await asyncio.sleep(SETTLE_S)
        window.begin()
        await asyncio.sleep(seconds)
        told = window.end()
        await senders
    return told


async def send_with_callbacks(
    name_server: str, topic: str, width: int, seconds: float
) -> dict[str, float]:
    window = Window()
    deadline = time.perf_counter() + SETTLE_S + seconds
    free = asyncio.Semaphore(width)
    async with AsyncProducer("GID_load", name_server=name_server) as producer:

        def done(future: asyncio.Future[SendResult]) -> None:
            future.result()
            window.count += 1
            free.release()

        async def send() -> None:
            while time.perf_counter() < deadline:
                await free.acquire()
                producer.send_nowait(Message(topic, BODY)).add_done_callback(done)

        sender = asyncio.create_task(send())
        await asyncio.sleep(SETTLE_S)
        window.begin()
        await asyncio.sleep(seconds)
        told = window.end()
        await sender
    return told


def drain(name_server: str, topic: str, size: int, group: str) -> dict[str, float]:
    window, lock = Window(), threading.Lock()
    done = threading.Event()
    told: dict[str, float] = {}

    def listener(messages: list[MessageExt], _: object) -> None:
        with lock:
            before = window.count
            window.count += len(messages)
            if before < DRAIN_COUNT // 5 <= window.count:
                window.begin()
            if before < DRAIN_COUNT <= window.count:
                told.update(window.end())
                done.set()

    with PushConsumer(
        group,
        name_server=name_server,
        listener=listener,
        start="first",
        consume_message_batch_max_size=size,
    ) as consumer:
        consumer.subscribe(topic)
        consumer.start()
        assert done.wait(120)
    return told


def load(mode: str, name_server: str, topic: str, width: int, last: str) -> dict[str, float]:
    """Load a broker by our client; `last` is the duration in seconds, or the group of a drain."""
    if mode == "sync":
        return send_singly(name_server, topic, float(last))
    if mode == "batch":
        return send_batches(name_server, topic, width, float(last))
    if mode == "async":
        return asyncio.run(send_beside(name_server, topic, width, float(last)))
    if mode == "callbacks":
        return asyncio.run(send_with_callbacks(name_server, topic, width, float(last)))
    return drain(name_server, topic, width, last)


# --- the comparison -------------------------------------------------------------------------------


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process in MB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


class JavaLoad:
    """The JVM that loads brokers."""

    def __init__(self, java: Any) -> None:
        self._lines = java.start("Load")
        self._count = 0

    def run(self, row: Row, target: Target, topic: str, *last: object) -> Sample:
        words = (row.mode, target.name_server, topic, target.broker_pid, row.width, *last)
        stdin = self._lines.process.stdin
        stdin.write(" ".join(map(str, words)) + "\n")
        stdin.flush()
        self._count += 1
        self._lines.wait_for("answer", lambda: len(self._lines.events) >= self._count)
        return to_sample(self._lines.events[-1])

    def kill(self) -> None:
        self._lines.kill()


class Comparison:
    """Both brokers, the loads, and the results."""

    def __init__(self, java: JavaLoad, apache: Target, ours: Target, *, seconds: float) -> None:
        self._java = java
        self._targets = {"apache": apache, "ours": ours}
        self._seconds = seconds
        self._groups = 0
        self.samples: dict[tuple[str, str], list[Sample]] = {}
        # For each row, the peer's figures and ours.
        self.memory: dict[str, list[float]] = {}
        self.latency: dict[str, list[float]] = {}

    def fill(self) -> None:
        """Warm up the JVMs, and send the messages of the drains."""
        self._note_memory("resident at the start, MB")
        for target in self._targets.values():
            with Producer("GID_fill", name_server=target.name_server) as producer:
                for topic, count in (("drain", DRAIN_COUNT), ("bench", REST_COUNT)):
                    batch = [Message(topic, BODY) for _ in range(400)]
                    for _ in range(count // 400):
                        producer.send_batch(batch)
        self._note_memory("resident with a million messages, MB")
        apache = self._targets["apache"]
        for row in ROWS:
            if row.mode != "drain":
                self._java.run(row, apache, "bench", 0, WARM_UP_S / 6)
        self._java.run(ROWS[0], self._targets["ours"], "bench", 0, 1)
        for row in ROWS:
            if row.mode == "drain":
                self._run_java(row, apache)

    def _note_memory(self, name: str) -> None:
        targets = self._targets.values()
        self.memory[name] = [resident_mb(target.broker_pid) for target in targets]

    def measure_latency(self, command: list[str]) -> None:
        """Measure the latency of messages; `command` lacks its arguments."""
        found = []
        for target in self._targets.values():
            words = [target.name_server, "latency", LATENCY_RATE, 2 * SETTLE_S, LATENCY_S]
            told = subprocess.run(
                [*command, *map(str, words)], capture_output=True, text=True, check=True
            )
            (line,) = [line for line in told.stdout.splitlines() if line.startswith("latencies")]
            found.append(sorted(int(word) / 1e6 for word in line.split()[1:]))
        for name, share in (("p50, ms", 0.5), ("p99, ms", 0.99)):
            self.latency[name] = [ms[round(share * (len(ms) - 1))] for ms in found]

    def run_round(self, only: str) -> None:
        has_rested = False
        for row in ROWS:
            if only not in row.name:
                continue
            if row.mode == "drain" and not has_rested:
                time.sleep(REST_S)
                has_rested = True
            for name, target in self._targets.items():
                self._note(row, name, self._run_java(row, target))
            for own in row.of_client() if not only else []:
                self._note(own, "our client", self._run_ours(own, self._targets["apache"]))

    def _last(self, row: Row) -> str:
        if row.mode != "drain":
            return str(self._seconds)
        self._groups += 1
        return f"GID_drain_{self._groups}"

    def _run_java(self, row: Row, target: Target) -> Sample:
        if row.mode == "drain":
            return self._java.run(row, target, "drain", DRAIN_COUNT, self._last(row))
        return self._java.run(row, target, "bench", SETTLE_S, self._last(row))

    def _run_ours(self, row: Row, target: Target) -> Sample:
        topic = "drain" if row.mode == "drain" else "bench"
        command = [sys.executable, __file__, "--load", row.mode, target.name_server, topic]
        command += [str(row.width), self._last(row)]
        told = subprocess.run(command, capture_output=True, text=True, check=True)
        return to_sample(json.loads(told.stdout.splitlines()[-1]))

    def _note(self, row: Row, who: str, sample: Sample) -> None:
        self.samples.setdefault((row.name, who), []).append(sample)
        print(f"{row.name:36}{who:12}{sample.rate:10,.0f}/s", end="")
        print(f"{sample.broker_cpu:9.1f}{sample.client_cpu:9.1f}", flush=True)

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Return the rows of both tables, each figure a median."""
        brokers, clients = [], []
        for row in ROWS:
            if (row.name, "ours") not in self.samples:
                continue
            peer, ours = self._median(row, "apache"), self._median(row, "ours")
            of_brokers = describe_row(row, peer, ours, peer.broker_cpu, ours.broker_cpu)
            brokers.append({**of_brokers, "wanted": row.broker_max})
            for own in row.of_client():
                if (own.name, "our client") in self.samples:
                    ours = self._median(own, "our client")
                    of_clients = describe_row(own, peer, ours, peer.client_cpu, ours.client_cpu)
                    clients.append({**of_clients, "wanted": own.client_max[0]})
        figures = {"memory": self.memory, "latency": self.latency}
        return {
            "broker": brokers,
            "client": clients,
            **{key: list(map(describe_figures, rows.items())) for key, rows in figures.items()},
        }

    def _median(self, row: Row, who: str) -> Sample:
        return Sample(*map(statistics.median, zip(*self.samples[row.name, who], strict=True)))


def describe_row(
    row: Row, peer: Sample, ours: Sample, peer_cpu: float, our_cpu: float
) -> dict[str, Any]:
    return {
        "name": row.name,
        "peer": round(peer_cpu, 2),
        "ours": round(our_cpu, 2),
        "ratio": round(our_cpu / peer_cpu, 2),
        "peer_rate": round(peer.rate),
        "our_rate": round(ours.rate),
    }


def describe_figures(row: tuple[str, list[float]]) -> dict[str, Any]:
    name, (peer, ours) = row
    figures = {"peer": round(peer, 2), "ours": round(ours, 2), "ratio": round(ours / peer, 2)}
    return {"name": name, **figures}


def describe_machine() -> dict[str, Any]:
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
    command = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True)
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "commit": commit.stdout.strip(),
        "processor": model,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "java": java.stderr.splitlines()[0],
        "peer": f"Apache RocketMQ {VERSION}",
        "speedups": speedups.functions is not None,
    }


def describe_run(machine: dict[str, Any], programs: str, rounds: int) -> str:
    """Return the line above a table: where and how its figures were measured."""
    return (
        f"{machine['date']}, commit {machine['commit']}, {machine['processor']} with "
        f"{machine['cores']} cores, {programs}, "
        f"{'with' if machine['speedups'] else 'without'} sparrowmq-speedups; "
        f"{'one round' if rounds == 1 else f'medians of {rounds} rounds'} in turn."
    )


def render(result: dict[str, Any]) -> str:
    """Return the tables as Markdown."""
    machine, rounds = result["machine"], result["rounds"]
    lines = [
        describe_run(machine, f"Python {machine['python']}, {machine['java']}", rounds),
    ]
    for key, title in (("broker", "broker"), ("client", "client, on Apache's broker")):
        head = f"| {title} | {machine['peer']} | SparrowMQ | ratio | wanted | rates, messages/s |"
        lines += ["", head, "|---|---|---|---|---|---|"]
        for row in result[key]:
            rates = f"{row['peer_rate']:,} / {row['our_rate']:,}"
            lines.append(
                f"| {row['name']} | {row['peer']} | {row['ours']} | {row['ratio']} "
                f"| ≤ {row['wanted']} | {rates} |"
            )
    for key, title in (("latency", "200 messages a second"), ("memory", "memory of the broker")):
        if result[key]:
            lines += [
                "",
                f"| {title} | {machine['peer']} | SparrowMQ | ratio |",
                "|---|---|---|---|",
            ]
        for row in result[key]:
            lines.append(f"| {row['name']} | {row['peer']} | {row['ours']} | {row['ratio']} |")
    return "\n".join(lines) + "\n"


def compare(old: dict[str, Any], new: dict[str, Any]) -> str:
    """Return two results side by side: our processor seconds, and the ratios to the peer."""
    lines = [f"{'':38}{'ours':>16}{'ratio to peer':>22}{'change':>9}"]
    lines.append(f"{'':38}{old['machine']['commit']:>8}{new['machine']['commit']:>8}")
    for key in ("broker", "client"):
        before = {row["name"]: row for row in old[key]}
        for row in new[key]:
            if (was := before.get(row["name"])) is None:
                continue
            change = row["ratio"] / was["ratio"] - 1
            lines.append(
                f"{key + ': ' + row['name']:38}{was['ours']:8.1f}{row['ours']:8.1f}"
                f"{was['ratio']:11.2f}{row['ratio']:11.2f}{change:+9.0%}"
            )
    return "\n".join(lines)


def load_rig() -> Any:
    """Return the module that starts Apache's servers for the interop tests."""
    # The tests' own module needs what pytest puts on the path.
    sys.path.append(str(ROOT / "tests" / "support"))
    path = ROOT / "tests" / "interop" / "conftest.py"
    spec = importlib.util.spec_from_file_location("rig", path)
    assert spec is not None
    assert spec.loader is not None
    rig: Any = importlib.util.module_from_spec(spec)
    sys.modules["rig"] = rig
    spec.loader.exec_module(rig)
    return rig


def measure(rounds: int, seconds: float, only: str) -> dict[str, Any]:
    if missing := [name for name in ("java", "javac") if shutil.which(name) is None]:
        raise SystemExit(f"{' and '.join(missing)} must be on the PATH: Java 17 or newer")
    rig = load_rig()
    rig.JAVA_OPTIONS = JAVA_OPTIONS
    cache = rig.cache_of(VERSION)
    if not (cache / "jars" / "complete").exists():
        raise SystemExit("Apache's jars are not there; `make interop` fetches them")
    rig.compile_peer("javac", VERSION)
    sources = [str(ROOT / "benchmarks" / "java" / name) for name in ("Load.java", "Latency.java")]
    classes, jars = str(cache / "classes"), f"{cache / 'jars'}/*"
    subprocess.run(["javac", "-nowarn", "-cp", jars, "-d", classes, *sources], check=True)
    with (
        tempfile.TemporaryDirectory() as directory,
        EmbeddedCluster(Path(directory, "ours"), flush="async") as ours,
    ):
        java = rig.Java("java", Path(directory, "java"), version=VERSION)
        apache = rig.ApacheCluster(java, Path(directory, "apache", "store"))
        apache.start()
        load = JavaLoad(java)
        try:
            for cluster in (apache, ours):
                for topic in ("bench", "drain", "latency"):
                    cluster.create_topic(topic, queues=8)
            broker_pid = apache._processes[-1].process.pid
            comparison = Comparison(
                load,
                Target(apache.name_server, broker_pid),
                Target(ours.name_server, ours.pid),
                seconds=seconds,
            )
            comparison.fill()
            for _ in range(rounds):
                comparison.run_round(only)
            home = f"-Duser.home={directory}"
            comparison.measure_latency(
                ["java", *JAVA_OPTIONS, home, "-cp", f"{classes}:{jars}", "Latency"]
            )
        finally:
            load.kill()
            apache.kill()
    return {"machine": describe_machine(), "rounds": rounds, **comparison.tables()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--only", default="", metavar="TEXT")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("OLD", "NEW"))
    parser.add_argument("--load", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.load is not None:
        mode, name_server, topic, width, last = arguments.load
        print(json.dumps(load(mode, name_server, topic, int(width), last)))
        return
    if arguments.compare is not None:
        for path in arguments.compare:
            if not path.is_file():
                parser.error(f"there is no result {path}; this program writes one")
        old, new = (json.loads(path.read_text()) for path in arguments.compare)
        print(compare(old, new))
        return
    result = measure(arguments.rounds, arguments.seconds, arguments.only)
    if arguments.only:
        print(render(result), end="")
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    name = "apache" if speedups.functions is None else "apache-speedups"
    (arguments.out / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    (arguments.out / f"{name}.md").write_text(render(result))
    print(render(result), end="")


if __name__ == "__main__":
    main()

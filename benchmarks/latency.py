"""The time of a message from `send` to the listener: `python benchmarks/latency.py [SECONDS]`.

A producer sends 200 messages per second to a topic of eight queues, each with the time of its send
in its body. The producer and one push consumer share a process; the broker runs in another, on the
same machine. Messages of the first seconds do not count. With Java and RocketMQ's jars (`make
interop` fetches them), the same run measures Apache's client on Apache's broker.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Literal

from against_apache import load_rig
from sparrowmq import Message, MessageExt, Producer, PushConsumer
from sparrowmq.testing import EmbeddedCluster

RATE = 200
WARM_UP_S = 3
VERSION = "4.9.7"
ROOT = Path(__file__).resolve().parents[1]


def report(name: str, latencies_ns: list[int], expected: int) -> None:
    if not latencies_ns:
        raise SystemExit(f"{name}: no message arrived")
    latencies_ns.sort()
    last = len(latencies_ns) - 1
    parts = [
        f"p{100 * share:g} {latencies_ns[round(last * share)] / 1e6:.2f}"
        for share in (0.5, 0.9, 0.99, 0.999)
    ]
    worst = f"max {latencies_ns[-1] / 1e6:.2f} ms"
    print(f"{name:<36} {', '.join([*parts, worst])}  ({len(latencies_ns)} of {expected})")


def measure_ours(flush: Literal["sync", "async"], seconds: int) -> None:
    warm_up, count = RATE * WARM_UP_S, RATE * (WARM_UP_S + seconds)
    latencies_ns: list[int] = []
    done = threading.Event()

    def listener(messages: list[MessageExt], _: object) -> None:
        now_ns = time.perf_counter_ns()
        number, sent_ns = messages[0].body.split()
        if int(number) >= warm_up:
            latencies_ns.append(now_ns - int(sent_ns))
            if len(latencies_ns) == count - warm_up:
                done.set()

    with EmbeddedCluster(flush=flush) as cluster:
        cluster.create_topic("L", queues=8)
        with (
            PushConsumer(
                "GID_latency",
                name_server=cluster.name_server,
                listener=listener,
                start="first",
            ) as consumer,
            Producer("GID_latency_producer", name_server=cluster.name_server) as producer,
        ):
            consumer.subscribe("L")
            consumer.start()
            begin = time.perf_counter()
            for n in range(count):
                time.sleep(max(0.0, begin + n / RATE - time.perf_counter()))
                producer.send(Message("L", b"%d %d" % (n, time.perf_counter_ns())))
            done.wait(5)
    report(f"ours on ours, {flush} flush", latencies_ns, count - warm_up)


def measure_java(seconds: int) -> None:
    """Measure Apache's client on Apache's broker, which the rig of the interop tests starts."""
    rig = load_rig()
    cache = rig.cache_of(VERSION)
    if not (cache / "jars" / "complete").exists():
        print("Apache's client on Apache's broker: no jars; `make interop` fetches them")
        return
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        jars = f"{cache / 'jars'}/*"
        source = ROOT / "benchmarks" / "java" / "Latency.java"
        subprocess.run(["javac", "-nowarn", "-cp", jars, "-d", str(home), str(source)], check=True)
        rig.compile_peer("javac", VERSION)
        java = rig.Java("java", home / "java", version=VERSION)
        cluster = rig.ApacheCluster(java, home / "store")
        cluster.start()
        try:
            cluster.create_topic("L", queues=8)
            command = ["java", *rig.JAVA_OPTIONS, f"-Duser.home={home}", "-cp", f"{home}:{jars}"]
            command += ["Latency", cluster.name_server, "L", str(RATE), str(WARM_UP_S)]
            told = subprocess.run(
                [*command, str(seconds)], capture_output=True, text=True, check=True
            )
        finally:
            cluster.kill()
    (line,) = [line for line in told.stdout.splitlines() if line.startswith("latencies")]
    latencies_ns = [int(word) for word in line.split()[1:]]
    report(f"Apache {VERSION}'s client on its broker", latencies_ns, RATE * seconds)


def main() -> None:
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    measure_ours("async", seconds)
    measure_ours("sync", seconds)
    measure_java(seconds)


if __name__ == "__main__":
    main()

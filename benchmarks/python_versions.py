"""The same loads under several versions of Python, one after the other.

    python benchmarks/python_versions.py [--rounds N] [--seconds S] PYTHON...

Each `PYTHON` is an interpreter that can import this tree's `sparrowmq`. In turn each runs a broker
and, in a process of its own, the loads of `against_apache.py`, and the program of
`asyncio_floor.py`. The table has microseconds of the processor for a message, of the client's
process and of the broker's: the medians of the rounds, and the ratio to the first interpreter's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import against_apache
from sparrowmq import Message, Producer
from sparrowmq.protocol import speedups
from sparrowmq.testing import EmbeddedCluster

ROWS = (
    ("sync, 1 thread", "sync", 1),
    ("async, 1,000 under way, callbacks", "callbacks", 1_000),
    ("async, 1,000 under way, awaited", "async", 1_000),
    ("batches of 32", "batch", 32),
    ("drain, a listener by 1", "drain", 1),
    ("drain, a listener by 32", "drain", 32),
)
FLOOR = Path(__file__).with_name("asyncio_floor.py")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def broker_cpu_s(pid: int) -> float:
    """Return the processor seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def measure(seconds: float) -> dict[str, float]:
    """Return microseconds of the processor for a message, by row, under this interpreter."""
    found: dict[str, float] = {}
    with (
        tempfile.TemporaryDirectory() as directory,
        EmbeddedCluster(directory, flush="async") as cluster,
    ):
        for topic in ("bench", "drain"):
            cluster.create_topic(topic, queues=8)
        with Producer("GID_fill", name_server=cluster.name_server) as producer:
            batch = [Message("drain", against_apache.BODY) for _ in range(400)]
            for _ in range(against_apache.DRAIN_COUNT // len(batch)):
                producer.send_batch(batch)
        for name, mode, width in ROWS:
            is_drain = mode == "drain"
            topic, last = ("drain", f"GID_{width}") if is_drain else ("bench", str(seconds))
            command = [sys.executable, against_apache.__file__, "--load", mode]
            command += [cluster.name_server, topic, str(width), last]
            began_s = broker_cpu_s(cluster.pid)
            told = json.loads(subprocess.check_output(command, text=True).splitlines()[-1])
            broker_s = broker_cpu_s(cluster.pid) - began_s
            found[f"client: {name}"] = told["client_cpu_s"] / told["count"] * 1e6
            # The broker's time is that of the whole load, its first second included.
            share = 1.0 if is_drain else seconds / (seconds + against_apache.SETTLE_S)
            count = against_apache.DRAIN_COUNT if is_drain else told["count"] / share
            found[f"broker: {name}"] = broker_s / count * 1e6
    floor = subprocess.check_output([sys.executable, str(FLOOR), "--seconds", str(seconds)])
    found["asyncio alone, awaited"] = float(floor.decode().split(": ")[1].split()[0])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("pythons", nargs="*", metavar="PYTHON")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        version = sys.version.split()[0] + ("" if speedups.functions else " without extension")
        print(json.dumps({"version": version, "found": measure(arguments.seconds)}))
        return
    samples: dict[str, dict[str, list[float]]] = {}
    for _ in range(arguments.rounds):
        for python in arguments.pythons:
            command = [python, __file__, "--one", "--seconds", str(arguments.seconds)]
            told = json.loads(subprocess.check_output(command, text=True).splitlines()[-1])
            for row, cpu_us in told["found"].items():
                samples.setdefault(told["version"], {}).setdefault(row, []).append(cpu_us)
    versions = list(samples)
    print(f"| µs of the processor a message | {' | '.join(versions)} |")
    print(f"|---|{'---|' * len(versions)}")
    for row in samples[versions[0]]:
        medians = [statistics.median(samples[version][row]) for version in versions]
        cells = [f"{each:.1f} ({each / medians[0]:.2f})" for each in medians]
        print(f"| {row} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()

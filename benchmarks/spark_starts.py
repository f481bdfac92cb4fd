"""Starts of a stream and of each job beside a load: how many come up, and after how long.

    python benchmarks/spark_starts.py [--load N] [--starts N] [--without-launcher] [WAY ...]

Spark gives the process that plans a stream ten seconds to connect back, and no setting for more.
`--load` processes compute meanwhile, beside whatever else the machine does. A start is a query to
`noop` with a message to read, or a job with little to do, from its call to its end; WAY is `query`
or a job. `--without-launcher` has Spark start this Python itself.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from subprocess import PIPE

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from sparrowmq import Admin, Message, MessageQueue, Producer
from sparrowmq.pipeline import backlog, balance, duplicates, ingest
from sparrowmq.spark import prepare_environment, spark_session
from sparrowmq.testing import EmbeddedCluster

TOPIC, GROUP = "starts", "GID_starts"
# The pipe on stdin closes when the process that holds its other end has ended.
BURN = (
    "import os, sys, threading\n"
    "threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0))).start()\n"
    "while True: pass"
)
# The inputs of the jobs, beside their outputs.
LOOKS, CONSUMED = "looks", "consumed.jsonl"
DELIVERY = {
    "consumerGroup": GROUP,
    "clientId": "a",
    "topic": TOPIC,
    "brokerName": "broker-a",
    "queueId": 0,
    "queueOffset": 0,
    "consumedTimestamp": "2026-03-01T12:00:00Z",
}


def make_session(*, has_launcher: bool) -> SparkSession:
    if has_launcher:
        return spark_session("starts", master="local[2]", conf={"spark.log.level": "OFF"})
    prepare_environment()
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    return SparkSession.builder.master("local[2]").config("spark.log.level", "OFF").getOrCreate()


def query(session: SparkSession, name_server: str, out: str) -> None:
    source = session.readStream.format("rocketmq").option("nameServer", name_server)
    messages = source.option("topic", TOPIC).option("startingOffsets", "earliest").load()
    stream = messages.writeStream.format("noop").option("checkpointLocation", out)
    stream.trigger(availableNow=True).start().awaitTermination()


def run_ingest(session: SparkSession, name_server: str, out: str) -> None:
    settings = ingest.IngestSettings(name_server=name_server, topic=TOPIC, out=out)
    assert ingest.run(session, settings).counts.rows == 1


def run_backlog(session: SparkSession, name_server: str, out: str) -> None:
    settings = backlog.BacklogSettings(snapshots=str(Path(out, "..", LOOKS)), out=out, lag_min=1)
    assert sum(backlog.run(session, settings).lag_by_cause.values()) == 1


def run_duplicates(session: SparkSession, name_server: str, out: str) -> None:
    consumed = str(Path(out, "..", CONSUMED))
    settings = duplicates.DuplicatesSettings(consumed=consumed, out=out)
    assert [each.duplicates for each in duplicates.run(session, settings).groups] == [1]


def run_balance(session: SparkSession, name_server: str, out: str) -> None:
    settings = balance.BalanceSettings(generate=20, strategies=["AVG"], out=out)
    assert [each.groups for each in balance.run(session, settings).strategies] == [20]


WAYS = {
    "query": query,
    "ingest": run_ingest,
    "backlog": run_backlog,
    "duplicates": run_duplicates,
    "balance": run_balance,
}


def prepare(name_server: str, place: str) -> None:
    """Make the topic, and what the jobs read."""
    with Admin(name_server=name_server) as admin:
        admin.create_topic(TOPIC, queues=1)
        admin.update_committed_offset(GROUP, MessageQueue(TOPIC, "broker-a", 0), 0)
    with Producer("GID_feed", name_server=name_server) as producer:
        producer.send(Message(TOPIC, b"{}"))
    look = [sys.executable, "-m", "sparrowmq", "snapshot", "--nameserver", name_server]
    subprocess.run([*look, "--group", GROUP, "--out", f"{place}/{LOOKS}"], check=True)
    Path(place, CONSUMED).write_text(f"{json.dumps(DELIVERY)}\n" * 2)


def measure(start: Callable[[str], None], place: str, starts: int) -> str:
    seconds: list[float] = []
    refused = 0
    for _ in range(starts):
        with tempfile.TemporaryDirectory(dir=place) as out:
            begin = time.perf_counter()
            try:
                start(out)
            except StreamingQueryException as error:
                if "connect back" not in str(error):
                    raise
                refused += 1
                print("refused", end=" ", flush=True)
                continue
            seconds.append(time.perf_counter() - begin)
            print(f"{seconds[-1]:.1f} s", end=" ", flush=True)
    words = f"{len(seconds)} of {starts} came up, {refused} did not connect back in time"
    if seconds:
        words += f"; {statistics.median(seconds):.1f} s, at most {max(seconds):.1f} s"
    return words


@contextmanager
def computing(processes: int) -> Generator[None]:
    """Keep so many processes computing; they end with this process, however it ends."""
    with ExitStack() as stack:
        for _ in range(processes):
            burner = stack.enter_context(subprocess.Popen([sys.executable, "-c", BURN], stdin=PIPE))
            stack.callback(burner.kill)
        yield


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--load", type=int, default=20)
    parser.add_argument("--starts", type=int, default=10)
    parser.add_argument("--without-launcher", action="store_true")
    parser.add_argument("ways", nargs="*", metavar="WAY", choices=[*WAYS, []])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place, EmbeddedCluster(Path(place)) as cluster:
        prepare(cluster.name_server, place)
        session = make_session(has_launcher=not arguments.without_launcher)
        starts = {
            name: partial(WAYS[name], session, cluster.name_server)
            for name in arguments.ways or WAYS
        }
        for start in starts.values():
            # Java compiles what it runs for the first time.
            measure(start, place, 1)
        print(flush=True)
        with computing(arguments.load):
            for name, start in starts.items():
                found = measure(start, place, arguments.starts)
                print(f"{name}: {found}; load average {os.getloadavg()[0]:.0f}", flush=True)
        session.stop()


if __name__ == "__main__":
    main()

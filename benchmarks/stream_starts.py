"""Starts of streams beside a load: how many come up, and after how long.

    python benchmarks/stream_starts.py [--load N] [--starts N] [--without-launcher]

Spark gives the process that plans a stream ten seconds to connect back, and no setting for more.
`--load` processes compute meanwhile, beside whatever else the machine does. A start is a query to
`noop` with a message to read, or the job `ingest`, from its call to its end. `--without-launcher`
has Spark start this Python itself.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from sparrowmq import Message, Producer
from sparrowmq.pipeline import ingest
from sparrowmq.spark import prepare_environment, spark_session
from sparrowmq.testing import EmbeddedCluster

TOPIC = "starts"


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


def job(session: SparkSession, name_server: str, out: str) -> None:
    ingest.run(session, ingest.IngestSettings(name_server=name_server, topic=TOPIC, out=out))


def measure(start: Callable[[str], None], starts: int) -> str:
    seconds: list[float] = []
    refused = 0
    for _ in range(starts):
        with tempfile.TemporaryDirectory() as out:
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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--load", type=int, default=20)
    parser.add_argument("--starts", type=int, default=10)
    parser.add_argument("--without-launcher", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place, EmbeddedCluster(Path(place)) as cluster:
        cluster.create_topic(TOPIC, queues=1)
        with Producer("GID_starts", name_server=cluster.name_server) as producer:
            producer.send(Message(TOPIC, b"{}"))
        session = make_session(has_launcher=not arguments.without_launcher)
        ways = {"query": query, "ingest": job}
        for way in ways.values():
            # Java compiles what it runs for the first time.
            measure(partial(way, session, cluster.name_server), 1)
        computing = [
            subprocess.Popen([sys.executable, "-c", "while True: pass"])
            for _ in range(arguments.load)
        ]
        try:
            for name, way in ways.items():
                start = partial(way, session, cluster.name_server)
                found = measure(start, arguments.starts)
                print(f"{name}: {found}; load average {os.getloadavg()[0]:.0f}", flush=True)
        finally:
            for process in computing:
                process.kill()
                process.wait()
        session.stop()


if __name__ == "__main__":
    main()

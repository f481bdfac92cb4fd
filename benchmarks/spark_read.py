"""Rows a second from and to a topic: our Spark source and sink beside Spark's own for Kafka.

    python benchmarks/spark_read.py [--rows N] [--size BYTES] [--repeats N] [--kafka DIR]

Both run in one Spark session on local[2], from one node each on loopback, in turn, so that noise
meets all alike; medians over the repeats, session start excluded. `--kafka DIR` names a directory
with `server/` (Kafka 4.1.1: kafka_2.13 and kafka-tools with their dependencies) and `spark/`
(spark-sql-kafka-0-10_2.13 4.2.0, spark-token-provider-kafka-0-10_2.13 4.0.0, kafka-clients 3.9.1,
commons-pool2 2.12.0); without it only ours is measured. Processor time is that of Spark with its
Python workers; a broker's own is a column of its own, for it is another process.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparrowmq.spark import find_java, spark_session
from sparrowmq.testing import EmbeddedCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUEUES = 8
BATCHES = 4
START_TIMEOUT_S = 120.0
TICKS = os.sysconf("SC_CLK_TCK")

# What is claimed, as ours / Kafka's rows a second.
CLAIMS = {"batch": 1.5, "store": 2.5, "stream": 1.0, "stream to parquet": 1.0, "sink": 1.0}


def cpu_s(root: int, *, without: frozenset[int] = frozenset()) -> float:
    """Return the processor seconds of a process and its children, those that ended included."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            text = Path("/proc", name, "stat").read_text()
        except OSError:
            continue
        fields = text.rpartition(")")[2].split()
        parents[int(name)] = int(fields[1])
        used[int(name)] = sum(int(each) for each in fields[11:15]) / TICKS
    total, todo = 0.0, [root]
    while todo:
        process = todo.pop()
        if process in without:
            continue
        total += used.get(process, 0.0)
        todo += [child for child, parent in parents.items() if parent == process]
    return total


class Kafka:
    """One Kafka node, KRaft, on loopback."""

    def __init__(self, home: Path, place: Path) -> None:
        self._java = [str(find_java().path / "bin" / "java"), "-Xmx1g", "-cp", f"{home}/server/*"]
        with (
            socket.create_server(("127.0.0.1", 0)) as one,
            socket.create_server(("127.0.0.1", 0)) as two,
        ):
            port, controller = one.getsockname()[1], two.getsockname()[1]
        self.address = f"127.0.0.1:{port}"
        settings = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": place / "kafka",
            "num.partitions": QUEUES,
            "offsets.topic.replication.factor": 1,
            "message.max.bytes": 8_000_000,
        }
        path = place / "server.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        identity = "MkU3OEVBNTcwNTJENDM2Qk"
        tool = ["kafka.tools.StorageTool", "format", "-t", identity, "-c", str(path)]
        subprocess.run([*self._java, tool[0], *tool[1:]], check=True, stdout=subprocess.DEVNULL)
        self._log = (place / "kafka.log").open("wb")
        self.process = subprocess.Popen(
            [*self._java, "kafka.Kafka", str(path)], stdout=self._log, stderr=self._log
        )
        try:
            self._await_port(port)
        except BaseException:
            self.close()
            raise

    def _await_port(self, port: int) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while self.process.poll() is None and time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.2)
        raise SystemExit(f"Kafka did not start; see {self._log.name}")

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(60)
        self._log.close()


class Bench:
    """The cases, each a function that runs a job over all rows."""

    def __init__(self, spark: SparkSession, place: Path, rows: int) -> None:
        self.spark = spark
        self.place = place
        self.rows = rows
        self.count = 0

    def fresh(self) -> str:
        self.count += 1
        return str(self.place / f"out-{self.count}")

    def batch(self, kind: str, options: dict[str, str]) -> None:
        frame = self.spark.read.format(kind).options(**options).load()
        frame.write.format("noop").mode("overwrite").save()

    def stream(self, kind: str, options: dict[str, str], sink: str) -> None:
        query = (
            self.spark.readStream.format(kind)
            .options(**options)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", str(self.rows // BATCHES))
            .load()
            .writeStream.format(sink)
            .option("checkpointLocation", self.fresh())
            .option("path", self.fresh())
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def sink(self, kind: str, options: dict[str, str], columns: list[str]) -> None:
        frame = self.spark.read.parquet(str(self.place / "rows")).selectExpr(*columns)
        frame.write.format(kind).mode("append").options(**options).save()


def make_cases(
    bench: Bench, ours: EmbeddedCluster, data: Path, kafka: Kafka | None
) -> dict[str, dict[str, Callable[[], None]]]:
    read = {"nameServer": ours.name_server, "topic": "rows", "profile": "kafka"}
    store = {"storePath": str(data / "store"), "topic": "rows", "profile": "kafka"}
    write = {"nameServer": ours.name_server, "topic": "sink"}
    cases = {
        "batch": {"ours": lambda: bench.batch("rocketmq", read)},
        "store": {"ours": lambda: bench.batch("rocketmq", store)},
        "stream": {"ours": lambda: bench.stream("rocketmq", read, "noop")},
        "stream to parquet": {"ours": lambda: bench.stream("rocketmq", read, "parquet")},
        "sink": {"ours": lambda: bench.sink("rocketmq", write, ["value AS body", "key AS keys"])},
    }
    if kafka is not None:
        read_k = {"kafka.bootstrap.servers": kafka.address, "subscribe": "rows"}
        write_k = {"kafka.bootstrap.servers": kafka.address, "topic": "sink"}
        cases["batch"]["kafka"] = lambda: bench.batch("kafka", read_k)
        cases["store"]["kafka"] = cases["batch"]["kafka"]
        cases["stream"]["kafka"] = lambda: bench.stream("kafka", read_k, "noop")
        cases["stream to parquet"]["kafka"] = lambda: bench.stream("kafka", read_k, "parquet")
        cases["sink"]["kafka"] = lambda: bench.sink("kafka", write_k, ["value", "key"])
    return cases


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kafka", type=Path)
    parser.add_argument("--cases", default=",".join(CLAIMS))
    arguments = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="spark-read-"))
    jars = ",".join(map(str, arguments.kafka.glob("spark/*.jar"))) if arguments.kafka else ""
    spark = spark_session(
        "benchmark",
        master="local[2]",
        driver_memory="4g",
        conf={"spark.jars": jars} if jars else {},
    )
    spark.sparkContext.setLogLevel("ERROR")
    kafka = Kafka(arguments.kafka, place) if arguments.kafka else None
    try:
        with EmbeddedCluster(place / "data", flush="async") as ours:
            run(spark, ours, kafka, place, arguments)
    finally:
        if kafka is not None:
            kafka.close()
        spark.stop()
        shutil.rmtree(place)


def run(
    spark: SparkSession, ours: EmbeddedCluster, kafka: Kafka | None, place: Path, arguments: Any
) -> None:
    rows, size = arguments.rows, arguments.size
    body = f"substr(repeat(sha2(cast(id AS string), 512), {size // 128 + 1}), 1, {size})"
    spark.range(0, rows, 1, QUEUES).selectExpr(
        f"cast({body} AS binary) AS value", "concat('key-', lpad(id, 12, '0')) AS key"
    ).write.parquet(str(place / "rows"))
    bench = Bench(spark, place, rows)
    for topic in ("rows", "sink"):
        ours.create_topic(topic, queues=QUEUES)
    given = {"nameServer": ours.name_server, "topic": "rows"}
    bench.sink("rocketmq", given, ["value AS body", "key AS keys"])
    if kafka is not None:
        given = {"kafka.bootstrap.servers": kafka.address, "topic": "rows"}
        bench.sink("kafka", given, ["value", "key"])
    print(f"{rows} rows of {size} bytes, {QUEUES} queues, {arguments.repeats} repeats")
    print(f"{'case':<20}{'who':<8}{'rows/s':>12}{'us of a core/row':>18}{'broker us/row':>15}")
    brokers = {"ours": ours.pid, "kafka": kafka.process.pid if kafka else 0}
    for name, cases in make_cases(bench, ours, place / "data", kafka).items():
        if name in arguments.cases.split(","):
            report(name, cases, brokers, rows, arguments.repeats)


def report(
    name: str,
    cases: dict[str, Callable[[], None]],
    brokers: dict[str, int],
    rows: int,
    repeats: int,
) -> None:
    found: dict[str, list[tuple[float, float, float]]] = {who: [] for who in cases}
    for repeat in range(repeats + 1):
        for who, job in cases.items():
            own, broker = (
                cpu_s(os.getpid(), without=frozenset(brokers.values())),
                cpu_s(brokers[who]),
            )
            begin = time.perf_counter()
            job()
            wall = time.perf_counter() - begin
            own = cpu_s(os.getpid(), without=frozenset(brokers.values())) - own
            # The first run of each warms up.
            if repeat:
                found[who].append((wall, own, cpu_s(brokers[who]) - broker))
    rates: dict[str, float] = {}
    for who, times in found.items():
        wall, own, broker = (statistics.median(each) for each in zip(*times, strict=True))
        rates[who] = rows / wall
        costs = f"{own / rows * 1e6:>18.2f}{broker / rows * 1e6:>15.2f}"
        print(f"{name:<20}{who:<8}{rates[who]:>12,.0f}{costs}")
    if "kafka" in rates:
        ratio = rates["ours"] / rates["kafka"]
        verdict = "reached" if ratio >= CLAIMS[name] else "NOT reached"
        print(f"{'':<20}{ratio:.2f} x Kafka; {CLAIMS[name]} wanted: {verdict}", flush=True)


if __name__ == "__main__":
    main()

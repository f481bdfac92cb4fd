"""Rows per second from and to a topic: our Spark source and sink beside Spark's own for Kafka.

    python benchmarks/spark_read.py [--rows N] [--repeats N] [--kafka DIR] [--cases NAME,...]
                                    [--sizes BYTES,...] [--out DIRECTORY]

Both run in one Spark session on local[2], with one node each on loopback. The runs take turns, and
noise meets all alike. The figures are medians over the repeats, without the start of the session
and the first runs. N messages of 128 bytes come first, then a quarter as many of 1 KiB, over 8
queues each; 2 million and 5 repeats take about 20 minutes. `--kafka DIR` names a directory with
`server/` (Kafka 4.1.1: kafka_2.13 and kafka-tools with their dependencies) and `spark/`
(spark-sql-kafka-0-10_2.13 4.2.0, spark-token-provider-kafka-0-10_2.13 4.0.0, kafka-clients 3.9.1,
commons-pool2 2.12.0). Without `--kafka`, only our source and sink run.

Processor time is that of Spark with its Python workers; a broker's time has a column of its own.
`floor` is the time of a micro-batch with one message per queue, trigger interval 0, by Spark's own
phases; the other cases move all messages. A bare Python source, which has its Arrow batches ready
and asks no broker, runs beside all cases: no Python source is faster. A bare sink drops its rows.

`--out` names the directory of `spark.json` and `spark.md`, or of `spark-speedups.*` if the broker
has the extension, which `PYTHONPATH=benchmarks/plain` hides. Both files are written after every
case: an interrupted run keeps its results.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
)

from against_apache import describe_machine
from sparrowmq.spark import find_java, spark_session
from sparrowmq.testing import EmbeddedCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

PEER = "Kafka 4.1.1 with spark-sql-kafka-0-10 4.2.0"
# Parts of the directory that --kafka names.
JARS = ("server", "spark")
QUEUES = 8
BATCHES = 4
START_TIMEOUT_S = 120.0
# Kafka's producer gives up a send after two minutes, which a busy machine may need.
FILL_ATTEMPTS = 3
TICKS = os.sysconf("SC_CLK_TCK")

# The micro-batches of a query for the floor, and the first ones that do not count.
FLOOR_BATCHES = 40
FLOOR_WARM_UP = 10
FLOOR_TIMEOUT_S = 300.0
# The rows and bytes of an Arrow batch of the bare source, as in ours, and the rows of its tasks.
ALONE_ROWS = 8_192
ALONE_BYTES = 4 * 1024 * 1024
ALONE_TASK_ROWS = 125_000
# The bytes of a message, and the share of --rows with this size.
SIZES = {128: 1.0, 1024: 0.25}

# The aims: the ratio of our rows per second to Kafka's, by size; for the floor, the most ms.
WANTED = {
    "batch": {128: 2.0, 1024: 3.0},
    "store": {128: 4.0, 1024: 5.0},
    "stream": {128: 1.3, 1024: 1.3},
    "stream to parquet": {128: 1.3, 1024: 1.3},
    "sink": {128: 1.0, 1024: 1.2},
}
FLOOR_WANTED = 1.0
# Spark's phases of a micro-batch, in order.
PHASES = {
    "triggerExecution": "whole",
    "latestOffset": "latestOffset",
    "walCommit": "offset log",
    "getBatch": "getBatch",
    "queryPlanning": "query planning",
    "addBatch": "tasks",
    "commitOffsets": "commit log",
}
TITLES = {
    "batch": "batch to `noop`",
    "store": "store directory to `noop` (Kafka: batch)",
    "stream": "`AvailableNow` to `noop`",
    "stream to parquet": "`AvailableNow` to Parquet",
    "sink": "write",
}


def cpu_s(root: int, *, without: frozenset[int] = frozenset()) -> float:
    """Return the processor seconds of a process and its children, ended ones included."""
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
        # The topic of the messages to read.
        self.topic = ""
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


class AloneSource(DataSource):
    """A source of ready Arrow batches, and a sink that drops its rows.

    The time is that of Spark's way to Python alone. Rows, columns, batches and tasks are the same
    as in ours: option `rows` of `size` bytes, no `rows` for an endless stream, `tasks` at once.
    """

    @classmethod
    def name(cls) -> str:
        return "alone"

    def schema(self) -> str:
        return (
            "key binary, value binary, topic string, partition int, offset bigint, "
            "timestamp timestamp, timestampType int"
        )

    def reader(self, schema: StructType) -> AloneReader:
        return AloneReader(self.options)

    def streamReader(self, schema: StructType) -> AloneStreamReader:  # noqa: N802
        return AloneStreamReader(self.options)

    def writer(self, schema: StructType, overwrite: bool) -> AloneWriter:
        return AloneWriter()


class AloneReader(DataSourceReader):
    def __init__(self, options: Mapping[str, str]) -> None:
        self.size = int(options["size"])
        self.rows = int(options.get("rows", sys.maxsize))
        self.tasks = int(options["tasks"])

    def partitions(self) -> Sequence[InputPartition]:
        return self.share(self.rows)

    def share(self, rows: int) -> Sequence[InputPartition]:
        cuts = [rows * task // self.tasks for task in range(self.tasks + 1)]
        return [InputPartition(end - begin) for begin, end in itertools.pairwise(cuts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        count = min(ALONE_ROWS, ALONE_BYTES // self.size, partition.value)
        now = pa.scalar(1_767_225_600_000_000, pa.timestamp("us", tz="UTC"))
        columns = {
            "key": pa.repeat(pa.scalar(b"key-000000000000"), count),
            "value": pa.repeat(pa.scalar(b"0" * self.size), count),
            "topic": pa.repeat("rows", count),
            "partition": pa.repeat(pa.scalar(0, pa.int32()), count),
            "offset": pa.array(range(count)),
            "timestamp": pa.repeat(now, count),
            "timestampType": pa.repeat(pa.scalar(0, pa.int32()), count),
        }
        batch = pa.RecordBatch.from_pydict(columns)
        for at in range(0, partition.value, max(count, 1)):
            yield batch.slice(0, partition.value - at)


class AloneStreamReader(AloneReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self.step = int(options["maxOffsetsPerTrigger"])

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"row": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        pass

    def latestOffset(self, start: Mapping[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        return {"row": min(start["row"] + self.step, self.rows)}

    def partitions(  # type: ignore[override]
        self, start: Mapping[str, int], end: Mapping[str, int]
    ) -> Sequence[InputPartition]:
        return self.share(end["row"] - start["row"])


class AloneWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


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

    def floor_ms(self, kind: str, options: dict[str, str]) -> list[dict[str, float]]:
        """Return the phases, by Spark's names, of micro-batches with one message per queue."""
        query = (
            self.spark.readStream.format(kind)
            .options(**options)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", str(QUEUES))
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", self.fresh())
            .trigger(processingTime="0 seconds")
            .start()
        )
        deadline = time.monotonic() + FLOOR_TIMEOUT_S
        progress = query.lastProgress
        while progress is None or progress["batchId"] < FLOOR_BATCHES:
            if time.monotonic() > deadline or not query.isActive:
                raise SystemExit(f"{kind}: no {FLOOR_BATCHES} micro-batches: {query.exception()}")
            time.sleep(0.1)
            progress = query.lastProgress
        query.stop()
        return [
            each["durationMs"]
            for each in query.recentProgress
            if each["numInputRows"] == QUEUES and each["batchId"] >= FLOOR_WARM_UP
        ]

    def sink(self, kind: str, options: dict[str, str], columns: list[str]) -> None:
        frame = self.spark.read.parquet(str(self.place / "rows")).selectExpr(*columns)
        frame.write.format(kind).mode("append").options(**options).save()


@dataclass(frozen=True)
class Case:
    """A job over all rows, and the system that runs it."""

    name: str
    who: str
    run: Callable[[], None]


@dataclass(frozen=True)
class Found:
    """The result of a case: rows per second, and microseconds of a core per row."""

    rate: float
    spark_us: float
    broker_us: float


def make_alone(size: int, rows: int, rows_at_once: int) -> dict[str, str]:
    """Return the options of the bare source, with as many tasks as ours has for these rows."""
    tasks = min(max(rows_at_once // ALONE_TASK_ROWS, 2), QUEUES)
    return {"size": str(size), "rows": str(rows), "tasks": str(tasks)}


def make_cases(
    bench: Bench, ours: EmbeddedCluster, data: Path, kafka: Kafka | None, size: int
) -> list[Case]:
    read = {"nameServer": ours.name_server, "topic": "rows", "profile": "kafka"}
    store = {"storePath": str(data / "store"), "topic": "rows", "profile": "kafka"}
    write = {"nameServer": ours.name_server, "topic": "sink"}
    alone = make_alone(size, bench.rows, bench.rows)
    alone_stream = make_alone(size, bench.rows, bench.rows // BATCHES)
    cases = [
        Case("batch", "ours", lambda: bench.batch("rocketmq", read)),
        Case("store", "ours", lambda: bench.batch("rocketmq", store)),
        Case("stream", "ours", lambda: bench.stream("rocketmq", read, "noop")),
        Case("stream to parquet", "ours", lambda: bench.stream("rocketmq", read, "parquet")),
        Case(
            "sink", "ours", lambda: bench.sink("rocketmq", write, ["value AS body", "key AS keys"])
        ),
        Case("batch", "alone", lambda: bench.batch("alone", alone)),
        Case("stream", "alone", lambda: bench.stream("alone", alone_stream, "noop")),
        Case("stream to parquet", "alone", lambda: bench.stream("alone", alone_stream, "parquet")),
        Case("sink", "alone", lambda: bench.sink("alone", {}, ["value AS body", "key AS keys"])),
    ]
    if kafka is not None:
        read_k = {"kafka.bootstrap.servers": kafka.address, "subscribe": kafka.topic}
        write_k = {"kafka.bootstrap.servers": kafka.address, "topic": "sink"}
        cases += [
            Case("batch", "kafka", lambda: bench.batch("kafka", read_k)),
            Case("stream", "kafka", lambda: bench.stream("kafka", read_k, "noop")),
            Case("stream to parquet", "kafka", lambda: bench.stream("kafka", read_k, "parquet")),
            Case("sink", "kafka", lambda: bench.sink("kafka", write_k, ["value", "key"])),
        ]
    return cases


class Results:
    """The results so far; written after every case.

    Args:
        out: the directory of the files; None if the results are only printed.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        machine = describe_machine() | {"pyspark": pyspark.__version__, "peer": PEER}
        self._out: Path | None = arguments.out
        self.found: dict[str, Any] = {
            "machine": machine,
            "rows": arguments.rows,
            "repeats": arguments.repeats,
            # The highest, over five minutes; whatever else the machine does is in it.
            "load": 0,
            "rates": [],
            "floor": [],
        }

    def note(self, table: str, row: dict[str, Any]) -> None:
        self.found[table].append(row)
        self.found["load"] = max(self.found["load"], round(os.getloadavg()[1]))
        if self._out is None:
            return
        self._out.mkdir(parents=True, exist_ok=True)
        name = "spark-speedups" if self.found["machine"]["speedups"] else "spark"
        (self._out / f"{name}.json").write_text(json.dumps(self.found, indent=1) + "\n")
        (self._out / f"{name}.md").write_text(render(self.found))


def render(found: dict[str, Any]) -> str:
    """Return the tables as Markdown."""
    machine = found["machine"]
    lines = [
        f"{machine['date']}, commit {machine['commit']}, {machine['processor']} with "
        f"{machine['cores']} cores, Python {machine['python']}, {machine['java']}, "
        f"PySpark {machine['pyspark']}, {machine['peer']}, "
        f"{'with' if machine['speedups'] else 'without'} sparrowmq-speedups; "
        f"medians of {found['repeats']} runs in turn after one that does not count; load at most "
        f"{found['load']}.",
    ]
    for size, part in SIZES.items():
        rows = [each for each in found["rates"] if each["bytes"] == size]
        if rows:
            title = f"{found['rows'] * part:,.0f} messages of {size:,} bytes"
            lines += ["", f"| {title}, rows/s | ours | a Python source alone | Kafka's | ratio |"]
            lines[-1] += " the bare source's | wanted | CPU µs a row in Spark | in the broker |"
            lines.append("|---|---|---|---|---|---|---|---|---|")
            lines += map(render_rate, rows)
    for size in SIZES:
        rows = [each for each in found["floor"] if each["bytes"] == size]
        if rows:
            title = f"a micro-batch of a message of {size:,} bytes a queue, ms"
            lines += ["", f"| {title} | ours | a Python source alone | Kafka's | ours / Kafka's |"]
            lines.append("|---|---|---|---|---|")
            lines += map(render_phase, rows)
    return "\n".join(lines) + "\n"


def render_rate(row: dict[str, Any]) -> str:
    ours, alone, peer = row["ours"], row["alone"], row["kafka"]
    three = [each for each in (ours, alone, peer) if each]
    cells = [f"{each['rate']:,.0f}" for each in three] + ["–"] * (3 - len(three))
    if peer is None:
        cells += ["–"] * 3
    else:
        ratio, most = ours["rate"] / peer["rate"], alone["rate"] / peer["rate"]
        missed = "" if ratio >= row["wanted"] else ", missed"
        cells += [f"**{ratio:.2f}**", f"{most:.2f}", f"≥ {row['wanted']}{missed}"]
    cells.append(" / ".join(f"{each['spark_us']:.2f}" for each in three))
    cells.append(" / ".join(f"{each['broker_us']:.2f}" for each in three if each is not alone))
    return f"| {TITLES[row['case']]} | {' | '.join(cells)} |"


def render_phase(row: dict[str, Any]) -> str:
    peer, ratio = row["peer"], ""
    if row["phase"] == "triggerExecution" and peer is not None:
        found = row["ours"] / peer
        ratio = f"**{found:.2f}** (≤ {FLOOR_WANTED}{'' if found <= FLOOR_WANTED else ', missed'})"
    shown = "–" if peer is None else f"{peer:.0f}"
    name = PHASES[row["phase"]]
    return f"| {name} | {row['ours']:.0f} | {row['alone']:.0f} | {shown} | {ratio} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kafka", type=Path)
    parser.add_argument("--cases", default=",".join([*WANTED, "floor"]))
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if unknown := set(arguments.cases.split(",")) - {*WANTED, "floor"}:
        parser.error(f"no case {', '.join(sorted(unknown))}; there are {', '.join(WANTED)}, floor")
    sizes = [int(word) for word in arguments.sizes.split(",")]
    if unknown_sizes := set(sizes) - set(SIZES):
        parser.error(f"no size {min(unknown_sizes)}; there are {', '.join(map(str, SIZES))}")
    if arguments.kafka and not all(any(arguments.kafka.glob(f"{each}/*.jar")) for each in JARS):
        parser.error(f"{arguments.kafka} has no jars in {' and '.join(JARS)}")
    jars = ",".join(map(str, arguments.kafka.glob("spark/*.jar"))) if arguments.kafka else ""
    spark = spark_session(
        "benchmark",
        master="local[2]",
        driver_memory="4g",
        conf={"spark.jars": jars} if jars else {},
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(AloneSource)
    # SIGTERM stops the servers as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    results = Results(arguments)
    try:
        for size in sizes:
            run_size(spark, int(arguments.rows * SIZES[size]), size, arguments, results)
    finally:
        spark.stop()
        print(f"\n{render(results.found)}", end="")


def run_size(
    spark: SparkSession, rows: int, size: int, arguments: argparse.Namespace, results: Results
) -> None:
    """Fill both systems with messages of one size, and run every case."""
    place = Path(tempfile.mkdtemp(prefix="spark-read-"))
    kafka = Kafka(arguments.kafka, place) if arguments.kafka else None
    try:
        with EmbeddedCluster(place / "data", flush="async") as ours:
            bench = Bench(spark, place, rows)
            fill(bench, ours, kafka, size)
            print(f"{rows} rows of {size} bytes, {QUEUES} queues, {arguments.repeats} repeats")
            print(
                f"{'case':<20}{'who':<8}{'rows/s':>12}{'us of a core/row':>18}{'broker us/row':>15}"
            )
            wanted = arguments.cases.split(",")
            cases = make_cases(bench, ours, place / "data", kafka, size)
            found: dict[tuple[str, str], Found] = {}
            for name in [each for each in WANTED if each in wanted]:
                pids = {"ours": ours.pid}
                if kafka is not None:
                    pids["kafka"] = kafka.process.pid
                named = [each for each in cases if each.name == name]
                found |= measure(named, pids, rows, arguments.repeats)
                # Kafka has no case for a store; its batch is the comparison. The bare source does
                # not skip columns.
                beside = "batch" if name == "store" else name
                row: dict[str, Any] = {"bytes": size, "case": name, "wanted": WANTED[name][size]}
                for who, key in (("ours", name), ("alone", beside), ("kafka", beside)):
                    one = found.get((key, who))
                    row[who] = one and asdict(one)
                results.note("rates", row)
            if "floor" in wanted:
                for row in measure_floor(bench, ours, kafka, size, arguments.repeats):
                    results.note("floor", {"bytes": size, **row})
    finally:
        if kafka is not None:
            kafka.close()
        shutil.rmtree(place)


def fill(bench: Bench, ours: EmbeddedCluster, kafka: Kafka | None, size: int) -> None:
    body = f"substr(repeat(sha2(cast(id AS string), 512), {size // 128 + 1}), 1, {size})"
    bench.spark.range(0, bench.rows, 1, QUEUES).selectExpr(
        f"cast({body} AS binary) AS value", "concat('key-', lpad(id, 12, '0')) AS key"
    ).write.parquet(str(bench.place / "rows"))
    for topic in ("rows", "sink"):
        ours.create_topic(topic, queues=QUEUES)
    given = {"nameServer": ours.name_server, "topic": "rows"}
    bench.sink("rocketmq", given, ["value AS body", "key AS keys"])
    if kafka is not None:
        fill_kafka(bench, kafka)


def fill_kafka(bench: Bench, kafka: Kafka) -> None:
    """Write the rows to a topic; after a failure, which leaves a part, to another one."""
    for attempt in range(FILL_ATTEMPTS):
        kafka.topic = f"rows-{attempt}"
        given = {"kafka.bootstrap.servers": kafka.address, "topic": kafka.topic}
        try:
            return bench.sink("kafka", given, ["value", "key"])
        except (PySparkException, Py4JJavaError) as error:
            print(f"Kafka was not filled: {str(error).splitlines()[0]}", flush=True)
    raise SystemExit(f"Kafka was not filled in {FILL_ATTEMPTS} attempts")


def measure(
    cases: Sequence[Case], brokers: dict[str, int], rows: int, repeats: int
) -> dict[tuple[str, str], Found]:
    """Run the cases in turn; the first run of each is a warm-up."""
    times: dict[Case, list[tuple[float, float, float]]] = {each: [] for each in cases}
    without = frozenset(brokers.values())

    def broker_cpu_s(who: str) -> float:
        return cpu_s(brokers[who]) if who in brokers else 0.0

    for repeat in range(repeats + 1):
        for case in cases:
            own, broker = cpu_s(os.getpid(), without=without), broker_cpu_s(case.who)
            begin = time.perf_counter()
            case.run()
            wall = time.perf_counter() - begin
            own = cpu_s(os.getpid(), without=without) - own
            if repeat:
                times[case].append((wall, own, broker_cpu_s(case.who) - broker))
    found: dict[tuple[str, str], Found] = {}
    for case, each in times.items():
        wall, own, broker = (statistics.median(column) for column in zip(*each, strict=True))
        result = Found(rows / wall, own / rows * 1e6, broker / rows * 1e6)
        found[case.name, case.who] = result
        costs = f"{result.spark_us:>18.2f}{result.broker_us:>15.2f}"
        print(f"{case.name:<20}{case.who:<8}{result.rate:>12,.0f}{costs}", flush=True)
    return found


def measure_floor(
    bench: Bench, ours: EmbeddedCluster, kafka: Kafka | None, size: int, repeats: int
) -> list[dict[str, Any]]:
    """Return the median ms of each phase of micro-batches with one message per queue."""
    sources: dict[str, tuple[str, dict[str, str]]] = {
        "ours": (
            "rocketmq",
            {"nameServer": ours.name_server, "topic": "rows", "profile": "kafka"},
        ),
        "alone": ("alone", {"size": str(size), "tasks": "1"}),
    }
    if kafka is not None:
        read_k = {"kafka.bootstrap.servers": kafka.address, "subscribe": kafka.topic}
        sources["peer"] = ("kafka", read_k)
    found: dict[str, list[dict[str, float]]] = {who: [] for who in sources}
    for _ in range(repeats):
        for who, source in sources.items():
            found[who] += bench.floor_ms(*source)
    rows: list[dict[str, Any]] = []
    for phase in PHASES:
        row: dict[str, Any] = {"phase": phase, "peer": None}
        for who, batches in found.items():
            row[who] = statistics.median(each.get(phase, 0.0) for each in batches)
        rows.append(row)
    print("floor, ms:", {who: rows[0][who] for who in sources}, flush=True)
    return rows


if __name__ == "__main__":
    main()

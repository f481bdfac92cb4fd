"""CPU and memory of the job `ingest` beside the same query written by hand, from topic to Parquet.

    python benchmarks/pipeline_ingest.py [ROWS ...]        67,197 and all 336,776 flights by default

Bodies are the flights of 2013, JSON of 19 fields. The query by hand is `from_json` and a write of
each micro-batch by `foreachBatch`: no check of bodies, no quarantine, no counts, nothing that a
replay could rely on. Both run in turn in one session, with a heap of 1 GB. The first rounds do not
count: HotSpot compiles until then. CPU seconds are those of Java, of the Python processes that
Spark starts, of this process and of the broker; memory is the most that a process of each kind has
had so far.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from sparrowmq import Message, MessageQueue, Producer
from sparrowmq.demo.flights import BODY_DDL, load_flights
from sparrowmq.pipeline import ingest
from sparrowmq.pipeline.ingest.job import METADATA
from sparrowmq.spark import spark_session
from sparrowmq.testing import EmbeddedCluster

ROUNDS, WARM_UPS = 5, 4
PARTS: tuple[str, ...] = ("Java", "Spark's Python", "driver", "broker")
QUEUES = 4
TICKS = os.sysconf("SC_CLK_TCK")
BATCH = 500


def fill(cluster: EmbeddedCluster, topic: str, rows: int) -> None:
    cluster.create_topic(topic, queues=QUEUES)
    bodies = list(load_flights(limit=rows).bodies())
    with Producer("GID_fill", name_server=cluster.name_server) as producer:
        for start in range(0, rows, BATCH):
            queue = MessageQueue(topic, "broker-a", start // BATCH % QUEUES)
            messages = [Message(topic, body) for body in bodies[start : start + BATCH]]
            producer.send_batch(messages, queue=queue)


def by_hand(session: SparkSession, name_server: str, topic: str, out: str) -> int:
    def write(batch: DataFrame, batch_id: int) -> None:
        row = F.from_json(F.col("body").cast("string"), BODY_DDL)
        rows = batch.select(*METADATA, row.alias("row"))
        rows = rows.select(*METADATA, "row.*", F.to_date("row.time_hour").alias("date"))
        rows.write.partitionBy("date").mode("overwrite").parquet(f"{out}/table/batchId={batch_id}")

    source = session.readStream.format("rocketmq").option("nameServer", name_server)
    source = source.option("topic", topic).option("startingOffsets", "earliest")
    messages = source.option("columns", ",".join((*METADATA, "body"))).load()
    stream = messages.writeStream.foreachBatch(write).trigger(availableNow=True)
    stream.option("checkpointLocation", f"{out}/checkpoint").start().awaitTermination()
    return session.read.parquet(f"{out}/table").count()


def by_job(session: SparkSession, name_server: str, topic: str, out: str) -> int:
    settings = ingest.IngestSettings(
        name_server=name_server, topic=topic, out=out, schema=BODY_DDL, date_column="time_hour"
    )
    return ingest.run(session, settings).counts.rows


def look(broker: int) -> tuple[dict[str, float], dict[str, float]]:
    """Return the CPU seconds of each part, ended processes included, and its MB at most."""
    found: dict[int, tuple[int, str, list[int], float]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            name, _, text = (path / "stat").read_text().partition("(")[2].rpartition(")")
            status = (path / "status").read_text()
        except OSError:
            continue
        fields = text.split()
        peak = int(status.partition("VmHWM:")[2].split()[0]) / 1024 if "VmHWM:" in status else 0.0
        found[int(path.name)] = (int(fields[1]), name, [*map(int, fields[11:15])], peak)
    seconds, megabytes = dict.fromkeys(PARTS, 0.0), dict.fromkeys(PARTS, 0.0)
    family = [os.getpid()]
    while family:
        pid = family.pop()
        _, name, (user, system, *ended), peak = found[pid]
        part = PARTS[2] if pid == os.getpid() else PARTS[3] if pid == broker else PARTS[1]
        part = PARTS[0] if name == "java" else part
        seconds[part] += (user + system) / TICKS
        seconds[PARTS[1] if part == PARTS[0] else part] += sum(ended) / TICKS
        megabytes[part] = max(megabytes[part], peak)
        family += [child for child, (parent, *_) in found.items() if parent == pid]
    return seconds, megabytes


def measure(run: Callable[[str], int], rows: int, broker: int) -> dict[str, float]:
    """Return the seconds of a run, and the CPU seconds of its parts and of all."""
    with tempfile.TemporaryDirectory() as out:
        begin, before = time.perf_counter(), look(broker)[0]
        count = run(out)
        seconds, after = time.perf_counter() - begin, look(broker)[0]
    assert count == rows, (count, rows)
    used = {part: after[part] - before[part] for part in PARTS}
    return {"seconds": seconds, "CPU": sum(used.values()), **used}


def main() -> None:
    sizes = [int(word) for word in sys.argv[1:]] or [67_197, 336_776]
    ways = {"by hand": by_hand, "job": by_job}
    with tempfile.TemporaryDirectory() as place, EmbeddedCluster(Path(place)) as cluster:
        session = spark_session("ingest", driver_memory="1g", conf={"spark.log.level": "ERROR"})
        for rows in sizes:
            topic = f"bodies-{rows}"
            fill(cluster, topic, rows)
            found: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
            for _ in range(WARM_UPS + ROUNDS):
                for name, way in ways.items():
                    run = partial(way, session, cluster.name_server, topic)
                    found[name].append(measure(run, rows, cluster.pid))
            for name, runs in found.items():
                middle = {
                    each: statistics.median(run[each] for run in runs[WARM_UPS:])
                    for each in runs[0]
                }
                words = ", ".join(f"{each} {value:.2f}" for each, value in middle.items())
                print(f"{rows:,} rows {name}: {words}", flush=True)
            peaks = look(cluster.pid)[1].items()
            words = ", ".join(f"{part} {value:,.0f}" for part, value in peaks)
            print(f"{rows:,} rows, MB at most: {words}; load {os.getloadavg()[0]:.0f}", flush=True)
        session.stop()


if __name__ == "__main__":
    main()

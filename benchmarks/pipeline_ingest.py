"""CPU seconds of the job `ingest` beside the same query written by hand, from topic to Parquet.

    python benchmarks/pipeline_ingest.py [ROWS ...]        67,197 and 600,000 rows by default

Bodies are JSON of 19 fields. The query by hand is `from_json` and a write of each micro-batch by
`foreachBatch`: no check of bodies, no quarantine, no counts, nothing that a replay could rely on.
Both run in turn in one session, with a first round that does not count. CPU seconds are those of
this process, of Java, of Spark's Python workers and of the broker together.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from pipeline_balance import cpu_seconds
from sparrowmq import Message, MessageQueue, Producer
from sparrowmq.pipeline import ingest
from sparrowmq.pipeline.ingest.job import METADATA
from sparrowmq.spark import spark_session
from sparrowmq.testing import EmbeddedCluster

ROUNDS = 3
QUEUES = 4
BATCH = 500
NUMBERS, TEXTS = [f"number{n}" for n in range(13)], [f"text{n}" for n in range(5)]
DDL = ", ".join(
    ["at TIMESTAMP", *(f"{n} BIGINT" for n in NUMBERS), *(f"{n} STRING" for n in TEXTS)]
)


def body(row: int) -> bytes:
    numbers = {name: row * 7 % (97 + at) for at, name in enumerate(NUMBERS)}
    texts = dict.fromkeys(TEXTS, f"value {row % 31}")
    at = f"2013-01-{1 + row % 28:02}T{row % 24:02}:00:00Z"
    return json.dumps({"at": at, **numbers, **texts}).encode()


def fill(cluster: EmbeddedCluster, topic: str, rows: int) -> None:
    cluster.create_topic(topic, queues=QUEUES)
    with Producer("GID_fill", name_server=cluster.name_server) as producer:
        for start in range(0, rows, BATCH):
            queue = MessageQueue(topic, "broker-a", start // BATCH % QUEUES)
            end = min(start + BATCH, rows)
            messages = [Message(topic, body(row)) for row in range(start, end)]
            producer.send_batch(messages, queue=queue)


def by_hand(session: SparkSession, name_server: str, topic: str, out: str) -> int:
    def write(batch: DataFrame, batch_id: int) -> None:
        row = F.from_json(F.col("body").cast("string"), DDL)
        rows = batch.select(*METADATA, row.alias("row"))
        rows = rows.select(*METADATA, "row.*", F.to_date("row.at").alias("date"))
        rows.write.partitionBy("date").mode("overwrite").parquet(f"{out}/table/batchId={batch_id}")

    source = session.readStream.format("rocketmq").option("nameServer", name_server)
    source = source.option("topic", topic).option("startingOffsets", "earliest")
    messages = source.option("columns", ",".join((*METADATA, "body"))).load()
    stream = messages.writeStream.foreachBatch(write).trigger(availableNow=True)
    stream.option("checkpointLocation", f"{out}/checkpoint").start().awaitTermination()
    return session.read.parquet(f"{out}/table").count()


def by_job(session: SparkSession, name_server: str, topic: str, out: str) -> int:
    settings = ingest.IngestSettings(
        name_server=name_server, topic=topic, out=out, schema=DDL, date_column="at"
    )
    return ingest.run(session, settings).counts.rows


def measure(run: Callable[[str], int], rows: int) -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as out:
        begin, cpu = time.perf_counter(), cpu_seconds()
        found = run(out)
        seconds, cpu = time.perf_counter() - begin, cpu_seconds() - cpu
    assert found == rows, (found, rows)
    return seconds, cpu


def main() -> None:
    sizes = [int(word) for word in sys.argv[1:]] or [67_197, 600_000]
    ways = {"by hand": by_hand, "job": by_job}
    with tempfile.TemporaryDirectory() as place, EmbeddedCluster(Path(place)) as cluster:
        session = spark_session("ingest", driver_memory="2g", conf={"spark.log.level": "ERROR"})
        for rows in sizes:
            fill(cluster, f"bodies-{rows}", rows)
            found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
            for _ in range(1 + ROUNDS):
                for name, way in ways.items():
                    topic = f"bodies-{rows}"

                    def run(out: str, way: Callable[..., int] = way, topic: str = topic) -> int:
                        return way(session, cluster.name_server, topic, out)

                    found[name].append(measure(run, rows))
            for name, times in found.items():
                seconds, cpu = (statistics.median(each) for each in zip(*times[1:], strict=True))
                print(f"{rows:>9,} rows {name:>8}: {seconds:6.1f} s, CPU {cpu:6.1f} s", flush=True)
        session.stop()


if __name__ == "__main__":
    main()

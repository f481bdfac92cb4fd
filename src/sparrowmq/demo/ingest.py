"""The pipeline, as a process: `python -m sparrowmq.demo.ingest`.

Structured Streaming reads the topic into Parquet, partitioned by month. Each AvailableNow run
freezes its end when it starts, so runs follow each other until one that began after the last
flight was produced has ended. Whoever kills this process may start it again: the checkpoint says
where to go on, and each batch has one place in the table (`pipeline.parquet`). Then the process
waits for the question of the batch job, answers it in the same session, and ends.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (the name that Spark's users know)

from sparrowmq.calling.clock import monotonic_ms
from sparrowmq.demo import spark_job
from sparrowmq.demo.flights import BODY_DDL
from sparrowmq.demo.logbook import (
    AnswersReady,
    BatchBegun,
    BatchWritten,
    IngestEnded,
    Produced,
    ProducerEvent,
    RunEnded,
    SessionStarted,
)
from sparrowmq.errors import ConfigError
from sparrowmq.pipeline.parquet import write_batch_parquet
from sparrowmq.processes.logbook import EventTail, Failed, Journal, open_journal
from sparrowmq.spark.java import find_java, spark_session

_POLL_INTERVAL_S = 0.2
# Far longer than the demo has patience for: it ends this process if it goes wrong itself.
_PATIENCE_S = 600
_PARTITION_BY = ("month",)


class LoggedSink:
    """Writes micro-batches and a line of the logbook before and after each."""

    def __init__(self, table: Path, journal: Journal) -> None:
        self._table = table
        self._journal = journal
        self.batches = 0

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write one micro-batch; what `foreachBatch` calls."""
        self._journal.write_event(BatchBegun(at_ms=monotonic_ms(), batch_id=batch_id))
        write_batch_parquet(batch, batch_id, str(self._table), _PARTITION_BY)
        self._journal.write_event(BatchWritten(at_ms=monotonic_ms(), batch_id=batch_id))
        self.batches += 1


def select_flights(messages: DataFrame) -> DataFrame:
    """Return all columns of the source and, beside them, those of the flight in the body."""
    flight = F.from_json(F.col("body").cast("string"), BODY_DDL)
    return messages.withColumn("flight_row", flight).select(*messages.columns, "flight_row.*")


def run_available(
    session: SparkSession, options: argparse.Namespace, sink: LoggedSink, *, batch_rows: int
) -> None:
    """Ingest what is there now."""
    messages = (
        session.readStream.format("rocketmq")
        .option("nameServer", options.name_server)
        .option("topic", options.topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", batch_rows)
        .load()
    )
    query = (
        select_flights(messages)
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(options.checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def run(options: argparse.Namespace) -> None:
    """Ingest everything, then answer."""
    journal = open_journal(options.logbooks, options.name)
    try:
        java = find_java()
        session = spark_session("sparrowmq-demo", master="local[2]", conf=_SPARK_CONF)
        session.sparkContext.setLogLevel("ERROR")
        journal.write_event(
            SessionStarted(
                at_ms=monotonic_ms(),
                spark_version=session.version,
                java=f"{java.version} ({java.origin})",
            )
        )
        _ingest(session, options, journal)
        _answer(session, options, journal)
    except Exception as error:
        journal.write_event(Failed(at_ms=monotonic_ms(), reason=str(error).splitlines()[0]))
        raise
    session.stop()


# The JVM lives for a minute and is started twice: the optimising compiler and the concurrent
# collector cost more processor time (27 s against 12 s in a short job) than they ever give back.
# Few shuffle tasks suit few rows on few cores.
_SPARK_CONF = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.log.level": "ERROR",
}


def _ingest(session: SparkSession, options: argparse.Namespace, journal: Journal) -> None:
    producer = EventTail[ProducerEvent](options.logbooks, options.producer, ProducerEvent)
    sink = LoggedSink(options.table, journal)
    count_before, count, batch_rows, is_done = 0, 0, 1, False
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        for event in producer.read():
            if isinstance(event, Produced):
                count, is_done = event.count, event.is_done
                batch_rows = math.ceil(event.total / options.batches)
        if count == count_before and not is_done:
            time.sleep(_POLL_INTERVAL_S)
            continue
        count_before, sink.batches = count, 0
        run_available(session, options, sink, batch_rows=batch_rows)
        journal.write_event(RunEnded(at_ms=monotonic_ms(), batches=sink.batches))
        if is_done:
            journal.write_event(IngestEnded(at_ms=monotonic_ms()))
            return
    raise ConfigError(f"the producer did not end within {_PATIENCE_S} s")


def _answer(session: SparkSession, options: argparse.Namespace, journal: Journal) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not options.question.exists():
        if time.monotonic() >= deadline:
            raise ConfigError(f"no question came within {_PATIENCE_S} s")
        time.sleep(_POLL_INTERVAL_S)
    question = msgspec.json.decode(options.question.read_bytes(), type=spark_job.Question)
    answers = spark_job.answer(session, table=options.table, question=question)
    options.answers.write_bytes(msgspec.json.encode(answers))
    journal.write_event(AnswersReady(at_ms=monotonic_ms()))


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="sparrowmq.demo.ingest", description=__doc__)
    parser.add_argument("--name", required=True, help="names the logbook")
    parser.add_argument("--producer", required=True, help="names the producer's logbook")
    parser.add_argument("--name-server", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--batches", type=int, required=True, help="for the whole input, about")
    parser.add_argument("--table", type=Path, required=True, help="the directory of Parquet files")
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--logbooks", type=Path, required=True)
    parser.add_argument("--question", type=Path, required=True)
    parser.add_argument("--answers", type=Path, required=True)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run(parse_options())

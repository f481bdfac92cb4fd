"""Spark, as a process: `python -m sparrowmq.demo.spark_job`.

The job `ingest` follows the topic and writes it to Parquet until the producer is done and the table
has as many messages as the topic. After a kill, the process can be started again and continues at
the job's checkpoint. Then the process takes a question from its standard
input, answers it in the same session, and ends. One query reads the Parquet table, one the members'
logbooks. The job `duplicates` decides which deliveries are duplicates.
Tests: test_main_job.py.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sparrowmq.calling.clock import monotonic_ms
from sparrowmq.client.faces.blocking_admin import Admin
from sparrowmq.demo.events import (
    INGESTED,
    Answers,
    BatchWritten,
    CarrierAnswer,
    ConsumptionAnswer,
    JobQuestion,
    Produced,
    ProducerEvent,
    SessionStarted,
    SparkEvent,
    SparkStep,
)
from sparrowmq.demo.flights import BODY_DDL
from sparrowmq.errors import ConfigError
from sparrowmq.pipeline import ingest
from sparrowmq.pipeline.duplicates import judging
from sparrowmq.pipeline.duplicates.records import with_key
from sparrowmq.processes.logbook import EventTail, Failed, Logbook, open_logbook
from sparrowmq.spark import find_java, spark_session

_POLL_INTERVAL_S = 0.2
_BATCH_INTERVAL_S = 1.0
# Far longer than the demo's own deadlines; the demo ends this process if a stage fails.
_PATIENCE_S = 600
_DELIVERIES_DDL = "at_ms BIGINT, queue_id INT, queue_offset BIGINT, flight_id STRING"
# Few shuffle tasks suit few rows on few cores.
_SPARK_CONF = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.log.level": "ERROR",
}


def run(options: argparse.Namespace) -> None:
    """Ingest the whole topic, then answer the question."""
    journal = open_logbook(options.logbooks, options.name)
    try:
        java = find_java()
        # The JVM lives for a minute and starts twice. The optimising compiler would cost a third
        # more processor time for all flights (43 s against 33 s until all are in the table).
        session = spark_session(
            "sparrowmq-demo", master="local[2]", short_lived=True, conf=_SPARK_CONF
        )
        session.sparkContext.setLogLevel("ERROR")
        journal.write_event(
            SessionStarted(
                at_ms=monotonic_ms(),
                spark_version=session.version,
                java=f"{java.version} ({java.origin})",
            )
        )
        table = _ingest(session, options, journal)
        _log_step(journal, INGESTED)
        question = msgspec.json.decode(sys.stdin.readline(), type=JobQuestion)
        _log_step(journal, "counts flights and delays by carrier")
        carriers = ask_carriers(session.read.parquet(table))
        _log_step(journal, "counts deliveries, and those that came twice")
        consumption = ask_consumption(session, question, topic=options.topic)
        answers = Answers(at_ms=monotonic_ms(), carriers=carriers, consumption=consumption)
        journal.write_event(answers)
    except Exception as error:
        journal.write_event(Failed(at_ms=monotonic_ms(), reason=str(error).splitlines()[0]))
        raise
    session.stop()


def _ingest(session: SparkSession, options: argparse.Namespace, journal: Logbook) -> str:
    """Run the job until the table has every flight; return the table's directory."""
    producer = EventTail[ProducerEvent](options.logbooks, options.producer, ProducerEvent)
    # A session that was killed has logged its batches before.
    logged = EventTail[SparkEvent](options.logbooks, options.name, SparkEvent).read()
    written = {each.batch_id: each.messages for each in logged if isinstance(each, BatchWritten)}
    _log_step(journal, "waits for flights")
    last, stored = _wait_for_flights(producer), 0

    def log(batch: ingest.Batch) -> None:
        written[batch.batch_id] = batch.messages
        journal.write_event(
            BatchWritten(
                at_ms=monotonic_ms(),
                batch_id=batch.batch_id,
                messages=batch.messages,
                seconds=batch.seconds,
            )
        )

    def has_all() -> bool:
        nonlocal last, stored
        last = next((e for e in reversed(producer.read()) if isinstance(e, Produced)), last)
        if last.is_done and not stored:
            # More than were produced, if a send was repeated.
            with Admin(name_server=options.name_server) as admin:
                queues = admin.topic_status(options.topic).queues
            stored = sum(queue.max_offset - queue.min_offset for queue in queues)
        return last.is_done and sum(written.values()) >= stored

    _log_step(journal, "plans its query, reads and converts")
    settings = ingest.IngestSettings(
        name_server=options.name_server,
        topic=options.topic,
        out=options.out,
        schema=BODY_DDL,
        options={"maxOffsetsPerTrigger": str(math.ceil(last.total / options.batches))},
        follow_interval_s=_BATCH_INTERVAL_S,
    )
    ingest.run(session, settings, on_batch=log, should_stop=has_all)
    return settings.table


def _wait_for_flights(producer: EventTail[ProducerEvent]) -> Produced:
    """Return the producer's last report once it has produced flights."""
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        reports = [each for each in producer.read() if isinstance(each, Produced) and each.count]
        if reports:
            return reports[-1]
        time.sleep(_POLL_INTERVAL_S)
    raise ConfigError(f"the producer did not begin within {_PATIENCE_S} s")


def _log_step(journal: Logbook, name: str) -> None:
    journal.write_event(SparkStep(at_ms=monotonic_ms(), name=name))


def ask_carriers(flights: DataFrame) -> list[CarrierAnswer]:
    """Return the flights and mean delays of each carrier, most flights first."""
    rows = (
        flights.groupBy("carrier")
        .agg(
            F.count("*").alias("flights"),
            F.avg("dep_delay").alias("mean_departure_delay"),
            F.avg("arr_delay").alias("mean_arrival_delay"),
        )
        .orderBy(F.desc("flights"), "carrier")
        .collect()
    )
    return [CarrierAnswer(**row.asDict()) for row in rows]


def ask_consumption(
    session: SparkSession, question: JobQuestion, *, topic: str
) -> list[ConsumptionAnswer]:
    """Return the deliveries and duplicates by queue, member and event."""
    events = session.createDataFrame(question.events, "at_ms bigint, event string").selectExpr(
        f"'{question.group}' AS consumerGroup",
        "timestamp_millis(at_ms) AS eventTimestamp",
        "event",
        "CAST(NULL AS STRING) AS strategy",
    )
    rows = (
        judging.attribute(read_records(session, question, topic=topic), events)
        .groupBy("queueId", "clientId", "eventIndex")
        .agg(F.count("*"), F.count_if(F.col("nth") > 1))
        .orderBy("queueId", "clientId", "eventIndex")
        .collect()
    )
    names = ConsumptionAnswer.__struct_fields__
    return [ConsumptionAnswer(**dict(zip(names, row, strict=True))) for row in rows]


def read_records(session: SparkSession, question: JobQuestion, *, topic: str) -> DataFrame:
    """Read the members' deliveries as consumption records."""
    member_of = F.create_map(
        *(
            F.lit(part)
            for name, path in question.consumed.items()
            for part in (Path(path).name, name)
        )
    )
    file_name = F.element_at(F.split(F.input_file_name(), "/"), -1)
    # A killed member may have torn its last line, which then lacks fields.
    lines = (
        session.read.schema(_DELIVERIES_DDL)
        .csv(list(question.consumed.values()))
        .withColumn("clientId", F.element_at(member_of, file_name))
        .where("flight_id IS NOT NULL")
    )
    # The machine's monotonic clock orders deliveries and events as well as a wall clock.
    return with_key(
        lines.selectExpr(
            f"'{question.group}' AS consumerGroup",
            "clientId",
            "timestamp_millis(at_ms) AS consumedTimestamp",
            f"'{topic}' AS topic",
            "'' AS brokerName",
            "queue_id AS queueId",
            "queue_offset AS queueOffset",
            "CAST(NULL AS STRING) AS msgId",
            "0 AS reconsumeTimes",
        ),
        what="the members' logbooks",
    )


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="sparrowmq.demo.spark_job", description=__doc__)
    parser.add_argument("--name", required=True, help="names the logbook")
    parser.add_argument("--producer", required=True, help="names the producer's logbook")
    parser.add_argument("--name-server", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--batches", type=int, required=True, help="for the whole input, about")
    parser.add_argument("--out", required=True, help="the directory of the job ingest")
    parser.add_argument("--logbooks", type=Path, required=True)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run(parse_options())

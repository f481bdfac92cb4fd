"""Spark, as a process: `python -m sparrowmq.demo.spark_job`.

The job `ingest` follows the topic and writes it to Parquet until the table has as many messages as
the producer sent; a last run takes what came meanwhile. After a kill, the process can be started
again and continues at the job's checkpoint. Then the process waits for a question, answers it in
the same session, and ends. One query per answer reads the Parquet table or the members' logbooks.
The job `duplicates` decides which deliveries are duplicates.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sparrowmq.calling.clock import monotonic_ms
from sparrowmq.demo.events import (
    Answers,
    AnswersReady,
    BatchWritten,
    CarrierAnswer,
    ConsumptionAnswer,
    IngestEnded,
    JobQuestion,
    Produced,
    ProducerEvent,
    SessionStarted,
    SparkEvent,
    SparkStep,
)
from sparrowmq.demo.flights import BODY_DDL
from sparrowmq.errors import ConfigError
from sparrowmq.pipeline import duplicates, ingest
from sparrowmq.pipeline.duplicates import judging
from sparrowmq.pipeline.duplicates.records import with_key
from sparrowmq.processes.logbook import EventTail, Failed, Logbook, open_logbook
from sparrowmq.spark import find_java, spark_session

_POLL_INTERVAL_S = 0.2
_BATCH_INTERVAL_S = 1.0
# Far longer than the demo's own deadlines; the demo ends this process if a stage fails.
_PATIENCE_S = 600
_DELIVERIES_DDL = "at_ms BIGINT, queue_id INT, queue_offset BIGINT, flight_id STRING"
# The JVM lives for a minute and starts twice: the optimising compiler costs more processor time
# than it saves (83 s against 70 s for all flights in one session), as does the concurrent
# collector. Few shuffle tasks suit few rows on few cores.
_SPARK_CONF = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.log.level": "ERROR",
}


def run(options: argparse.Namespace) -> None:
    """Ingest the whole topic, then answer the question."""
    journal = open_logbook(options.logbooks, options.name)
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
        table = _ingest(session, options, journal)
        _answer(session, options, journal, table)
        journal.write_event(AnswersReady(at_ms=monotonic_ms()))
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
    last = _wait_for_flights(producer)

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
        nonlocal last
        last = next((e for e in reversed(producer.read()) if isinstance(e, Produced)), last)
        return last.is_done and sum(written.values()) >= last.count

    _log_step(journal, "reads the topic, writes Parquet")
    settings = ingest.IngestSettings(
        name_server=options.name_server,
        topic=options.topic,
        out=options.out,
        schema=BODY_DDL,
        options={"maxOffsetsPerTrigger": str(math.ceil(last.total / options.batches))},
    )
    ingest.run(
        session,
        replace(settings, follow_interval_s=_BATCH_INTERVAL_S),
        on_batch=log,
        should_stop=has_all,
    )
    # A send that was repeated has put a message into the topic twice: count does not show the end.
    ingest.run(session, settings, on_batch=log)
    journal.write_event(IngestEnded(at_ms=monotonic_ms()))
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


def _answer(
    session: SparkSession, options: argparse.Namespace, journal: Logbook, table: str
) -> None:
    _log_step(journal, "has every flight in Parquet")
    deadline = time.monotonic() + _PATIENCE_S
    while not options.question.exists():
        if time.monotonic() >= deadline:
            raise ConfigError(f"no question came within {_PATIENCE_S} s")
        time.sleep(_POLL_INTERVAL_S)
    question = msgspec.json.decode(options.question.read_bytes(), type=JobQuestion)
    records = read_records(session, question, topic=options.topic)
    deliveries = judging.attribute(records, _read_events(session, question)).cache()
    _log_step(journal, "counts flights and delays by carrier")
    carriers = ask_carriers(session.read.parquet(table))
    _log_step(journal, "counts deliveries by queue and member")
    consumption = ask_consumption(deliveries)
    _log_step(journal, "finds deliveries that came twice")
    duplicated = ask_duplicates(deliveries, len(question.events))
    answers = Answers(carriers=carriers, consumption=consumption, duplicates=duplicated)
    options.answers.write_bytes(msgspec.json.encode(answers))


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


def ask_consumption(deliveries: DataFrame) -> list[ConsumptionAnswer]:
    """Return the number of deliveries by queue and member."""
    rows = deliveries.groupBy("queueId", "clientId").count().orderBy("queueId", "clientId")
    return [
        ConsumptionAnswer(queue_id=queue_id, member=member, deliveries=count)
        for queue_id, member, count in rows.collect()
    ]


def ask_duplicates(deliveries: DataFrame, event_count: int) -> list[int]:
    """Return the duplicates after each event; earlier ones belong to the first event."""
    counts = [0] * event_count
    for event in duplicates.sum_up(deliveries).events:
        counts[max(event.event_index - 1, 0)] += event.duplicates
    return counts


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


def _read_events(session: SparkSession, question: JobQuestion) -> DataFrame:
    events = session.createDataFrame(question.events, "at_ms bigint, event string")
    return events.selectExpr(
        f"'{question.group}' AS consumerGroup",
        "timestamp_millis(at_ms) AS eventTimestamp",
        "event",
        "CAST(NULL AS STRING) AS strategy",
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
    parser.add_argument("--question", type=Path, required=True)
    parser.add_argument("--answers", type=Path, required=True)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run(parse_options())

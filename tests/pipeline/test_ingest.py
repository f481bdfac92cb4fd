"""Flights through the embedded cluster into Parquet, counted by a reader that is not Spark."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

import pyarrow.dataset as ds
from pyspark.errors import StreamingQueryException
from typer.testing import CliRunner

from signals import send_when_handled
from sparrowmq.cli.main import build_app
from sparrowmq.client.faces.blocking import Producer
from sparrowmq.demo.flights import load_flights
from sparrowmq.errors import ConfigError
from sparrowmq.model import Message
from sparrowmq.pipeline import ingest
from sparrowmq.pipeline.ingest import Batch, IngestSettings, job
from sparrowmq.pipeline.ingest.body_parsing import with_fields
from sparrowmq.pipeline.ingest.compaction import compact
from sparrowmq.testing import EmbeddedCluster
from waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

FLIGHTS = 240
BAD = {
    b" ": "empty body",
    b"no flight": "not JSON",
    b"[1]": "not a JSON object",
    b"\xff\xfe{}": "not UTF-8",
    b'{"carrier": "UA"}': "field flight: missing",
    b'{"flight": "many", "carrier": "UA"}': "field flight: expected int, found 'many'",
    b'{"flight": 1, "carrier": "UA", "air_time": 1.5}': (
        "field air_time: expected int, found '1.5'"
    ),
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(flush="async") as found:
        found.create_topic("flights", queues=4)
        bodies = list(load_flights(limit=FLIGHTS).bodies())
        with Producer("GID_flights", name_server=found.name_server) as producer:
            for body in (*bodies[:100], *BAD, *bodies[100:]):
                producer.send(Message("flights", body))
        yield found


def settings_for(cluster: EmbeddedCluster, out: Path, **changes: object) -> IngestSettings:
    ddl = "carrier STRING, flight INT NOT NULL, air_time INT, time_hour TIMESTAMP"
    values: dict[str, object] = {
        "name_server": cluster.name_server,
        "topic": "flights",
        "out": str(out),
        "schema": ddl,
        "date_column": "time_hour",
        "options": {"maxOffsetsPerTrigger": "130"},
    }
    return IngestSettings(**{**values, **changes})  # type: ignore[arg-type]


def read_table(out: Path) -> list[dict[str, object]]:
    table = ds.dataset(out / "table", format="parquet", partitioning="hive").to_table()
    columns = ["brokerName", "queueId", "queueOffset", "carrier", "date"]
    rows: list[dict[str, object]] = table.select(columns).to_pylist()
    return rows


def test_each_message_is_once_in_the_table_or_the_quarantine_after_a_crash(
    spark: SparkSession, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    settings = settings_for(cluster, tmp_path / "out")

    def crash(batch: Batch) -> None:
        if batch.batch_id == 0:
            raise RuntimeError("killed between writing and the commit")

    with pytest.raises(StreamingQueryException, match="killed between"):
        ingest.run(spark, settings, on_batch=crash)
    first = sorted((tmp_path / "out" / "table" / "batchId=0").rglob("*.parquet"))
    result = ingest.run(spark, settings)

    # Batch 0 was whole, so its second attempt left it as it was.
    assert [batch.batch_id for batch in result.batches] == [0, 1]
    assert first == sorted((tmp_path / "out" / "table" / "batchId=0").rglob("*.parquet"))
    rows = read_table(tmp_path / "out")
    places = {(row["brokerName"], row["queueId"], row["queueOffset"]) for row in rows}
    assert (len(rows), len(places)) == (FLIGHTS, FLIGHTS)
    flights = load_flights(limit=FLIGHTS).table
    assert Counter(flights["carrier"].to_pylist()) == Counter(row["carrier"] for row in rows)
    assert {str(row["date"]) for row in rows} == {"2013-01-01"}
    counts = result.counts
    assert (FLIGHTS + len(BAD), FLIGHTS, len(BAD), 0) == (
        *(counts.offsets, counts.rows, counts.put_aside, counts.gap_count),
    )
    assert counts.by_date == {"2013-01-01": FLIGHTS}
    examples = {reason: body.decode(errors="backslashreplace") for body, reason in BAD.items()}
    assert {reason: (1, example) for reason, example in examples.items()} == {
        each.reason: (each.messages, each.example) for each in counts.reasons
    }
    quarantined = ds.dataset(
        tmp_path / "out" / "quarantine", format="parquet", partitioning="hive"
    ).to_table()
    assert (
        dict(zip(quarantined["body"].to_pylist(), quarantined["reason"].to_pylist(), strict=True))
        == BAD
    )

    before = sorted(map(str, rows))
    done = compact(spark, settings.table, checkpoint=settings.checkpoint, partition_by="date")

    assert before == sorted(map(str, read_table(tmp_path / "out")))
    assert (done.batches_after, done.files_after) == (1, 1)
    assert done.files_before >= 2
    again = ingest.run(spark, settings)
    assert (again.batches, again.counts) == ([], counts)
    text = ingest.render(result)
    assert "field flight: expected int, found &#x27;many&#x27;" in text
    assert "{&quot;flight&quot;: &quot;many&quot;, &quot;carrier&quot;: &quot;UA&quot;}" in text
    assert "Every message that was read is in the table or put aside, once." in text
    assert "247 = 240 + 7" in text
    assert "<svg" in text


def test_a_message_that_never_came_shows(
    spark: SparkSession, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    settings = settings_for(
        cluster, tmp_path / "out", options={}, schema=None, date_column="storeTimestamp"
    )

    def lose(frame: DataFrame) -> DataFrame:
        return frame.where("not (queueId = 1 and queueOffset in (3, 4))")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(job, "with_fields", lambda frame, schema: with_fields(lose(frame), schema))
        result = ingest.run(spark, settings)

    counts = result.counts
    assert (FLIGHTS + len(BAD), FLIGHTS + len(BAD) - 2) == (counts.offsets, counts.rows)
    (gap,) = counts.gaps
    assert (1, 1, gap.end - 2) == (counts.gap_count, gap.queue_id, gap.found)
    text = ingest.render(result)
    assert "Every message" not in text
    assert "247 and 245 + 0; 1 queue not whole" in text
    assert "flights broker-a:1" in text


def test_where_a_filter_leaves_messages_out_nothing_is_said_of_missing_ones(
    spark: SparkSession, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    settings = settings_for(
        cluster,
        tmp_path / "out",
        options={"subExpression": "UA"},
        schema=None,
        date_column="storeTimestamp",
    )

    result = ingest.run(spark, settings)

    assert (result.counts.rows, result.counts.offsets, result.counts.gap_count) == (0, 0, 0)
    assert "Nothing can be said about missing messages" in ingest.render(result)


def test_what_does_not_fit_can_become_dead_letters_with_the_reason(
    spark: SparkSession, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    settings = settings_for(cluster, tmp_path / "out", dlq_group="GID_ingest", options={})

    result = ingest.run(spark, settings)

    letters = (
        spark.read.format("rocketmq")
        .options(nameServer=cluster.name_server, topic="%DLQ%GID_ingest", profile="full")
        .load()
        .collect()
    )
    (batch,) = result.batches
    assert (FLIGHTS + len(BAD), len(BAD)) == (batch.messages, batch.put_aside)
    assert {bytes(row["body"]): row["properties"]["reason"] for row in letters} == BAD
    assert {row["properties"]["DLQ_ORIGIN_TOPIC"] for row in letters} == {"flights"}
    assert not (tmp_path / "out" / "quarantine").exists()
    assert (FLIGHTS, len(BAD)) == (result.counts.rows, result.counts.put_aside)
    assert "sent to topic %DLQ%GID_ingest" in ingest.render(result)


def test_following_goes_on_until_a_signal_and_again_where_it_stopped(
    spark: SparkSession, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    cluster.create_topic("followed", queues=2)
    sent: list[int] = []

    def send(count: int) -> None:
        with Producer("GID_followed", name_server=cluster.name_server) as producer:
            for number in range(len(sent), len(sent) + count):
                producer.send(Message("followed", b"%d" % number))
                sent.append(number)

    def ingested() -> list[int]:
        if not list(out.glob("table/batchId=*")):
            return []
        table = ds.dataset(out / "table", format="parquet", partitioning="hive").to_table()
        return sorted(map(int, table["body"].to_pylist()))

    def watch(signal_number: int) -> None:
        try:
            for _ in range(2):
                send(20)
                wait_until("ingested", lambda: len(ingested()) >= len(sent), timeout_s=250)
        finally:
            send_when_handled(signal_number)

    for signal_number in (signal.SIGTERM, signal.SIGINT):
        watcher = threading.Thread(target=watch, args=(signal_number,))
        arguments = ["-n", cluster.name_server, "-t", "followed", "--follow", "0.2"]
        watcher.start()
        result = CliRunner().invoke(
            build_app(), ["pipeline", "ingest", *arguments, "--out", str(out)]
        )
        watcher.join()

        assert (result.exit_code, ingested()) == (0, sent), result.stderr
        assert "batch " in result.stderr
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert len(sent) == 80


def test_a_compaction_that_was_killed_is_finished_by_the_next_run(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    for number in range(3):
        spark.range(number * 10, number * 10 + 10).coalesce(1).write.parquet(
            f"{table}/batchId={number}"
        )
    spark.range(0, 20).coalesce(1).write.parquet(f"{table}/_writing/compacted")
    (table / "_compaction.json").write_text("[0, 1]")
    (table / "_compacted").mkdir()
    # Killed after the first of the two old directories was moved away.
    (table / "batchId=0").rename(table / "_compacted" / "batchId=0")

    done = compact(spark, str(table), checkpoint=str(tmp_path / "checkpoint"))

    assert (done.batches_before, done.batches_after) == (2, 2)
    assert sorted(p.name for p in table.iterdir() if p.name[0] == "b") == ["batchId=1", "batchId=2"]
    ids = ds.dataset(table, format="parquet", partitioning="hive").to_table()["id"].to_pylist()
    assert list(range(30)) == sorted(ids)


def test_wrong_settings_are_refused_before_anything_is_written(
    spark: SparkSession, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="field 'keys' would clash"):
        ingest.run(spark, settings_for(cluster, tmp_path, schema="keys STRING"))
    with pytest.raises(ConfigError, match="no column 'hour_time' to take the date from"):
        ingest.run(spark, settings_for(cluster, tmp_path, date_column="hour_time"))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "ingest.json").write_text('{"topic": "other"}')
    with pytest.raises(ConfigError, match="was begun with topic 'other', and this run has 'flig"):
        ingest.run(spark, settings_for(cluster, tmp_path))

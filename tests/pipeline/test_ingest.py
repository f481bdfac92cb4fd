"""Flights through the embedded cluster into Parquet, counted by a reader that is not Spark."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

import msgspec
import pyarrow.dataset as ds
from pyspark.errors import StreamingQueryException
from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructField, StructType
from typer.testing import CliRunner

from certificates import Certificates
from signals import send_when_handled
from sparrowmq.calling.tls import client_context
from sparrowmq.cli.main import build_app
from sparrowmq.cli.pipeline import _spark_reason
from sparrowmq.client.assembly import make_publisher
from sparrowmq.client.faces.blocking import Producer
from sparrowmq.client.faces.blocking_admin import Admin
from sparrowmq.client.faces.blocking_poll import PollConsumer
from sparrowmq.client.faces.blocking_simple import SimpleConsumer
from sparrowmq.client.operations.send import send_encoded_batch
from sparrowmq.demo.flights import load_flights
from sparrowmq.errors import ConfigError
from sparrowmq.model import Message, MessageExt, MessageQueue
from sparrowmq.model.message import BODY_BYTES_MAX
from sparrowmq.pipeline import ingest
from sparrowmq.pipeline.files import Files
from sparrowmq.pipeline.ingest import Batch, IngestSettings, job
from sparrowmq.pipeline.ingest.body_parsing import parse_ddl, quoted, table_rows
from sparrowmq.pipeline.ingest.compaction import compact
from sparrowmq.pipeline.ingest.counts import (
    GAPS_MAX,
    Counts,
    Gap,
    Ledger,
    OffsetSpan,
    count_batch,
)
from sparrowmq.pipeline.parquet import write_batch_parquet
from sparrowmq.pipeline.running_query import run_query
from sparrowmq.protocol.record import BatchEntry, encode_batch
from sparrowmq.spark.checkpoint_offsets import encode_offsets
from sparrowmq.spark.lag_listener import LagListener
from sparrowmq.spark.local_session import clone_session
from sparrowmq.spark.options import parse_options
from sparrowmq.spark.topic_queues import connect
from sparrowmq.testing import EmbeddedCluster
from waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

FLIGHTS = 240
AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
BAD = {
    b" ": "empty body",
    b"no flight": "not JSON",
    b"[1]": "not a JSON object",
    b"\xff\xfe{}": "not UTF-8",
    b'{"carrier": "UA"}': "field flight: missing",
    b'{"flight": "many", "carrier": "UA"}': "field flight: expected a whole number, found a text",
    b'{"flight": 1, "carrier": "UA", "air_time": 1.5}': (
        "field air_time: expected a whole number, found a number"
    ),
    # What Spark's from_json takes, whole or in part.
    b'{"flight": 3}{"flight": 4}': "more than one JSON value",
    b'{"flight": 3, "carrier": "\xfc"}': "not UTF-8",
    b"{'flight': 3}": "not JSON",
    b'{"flight": 3, "carrier": 12}': "field carrier: expected a text, found a whole number",
    b'{"flight": 3, "time_hour": 1700000000000}': (
        "field time_hour: expected a text, found a whole number"
    ),
    b'{"flight": 3, "flight": 4}': "field flight: more than once",
    b'{"flight": 3, "time_hour": "12:30"}': (
        "field time_hour: expected a time by ISO 8601, with its date"
    ),
    b'{"flight": 3, "time_hour": "2013-02-30T00:00:00Z"}': (
        "field time_hour: not a value of timestamp"
    ),
}
KINDS = {
    "a.b": "STRING",
    "`": "TINYINT",
    "c`d e": "SMALLINT",
    "'": "INT",
    "$[0]": "BIGINT",
    "麻雀": "BOOLEAN",
    "f": "FLOAT",
    "g": "DOUBLE",
    "h": "DECIMAL(9,2)",
    "i": "BINARY",
    "j": "DATE",
    "k": "TIMESTAMP",
    "l": "TIMESTAMP_NTZ",
    "m": "MAP<STRING, STRUCT<n: DATE>>",
    "o": "ARRAY<STRUCT<p: TIMESTAMP, q: ARRAY<DECIMAL(38,0)>>>",
    "r": "VARIANT",
}
ODD_BODIES = [
    b"{}",
    # Spark tells a VARIANT of null from a null.
    json.dumps(dict.fromkeys(name for name in KINDS if name != "r")).encode(),
    json.dumps(
        {
            "a.b": "\u0000 \U0001f426",
            "`": -128,
            "c`d e": 32767,
            "'": 0,
            "$[0]": -(2**63),
            "麻雀": True,
            "f": 0.1,
            "g": 1e-300,
            "h": "12.5",
            "i": "AAEC/w==",
            "j": "0000-02-29",
            "k": "2026-03-01T12:30:00.123456+05:30",
            "l": "9999-12-31 23:59",
            "m": {"": {"n": "1582-10-10"}, "x": None, "y": {}},
            "o": [None, {}, {"q": [1, None]}],
            "r": [1, 2.50, {"s": None, "t": "u"}, 10**30],
        }
    ).encode(),
    b'{"h": 1e6, "k": "2026-03-01", "o": [{"p": "2026-03-01 12:30:00Z"}], "r": "text", "v": {}}',
]


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


@pytest.mark.long
def test_each_message_is_once_in_the_table_or_the_quarantine_after_a_crash(
    spark: SparkSession, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    settings = settings_for(cluster, tmp_path / "out")

    def crash(batch: Batch) -> None:
        if batch.batch_id == 1:
            raise RuntimeError("killed between writing and the commit")

    with pytest.raises(StreamingQueryException, match="killed between"):
        ingest.run(spark, settings, on_batch=crash)
    first = sorted((tmp_path / "out" / "table" / "batchId=1").rglob("*.parquet"))
    result = ingest.run(spark, settings)

    # Batch 1 was whole, so its second attempt left it as it was.
    assert [batch.batch_id for batch in result.batches] == [1]
    assert first == sorted((tmp_path / "out" / "table" / "batchId=1").rglob("*.parquet"))
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
    assert Counter(BAD.values()) == {each.reason: each.messages for each in counts.reasons}
    examples = {body.decode(errors="backslashreplace"): reason for body, reason in BAD.items()}
    assert [examples[each.example] for each in counts.reasons] == [r.reason for r in counts.reasons]
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
    Path(settings.checkpoint).rename(tmp_path / "moved")
    with pytest.raises(ConfigError, match="checkpoint is gone, so this run would write all mess"):
        ingest.run(spark, settings)
    text = ingest.render(result)
    assert "field flight: expected a whole number, found a text" in text
    assert "{&quot;flight&quot;: &quot;many&quot;, &quot;carrier&quot;: &quot;UA&quot;}" in text
    assert "Every message that was read is in the table or put aside, once." in text
    assert f"{FLIGHTS + len(BAD)} = {FLIGHTS} + {len(BAD)}" in text
    assert "<svg" in text


def test_a_message_that_never_came_shows(
    spark: SparkSession, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    settings = settings_for(
        cluster, tmp_path / "out", options={}, schema=None, date_column="storeTimestamp"
    )

    def lose(frame: DataFrame) -> DataFrame:
        return frame.where("not (queueId = 1 and queueOffset in (3, 4))")

    def write(frame: DataFrame, *arguments: Any) -> bool:
        return write_batch_parquet(lose(frame), *arguments)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(job, "write_batch_parquet", write)
        result = ingest.run(spark, settings)

    counts = result.counts
    assert (FLIGHTS + len(BAD), FLIGHTS + len(BAD) - 2) == (counts.offsets, counts.rows)
    (gap,) = counts.gaps
    assert (1, 1, gap.end - 2) == (counts.gap_count, gap.queue_id, gap.found)
    text = ingest.render(result)
    assert "Every message" not in text
    count = FLIGHTS + len(BAD)
    assert f"{count} and {count - 2} + 0; 1 queue not whole" in text
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


@pytest.mark.parametrize("starts_at_group", [False, True])
def test_messages_that_a_group_has_in_flight_are_in_the_table_once_and_stay_in_flight(
    spark: SparkSession, cluster: EmbeddedCluster, tmp_path: Path, starts_at_group: bool
) -> None:
    topic, group = f"popped_{starts_at_group}", f"GID_popped_{starts_at_group}"
    cluster.create_topic(topic, queues=2)
    bodies = list(load_flights(limit=12).bodies())
    with (
        Producer("GID_flights", name_server=cluster.name_server) as producer,
        SimpleConsumer(group, topic, name_server=cluster.name_server) as consumer,
        Admin(name_server=cluster.name_server) as admin,
    ):
        for body in bodies:
            producer.send(Message(topic, body))
        received: list[MessageExt] = []
        while len(received) < 8:
            received += consumer.receive(8 - len(received), invisible=timedelta(hours=1))
        # Each second one is done: behind one in flight, and perhaps before the first in flight.
        done = received[::2]
        consumer.ack(*done)
        before = {each.queue: each for each in admin.group_lag(group, topic)}
        options = {"startingOffsets": "group", "group": group} if starts_at_group else {}

        result = ingest.run(
            spark, settings_for(cluster, tmp_path / "out", topic=topic, options=options)
        )

        after = {each.queue: each for each in admin.group_lag(group, topic)}
        consumer.ack(*received[1::2])
        left = sum(each.lag for each in admin.group_lag(group, topic))
    begins = {queue.queue_id: each.committed_offset or 0 for queue, each in before.items()}
    found = Counter((row["queueId"], row["queueOffset"]) for row in read_table(tmp_path / "out"))
    assert found == Counter(
        (queue.queue_id, offset)
        for queue, each in before.items()
        for offset in range(begins[queue.queue_id] if starts_at_group else 0, each.max_offset)
    )
    assert {(each.queue_id, each.queue_offset) for each in received[1::2]} <= found.keys()
    assert (result.counts.rows, result.counts.put_aside) == (len(found), 0)
    assert after == before
    assert left == len(bodies) - len(received)


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


def test_messages_that_cannot_be_sent_stay_in_the_quarantine(
    spark: SparkSession, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    cluster.create_topic("odd", queues=1)
    large = b" " * (BODY_BYTES_MAX + 1)
    with Producer("GID_odd", name_server=cluster.name_server, body_bytes_max=2**23) as producer:
        producer.send(Message("odd", b"no"))
        producer.send(Message("odd", large))
        producer.send(Message("odd", b"full", properties={"p": "x" * 32_600}))
    # Clients of the 5.x kind send empty bodies, and Java's any tag.
    place = parse_options({"nameServer": cluster.name_server, "topic": "odd"}, scope="batch")
    publisher = make_publisher("GID_odd", name_server=cluster.name_server)
    entries = [BatchEntry(0, b"", ""), BatchEntry(0, b"tagged", "TAGS\x01a || b\x02")]
    connect(place).run(send_encoded_batch(publisher, "odd", encode_batch(entries)))
    settings = settings_for(
        cluster,
        tmp_path,
        topic="odd",
        schema="n INT",
        dlq_group="GID_odd",
        options={},
        date_column="storeTimestamp",
    )

    result = ingest.run(spark, settings)

    kept = ds.dataset(tmp_path / "quarantine", format="parquet", partitioning="hive").to_table()
    assert sorted(kept["body"].to_pylist()) == [b"", large, b"full", b"tagged"]
    assert set(kept["reason"].to_pylist()) == {"empty body", "not JSON"}
    assert (result.counts.put_aside, result.counts.gap_count) == (5, 0)
    letters = spark.read.format("rocketmq").options(
        nameServer=cluster.name_server, topic="%DLQ%GID_odd"
    )
    assert [bytes(row["body"]) for row in letters.load().collect()] == [b"no"]


def test_dead_letters_go_into_the_namespace_by_tls(
    spark: SparkSession, certificates: Certificates, tmp_path: Path
) -> None:
    options = (
        *("--tls-cert", str(certificates.server.path)),
        *("--tls-key", str(certificates.server.key)),
    )
    tls = client_context(ca_file=certificates.ca.path)
    with EmbeddedCluster(options=options, tls=tls) as cluster:
        place: dict[str, Any] = {"name_server": cluster.name_server, "namespace": "ns", "tls": tls}
        with Admin(**place) as admin, Producer("GID_p", **place) as producer:
            admin.create_topic("numbers", queues=1)
            for number in (b"1", b"no", b'{"n": 3}'):
                producer.send(Message("numbers", number))
        shared = {"namespace": "ns", "useTLS": "true", "tlsCaFile": str(certificates.ca.path)}
        settings = IngestSettings(
            name_server=cluster.name_server,
            topic="numbers",
            out=str(tmp_path / "out"),
            schema="n INT NOT NULL",
            options=shared,
            dlq_group="GID_q",
        )

        result = ingest.run(spark, settings)

        with Admin(name_server=cluster.name_server, tls=tls) as admin:
            route = admin.route("%DLQ%ns%GID_q")
        letters = (
            spark.read.format("rocketmq")
            .options(**shared, nameServer=cluster.name_server, topic="%DLQ%GID_q")
            .load()
        )
        assert [queue.queue_id for queue in route.publish_queues] == [0]
        found = {bytes(row["body"]): row["properties"]["reason"] for row in letters.collect()}
    assert found == {b"1": "not a JSON object", b"no": "not JSON"}
    assert (result.counts.rows, result.counts.put_aside) == (1, 2)


def test_dates_are_of_utc_in_any_zone_of_the_session(
    spark: SparkSession, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    cluster.create_topic("times", queues=1)
    with Producer("GID_times", name_server=cluster.name_server) as producer:
        # With a zone, and without.
        producer.send(Message("times", b'{"at": "2026-03-01T23:30:00Z"}'))
        producer.send(Message("times", b'{"at": "2026-03-01 23:30:00"}'))
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "Asia/Shanghai")
    settings = settings_for(
        cluster, tmp_path, topic="times", schema="at TIMESTAMP", date_column="at", options={}
    )

    result = ingest.run(session, settings)

    table = ds.dataset(tmp_path / "table", format="parquet", partitioning="hive").to_table()
    assert table["date"].to_pylist() == ["2026-03-01"] * 2
    assert {str(at) for at in table["at"].to_pylist()} == {"2026-03-01 23:30:00"}
    assert result.counts.by_date == {"2026-03-01": 2}
    assert session.conf.get("spark.sql.session.timeZone") == "Asia/Shanghai"


def test_dates_that_python_does_not_have_are_counted(
    spark: SparkSession, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    cluster.create_topic("far", queues=1)
    with Producer("GID_far", name_server=cluster.name_server) as producer:
        producer.send(Message("far", b'{"at": "0000-01-01T00:00:00Z"}'))
        producer.send(Message("far", b'{"at": "9999-12-31T23:59:59-05:00"}'))
        producer.send(Message("far", b"{}"))
    settings = settings_for(
        cluster, tmp_path, topic="far", schema="at TIMESTAMP", date_column="at", options={}
    )

    result = ingest.run(spark, replace(settings, compacts=True))

    assert result.counts.by_date == {"+10000-01-01": 1, "0000-01-01": 1, "unknown": 1}
    assert (result.counts.rows, result.counts.gap_count) == (3, 0)
    assert "+10000-01-01" in ingest.render(result)


def test_hotspot_compiles_the_table_of_sixty_fields(
    spark: SparkSession,
) -> None:
    kinds = ("STRING", "INT", "DOUBLE", "TIMESTAMP", "BOOLEAN", "DATE")
    schema = parse_ddl(", ".join(f"f{n} {kinds[n % 6]} NOT NULL" for n in range(60)))
    columns = StructType([StructField("bodyFields", schema.columns)]).add("bodyError", "string")
    compiling = clone_session(spark, {"spark.sql.codegen.wholeStage": "true"})
    messages = compiling.createDataFrame([], columns)

    rows: Any = table_rows(messages, schema, Observation(), ())

    execution = rows._jdf.queryExecution()
    stages = execution.debug().codegenToSeq()
    sizes = [stages.apply(n)._3().maxMethodCodeSize() for n in range(stages.size())]
    # Beyond 8,000 bytes HotSpot interprets a method for ever.
    assert 0 < max(sizes) < 8_000


def test_the_fields_of_a_body_are_those_of_from_json_where_it_fits(
    spark: SparkSession, cluster: EmbeddedCluster
) -> None:
    cluster.create_topic("kinds", queues=1)
    ddl = ", ".join(f"{quoted(name)} {kind}" for name, kind in KINDS.items())
    with Producer("GID_kinds", name_server=cluster.name_server) as producer:
        for body in ODD_BODIES:
            producer.send(Message("kinds", body))
    given = {"nameServer": cluster.name_server, "topic": "kinds"}

    found = spark.read.format("rocketmq").options(**given, bodySchema=parse_ddl(ddl).struct.json())
    rows = found.load().withColumn("wanted", F.from_json(F.col("body").cast("string"), ddl))

    texts = rows.selectExpr(
        "bodyError", "to_json(bodyFields) AS found", "to_json(wanted) AS wanted"
    )
    for row in texts.collect():
        assert (row.bodyError, row.found) == (None, row.wanted)


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
        # A batch that is being written has files that come and go.
        files = list(map(str, out.glob("table/batchId=*/**/*.parquet")))
        if not files:
            return []
        table = ds.dataset(files, format="parquet").to_table(columns=["body"])
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
        assert "messages of 2 queues are not read; the most, " in result.stderr
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert len(sent) == 80


@pytest.mark.long
def test_on_a_disk_that_fills_up_a_run_says_so_and_the_next_goes_on(
    spark: SparkSession, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()

    def resize(kib: int, *change: str) -> bool:
        options = ",".join([*change, f"size={kib}k"])
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)]
        return not subprocess.run(command, capture_output=True, check=False).returncode

    if not resize(16):
        pytest.skip("this user may not mount a small disk")
    try:
        # The first is full as the first batch is planned, the second as it is written.
        for kib in (16, 64):
            assert resize(kib, "remount")
            with pytest.raises(StreamingQueryException) as caught:
                ingest.run(spark, settings_for(cluster, disk / "out"))
            assert _spark_reason(caught.value) == "No space left on device"
        assert resize(4_096, "remount")
        counts = ingest.run(spark, settings_for(cluster, disk / "out")).counts
        rows = read_table(disk / "out")
    finally:
        # Spark may have files open.
        subprocess.run(["umount", "--lazy", disk], check=True)

    assert (counts.rows, counts.put_aside, counts.gap_count) == (FLIGHTS, len(BAD), 0)
    assert len({(row["queueId"], row["queueOffset"]) for row in rows}) == len(rows) == FLIGHTS


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


def test_a_query_that_cannot_ask_whether_to_stop_is_stopped_and_leaves_no_listener(
    spark: SparkSession, tmp_path: Path
) -> None:
    frame, listener = spark.readStream.format("rate").load(), LagListener()

    def fail() -> bool:
        raise RuntimeError("no answer")

    def left() -> tuple[int, int]:
        streams: Any = spark.streams
        return len(streams.active), len(streams._jsqm.listListeners())

    before = left()
    with pytest.raises(RuntimeError, match="no answer"):
        run_query(
            frame,
            lambda batch, batch_id: None,
            checkpoint=str(tmp_path),
            interval_s=3_600.0,
            should_stop=fail,
            listener=listener,
        )

    assert left() == before


def test_offset_that_came_in_the_place_of_another_is_a_gap(spark: SparkSession) -> None:
    far = 2**62
    # Queue -> its offsets in the table, and put aside.
    came: dict[int, tuple[list[int], list[int]]] = {
        0: ([5, 6, 7, 8], []),
        1: ([5, 6, 6, 8], []),
        2: ([5, 6, 7, 9], []),
        3: ([5, 8], [6, 7]),
        4: ([5, 8], [7, 7]),
        5: ([far, far + 1], []),
    }
    spans = {MessageQueue("T", "b", queue_id): OffsetSpan(5, 9) for queue_id in range(5)}
    spans[MessageQueue("T", "b", 5)] = OffsetSpan(far, far + 2)

    def frame(which: int) -> DataFrame:
        rows = [
            f"({queue_id}, {offset}L)"
            for queue_id, offsets in came.items()
            for offset in offsets[which]
        ]
        return spark.sql(
            "select 'T' as topic, 'b' as brokerName, queueId, queueOffset, string(null) as date, "
            "binary('x') as body, 'no reason' as reason "
            f"from values {', '.join(rows)} as came(queueId, queueOffset)"
        )

    counts = count_batch(frame(0), frame(1), 3, Counts(), spans)

    assert [(gap.queue_id, gap.found) for gap in counts.gaps] == [(1, 4), (2, 4), (4, 4)]
    assert (counts.gap_count, counts.offsets) == (3, counts.messages)


@pytest.mark.parametrize("middle", [10, 11, 1_000_000, 1_048_581, 3_000_009])
def test_checksum_of_a_span_is_that_of_its_parts(middle: int) -> None:
    parts = OffsetSpan(10, middle), OffsetSpan(middle, 3_000_010)

    assert sum(each.checksum for each in parts) == OffsetSpan(10, 3_000_010).checksum


def test_latest_counts_are_those_of_the_highest_number(spark: SparkSession, tmp_path: Path) -> None:
    out = str(tmp_path)
    ledger = Ledger(Files(spark, out), out, checkpoint=f"{out}/checkpoint", start={})
    assert (ledger.latest(), ledger.read(-1)) == (-1, Counts())
    for batch_id in range(11):
        ledger.write(batch_id, Counts(rows=batch_id))

    found = [ledger.read(batch_id) for batch_id in (ledger.latest(), 9)]
    # A replay of the last batch begins at those of the batch before.
    assert [None if each is None else each.rows for each in found] == [10, 9]


def batch_of(spark: SparkSession, rows: Sequence[tuple[int, bytes, int | None]]) -> DataFrame:
    """What a read of topic T gives with a schema of n: (offset, body, field), None for a misfit."""
    values = [
        ("T", "b", 0, offset, "id", None, None, AT, AT, body, {"reason": "own", "kept": "yes"})
        + ((None, "not JSON") if field is None else ((field,), None))
        for offset, body, field in rows
    ]
    return clone_session(spark, job._CONF).createDataFrame(
        values,
        "topic string, brokerName string, queueId int, queueOffset bigint, msgId string, "
        "keys string, tags string, bornTimestamp timestamp, storeTimestamp timestamp, body binary, "
        "properties map<string,string>, bodyFields struct<n: int>, bodyError string",
    )


def sink_for(spark: SparkSession, out: Path, **changes: Any) -> job._Sink:
    """The sink of an ingest whose batches 0 and 1 read the offsets 0 to 2 and 3 to 5."""
    checkpoint = out / "checkpoint"
    for name in ("offsets", "commits"):
        (checkpoint / name).mkdir(parents=True, exist_ok=True)
    starts = [encode_offsets({MessageQueue("T", "b", 0): offset}) for offset in (0, 3, 6)]
    for batch_id, offsets in enumerate(starts[1:]):
        (checkpoint / "offsets" / f"{batch_id}").write_text(f"v1\n{{}}\n{json.dumps(offsets)}")
    values: dict[str, Any] = {"name_server": "a:1", "topic": "T", "out": str(out), **changes}
    settings = IngestSettings(schema="n INT", **values)
    ledger = Ledger(Files(spark, str(out)), str(out), checkpoint=str(checkpoint), start=starts[0])
    return job._Sink(settings, parse_ddl("n INT"), ledger, None, is_filtered=False)


BATCHES = ([(0, b"1", 1), (1, b"no", None), (2, b"3", 3)], [(3, b"[]", None), (5, b"6", 6)])


def test_a_run_keeps_its_newest_batches_and_the_number_of_all(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "BATCHES_MAX", 1)
    sink = sink_for(spark, tmp_path)
    for batch_id, rows in enumerate(BATCHES):
        sink(batch_of(spark, rows), batch_id)

    assert [batch.batch_id for batch in sink.batches] == [1]
    assert sink.batch_count == 2


def test_counts_that_are_lost_are_counted_again(spark: SparkSession, tmp_path: Path) -> None:
    sink = sink_for(spark, tmp_path)
    counts = tmp_path / "counts"
    for batch_id, rows in enumerate(BATCHES):
        sink(batch_of(spark, rows), batch_id)
    wanted = sink.read_counts(spark, 1)
    # What a power cut leaves of files whose content, or name, was not yet on the disk.
    (counts / "0.json").unlink()
    (counts / "1.json").write_text("")

    sink(batch_of(spark, BATCHES[1]), 1)
    replayed = sink.read_counts(spark, 1)
    shutil.rmtree(counts)
    (tmp_path / "checkpoint" / "commits" / "1").touch()
    found = sink.read_counts(spark, sink.ledger.latest())

    assert (wanted.offsets, wanted.rows, wanted.put_aside) == (6, 3, 2)
    # Offset 4 never came.
    assert list(wanted.gaps) == [Gap(1, "T", "b", 0, 3, 6, 2)]
    assert wanted.by_date == {"2026-03-01": 3}
    assert [each.messages for each in wanted.reasons] == [2]
    assert replayed == wanted
    assert list(found.gaps) == [Gap(1, "T", "b", 0, 0, 6, 5)]
    assert [each[:2] for each in map(msgspec.structs.astuple, found.reasons)] == [("not JSON", 2)]
    assert replace(found, gaps=(), reasons=()) == replace(wanted, gaps=(), reasons=())


def test_reasons_add_up_over_batches_and_the_newest_gaps_are_kept(spark: SparkSession) -> None:
    def put_aside(*rows: tuple[int, str, str]) -> DataFrame:
        values = ", ".join(f"({offset}L, '{body}', '{reason}')" for offset, body, reason in rows)
        return spark.sql(
            "select 'T' as topic, 'b' as brokerName, 0 as queueId, queueOffset, "
            f"binary(body) as body, reason from values {values} as t(queueOffset, body, reason)"
        )

    queue, old = MessageQueue("T", "b", 0), Gap(0, "T", "b", 0, 0, 1, 0)
    before = Counts(rows=5, by_date={"2026-03-01": 5}, gap_count=250, gaps=[old] * GAPS_MAX)
    first = put_aside((0, "x", "not JSON"), (1, "", "empty body"), (2, "z", "not JSON"))
    second = put_aside((3, "y", "not JSON"), (4, "1", "not UTF-8"))
    counts = count_batch(None, first, 1, before, {queue: OffsetSpan(0, 3)})

    counts = count_batch(None, second, 2, counts, {queue: OffsetSpan(3, 6)})

    assert [(each.reason, each.messages) for each in counts.reasons] == [
        ("not JSON", 3),
        ("empty body", 1),
        ("not UTF-8", 1),
    ]
    assert counts.reasons[0].example in ("x", "z")
    assert (counts.rows, counts.put_aside, counts.offsets) == (5, 5, 6)
    assert (counts.by_date, counts.gap_count) == ({"2026-03-01": 5}, 251)
    assert counts.gaps == [*[old] * (GAPS_MAX - 1), Gap(2, "T", "b", 0, 3, 6, 2)]


def test_a_dead_letter_has_the_jobs_reason_and_nothing_of_it_stays_in_memory(
    spark: SparkSession, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    def cached() -> int:
        context: Any = spark.sparkContext
        return int(context._jsc.getPersistentRDDs().size())

    before = cached()
    sink = sink_for(spark, tmp_path, name_server=cluster.name_server, dlq_group="GID_again")
    sink(batch_of(spark, BATCHES[0]), 0)

    with PollConsumer(
        "GID_reads", "%DLQ%GID_again", name_server=cluster.name_server, start="first"
    ) as consumer:
        letter = next(iter(consumer))
    assert (letter.body, letter.properties["reason"]) == (b"no", "not JSON")
    assert letter.properties["kept"] == "yes"
    assert (sink.read_counts(spark, 0).put_aside, cached()) == (1, before)
    shutil.rmtree(tmp_path / "counts")
    counted = sink.read_counts(spark, 0)
    assert (counted.put_aside, counted.has_assumed_letters) == (1, True)
    sink(batch_of(spark, BATCHES[1]), 1)
    assert sink.read_counts(spark, 1).has_assumed_letters


def test_a_directory_of_another_ingest_is_refused(
    spark: SparkSession, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    (tmp_path / "ingest.json").write_text('{"topic": "other"}')
    with pytest.raises(ConfigError, match="was begun with topic 'other', and this run has 'flig"):
        ingest.run(spark, settings_for(cluster, tmp_path))

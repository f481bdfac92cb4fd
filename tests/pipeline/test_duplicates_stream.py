"""The streaming query writes what the batch functions say, once, also after a kill."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

import pyarrow.dataset as ds
from pyspark.errors import StreamingQueryException
from typer.testing import CliRunner

from local_files import LocalFiles
from signals import send_when_handled
from sparrowmq.cli.main import build_app
from sparrowmq.errors import ConfigError, UsageError
from sparrowmq.pipeline.duplicates import DuplicatesSettings, judging, records, run
from sparrowmq.pipeline.duplicates.stream import Progress, _Judge, read_tables, watch_duplicates
from sparrowmq.spark.lag_listener import LagListener
from waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

BEGIN = datetime(2026, 1, 1, 12, tzinfo=UTC)
DELAY_S = 60.0


def entry(at: float, client: str, queue_id: int, offset: int) -> dict[str, object]:
    return {
        "isProduced": False,
        "consumerGroup": "GID",
        "clientId": client,
        "consumedTimestamp": (BEGIN + timedelta(seconds=at)).isoformat(),
        "topic": "orders",
        "brokerName": "broker-a",
        "queueId": queue_id,
        "queueOffset": offset,
        "reconsumeTimes": 0,
    }


def produced(at: float, queue_id: int, offset: int) -> dict[str, object]:
    return {**entry(at, "", queue_id, offset), "isProduced": True, "consumerGroup": None}


def deliveries() -> list[dict[str, object]]:
    """Two members for 400 s; every 100 s a queue moves and three messages come again."""
    rows: list[dict[str, object]] = []
    for queue_id in (0, 1):
        for n in range(80):
            owner = "ab"[(queue_id + (n * 5 // 100 if queue_id else 0)) % 2]
            rows.append(produced(n * 5 - 1, queue_id, n))
            if (queue_id, n) != (1, 33):
                rows.append(entry(n * 5 + queue_id, owner, queue_id, n))
            if queue_id == 1 and n % 20 == 0 and n:
                rows += [entry(n * 5 + 2 + k, owner, 1, n - 3 + k) for k in range(3)]
    return rows


def feed(path: Path, number: int, rows: list[dict[str, object]]) -> None:
    """Write a file; Spark reads files in the order of their times."""
    path.mkdir(exist_ok=True)
    file = path / f"{number:03d}.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    time_s = 1_700_000_000 + number
    os.utime(file, (time_s, time_s))


def stream(spark: SparkSession, path: Path) -> DataFrame:
    ddl = ", ".join(f"{name} {kind}" for name, kind in records.ENTRY_COLUMNS.items())
    return spark.readStream.schema(ddl).option("maxFilesPerTrigger", 1).json(str(path))


def rows_of(out: Path, name: str, *columns: str) -> list[tuple[object, ...]]:
    table = ds.dataset(out / name, format="parquet", partitioning="hive").to_table()
    return sorted(tuple(row[column] for column in columns) for row in table.to_pylist())


@pytest.mark.long
def test_stream_writes_what_the_batch_job_does_whatever_is_killed(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = deliveries()
    # Files come in the order of time, and rows of a file in any.
    rows.sort(key=lambda row: str(row["consumedTimestamp"]))
    parts = [rows[at : at + 130] for at in range(0, len(rows), 130)]
    rng = random.Random(7)
    for number, part in enumerate(parts):
        rng.shuffle(part)
        feed(tmp_path / "in", number, part)
    # One that is far too late, and one that lets the watermark pass all.
    last = [entry(2.0, "z", 0, 0), entry(10_000.0, "a", 0, 99)]
    feed(tmp_path / "in", 999, last)
    out = tmp_path / "out"
    seen: list[Progress] = []

    def kill_in(batch_id: int) -> None:
        def on_batch(progress: Progress) -> None:
            seen.append(progress)
            if progress.batch_id == batch_id:
                raise RuntimeError("killed before the commit")

        watch_duplicates(
            stream(spark, tmp_path / "in"), str(out), delay_s=DELAY_S, on_batch=on_batch
        )

    with pytest.raises(StreamingQueryException, match="killed before"):
        kill_in(1)
    kill_in(-1)

    ddl = ", ".join(f"{name} {kind}" for name, kind in records.ENTRY_COLUMNS.items())
    all_rows = spark.createDataFrame([], ddl).unionByName(
        spark.read.schema(ddl).json([str(path) for path in sorted((tmp_path / "in").glob("0*"))])
    )
    consumed, _ = records.split_entries(all_rows, what="test")
    expected = judging.attribute(consumed, judging.find_events(consumed)).collect()
    columns = ("queueId", "queueOffset", "clientId", "nth", "firstClientId", "eventIndex", "event")
    assert sorted(tuple(row[c] for c in columns) for row in expected) == rows_of(
        out, "deliveries", *columns
    )
    assert len(rows_of(out, "duplicates", "queueOffset")) == 9
    assert rows_of(out, "missing", "queueOffset", "state") == [(33, "lost")]
    assert [event for (event,) in rows_of(out, "events", "event")] == ["1 queue moved"] * 3
    assert seen[-1].late == 1
    # Batch 1 came twice, and its state was read again.
    assert [progress.batch_id for progress in seen] == [0, 1, 1, 2, 3]
    assert len(list((out / "state").glob("batchId=*"))) == 2
    assert set(read_tables(spark, str(out))) == {"deliveries", "duplicates", "events", "missing"}


def test_a_run_that_follows_and_one_that_does_not_share_no_directory(
    spark: SparkSession, tmp_path: Path
) -> None:
    feed(tmp_path / "in", 0, [entry(float(n), "a", 0, n) for n in range(5)])
    once = DuplicatesSettings(consumed=f"{tmp_path}/in/*.jsonl", out=f"{tmp_path}/once")
    followed = replace(once, out=f"{tmp_path}/followed", follow_interval_s=0.1, delay_s=0.0)
    run(spark, once)
    watch_duplicates(stream(spark, tmp_path / "in"), followed.out, delay_s=0)

    with pytest.raises(ConfigError, match="its rows would be there twice"):
        run(spark, replace(followed, out=once.out))
    with pytest.raises(ConfigError, match="whose tables would be replaced"):
        run(spark, replace(once, out=followed.out))

    for settings in (once, followed):
        assert len(rows_of(Path(settings.out), "deliveries", "queueOffset")) == 5


def test_a_first_batch_whose_plan_a_full_disk_cut_off_is_planned_anew(
    spark: SparkSession, tmp_path: Path
) -> None:
    feed(tmp_path / "in", 0, [entry(float(n), "a", 0, n) for n in range(5)])
    out, offsets = tmp_path / "out", tmp_path / "out" / "checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / ".0.96880805-4d9e-40d2-9fed-249ecb406a3b.tmp").touch()

    watch_duplicates(stream(spark, tmp_path / "in"), str(out), delay_s=0)

    assert len(rows_of(out, "deliveries", "queueOffset")) == 5


@pytest.mark.long
def test_command_follows_until_a_signal_and_reports(spark: SparkSession, tmp_path: Path) -> None:
    consumed, out = tmp_path / "in", tmp_path / "out"
    again = [entry(at, client, 0, 7) for at, client in ((0.0, "a"), (5.0, "b"), (9_000.0, "b"))]
    feed(consumed, 1, [{**row, "isProduced": None} for row in again])

    def watch() -> None:
        try:
            wait_until("judged", lambda: (out / "state" / "_0.json").exists(), timeout_s=250)
        finally:
            send_when_handled(signal.SIGTERM)

    watcher = threading.Thread(target=watch)
    watcher.start()
    arguments = ["--consumed", f"{consumed}/*.jsonl", "--follow", "0.2", "--delay", "60", "--json"]
    result = CliRunner().invoke(
        build_app(), ["pipeline", "duplicates", *arguments, "--out", str(out)]
    )
    watcher.join()

    assert result.exit_code == 0, result.stderr
    (group,) = json.loads(result.stdout)["groups"]
    assert (group["consumer_group"], group["deliveries"], group["duplicates"]) == ("GID", 2, 1)
    assert "batch 0: 3 entries; judged until 2026-01-01 14:29:00 UTC" in result.stderr
    assert "losses were not looked for" in (out / "report.html").read_text()


def test_record_without_a_time_ends_the_query_and_an_unreadable_entry_is_counted(
    spark: SparkSession, tmp_path: Path
) -> None:
    feed(tmp_path / "in", 1, [entry(0.0, "a", 0, 1), {**entry(1.0, "a", 0, 2), "isProduced": None}])
    feed(tmp_path / "in", 2, [{**entry(2.0, "a", 0, 3), "consumedTimestamp": None}])
    seen: list[Progress] = []

    with pytest.raises(StreamingQueryException, match="1 of 1 rows have no consumedTimestamp"):
        watch_duplicates(
            stream(spark, tmp_path / "in"), str(tmp_path / "out"), on_batch=seen.append
        )

    assert [(progress.entries, progress.unreadable) for progress in seen] == [(2, 1)]


@pytest.mark.long
def test_time_in_the_future_makes_no_delivery_late(spark: SparkSession, tmp_path: Path) -> None:
    far = {**entry(0.0, "a", 0, 1), "consumedTimestamp": "9000-01-01T00:00:00Z"}
    feed(tmp_path / "in", 1, [far, entry(0.0, "a", 0, 2)])
    now = {**entry(0.0, "a", 0, 3), "consumedTimestamp": datetime.now(UTC).isoformat()}
    feed(tmp_path / "in", 2, [now])
    seen: list[Progress] = []

    watch_duplicates(
        stream(spark, tmp_path / "in"), f"{tmp_path}/out", delay_s=DELAY_S, on_batch=seen.append
    )

    assert [progress.late for progress in seen] == [0, 0]


def test_interval_of_any_length_is_one_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    feed(tmp_path / "in", 1, [entry(0.0, "a", 0, 1)])
    seen: list[Progress] = []

    for interval_s in (1_000_000.0, 0.00001):
        watch_duplicates(
            stream(spark, tmp_path / "in"),
            f"{tmp_path}/out-{interval_s}",
            interval_s=interval_s,
            on_batch=seen.append,
            should_stop=lambda: bool(seen),
        )

    assert seen


def test_error_of_the_caller_ends_the_query_and_its_listener(
    spark: SparkSession, tmp_path: Path
) -> None:
    feed(tmp_path / "in", 1, [entry(0.0, "a", 0, 1)])
    streams: Any = spark.streams
    listeners = len(streams._jsqm.listListeners())

    def fail() -> bool:
        raise RuntimeError("the caller's own")

    with pytest.raises(RuntimeError, match="the caller's own"):
        watch_duplicates(
            stream(spark, tmp_path / "in"),
            f"{tmp_path}/out",
            interval_s=3_600.0,
            should_stop=fail,
            listener=LagListener(),
        )

    assert spark.streams.active == []
    assert len(streams._jsqm.listListeners()) == listeners


@pytest.mark.long
def test_long_after_its_last_delivery_it_is_known_who_had_a_queue_and_what_a_group_reads(
    spark: SparkSession, tmp_path: Path
) -> None:
    def traced(at: float, msg_id: str, group: str | None = None) -> dict[str, object]:
        row = produced(at, 0, 0) if group is None else entry(at, "t", 0, 0)
        place: dict[str, object] = {"brokerName": None, "queueId": None, "queueOffset": None}
        # A trace of a delivery names no topic.
        topic = None if group else "traced"
        return {**row, **place, "consumerGroup": group, "topic": topic, "msgId": msg_id}

    later = 20 * DELAY_S
    # Of two deliveries at one moment the last one counts.
    first = [entry(0.0, "b", 0, 1), entry(0.0, "a", 0, 2)]
    first += [traced(0.0, "M1"), traced(1.0, "M1", "GID_traced"), traced(later, "M2")]
    feed(tmp_path / "in", 1, [*first, entry(later, "a", 1, 1)])
    feed(tmp_path / "in", 2, [entry(later + 1, "b", 0, 3), entry(2 * later, "b", 1, 2)])

    watch_duplicates(stream(spark, tmp_path / "in"), f"{tmp_path}/out", delay_s=DELAY_S)

    moved = str(BEGIN + timedelta(seconds=later + 1))[:19]
    events = rows_of(tmp_path / "out", "events", "eventTimestamp", "event")
    assert [(str(at)[:19], event) for at, event in events][1:] == [(moved, "1 queue moved")]
    missing = rows_of(tmp_path / "out", "missing", "consumerGroup", "msgId", "state")
    assert missing == [("GID_traced", "M2", "pending")]


@pytest.mark.parametrize("left", [None, "", '{"watermark": "2026-'])
def test_a_query_whose_progress_is_gone_or_torn_judges_nothing_a_second_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: str | None
) -> None:
    monkeypatch.setattr("sparrowmq.pipeline.duplicates.stream.Files", lambda *_: LocalFiles())
    path = tmp_path / "state" / "_4.json"
    path.parent.mkdir()
    if left is not None:
        path.write_text(left)
    judge = _Judge(str(tmp_path), timedelta(seconds=DELAY_S), None, None)
    batch: Any = SimpleNamespace(sparkSession=None)

    with pytest.raises(UsageError, match=f"{path} is gone, so this run would judge"):
        judge(batch, 5)

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

import pyarrow.parquet as pq

from sparrowmq.errors import ConfigError, UsageError
from sparrowmq.pipeline.files import Files
from sparrowmq.pipeline.ingest import compaction
from sparrowmq.pipeline.ingest.compaction import compact
from sparrowmq.pipeline.parquet import parquet_writer, read_parquet, write_batch_parquet

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]


def write_by_query(query_id: str, frame: DataFrame, batch_id: int, table: Path) -> None:
    """Write a batch as Spark has `foreachBatch` do it for a query."""
    # None removes the property, which its annotation leaves out.
    context: Any = frame.sparkSession.sparkContext
    context.setLocalProperty("sql.streaming.queryId", query_id)
    try:
        write_batch_parquet(frame, batch_id, str(table), ["month"])
    finally:
        context.setLocalProperty("sql.streaming.queryId", None)


def test_a_replayed_batch_replaces_its_first_attempt(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "table"
    write = parquet_writer(str(table), ["month"])
    other = spark.createDataFrame([(9, 1)], "id int, month int")
    first = spark.createDataFrame([(1, 1), (2, 2)], "id int, month int")
    second = spark.createDataFrame([(1, 1), (2, 2), (3, 3)], "id int, month int")

    write(other, 0)
    write(first, 1)
    write(second, 1)

    assert sorted(
        (int(path.parts[-3].removeprefix("batchId=")), int(path.parts[-2].removeprefix("month=")))
        for path in table.rglob("*.parquet")
    ) == [(0, 1), (1, 1), (1, 2), (1, 3)]
    assert sorted(pq.read_table(table)["id"].to_pylist()) == [1, 2, 3, 9]


def test_a_replayed_batch_that_is_whole_is_left_alone(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "table"
    frame = spark.createDataFrame([(1, 1), (2, 2)], "id int, month int")

    def files() -> list[tuple[str, int]]:
        return sorted((str(p), p.stat().st_mtime_ns) for p in table.rglob("*.parquet"))

    def write(query_id: str, batch_id: int = 0) -> None:
        write_by_query(query_id, frame, batch_id, table)

    write("query-1")
    first = files()
    write("query-1")
    replayed = files()
    Path(first[0][0]).unlink()
    write("query-1")
    mended = files()

    assert first == replayed
    # A file was missing.
    assert first != mended
    # After a compaction the batches of a lost checkpoint have other numbers.
    for number in (0, 3):
        with pytest.raises(UsageError, match="has batches of another checkpoint"):
            write("query-2")
        (table / "batchId=0").rename(table / "batchId=3") if number == 0 else None
    # Nor does another query replace a batch of the same number.
    with pytest.raises(UsageError, match="has batches of another checkpoint"):
        write("query-2", 3)
    assert sorted(pq.read_table(table)["id"].to_pylist()) == [1, 2]


def test_batches_that_were_merged_are_still_of_their_query(
    spark: SparkSession, tmp_path: Path
) -> None:
    table, commits = tmp_path / "table", tmp_path / "checkpoint" / "commits"
    commits.mkdir(parents=True)
    frames = [spark.createDataFrame([(number, 1)], "id int, month int") for number in range(2)]
    for number, frame in enumerate(frames):
        write_by_query("query-1", frame, number, table)
        (commits / str(number)).touch()
    compact(spark, str(table), checkpoint=str(tmp_path / "checkpoint"), partition_by="month")

    write_by_query("query-1", frames[1], 1, table)
    with pytest.raises(UsageError, match="has batches of another checkpoint"):
        write_by_query("query-2", frames[1], 1, table)

    assert [path.name for path in sorted(table.glob("batchId=*"))] == ["batchId=1"]
    assert sorted(pq.read_table(table)["id"].to_pylist()) == [0, 1]


def test_a_merge_that_lost_rows_replaces_no_batch(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, commits = tmp_path / "table", tmp_path / "checkpoint" / "commits"
    commits.mkdir(parents=True)
    for number in range(2):
        frame = spark.createDataFrame([(number, 1)], "id int, month int")
        write_by_query("query-1", frame, number, table)
        (commits / str(number)).touch()

    def lose(session: SparkSession, *paths: str, **options: Any) -> DataFrame:
        read = read_parquet(session, *paths, **options)
        return read.limit(1) if "_writing" in paths[0] else read

    monkeypatch.setattr(compaction, "read_parquet", lose)
    with pytest.raises(UsageError, match="wrote 1 of 2 rows; kept both"):
        compact(spark, str(table), checkpoint=str(tmp_path / "checkpoint"), partition_by="month")

    assert sorted(path.name for path in table.glob("batchId=*")) == ["batchId=0", "batchId=1"]
    assert sorted(pq.read_table(table)["id"].to_pylist()) == [0, 1]


@pytest.mark.parametrize("is_compaction", [False, True])
def test_a_batch_is_on_the_disk_before_it_gets_its_name(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_compaction: bool
) -> None:
    table, commits = tmp_path / "table", tmp_path / "checkpoint" / "commits"
    commits.mkdir(parents=True)
    frames = [spark.createDataFrame([(number, 1)], "id int, month int") for number in range(2)]
    write_by_query("query-1", frames[0], 0, table)
    if is_compaction:
        write_by_query("query-1", frames[1], 1, table)
        for number in range(2):
            (commits / str(number)).touch()
        # A merge that was killed in its midst.
        frames[0].write.parquet(f"{table}/_writing/compacted")
    sync, move, remove = os.fsync, Files.move, Files.remove
    synced: set[Path] = set()
    lacking: list[set[str]] = []

    def note_sync(descriptor: int) -> None:
        synced.add(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        sync(descriptor)

    def note_move(files: Files, source: str, target: str) -> None:
        new = Path(f"{table}/_writing/compacted" if is_compaction else source)
        wanted = {new, *new.rglob("*"), *table.glob("_compaction.json.fresh")}
        lacking.append({str(path) for path in wanted - synced})
        synced.discard(table)
        move(files, source, target)

    def note_removal(files: Files, path: str) -> None:
        if path.endswith("_compacted") and table not in synced:
            lacking.append({path})
        remove(files, path)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Files, "move", note_move)
    monkeypatch.setattr(Files, "remove", note_removal)
    if is_compaction:
        compact(spark, str(table), checkpoint=str(tmp_path / "checkpoint"), partition_by="month")
    else:
        write_by_query("query-1", frames[1], 1, table)

    assert lacking == [set()] * len(lacking)
    assert len(lacking) == (3 if is_compaction else 1)
    assert table / "_compaction.json.fresh" in synced or not is_compaction
    assert sorted(pq.read_table(table)["id"].to_pylist()) == [0, 1]


def test_a_small_file_is_there_whole_at_any_moment_while_it_is_replaced(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "report.html"
    files = Files(spark, str(tmp_path))
    files.write_text(str(path), "0" * 1000)
    is_done = threading.Event()
    seen: set[str] = set()
    missed: list[str] = []

    def watch() -> None:
        while not is_done.is_set():
            try:
                seen.add(path.read_text())
            except FileNotFoundError:
                missed.append("gone")

    watcher = threading.Thread(target=watch)
    watcher.start()
    for number in range(100):
        files.write_text(str(path), str(number % 10) * 1000)
    is_done.set()
    watcher.join()

    assert missed == []
    assert {len(text) for text in seen} == {1000}
    assert files.read_text(str(path)) == "9" * 1000


def test_what_a_kill_left_half_written_is_seen_by_no_reader(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    frame = spark.createDataFrame([(1, 1)], "id int, month int")
    write_batch_parquet(frame, 0, str(table), ["month"])
    half = table / "_writing" / "batchId=1"
    frame.write.parquet(str(half / "month=2"))
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")

    before = pq.read_table(table)["id"].to_pylist()
    try:
        write_batch_parquet(frame, 1, str(table), ["month"])
    finally:
        spark.conf.unset("spark.sql.sources.partitionOverwriteMode")

    assert before == [1]
    assert pq.read_table(table)["id"].to_pylist() == [1, 1]
    assert not half.exists()


def test_wrong_columns_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.createDataFrame([(1, 1)], "id int, BatchId int")

    with pytest.raises(ConfigError, match="would clash"):
        write_batch_parquet(frame, 0, str(tmp_path))
    with pytest.raises(ConfigError, match="no column 'month' to partition by"):
        write_batch_parquet(frame.select("id"), 0, str(tmp_path), ["month"])

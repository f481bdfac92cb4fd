from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import StreamingQueryException
from typer.testing import CliRunner

from sparrowmq.cli.main import build_app
from sparrowmq.cli.pipeline import _java_reason, _signals_noted, _spark_reason
from sparrowmq.pipeline.task_progress import TaskProgress, reporting_progress
from waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(build_app(), ["pipeline", *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_balance_prints_its_summary_and_writes_table_and_page(
    spark: SparkSession, tmp_path: Path
) -> None:
    out = tmp_path / "out"

    code, stdout, stderr = run(
        "balance", "--generate", "20", "-s", "AVG", "--json", "--out", str(out)
    )

    assert code == 0, stderr
    printed = json.loads(stdout)["strategies"]
    assert [(each["strategy"], each["groups"]) for each in printed] == [("AVG", 20)]
    assert 'class="bars"' in (out / "report.html").read_text()
    assert spark.read.parquet(f"{out}/groups").count() == 20


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["balance"], "give either a snapshot or how many groups to generate"),
        (["balance", "--generate", "0"], "--generate is 0; it must be from 1 to 10,000,000"),
        (["balance", "--generate", "9", "-s", "AVGG"], "did you mean AVG?"),
        (["backlog", "--snapshots", "/nowhere"], "cannot read /nowhere/queues: "),
        (["duplicates"], "give either consumed records or a trace"),
        (["duplicates", "--consumed", "/no.jsonl"], "cannot read /no.jsonl: "),
        (
            ["ingest", "-t", "t", "--format", "delta"],
            "delta-spark 4.4.1 needs PySpark 4.2.0 at most",
        ),
        (["ingest", "-t", "t", "--format", "csv"], "cannot write tables of format 'csv'"),
        (
            ["ingest", "-t", "t", "--option", "maxOffset=5"],
            "unknown option 'maxOffset'; did you mean",
        ),
        (["ingest", "-t", "t", "--option", 'startingOffsets={"t'], "option 'startingOffsets'"),
        (["ingest", "-t", "t", "-n", "nowhere"], "option 'nameServer'"),
        (["ingest", "-t", "t", "--option", "x"], "--option is 'x'; write NAME=VALUE"),
        (["balance", "--generate", "9", "--conf", "x"], "--conf is 'x'; write NAME=VALUE"),
        (["balance", "--generate", "9", "--py-files", "a.whl"], "rename the wheel to .zip"),
        (["balance", "--generate", "9", "--json", "--csv"], "give --json or --csv, not both"),
        (["ingest", "-t", "t", "--schema", "a INTT"], "type 'intt' cannot be read in JSON; "),
        (["ingest", "-t", "t", "--schema", "a INT b INT"], "the schema is not DDL: "),
        (
            ["ingest", "-t", "t", "--schema", "id INT, m MAP<INT, INT>"],
            "a map in JSON has texts as keys, not 'integer'",
        ),
        (["ingest", "-t", "t", "--json-schema", "/nowhere.json"], "cannot read /nowhere.json: "),
        (
            ["ingest", "-t", "t", "--schema", "id INT", "--avro-schema", "sale.avsc"],
            "give one of --schema, --json-schema and --avro-schema",
        ),
    ],
)
def test_wrong_options_end_with_one_line_and_code_2(
    spark: SparkSession, tmp_path: Path, arguments: list[str], message: str
) -> None:
    code, stdout, stderr = run(*arguments, "--out", str(tmp_path / "out"))

    assert (code, stdout) == (2, "")
    assert message in stderr
    assert not (tmp_path / "out").exists()


def test_a_job_that_fails_says_why_in_one_line_and_keeps_javas_words_in_a_file(
    tmp_path: Path,
) -> None:
    command = [str(Path(sys.executable).with_name("sparrowmq")), "pipeline"]
    command += [
        "duplicates",
        "--trace",
        "127.0.0.1:1",
        "--follow",
        "1",
        "-o",
        str(tmp_path / "out"),
    ]

    result = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )

    started, log, reason = result.stderr.splitlines()
    assert (result.returncode, result.stdout) == (3, "")
    assert started == "sparrowmq: starting Spark on local[*]"
    assert reason.startswith("sparrowmq: no name server answers at 127.0.0.1:1: ")
    assert "at org.apache.spark" in Path(log.rpartition(" ")[2]).read_text()


def test_where_java_ends_at_once_its_reason_is_the_error(tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("sparrowmq")), "pipeline", "balance"]
    command += ["--generate", "2", "-o", str(tmp_path / "out"), "--driver-memory", "5x"]

    result = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )

    reason = "sparrowmq: Spark does not start: Invalid maximum heap size: -Xmx5x"
    assert (result.returncode, result.stderr.splitlines()[1:]) == (2, [reason])
    assert list(tmp_path.iterdir()) == []
    log = (
        "Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties\n"
        "26/11/24 15:56:36 WARN Utils: Your hostname, vm, resolves to a loopback address\n"
        'Exception in thread "main" org.apache.spark.SparkException: Master must be local\n\tat\n'
    )
    assert _java_reason(log) == "Master must be local"


def test_a_job_prints_its_main_table_as_csv_and_shows_its_tasks(
    spark: SparkSession, tmp_path: Path
) -> None:
    code, stdout, stderr = run(
        "balance", "--generate", "20", "-s", "AVG", "--csv", "--out", str(tmp_path / "out")
    )

    assert code == 0, stderr
    header, *rows = csv.reader(stdout.splitlines())
    assert header[0] == "strategy"
    assert [row[0] for row in rows] == ["AVG"]
    assert len(rows[0]) == len(header)


def test_every_second_a_job_reports_the_tasks_of_its_stages(
    spark: SparkSession, tmp_path: Path
) -> None:
    seen: list[TaskProgress] = []
    reported = tmp_path / "reported"

    def note(progress: TaskProgress) -> None:
        seen.append(progress)
        if (progress.tasks_done, progress.tasks) == (1, 2):
            reported.touch()

    def work(number: int) -> None:
        # The second task lasts until the first is reported.
        end_s = time.monotonic() + 120
        while number == 2 and not reported.exists() and time.monotonic() < end_s:
            time.sleep(0.05)

    with reporting_progress(spark, note):
        spark.sparkContext.parallelize([1, 2], 2).foreach(work)

    assert reported.exists()
    assert sorted(each.seconds for each in seen) == [each.seconds for each in seen]


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (
            (
                "[STREAM_FAILED] Query [id = 7] terminated with exception: [FOREACH_BATCH_USER_"
                "FUNCTION_ERROR] An error occurred. Return Message: Traceback (most recent):",
                '  File "/opt/sparrowmq/pipeline/parquet.py", line 79, in write_batch_parquet',
                "py4j.protocol.Py4JJavaError: An error occurred while calling o190.parquet.",
                ": org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed.",
                "Caused by: org.apache.parquet.util.Closeables$Failed: Unable to close resource",
                "\tat org.apache.spark.sql.execution.Writer.write(Writer.scala:1)",
                "Caused by: org.apache.hadoop.fs.FSError: java.io.IOException: No space left on "
                "device",
                "+- ~WriteToMicroBatch [checkpointLocation=/data/sparrowmq/checkpoint]",
            ),
            "No space left on device",
        ),
        (
            (
                "[STREAM_FAILED] Query [id = 7] terminated with exception: An error occurred:",
                "py4j.protocol.Py4JJavaError: An error occurred while calling o345.parquet.",
                ": org.apache.hadoop.fs.ParentNotDirectoryException: Parent path is not a "
                "directory: file:/tmp/out/table",
            ),
            "Parent path is not a directory: file:/tmp/out/table",
        ),
        (
            ("[X] Y", "sparrowmq.errors.UsageError: cannot rename a to b", "Caused by: a.B: c"),
            "cannot rename a to b",
        ),
        (("[X] Query terminated with exception: [Y] no such column",), "[Y] no such column"),
    ],
)
def test_the_reason_of_a_failure_is_the_first_cause(lines: Sequence[str], reason: str) -> None:
    assert _spark_reason(StreamingQueryException("\n".join(lines))) == reason


@pytest.mark.parametrize("is_repeated", [False, True])
def test_ctrl_c_while_spark_starts_leaves_no_java_behind(tmp_path: Path, is_repeated: bool) -> None:
    arguments = ("pipeline", "ingest", "-t", "orders", "-o", str(tmp_path / "out"))
    process = subprocess.Popen(
        [str(Path(sys.executable).with_name("sparrowmq")), *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")

    def left() -> list[str]:
        command = ("ps", "-o", "comm=", "-s", str(process.pid))
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        return [name for name in found.stdout.splitlines() if "defunct" not in name]

    try:
        wait_until("Spark's JVM", children.read_text)
        os.killpg(process.pid, signal.SIGINT)
        assert process.stderr is not None
        said = process.stderr.readline() + process.stderr.readline()
        if is_repeated:
            os.killpg(process.pid, signal.SIGINT)
        said += process.communicate(timeout=120)[1]
        wait_until("end of Spark's JVM", lambda: not left())
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()

    assert process.returncode == 128 + signal.SIGINT
    assert said.splitlines()[1:] == ["sparrowmq: interrupted; Spark ends once it has started"]


def test_a_child_that_becomes_spark_says_nothing_of_a_signal() -> None:
    reading, writing = os.pipe()
    try:
        with _signals_noted(signal.SIGINT, say_at_first=writing):
            # PySpark starts Java so: Python's code runs in the child before Java does.
            command = [sys.executable, "-c", ""]
            begin = partial(signal.raise_signal, signal.SIGINT)
            subprocess.run(command, preexec_fn=begin, check=True)
        os.close(writing)
        assert os.read(reading, 100) == b""
    finally:
        os.close(reading)


def test_a_second_signal_ends_what_does_not_look_for_the_first() -> None:
    with _signals_noted(signal.SIGINT, signal.SIGTERM) as stops:
        signal.raise_signal(signal.SIGINT)
        assert stops()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)

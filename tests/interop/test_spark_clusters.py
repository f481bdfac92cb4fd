"""Spark on one machine, on a master with two workers, and behind Spark Connect.

The job runs in a Python that has every library but this package, which is shipped as users ship it:
as a wheel, whose name must end in .zip for Spark to take it for a package.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow.dataset as ds
import pyspark
from pyspark import cloudpickle

from spark_standalone import SPARK_HOME, Standalone, environ
from sparrowmq import Admin, Message, MessageQueue, Producer
from sparrowmq.spark.batch_reader import RocketMQReader
from sparrowmq.spark.options import parse_options
from sparrowmq.testing import EmbeddedCluster

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
JOB = Path(__file__).with_name("spark_job.py")
COMMAND = Path(__file__).with_name("spark_command.py")
# What PySpark's extra `connect` needs beside grpcio, which the other tests have.
CONNECT = ("grpcio-status>=1.76", "googleapis-common-protos>=1.71")
LOCAL = "local[*]"
# A program that takes longer fails with its last words, before pytest cuts its test off.
LIMIT_S = 480.0
LAST_BYTES = 3_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(tmp_path_factory.mktemp("data")) as found:
        found.create_topic("in", queues=4)
        found.create_topic("out", queues=2)
        with Producer("GID_feed", name_server=found.name_server) as producer:
            for number in range(600):
                queue = MessageQueue("in", "broker-a", number % 4)
                producer.send(Message("in", b"%d" % number, keys=(f"k{number}",)), queue=queue)
        yield found


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(place)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = place.glob("*.whl")
    return wheel.rename(place / "sparrowmq.zip")


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with this one's libraries, but without this package."""
    place = tmp_path_factory.mktemp("bare") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    (libraries,) = {str(Path(pyspark.__file__).parents[1])}
    (site,) = place.glob("lib/python*/site-packages")
    # Only the path itself: the .pth files in there, one of which leads here, are not read.
    (site / "libraries.pth").write_text(libraries)
    return place / "bin" / "python"


def run(command: list[str], tmp_path: Path, **changes: str) -> str:
    """Run a program to its end and return what it printed; fail with what it and Spark logged."""
    output, errors = tmp_path / "stdout", tmp_path / "stderr"
    begin = time.time()
    with output.open("wb") as stdout, errors.open("wb") as stderr:
        process = subprocess.Popen(
            command,
            env=environ(**changes),
            cwd=tmp_path,
            stdout=stdout,
            stderr=stderr,
            # Its JVM ends with it.
            start_new_session=True,
        )
        try:
            code = str(process.wait(LIMIT_S))
        except subprocess.TimeoutExpired:
            code = f"none within {LIMIT_S:.0f} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if code != "0":
        of_executors = tmp_path.parent.glob("standalone*/worker-*/app-*/*/stderr")
        logs = [output, errors, *tmp_path.glob("sparrowmq-spark-*.log")]
        logs += (log for log in of_executors if log.stat().st_mtime > begin)
        said = "\n".join(f"--- {log}:\n{last_words(log)}" for log in logs)
        pytest.fail(f"exit code {code} of {' '.join(command)}\n{said}", pytrace=False)
    return output.read_text()


def python_path(package: Path, *more: Path) -> str:
    """Return the driver's PYTHONPATH, as `docs/howto/spark-clusters.md` has it."""
    places = (package / "sparrowmq" / "spark" / "planning_start", package, *more)
    return os.pathsep.join(map(str, places))


def last_words(log: Path) -> str:
    return log.read_bytes()[-LAST_BYTES:].decode(errors="replace")


def run_job(python: Path, tmp_path: Path, *arguments: str, **changes: str) -> dict[str, Any]:
    command = [str(python), str(JOB), *arguments, str(tmp_path / "out")]
    printed = run(command, tmp_path, PYSPARK_PYTHON=str(python), **changes)
    found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    standalone = Standalone(tmp_path_factory.mktemp("standalone"))
    try:
        standalone.start("worker-1", "worker-2")
        yield standalone.url
    finally:
        standalone.stop()


def test_a_shipped_package_reads_streams_and_writes(
    cluster: EmbeddedCluster, master: str, package: Path, bare_python: Path, tmp_path: Path
) -> None:
    given = [master, str(package), "add", cluster.name_server]
    found = run_job(bare_python, tmp_path, *given, PYTHONPATH=python_path(package))

    assert "error" not in found, found["error"]
    assert found["rows"] == 600
    assert found["tasks"] == 4
    assert found["batches"] == 3
    assert found["keys"] == 600
    assert all("sparrowmq.zip/sparrowmq/" in place for place in found["places"]), found["places"]


@dataclass(frozen=True)
class Jobs:
    """Runs jobs as users do; executors have the package by --py-files alone."""

    master: str
    package: Path
    python: Path
    out: Path

    def by_command_line(self, job: str, *arguments: str) -> dict[str, Any]:
        module = [str(self.python), "-m", "sparrowmq", "pipeline", job]
        return self._run([*module, *self._submit], str(self.package), job, *arguments)

    def by_spark_submit(self, job: str, *arguments: str) -> dict[str, Any]:
        submit = [str(SPARK_HOME / "bin" / "spark-submit"), *self._submit, str(COMMAND)]
        return self._run([*submit, "pipeline", job], python_path(self.package), job, *arguments)

    @property
    def _submit(self) -> list[str]:
        settings = ("spark.driver.host=127.0.0.1", "spark.executor.memory=1g", "spark.cores.max=2")
        conf = [word for each in settings for word in ("--conf", each)]
        return ["--master", self.master, "--py-files", str(self.package), *conf]

    def _run(self, command: list[str], path: str, job: str, *arguments: str) -> dict[str, Any]:
        given = [*arguments, "--json", "--out", str(self.out / job)]
        pythons = {"PYSPARK_PYTHON": str(self.python), "PYTHONPATH": path}
        # The command line keeps Spark's log in a file.
        printed = run([*command, *given], self.out, TMPDIR=str(self.out), **pythons)
        # spark-submit sends stderr into stdout.
        found: dict[str, Any] = json.loads(printed[printed.index("{\n") :])
        return found


@pytest.fixture
def jobs(master: str, package: Path, bare_python: Path, tmp_path: Path) -> Jobs:
    return Jobs(master, package, bare_python, tmp_path)


def test_ingest_runs_where_executors_have_only_what_was_shipped(
    cluster: EmbeddedCluster, jobs: Jobs
) -> None:
    name_server = ("--nameserver", cluster.name_server)
    found = jobs.by_command_line("ingest", *name_server, "--topic", "in", "--schema", "n BIGINT")

    assert (found["counts"]["rows"], found["counts"]["put_aside"]) == (0, 600)
    assert ds.dataset(jobs.out / "ingest" / "quarantine").count_rows() == 600


def test_balance_runs_where_executors_have_only_what_was_shipped(jobs: Jobs) -> None:
    found = jobs.by_command_line("balance", "--generate", "20", "-s", "AVG")

    assert [each["groups"] for each in found["strategies"]] == [20]


def test_backlog_runs_where_executors_have_only_what_was_shipped(
    cluster: EmbeddedCluster, jobs: Jobs
) -> None:
    looks = jobs.out / "looks"
    with Admin(name_server=cluster.name_server) as admin:
        admin.update_committed_offset("GID_late", MessageQueue("in", "broker-a", 0), 10)
    look = [sys.executable, "-m", "sparrowmq", "snapshot", "--out", str(looks)]
    given = ["--nameserver", cluster.name_server, "--group", "GID_late"]
    subprocess.run([*look, *given], check=True)

    found = jobs.by_spark_submit("backlog", "--snapshots", str(looks))

    assert found["lag_by_cause"]["no member"] == 590


def test_duplicates_runs_where_executors_have_only_what_was_shipped(jobs: Jobs) -> None:
    consumed = jobs.out / "consumed.jsonl"
    consumed.write_text(
        '{"consumerGroup": "GID_late", "clientId": "a", "topic": "in", "brokerName": "broker-a", '
        '"consumedTimestamp": "2026-03-01T12:00:00Z", "queueId": 0, "queueOffset": 7}\n' * 2
    )

    found = jobs.by_spark_submit("duplicates", "--consumed", str(consumed))

    assert [each["duplicates"] for each in found["groups"]] == [1]


def test_spark_connect_reads_streams_and_writes(
    cluster: EmbeddedCluster, package: Path, bare_python: Path, tmp_path: Path
) -> None:
    extra = tmp_path / "extra"
    install = ["pip", "install", "--quiet", "--no-deps", "--target", str(extra), *CONNECT]
    run([sys.executable, "-m", *install], tmp_path)

    found = run_job(
        bare_python,
        tmp_path,
        LOCAL,
        str(package),
        "connect",
        cluster.name_server,
        PYTHONPATH=python_path(package, extra),
        # PySpark takes a free port so, not 15002, where another session may listen.
        SPARK_TESTING="1",
    )

    assert "error" not in found, found["error"]
    # Spark Connect gave no progress of the ended query, so its batches are not counted.
    assert (found["rows"], found["tasks"], found["keys"]) == (600, 4, 600)
    assert found["session"] == "pyspark.sql.connect.session"


def test_an_executor_without_the_package_is_told_in_words(bare_python: Path) -> None:
    options = parse_options({"nameServer": "127.0.0.1:9876", "topic": "in"}, scope="batch")
    packed: bytes = cloudpickle.dumps(RocketMQReader(options))  # type: ignore[no-untyped-call]
    code = "import pickle, sys; pickle.loads(bytes.fromhex(sys.argv[1]))"

    answer = subprocess.run(
        [str(bare_python), "-c", code, packed.hex()], capture_output=True, text=True, check=False
    )

    last_line = answer.stderr.splitlines()[-1]
    assert "ModuleNotFoundError: sparrowmq: the package 'sparrowmq' is missing on " in last_line
    assert f"in {bare_python} (Python 3." in last_line
    assert "ship it (rename the wheel to .zip" in last_line


def test_a_driver_without_the_package_finds_no_source(
    cluster: EmbeddedCluster, bare_python: Path, tmp_path: Path
) -> None:
    found = run_job(bare_python, tmp_path, LOCAL, "-", "-", cluster.name_server)

    assert "Failed to find the data source: rocketmq" in found["error"]

"""Spark on one machine, on its local cluster, and on a master with two workers.

The job runs in a Python that has every library but this package, which is shipped as users ship it:
as a wheel, whose name must end in .zip for Spark to take it for a package.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow.dataset as ds
import pyspark
from pyspark import cloudpickle

from sparrowmq import Admin, Message, MessageQueue, Producer
from sparrowmq.spark import find_java
from sparrowmq.spark.batch_reader import RocketMQReader
from sparrowmq.spark.options import parse_options
from sparrowmq.testing import EmbeddedCluster

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
JOB = Path(__file__).with_name("spark_job.py")
COMMAND = Path(__file__).with_name("spark_command.py")
# What PySpark's extra `connect` needs beside what the extra `spark` of this package brings.
CONNECT = ("grpcio>=1.76", "grpcio-status>=1.76", "googleapis-common-protos>=1.71")
SPARK_HOME = Path(pyspark.__file__).parent
LOCAL, LOCAL_CLUSTER = "local[*]", "local-cluster[2,1,1024]"
START_TIMEOUT_S = 90.0


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


def environ(tmp_path: Path, **changes: str) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYSPARK_", "SPARK_", "PYTHON"))
    }
    return {
        **kept,
        "JAVA_HOME": str(find_java().path),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(tmp_path / "work"),
        **changes,
    }


def run_job(python: Path, tmp_path: Path, *arguments: str, **changes: str) -> dict[str, Any]:
    answer = subprocess.run(
        [str(python), str(JOB), *arguments, str(tmp_path / "out")],
        env=environ(tmp_path, PYSPARK_PYTHON=str(python), **changes),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert answer.stdout.strip(), answer.stderr[-3000:]
    found: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A standalone master with two workers of one core each."""
    place = tmp_path_factory.mktemp("standalone")
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, *arguments: str) -> Path:
        log = place / f"{name}.log"
        command = [str(SPARK_HOME / "bin" / "spark-class"), *arguments]
        with log.open("wb") as output:
            started.append(
                subprocess.Popen(
                    command, cwd=place, env=environ(place), stdout=output, stderr=output
                )
            )
        return log

    def wait_for(log: Path, words: str) -> str:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            for line in log.read_text(errors="replace").splitlines():
                if words in line:
                    return line
            time.sleep(0.1)
        pytest.fail(f"no {words!r} in {log}: {log.read_text()[-2000:]}")

    deploy = "org.apache.spark.deploy"
    try:
        ports = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        log = start("master", f"{deploy}.master.Master", *ports)
        url = wait_for(log, "Starting Spark master at").split(" at ")[1].strip()
        for name in ("worker-1", "worker-2"):
            sizes = ("--cores", "1", "--memory", "2g", "--work-dir", str(place / name))
            worker = start(name, f"{deploy}.worker.Worker", *ports, *sizes, url)
            wait_for(worker, "Successfully registered with master")
        yield url
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(30)


def check(found: dict[str, Any]) -> None:
    assert "error" not in found, found["error"]
    assert found["rows"] == 600
    assert found["tasks"] == 4
    assert found["batches"] == 3
    assert found["keys"] == 600
    assert all("sparrowmq.zip/sparrowmq/" in place for place in found["places"]), found["places"]


@pytest.mark.parametrize(
    ("where", "shipping"), [(LOCAL, "files"), (LOCAL_CLUSTER, "add"), ("standalone", "files")]
)
def test_a_shipped_package_reads_streams_and_writes(
    request: pytest.FixtureRequest,
    cluster: EmbeddedCluster,
    package: Path,
    bare_python: Path,
    tmp_path: Path,
    where: str,
    shipping: str,
) -> None:
    url = request.getfixturevalue("master") if where == "standalone" else where

    # The process beside the driver that plans a stream sees no --py-files of Spark's.
    check(
        run_job(
            bare_python,
            tmp_path,
            url,
            str(package),
            shipping,
            cluster.name_server,
            PYTHONPATH=str(package),
        )
    )


def run_command(
    python: Path, tmp_path: Path, package: Path, command: list[str], **changes: str
) -> str:
    """Run one of the jobs as users do; its executors have the package by --py-files alone."""
    settings = ("spark.driver.host=127.0.0.1", "spark.executor.memory=1g", "spark.cores.max=2")
    conf = [word for each in settings for word in ("--conf", each)]
    submit = ["--py-files", str(package), *conf]
    at = command.index("OPTIONS")
    environment = environ(tmp_path, PYSPARK_PYTHON=str(python), PYTHONPATH=str(package), **changes)
    answer = subprocess.run(
        [*command[:at], *submit, *command[at + 1 :]],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert answer.returncode == 0, answer.stderr[-3000:]
    return answer.stdout


@pytest.mark.parametrize("way", ["spark-submit", "--master"])
def test_every_job_runs_where_executors_have_only_what_was_shipped(
    cluster: EmbeddedCluster,
    master: str,
    package: Path,
    bare_python: Path,
    tmp_path: Path,
    way: str,
) -> None:
    def run(job: str, *arguments: str) -> dict[str, Any]:
        given = [*arguments, "--json", "--out", str(tmp_path / job)]
        if way == "--master":
            module = [str(bare_python), "-m", "sparrowmq.cli.main"]
            command = [*module, "pipeline", job, "--master", master, "OPTIONS", *given]
        else:
            submit = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", master, "OPTIONS"]
            command = [*submit, str(COMMAND), "pipeline", job, *given]
        printed = run_command(bare_python, tmp_path, package, command)
        # spark-submit sends stderr into stdout.
        found: dict[str, Any] = json.loads(printed[printed.index("{\n") :])
        return found

    name_server = ("--nameserver", cluster.name_server)
    if way == "--master":
        found = run("ingest", *name_server, "--topic", "in", "--schema", "n BIGINT")
        assert (found["counts"]["rows"], found["counts"]["put_aside"]) == (0, 600)
        assert ds.dataset(tmp_path / "ingest" / "quarantine").count_rows() == 600
        found = run("balance", "--generate", "20", "-s", "AVG")
        assert [each["groups"] for each in found["strategies"]] == [20]
        return
    looks, consumed = tmp_path / "looks", tmp_path / "consumed.jsonl"
    with Admin(name_server=cluster.name_server) as admin:
        admin.update_committed_offset("GID_late", MessageQueue("in", "broker-a", 0), 10)
    look = [sys.executable, "-m", "sparrowmq.cli.main", "snapshot", *name_server]
    subprocess.run([*look, "--group", "GID_late", "--out", str(looks)], check=True)
    consumed.write_text(
        '{"consumerGroup": "GID_late", "clientId": "a", "topic": "in", "brokerName": "broker-a", '
        '"consumedTimestamp": "2026-03-01T12:00:00Z", "queueId": 0, "queueOffset": 7}\n' * 2
    )
    found = run("backlog", "--snapshots", str(looks))
    assert found["lag_by_cause"]["no member"] == 590
    found = run("duplicates", "--consumed", str(consumed))
    assert [each["duplicates"] for each in found["groups"]] == [1]


def test_spark_connect_reads_streams_and_writes(
    cluster: EmbeddedCluster, package: Path, tmp_path: Path
) -> None:
    place = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, *CONNECT], check=True, timeout=300)
    (site,) = place.glob("lib/python*/site-packages")
    (site / "libraries.pth").write_text(str(Path(pyspark.__file__).parents[1]))

    found = run_job(
        place / "bin" / "python",
        tmp_path,
        LOCAL,
        str(package),
        "connect",
        cluster.name_server,
        PYTHONPATH=str(package),
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

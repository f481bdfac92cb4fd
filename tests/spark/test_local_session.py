"""The Python that Spark starts on this machine, and a session in any directory."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

import pyspark

import sparrowmq
from sparrowmq.spark.java import JavaHome
from sparrowmq.spark.local_session import clone_session, prepare_environment
from waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOB = Path(__file__).with_name("odd_paths_job.py")
# What a shell, a URI, a glob or Java's properties take for more than a letter.
ODD = "my projects/50%41 #1 it's $HOME + a\ttab 麻雀 & (more); " + "long " * 30
# What `prepare_environment` sets beside PYTHONPATH.
CHANGED = ("JAVA_HOME", "PATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP")
SOURCE_DIRECTORY = Path(sparrowmq.__file__).parents[1]


def make_python(root: Path) -> Path:
    """Make a Python below a directory, with this one's libraries and PySpark's own programs."""
    (libraries,) = {Path(pyspark.__file__).parents[1]}
    site = root / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    site.mkdir(parents=True)
    for each in libraries.iterdir():
        if each.suffix != ".pth" and each.name not in ("sparrowmq", "pyspark_rocketmq"):
            (site / each.name).symlink_to(each)
    for name in ("sparrowmq", "pyspark_rocketmq"):
        (site / name).symlink_to(SOURCE_DIRECTORY / name)
    (root / "bin").mkdir()
    (root / "bin" / "python").symlink_to(Path(sys.executable).resolve())
    shutil.copy(Path(sys.prefix) / "pyvenv.cfg", root)
    return root / "bin" / "python"


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_source_sink_sql_and_jobs_work_in_any_directory(tmp_path: Path) -> None:
    root = tmp_path / ODD.rstrip()
    for name in ("home", "tmp", "work"):
        (root / name).mkdir(parents=True)
    python = make_python(root / "environment")
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYSPARK_", "PYTHON"))
    }
    (spark_home,) = root.glob("environment/lib/*/site-packages/pyspark")
    places = {"HOME": root / "home", "TMPDIR": root / "tmp", "SPARK_HOME": spark_home}

    answer = subprocess.run(
        [python, JOB, root],
        env={**environ, **{name: str(path) for name, path in places.items()}},
        cwd=root / "work",
        capture_output=True,
        text=True,
        check=False,
    )

    assert answer.returncode == 0, answer.stderr[-3000:]
    found = json.loads(answer.stdout.splitlines()[-1])
    counts = dict.fromkeys(("view", "ingested", "table", "rows", "store"), 100)
    assert found == {**counts, "managed": 3}
    # Nothing is left beside the project, and the session's own tables are gone with it.
    assert list((root / "work").iterdir()) == []
    assert list((root / "tmp").glob("sparrowmq-*")) == []


def test_the_process_that_plans_a_stream_connects_before_its_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # PySpark's module, as slow as on a busy machine: it begins once it may.
    package = tmp_path / "pyspark" / "sql" / "streaming"
    package.mkdir(parents=True)
    for each in (package, package.parent, package.parents[1]):
        (each / "__init__.py").write_text("")
    (package / "python_streaming_source_runner.py").write_text(
        "import sys\n"
        "assert sys.stdin.readline() == 'go\\n'\n"
        "def main(infile, outfile):\n"
        "    outfile.write(infile.read(4)[::-1])\n"
    )
    monkeypatch.delenv("PYTHON_WORKER_FACTORY_SOCK_PATH", raising=False)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{SOURCE_DIRECTORY}")
    for name in CHANGED:
        monkeypatch.setenv(name, os.environ.get(name, ""))
    prepare_environment()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        process = subprocess.Popen(
            [
                shutil.which(os.environ["PYSPARK_DRIVER_PYTHON"]) or "",
                "-m",
                "pyspark.sql.streaming.python_streaming_source_runner",
            ],
            env={
                **os.environ,
                "PYTHON_WORKER_FACTORY_PORT": str(server.getsockname()[1]),
                "PYTHON_WORKER_FACTORY_SECRET": "hush",
            },
            stdin=subprocess.PIPE,
        )
        connection, _ = server.accept()
        with connection, process:
            connection.settimeout(60)
            stream = connection.makefile("rwb")
            assert stream.read(8) == struct.pack(">i4s", 4, b"hush")
            stream.write(struct.pack(">i2s", 2, b"ok"))
            stream.flush()
            # The process itself: Spark ends a stream by its number.
            assert stream.read(4) == struct.pack(">i", process.pid)
            stream.write(b"abcd")
            stream.flush()
            assert process.stdin is not None
            process.stdin.write(b"go\n")
            process.stdin.flush()
            assert stream.read(4) == b"dcba"
    assert process.returncode == 0


def test_the_launcher_is_this_python_in_all_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A module that Python imports at its start, such as a debugger's.
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.begun_by = 'another'")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for name in CHANGED:
        monkeypatch.setenv(name, os.environ.get(name, ""))
    prepare_environment()

    answer = subprocess.run(
        [
            shutil.which(os.environ["PYSPARK_DRIVER_PYTHON"]) or "",
            "-c",
            "import sys; print(sys.begun_by, sys.executable, *sys.argv[1:], sep='|')",
            "a b",
            "",
            "it's",
        ],
        capture_output=True,
        text=True,
        check=True,
    )

    assert answer.stdout.rstrip("\n") == f"another|{sys.executable}|a b||it's"


def test_what_a_user_has_set_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    for name in CHANGED:
        monkeypatch.setenv(name, "unset")
    given = {"PATH": f"/mine/bin{os.pathsep}/bin", "PYTHONPATH": "/mine/lib"}
    for name, value in {**given, "SPARK_LOCAL_IP": "10.0.0.7"}.items():
        monkeypatch.setenv(name, value)

    for _ in range(2):
        prepare_environment(JavaHome(tmp_path / "java", 17, "a test"))

    launchers, *path = os.environ["PATH"].split(os.pathsep)
    assert (Path(launchers) / os.environ["PYSPARK_DRIVER_PYTHON"]).is_relative_to(tmp_path)
    assert path == ["/mine/bin", "/bin"]
    start, *libraries = os.environ["PYTHONPATH"].split(os.pathsep)
    assert (Path(start).name, libraries) == ("planning_start", ["/mine/lib"])
    assert os.environ["SPARK_LOCAL_IP"] == "10.0.0.7"
    assert os.environ["JAVA_HOME"] == str(tmp_path / "java")
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


# Where a Ctrl-C comes: while PySpark waits for the port of its Java, or still starts it.
WAITS_FOR_PORT = """
def note(duration_s):
    waiting.touch()
    sleep(duration_s)
time.sleep = note
"""
STARTS_JAVA = """
def note(*arguments):
    data = read(*arguments)
    if "spark-submit" in str(getattr(sys._getframe(1).f_locals.get("self"), "args", "")):
        waiting.touch()
        sleep(600)
    return data
os.read = note
"""


@pytest.mark.parametrize("place", [WAITS_FOR_PORT, STARTS_JAVA], ids=["waits", "starts"])
def test_an_interrupted_start_leaves_no_java_behind(tmp_path: Path, place: str) -> None:
    # In the place of Spark's program, which becomes Java: it too ignores Ctrl-C, and never answers.
    submit, pid_path = tmp_path / "bin" / "spark-submit", tmp_path / "pid"
    submit.parent.mkdir()
    submit.write_text(f"#!/bin/sh\necho $$ > '{pid_path}.new'; mv '{pid_path}.new' '{pid_path}'\n")
    with submit.open("a") as script:
        script.write("exec sleep 600\n")
    submit.chmod(0o755)
    # Python loses a Ctrl-C that comes in the hooks of a fork, so none comes before it waits.
    waiting = tmp_path / "waiting"
    program = f"""
import os, pathlib, sys, time
import sparrowmq.spark
waiting, sleep, read = pathlib.Path({str(waiting)!r}), time.sleep, os.read
{place}
sparrowmq.spark.spark_session("interrupted")
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "SPARK_HOME": str(tmp_path)},
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until("Spark's program", pid_path.exists, timeout_s=60)
        wait_until("the place", waiting.exists, timeout_s=60)
        java = int(pid_path.read_text())
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == -signal.SIGINT
        with pytest.raises(ProcessLookupError):
            os.kill(java, signal.SIGKILL)
    finally:
        process.kill()
        process.wait()


@pytest.mark.spark
@pytest.mark.slow
def test_a_clone_has_what_its_session_has_and_keeps_its_own_settings_to_itself(
    spark: SparkSession,
) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "3")
    session.range(7).createOrReplaceTempView("seven")

    clone = clone_session(session, {"spark.sql.session.timeZone": "Asia/Shanghai"})
    clone.conf.set("spark.sql.shuffle.partitions", "5")

    assert clone.table("seven").count() == 7
    assert clone.conf.get("spark.sql.session.timeZone") == "Asia/Shanghai"
    assert session.conf.get("spark.sql.session.timeZone") == "UTC"
    assert session.conf.get("spark.sql.shuffle.partitions") == "3"
    assert clone_session(session, {}).conf.get("spark.sql.shuffle.partitions") == "3"

"""The main job itself, on few flights, as a user runs it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from sparrowmq.demo.main_job import count_data_files
from sparrowmq.demo.outcome import DemoOutcome
from sparrowmq.demo.verify import count_repeated, read_deliveries

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900)]


def start_demo(out: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "sparrowmq", "demo", "--out", str(out), *options]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=out.parent
    )


def processes_of(out: Path) -> list[str]:
    """Return the command lines, of the demo and all it started, that name its directory."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(out) in line and path.parent.name != str(os.getpid()):
            lines.append(line)
    return lines


def read_until(demo: subprocess.Popen[str], text: str) -> str:
    assert demo.stdout is not None
    seen = ""
    for line in demo.stdout:
        seen += line
        if text in line:
            return seen
    pytest.fail(f"{text!r} did not come:\n{seen}")


@pytest.mark.long
def test_demo_runs_to_its_end_and_all_conditions_hold(tmp_path: Path) -> None:
    out = tmp_path / "out"

    output, _ = (demo := start_demo(out, "--limit", "5000")).communicate()

    assert demo.returncode == 0, output
    assert "5 of 5 conditions hold" in output
    found = msgspec.json.decode((out / "figures.json").read_bytes(), type=DemoOutcome)
    assert found.holds
    assert (
        found.table.rows,
        found.table.distinct,
        found.production.is_limited,
    ) == (5000, 5000, True)
    assert found.twins.cid_all == ["172.17.0.1@9"] * 2
    assert (found.twins.taken["twin-1"], found.twins.unowned) == ([0, 1, 2, 3], [4, 5, 6, 7])
    assert sum(found.twins.by_message.values()) >= sum(found.twins.backlog_at_remedy) > 0
    assert found.ingest.kill is not None
    # Arrow's count of all, beside Spark's by event.
    consumed = [out / f"run/logbooks/{name}.consumed.csv" for name in "abcd"]
    assert sum(event.duplicates for event in found.events) == count_repeated(
        read_deliveries(consumed), until_ms=found.end_ms
    )
    assert sum(row.deliveries for row in found.answers.consumption) == found.first_group.deliveries
    assert "a run limited to the first 5,000 flights" in (out / "report.html").read_text()
    names = {path.name for path in out.iterdir()}
    assert names == {"report.html", "figures.json", "ingest", "broker", "run", ".sparrowmq-demo"}
    assert processes_of(out) == []


def test_interrupted_demo_leaves_no_process_behind(tmp_path: Path) -> None:
    out = tmp_path / "out"
    demo = start_demo(out, "--limit", "5000")
    read_until(demo, "one leaves, one joins")
    assert len(processes_of(out)) > 5

    demo.send_signal(signal.SIGINT)
    demo.communicate()

    assert demo.returncode == 130
    assert processes_of(out) == []


def test_foreign_directory_is_refused_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").touch()

    output, _ = (demo := start_demo(tmp_path)).communicate()

    assert demo.returncode == 2
    assert len(output.strip().splitlines()) == 1
    assert "is not empty" in output
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_files_that_spark_removes_meanwhile_do_not_count(tmp_path: Path) -> None:
    task = tmp_path / "_temporary/0"
    task.mkdir(parents=True)
    (task / "part-0.parquet").write_bytes(b"PAR1")
    (task / "part-1.parquet").write_bytes(b"")
    # As a file that is gone between its listing and its look.
    (task / "part-2.parquet").symlink_to(task / "gone")

    assert count_data_files(tmp_path, 0) == 1
    assert count_data_files(tmp_path / "gone", 0) == 0

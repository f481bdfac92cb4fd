"""`sparrowmq store check`: what it prints of real directories, and its exit codes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sparrowmq import Message, PollConsumer, Producer
from sparrowmq.testing import EmbeddedCluster

pytestmark = pytest.mark.slow


def check(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sparrowmq", "store", "check", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def fill(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("T", queues=2)
    with Producer("GID_p", name_server=cluster.name_server) as producer:
        for n in range(20):
            producer.send(Message("T", b"%d" % n, keys=(f"k{n}",)))


def test_check_of_a_store_in_use_stopped_killed_and_damaged(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with EmbeddedCluster(tmp_path) as cluster:
        fill(cluster)
        in_use = check(root)
        cluster.stop()
        before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
        stopped = check(root, "--all", "--json")
        after = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
        cluster.start()
        cluster.kill()
        killed = check(root)
    with (root / "commitlog" / ("0" * 20)).open("r+b") as log:
        log.seek(30)
        log.write(b"xxx")
    damaged = check(root)

    assert in_use.returncode == 3
    assert "is in use by another process" in in_use.stderr
    rows = {row["path"]: row for row in json.loads(stopped.stdout)}
    assert (stopped.returncode, {row["state"] for row in rows.values()}) == (0, {"sound"})
    assert {"commitlog/" + "0" * 20, "consumequeue/T/0", "checkpoint", "config"} <= rows.keys()
    assert rows["commitlog/" + "0" * 20]["found"] == "20 records"
    assert before == after
    assert killed.returncode == 0
    assert ["checkpoint", "unfinished"] in [line.split()[:2] for line in killed.stdout.splitlines()]
    assert " sound " not in killed.stdout
    assert damaged.returncode == 1
    assert "the record at byte 0 is damaged; valid ones follow" in damaged.stdout
    assert " damaged" in damaged.stderr


def test_store_without_its_topics_is_damaged_and_its_broker_says_so(tmp_path: Path) -> None:
    with EmbeddedCluster(tmp_path) as cluster:
        fill(cluster)
        cluster.stop()
        shutil.rmtree(tmp_path / "store" / "config")
        (tmp_path / "store" / "config").mkdir()
        found = check(tmp_path / "store")
        cluster.start()
        log = cluster.log_path.read_text()
        cluster.create_topic("T", queues=2)
        with PollConsumer("GID_c", "T", name_server=cluster.name_server, start="first") as consumer:
            bodies = {message.body for _, message in zip(range(20), consumer, strict=False)}

    words = "config/topics.json is missing, and the topics of the messages are unknown"
    assert (found.returncode, words in found.stdout.replace("\n", "")) == (1, True)
    assert words in log
    assert bodies == {b"%d" % n for n in range(20)}


@pytest.mark.parametrize(
    ("name", "words"), [("none", "is not a directory"), ("up", "has no commitlog and no config; ")]
)
def test_what_is_no_store_is_exit_code_2(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "up" / "store").mkdir(parents=True)
    ended = check(tmp_path / name)

    assert (ended.returncode, ended.stdout) == (2, "")
    assert words in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_a_plain_copy_of_a_stopped_store_is_a_backup(tmp_path: Path) -> None:
    with EmbeddedCluster(tmp_path / "first") as cluster:
        fill(cluster)
    (tmp_path / "second").mkdir()
    # Unlike Python's, this copy leaves out what was never written: nearly all of 1.5 GB.
    subprocess.run(["cp", "-R", tmp_path / "first" / "store", tmp_path / "second"], check=True)

    assert check(tmp_path / "second" / "store").returncode == 0

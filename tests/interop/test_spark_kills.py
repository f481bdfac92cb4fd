"""Drivers, executors, Python workers and the broker killed at random; nothing lost or twice.

Each run starts the query again from its checkpoint, with new messages and at times a new queue,
and kills something while it works. At the end a plain Parquet reader, which knows nothing of
Spark, must find every message of every queue exactly once. SPARK_KILLS says how many runs,
SPARK_KILLS_SEED what becomes of them.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import pyarrow.dataset as ds

from sparrowmq import Admin, Message, MessageQueue, Producer
from sparrowmq.testing import EmbeddedCluster

RUNS = int(os.environ.get("SPARK_KILLS", "4"))
SEED = int(os.environ.get("SPARK_KILLS_SEED", "0") or 0) or random.SystemRandom().randrange(1 << 30)
RUN_TIMEOUT_S = 400
# From the query's start on; most of its work is done within this time.
KILL_DELAY_S_MAX = 8.0
JOB = Path(__file__).with_name("spark_ingest_job.py")
VICTIMS = ("driver", "worker", "broker", "executor")

pytestmark = [pytest.mark.interop, pytest.mark.timeout((RUNS + 2) * RUN_TIMEOUT_S)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(tmp_path / "data") as found:
        yield found


class Job:
    """The query, as a process with a session of its own."""

    def __init__(self, cluster: EmbeddedCluster, place: Path, victim: str) -> None:
        master = "local-cluster[2,1,512]" if victim == "executor" else "local[2]"
        self.log = place / "job.log"
        self.is_started = threading.Event()
        self.words: list[str] = []
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(JOB), master, cluster.name_server, str(place)],
                env={**os.environ, "SPARK_WORKER_DIR": str(place / "work")},
                cwd=place,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.words.append(line.strip())
                self.is_started.set()
        self.is_started.set()

    def wait(self) -> None:
        """Wait for the end, and see that nothing of the session is left."""
        try:
            self.process.wait(RUN_TIMEOUT_S)
        finally:
            self.kill_all()
            self._reader.join()

    def kill_all(self) -> None:
        for pid in self._members(""):
            kill(pid)
        self.process.wait()

    def kill_one(self, words: str, dice: random.Random) -> bool:
        """Kill one process of the session whose command line holds these words."""
        found = sorted(self._members(words))
        if found:
            kill(dice.choice(found))
        return bool(found)

    def _members(self, words: str) -> Iterator[int]:
        for name in os.listdir("/proc"):
            try:
                fields = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
                command = Path("/proc", name, "cmdline").read_bytes().replace(b"\0", b" ")
            except OSError:
                continue
            # The fourth field behind the name is the session.
            if int(fields[3]) == self.process.pid and words.encode() in command:
                yield int(name)


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def produce(cluster: EmbeddedCluster, queues: int, first: int, count: int) -> None:
    with Producer("GID_kills_feed", name_server=cluster.name_server) as producer:
        for number in range(first, first + count):
            queue = MessageQueue("in", "broker-a", number % queues)
            producer.send(Message("in", b"%d" % number), queue=queue)


def strike(job: Job, cluster: EmbeddedCluster, victim: str, dice: random.Random) -> bool:
    """Kill the victim after a random time, unless the query has ended before."""
    job.is_started.wait(RUN_TIMEOUT_S)
    deadline = time.monotonic() + dice.uniform(0, KILL_DELAY_S_MAX)
    while time.monotonic() < deadline and job.process.poll() is None:
        time.sleep(0.01)
    if job.process.poll() is not None or "done" in job.words:
        return False
    if victim == "driver":
        job.kill_all()
    elif victim == "broker":
        cluster.kill()
        cluster.restart()
    elif victim == "executor":
        return job.kill_one("CoarseGrainedExecutorBackend", dice)
    else:
        return job.kill_one(" -m pyspark", dice)
    return True


def test_every_message_is_in_parquet_once(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    dice = random.Random(SEED)
    place = tmp_path / "place"
    place.mkdir()
    queues = 3
    cluster.create_topic("in", queues=queues)
    total, tally = 0, dict.fromkeys(VICTIMS, 0)
    for run in range(RUNS):
        if run % 3 == 2:
            queues += 1
            cluster.create_topic("in", queues=queues)
        produce(cluster, queues, total, 900)
        total += 900
        victim = VICTIMS[run % len(VICTIMS)] if run < len(VICTIMS) else dice.choice(VICTIMS)
        job = Job(cluster, place, victim)
        try:
            tally[victim] += strike(job, cluster, victim, dice)
        finally:
            job.wait()
    last = Job(cluster, place, "none")
    last.wait()

    assert "done" in last.words, last.log.read_text()[-3000:]
    table = ds.dataset(place / "table", format="parquet", partitioning="hive").to_table()
    found = list(zip(table["queueId"].to_pylist(), table["queueOffset"].to_pylist(), strict=True))
    with Admin(name_server=cluster.name_server) as admin:
        held = {
            (queue, offset)
            for queue in range(queues)
            for offset in range(admin.max_offset(MessageQueue("in", "broker-a", queue)))
        }
        lags = [each.lag for each in admin.group_lag("GID_kills", "in")]
    print(f"{RUNS} runs, seed {SEED}: killed {tally}; {len(found)} rows of {total} messages")
    assert total == len(held)
    assert len(found) == len(set(found)), f"twice, seed {SEED}"
    assert held == set(found), f"lost, seed {SEED}"
    assert sorted(int(body) for body in table["body"].to_pylist()) == list(range(total))
    assert [0] * queues == lags

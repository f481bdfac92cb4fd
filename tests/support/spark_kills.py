"""Queries of Spark to be killed: their processes, what feeds them, and the killing."""

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

from sparrowmq import Message, MessageQueue, Producer
from sparrowmq.testing import EmbeddedCluster

RUN_TIMEOUT_S = 400
# From the query's start on; most of its work is done within this time.
KILL_DELAY_S_MAX = 8.0
VICTIMS = ("driver", "worker", "broker", "executor")


class Job:
    """A query's script, run as a process with a session of its own.

    Args:
        script: gets the master, the name server and the place as arguments; prints a word when the
            query has started and `done` at its end.
        place: its working directory.
        victim: what is to be killed; an executor needs a cluster.
        arguments: further ones.
    """

    def __init__(
        self, script: Path, cluster: EmbeddedCluster, place: Path, victim: str, *arguments: str
    ) -> None:
        master = "local-cluster[2,1,512]" if victim == "executor" else "local[2]"
        self.log = place / "job.log"
        self.is_started = threading.Event()
        self.words: list[str] = []
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(script), master, cluster.name_server, str(place), *arguments],
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
            _kill(pid)
        self.process.wait()

    def kill_one(self, words: str, dice: random.Random) -> bool:
        """Kill one process of the session whose command line holds these words."""
        found = sorted(self._members(words))
        if found:
            _kill(dice.choice(found))
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


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def produce(cluster: EmbeddedCluster, queues: int, first: int, count: int) -> None:
    with Producer("GID_kills_feed", name_server=cluster.name_server) as producer:
        for number in range(first, first + count):
            queue = MessageQueue("in", "broker-a", number % queues)
            producer.send(Message("in", b"%d" % number), queue=queue)


def strike(
    job: Job, cluster: EmbeddedCluster, victim: str, dice: random.Random, *, delay_s: float
) -> bool:
    """Kill the victim after a time from the query's start on, unless the query has ended before."""
    job.is_started.wait(RUN_TIMEOUT_S)
    deadline = time.monotonic() + delay_s
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

"""Queries of Spark to be killed: their processes, what feeds them, and the killing."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from sparrowmq import Admin, Message, MessageExt, MessageQueue, PollConsumer, Producer
from sparrowmq.spark.checkpoint_offsets import decode_offsets
from sparrowmq.testing import EmbeddedCluster

RUN_TIMEOUT_S = 400
# From the query's start on; most of its work is done within this time.
KILL_DELAY_S_MAX = 8.0
VICTIMS = ("worker", "broker", "executor", "driver")
LOCAL, CLUSTER = "local[2]", "local-cluster[2,1,512]"


class Job:
    """A query's script, run as a process with a session of its own.

    Args:
        script: gets the master, the name server and the place as arguments; prints a word when the
            query has started and `done` at its end.
        place: its working directory.
        master: LOCAL, or CLUSTER for executors that can be killed.
        arguments: further ones.
    """

    def __init__(
        self, script: Path, cluster: EmbeddedCluster, place: Path, master: str, *arguments: str
    ) -> None:
        self.master = master
        self.log = place / "job.log"
        self.is_started = threading.Event()
        self.words: list[str] = []
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(script), master, cluster.name_server, str(place), *arguments],
                env={
                    **os.environ,
                    "PYSPARK_PYTHON": sys.executable,
                    "SPARK_WORKER_DIR": str(place / "work"),
                },
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

    @property
    def is_done(self) -> bool:
        """Whether the query or its process has ended."""
        return "done" in self.words or self.process.poll() is not None

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


class Campaign:
    """Kills over many runs of a query, until there were enough; each kind comes early.

    Args:
        kills: how many there are to be, at the least.
        dice: decides what is killed next.
        is_proven: whether the kills have struck what they were to strike.
    """

    def __init__(
        self, kills: int, dice: random.Random, is_proven: Callable[[], bool] = lambda: True
    ) -> None:
        self.tally: dict[str, int] = dict.fromkeys(VICTIMS, 0)
        self.runs = 0
        self._kills = kills
        self._dice = dice
        self._is_proven = is_proven

    @property
    def is_over(self) -> bool:
        """Whether enough was killed; fails where runs end before anything can be."""
        is_enough = sum(self.tally.values()) >= self._kills and self._is_proven()
        assert is_enough or self.runs < 2 * self._kills + 2, f"nothing proven: {self.progress}"
        return is_enough

    def next_run(self) -> str:
        """Begin a run; return the master that Spark is to have."""
        self.runs += 1
        # An executor is a process of its own in a cluster alone, whose start takes longer.
        return CLUSTER if self.runs % 2 else LOCAL

    @property
    def progress(self) -> str:
        """The runs and kills up to now, in words."""
        kinds = ", ".join(f"{count} of {victim}" for victim, count in self.tally.items())
        return f"run {self.runs}, {sum(self.tally.values())} kills ({kinds})"

    def strike_often(self, job: Job, cluster: EmbeddedCluster, moment: Callable[[], float]) -> None:
        """Kill one thing after the other until the query ends, its driver last.

        Args:
            moment: waits for what a kill is to disturb; returns the seconds to wait longer.
        """
        left_out = {"driver"} if job.master == CLUSTER else {"driver", "executor"}
        others = [each for each in VICTIMS if each not in left_out]
        others.sort(key=lambda each: (self.tally[each], self._dice.random()))
        for victim in [*others, self._dice.choice(others), "driver"]:
            if not self.is_over and not job.is_done:
                self.tally[victim] += strike(job, cluster, victim, self._dice, delay_s=moment())


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def set_queues(cluster: EmbeddedCluster, queues: int) -> None:
    """Give the topic of the messages so many queues."""
    with Admin(name_server=cluster.name_server) as admin:
        admin.update_topic("in", read_queues=queues, write_queues=queues)


def produce(
    cluster: EmbeddedCluster,
    queues: int,
    first: int,
    count: int,
    body_of: Callable[[int], bytes] = b"%d".__mod__,
) -> None:
    with Producer("GID_kills_feed", name_server=cluster.name_server) as producer:
        for number in range(first, first + count):
            queue = MessageQueue("in", "broker-a", number % queues)
            producer.send(Message("in", body_of(number)), queue=queue)


def committed_ends(checkpoint: Path) -> dict[MessageQueue, int]:
    """Return where the last micro-batch that Spark holds for done ends; what is before is done."""
    done = [int(path.name) for path in checkpoint.glob("commits/*") if path.name.isdigit()]
    if not done:
        return {}
    lines = (checkpoint / "offsets" / str(max(done))).read_text().splitlines()
    return decode_offsets(json.loads(lines[-1]))


def read_messages(cluster: EmbeddedCluster, ends: Mapping[MessageQueue, int]) -> list[MessageExt]:
    """Return the messages of queues from the first on."""
    found: list[MessageExt] = []
    with PollConsumer("GID_kills_look", name_server=cluster.name_server) as consumer:
        for queue, end in ends.items():
            at = 0
            while at < end:
                messages = consumer.pull(queue, at, 1_000).messages
                assert messages, f"{queue} has no message at {at}"
                found += [each for each in messages if each.queue_offset < end]
                at = messages[-1].queue_offset + 1
    return found


def strike(
    job: Job, cluster: EmbeddedCluster, victim: str, dice: random.Random, *, delay_s: float
) -> bool:
    """Kill the victim of a query that has started after a time, unless the query ends before."""
    job.is_started.wait(RUN_TIMEOUT_S)
    deadline = time.monotonic() + delay_s
    while time.monotonic() < deadline and not job.is_done:
        time.sleep(0.01)
    if job.is_done:
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

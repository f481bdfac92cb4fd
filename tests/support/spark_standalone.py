"""A Spark cluster of one machine: a standalone master and its workers, each a process."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyspark

from sparrowmq.spark import find_java
from waiting import wait_until

SPARK_HOME = Path(pyspark.__file__).parent
# A driver and two executors start beside the master and the workers, on a busy machine.
START_TIMEOUT_S = 120.0
# Each JVM here lives for a minute at most: compile little.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_DEPLOY = "org.apache.spark.deploy"
_PORTS = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")


def environ(**changes: str) -> dict[str, str]:
    """Return the environment of Spark's processes, without what this machine has set for it."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYSPARK_", "SPARK_", "PYTHON"))
    }
    return {
        **kept,
        "JAVA_HOME": str(find_java().path),
        "JAVA_TOOL_OPTIONS": QUICK_JAVA,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_LOCAL_IP": "127.0.0.1",
        **changes,
    }


class Standalone:
    """A master, and workers of one core and 2 GB each.

    Args:
        place: a directory for logs and the workers' files.
    """

    def __init__(self, place: Path) -> None:
        self._place = place
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self.url = ""

    def start(self, *workers: str) -> None:
        """Start the master and workers of these names; all are registered afterwards."""
        log = self._begin("master", f"{_DEPLOY}.master.Master", *_PORTS)
        self.url = _wait_for(log, "Starting Spark master at").split(" at ")[1].strip()
        for name in workers:
            sizes = ("--cores", "1", "--memory", "2g", "--work-dir", str(self._place / name))
            log = self._begin(name, f"{_DEPLOY}.worker.Worker", *_PORTS, *sizes, self.url)
            _wait_for(log, "Successfully registered with master")

    def kill(self, worker: str) -> int:
        """Kill a worker and its executors, as if its machine went; return how many executors."""
        process = self._started[worker]
        executors = list(_executors_of(process.pid))
        for pid in (process.pid, *executors):
            os.kill(pid, signal.SIGKILL)
        process.wait()
        return len(executors)

    def stop(self) -> None:
        """End all processes."""
        for process in reversed(self._started.values()):
            process.terminate()
        for process in self._started.values():
            process.wait(30)

    def _begin(self, name: str, *arguments: str) -> Path:
        log = self._place / f"{name}.log"
        command = [str(SPARK_HOME / "bin" / "spark-class"), *arguments]
        with log.open("wb") as output:
            self._started[name] = subprocess.Popen(
                command, cwd=self._place, env=environ(), stdout=output, stderr=output
            )
        return log


def _wait_for(log: Path, words: str) -> str:
    def find() -> list[str]:
        return [line for line in log.read_text(errors="replace").splitlines() if words in line]

    wait_until(f"{words!r} in {log}", find, timeout_s=START_TIMEOUT_S)
    return find()[0]


def _executors_of(pid: int) -> Iterator[int]:
    for home in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((home / "stat").read_text().rpartition(")")[2].split()[1])
            command = (home / "cmdline").read_bytes()
        except OSError:
            continue
        if parent == pid and b"CoarseGrainedExecutorBackend" in command:
            yield int(home.name)

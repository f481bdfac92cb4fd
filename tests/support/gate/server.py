"""`sparrowmq up` as a process that is killed and started again on the same data and ports."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ports import free_ports

SOURCE = Path(__file__).parents[3] / "src"
# What a server may serve beside the two remoting ports, and the options that name the ports.
MORE_PORTS = {
    "gRPC": "--grpc-port",
    "health": "--health-port",
    "page": "--dashboard-port",
    "exporter": "--metrics-port",
}
PROGRAM = "import sys; from sparrowmq.cli.main import main; sys.exit(main())"
START_S_MAX = 120


class Server:
    """A name server and a broker in one process; the page and the exporter are its children.

    Args:
        data: their directory.
        options: more of `sparrowmq up`.
        source: where the code is that the next start runs.
        more: the other ports that are served, of `MORE_PORTS`.
    """

    def __init__(
        self, data: Path, *options: str, source: Path = SOURCE, more: Sequence[str] = ()
    ) -> None:
        self.source = source
        self.name_server_port, self.broker_port, *ports = free_ports(2 + len(more))
        # By their names, all ports that are served.
        self.ports = {"broker": self.broker_port, "name server": self.name_server_port}
        self.ports |= dict(zip(more, ports, strict=True))
        for name in more:
            options += (MORE_PORTS[name], str(self.ports[name]))
        if "page" in more:
            options += ("--dashboard",)
        self._log = data.with_suffix(".log")
        self._command = [
            *(sys.executable, "-c", PROGRAM, "up", "--data", str(data)),
            *("--nameserver-port", str(self.name_server_port)),
            *("--broker-port", str(self.broker_port), *options),
        ]
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> float:
        """Start and return how many seconds it took until the servers say that they serve.

        Raises: RuntimeError if they end instead, or do not within `START_S_MAX`.
        """
        # As a variable: older versions do not know the setting.
        environment = {**os.environ, "PYTHONPATH": str(self.source)}
        if "gRPC" not in self.ports:
            environment["SPARROWMQ_GRPC_PORT"] = "-1"
        # What is compiled is kept, as for users.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        begun = time.monotonic()
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                self._command,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        taken_s = time.monotonic() - begun
        if not line.startswith("ready") or taken_s > START_S_MAX:
            self.kill()
            told = self._log.read_text(errors="replace").splitlines()[-1:]
            raise RuntimeError(f"no start: {line!r} after {taken_s:.1f} s; {self._log}: {told}")
        for name in {"page", "exporter"} & self.ports.keys():
            self._await(name, begun + START_S_MAX)
        return taken_s

    def _await(self, name: str, deadline_s: float) -> None:
        """Wait until a port of a child is served."""
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.ports[name]), 1).close()
            except OSError as error:
                if time.monotonic() > deadline_s:
                    self.kill()
                    raise RuntimeError(f"no {name}; see {self._log}") from error
                time.sleep(0.1)
            else:
                return

    def kill(self) -> None:
        """Kill the process, as `kill -9` does."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End the servers as Ctrl-C does."""
        self._end(signal.SIGINT)

    def _end(self, number: int) -> None:
        if self._process is not None:
            _, *children = self.pids()
            self._process.send_signal(number)
            self._process.wait(60)
            for child in children:
                # They end with the server, but perhaps later.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    def pids(self) -> list[int]:
        """Return the server's process and its children."""
        with contextlib.suppress(FileNotFoundError):
            children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
            return [self.pid, *map(int, children.split())]
        return [self.pid]

    def memory_mb(self) -> float:
        """Return the resident memory of all processes."""
        return sum(map(_memory_mb, self.pids()))

    def processor_s(self) -> float:
        """Return the processor time so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def descriptor_count(self) -> int:
        """Return how many files and sockets all processes have open."""
        return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in self.pids())


def _memory_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"no memory of {pid}")

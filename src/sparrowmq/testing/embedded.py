"""A whole cluster for a test: one name server and one broker in a child process.

    with EmbeddedCluster() as cluster:
        cluster.create_topic("T", queues=8)
        with Producer("GID_p", name_server=cluster.name_server) as producer:
            ...

The child process does the work of `sparrowmq up` on free ports of the loopback interface, without
the packages that the command needs. A test can kill the servers (`kill`) and start them again on
the same directory and ports (`restart`). The servers do not share the interpreter's lock with the
test. They stop when the parent ends in any way.

On Linux nobody else gets the ports of servers that are away: the parent holds them too.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import ssl
import subprocess
import sys
import weakref
from pathlib import Path
from typing import IO, Literal, Self

from sparrowmq.client.faces.blocking_admin import Admin
from sparrowmq.client.faces.user_calls import for_users
from sparrowmq.errors import ConfigError, UsageError
from sparrowmq.testing.own_directory import OwnDirectory
from sparrowmq.testing.questions import WAIT_MS, ClusterFailed, start_or_close, wait_until_consumed

# A store of many gigabytes is read before its broker serves.
_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 20


@for_users
class EmbeddedCluster:
    """A name server and a broker in a child process.

    Args:
        data_dir: the directory of the data, which stays; None takes a temporary directory, which
            `close` removes.
        flush: "sync" acknowledges a message once it is on the disk, "async" at once.
        serves_grpc: whether clients of RocketMQ 5 are served too, which needs the extra `grpc`.
        options: further options of `sparrowmq up`, without `--brokers`.
        tls: the context with which `create_topic` connects, if `options` make the servers speak
            TLS.

    Raises: ConfigError for options that are not texts, or with `--brokers`.
    """

    def __init__(
        self,
        data_dir: Path | str | None = None,
        *,
        flush: Literal["sync", "async"] = "sync",
        serves_grpc: bool = False,
        options: tuple[str, ...] = (),
        tls: ssl.SSLContext | None = None,
    ) -> None:
        if isinstance(options, str) or not all(isinstance(option, str) for option in options):
            raise ConfigError(
                f"options is {options!r}; it must be a tuple of texts, such as "
                '("--retention-hours", "1")'
            )
        if any(option.partition("=")[0] == "--brokers" for option in options):
            raise ConfigError(
                "--brokers: an EmbeddedCluster has one broker; leave the option out, and "
                "run `python -m sparrowmq.hosting --brokers N` for more"
            )
        self._temporary: OwnDirectory | None = None
        if data_dir is None:
            self._temporary = OwnDirectory()
            data_dir = self._temporary.name
        # A test may change the current directory before a restart.
        self.data_dir = Path(data_dir).absolute()
        self._flush = flush
        self._options = options
        self._tls = tls
        self._process: subprocess.Popen[bytes] | None = None
        self._end_at_exit: weakref.finalize[..., EmbeddedCluster] | None = None
        self._log: IO[bytes] | None = None
        # Without the service, no broker of a test takes the port of another.
        self._ports = (0, 0, 0 if serves_grpc else -1)
        self._held: list[socket.socket] = []
        weakref.finalize(self, _close, self._held)
        self._addresses = ("", "", "")

    def __enter__(self) -> Self:
        start_or_close(self.start, self.close, runs_already=self._process is not None)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def name_server(self) -> str:
        """The name server's address, `ip:port`."""
        return self._addresses[0]

    @property
    def broker(self) -> str:
        """The broker's address, `ip:port`."""
        return self._addresses[1]

    @property
    def grpc(self) -> str:
        """The address for clients of RocketMQ 5, `ip:port`; "" without `serves_grpc`."""
        return self._addresses[2]

    @property
    def log_path(self) -> Path:
        """The file with the servers' log."""
        return self.data_dir / "up.log"

    @property
    def pid(self) -> int:
        """The id of the process.

        Raises: UsageError if the servers do not run.
        """
        if self._process is None:
            raise UsageError("the embedded cluster does not run")
        return self._process.pid

    def start(self) -> None:
        """Start the servers; return when they serve.

        A second start takes the ports of the first: clients find the servers again.

        Raises: ClusterFailed if they do not start, or not within two minutes; UsageError if they
        run already.
        """
        if self._process is not None:
            raise UsageError("the embedded cluster runs already")
        if self._temporary is not None and not self._temporary.remove.alive:
            # `close` has removed the directory of the last start.
            self._temporary = OwnDirectory()
            self.data_dir = Path(self._temporary.name).absolute()
        self._hold_ports()
        try:
            self.data_dir.mkdir(parents=True, exist_ok=True)
            self._log = self.log_path.open("ab")
        except OSError as error:
            _close(self._held)
            raise ClusterFailed(
                f"the servers cannot have their files in {str(self.data_dir)!r}: {error.strerror}; "
                "give another data_dir"
            ) from error
        command = [
            *(sys.executable, "-m", "sparrowmq.hosting", "--stop-with-stdin"),
            *("--nameserver-port", str(self._ports[0]), "--broker-port", str(self._ports[1])),
            *("--grpc-port", str(self._ports[2])),
            *("--data", str(self.data_dir), "--flush", self._flush),
            # A test must pass on a machine with a full disk.
            *("--disk-force-percent", "100", "--disk-full-percent", "100"),
            *self._options,
        ]
        # In a session of its own, a terminal's Ctrl-C does not reach it: clients leave first.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )
        if self._temporary is not None:
            # At the end of an interpreter that has not closed the cluster this comes before the
            # removal of the directory, of which the servers would make parts again.
            self._end_at_exit = weakref.finalize(self, _end, self._process, os.getpid())
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            has_line = selector.select(_START_TIMEOUT_S)
        line = (self._process.stdout.readline() if has_line else b"").decode()
        found = dict(part.split("=", 1) for part in line.split() if "=" in part)
        if not line.startswith("ready ") or not found.keys() >= {"nameserver", "broker"}:
            self.kill()
            how = "" if has_line else f" within {_START_TIMEOUT_S:g} s"
            log = self.log_path.read_text()[-2000:]
            raise ClusterFailed(f"the servers did not start{how}: {log}")
        self._addresses = (found["nameserver"], found["broker"], found.get("grpc", ""))
        self._ports = (
            _port(self.name_server),
            _port(self.broker),
            _port(self.grpc) if self.grpc else -1,
        )

    def stop(self) -> None:
        """Stop the servers cleanly, as SIGTERM does; nothing happens if they do not run."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._forget_process()

    def kill(self) -> None:
        """End the servers at once, as `kill -9` does; nothing happens if they do not run."""
        if self._process is not None:
            self._process.kill()
            self._forget_process()

    def restart(self) -> None:
        """Stop the servers if they run, and start them again on the same data and ports."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop the servers and remove a temporary directory."""
        self.stop()
        _close(self._held)
        if self._temporary is not None:
            self._temporary.remove()

    def create_topic(self, topic: str, queues: int = 8) -> None:
        """Create a topic; return when clients can find the topic."""
        with Admin(name_server=self.name_server, tls=self._tls) as admin:
            admin.create_topic(topic, queues)

    def wait_until_consumed(self, group: str, *topics: str, timeout_ms: int = WAIT_MS) -> None:
        """Wait until a group has committed every message of topics (`wait_until_consumed`)."""
        wait_until_consumed(self.name_server, group, *topics, timeout_ms=timeout_ms, tls=self._tls)

    def _hold_ports(self) -> None:
        """Choose the ports and bind them, so that no other server or connection gets one.

        On Linux the servers can listen there too: these sockets do not, and allow it as theirs do.
        """
        if sys.platform != "linux" or self._held:
            return
        for port in self._ports:
            if port < 0:
                continue
            sock = socket.socket()
            self._held.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind(("127.0.0.1", port))
            except OSError as error:
                _close(self._held)
                raise ClusterFailed(
                    f"the servers cannot listen on 127.0.0.1:{port}: {error.strerror}"
                ) from error
        nameserver, broker, grpc = [*(each.getsockname()[1] for each in self._held), -1][:3]
        self._ports = (nameserver, broker, grpc)

    def _forget_process(self) -> None:
        process, self._process = self._process, None
        assert process is not None
        process.wait()
        if self._end_at_exit is not None:
            self._end_at_exit.detach()
        for stream in (process.stdin, process.stdout, self._log):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        self._log = None


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    """End servers that nobody has stopped, unless this process was forked from their owner."""
    if os.getpid() == owner:
        process.kill()
        process.wait()


def _close(held: list[socket.socket]) -> None:
    while held:
        held.pop().close()


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])

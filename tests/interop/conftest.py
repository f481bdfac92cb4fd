"""The rig: Apache RocketMQ from Maven Central, its Java client, and our own cluster, as processes.

Every process listens on loopback, on free ports, with its data in the test run's temporary
directory. Jars and compiled classes are kept in `.cache/interop/`. Where Java, Maven or the jars
are missing, the tests that need them are skipped and say which.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ports import free_port
from sparrowmq import Admin
from sparrowmq.calling.blocking_driver import BlockingDriver
from sparrowmq.client.directory_setup import make_directory
from sparrowmq.client.operations import administer
from sparrowmq.errors import SparrowError
from sparrowmq.model.names import retry_topic
from waiting import JVM_LIMIT_S, wait_until

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
# The last of 4.x, and the newest of 5.x, whose brokers and clients behave otherwise in places.
VERSIONS = ("4.9.7", "5.5.0")
CACHE = ROOT / ".cache" / "interop"
JAVA_OPTIONS = (
    "-Xms64m",
    "-Xmx512m",
    # A test's JVM lives for seconds: compile little, and leave the second core to the peer.
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    # MappedFile unmaps its buffers through these.
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
)
PROXY_JARS = "proxy-jars"
# What the servers of Apache print once they serve; the second is the proxy's.
BOOTED = ("boot success", "startup successfully")
STOP_TIMEOUT_S = 30.0
LOGBACK = """<configuration>
  <appender name="file" class="ch.qos.logback.core.FileAppender">
    <file>{path}</file>
    <encoder><pattern>%d %-5p %c{{1}} - %m%n</pattern></encoder>
  </appender>
  <root level="INFO"><appender-ref ref="file"/></root>
</configuration>
"""


class Lines:
    """A child process and the lines it has written so far."""

    def __init__(self, command: list[str], *, cwd: Path, env: dict[str, str], log: Path) -> None:
        self._log = log
        self._lines: list[str] = []
        self._events: list[dict[str, Any]] = []
        self._named: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        self._changed = threading.Condition()
        self._stderr = log.open("wb")
        self.process = subprocess.Popen(
            command,
            cwd=cwd,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            encoding="utf-8",
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self._lines.append(line.rstrip("\n"))
                # A process that is killed may leave half a line.
                if line.startswith("{") and line.endswith("}\n"):
                    event = json.loads(line)
                    self._events.append(event)
                    self._named[event.get("event", "")].append(event)
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    @property
    def lines(self) -> list[str]:
        with self._changed:
            return list(self._lines)

    @property
    def events(self) -> list[dict[str, Any]]:
        """The lines that are JSON objects."""
        with self._changed:
            return list(self._events)

    def named(self, event: str) -> list[dict[str, Any]]:
        """The JSON objects that tell of one kind of event."""
        with self._changed:
            return list(self._named[event])

    def queue_ids(self) -> list[int]:
        """The queues that a Java member says it has, last."""
        told = self.named("assignment")
        return sorted(int(queue.rpartition(":")[2]) for queue in told[-1]["queues"]) if told else []

    def wait_for(
        self, what: str, is_so: Callable[[], object], *, timeout_s: float = JVM_LIMIT_S
    ) -> None:
        """Wait until `is_so()` holds; it is asked again at each new line."""
        deadline = time.monotonic() + timeout_s
        while not is_so():
            with self._changed:
                ended = self.process.poll() is not None and not self._reader.is_alive()
                if time.monotonic() > deadline or (ended and not is_so()):
                    pytest.fail(
                        f"no {what} within {timeout_s} s (exit {self.process.poll()}); "
                        f"last lines {self._lines[-5:]}; {self._log}: {self._tail()}"
                    )
                self._changed.wait(0.05)

    def _tail(self) -> str:
        return self._log.read_bytes()[-2000:].decode("utf-8", "replace")

    def stop(self, *, by_signal: bool = False) -> int:
        """Ask the process to end (`stop` on its standard input, or SIGTERM) and wait for it."""
        try:
            if self.process.poll() is None and by_signal:
                self.process.send_signal(signal.SIGTERM)
            elif self.process.poll() is None:
                assert self.process.stdin is not None
                self.process.stdin.write("stop\n")
                self.process.stdin.flush()
            return self.process.wait(STOP_TIMEOUT_S)
        finally:
            self.kill()

    def wait_end(self, timeout_s: float = JVM_LIMIT_S) -> int:
        """Wait until the process has ended and all its lines are read; return its exit code."""
        try:
            code = self.process.wait(timeout_s)
            self.wait_for("last line", lambda: not self._reader.is_alive())
            return code
        except subprocess.TimeoutExpired:
            pytest.fail(f"{self.process.args!r} does not end; last lines {self.lines[-5:]}")
        finally:
            self.kill()

    def kill(self) -> None:
        """End the process now, if it has not ended."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(STOP_TIMEOUT_S)
        self._reader.join(STOP_TIMEOUT_S)
        for stream in (self.process.stdin, self.process.stdout, self._stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


MQADMIN = "org.apache.rocketmq.tools.command.MQAdminStartup"


class Java:
    """The jars of one version of Apache RocketMQ, and the JVM that runs them."""

    def __init__(self, java: str, home: Path, *, version: str) -> None:
        self.version = version
        self._java = java
        self._home = home
        self._count = 0

    def start(
        self,
        main: str,
        *arguments: str,
        tools: str = "",
        jars: str = "jars",
        properties: dict[str, str] | None = None,
    ) -> Lines:
        """Start a main class of a set of jars, with system properties.

        `tools` is what mqadmin finds as its file of keys, tools.yml.
        """
        self._count += 1
        home = self._home / f"{self._count}-{main.rpartition('.')[2]}"
        (home / "conf").mkdir(parents=True)
        for name in ("logback_namesrv", "logback_broker", "logback_tools", "rmq.proxy.logback"):
            text = LOGBACK.format(path=home / "peer.log")
            (home / "conf" / f"{name}.xml").write_text(text)
        if tools:
            (home / "conf" / "tools.yml").write_text(tools)
        command = [
            self._java,
            *JAVA_OPTIONS,
            # Logs and local offsets go to the user's home otherwise.
            f"-Duser.home={home}",
            f"-Drocketmq.home.dir={home}",
            f"-Djava.io.tmpdir={home}",
            *(f"-D{name}={value}" for name, value in (properties or {}).items()),
            *("-cp", class_path(self.version, jars), main),
            *arguments,
        ]
        return Lines(command, cwd=home, env=dict(os.environ), log=home / "stderr.log")

    def peer(self, verb: str, **options: object) -> Lines:
        """Start Apache's client; options are written `key=value` (booleans as Java does)."""
        pairs = [
            f"{key}={str(value).lower() if isinstance(value, bool) else value}"
            for key, value in options.items()
        ]
        return self.start("Peer", verb, *pairs)

    def python_peer(self, verb: str, *, prefix: tuple[str, ...] = (), **options: object) -> Lines:
        """Start our own client as a process, `prefix` before the command; the same options."""
        self._count += 1
        home = self._home / f"{self._count}-python"
        home.mkdir()
        pairs = [f"{key}={value}" for key, value in options.items()]
        command = [*prefix, sys.executable, str(HERE / "python_peer.py"), verb, *pairs]
        return Lines(command, cwd=home, env=dict(os.environ), log=home / "stderr.log")

    def run_peer(self, verb: str, **options: object) -> list[dict[str, Any]]:
        """Run Apache's client to its end and return what it told."""
        lines = self.peer(verb, **options)
        if lines.wait_end() != 0:
            pytest.fail(f"Java's {verb} failed: {lines._tail()}")
        return lines.events

    def mqadmin(self, cluster: Cluster, *arguments: str, tools: str = "") -> Lines:
        """Run a command of mqadmin to its end."""
        at = ("-n", cluster.name_server)
        lines = self.start(MQADMIN, *arguments, *at, tools=tools)
        lines.wait_end()
        return lines


class Cluster:
    """A name server and a broker, whoever's."""

    name: str
    name_server: str
    broker: str
    # How the rig itself connects.
    tls: ssl.SSLContext | None = None

    def __init__(self, java: Java) -> None:
        self._java = java

    def create_topic(self, topic: str, *, queues: int = 8) -> str:
        with Admin(name_server=self.name_server, tls=self.tls) as admin:
            admin.create_topic(topic, queues)
        return topic

    def create_retry_topic(self, group: str) -> None:
        directory = make_directory(self.name_server, tls=self.tls)
        with BlockingDriver(tls=self.tls) as driver:
            driver.run(administer.create_topic(directory, retry_topic(group), queues=1))


class ApacheCluster(Cluster):
    """Apache's name server and broker, each a JVM. The store root is given."""

    name = "apache"

    def __init__(self, java: Java, store: Path, **settings: object) -> None:
        super().__init__(java)
        self._settings = settings
        self._store = store
        self._processes: list[Lines] = []
        self.name_server = f"127.0.0.1:{free_port()}"
        # A broker also listens on the next port (replication) and the last but one (VIP channel).
        self.broker = f"127.0.0.1:{free_port(-2, 1)}"

    def start(self, *, name_server: str = "") -> None:
        """Start both, or the broker alone under a name server that runs."""
        try:
            if name_server:
                self.name_server = name_server
            else:
                self._start("namesrv.NamesrvStartup", self._name_server_settings())
            self.start_broker()
            self._wait_for_registration()
        except BaseException:
            self.kill()
            raise

    def kill_broker(self) -> None:
        """Kill the broker alone; `start_broker` starts it again on its store and port."""
        self._processes.pop().kill()

    @property
    def broker_pid(self) -> int:
        return int(self._processes[-1].process.pid)

    def start_broker(self) -> None:
        self._start("broker.BrokerStartup", self._broker_settings())

    def _wait_for_registration(self) -> None:
        """Wait until the name server knows the broker: 5.x says that it is up before that."""
        deadline = time.monotonic() + JVM_LIMIT_S
        with Admin(name_server=self.name_server, tls=self.tls) as admin:
            while True:
                try:
                    admin.route("SELF_TEST_TOPIC")
                    return
                except SparrowError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.05)

    def _start(self, main: str, settings: dict[str, object]) -> None:
        self._run(main, "-c", str(self._written(main, settings)))

    def _written(self, name: str, settings: dict[str, object]) -> Path:
        self._store.mkdir(parents=True, exist_ok=True)
        path = self._store.parent / f"{name}.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return path

    def _run(self, main: str, *arguments: str, jars: str = "jars") -> None:
        lines = self._java.start(f"org.apache.rocketmq.{main}", *arguments, jars=jars)
        self._processes.append(lines)
        lines.wait_for(
            f"{main} in service",
            lambda: any(told in line for line in lines.lines for told in BOOTED),
        )

    def _name_server_settings(self) -> dict[str, object]:
        return {
            "listenPort": self.name_server.rpartition(":")[2],
            "kvConfigPath": self._store.parent / "namesrv" / "kvConfig.json",
            "configStorePath": self._store.parent / "namesrv" / "namesrv.properties",
        }

    def _broker_settings(self) -> dict[str, object]:
        return {
            "brokerClusterName": "DefaultCluster",
            "brokerName": "broker-a",
            "brokerId": 0,
            "brokerIP1": "127.0.0.1",
            "namesrvAddr": self.name_server,
            "listenPort": self.broker.rpartition(":")[2],
            "haListenPort": int(self.broker.rpartition(":")[2]) + 1,
            "storePathRootDir": self._store,
            "storePathCommitLog": self._store / "commitlog",
            # A busy test machine is not an overloaded broker.
            "brokerFastFailureEnable": "false",
            "osPageCacheBusyTimeOutMills": 10_000,
            **self._settings,
        }

    def stop(self) -> None:
        """End both as an operator does: the broker first, each by SIGTERM."""
        for lines in reversed(self._processes):
            lines.stop(by_signal=True)
        self._processes.clear()

    def kill(self) -> None:
        for lines in self._processes:
            lines.kill()
        self._processes.clear()


class ControlledCluster(ApacheCluster):
    """Apache's name server with a controller in it, and a broker whose role that chooses (5.x).

    Args:
        controller: the address of a controller that runs under the name server of `start`; None to
            start one.
    """

    def __init__(
        self, java: Java, store: Path, *, controller: str | None = None, **settings: object
    ) -> None:
        super().__init__(java, store, **settings)
        self.controller = controller or f"127.0.0.1:{free_port()}"

    def _name_server_settings(self) -> dict[str, object]:
        return super()._name_server_settings() | {
            "enableControllerInNamesrv": "true",
            "controllerDLegerPeers": f"n0-{self.controller}",
            "controllerDLegerGroup": "controllers",
            "controllerDLegerSelfId": "n0",
            "controllerStorePath": self._store.parent / "controller",
            "scanNotActiveBrokerInterval": 1_000,
            "scanInactiveMasterInterval": 1_000,
        }

    def _broker_settings(self) -> dict[str, object]:
        return super()._broker_settings() | {
            "enableControllerMode": "true",
            "controllerAddr": self.controller,
            # Both replicas, while both are in sync, have what is acknowledged.
            "allAckInSyncStateSet": "true",
            "totalReplicas": 2,
            "inSyncReplicas": 2,
            "minInSyncReplicas": 1,
            "syncBrokerMetadataPeriod": 1_000,
            "controllerHeartBeatTimeoutMills": 3_000,
        }


class ApacheProxy(ApacheCluster):
    """Apache's name server, and its proxy with a broker in one JVM, which serves gRPC (5.x)."""

    def __init__(self, java: Java, store: Path, **settings: object) -> None:
        super().__init__(java, store, **settings)
        fetch_jars(java.version, PROXY_JARS)
        self.grpc = f"127.0.0.1:{free_port(1)}"

    def start_broker(self) -> None:
        port = int(self.grpc.rpartition(":")[2])
        settings = {
            "rocketMQClusterName": "DefaultCluster",
            "namesrvAddr": self.name_server,
            "grpcServerPort": port,
            "remotingListenPort": port + 1,
            "localServeAddr": "127.0.0.1",
        }
        path = self._store.parent / "proxy.json"
        path.write_text(json.dumps(settings))
        broker = self._written("broker", self._broker_settings())
        files = ("-bc", str(broker), "-pc", str(path))
        self._run("proxy.ProxyStartup", "-pm", "local", *files, jars=PROXY_JARS)


class OurCluster(Cluster):
    """`sparrowmq up` as a process of its own; a second start is on the same ports.

    `prefix` stands before the command, and `options` behind it.
    """

    name = "ours"

    def __init__(
        self,
        java: Java,
        data: Path,
        *,
        host: str = "127.0.0.1",
        prefix: tuple[str, ...] = (),
        options: tuple[str, ...] = ("--flush", "sync"),
    ) -> None:
        super().__init__(java)
        self._data = data
        self._prefix = prefix
        self._options = options
        self._lines: Lines | None = None
        self.name_server = self.broker = f"{host}:0"

    def start(self) -> None:
        self._data.mkdir(parents=True, exist_ok=True)
        host, _, name_server_port = self.name_server.rpartition(":")
        broker_port = self.broker.rpartition(":")[2]
        command = [
            *(*self._prefix, str(Path(sys.executable).with_name("sparrowmq")), "up"),
            *("--host", host, "--nameserver-port", name_server_port),
            *("--broker-port", broker_port, "--data", str(self._data), *self._options),
        ]
        log = self._data.parent / f"{self._data.name}-stderr.log"
        lines = Lines(command, cwd=self._data, env=dict(os.environ), log=log)
        self._lines = lines
        try:
            lines.wait_for("ready line", lambda: lines.lines)
        except BaseException:
            self.kill()
            raise
        # An address of the gRPC service follows where its port was free.
        ready, name_server, broker, *_ = lines.lines[0].split()
        assert ready == "ready"
        self.name_server = name_server.removeprefix("nameserver=")
        self.broker = broker.removeprefix("broker=")

    def stop(self) -> None:
        if self._lines is not None:
            assert self._lines.stop(by_signal=True) == 0
            self._lines = None

    def kill(self) -> None:
        if self._lines is not None:
            self._lines.kill()
            self._lines = None


class Checks:
    """What a client of another language is to show, each check a process of its own.

    Its program is given `key=value`; it tells of a `failure`, or that there is none.
    """

    def __init__(self, program: list[str], home: Path, cluster: Cluster) -> None:
        self._program = program
        self._home = home
        self.cluster = cluster
        self._running: dict[str, Lines] = {}

    def start(self, check: str, topic: str, **options: str) -> None:
        """Start one; they mostly wait, so that all may run at once."""
        name = topic.rpartition("%")[2]
        home = self._home / name
        home.mkdir()
        settings = {
            "nameServer": self.cluster.name_server,
            "broker": self.cluster.broker,
            "check": check,
            "topic": name,
            "log": str(home / "client.log"),
            **options,
        }
        self._running[name] = Lines(
            [*self._program, *(f"{key}={value}" for key, value in settings.items())],
            cwd=home,
            # Offsets of those who broadcast are kept at home.
            env={**os.environ, "HOME": str(home)},
            log=home / "stderr.log",
        )

    def failure_of(self, name: str) -> object:
        """Wait for the check on a topic, and return what it tells."""
        lines = self._running[name]
        lines.wait_for("end of the check", lambda: lines.named("checked"), timeout_s=240)
        return lines.named("checked")[0]["failure"]

    def kill(self) -> None:
        for lines in self._running.values():
            lines.kill()


def find_tool(name: str) -> str:
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(name, path=f"{home}/bin") if home else None
    found = found or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not on the PATH")
    return found


def cache_of(version: str) -> Path:
    """Return where the jars and compiled classes of a version are kept."""
    return CACHE / f"rocketmq-{version}"


def class_path(version: str, jars: str) -> str:
    """Return what is compiled for a set of jars, and the set."""
    cache = cache_of(version)
    return f"{cache / classes_of(jars)}{os.pathsep}{cache / jars}/*"


def classes_of(jars: str) -> str:
    return jars.replace("jars", "classes")


@contextlib.contextmanager
def filling(version: str) -> Generator[Path]:
    """Keep other runs of the tests from filling a version's cache meanwhile; yield the cache."""
    cache = cache_of(version)
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield cache


def fetch_jars(version: str, jars: str = "jars") -> None:
    """Fetch a set of jars: `jars`, `suite-jars` with Apache's integration tests, `proxy-jars`."""
    with filling(version) as cache:
        if not (cache / jars / "complete").exists():
            _fetch_jars(version, cache / jars)


def _fetch_jars(version: str, directory: Path) -> None:
    command = [
        *(find_tool("mvn"), "-q", "-B", "-f", str(HERE / "pom.xml"), f"-Djars={directory.name}"),
        *("dependency:copy-dependencies", "-DincludeScope=runtime"),
        *(f"-Drocketmq.version={version}", f"-DoutputDirectory={directory}"),
    ]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"Maven did not get RocketMQ {version} within 300 s")
    if result.returncode != 0:
        pytest.skip(f"Maven could not get RocketMQ {version}: {result.stdout[-500:].strip()}")
    (directory / "complete").touch()


def compile_java(javac: str, version: str, sources: list[Path], jars: str = "jars") -> None:
    """Compile sources against a set of jars, if one is newer than the class of the first."""
    with filling(version) as cache:
        target = cache / classes_of(jars) / f"{sources[0].stem}.class"
        newest = max(source.stat().st_mtime for source in sources)
        if target.exists() and target.stat().st_mtime > newest:
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        command = [javac, "-nowarn", "-cp", f"{cache / jars}/*", "-d", str(target.parent)]
        subprocess.run([*command, *map(str, sources)], check=True, timeout=120)


def compile_peer(javac: str, version: str) -> None:
    java = HERE / "java"
    compile_java(javac, version, [java / "Tools.java", java / "Peer.java"])


@pytest.fixture(scope="session", params=VERSIONS)
def java(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Java:
    """Java with RocketMQ's jars on its class path; skips where something is missing.

    Each version in turn: all that a test starts is of one version. A test that is about one
    version says `pytest.mark.parametrize("java", [version], indirect=True, scope="session")`.
    """
    version = str(request.param)
    executable, javac = find_tool("java"), find_tool("javac")
    fetch_jars(version)
    compile_peer(javac, version)
    return Java(executable, tmp_path_factory.mktemp("java"), version=version)


@pytest.fixture(scope="session")
def rig() -> ModuleType:
    """This module, for its classes: a test module cannot import it."""
    return sys.modules[__name__]


@pytest.fixture(scope="session")
def apache_cluster(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheCluster]:
    """Apache's name server and broker, for the whole run."""
    cluster = ApacheCluster(java, tmp_path_factory.mktemp("apache") / "store")
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.kill()


@pytest.fixture(scope="session")
def our_cluster(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OurCluster]:
    """Our name server and broker, for the whole run."""
    cluster = OurCluster(java, tmp_path_factory.mktemp("ours") / "data")
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(params=["apache_cluster", "our_cluster"])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """Either cluster in turn."""
    either: Cluster = request.getfixturevalue(request.param)
    return either


@pytest.fixture
def masters_and_slaves(
    java: Java, tmp_path: Path
) -> Iterator[tuple[dict[str, ApacheCluster], str]]:
    """Two masters and their slaves under one name server, by name and id, and a topic.

    A master replicates before it acknowledges. The topic has four queues at each.
    """
    names, topic = ("broker-a", "broker-b"), "out"
    started: dict[str, ApacheCluster] = {}
    name_server = ""
    try:
        for role, broker_id in (("SYNC_MASTER", 0), ("SLAVE", 1)):
            for name in names:
                key = f"{name}-{broker_id}"
                broker = ApacheCluster(
                    java,
                    tmp_path / key / "store",
                    brokerName=name,
                    brokerId=broker_id,
                    brokerRole=role,
                    # Without it a slave of 5.x refuses all pulls.
                    slaveReadEnable="true",
                    # Without it a SYNC_MASTER of 5.x acknowledges before its slave has a message.
                    inSyncReplicas=2,
                    flushDiskType="SYNC_FLUSH",
                )
                broker.start(name_server=name_server)
                started[key] = broker
                name_server = broker.name_server
        started[f"{names[0]}-0"].create_topic(topic, queues=4)
        # A slave copies its master's topics every 10 s.
        topics = [tmp_path / f"{name}-1" / "store" / "config" / "topics.json" for name in names]
        wait_until(
            "the topic at the slaves",
            lambda: all(path.exists() and f'"{topic}"' in path.read_text() for path in topics),
            timeout_s=JVM_LIMIT_S,
        )
        yield started, topic
    finally:
        for broker in reversed(started.values()):
            broker.kill()


StartPeer = Callable[..., Lines]


@pytest.fixture
def start_peer(java: Java) -> Iterator[StartPeer]:
    """Start a verb of a client, which ends with the test: `start_peer("poll", cluster, ...)`."""
    running: list[Lines] = []

    def start(
        verb: str,
        cluster: Cluster,
        *,
        language: str = "java",
        until: str = "started",
        **options: object,
    ) -> Lines:
        peers: dict[str, StartPeer] = {"java": java.peer, "python": java.python_peer}
        lines = peers[language](verb, nameServer=cluster.name_server, **options)
        running.append(lines)
        lines.wait_for(until, lambda: lines.named(until))
        return lines

    yield start
    for lines in running:
        lines.kill()


@pytest.fixture
def java_producer(java: Java, start_peer: StartPeer) -> Callable[..., list[dict[str, Any]]]:
    """Have Apache's producer send: `java_producer(cluster, topic=..., count=...)`.

    One that traces lives until the test ends, so that it can send its trace.
    """

    def produce(cluster: Cluster, **options: object) -> list[dict[str, Any]]:
        options.setdefault("group", "GID_java_producer")
        if not options.get("trace"):
            told = java.run_peer("produce", nameServer=cluster.name_server, **options)
            return [line for line in told if line["event"] == "sent"]
        return start_peer("produce", cluster, until="done", **options).named("sent")

    return produce


@pytest.fixture
def start_member(start_peer: StartPeer) -> Callable[..., Lines]:
    """Start a member as a process: `start_member("java" | "python", cluster, topic=..., ...)`."""

    def start(language: str, cluster: Cluster, **options: object) -> Lines:
        return start_peer("consume", cluster, language=language, **options)

    return start


@pytest.fixture
def java_push_consumer(start_peer: StartPeer) -> Callable[..., Lines]:
    """Start Apache's push consumer: `java_push_consumer(cluster, topic=..., group=...)`."""
    return partial(start_peer, "consume")

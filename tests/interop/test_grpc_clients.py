"""The official clients of RocketMQ 5 on our broker, and on Apache's proxy beside it.

A program of each language sends all kinds of messages, and tells what its consumers get; the broker
is restarted in the middle. `grpc_python/peer.py` says what the programs do.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from sparrowmq import Admin, PollConsumer
from sparrowmq.testing import EmbeddedCluster

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

PYTHON_CLIENT = "rocketmq-python-client==5.1.2"
JS_CLIENT = "rocketmq-client-nodejs@1.0.8"
LANGUAGES = ("python", "java", "js", "go", "rust")
PLAIN = {f"plain {number}" for number in range(20)}
LATER = {f"later {number}" for number in range(10)}
STEPS = [f"fails at step {number}" if number == 4 else f"step {number}" for number in range(10)]


class Program(NamedTuple):
    """The command of a language's program, and what its environment needs."""

    command: list[str]
    env: dict[str, str]


def build(command: list[str], home: Path, *, what: str) -> None:
    """Run a command that fetches and builds a program, once; skip where it fails."""
    stamp = home / "done"
    if stamp.exists():
        return
    result = subprocess.run(
        command, cwd=home, capture_output=True, text=True, timeout=540, check=False
    )
    if result.returncode != 0:
        pytest.skip(f"{what} cannot be built: {(result.stdout + result.stderr)[-300:]}")
    stamp.touch()


def copied(rig: ModuleType, language: str) -> Path:
    """Return the program's directory in the cache, where its sources are up to date."""
    source, home = rig.HERE / f"grpc_{language}", rig.CACHE / f"grpc-{language}"
    for path in source.rglob("*"):
        kept = home / path.relative_to(source)
        if path.is_file() and (not kept.exists() or kept.read_bytes() != path.read_bytes()):
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, kept)
            (home / "done").unlink(missing_ok=True)
    return Path(home)


def python_program(rig: ModuleType, home: Path) -> Program:
    python = home / "bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
    install = [str(python), "-m", "pip", "install", "--quiet", PYTHON_CLIENT]
    build(install, home, what=PYTHON_CLIENT)
    return Program([str(python), str(home / "peer.py")], {})


def java_program(rig: ModuleType, home: Path) -> Program:
    goals = ("compile", "dependency:build-classpath", "-Dmdep.outputFile=classpath.txt")
    build([rig.find_tool("mvn"), "-q", "-B", *goals], home, what="the Java client's program")
    jars = (home / "classpath.txt").read_text().strip()
    classes = f"{home / 'target/classes'}{os.pathsep}{jars}"
    options = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    return Program([rig.find_tool("java"), *options, "-cp", classes, "GrpcPeer"], {})


def js_program(rig: ModuleType, home: Path) -> Program:
    install = [rig.find_tool("npm"), "install", "--ignore-scripts", "--no-audit", "--no-fund"]
    build([*install, "--prefix", str(home), JS_CLIENT], home, what=JS_CLIENT)
    packages = {"NODE_PATH": str(home / "node_modules")}
    return Program([rig.find_tool("node"), str(home / "peer.js")], packages)


def go_program(rig: ModuleType, home: Path) -> Program:
    command = [rig.find_tool("go"), "build", "-mod=readonly", "-o", "peer", "."]
    build(command, home, what="the Go client's program")
    return Program([str(home / "peer")], {})


def rust_program(rig: ModuleType, home: Path) -> Program:
    build([rig.find_tool("cargo"), "build"], home, what="the Rust client's program")
    return Program([str(home / "target/debug/peer")], {})


PROGRAMS: dict[str, Callable[[ModuleType, Path], Program]] = {
    "python": python_program,
    "java": java_program,
    "js": js_program,
    "go": go_program,
    "rust": rust_program,
}


class Peer:
    """A program under way; it logs at a home of its own."""

    def __init__(self, rig: ModuleType, program: Program, endpoint: str, home: Path) -> None:
        env = {**os.environ, **program.env, "HOME": str(home), "user.home": str(home)}
        log = home / "stderr.log"
        command = [*program.command, endpoint]
        self.lines: Any = rig.Lines(command, cwd=home, env=env, log=log)

    def deliveries(self, by: str) -> list[dict[str, Any]]:
        return [event for event in self.lines.named("got") if event["by"] == by]

    def bodies(self, *by: str) -> list[str]:
        return [event["body"] for each in by for event in self.deliveries(each)]

    def wait_for(self, what: str, is_so: Callable[[], object]) -> None:
        self.lines.wait_for(what, is_so, timeout_s=150)

    def go_on(self) -> None:
        self.lines.process.stdin.write("go on\n")
        self.lines.process.stdin.flush()


@pytest.fixture(params=LANGUAGES)
def language(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def start(rig: ModuleType, language: str, tmp_path: Path) -> Iterator[Callable[[str], Peer]]:
    """Start the language's program at an endpoint."""
    program = PROGRAMS[language](rig, copied(rig, language))
    running: list[Peer] = []

    def started(endpoint: str) -> Peer:
        running.append(Peer(rig, program, endpoint, tmp_path))
        return running[-1]

    yield started
    for peer in running:
        peer.lines.kill()


def make_topics(name_server: str) -> None:
    with Admin(name_server=name_server) as admin:
        admin.create_topic("T", 4)
        for kind in ("DELAY", "FIFO", "TRANSACTION"):
            admin.create_topic(f"T_{kind.lower()}", 4, message_type=kind)
        for group in ("simple", "delay", "transaction"):
            admin.update_group(f"GID_{group}")
        admin.update_group("GID_push", max_reconsume_times=1)
        admin.update_group("GID_fifo", is_orderly=True)


def check(
    peer: Peer, name_server: str, *, pushes: bool, restart: Callable[[], None] | None = None
) -> None:
    """Hold what a program tells to what was sent, before and after a restart."""
    with PollConsumer("GID_remoting", "T", name_server=name_server) as consumer:
        polled: list[str] = []

        def has_all() -> bool:
            polled.extend(each.body.decode() for each in consumer.poll(timeout_ms=100))
            return set(polled) >= PLAIN

        peer.wait_for("sends", lambda: peer.lines.named("sent"))
        peer.wait_for("the same messages by remoting", has_all)
    everyone = ("push", "delay", "transaction")
    singles = {"committed", "undecided"}
    peer.wait_for("plain messages", lambda: set(peer.bodies("simple")) >= PLAIN)
    peer.wait_for("transactions", lambda: set(peer.bodies(*everyone)) >= singles)
    peer.wait_for("a delay", lambda: any(each[:3] == "due" for each in peer.bodies(*everyone)))
    peer.wait_for("the last step", lambda: STEPS[-1] in peer.bodies("fifo"))
    if pushes:
        peer.wait_for("plain messages", lambda: set(peer.bodies("push")) >= PLAIN)
        with Admin(name_server=name_server) as admin:

            def dead() -> list[bytes]:
                return [each.body for each in admin.dead_letters("GID_push")]

            peer.wait_for("a dead letter", dead)
            assert dead() == [b"poison"]
        attempts = [(each["body"], each["attempt"]) for each in peer.deliveries("push")]
        retried = [each for each in attempts if each[0] in ("fails once", "poison")]
        assert sorted(retried) == [(name, at) for name in ("fails once", "poison") for at in (1, 2)]
    if restart is not None:
        restart()
    peer.go_on()

    def has_later() -> bool:
        return all(set(peer.bodies(each)) >= LATER for each in consumers)

    consumers = ("simple", "push") if pushes else ("simple",)
    peer.wait_for("messages after the restart", has_later)
    for each in consumers:
        once = Counter(body for body in peer.bodies(each) if body in PLAIN | LATER)
        assert once == Counter(PLAIN | LATER)
    assert {"recalled", "rolled back"} & set(peer.bodies(*everyone)) == set()
    assert list(dict.fromkeys(peer.bodies("fifo"))) == STEPS
    # Once, though the broker was killed just after.
    (due,) = (each for by in everyone for each in peer.deliveries(by) if each["body"][:3] == "due")
    assert due["ms"] >= int(due["body"].split()[1])
    peer.go_on()
    assert peer.lines.process.wait(60) == 0


def test_official_clients_do_on_our_broker_all_that_they_can(
    start: Callable[[str], Peer], language: str
) -> None:
    options = ("--transaction-timeout-ms", "2000", "--transaction-check-interval-ms", "1000")
    with EmbeddedCluster(serves_grpc=True, options=options) as cluster:
        make_topics(cluster.name_server)

        def restart() -> None:
            cluster.kill()
            cluster.start()

        pushes = language != "rust"
        check(start(cluster.grpc), cluster.name_server, pushes=pushes, restart=restart)


@pytest.mark.parametrize("java", ["5.5.0"], indirect=True, scope="session")
def test_official_clients_do_the_same_on_apaches_proxy(
    start: Callable[[str], Peer], language: str, java: Any, rig: ModuleType, tmp_path: Path
) -> None:
    """Without a restart, after which the proxy refuses clients whose settings it has forgotten."""
    cluster = rig.ApacheProxy(
        java,
        tmp_path / "apache/store",
        # Its broker writes ends of transactions down every 3 s, and asks again for those before.
        transactionTimeOut=6_000,
        transactionCheckInterval=1_000,
        recallMessageEnable="true",
    )
    cluster.start()
    try:
        make_topics(cluster.name_server)
        check(start(cluster.grpc), cluster.name_server, pushes=language != "rust")
    finally:
        cluster.kill()

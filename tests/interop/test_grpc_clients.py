"""The official clients of RocketMQ 5 on our broker; both protocols see the same messages."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from sparrowmq import Admin, PollConsumer
from sparrowmq.testing import EmbeddedCluster

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

CLIENT = "rocketmq-python-client==5.1.2"
JS_CLIENT = "rocketmq-client-nodejs@1.0.8"


@pytest.fixture(scope="module")
def client_python(rig: ModuleType) -> Path:
    """The interpreter of an environment with the official client."""
    home: Path = rig.CACHE / "grpc-python"
    python = home / "bin/python"
    if not (home / "done").exists():
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
        installed = subprocess.run(
            [python, "-m", "pip", "install", "--quiet", CLIENT], check=False, timeout=240
        )
        if installed.returncode != 0:
            pytest.skip(f"{CLIENT} cannot be installed")
        (home / "done").touch()
    return python


def test_the_official_python_client_sends_and_consumes(client_python: Path) -> None:
    options = ("--transaction-timeout-ms", "2000", "--transaction-check-interval-ms", "1000")
    program = Path(__file__).parent / "grpc_python/peer.py"
    with EmbeddedCluster(serves_grpc=True, options=options) as cluster:
        with Admin(name_server=cluster.name_server) as admin:
            admin.create_topic("T", 4)
            admin.create_topic("T_delay", 2, message_type="DELAY")
            admin.create_topic("T_transaction", 2, message_type="TRANSACTION")
            admin.create_topic("T_fifo", 4, message_type="FIFO")
            admin.update_group("GID_fifo", is_orderly=True)
        result = subprocess.run(
            [client_python, program, cluster.grpc],
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert result.returncode == 0, result.stderr[-2000:]
        told = json.loads(result.stdout.splitlines()[-1])
        with PollConsumer("GID_remoting", name_server=cluster.name_server) as consumer:
            consumer.subscribe("T")
            consumer.start()
            bodies: set[str] = set()
            while len(bodies) < 21:
                bodies |= {each.body.decode() for each in consumer.poll(timeout_ms=5_000)}

    sent = {*map(str, range(20)), "fails twice"}
    assert set(told["simple"]) == sent
    assert bodies == sent
    attempts = told["attempts"]
    assert sent <= attempts.keys()
    assert attempts["fails twice"] == 3
    assert {"committed", "undecided", "delayed"} <= attempts.keys()
    assert not {"rolled back", "recalled"} & attempts.keys()
    assert told["early_s"] <= 0
    assert told["order"] == [f"step {number}" for number in range(10)]


@pytest.fixture(scope="module")
def java_peer(rig: ModuleType) -> list[str]:
    """The command of the program of `grpc_java/`; skips where Maven or its jars are missing."""
    maven, java = rig.find_tool("mvn"), rig.find_tool("java")
    home: Path = rig.CACHE / "grpc-java"
    if not (home / "done").exists():
        shutil.copytree(rig.HERE / "grpc_java", home, dirs_exist_ok=True)
        goals = ("compile", "dependency:build-classpath", "-Dmdep.outputFile=classpath.txt")
        built = subprocess.run(
            [maven, "-q", "-B", *goals],
            cwd=home,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        if built.returncode != 0:
            pytest.skip(f"Maven could not build the Java client's program: {built.stdout[-300:]}")
        (home / "done").touch()
    jars = (home / "classpath.txt").read_text().strip()
    return [java, "-cp", f"{home / 'target/classes'}:{jars}", "GrpcPeer"]


@pytest.fixture(scope="module")
def js_peer(rig: ModuleType) -> list[str]:
    """The command of the program of `grpc_js/`; skips where npm or its packages are missing."""
    node, npm = rig.find_tool("node"), rig.find_tool("npm")
    home: Path = rig.CACHE / "grpc-js"
    home.mkdir(parents=True, exist_ok=True)
    if not (home / "done").exists():
        command = [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", JS_CLIENT]
        result = subprocess.run(
            [*command, "--prefix", str(home)],
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        if result.returncode != 0:
            pytest.skip(f"npm could not get {JS_CLIENT}: {result.stderr[-300:]}")
        (home / "done").touch()
    return [node, str(rig.HERE / "grpc_js/peer.js"), str(home)]


@pytest.mark.parametrize("language", ["java", "js"])
def test_the_clients_of_other_languages_send_and_consume(
    language: str, request: pytest.FixtureRequest
) -> None:
    program, *arguments = request.getfixturevalue(f"{language}_peer")
    with EmbeddedCluster(serves_grpc=True) as cluster:
        cluster.create_topic("T", 4)
        # Node's program takes the address before the place of its packages.
        at = 1 if language == "js" else len(arguments)
        command = [program, *arguments[:at], cluster.grpc, *arguments[at:]]
        result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    assert result.stdout.splitlines()[-1:] == ["simple 10 push 10"], result.stderr[-2000:]

"""The official Python client of RocketMQ 5 on our broker; both protocols see the same messages."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from sparrowmq import Admin, LitePullConsumer
from sparrowmq.testing import EmbeddedCluster

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

CLIENT = "rocketmq-python-client==5.1.2"


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
        with LitePullConsumer("GID_remoting", name_server=cluster.name_server) as consumer:
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

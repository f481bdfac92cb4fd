"""What runs where, held to the page of platforms: with what other systems lack taken away.

Not run on these systems themselves (`tests/support/other_platform.py` says what that means).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from certificates import Certificates
from sparrowmq.testing import EmbeddedCluster

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs/reference/platforms.md").read_text()
# Every face against servers elsewhere; a consumer keeps its offsets in a file.
CLIENTS = """
import asyncio, ssl, tempfile, threading
from sparrowmq import *

tls = ssl.create_default_context(cafile=CA) if CA else None
common = {"name_server": NAME_SERVER, "tls": tls}
with Admin(**common) as admin:
    admin.create_topic("T")
with Producer("GID_p", **common) as producer:
    for number in range(20):
        producer.send(Message("T", b"%d" % number))
    future = producer.send_nowait(Message("T", bytes(300_000)))
    producer.flush()
    future.result(10)

def consume(**settings):
    seen, done = [], threading.Event()
    def listener(messages, context):
        seen.extend(messages)
        if len(seen) == 21:
            done.set()
    settings |= common
    with PushConsumer(listener=listener, start="first", **settings) as consumer:
        consumer.subscribe("T")
        consumer.start()
        assert done.wait(60), len(seen)

consume(group="GID_push")
consume(group="GID_order", orderly=True)
with tempfile.TemporaryDirectory() as directory:
    model = MessageModel.BROADCASTING
    consume(group="GID_all", message_model=model, local_offset_dir=directory)

with PollConsumer("GID_pull", **common) as consumer:
    consumer.subscribe("T")
    consumer.start()
    consumer.wait_assigned()

async def main():
    async with AsyncProducer("GID_p", **common) as producer:
        await asyncio.gather(*(producer.send(Message("T", b"x")) for _ in range(20)))
    seen = asyncio.Queue()
    async def listener(messages, context):
        seen.put_nowait(messages)
    settings = {"listener": listener, "start": "first", **common}
    async with AsyncPushConsumer("GID_async", **settings) as consumer:
        await consumer.subscribe("T")
        await consumer.start()
        for _ in range(41):
            await asyncio.wait_for(seen.get(), 30)

asyncio.run(main())
try:
    with Producer("GID_p", name_server="127.0.0.1:1") as producer:
        producer.send(Message("T", b"x"))
except Exception as error:
    assert "Connection refused" in str(error), error
print("ran")
"""
SERVERS = """
from datetime import timedelta
from sparrowmq import *
from sparrowmq.testing import InProcessCluster, read_messages

with InProcessCluster() as cluster:
    cluster.create_topic("T")
    with Producer("GID_p", name_server=cluster.name_server) as producer:
        for number in range(20):
            producer.send(Message("T", b"%d" % number))
        producer.send(Message("T", b"later", delay_level=18))
    cluster.advance(timedelta(hours=2))
    assert 21 == len(read_messages(cluster.name_server, "T"))
print("ran")
"""

pytestmark = pytest.mark.slow


def run_as(system: str, code: str, **values: str) -> str:
    given = "".join(f"{name} = {value!r}\n" for name, value in values.items())
    result = subprocess.run(
        [sys.executable, "-W", "error", "-m", "other_platform", system, given + code],
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests/support")},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return result.stdout + result.stderr


@pytest.mark.parametrize("system", ["windows", "macos"])
@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "tls"])
def test_every_client_runs(system: str, certificates: Certificates, *, is_tls: bool) -> None:
    server = certificates.server
    options = ("--tls-cert", str(server.path), "--tls-key", str(server.key)) if is_tls else ()
    with EmbeddedCluster(options=options) as cluster:
        ca = str(certificates.ca.path) if is_tls else ""
        said = run_as(system, CLIENTS, NAME_SERVER=cluster.name_server, CA=ca)

    assert said == "ran\n"


def test_servers_run_as_on_macos() -> None:
    assert run_as("macos", SERVERS) == "ran\n"


@pytest.mark.parametrize("code", [SERVERS, "import sparrowmq.hosting.servers"])
def test_servers_say_that_windows_is_not_for_them(code: str) -> None:
    assert "UsageError: name servers and brokers need Linux or macOS" in run_as("windows", code)


@pytest.mark.parametrize("system", ["windows", "macos"])
@pytest.mark.parametrize(
    "module", ["sparrowmq.testing.pytest_plugin", "sparrowmq.doctor", "sparrowmq.adapters.kombu"]
)
def test_what_needs_no_server_is_imported(system: str, module: str) -> None:
    assert run_as(system, f"import {module}; print('ran')") == "ran\n"


def test_page_names_what_was_tried_and_how() -> None:
    assert "not run on the real system" in PAGE
    assert "tests/test_platforms.py" in PAGE

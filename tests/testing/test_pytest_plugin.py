"""The pytest plug-in, as other projects run it: in a pytest of its own, by its entry point."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PLUGIN = PROJECT["entry-points"]["pytest11"]["sparrowmq"]
SETTINGS = "[pytest]\nfilterwarnings = error\n"
ASYNCIO = ("-p", "pytest_asyncio.plugin", "-o", "asyncio_default_fixture_loop_scope=function")
TESTS = """
import asyncio
from datetime import timedelta

import pytest

from sparrowmq import AsyncProducer, AsyncPushConsumer, Message, Producer


@pytest.mark.parametrize("number", range(4))
def test_plain(rmq_cluster, rmq_topic, rmq_group, rmq_messages, number):
    assert [] == rmq_messages(rmq_topic)
    with Producer(rmq_group, name_server=rmq_cluster.name_server) as producer:
        producer.send(Message(rmq_topic, b"now"))
        producer.send(Message(rmq_topic, b"later", delay_level=18))
    assert [b"now"] == [message.body for message in rmq_messages(rmq_topic)]
    rmq_cluster.advance(timedelta(hours=2))
    assert [b"now", b"later"] == [message.body for message in rmq_messages(rmq_topic)]


@pytest.mark.asyncio
async def test_asyncio(rmq_cluster, rmq_topic, rmq_group, rmq_messages):
    async def listener(messages, context):
        seen.extend(messages)

    seen = []
    address = rmq_cluster.name_server
    async with (
        AsyncProducer("GID_p", name_server=address) as producer,
        AsyncPushConsumer(rmq_group, name_server=address, listener=listener,
            start="first") as consumer,
    ):
        await consumer.subscribe(rmq_topic)
        await consumer.start()
        await producer.send(Message(rmq_topic, b"x"))
        await asyncio.to_thread(rmq_cluster.wait_until_consumed, rmq_group, rmq_topic)
        assert [b"x"] == [message.body for message in seen]
        assert 1 == len(await asyncio.to_thread(rmq_messages, rmq_topic, 1))
"""
GRPC = """
from grpc_caller import GrpcCaller

def test_grpc(rmq_grpc, rmq_topic, rmq_messages):
    with GrpcCaller(rmq_grpc) as caller:
        caller.send(rmq_topic, b"a")
    assert [b"a"] == [message.body for message in rmq_messages(rmq_topic, 1)]
"""
SETTINGS_TAKEN = """
import pytest

from sparrowmq import Message, Producer, SparrowError

def test_no_topic_is_created(rmq_cluster):
    with Producer("GID_p", name_server=rmq_cluster.name_server) as producer:
        with pytest.raises(SparrowError, match="nowhere"):
            producer.send(Message("nowhere", b"x"))
"""
LOADED = """
import sys

def test_loaded():
    loaded = {name for name in sys.modules if name.split(".")[0] in {"sparrowmq", "msgspec"}}
    assert loaded == {"sparrowmq", "sparrowmq.testing", "sparrowmq.testing.pytest_plugin"}
"""

NAMES = f"""
import re

NAMES = []

class TestFirst:
    def test_same(self, rmq_topic, rmq_group):
        NAMES.extend((rmq_topic, rmq_group))

class TestSecond:
    def test_same(self, rmq_topic, rmq_group):
        NAMES.extend((rmq_topic, rmq_group))

def test_of_{"a_long_" * 30}name(rmq_topic, rmq_group):
    NAMES.extend((rmq_topic, rmq_group))

def test_each_has_its_own():
    assert len({{*NAMES}}) == len(NAMES) == 6
"""

pytestmark = pytest.mark.slow


def run_pytest(directory: Path, files: dict[str, str], *options: str) -> str:
    (directory / "pytest.ini").write_text(SETTINGS)
    for name, text in files.items():
        (directory / name).write_text(text)
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", PLUGIN, "-p", "no:cacheprovider", "-q", *options],
        # None but those named: an installation from before the entry point does as well.
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.parametrize("options", [(), ("-p", "xdist.plugin", "-n", "2")], ids=["alone", "xdist"])
def test_fixtures_serve_plain_and_asyncio_tests(tmp_path: Path, options: tuple[str, ...]) -> None:
    assert "5 passed" in run_pytest(tmp_path, {"test_it.py": TESTS}, *ASYNCIO, *options)


def test_clients_of_rocketmq_5_send_to_the_same_cluster(tmp_path: Path) -> None:
    support = shlex.quote(str(ROOT / "tests/support"))
    run = run_pytest(tmp_path, {"test_it.py": GRPC}, "-o", f"pythonpath={support}")
    assert "1 passed" in run


def test_topics_and_groups_are_of_one_test_alone_whatever_its_name(tmp_path: Path) -> None:
    assert "4 passed" in run_pytest(tmp_path, {"test_it.py": NAMES}, "-p", "no:randomly")


def test_plug_in_loads_nothing_for_those_who_do_not_use_it(tmp_path: Path) -> None:
    assert "1 passed" in run_pytest(tmp_path, {"test_it.py": LOADED})


def test_files_of_the_how_to_pass(tmp_path: Path) -> None:
    page = (ROOT / "docs/howto/test-with-pytest.md").read_text()
    files = dict(re.findall(r'```python title="(\S+)"\n(.*?)```', page, re.S))

    assert files.keys() == {"reminders.py", "test_reminders.py", "test_async.py", "conftest.py"}
    # The settings are taken: no topic is created by a send.
    files["test_settings.py"] = SETTINGS_TAKEN
    assert "3 passed" in run_pytest(tmp_path, files, *ASYNCIO)


def test_entry_point_names_the_plug_in() -> None:
    assert {"rmq_cluster", "rmq_grpc", "rmq_topic", "rmq_group", "rmq_messages"} <= set(
        vars(import_module(PLUGIN))
    )

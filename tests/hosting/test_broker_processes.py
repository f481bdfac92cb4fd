"""The keeper of a broker's process, over processes of a few lines."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from sparrowmq.hosting import broker_processes
from sparrowmq.hosting.broker_processes import BrokerProcess, Place, nth

REPORT = '{"failures": [], "obstacles": ["it is full"]}'
# Prints lines that are not a reports, as a library may; ends once a file is there.
PROGRAM = f"""
import os, sys, time
print("a line of a library", flush=True)
print("ready broker=127.0.0.1:1", flush=True)
print("x" * 100_000, flush=True)
print('{REPORT}', flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
os.unlink(sys.argv[1])
"""


@pytest_asyncio.fixture
async def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[BrokerProcess]:
    monkeypatch.setattr(broker_processes, "_RESTART_S", 0.01)
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "end")]
    process = BrokerProcess(Place("broker-a", "store", 1), lambda _: b"", command)
    await process.start()
    keeper = asyncio.create_task(process.keep())
    yield process
    keeper.cancel()
    await asyncio.gather(keeper, return_exceptions=True)
    (tmp_path / "end").touch()
    await process.stop()


async def until_full(process: BrokerProcess) -> None:
    async with asyncio.timeout(30):
        while process.obstacles() != ["broker-a: it is full"]:
            await asyncio.sleep(0.01)


async def until_gone(process: BrokerProcess) -> None:
    async with asyncio.timeout(30):
        while process.obstacles() != ["broker-a does not run"]:
            await asyncio.sleep(0.01)


def test_places_are_numbered_and_any_free_port_stays_one() -> None:
    assert nth(1, name="b", port=10911) == Place("b", "store", 10911)
    assert nth(3, name="b", port=10911) == Place("b-3", "store-3", 10931)
    assert nth(3, name="b", port=0) == Place("b-3", "store-3", 0)


async def test_lines_that_are_no_reports_end_no_keeper(
    process: BrokerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    await until_full(process)

    # The fixture may have read them already.
    records = [*caplog.get_records("setup"), *caplog.records]
    assert any("printed a line that is not a report" in each.getMessage() for each in records)


async def test_a_failed_start_is_not_the_last(
    process: BrokerProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await until_full(process)
    monkeypatch.setattr(process, "_command", [str(tmp_path / "no program")])

    (tmp_path / "end").touch()
    await until_gone(process)
    async with asyncio.timeout(30):
        while caplog.messages.count("broker-a cannot be started") < 3:
            await asyncio.sleep(0.01)
    monkeypatch.undo()
    ends = [each.args for each in caplog.records if "is started again" in each.msg]
    # Name, exit code and pause.
    assert [args[2] for args in ends[:3] if isinstance(args, tuple)] == [0.01, 0.02, 0.04]

    await until_full(process)

"""The keeper of a broker's process, over processes of a few lines."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
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
# Goes on when its standard input closes.
DEAF = """
import os, signal, sys
with open(sys.argv[1], "w") as file:
    file.write(str(os.getpid()))
print("ready broker=127.0.0.1:1", flush=True)
while True:
    signal.pause()
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


async def test_pauses_begin_anew_behind_a_process_that_served_for_long(
    process: BrokerProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(broker_processes, "_SERVED_S", -1.0)
    for _ in range(3):
        await until_full(process)
        (tmp_path / "end").touch()
        await until_gone(process)
    await until_full(process)

    ends = [each.args for each in caplog.records if "is started again" in each.msg]
    assert [args[2] for args in ends if isinstance(args, tuple)] == [0.01] * 3


async def test_process_that_does_not_stop_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(broker_processes, "_STOP_TIMEOUT_S", 0.05)
    command = [sys.executable, "-c", DEAF, str(tmp_path / "pid")]
    process = BrokerProcess(Place("broker-a", "store", 1), lambda _: b"", command)
    await process.start()
    pid = int((tmp_path / "pid").read_text())
    stopping = asyncio.create_task(process.stop())
    try:
        await asyncio.wait([stopping], timeout=20)
        assert stopping.done()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        await stopping

    assert "broker-a does not stop, and is killed" in caplog.messages

"""A signal ends servers while a broker recovers its store."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sparrowmq.hosting.broker_processes import Place, serve_brokers
from sparrowmq.hosting.stop_at_start import STOP_SIGNALS, StoppedAtStart, stopping_at_signals

pytestmark = pytest.mark.slow

# Its first recovery lasts until a signal comes.
PROGRAM = """
import signal, sys
from sparrowmq.hosting.__main__ import parse_settings, run_both
from sparrowmq.store.recovery import Recovery

def recover(self):
    print("recovers", flush=True)
    while True:
        signal.pause()

Recovery.run = recover
sys.exit(run_both(parse_settings(sys.argv[1:])))
"""
# As a broker's process that recovers: it hears of no end of its standard input.
DEAF = """
import signal, sys
open(sys.argv[1], "w").close()
signal.pause()
"""


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_recovery_ends_at_a_signal_and_the_next_start_recovers(
    tmp_path: Path, number: signal.Signals
) -> None:
    options = ("--nameserver-port", "0", "--broker-port", "0", "--grpc-port", "-1")
    command = [sys.executable, "-c", PROGRAM, "--data", str(tmp_path), *options]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "recovers\n"
        process.send_signal(number)
        out, log = process.communicate(timeout=60)

    assert (process.returncode, out) == (0, "")
    assert "stopped before the store was loaded; the next start recovers it" in log
    assert "Traceback" not in log
    assert not (tmp_path / "store" / "stopped").exists()


async def test_processes_of_brokers_end_while_they_recover(tmp_path: Path) -> None:
    started, stop = tmp_path / "started", asyncio.Event()

    async def stop_once_started() -> None:
        while not started.exists():
            await asyncio.sleep(0.01)
        stop.set()

    stopping = asyncio.create_task(stop_once_started())
    async with asyncio.timeout(50):
        with pytest.raises(StoppedAtStart):
            async with serve_brokers(
                [Place("broker-a", "store", 1)],
                lambda _: b"",
                stop=stop,
                command=[sys.executable, "-c", DEAF, str(started)],
            ):
                pass
    await stopping


def test_signal_that_came_before_ends_the_start_too() -> None:
    stop = asyncio.Event()
    stop.set()

    with pytest.raises(StoppedAtStart), stopping_at_signals(stop):
        pass


def test_handlers_of_signals_are_as_before() -> None:
    before = [signal.getsignal(number) for number in STOP_SIGNALS]

    with pytest.raises(StoppedAtStart), stopping_at_signals(asyncio.Event()):
        signal.raise_signal(signal.SIGTERM)

    assert [signal.getsignal(number) for number in STOP_SIGNALS] == before

"""The doctor on live groups of two brokers: one of them fails, or knows less."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sick_brokers import SICK_BROKERS, Brokers, alarms_of_healthy, examine_brokers
from sparrowmq.cli.main import build_app
from sparrowmq.testing import EmbeddedCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Generator[Brokers]:
    home = tmp_path_factory.mktemp("brokers")
    with ExitStack() as held:

        def start(*command: str) -> tuple[str, int]:
            """Start a server; return its address and its process id."""
            data = ("--port", "0", "--data", str(home / f"{command[-1]}"))
            process = held.enter_context(
                subprocess.Popen(
                    [str(Path(sys.executable).with_name("sparrowmq")), *command[:-1], *data],
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            held.callback(process.terminate)
            assert process.stdout is not None
            return process.stdout.readline().split()[1].partition("=")[2], process.pid

        name_server, _ = start("nameserver", "names")
        disk = ("--disk-force-percent", "100", "--disk-full-percent", "100")
        started = {
            name: start(
                *("broker", "--nameserver", name_server, "--broker-name", name, *disk),
                *("--flush", "async", name),
            )
            for name in ("east-a", "west-a")
        }
        options = ("--broker-name", "broker-x")
        elsewhere = held.enter_context(EmbeddedCluster(flush="async", options=options))
        yield Brokers(
            name_server,
            {name: address for name, (address, _) in started.items()},
            {name: pid for name, (_, pid) in started.items()},
            elsewhere.name_server,
        )


@pytest.mark.parametrize("fault", [n for n, each in SICK_BROKERS.items() if each.brokers == "both"])
def test_a_fault_of_brokers_is_one_finding(brokers: Brokers, fault: str) -> None:
    assert examine_brokers(brokers, fault) == ""


def test_members_at_all_brokers_raise_no_alarm(brokers: Brokers) -> None:
    assert alarms_of_healthy(brokers) == []


@pytest.mark.parametrize("command", ["topic ls", "group ls", "rebalance doctor"])
def test_lists_name_the_broker_that_does_not_answer(brokers: Brokers, command: str) -> None:
    options = ("--nameserver", brokers.name_server, "--timeout", "1")
    os.kill(brokers.pids["west-a"], signal.SIGSTOP)
    try:
        result = CliRunner().invoke(build_app(), [*command.split(), *options])
    finally:
        os.kill(brokers.pids["west-a"], signal.SIGCONT)

    assert "west-a: " in result.stderr

"""The simulated driver: operations under virtual time."""

from __future__ import annotations

from typing import Any

import pytest

from sparrowmq.calling.effects import Operation, call, invoke, now, sleep
from sparrowmq.client.operations.gather import gather_outcomes
from sparrowmq.errors import ConnectFailed, SparrowError
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.simulation.driver import Later, SimulatedDriver
from sparrowmq.simulation.virtual_time import START_MS


class Host:
    """A driver on a host of its own, and the errors that nobody took."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self.failures: list[str] = []
        self.process = world.process("10.0.0.2")
        self.driver = SimulatedDriver(
            self.process,
            world.network,
            on_failure=lambda name, error: self.failures.append(f"{name}: {error}"),
        )

    def run(self, operation: Operation[Any], duration_ms: int) -> list[Any]:
        results: list[Any] = []
        self.driver.start(operation, name="test", on_done=results.append)
        self.world.run(duration_ms)
        return results


@pytest.fixture
def host(world: Any) -> Host:
    return Host(world)


def test_sleep_and_calls_take_virtual_time(host: Host) -> None:
    def operation() -> Operation[tuple[int, str]]:
        yield from sleep(40_000)
        text: Any = yield from call(lambda: Later(2_000, lambda: "done"))
        return (yield from now()), text

    assert host.run(operation(), 41_999) == []
    host = Host(host.world)
    begun_ms = host.world.timeline.now_ms
    assert host.run(operation(), 42_000) == [(begun_ms + 42_000, "done")]


def test_request_to_nobody_fails_as_on_a_real_network(host: Host) -> None:
    def operation() -> Operation[str]:
        try:
            yield from invoke("10.0.0.1:80", RemotingCommand(code=1), timeout_ms=3_000)
        except ConnectFailed as error:
            return str(error)
        return ""

    (message,) = host.run(operation(), 100)
    assert message.startswith("cannot connect to 10.0.0.1:80: Connection refused")


def test_error_that_is_waited_for_late_is_not_reported_as_lost(host: Host) -> None:
    def fail() -> Operation[int]:
        yield from sleep(10)
        raise ConnectFailed("no", address="a")

    def wait_long() -> Operation[int]:
        yield from sleep(5_000)
        return 1

    results = host.run(gather_outcomes([wait_long(), fail()], name="both"), 6_000)

    ((value, error),) = results
    assert (value, isinstance(error, SparrowError)) == (1, True)
    assert host.failures == []


def test_error_of_an_operation_that_nobody_waits_for_is_reported(host: Host) -> None:
    def fail() -> Operation[None]:
        yield from sleep(10)
        raise ConnectFailed("no", address="a")

    host.run(fail(), 100)

    assert host.failures == ["test: no"]
    assert host.world.timeline.now_ms == START_MS + 100


def test_call_under_way_when_its_process_is_killed_has_no_end(host: Host) -> None:
    ended: list[int] = []

    def operation() -> Operation[None]:
        yield from call(lambda: Later(500, lambda: ended.append(1)))

    host.run(operation(), 100)
    host.process.kill()
    host.world.run(1_000)

    assert ended == []

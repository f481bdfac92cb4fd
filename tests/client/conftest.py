"""A cluster for the tests of the faces, and a driver without sockets for those of operations."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

from hostile import HostileCluster
from sparrowmq import Admin, Producer
from sparrowmq.calling.async_driver import AsyncDriver
from sparrowmq.calling.blocking_driver import BlockingDriver
from sparrowmq.calling.effects import (
    Call,
    Cancel,
    Invoke,
    Join,
    Now,
    Oneway,
    Operation,
    Sleep,
    Spawn,
    Timestamp,
    Wait,
)
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.testing.embedded import EmbeddedCluster

T = TypeVar("T")

Handler = Callable[[str, RemotingCommand], RemotingCommand]


@pytest.fixture(scope="session", autouse=True)
def _home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Have BROADCASTING consumers keep their offsets in a place of this run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="session")
def cluster() -> Iterator[EmbeddedCluster]:
    """One cluster for all tests of this directory that do not harm it."""
    with EmbeddedCluster() as running:
        yield running


@pytest.fixture(scope="session")
def numbers() -> Iterator[int]:
    return itertools.count()


@pytest.fixture
def topic(cluster: EmbeddedCluster, numbers: Iterator[int]) -> str:
    """A topic of eight queues that no other test uses."""
    name = f"T{next(numbers)}"
    cluster.create_topic(name, queues=8)
    return name


@pytest.fixture
def group(numbers: Iterator[int]) -> str:
    return f"GID_{next(numbers)}"


@pytest.fixture
def admin(cluster: EmbeddedCluster) -> Iterator[Admin]:
    with Admin(name_server=cluster.name_server) as opened:
        yield opened


@pytest.fixture
def producer(cluster: EmbeddedCluster) -> Iterator[Producer]:
    with Producer("GID_test_producer", name_server=cluster.name_server) as opened:
        yield opened


@pytest.fixture
def hostile() -> Iterator[HostileCluster]:
    """A name server and a broker that answer what the test says."""
    with HostileCluster() as running:
        yield running


@pytest.fixture(params=["blocking", "asyncio"])
def run(request: pytest.FixtureRequest) -> Iterator[Callable[[Operation[Any]], Any]]:
    """Run operations by each driver in turn."""
    if request.param == "blocking":
        with BlockingDriver() as driver:
            yield driver.run
        return
    with asyncio.Runner() as runner:
        made = AsyncDriver()
        yield lambda operation: runner.run(made.run(operation))
        runner.run(made.aclose())


class PlayedTask:
    """A spawned operation: it has been run to its end already."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.done = True
        self.result: Any = None
        self.error: BaseException | None = None


class Play:
    """Runs operations against a function in the place of all servers, on a clock of its own.

    Args:
        handler: answers a request to an address, or raises the error of its `Invoke`.
    """

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.now_ms = 1_000_000
        self.requests: list[tuple[str, RemotingCommand]] = []
        self.oneways: list[tuple[str, RemotingCommand]] = []
        self.slept_ms: list[int] = []

    def __call__(self, operation: Operation[T]) -> T:
        value: Any = None
        error: BaseException | None = None
        while True:
            try:
                effect = operation.send(value) if error is None else operation.throw(error)
            except StopIteration as stop:
                result: T = stop.value
                return result
            value, error = None, None
            try:
                value = self.carry_out(effect)
            except Exception as raised:
                error = raised

    def carry_out(self, effect: Any) -> Any:
        if isinstance(effect, Invoke):
            self.requests.append((effect.address, effect.request))
            return self.handler(effect.address, effect.request)
        if isinstance(effect, Oneway):
            self.oneways.append((effect.address, effect.request))
            return None
        if isinstance(effect, Sleep):
            self.slept_ms.append(effect.duration_ms)
            self.now_ms += effect.duration_ms
            return None
        if isinstance(effect, Now | Timestamp):
            return self.now_ms
        if isinstance(effect, Spawn):
            task = PlayedTask(effect.name)
            try:
                task.result = self(effect.operation)
            except Exception as raised:
                task.error = raised
            return task
        if isinstance(effect, Join):
            assert isinstance(effect.task, PlayedTask)
            if effect.task.error is not None:
                raise effect.task.error
            return effect.task.result
        if isinstance(effect, Wait):
            return effect.event.is_set
        if isinstance(effect, Call):
            return effect.function(*effect.args)
        assert isinstance(effect, Cancel)
        return None


@pytest.fixture
def play() -> Callable[[Handler], Play]:
    """Make a driver without sockets."""
    return Play

"""A cluster for the tests of the faces, and a driver without sockets for those of operations."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from hostile import HostileCluster
from play import Handler, Play
from sparrowmq import Admin, Producer, PushConsumer
from sparrowmq.calling.async_driver import AsyncDriver
from sparrowmq.calling.blocking_driver import BlockingDriver
from sparrowmq.calling.effects import Operation
from sparrowmq.testing.embedded import EmbeddedCluster


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
def make_consumer(
    cluster: EmbeddedCluster, topic: str, group: str
) -> Iterator[Callable[..., PushConsumer]]:
    """Make consumers of this test's topic and group; they are closed at the end."""
    with ExitStack() as stack:

        def make(listener: Any, **settings: Any) -> PushConsumer:
            settings = {"name_server": cluster.name_server, "start": "first"} | settings
            consumer = PushConsumer(group, listener=listener, **settings)
            stack.enter_context(consumer)
            consumer.subscribe(topic)
            return consumer

        yield make


@pytest.fixture
def start_consumer(make_consumer: Callable[..., PushConsumer]) -> Callable[..., PushConsumer]:
    """Make consumers as `make_consumer` does, and start them."""

    def start(listener: Any, **settings: Any) -> PushConsumer:
        consumer = make_consumer(listener, **settings)
        consumer.start()
        return consumer

    return start


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


@pytest.fixture
def play() -> Callable[[Handler], Play]:
    """Make a driver without sockets."""
    return Play

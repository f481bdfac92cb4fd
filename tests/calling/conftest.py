"""Frame servers that end with the test, and every driver behind one face.

Tests that take `driver` run once per driver. After each of them no thread and no descriptor may
be left over.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvloop

import ports
from frame_server import FrameServer, Handler, echo
from harness import Harness

# libuv opens a pipe for signals once in a process; have that done before descriptors are counted.
uvloop.new_event_loop().close()


def count_descriptors() -> int:
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


@pytest.fixture
def no_leaks() -> Iterator[None]:
    # What there was before is not looked through: after thousands of tests it is much.
    gc.freeze()
    threads = set(threading.enumerate())
    descriptors = count_descriptors()
    yield
    gc.collect()
    assert threads == set(threading.enumerate())
    assert descriptors == count_descriptors()


@pytest.fixture
def serve(no_leaks: None) -> Iterator[Callable[..., FrameServer]]:
    """Start frame servers that end with the test."""
    servers: list[FrameServer] = []

    def start(handler: Handler = echo, **settings: Any) -> FrameServer:
        servers.append(FrameServer(handler, **settings))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture(params=["blocking", "asyncio", "uvloop"])
def make_driver(request: pytest.FixtureRequest, no_leaks: None) -> Iterator[Callable[..., Harness]]:
    """Make drivers that are closed with the test."""
    made: list[Harness] = []

    def make(**settings: Any) -> Harness:
        made.append(Harness(request.param, **settings))
        return made[-1]

    yield make
    for harness in made:
        harness.close()


@pytest.fixture
def driver(make_driver: Callable[..., Harness]) -> Harness:
    return make_driver()


@pytest.fixture
def free_port() -> int:
    """A port on which nobody listens."""
    return ports.free_port()

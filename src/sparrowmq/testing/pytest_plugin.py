"""Fixtures for tests of programs that use SparrowMQ; pytest finds them by itself.

| Fixture | Scope | Value |
|---|---|---|
| `rmq_settings` | session | the broker's settings by name, none; a `conftest.py` has its own |
| `rmq_cluster` | session | an `InProcessCluster`; with pytest-xdist, one for each worker |
| `rmq_grpc` | session | its endpoint for clients of RocketMQ 5, which needs the extra `grpc` |
| `rmq_topic` | function | the name of a topic for this test alone, with four queues |
| `rmq_group` | function | the name of a group for this test alone |
| `rmq_messages` | function | a function that returns a topic's messages, or `count` of them |

The import of this module loads nothing but pytest: the first test that asks starts the cluster.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from sparrowmq.model import MessageExt
    from sparrowmq.testing.in_process import InProcessCluster

TOPIC_QUEUES = 4
# The most characters of a test's name in a topic's name.
_NAME_CHARACTERS_MAX = 60
_NUMBERS = itertools.count(1)


@pytest.fixture(scope="session")
def rmq_settings() -> Mapping[str, object]:
    """The broker's settings by name; a project's `conftest.py` gives its own."""
    return {}


@pytest.fixture(scope="session")
def rmq_cluster(rmq_settings: Mapping[str, object]) -> Iterator[InProcessCluster]:
    """A name server and a broker for the session."""
    from sparrowmq.testing.in_process import InProcessCluster

    with InProcessCluster(**rmq_settings) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def rmq_grpc(rmq_cluster: InProcessCluster) -> str:
    """The endpoint of `rmq_cluster` for clients of RocketMQ 5, `ip:port`."""
    return rmq_cluster.serve_grpc()


@pytest.fixture
def rmq_topic(rmq_cluster: InProcessCluster, request: pytest.FixtureRequest) -> str:
    """The name of a topic for this test alone."""
    topic = _name_for("T", request)
    rmq_cluster.create_topic(topic, TOPIC_QUEUES)
    return topic


@pytest.fixture
def rmq_group(request: pytest.FixtureRequest) -> str:
    """The name of a group for this test alone."""
    return _name_for("GID", request)


@pytest.fixture
def rmq_messages(rmq_cluster: InProcessCluster) -> Callable[..., list[MessageExt]]:
    """Read a topic: `rmq_messages(topic, count=0, timeout_ms=10_000)`."""
    from functools import partial

    from sparrowmq.testing.questions import read_messages

    return partial(read_messages, rmq_cluster.name_server)


def _name_for(kind: str, request: pytest.FixtureRequest) -> str:
    test = re.sub(r"[^A-Za-z0-9_-]", "_", request.node.name)[:_NAME_CHARACTERS_MAX]
    return f"{kind}_{test}_{next(_NUMBERS)}"

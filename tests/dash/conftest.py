"""A cluster with members, and somebody who has logged in to its page."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from group_stage import GroupStage
from live_page import Reader, reading
from sparrowmq.testing import EmbeddedCluster


@pytest.fixture(scope="package")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(flush="async") as running:
        yield running


@pytest.fixture
def stage(cluster: EmbeddedCluster) -> Iterator[GroupStage]:
    with GroupStage(cluster) as running:
        yield running


@pytest_asyncio.fixture
async def reader(cluster: EmbeddedCluster) -> AsyncIterator[Reader]:
    async with reading(cluster.name_server) as found:
        yield found


@pytest_asyncio.fixture
async def writer(cluster: EmbeddedCluster) -> AsyncIterator[Reader]:
    async with reading(cluster.name_server, allow_writes=True) as found:
        yield found

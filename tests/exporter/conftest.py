"""A cluster with members for the exporter."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from group_stage import GroupStage
from sparrowmq.testing import EmbeddedCluster


@pytest.fixture(scope="package")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(flush="async") as running:
        yield running


@pytest.fixture
def stage(cluster: EmbeddedCluster) -> Iterator[GroupStage]:
    with GroupStage(cluster) as running:
        yield running

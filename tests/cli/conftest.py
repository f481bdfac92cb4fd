"""The command line in this process, with no context and no variable of the user's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from commands import Commands
from sparrowmq.testing import EmbeddedCluster


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of settings in the place of the user's."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("LANGUAGE", "en")
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    monkeypatch.delenv("SPARROWMQ_CONTEXT", raising=False)
    return tmp_path / "config"


@pytest.fixture(scope="package")
def shared_cluster() -> Iterator[EmbeddedCluster]:
    """One cluster for all tests of this directory that do not harm it."""
    with EmbeddedCluster(flush="async") as running:
        yield running


@pytest.fixture
def smq(shared_cluster: EmbeddedCluster) -> Commands:
    return Commands(shared_cluster.name_server)

"""Apache's C++ client on our broker, and on Apache's beside it: what each is for, one by one.

The package `rocketmq` of PyPI has the client compiled, as of 2019. Its batches are no check: they
are stored as one message without a body, by Apache's broker too.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sparrowmq import Admin

pytestmark = [
    pytest.mark.interop,
    pytest.mark.timeout(300),
    pytest.mark.parametrize("java", ["4.9.7"], indirect=True, scope="session"),
]

CLIENT = "rocketmq==0.4.4"
CHECKS = (
    *("send", "async", "oneway", "compressed", "tags", "delay", "orderly"),
    *("broadcast", "share", "resume", "retry", "pull"),
)


@pytest.fixture(scope="module")
def program(rig: ModuleType) -> list[str]:
    """The program of `cpp/` in its environment; skips where the client cannot be had."""
    home: Path = rig.CACHE / "cpp"
    python = home / "bin" / "python"
    if not (home / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
        command = [str(python), "-m", "pip", "install", "--quiet", "--only-binary", ":all:", CLIENT]
        if subprocess.run(command, check=False, timeout=240).returncode != 0:
            pytest.skip(f"{CLIENT} cannot be installed")
        (home / "complete").touch()
    return [str(python), str(rig.HERE / "cpp" / "peer.py")]


@pytest.fixture(scope="module", params=["ours", "apache"])
def checked(
    request: pytest.FixtureRequest,
    java: Any,
    rig: ModuleType,
    program: list[str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Any]:
    """All checks under way on one of the clusters."""
    home = tmp_path_factory.mktemp(f"cpp-{request.param}")
    cluster = (
        rig.OurCluster(java, home / "data", options=("--flush", "async"))
        if request.param == "ours"
        else rig.ApacheCluster(java, home / "store")
    )
    checks = rig.Checks(program, home, cluster)
    try:
        cluster.start()
        for check in CHECKS:
            checks.start(check, cluster.create_topic(f"cpp-{check}", queues=4))
        yield checks
    finally:
        checks.kill()
        cluster.kill()


@pytest.mark.parametrize("check", CHECKS)
def test_the_cpp_client_works(checked: Any, check: str) -> None:
    assert checked.failure_of(f"cpp-{check}") is None


def test_what_a_cpp_consumer_consumed_is_committed(checked: Any) -> None:
    assert checked.failure_of("cpp-resume") is None

    with Admin(name_server=checked.cluster.name_server) as admin:
        lags = admin.group_lag("GID_cpp-resume", "cpp-resume")
    assert sum(lag.committed_offset or 0 for lag in lags) == 13

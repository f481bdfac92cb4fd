"""ali-ons, the client for JavaScript, on our broker and on Apache's beside it."""

from __future__ import annotations

import shutil
import subprocess
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

CHECKS = (
    *("send", "compressed", "tags", "sql92", "delay", "orderly", "broadcast", "resume"),
    *("retry", "dead-letters", "namespace"),
)


@pytest.fixture(scope="module")
def program(rig: ModuleType) -> list[str]:
    """The program of `js/` with its packages; skips where npm or the packages are missing."""
    node, npm = rig.find_tool("node"), rig.find_tool("npm")
    source: Path = rig.HERE / "js"
    home: Path = rig.CACHE / "js"
    home.mkdir(parents=True, exist_ok=True)
    lock = (source / "package-lock.json").read_text()
    stamp = home / "complete"
    if not stamp.exists() or stamp.read_text() != lock:
        for name in ("package.json", "package-lock.json"):
            shutil.copy(source / name, home / name)
        command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        result = subprocess.run(
            command, cwd=home, capture_output=True, text=True, timeout=300, check=False
        )
        if result.returncode != 0:
            pytest.skip(f"npm could not get ali-ons: {result.stderr[-300:]}")
        stamp.write_text(lock)
    return [node, str(source / "peer.js"), f"modules={home}"]


@pytest.fixture(scope="module", params=["ours", "apache"])
def checked(
    request: pytest.FixtureRequest,
    java: Any,
    rig: ModuleType,
    program: list[str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Any]:
    """All checks under way on one of the clusters."""
    home = tmp_path_factory.mktemp(f"js-{request.param}")
    cluster = (
        rig.OurCluster(java, home / "data", options=("--flush", "async"))
        if request.param == "ours"
        else rig.ApacheCluster(java, home / "store", enablePropertyFilter="true")
    )
    checks = rig.Checks(program, home, cluster)
    try:
        cluster.start()
        for check in CHECKS:
            topic = f"SPACE%js-{check}" if check == "namespace" else f"js-{check}"
            checks.start(check, cluster.create_topic(topic, queues=4))
        yield checks
    finally:
        checks.kill()
        cluster.kill()


@pytest.mark.parametrize("check", CHECKS)
def test_the_javascript_client_works(checked: Any, check: str) -> None:
    assert checked.failure_of(f"js-{check}") is None


def test_dead_letters_of_a_javascript_consumer_are_kept(checked: Any) -> None:
    assert checked.failure_of("js-dead-letters") is None

    with Admin(name_server=checked.cluster.name_server) as admin:
        (dead,) = admin.dead_letters("GID_js-dead-letters")
    assert dead.body == b"dead"

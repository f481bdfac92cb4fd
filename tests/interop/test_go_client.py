"""Apache's Go client on our broker, and on Apache's beside it: what each is for, one by one."""

from __future__ import annotations

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
    *("sync", "async", "one-way", "batch", "compressed", "selector", "orderly", "delay"),
    *("commit", "rollback", "check-back", "request-reply", "tags", "sql92", "broadcast", "resume"),
    *("retry", "dead-letters", "pull", "poll", "trace", "namespace", "topics"),
)
# Its PullConsumer and its admin sign no request to a name server, so our name server refuses them:
# that needs a name server without access control.
WITH_ACCESS_CONTROL = ("sync", "batch", "orderly", "commit", "retry")
OWNER: dict[str, Any] = {"access_key": "owner-of-all", "secret_key": "owner-secret-1"}
RULES = """\
accounts:
- accessKey: owner-of-all
  secretKey: owner-secret-1
  admin: true
"""


@pytest.fixture(scope="module")
def go_peer(rig: ModuleType) -> Path:
    """The program of `go/`, built; skips where Go or its modules are missing."""
    built: Path = rig.CACHE / "go" / "peer"
    built.parent.mkdir(parents=True, exist_ok=True)
    command = [rig.find_tool("go"), "build", "-mod=readonly", "-o", str(built), "."]
    result = subprocess.run(
        command, cwd=rig.HERE / "go", capture_output=True, text=True, timeout=300, check=False
    )
    if "dial tcp" in result.stderr or "proxy.golang.org" in result.stderr:
        pytest.skip(f"Go could not get its modules: {result.stderr[-300:]}")
    assert result.returncode == 0, result.stderr
    return built


@pytest.fixture(scope="module", params=["ours", "apache"])
def checked(
    request: pytest.FixtureRequest,
    java: Any,
    rig: ModuleType,
    go_peer: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Any]:
    """All checks under way on one of the clusters, which ask for outcomes after a second."""
    home = tmp_path_factory.mktemp(f"go-{request.param}")
    if request.param == "ours":
        waits = ("--transaction-timeout-ms", "1000", "--transaction-check-interval-ms", "1000")
        cluster = rig.OurCluster(java, home / "data", options=("--flush", "async", *waits))
    else:
        cluster = rig.ApacheCluster(
            java,
            home / "store",
            transactionTimeOut=1_000,
            transactionCheckInterval=1_000,
            enablePropertyFilter="true",
            traceTopicEnable="true",
        )
    cluster.start()
    peers = rig.Checks([str(go_peer)], home, cluster)
    try:
        cluster.create_topic("go-other", queues=4)
        for check in CHECKS:
            topic = f"SPACE%go-{check}" if check == "namespace" else f"go-{check}"
            peers.start(check, cluster.create_topic(topic, queues=4), other="go-other")
        yield peers
    finally:
        peers.kill()
        cluster.kill()


@pytest.mark.parametrize("check", CHECKS)
def test_the_go_client_works(checked: Any, check: str) -> None:
    assert checked.failure_of(f"go-{check}") is None


def test_dead_letters_of_a_go_consumer_are_kept(checked: Any) -> None:
    assert checked.failure_of("go-dead-letters") is None

    with Admin(name_server=checked.cluster.name_server) as admin:
        (dead,) = admin.dead_letters("GID_go-dead-letters")
    assert dead.body == b"dead"


@pytest.fixture(scope="module")
def guarded(
    java: Any, rig: ModuleType, go_peer: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """Our cluster with access control, and checks under way that sign."""
    home = tmp_path_factory.mktemp("go-guarded")
    (home / "plain_acl.yml").write_text(RULES)
    cluster = rig.OurCluster(
        java,
        home / "data",
        options=("--flush", "async", "--acl", str(home / "plain_acl.yml")),
    )
    cluster.start()
    peers = rig.Checks([str(go_peer)], home, cluster)
    keys = {"accessKey": OWNER["access_key"], "secretKey": OWNER["secret_key"]}
    try:
        with Admin(name_server=cluster.name_server, **OWNER) as admin:
            for check in WITH_ACCESS_CONTROL:
                admin.create_topic(f"go-{check}", 4)
        for check in WITH_ACCESS_CONTROL:
            peers.start(check, f"go-{check}", **keys)
        yield peers
    finally:
        peers.kill()
        cluster.kill()


@pytest.mark.parametrize("check", WITH_ACCESS_CONTROL)
def test_the_go_client_signs(guarded: Any, check: str) -> None:
    assert guarded.failure_of(f"go-{check}") is None


@pytest.mark.parametrize("secret", ["a-wrong-guess", ""])
def test_a_go_client_with_a_wrong_key_or_none_is_refused(guarded: Any, secret: str) -> None:
    keys = {"accessKey": OWNER["access_key"], "secretKey": secret} if secret else {}
    name = f"go-refused-{len(secret)}"

    # By the name server: the client does not say why it has no route.
    guarded.start("refused", name, remark="route info not found", **keys)

    assert guarded.failure_of(name) is None

"""Apache's clients and mqadmin against our access control, with right and wrong keys."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from sparrowmq import Admin

pytestmark = [
    pytest.mark.interop,
    pytest.mark.timeout(300),
    # 5.x has other rules, and its mqadmin other commands.
    pytest.mark.parametrize("java", ["4.9.7"], indirect=True, scope="session"),
]

ADMIN: dict[str, Any] = {"access_key": "administrator", "secret_key": "secret-of-administrator"}
USER = {"accessKey": "orders-user", "secretKey": "secret-of-the-user"}
RULES = """\
accounts:
  - {accessKey: administrator, secretKey: secret-of-administrator, admin: true}
  - accessKey: orders-user
    secretKey: secret-of-the-user
    topicPerms: [orders=PUB|SUB]
    groupPerms: [GID_orders=SUB]
"""
# The name server tells nobody a route who does not sign rightly.
NO_ROUTE = "No route info of this topic: orders"
TOOLS = "accessKey: administrator\nsecretKey: secret-of-administrator\n"


@pytest.fixture(scope="module")
def guarded(java: Any, rig: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Our cluster with access control, and two topics."""
    root = tmp_path_factory.mktemp("guarded")
    rules = root / "plain_acl.yml"
    rules.write_text(RULES)
    cluster = rig.OurCluster(java, root / "data", options=("--acl", str(rules)))
    cluster.start()
    try:
        with Admin(name_server=cluster.name_server, **ADMIN) as admin:
            admin.create_topic("orders", 1)
            admin.create_topic("secret", 1)
        yield cluster
    finally:
        cluster.stop()


def produced(java: Any, cluster: Any, topic: str, **keys: str) -> str:
    """Run a producer of one message; return what it wrote, up to an exception."""
    lines = java.peer(
        "produce", nameServer=cluster.name_server, topic=topic, group="GID_p", count=1, **keys
    )

    def has_ended() -> bool:
        return lines.process.poll() is not None or "Exception in thread" in lines._tail()

    try:
        lines.wait_for("end", has_ended)
        return "\n".join(lines.lines) + str(lines._tail())
    finally:
        lines.kill()


def test_java_sends_and_consumes_what_it_may(java: Any, guarded: Any) -> None:
    said = produced(java, guarded, "orders", **USER)
    assert "Exception" not in said, said
    consumer = java.peer(
        "consume", nameServer=guarded.name_server, topic="orders", group="GID_orders", **USER
    )
    try:
        consumer.wait_for("message", lambda: consumer.named("message"))
        assert consumer.stop() == 0
    finally:
        consumer.kill()


@pytest.mark.parametrize(
    ("topic", "keys", "words"),
    [
        ("secret", USER, "AclException: No default permission for topic: secret"),
        ("orders", {**USER, "secretKey": "wrong-secret"}, NO_ROUTE),
        ("orders", {}, NO_ROUTE),
    ],
)
def test_java_is_told_what_it_may_not(
    java: Any, guarded: Any, topic: str, keys: dict[str, str], words: str
) -> None:
    said = produced(java, guarded, topic, **keys)

    assert words in said


def mqadmin(java: Any, cluster: Any, command: str, tools: str = TOOLS) -> str:
    lines = java.mqadmin(cluster, *command.split(), tools=tools)
    return "\n".join(lines.lines) + str(lines._tail())


def test_mqadmin_changes_the_rules_for_administrators(java: Any, guarded: Any) -> None:
    at = f"-b {guarded.broker}"
    made = mqadmin(
        java,
        guarded,
        f"updateAclConfig {at} -a newcomer -s secret-of-newcomer -i DENY -t orders=PUB -m false",
    )
    shown = mqadmin(java, guarded, f"getAclConfig {at}")
    version = mqadmin(java, guarded, f"clusterAclConfigVersion {at}")
    sent = produced(java, guarded, "orders", accessKey="newcomer", secretKey="secret-of-newcomer")
    narrowed = mqadmin(java, guarded, f"updateGlobalWhiteAddr {at} -g 127.0.0.*")
    gone = mqadmin(java, guarded, f"deleteAclConfig {at} -a newcomer")
    refused = mqadmin(
        java,
        guarded,
        f"getAclConfig {at}",
        "accessKey: orders-user\nsecretKey: secret-of-the-user\n",
    )

    assert "success" in made, made
    assert "newcomer" in shown
    assert "***" in shown
    assert "secret-of" not in shown
    assert "broker-a" in version, version
    assert "Exception" not in sent, sent
    assert "success" in narrowed, narrowed
    assert "success" in gone, gone
    assert "Need admin permission for request code=54" in refused

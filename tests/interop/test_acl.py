"""Our clients on Apache's broker with access control, the plain one of 4.x."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sparrowmq import (
    Admin,
    AsyncProducer,
    Message,
    MessageExt,
    PollConsumer,
    Producer,
    PushConsumer,
)
from sparrowmq.errors import BrokerError, SparrowError
from waiting import wait_until

pytestmark = [
    pytest.mark.interop,
    pytest.mark.timeout(300),
    pytest.mark.parametrize("java", ["4.9.7"], indirect=True, scope="module"),
]

OWNER: dict[str, Any] = {"access_key": "owner-of-all", "secret_key": "owner-secret-1"}
READER: dict[str, Any] = {"access_key": "reader-of-one", "secret_key": "reader-secret-1"}
RULES = """\
globalWhiteRemoteAddresses: []
accounts:
- accessKey: owner-of-all
  secretKey: owner-secret-1
  admin: true
- accessKey: reader-of-one
  secretKey: reader-secret-1
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - acl-all=SUB
"""


@pytest.fixture(scope="module")
def name_server(
    java: Any, rig: ModuleType, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A broker with the rules above and a topic of one queue; answers with its name server."""
    home = tmp_path_factory.mktemp("acl")
    # The broker puts its own home before this path.
    up = Path("/").joinpath(*[".."] * len(home.parts))
    (home / "plain_acl.yml").write_text(RULES)
    with pytest.MonkeyPatch.context() as patch:
        rules = f"{up}{home}/plain_acl.yml"
        patch.setenv("JAVA_TOOL_OPTIONS", f"-Drocketmq.acl.plain.file={rules}")
        cluster = rig.ApacheCluster(java, home / "store", aclEnable="true")
        cluster.start()
    try:
        with Admin(name_server=cluster.name_server, **OWNER) as admin:
            admin.create_topic("acl-all", 1)
        yield cluster.name_server
    finally:
        cluster.kill()


async def test_every_client_signs(name_server: str) -> None:
    settings: dict[str, Any] = {"name_server": name_server, **OWNER}
    got: list[str] = []

    def listener(messages: list[MessageExt], _: object) -> None:
        got.extend(message.body.decode() for message in messages)

    with Producer("GID_acl_p", **settings) as producer:
        producer.send(Message("acl-all", b"one", keys=("k",)))
        producer.send_batch([Message("acl-all", b"two"), Message("acl-all", b"three")])
        producer.send_oneway(Message("acl-all", b"four"))
    async with AsyncProducer("GID_acl_p", **settings) as asyncio_producer:
        await asyncio_producer.send(Message("acl-all", "fünf".encode(), tags="T"))
    reader: dict[str, Any] = {"name_server": name_server, **READER, "start": "first"}
    with PushConsumer("GID_acl", "acl-all", listener=listener, orderly=True, **reader):
        wait_until("all messages", lambda: len(got) >= 5)
    with PollConsumer("GID_acl_pull", "acl-all", **reader) as polled:
        texts = [str(polled.getone(20_000)) for _ in range(5)]

    assert got == ["one", "two", "three", "four", "fünf"]
    assert len(texts) == 5
    with Admin(**settings) as admin:
        (lag,) = admin.group_lag("GID_acl", "acl-all")
        assert (lag.committed_offset, lag.max_offset) == (5, 5)
        (found,) = admin.query_message("acl-all", "k")
        assert found.body == b"one"


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({}, "No accessKey is configured"),
        ({"access_key": "nobody", "secret_key": "owner-secret-1"}, "No acl config for nobody"),
        ({**OWNER, "secret_key": "mistyped"}, "Check signature failed for accessKey=owner-of-all"),
        (READER, "No default permission for topic:acl-all"),
    ],
    ids=["none", "unknown", "mistyped", "not allowed"],
)
def test_refusal_says_why_and_shows_no_secret(
    name_server: str, keys: dict[str, Any], words: str
) -> None:
    with (
        Producer("GID_acl_p", name_server=name_server, retry_times=0, **keys) as producer,
        pytest.raises(BrokerError) as caught,
    ):
        producer.send(Message("acl-all", b"x"))

    assert words in str(caught.value)
    assert keys.get("secret_key", "secret-1") not in repr(caught.value)


def test_administrator_needs_the_right_to(name_server: str) -> None:
    with (
        Admin(name_server=name_server, **READER) as admin,
        pytest.raises(SparrowError, match="Need admin permission"),
    ):
        admin.create_topic("acl-new", 1)


def test_administrator_makes_changes_and_deletes_an_account(name_server: str) -> None:
    with Admin(name_server=name_server, **OWNER) as admin:

        def found() -> dict[str, tuple[bool, str, tuple[str, ...]]]:
            return {
                each.access_key: (each.is_admin, each.default_topic_perm, each.topic_perms)
                for each in admin.list_accounts()
            }

        # No other test may find its message.
        admin.create_topic("acl-written", 1)
        admin.put_account(
            "writer-of-one",
            secret_key="writer-secret-1",
            default_topic_perm="DENY",
            topic_perms=["acl-written=PUB"],
        )
        # The broker reads its file again every half second.
        wait_until("the new account", lambda: "writer-of-one" in found())
        assert found()["writer-of-one"] == (False, "DENY", ("acl-written=PUB",))
        keys: dict[str, Any] = {"access_key": "writer-of-one", "secret_key": "writer-secret-1"}
        with Producer("GID_acl_w", name_server=name_server, **keys) as producer:
            producer.send(Message("acl-written", b"by the new account"))
        with pytest.raises(BrokerError, match="secretKey=null"):
            admin.put_account("writer-of-one", topic_perms=["acl-written=SUB"])
        admin.put_account(
            "writer-of-one", secret_key="writer-secret-1", topic_perms=["acl-written=SUB"]
        )
        wait_until("the change", lambda: found()["writer-of-one"][2] == ("acl-written=SUB",))
        admin.delete_account("writer-of-one")
        wait_until("its end", lambda: "writer-of-one" not in found())
        assert "writer-secret-1" not in repr(admin.list_accounts())

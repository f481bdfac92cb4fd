"""`sparrowmq acl`, and every command with the keys of a context."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from commands import Commands
from sparrowmq.cli.contexts import Context, Contexts, write_contexts
from sparrowmq.cli.main import build_app
from sparrowmq.testing import EmbeddedCluster

pytestmark = pytest.mark.slow

RULES = """accounts:
  - accessKey: administrator
    secretKey: admin-secret
    admin: true
"""


def test_accounts_are_made_changed_and_deleted_with_the_keys_of_a_context(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules, secret, service = (tmp_path / name for name in ("acl.yml", "secret", "service"))
    rules.write_text(RULES)
    secret.write_text("admin-secret\n")
    service.write_text("service-secret\n")
    with EmbeddedCluster(options=("--acl", str(rules))) as cluster:
        context = Context(
            name_server=cluster.name_server,
            access_key="administrator",
            secret_key_file=str(secret),
        )
        write_contexts(
            home / "sparrowmq/contexts.toml", Contexts(current="a", contexts={"a": context})
        )

        def run(*arguments: str) -> str:
            result = CliRunner().invoke(build_app(), [*arguments, "--timeout", "10"])
            assert result.exit_code == 0, result.stderr
            assert "service-secret" not in result.stdout
            return result.stdout

        empty = tmp_path / "empty"
        empty.write_text("\n")
        new = ["acl", "put", "orders-service", "--yes"]
        short = tmp_path / "short"
        short.write_text("secret")
        with_secret = [*new[:-1], "--secret-key-file", str(service)]
        alone = "administrator is the only administrator of broker-a"
        for line, words in (
            (new, "orders-service is a new account; give --secret-key-file"),
            ([*new, "--secret-key-file", str(empty)], f"{empty} is empty"),
            ([*new, "--secret-key-file", str(short)], "secretKey must be given and have 7"),
            ([*with_secret, "--topics", "READ"], "is 'READ'; give DENY, PUB, SUB or PUB|SUB"),
            ([*with_secret, "--topic", "orders"], "'orders' in topicPerms is not a NAME=PERM"),
            ([*with_secret, "--from", "10.0.0"], "10.0.0"),
            (["acl", "delete", "administrator", "--yes"], alone),
            (["acl", "put", "administrator", "--no-admin", "--yes"], alone),
        ):
            refused = CliRunner().invoke(build_app(), line)
            assert (refused.exit_code, words in refused.stderr) == (2, True), refused.stderr
            assert refused.stdout == ""
        put = ("acl", "put", "orders-service", "--secret-key-file", str(service))
        permissions = ("--topic", "orders=PUB|SUB", "--topics", "DENY")
        run(*put, *permissions)
        assert "orders-service" not in run("acl", "ls")
        run(*put, *permissions, "--yes")
        assert "orders=PUB|SUB" in run("acl", "ls")
        fields = ("--admin", "--from", "10.0.0.*", "--topics", "PUB", "--groups", "SUB")
        lists = ("--topic", "orders=PUB", "--topic", "bills=SUB", "--group", "G=SUB")
        run("acl", "put", "reports", "--secret-key-file", str(service), *fields, *lists, "--yes")
        # There is another administrator now.
        assert "administrator" in run("acl", "delete", "administrator")
        run("acl", "put", "reports", "--no-admin", "--groups", "DENY", "--yes")
        (row,) = [
            each
            for each in json.loads(run("acl", "ls", "--json"))
            if each["access_key"] == "reports"
        ]
        assert row == {
            "broker": "broker-a",
            "access_key": "reports",
            "admin": False,
            "white_remote_address": "10.0.0.*",
            "default_topic_perm": "PUB",
            "default_group_perm": "DENY",
            "topic_perms": ["orders=PUB", "bills=SUB"],
            "group_perms": ["G=SUB"],
        }
        run("topic", "create", "orders")

        stranger = Commands(cluster.name_server)("ls")
        assert stranger.exit_code == 3
        monkeypatch.setenv("SPARROWMQ_ACCESS_KEY", "orders-service")
        monkeypatch.setenv("SPARROWMQ_SECRET_KEY", "service-secret")
        service_commands = Commands(cluster.name_server)
        assert service_commands("send", "orders", "x").exit_code == 0
        assert service_commands("topic", "create", "others").exit_code == 3
        monkeypatch.delenv("SPARROWMQ_ACCESS_KEY")

        wrong = CliRunner().invoke(build_app(), ["acl", "delete", "order-service"])
        assert (wrong.exit_code, "did you mean orders-service?" in wrong.stderr) == (2, True)
        run("acl", "delete", "orders-service", "--yes")
        assert "orders-service" not in run("acl", "ls")


def test_brokers_without_access_control_say_so(smq: Commands) -> None:
    result = smq("acl", "ls")

    assert (result.exit_code, "access control is off" in result.stderr) == (3, True)

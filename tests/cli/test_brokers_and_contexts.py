"""`sparrowmq broker` with a subcommand, and `sparrowmq context`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from commands import Commands
from sparrowmq import Admin
from sparrowmq.cli.broker import check_config
from sparrowmq.cli.connecting import directory_of_all
from sparrowmq.cli.contexts import Context, read_contexts
from sparrowmq.cli.main import build_app
from sparrowmq.errors import UsageError
from sparrowmq.testing import EmbeddedCluster
from waiting import wait_until


def run(*arguments: str) -> Result:
    return CliRunner().invoke(build_app(), list(arguments))


@pytest.mark.slow
def test_brokers_are_listed_and_shown(smq: Commands, shared_cluster: EmbeddedCluster) -> None:
    (row,) = smq.json("broker", "ls")
    runtime = smq.json("broker", "show", "broker-a")
    config = smq.json("broker", "config", shared_cluster.broker)

    assert ("broker-a", shared_cluster.broker, "") == (
        row["broker"],
        row["address"],
        row["failure"],
    )
    assert {"putTps", "bootTimestamp"} <= runtime.keys()
    assert (config["brokerName"], config["flushDiskType"]) == ("broker-a", "ASYNC_FLUSH")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("show", "broker-b"), 2, "did you mean broker-a?"),
        (("config", "broker-a", "x"), 2, "write NAME=VALUE"),
        (("config", "broker-a", "=x"), 2, "write NAME=VALUE"),
        (("config", "broker-a", "x=1"), 2, "cannot be changed remotely"),
        (("config", "broker-a", "brokerName=b", "--yes"), 2, "cannot be changed remotely"),
        (("config", "broker-a", "fileReservedTime=2d"), 2, "is '2d'; it must be from 1 to"),
        (("config", "broker-a", "deleteWhen=24"), 2, "give hours of the day"),
    ],
)
def test_brokers_and_settings_that_are_not_there_are_said(
    smq: Commands, arguments: tuple[str, ...], code: int, words: str
) -> None:
    result = smq("broker", *arguments)

    assert code == result.exit_code
    assert words in result.stderr
    assert result.stdout == ""


def test_pages_of_a_whole_cluster_show_every_namespace_of_it() -> None:
    context = Context(name_server="ns-1:9876", namespace="eu")

    directory = directory_of_all(context, timeout_s=2.5)

    assert (directory.namespace.wrap("T"), directory.timeout_ms) == ("T", 2_500)


def test_setting_that_a_broker_of_rocketmq_would_pass_over_is_refused() -> None:
    known = {"listenPort": "10911", "maxMessageSize": "4194304"}

    check_config(known, {"maxMessageSize": "9"})
    with pytest.raises(UsageError, match="has no setting 'maxMesageSize'; did you mean maxMessage"):
        check_config(known, {"maxMesageSize": "9"})


@pytest.mark.slow
def test_a_drained_broker_takes_no_messages_until_it_is_undone() -> None:
    with EmbeddedCluster(flush="async") as cluster:
        smq = Commands(cluster.name_server)
        cluster.create_topic("T", queues=2)

        def writable() -> Any:
            with Admin(name_server=cluster.name_server, timeout_ms=10_000) as admin:
                return admin.route("T").publish_queues

        def planned(*undo: str) -> Any:
            (change,) = smq.json("broker", "drain", "broker-a", *undo)["changes"]
            return change["takes_messages"]

        assert (planned(), planned("--undo")) == ("yes → no", "yes")
        assert writable()
        assert smq("broker", "drain", "broker-a", "--yes").exit_code == 0
        wait_until("no queue to write", lambda: not writable())
        assert (planned(), planned("--undo")) == ("no", "no → yes")
        assert smq("broker", "drain", "broker-a", "--undo", "--yes").exit_code == 0
        wait_until("queues to write", writable)


def test_contexts_are_named_chosen_and_forgotten() -> None:
    assert run("context", "set", "prod", "-n", "ns-1:9876", "--namespace", "eu").exit_code == 0
    assert run("context", "set", "dev", "-n", "127.0.0.1:1").exit_code == 0
    assert "context prod" in run("context", "show").stdout
    assert "ns-1:9876" in run("context", "ls").stdout

    assert run("context", "use", "dev").exit_code == 0
    down = run("ls")
    assert (down.exit_code, "the address comes from context dev" in down.stderr) == (3, True)

    assert run("context", "set", "prod", "-n", "ns-2:9876").exit_code == 0
    listed = run("context", "ls", "--json").stdout
    assert {row["name"]: row["current"] for row in json.loads(listed)} == {
        "dev": True,
        "prod": False,
    }
    assert "ns-2:9876" in listed
    assert '"namespace": "eu"' in listed
    assert run("context", "delete", "dev").exit_code == 0
    assert "the default" in run("context", "show").stdout


@pytest.mark.parametrize(
    ("variable", "value", "is_said"),
    [
        ("NAMESRV_ADDR", "127.0.0.1:2", True),
        ("SPARROWMQ_CONTEXT", "dev", True),
        ("SPARROWMQ_CONTEXT", "prod", False),
    ],
)
def test_a_variable_that_comes_before_the_context_in_use_is_said(
    home: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, *, is_said: bool
) -> None:
    run("context", "set", "dev", "-n", "127.0.0.1:1")
    monkeypatch.setenv(variable, value)

    run("context", "set", "prod", "-n", "ns-1:9876")
    lines = (("use", "prod"), ("set", "prod", "-n", "ns-2:9876"), ("ls",))
    told = [run("context", *line).stderr for line in lines]

    words = f"commands talk to {value}, as ${variable} is set"
    assert [words in each for each in told] == [is_said] * 3


def test_paths_of_a_context_hold_in_every_directory(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    paths = ("--tls-ca", "ca.pem", "--tls-cert", "a/cert.pem", "--secret-key-file", "~/secret")
    assert run("context", "set", "prod", *paths).exit_code == 0

    path = home / "sparrowmq" / "contexts.toml"
    prod = read_contexts(path).get("prod")
    assert (prod.tls_ca, prod.tls_cert) == (f"{tmp_path}/ca.pem", f"{tmp_path}/a/cert.pem")
    assert (prod.tls_key, prod.secret_key_file) == ("", "~/secret")
    assert run("context", "set", "prod", "--tls-ca", "").exit_code == 0
    assert read_contexts(path).get("prod").tls_ca == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("context", "use", "nowhere"), "no context 'nowhere'"),
        (("context", "delete", "nowhere"), "there are none"),
        (("context", "set", "a b"), "must consist of letters"),
        (("context", "set", "a", "-n", "host with blanks"), "is not an address"),
        (("context", "set", "a", "--namespace", "%"), "namespace"),
        (("context", "set", "a", "--tls-ca", "/\udcff"), "'/\\udcff' has bytes that are not UTF-8"),
    ],
)
def test_wrong_contexts_are_refused(arguments: tuple[str, ...], words: str) -> None:
    result = run(*arguments)

    assert result.exit_code == 2
    assert words in result.stderr


@pytest.mark.slow
def test_a_change_that_failed_prints_no_json(shared_cluster: EmbeddedCluster) -> None:
    shared_cluster.create_topic("T_half_deleted", queues=1)
    # The change must reach each name server, the preview only one.
    servers = f"{shared_cluster.name_server};127.0.0.1:1"

    result = run("topic", "delete", "T_half_deleted", "--yes", "--json", "-n", servers)

    assert (result.exit_code, result.stdout) == (3, "")


@pytest.mark.slow
def test_commands_of_a_context_stay_in_its_namespace(
    smq: Commands, shared_cluster: EmbeddedCluster
) -> None:
    at = ("-n", shared_cluster.name_server, "--namespace", "eu")
    assert run("context", "set", "europe", *at).exit_code == 0
    assert run("topic", "create", "T_of_eu", "-q", "1").exit_code == 0
    assert run("send", "T_of_eu", "hello").exit_code == 0
    smq("send", "eu%T_of_eu", "from outside")

    read = run("tail", "T_of_eu", "--body")
    made = run("group", "update", "GID_of_eu", "--yes")

    assert read.stdout.splitlines() == ["hello", "from outside"]
    assert made.exit_code == 0
    assert smq("group", "show", "eu%GID_of_eu").exit_code == 0
    assert smq("group", "show", "GID_of_eu").exit_code == 2


@pytest.mark.parametrize(
    ("last", "kept"),
    [("--secret-key-env", ("OPS", "")), ("--secret-key-file", ("", "/secret"))],
)
def test_a_new_place_of_a_secret_takes_the_place_of_the_old_one(
    home: Path, last: str, kept: tuple[str, str]
) -> None:
    places = {"--secret-key-env": "OPS", "--secret-key-file": "/secret"}
    for option in sorted(places, key=lambda each: each == last):
        assert run("context", "set", "prod", option, places[option]).exit_code == 0
    both = run("context", "set", "prod", *(word for pair in places.items() for word in pair))

    prod = read_contexts(home / "sparrowmq" / "contexts.toml").get("prod")
    assert (prod.secret_key_env, prod.secret_key_file) == kept
    assert (both.exit_code, "not both" in both.stderr) == (2, True)

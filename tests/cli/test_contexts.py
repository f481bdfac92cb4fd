"""Which cluster a command talks to, and what it says where none answers."""

from __future__ import annotations

import os
import pwd
import resource
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sparrowmq.cli.contexts import (
    Context,
    Contexts,
    choose_context,
    contexts_path,
    read_contexts,
    write_contexts,
)
from sparrowmq.cli.main import build_app
from sparrowmq.errors import ConfigError

PROD = Context(name_server="ns-1:9876;ns-2:9876", tls_ca="/etc/ca.pem", namespace='odd "name"')


def choose(
    environ: dict[str, str],
    *,
    name_server: str | None = None,
    name: str | None = None,
    tls_ca: str | None = None,
) -> Context:
    return choose_context(
        name_server=name_server, name=name, tls_ca=tls_ca, environ=environ
    ).context


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "contexts.toml"
    contexts = Contexts(current="prod", contexts={"prod": PROD, "dev": Context()})

    write_contexts(path, contexts)

    assert contexts == read_contexts(path)
    assert path.stat().st_mode & 0o777 == 0o600


def test_contexts_that_cannot_be_written_leave_those_before(tmp_path: Path) -> None:
    file, link = tmp_path / "dotfiles.toml", tmp_path / "contexts.toml"
    link.symlink_to(file)
    write_contexts(link, Contexts(contexts={"prod": PROD}))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(ConfigError, match="cannot write"):
            write_contexts(link, Contexts(contexts={"dev": Context()}))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert list(read_contexts(file).contexts) == ["prod"]
    assert link.is_symlink()


def test_power_cut_leaves_no_empty_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, sizes, sync = tmp_path / "contexts.toml", list[int](), os.fsync

    def note_sync(descriptor: int) -> None:
        assert not path.exists()
        sizes.append(os.fstat(descriptor).st_size)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", note_sync)
    write_contexts(path, Contexts(contexts={"prod": PROD}))

    assert sizes == [path.stat().st_size]


def test_no_home_is_no_contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def find_user(uid: int) -> pwd.struct_passwd:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", find_user)

    monkeypatch.chdir(tmp_path)

    assert choose({}) == Context()
    with pytest.raises(ConfigError, match=r"no home directory .* set XDG_CONFIG_HOME"):
        write_contexts(contexts_path({}), Contexts())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["none.toml", "a-file/contexts.toml"])
def test_no_file_is_no_contexts(tmp_path: Path, name: str) -> None:
    (tmp_path / "a-file").touch()

    assert read_contexts(tmp_path / name) == Contexts()


@pytest.mark.parametrize("text", ["current = ", "[contexts.a]\nnameservr = 'x'", "current = 1"])
def test_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "contexts.toml"
    path.write_text(text)

    with pytest.raises(ConfigError, match=r"contexts\.toml is not a file of contexts"):
        read_contexts(path)


def test_the_order_of_what_says_where(tmp_path: Path) -> None:
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert choose(environ).name_server == "127.0.0.1:9876"

    contexts = Contexts(current="prod", contexts={"prod": PROD, "dev": Context()})
    write_contexts(contexts_path(environ), contexts)
    assert choose(environ) == PROD

    environ["NAMESRV_ADDR"] = "from-variable:9876"
    assert choose(environ).name_server == "from-variable:9876"

    environ["SPARROWMQ_CONTEXT"] = "dev"
    assert choose(environ) == Context()
    assert choose(environ, name="prod") == PROD
    assert choose(environ, name_server="a:1", tls_ca="c") == Context(name_server="a:1", tls_ca="c")


def test_unknown_and_contradicting_choices_are_refused(tmp_path: Path) -> None:
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    write_contexts(contexts_path(environ), Contexts(contexts={"production": PROD}))

    with pytest.raises(ConfigError, match="did you mean production"):
        choose(environ, name="prduction")
    with pytest.raises(ConfigError, match="not both"):
        choose(environ, name="production", name_server="a:1")


def test_no_cluster_says_which_address_and_who_named_it(home: Path) -> None:
    write_contexts(
        home / "sparrowmq" / "contexts.toml",
        Contexts(current="far", contexts={"far": Context(name_server="127.0.0.1:1")}),
    )

    result = CliRunner().invoke(build_app(), ["ls"])

    assert (result.exit_code, result.stdout) == (3, "")
    assert "the address comes from context far" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_secret_comes_from_a_variable_or_a_file_and_never_from_the_file_of_contexts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    secret = tmp_path / "secret"
    secret.write_text("from-file\n")
    by_file = Context(access_key="ak", secret_key_file=str(secret))
    at_home = Context(access_key="ak", secret_key_file="~/secret")
    by_variable = Context(access_key="ak", secret_key_env="MQ_SECRET")

    assert Context().read_secret({}) is None
    assert by_file.read_secret({}) == at_home.read_secret({}) == "from-file"
    assert by_variable.read_secret({"MQ_SECRET": "from-variable"}) == "from-variable"
    for context, words in [
        (Context(access_key="ak"), "has no secret"),
        (by_variable, r"not in \$MQ_SECRET"),
        (Context(access_key="ak", secret_key_file="/nowhere"), "cannot read the secret of ak"),
        (Context(access_key="ak", secret_key_file="~nobody-here/s"), "cannot read the secret"),
    ]:
        with pytest.raises(ConfigError, match=words):
            context.read_secret({})


def test_key_of_the_environment_goes_with_any_address(tmp_path: Path) -> None:
    environ = {
        "XDG_CONFIG_HOME": str(tmp_path),
        "SPARROWMQ_ACCESS_KEY": "ak",
        "SPARROWMQ_SECRET_KEY": "sk",
    }

    chosen = choose(environ, name_server="a:1")

    assert (chosen.access_key, chosen.read_secret(environ)) == ("ak", "sk")
    assert "sk" not in repr(chosen)


def test_key_of_a_context_goes_before_that_of_the_environment(tmp_path: Path) -> None:
    environ = {
        "XDG_CONFIG_HOME": str(tmp_path),
        "SPARROWMQ_ACCESS_KEY": "ak",
        "SPARROWMQ_SECRET_KEY": "sk",
        "OPS_SECRET": "of-ops",
    }
    prod = Context(access_key="ops", secret_key_env="OPS_SECRET")
    write_contexts(contexts_path(environ), Contexts(contexts={"prod": prod}))

    chosen = choose(environ, name="prod")

    assert (chosen.access_key, chosen.read_secret(environ)) == ("ops", "of-ops")

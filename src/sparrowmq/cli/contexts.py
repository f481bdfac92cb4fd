"""Contexts: clusters that the user has named in a file, which commands use without an address.

The file is `$XDG_CONFIG_HOME/sparrowmq/contexts.toml` (`~/.config` where that is not set):

```toml
current = "prod"

[contexts.prod]
nameserver = "ns-1:9876;ns-2:9876"
tls-ca = "/etc/sparrowmq/ca.pem"
```

A command takes its cluster from the first of these that is given: `--nameserver`, `--context` or
`$SPARROWMQ_CONTEXT`, `$NAMESRV_ADDR`, which RocketMQ's tools also read, the current context,
`127.0.0.1:9876`.

The file holds no secret: `access-key` goes with `secret-key-env`, the name of a variable, or
`secret-key-file`, the path of a file that holds only the secret. A context without a key takes
`$SPARROWMQ_ACCESS_KEY` and `$SPARROWMQ_SECRET_KEY`.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
from msgspec import Struct, structs

from sparrowmq.calling.durable_files import write_synced
from sparrowmq.errors import ConfigError, did_you_mean

DEFAULT_NAME_SERVER = "127.0.0.1:9876"
_NAMES = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"


class Context(Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """One cluster: the addresses of its name servers, and how to connect."""

    name_server: str = msgspec.field(default=DEFAULT_NAME_SERVER, name="nameserver")
    namespace: str = ""
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    access_key: str = ""
    secret_key_env: str = ""
    secret_key_file: str = ""

    def read_secret(self, environ: Mapping[str, str]) -> str | None:
        """Return the access key's secret from its variable or file; None without a key.

        Raises: ConfigError if there is no secret.
        """
        if not self.access_key:
            return None
        if self.secret_key_env:
            if not environ.get(self.secret_key_env):
                raise ConfigError(
                    f"the secret of {self.access_key} is not in ${self.secret_key_env}"
                )
            return environ[self.secret_key_env]
        if self.secret_key_file:
            try:
                return Path(self.secret_key_file).expanduser().read_text(encoding="utf-8").strip()
            # A RuntimeError is that of `~` without a home.
            except (OSError, UnicodeDecodeError, RuntimeError) as error:
                raise ConfigError(f"cannot read the secret of {self.access_key}: {error}") from None
        raise ConfigError(
            f"access key {self.access_key} has no secret; set secret-key-env or secret-key-file"
        )


class Contexts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file: the contexts by name, and the current one."""

    current: str = ""
    contexts: dict[str, Context] = {}

    def get(self, name: str) -> Context:
        """Return a context. Raises: ConfigError if there is none of this name."""
        try:
            return self.contexts[name]
        except KeyError:
            raise ConfigError(_no_context(name, self.contexts)) from None


def _no_context(name: str, known: Mapping[str, Context]) -> str:
    hint = did_you_mean(name, known, f"there are {', '.join(sorted(known)) or 'none'}")
    return f"no context {name!r} in {contexts_path()}{hint}"


@dataclass(frozen=True, slots=True)
class Chosen:
    """A context, and the option, variable or file that chose it."""

    context: Context
    source: str


def contexts_path(environ: Mapping[str, str] | None = None) -> Path:
    """Return the path of the file."""
    variables = os.environ if environ is None else environ
    home = variables.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(home) / "sparrowmq" / "contexts.toml"


def read_contexts(path: Path) -> Contexts:
    """Read the file; a missing file holds no contexts.

    Raises: ConfigError that names the file.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        # A service's user may have the home /dev/null.
        return Contexts()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    try:
        return msgspec.convert(tomllib.loads(text), Contexts)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"{path} is not a file of contexts: {error}") from None


def write_contexts(path: Path, contexts: Contexts) -> None:
    """Write the file, readable by its owner only. Raises: ConfigError that names the file."""
    if path.parts[0] == "~":
        # It would be written into the current directory, where nobody looks for it.
        raise ConfigError(
            "this user has no home directory for the file of contexts; set XDG_CONFIG_HOME to a "
            "directory for it"
        )
    lines = [f"current = {_quoted(contexts.current)}"] if contexts.current else []
    for name, context in sorted(contexts.contexts.items()):
        lines += ["", f"[contexts.{name}]"]
        values: dict[str, str] = msgspec.to_builtins(context)
        lines += [f"{key} = {_quoted(value)}" for key, value in values.items() if value]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A link to the file stays, and the file too if the new one cannot be written.
        file = path.resolve()
        fresh = file.with_name(f"{file.name}.new")
        text = "\n".join(lines).lstrip("\n") + "\n"
        write_synced(fresh, text.encode(), mode=0o600)
        fresh.replace(file)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error}") from None


def _quoted(value: str) -> str:
    # A JSON string is a basic string of TOML.
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        raise ConfigError(
            f"{value!r} has bytes that are not UTF-8, which no context can hold"
        ) from None


def check_context_name(name: str) -> str:
    """Return the name unchanged. Raises: ConfigError if TOML would need quotes for it."""
    if not name or set(name) - set(_NAMES):
        raise ConfigError(f"the context name {name!r} must consist of letters, digits, '_' and '-'")
    return name


def choose_context(
    *,
    name_server: str | None,
    name: str | None,
    tls_ca: str | None,
    environ: Mapping[str, str],
) -> Chosen:
    """Return the cluster of a command; the order stands at the top of this file.

    Args:
        name_server, name, tls_ca: the options, None if not given. environ: the environment's
        variables.

    Raises: ConfigError for two options that contradict, an empty option, an unknown context or
        a damaged file.
    """
    for option, value in (
        ("--nameserver", name_server),
        ("--context", name),
        ("--tls-ca", tls_ca),
    ):
        # Such as `--nameserver "$ADDRESS"` without the variable: the default is another cluster.
        if value is not None and not value.strip():
            raise ConfigError(f"{option} is empty; give one, or leave the option out")
    if name_server and name:
        raise ConfigError("give --nameserver or --context, not both")
    if name_server:
        chosen = Chosen(Context(name_server=name_server), "--nameserver")
    else:
        chosen = _choose_by_name(name, environ)
    context = chosen.context
    if tls_ca:
        context = structs.replace(context, tls_ca=tls_ca)
    if not context.access_key and environ.get("SPARROWMQ_ACCESS_KEY"):
        context = structs.replace(
            context,
            access_key=environ["SPARROWMQ_ACCESS_KEY"],
            secret_key_env="SPARROWMQ_SECRET_KEY",
        )
    return replace(chosen, context=context)


def variable_before(current: str, environ: Mapping[str, str]) -> str | None:
    """Return the variable that has commands talk to another cluster than the context in use."""
    if name := environ.get("SPARROWMQ_CONTEXT"):
        return None if name == current else "SPARROWMQ_CONTEXT"
    return "NAMESRV_ADDR" if environ.get("NAMESRV_ADDR") else None


def _choose_by_name(name: str | None, environ: Mapping[str, str]) -> Chosen:
    source = "--context" if name else "$SPARROWMQ_CONTEXT"
    name = name or environ.get("SPARROWMQ_CONTEXT")
    if name:
        return Chosen(read_contexts(contexts_path(environ)).get(name), f"{source} {name}")
    if environ.get("NAMESRV_ADDR"):
        return Chosen(Context(name_server=environ["NAMESRV_ADDR"]), "$NAMESRV_ADDR")
    contexts = read_contexts(contexts_path(environ))
    if contexts.current:
        return Chosen(contexts.get(contexts.current), f"context {contexts.current}")
    return Chosen(Context(), "the default")

"""`sparrowmq context`: name clusters, and choose the one that commands talk to.

Tests: test_brokers_and_contexts.py.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from msgspec import structs

from sparrowmq.cli.command_classes import make_group
from sparrowmq.cli.connecting import AsJson
from sparrowmq.cli.contexts import (
    Context,
    check_context_name,
    choose_context,
    contexts_path,
    read_contexts,
    variable_before,
    write_contexts,
)
from sparrowmq.cli.exit_codes import reporting_errors, say
from sparrowmq.cli.output import Json, OutputColumn, print_json, print_rows
from sparrowmq.client.directory_setup import make_directory
from sparrowmq.errors import ConfigError

context = make_group("Name clusters, and choose the one that commands talk to.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="the context's name")]


@context.command("ls")
def list_contexts(as_json: AsJson = False) -> None:
    """List the contexts; a star marks the one in use."""
    with reporting_errors():
        found = read_contexts(contexts_path())
        rows: list[Json] = [
            {
                "current": "*" if name == found.current else "",
                "name": name,
                "nameserver": each.name_server,
                "namespace": each.namespace,
                "tls": bool(each.tls_ca),
            }
            for name, each in sorted(found.contexts.items())
        ]
        if as_json:
            print_json([{**row, "current": row["current"] == "*"} for row in rows])
        else:
            columns = [
                OutputColumn("current", " "),
                OutputColumn("name"),
                OutputColumn("nameserver"),
                OutputColumn("namespace", optional=True),
                OutputColumn("tls"),
            ]
            print_rows(
                rows, columns, empty="there is no context; `sparrowmq context set` makes one"
            )
            if found.current:
                _say_what_comes_before(found.current)


@context.command("show")
def show_context(as_json: AsJson = False) -> None:
    """Show the cluster that commands talk to, and the option, variable or file that chose it."""
    with reporting_errors():
        chosen = choose_context(name_server=None, name=None, tls_ca=None, environ=os.environ)
        row: Json = {
            "nameserver": chosen.context.name_server,
            "namespace": chosen.context.namespace,
            "tls": bool(chosen.context.tls_ca),
            "said_by": chosen.source,
        }
        if as_json:
            print_json(row)
        else:
            print_rows([row], [*map(OutputColumn, list(row)[:-1]), OutputColumn("said_by")])


@context.command("set")
def set_context(
    name: Name,
    nameserver: Annotated[
        str | None,
        typer.Option("--nameserver", "-n", help="host:port of name servers, separated by ';'"),
    ] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", help="the namespace of topics and groups")
    ] = None,
    tls_ca: Annotated[
        str | None,
        typer.Option("--tls-ca", help="a PEM file with the certificate authorities to trust"),
    ] = None,
    tls_cert: Annotated[
        str | None, typer.Option("--tls-cert", help="a PEM file with the client's certificate")
    ] = None,
    tls_key: Annotated[
        str | None, typer.Option("--tls-key", help="a PEM file with the certificate's key")
    ] = None,
    access_key: Annotated[
        str | None,
        typer.Option("--access-key", help="the access key, for brokers with access control"),
    ] = None,
    secret_key_env: Annotated[
        str | None,
        typer.Option("--secret-key-env", help="the variable that holds the access key's secret"),
    ] = None,
    secret_key_file: Annotated[
        str | None,
        typer.Option("--secret-key-file", help="the file that holds the access key's secret"),
    ] = None,
) -> None:
    """Name a cluster, or change a named one. The first context becomes the current one.

    \b
    Examples:
      sparrowmq context set prod --nameserver 'ns-1:9876;ns-2:9876'
      sparrowmq context use prod
    """
    with reporting_errors():
        check_context_name(name)
        if secret_key_env and secret_key_file:
            raise ConfigError("give --secret-key-env or --secret-key-file, not both")
        found = read_contexts(contexts_path())
        given = {
            "name_server": nameserver,
            "namespace": namespace,
            "tls_ca": _absolute(tls_ca),
            "tls_cert": _absolute(tls_cert),
            "tls_key": _absolute(tls_key),
            "access_key": access_key,
            # A new place of the secret takes the place of the old one.
            "secret_key_env": "" if secret_key_file else secret_key_env,
            "secret_key_file": "" if secret_key_env else _absolute(secret_key_file),
        }
        changed = structs.replace(
            found.contexts.get(name, Context()),
            **{key: value for key, value in given.items() if value is not None},
        )
        # Refuses a bad address or namespace, with the reason.
        make_directory(changed.name_server, namespace=changed.namespace or None)
        contexts = {**found.contexts, name: changed}
        current = found.current or name
        write_contexts(contexts_path(), structs.replace(found, contexts=contexts, current=current))
        say(f"context {name} is {changed.name_server}; {current} is in use")
        _say_what_comes_before(current)


def _say_what_comes_before(current: str) -> None:
    """Say that a variable, and not the context in use, has commands talk to a cluster."""
    if variable := variable_before(current, os.environ):
        say(
            f"but commands talk to {os.environ[variable]}, as ${variable} is set and comes before "
            f"the context in use; unset it, or give --context {current}"
        )


def _absolute(path: str | None) -> str | None:
    """Return a path that is the same in every directory; "" takes a path out of the context."""
    return str(Path(path).absolute()) if path and not path.startswith("~") else path


@context.command("use")
def use_context(name: Name) -> None:
    """Choose the cluster that commands talk to."""
    with reporting_errors():
        found = read_contexts(contexts_path())
        chosen = found.get(name)
        write_contexts(contexts_path(), structs.replace(found, current=name))
        say(f"context {name} is in use: {chosen.name_server}")
        _say_what_comes_before(name)


@context.command("delete")
def delete_context(name: Name) -> None:
    """Forget a context; the cluster itself does not change."""
    with reporting_errors():
        found = read_contexts(contexts_path())
        found.get(name)
        contexts = {known: each for known, each in found.contexts.items() if known != name}
        current = "" if found.current == name else found.current
        write_contexts(contexts_path(), structs.replace(found, contexts=contexts, current=current))
        say(f"context {name} is forgotten")

"""`sparrowmq dash`: the live page of a cluster, in a browser. Tests: dash/test_command.py."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparrowmq.cli.connecting import Timeout, TlsCa, directory_of_all
from sparrowmq.cli.contexts import choose_context
from sparrowmq.cli.exit_codes import reporting_errors
from sparrowmq.cli.serving import run_server
from sparrowmq.errors import ConfigError

if TYPE_CHECKING:
    from sparrowmq.dash.web import ShownCluster


def dash(
    nameserver: Annotated[
        list[str] | None,
        typer.Option(
            "--nameserver",
            "-n",
            help="host:port of a cluster's name servers, separated by ';'; "
            "repeat the option to see several clusters side by side",
        ),
    ] = None,
    context: Annotated[
        list[str] | None,
        typer.Option(
            "--context",
            "-c",
            help="the name of a cluster, as `sparrowmq context ls` lists it; "
            "repeat the option to see several clusters side by side",
        ),
    ] = None,
    tls_ca: TlsCa = None,
    timeout: Timeout = 3.0,
    host: Annotated[str, typer.Option("--host", help="the address to listen on")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65_535, help="the port; 0 takes any free port")
    ] = 8181,
    data: Annotated[
        Path, typer.Option("--data", help="directory for the history of owners and lag")
    ] = Path("sparrowmq-data"),
    allow_writes: Annotated[
        bool, typer.Option("--allow-writes", help="let the page change the cluster")
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", help="a host name in the page's URL, unless it is an address"),
    ] = None,
    tls_cert: Annotated[
        str, typer.Option("--tls-cert", help="a PEM file with a certificate: serve by HTTPS")
    ] = "",
    tls_key: Annotated[
        str, typer.Option("--tls-key", help="a PEM file with its key, unless --tls-cert holds it")
    ] = "",
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure", help="serve a --host that other machines can reach without HTTPS"
        ),
    ] = False,
    stop_with_stdin: Annotated[
        bool, typer.Option("--stop-with-stdin", hidden=True, help="stop when stdin closes")
    ] = False,
) -> None:
    """Show clusters in a browser: groups, the owner of each queue and why, and what is wrong."""
    with reporting_errors():
        from sparrowmq.dash.app import DashSettings, serve  # `--help` needs no extra.

        settings = DashSettings(
            clusters=_clusters(nameserver or (), context or (), tls_ca=tls_ca, timeout_s=timeout),
            host=host,
            port=port,
            data=data,
            allow_writes=allow_writes,
            allowed_hosts=tuple(allow_host or ()),
            tls_cert=tls_cert,
            tls_key=tls_key,
            insecure=insecure,
            stop_with_stdin=stop_with_stdin,
        )
        raise typer.Exit(run_server(serve(settings)))


def _clusters(
    name_servers: Sequence[str],
    contexts: Sequence[str],
    *,
    tls_ca: str | None,
    timeout_s: float,
) -> list[ShownCluster]:
    """Return the clusters of the options, named by what the user repeats. Raises: ConfigError."""
    from sparrowmq.dash.web import ShownCluster

    places: list[str | None] = [*dict.fromkeys(name_servers)] or [None]
    names: list[str | None] = [*dict.fromkeys(contexts)] or [None]
    if len(places) > 1 and len(names) > 1:
        raise ConfigError("repeat --nameserver or --context, not both")
    clusters = []
    for place, name in product(places, names):
        chosen = choose_context(
            name_server=place, name=name, tls_ca=tls_ca, environ=os.environ
        ).context
        shown = place if len(places) > 1 else name if len(names) > 1 else None
        clusters.append(
            ShownCluster(
                name=shown or "",
                name_server=chosen.name_server,
                directory=directory_of_all(chosen, timeout_s=timeout_s),
            )
        )
    return clusters

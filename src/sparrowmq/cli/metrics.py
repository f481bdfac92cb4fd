"""`sparrowmq metrics`: the metrics of a cluster, for Prometheus.

Tests: exporter/test_command.py.
"""

from __future__ import annotations

from typing import Annotated

import typer

from sparrowmq.cli.connecting import ConnectionOptions, directory_of_all
from sparrowmq.cli.exit_codes import reporting_errors
from sparrowmq.cli.option_sets import with_option_sets


@with_option_sets
def metrics(
    connection: ConnectionOptions,
    host: Annotated[str, typer.Option("--host", help="the address to listen on")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65_535, help="the port; 0 takes any free port")
    ] = 9557,
    interval: Annotated[
        float,
        typer.Option(
            "--interval", min=1.0, max=3600.0, help="seconds between two snapshots of the cluster"
        ),
    ] = 15.0,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="allow a --host that other machines can reach")
    ] = False,
    stop_with_stdin: Annotated[
        bool, typer.Option("--stop-with-stdin", hidden=True, help="stop when stdin closes")
    ] = False,
) -> None:
    """Serve lag, owners and rebalances of a SparrowMQ or Apache cluster to Prometheus."""
    # Imported late: help, and the page of commands generated from help, need no library.
    from sparrowmq.cli.serving import run_server
    from sparrowmq.exporter.endpoint import ExporterSettings, serve

    with reporting_errors():
        context = connection.choose().context
        settings = ExporterSettings(
            directory=directory_of_all(context, timeout_s=connection.timeout),
            host=host,
            port=port,
            interval_s=interval,
            insecure=insecure,
            stop_with_stdin=stop_with_stdin,
        )
        code = run_server(serve(settings))
    raise typer.Exit(code)

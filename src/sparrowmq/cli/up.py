"""`sparrowmq up`, `nameserver` and `broker`: servers in the foreground, by `sparrowmq.hosting`.

The options are the rows of `HostSettings`.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Self

import typer

from sparrowmq.cli.exit_codes import EXIT_USAGE, say
from sparrowmq.cli.option_sets import declare, naming_options, parameters_of
from sparrowmq.config import Setting, with_settings
from sparrowmq.errors import ConfigError
from sparrowmq.hosting.servers import EXIT_FAILURE, run_both, run_broker, run_name_server
from sparrowmq.hosting.settings import (
    BROKER,
    NAME_SERVER,
    PORT_MAX,
    UP,
    HostSettings,
    TlsMode,
    environment_name,
    settings_of,
)
from sparrowmq.hosting.settings_file import read_environment, read_settings
from sparrowmq.serving.remoting_server import bind

# The key under which a context keeps the error of its file or variables.
_FAILURE = "sparrowmq.settings"
# The processes beside the servers listen on their default host.
_BESIDE_HOST = "127.0.0.1"
# The time that a process beside the servers has to end.
_BESIDE_TIMEOUT_S = 20


def with_server_options(
    name: str, **defaults: object
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Pass a command its `HostSettings` as its first argument, and give it their options.

    The commands of a single server name its port `--port`.

    Args:
        name: the command's name.
        defaults: the defaults that differ from the rows'.
    """
    rows = settings_of(name)
    names = {
        row.name: "port" if row.name == f"{name}_port" else row.option for row in rows.values()
    }
    for key, default in defaults.items():
        rows[key] = rows[key]._replace(default=default)
    keyword = inspect.Parameter.KEYWORD_ONLY
    options = [
        inspect.Parameter(
            row.name,
            keyword,
            default=row.default,
            annotation=_option(row, names[row.name]),
        )
        for row in rows.values()
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def start(*, context: typer.Context, stop_with_stdin: bool, **given: Any) -> None:
            if context.invoked_subcommand is not None:
                return
            given.pop("config")
            try:
                if _FAILURE in context.meta:
                    raise context.meta[_FAILURE]
                with naming_options(names):
                    settings = with_settings(
                        HostSettings(), {each: given.pop(each) for each in rows}
                    )
            except ConfigError as error:
                say(str(error))
                raise typer.Exit(EXIT_USAGE) from None
            command(replace(settings, stop_with_stdin=stop_with_stdin), **given)

        shared = [
            inspect.Parameter("context", keyword, annotation=typer.Context),
            inspect.Parameter("config", keyword, default=None, annotation=_config(rows)),
            *options,
            inspect.Parameter("stop_with_stdin", keyword, default=False, annotation=_StopWithStdin),
        ]
        return declare(start, command, shared + parameters_of(command)[1:])

    return decorate


def _option(row: Setting, name: str) -> Any:
    """Return the type of a row's option."""
    kind: Any = row.kind if row.default is not None else row.kind | None
    declaration = f"--{name}/--no-{name}" if row.default is True else f"--{name}"
    return Annotated[kind, typer.Option(declaration, help=row.help, min=row.low, max=row.high)]


def _config(rows: dict[str, Setting]) -> Any:
    """Return the type of the option of a settings file."""

    def take(context: typer.Context, path: Path | None) -> Path | None:
        """Take settings that no option gives from variables, and then from a file.

        Their errors are reported only when servers start: subcommands of `broker` do not use them.
        """
        try:
            given = read_environment(os.environ, rows)
            if path is not None:
                given = read_settings(path, rows) | given
        except ConfigError as error:
            context.meta[_FAILURE] = error
        else:
            context.default_map = given
        return path

    return Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            is_eager=True,
            callback=take,
            envvar=environment_name("config"),
            show_envvar=False,
            help="a file of settings, name = value, under the names of these options or of "
            "RocketMQ's broker.conf; options and variables override it",
        ),
    ]


_StopWithStdin = Annotated[
    bool,
    typer.Option("--stop-with-stdin", hidden=True, help="stop when standard input closes"),
]
Dashboard = Annotated[
    bool, typer.Option("--dashboard", help="also serve the live page, in a separate process")
]
DashboardPort = Annotated[
    int,
    typer.Option(
        "--dashboard-port",
        min=0,
        max=PORT_MAX,
        help="the live page's port; 0 takes any free port",
    ),
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        min=0,
        max=PORT_MAX,
        help="serve Prometheus metrics at this port in a separate process, as `sparrowmq "
        "metrics` does; 0 takes any free port",
    ),
]


@with_server_options(UP)
def up(
    settings: HostSettings,
    dashboard: Dashboard = False,
    dashboard_port: DashboardPort = 8181,
    metrics_port: MetricsPort = None,
) -> None:
    """Run a name server and a broker, or several, in the foreground."""
    # A page that cannot start would say so only after the servers do, which would go on without it.
    try:
        if dashboard:
            bind(_BESIDE_HOST, dashboard_port, "the live page", "--dashboard-port").close()
        if metrics_port is not None:
            bind(_BESIDE_HOST, metrics_port, "the metrics page", "--metrics-port").close()
    except OSError as error:
        say(error.strerror or str(error))
        raise typer.Exit(EXIT_FAILURE) from None
    tls_ca = "" if settings.tls_mode is TlsMode.DISABLED else settings.tls_cert
    beside = []
    if dashboard:
        page = ["dash", "--data", str(settings.data), "--port", str(dashboard_port)]
        beside.append(_ProcessBeside(page, tls_ca=tls_ca))
    if metrics_port is not None:
        beside.append(_ProcessBeside(["metrics", "--port", str(metrics_port)], tls_ca=tls_ca))

    def start(name_server: str) -> None:
        for process in beside:
            process.start(name_server)

    with ExitStack() as held:
        for process in beside:
            held.enter_context(process)
        code = run_both(settings, on_ready=start)
    raise typer.Exit(code)


class _ProcessBeside:
    """One of our commands on the cluster, in a separate process, so that it delays no message.

    The process ends with this one, however this one ends.
    """

    def __init__(self, command: Sequence[str], *, tls_ca: str) -> None:
        self._command = [*command, "--stop-with-stdin"]
        if tls_ca:
            self._command += ["--tls-ca", tls_ca]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, name_server: str) -> None:
        """Start the process, which prints its address on stderr."""
        command = [sys.executable, "-m", "sparrowmq", *self._command]
        self._process = subprocess.Popen(
            [*command, "--nameserver", name_server], stdin=subprocess.PIPE, stdout=sys.stderr
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            # Closing its standard input ends the process.
            self._process.communicate(timeout=_BESIDE_TIMEOUT_S)


@with_server_options(NAME_SERVER, data=Path("sparrowmq-data/nameserver"))
def nameserver(settings: HostSettings) -> None:
    """Run a name server in the foreground."""
    raise typer.Exit(run_name_server(settings))


broker = typer.Typer(
    help="Run a broker; with a subcommand, look at the brokers of a cluster.",
    rich_markup_mode=None,
)


@broker.callback(invoke_without_command=True)
@with_server_options(BROKER, data=Path("sparrowmq-data/store"))
def serve_broker(settings: HostSettings) -> None:
    """Run a broker in the foreground; with a subcommand, look at the brokers of a cluster."""
    raise typer.Exit(run_broker(settings))

"""`sparrowmq up`, `nameserver` and `broker`: servers in the foreground, by `sparrowmq.hosting`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Self

import typer

from sparrowmq.broker.config import DuplicateClientIdPolicy
from sparrowmq.cli.failures import EXIT_USAGE, say
from sparrowmq.config import environment_name, find_setting, has_setting
from sparrowmq.errors import ConfigError
from sparrowmq.hosting.servers import (
    Flush,
    HostSettings,
    TlsMode,
    run_both,
    run_broker,
    run_name_server,
)
from sparrowmq.hosting.settings_file import read_environment, read_settings

# The key under which a context keeps the error of its file or variables.
_FAILURE = "sparrowmq.settings"


def _option(name: str, *declarations: str, **extra: Any) -> Any:
    """Return the option of a setting, under other names if given."""
    return typer.Option(*(declarations or [f"--{name}"]), help=find_setting(name).help, **extra)


def _take_settings(context: typer.Context, path: Path | None) -> Path | None:
    """Take settings that no option gives from variables, and then from a file.

    Their errors are reported only when servers start: subcommands of `broker` do not use them.
    """
    parameters: dict[str, str] = {}
    for each in context.command.params:
        option = each.opts[0].removeprefix("--")
        name = f"{context.info_name}-port" if option == "port" else option
        if has_setting(name) and each.name:
            parameters[name] = each.name
    try:
        given = read_environment(os.environ, parameters)
        if path is not None:
            given = read_settings(path, parameters) | given
    except ConfigError as error:
        context.meta[_FAILURE] = error
    else:
        context.default_map = {parameters[name]: value for name, value in given.items()}
    return path


Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        is_eager=True,
        callback=_take_settings,
        envvar=environment_name("config"),
        show_envvar=False,
        help="a file of settings, name = value, under the names of these options or of "
        "RocketMQ's broker.conf; options and variables override it",
    ),
]


Host = Annotated[str, _option("host")]
Data = Annotated[Path, _option("data")]
FlushOption = Annotated[Flush, _option("flush")]
LogFileMib = Annotated[int, _option("log-file-mib", min=1, max=1024)]
RetentionHours = Annotated[int | None, _option("retention-hours", min=0, max=876_000)]
DeleteWhen = Annotated[str, _option("delete-when")]
DiskExpirePercent = Annotated[int, _option("disk-expire-percent", min=0, max=100)]
DiskForcePercent = Annotated[int, _option("disk-force-percent", min=0, max=100)]
DiskFullPercent = Annotated[int, _option("disk-full-percent", min=0, max=100)]
Insecure = Annotated[bool, _option("insecure")]
Acl = Annotated[str, _option("acl")]
AclCredentials = Annotated[str, _option("acl-credentials")]
Advertise = Annotated[str, _option("advertise")]
HealthPort = Annotated[int | None, _option("health-port", min=0, max=65_535)]
BrokerName = Annotated[str, _option("broker-name")]
ClusterName = Annotated[str, _option("cluster-name")]
AutoCreate = Annotated[
    bool, _option("auto-create-topics", "--auto-create-topics/--no-auto-create-topics")
]
DuplicateIds = Annotated[DuplicateClientIdPolicy, _option("duplicate-client-id")]
TransactionTimeout = Annotated[int, _option("transaction-timeout-ms", min=1)]
TransactionInterval = Annotated[int, _option("transaction-check-interval-ms", min=100)]
TransactionChecks = Annotated[int, _option("transaction-check-max", min=1)]
Salvage = Annotated[bool, _option("salvage")]
TlsCert = Annotated[str, _option("tls-cert")]
TlsKey = Annotated[str, _option("tls-key")]
TlsClientCa = Annotated[str, _option("tls-client-ca")]
TlsModeOption = Annotated[TlsMode, _option("tls-mode")]
StopWithStdin = Annotated[
    bool,
    typer.Option("--stop-with-stdin", hidden=True, help="stop when standard input closes"),
]
Verbose = Annotated[bool, _option("verbose")]
Dashboard = Annotated[
    bool, typer.Option("--dashboard", help="also serve the live page, in a separate process")
]
DashboardPort = Annotated[
    int,
    typer.Option(
        "--dashboard-port", min=0, max=65_535, help="the live page's port; 0 takes any free port"
    ),
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        min=0,
        max=65_535,
        help="serve Prometheus metrics at this port in a separate process, as `sparrowmq "
        "metrics` does; 0 takes any free port",
    ),
]
# The time that a process beside the servers has to end.
_BESIDE_TIMEOUT_S = 20


def up(
    context: typer.Context,
    config: Config = None,
    host: Host = "127.0.0.1",
    nameserver_port: Annotated[int, _option("nameserver-port", min=0, max=65_535)] = 9876,
    broker_port: Annotated[int, _option("broker-port", min=0, max=65_535)] = 10911,
    brokers: Annotated[int, _option("brokers", min=1, max=16)] = 1,
    data: Data = Path("sparrowmq-data"),
    flush: FlushOption = Flush.SYNC,
    log_file_mib: LogFileMib = 1024,
    retention_hours: RetentionHours = None,
    delete_when: DeleteWhen = "04",
    disk_expire_percent: DiskExpirePercent = 75,
    disk_force_percent: DiskForcePercent = 85,
    disk_full_percent: DiskFullPercent = 90,
    broker_name: BrokerName = "broker-a",
    cluster_name: ClusterName = "DefaultCluster",
    auto_create_topics: AutoCreate = True,
    duplicate_client_id: DuplicateIds = DuplicateClientIdPolicy.WARN,
    transaction_timeout_ms: TransactionTimeout = 6_000,
    transaction_check_interval_ms: TransactionInterval = 60_000,
    transaction_check_max: TransactionChecks = 15,
    advertise: Advertise = "",
    health_port: HealthPort = None,
    tls_cert: TlsCert = "",
    tls_key: TlsKey = "",
    tls_client_ca: TlsClientCa = "",
    tls_mode: TlsModeOption = TlsMode.ENFORCING,
    acl: Acl = "",
    insecure: Insecure = False,
    salvage: Salvage = False,
    dashboard: Dashboard = False,
    dashboard_port: DashboardPort = 8181,
    metrics_port: MetricsPort = None,
    stop_with_stdin: StopWithStdin = False,
    verbose: Verbose = False,
) -> None:
    """Run a name server and a broker, or several, in the foreground."""
    settings = _settings(context, locals())
    tls_ca = "" if tls_mode is TlsMode.DISABLED else tls_cert
    beside = []
    if dashboard:
        page = ["dash", "--data", str(data), "--port", str(dashboard_port)]
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


def _settings(context: typer.Context, given: dict[str, Any], **renamed: Any) -> HostSettings:
    """Return the settings among a command's arguments, which have the names of HostSettings."""
    failure = context.meta.get(_FAILURE)
    if failure is not None:
        say(str(failure))
        raise typer.Exit(EXIT_USAGE)
    names = {field.name for field in fields(HostSettings)}
    return HostSettings(**{n: v for n, v in {**given, **renamed}.items() if n in names})


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
        command = [sys.executable, "-m", "sparrowmq.cli.main", *self._command]
        self._process = subprocess.Popen(
            [*command, "--nameserver", name_server], stdin=subprocess.PIPE, stdout=sys.stderr
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            # Closing its standard input ends the process.
            self._process.communicate(timeout=_BESIDE_TIMEOUT_S)


def nameserver(
    context: typer.Context,
    config: Config = None,
    host: Host = "127.0.0.1",
    port: Annotated[int, _option("nameserver-port", "--port", min=0, max=65_535)] = 9876,
    health_port: HealthPort = None,
    data: Data = Path("sparrowmq-data/nameserver"),
    tls_cert: TlsCert = "",
    tls_key: TlsKey = "",
    tls_client_ca: TlsClientCa = "",
    tls_mode: TlsModeOption = TlsMode.ENFORCING,
    acl: Acl = "",
    insecure: Insecure = False,
    stop_with_stdin: StopWithStdin = False,
    verbose: Verbose = False,
) -> None:
    """Run a name server in the foreground."""
    raise typer.Exit(run_name_server(_settings(context, locals(), nameserver_port=port)))


broker = typer.Typer(
    help="Run a broker; with a subcommand, look at the brokers of a cluster.",
    rich_markup_mode=None,
)


@broker.callback(invoke_without_command=True)
def serve_broker(
    context: typer.Context,
    config: Config = None,
    host: Host = "127.0.0.1",
    port: Annotated[int, _option("broker-port", "--port", min=0, max=65_535)] = 10911,
    nameserver: Annotated[str, _option("nameserver")] = "127.0.0.1:9876",
    data: Data = Path("sparrowmq-data/store"),
    flush: FlushOption = Flush.SYNC,
    log_file_mib: LogFileMib = 1024,
    retention_hours: RetentionHours = None,
    delete_when: DeleteWhen = "04",
    disk_expire_percent: DiskExpirePercent = 75,
    disk_force_percent: DiskForcePercent = 85,
    disk_full_percent: DiskFullPercent = 90,
    broker_name: BrokerName = "broker-a",
    cluster_name: ClusterName = "DefaultCluster",
    auto_create_topics: AutoCreate = True,
    duplicate_client_id: DuplicateIds = DuplicateClientIdPolicy.WARN,
    transaction_timeout_ms: TransactionTimeout = 6_000,
    transaction_check_interval_ms: TransactionInterval = 60_000,
    transaction_check_max: TransactionChecks = 15,
    advertise: Advertise = "",
    health_port: HealthPort = None,
    tls_cert: TlsCert = "",
    tls_key: TlsKey = "",
    tls_client_ca: TlsClientCa = "",
    tls_mode: TlsModeOption = TlsMode.ENFORCING,
    tls_ca: Annotated[str, _option("tls-ca")] = "",
    acl: Acl = "",
    acl_credentials: AclCredentials = "",
    insecure: Insecure = False,
    salvage: Salvage = False,
    stop_with_stdin: StopWithStdin = False,
    verbose: Verbose = False,
) -> None:
    """Run a broker in the foreground; with a subcommand, look at the brokers of a cluster."""
    if context.invoked_subcommand is not None:
        return
    raise typer.Exit(run_broker(_settings(context, locals(), broker_port=port)))

"""`sparrowmq up`, `nameserver` and `broker`: servers in the foreground.

Each prints exactly one line on stdout, once it serves: `ready nameserver=HOST:PORT
broker=HOST:PORT`, or the part it is. Logs go to stderr. SIGTERM and SIGINT stop it cleanly with
exit code 0. Exit code 1 is a directory or port in use, 2 a wrong option.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ipaddress
import logging
import signal
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from sparrowmq.broker.config import BrokerConfig, DuplicateClientId
from sparrowmq.broker.server import BrokerServer
from sparrowmq.calling.tls import client_context, own_server_context, server_context
from sparrowmq.client.name_servers import parse_name_servers
from sparrowmq.config import find_setting
from sparrowmq.errors import ConfigError, SparrowError
from sparrowmq.nameserver.server import NameServerServer
from sparrowmq.serving.descriptors import raise_descriptor_limit
from sparrowmq.serving.remoting_server import bind

LOG = logging.getLogger("sparrowmq.cli")

EXIT_FAILURE = 1
EXIT_USAGE = 2


class Flush(StrEnum):
    """When a message counts as stored."""

    SYNC = "sync"
    ASYNC = "async"


def _option(name: str, **extra: Any) -> Any:
    return typer.Option(f"--{name}", help=find_setting(name).help, **extra)


Host = Annotated[str, _option("host")]
Data = Annotated[Path, _option("data")]
FlushOption = Annotated[Flush, _option("flush")]
Insecure = Annotated[bool, typer.Option("--insecure", help=find_setting("insecure").help)]
Advertise = Annotated[str, _option("advertise")]
BrokerName = Annotated[str, _option("broker-name")]
ClusterName = Annotated[str, _option("cluster-name")]
AutoCreate = Annotated[
    bool,
    typer.Option(
        "--auto-create-topics/--no-auto-create-topics",
        help=find_setting("auto-create-topics").help,
    ),
]
DuplicateIds = Annotated[DuplicateClientId, _option("duplicate-client-id")]
Salvage = Annotated[bool, typer.Option("--salvage", help=find_setting("salvage").help)]
TlsCert = Annotated[str, _option("tls-cert")]
TlsKey = Annotated[str, _option("tls-key")]
TlsClientCa = Annotated[str, _option("tls-client-ca")]
StopWithStdin = Annotated[
    bool,
    typer.Option("--stop-with-stdin", hidden=True, help="stop when standard input closes"),
]
Verbose = Annotated[bool, typer.Option("--verbose", help="log every connection")]


def up(
    host: Host = "127.0.0.1",
    nameserver_port: Annotated[int, _option("nameserver-port", min=0, max=65_535)] = 9876,
    broker_port: Annotated[int, _option("broker-port", min=0, max=65_535)] = 10911,
    data: Data = Path("sparrowmq-data"),
    flush: FlushOption = Flush.SYNC,
    broker_name: BrokerName = "broker-a",
    cluster_name: ClusterName = "DefaultCluster",
    auto_create_topics: AutoCreate = True,
    duplicate_client_id: DuplicateIds = DuplicateClientId.WARN,
    advertise: Advertise = "",
    tls_cert: TlsCert = "",
    tls_key: TlsKey = "",
    tls_client_ca: TlsClientCa = "",
    insecure: Insecure = False,
    salvage: Salvage = False,
    stop_with_stdin: StopWithStdin = False,
    verbose: Verbose = False,
) -> None:
    """Run a name server and a broker in one process, in the foreground."""

    async def serve(stop: asyncio.Event) -> None:
        ip = _check_host(host, insecure=insecure or bool(tls_client_ca))
        tls = _server_tls(tls_cert, tls_key, tls_client_ca)
        async with (
            _name_server(ip, nameserver_port, data / "nameserver", tls=tls) as name_server_port,
            _broker(
                ip,
                broker_port,
                data / "store",
                advertised_ip=_advertised(ip, advertise),
                name_servers=[_join(_reachable(ip), name_server_port)],
                broker_name=broker_name,
                cluster_name=cluster_name,
                sync_flush=flush is Flush.SYNC,
                auto_create_topics=auto_create_topics,
                duplicate_client_id=duplicate_client_id,
                salvage=salvage,
                tls=tls,
                name_server_tls=own_server_context(tls_cert, tls_key or None) if tls_cert else None,
            ) as broker_address,
        ):
            shown = _join(_advertised(ip, advertise), name_server_port)
            _print_ready(f"nameserver={shown} broker={broker_address}")
            await stop.wait()

    _run(serve, verbose=verbose, stop_with_stdin=stop_with_stdin)


def nameserver(
    host: Host = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help=find_setting("nameserver-port").help, min=0, max=65_535)
    ] = 9876,
    data: Data = Path("sparrowmq-data/nameserver"),
    tls_cert: TlsCert = "",
    tls_key: TlsKey = "",
    tls_client_ca: TlsClientCa = "",
    insecure: Insecure = False,
    stop_with_stdin: StopWithStdin = False,
    verbose: Verbose = False,
) -> None:
    """Run a name server in the foreground."""

    async def serve(stop: asyncio.Event) -> None:
        ip = _check_host(host, insecure=insecure or bool(tls_client_ca))
        tls = _server_tls(tls_cert, tls_key, tls_client_ca)
        async with _name_server(ip, port, data, tls=tls) as bound_port:
            _print_ready(f"nameserver={_join(_advertised(ip, ''), bound_port)}")
            await stop.wait()

    _run(serve, verbose=verbose, stop_with_stdin=stop_with_stdin)


def broker(
    host: Host = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help=find_setting("broker-port").help, min=0, max=65_535)
    ] = 10911,
    nameserver: Annotated[str, _option("nameserver")] = "127.0.0.1:9876",
    data: Data = Path("sparrowmq-data/store"),
    flush: FlushOption = Flush.SYNC,
    broker_name: BrokerName = "broker-a",
    cluster_name: ClusterName = "DefaultCluster",
    auto_create_topics: AutoCreate = True,
    duplicate_client_id: DuplicateIds = DuplicateClientId.WARN,
    advertise: Advertise = "",
    tls_cert: TlsCert = "",
    tls_key: TlsKey = "",
    tls_client_ca: TlsClientCa = "",
    tls_ca: Annotated[str, _option("tls-ca")] = "",
    insecure: Insecure = False,
    salvage: Salvage = False,
    stop_with_stdin: StopWithStdin = False,
    verbose: Verbose = False,
) -> None:
    """Run a broker in the foreground."""

    async def serve(stop: asyncio.Event) -> None:
        ip = _check_host(host, insecure=insecure or bool(tls_client_ca))
        tls = _server_tls(tls_cert, tls_key, tls_client_ca)
        name_server_tls = None
        if tls_ca:
            name_server_tls = client_context(
                ca_file=tls_ca, certificate_file=tls_cert or None, key_file=tls_key or None
            )
        async with _broker(
            ip,
            port,
            data,
            advertised_ip=_advertised(ip, advertise),
            name_servers=list(parse_name_servers(nameserver)),
            broker_name=broker_name,
            cluster_name=cluster_name,
            sync_flush=flush is Flush.SYNC,
            auto_create_topics=auto_create_topics,
            duplicate_client_id=duplicate_client_id,
            salvage=salvage,
            tls=tls,
            name_server_tls=name_server_tls,
        ) as broker_address:
            _print_ready(f"broker={broker_address}")
            await stop.wait()

    _run(serve, verbose=verbose, stop_with_stdin=stop_with_stdin)


@asynccontextmanager
async def _name_server(
    ip: str, port: int, root: Path, *, tls: ssl.SSLContext | None
) -> AsyncIterator[int]:
    """Serve; gives the port."""
    listening = bind(ip, port)
    with contextlib.closing(listening):
        server = NameServerServer(root, tls=tls)
        try:
            bound_port: int = listening.getsockname()[1]
            await server.start(listening)
            yield bound_port
        finally:
            await server.stop()


@asynccontextmanager
async def _broker(
    ip: str,
    port: int,
    root: Path,
    *,
    advertised_ip: str,
    name_servers: list[str],
    broker_name: str,
    cluster_name: str,
    sync_flush: bool,
    auto_create_topics: bool,
    duplicate_client_id: DuplicateClientId,
    salvage: bool,
    tls: ssl.SSLContext | None,
    name_server_tls: ssl.SSLContext | None,
) -> AsyncIterator[str]:
    """Serve; gives the address that clients are told."""
    listening = bind(ip, port)
    with contextlib.closing(listening):
        address = _join(advertised_ip, listening.getsockname()[1])
        config = BrokerConfig(
            address=address,
            broker_name=broker_name,
            cluster_name=cluster_name,
            sync_flush=sync_flush,
            auto_create_topics=auto_create_topics,
            duplicate_client_id=duplicate_client_id,
        )
        server = BrokerServer(
            root,
            config,
            name_servers=name_servers,
            tls=tls,
            name_server_tls=name_server_tls,
            salvage=salvage,
        )
        try:
            await server.start(listening)
            yield address
        finally:
            await server.stop()


def _run(
    serve: Callable[[asyncio.Event], Awaitable[None]], *, verbose: bool, stop_with_stdin: bool
) -> None:
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )

    raise_descriptor_limit()

    async def run() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        if stop_with_stdin:
            # Whoever holds the other end of a pipe, however it ends, takes us with it.
            loop.add_reader(sys.stdin.fileno(), stop.set)
        # What is there now stays: the collector need not look at it again and again.
        gc.collect()
        gc.freeze()
        await serve(stop)

    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(run())
    except ConfigError as error:
        typer.echo(f"sparrowmq: {error}", err=True)
        raise typer.Exit(EXIT_USAGE) from None
    except (SparrowError, OSError) as error:
        text = _describe(error) if isinstance(error, OSError) else str(error)
        typer.echo(f"sparrowmq: {text}", err=True)
        raise typer.Exit(EXIT_FAILURE) from None


def _describe(error: OSError) -> str:
    """Return what happened, and to which file if it was one."""
    if error.filename is None:
        return error.strerror or str(error)
    return f"{error.filename}: {error.strerror}; choose a --data that can be written to"


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def _print_ready(what: str) -> None:
    print(f"ready {what}", flush=True)


def _server_tls(cert: str, key: str, client_ca: str) -> ssl.SSLContext | None:
    """Return the servers' context. Raises: ConfigError."""
    if cert:
        return server_context(cert, key or None, client_ca_file=client_ca or None)
    if key or client_ca:
        raise ConfigError("--tls-key and --tls-client-ca need --tls-cert; give it, or none of them")
    return None


def _check_host(host: str, *, insecure: bool) -> str:
    """Return the host as an IP address.

    Raises: ConfigError if it is none, or if other machines could reach it unasked.
    """
    try:
        ip = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]
    except OSError:
        try:
            ip = str(ipaddress.ip_address(host))
        except ValueError:
            raise ConfigError(f"--host {host!r} is no address of this machine") from None
    if not ipaddress.ip_address(ip).is_loopback and not insecure:
        raise ConfigError(
            f"--host {host} can be reached from other machines, and nothing checks who connects "
            "(there is no access control yet); use 127.0.0.1, let only clients with a certificate "
            "connect (--tls-client-ca), or add --insecure if the network is trusted"
        )
    return str(ip)


def _advertised(ip: str, advertise: str) -> str:
    """Return the address that clients are told: one they can connect to."""
    if advertise:
        try:
            return str(ipaddress.ip_address(advertise))
        except ValueError:
            raise ConfigError(f"--advertise {advertise!r} is no IP address") from None
    if not ipaddress.ip_address(ip).is_unspecified:
        return ip
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        raise ConfigError("this machine's address is unknown; give it by --advertise") from None


def _reachable(ip: str) -> str:
    """Return where this process itself reaches a server that listens on an address."""
    return "127.0.0.1" if ipaddress.ip_address(ip).is_unspecified else ip


def _join(ip: str, port: int) -> str:
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"

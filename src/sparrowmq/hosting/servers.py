"""A name server, a broker, or both, in the foreground of this process.

The process prints exactly one line on stdout, once it serves: `ready nameserver=HOST:PORT
broker=HOST:PORT`, or one of the two parts, `grpc=HOST:PORT` with a gRPC service, and
`health=HOST:PORT` with a health port. Logs go to stderr. SIGTERM and SIGINT stop the process
cleanly with exit code 0; while a store is recovered, they end it at once (`stop_at_start`). Exit
code 1 means that a directory or port is in use, 2 a wrong setting.
Tests: test_hosting.py, cli/test_up.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import ipaddress
import logging
import os
import secrets
import socket
import ssl
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from sparrowmq.broker.server import BrokerServer
from sparrowmq.calling import clock
from sparrowmq.calling.repetition import repeat
from sparrowmq.calling.sockets import join_address
from sparrowmq.calling.tls import client_context, own_server_context, server_context
from sparrowmq.client.name_servers import parse_name_servers
from sparrowmq.errors import ConfigError, SparrowError
from sparrowmq.hosting.broker_processes import (
    BrokerCondition,
    BrokerProcesses,
    Place,
    nth,
    serve_brokers,
)
from sparrowmq.hosting.certificate_files import CertificateFiles
from sparrowmq.hosting.descriptor_limit import ensure_descriptors
from sparrowmq.hosting.grpc_port import GrpcCertificate, is_grpc_installed, serving_grpc
from sparrowmq.hosting.health import serve_health
from sparrowmq.hosting.settings import PORT_MAX, HostSettings, TlsMode
from sparrowmq.hosting.stop_at_start import STOP_SIGNALS, StoppedAtStart, stopping_at_signals
from sparrowmq.nameserver.server import NameServerServer
from sparrowmq.protocol import speedups
from sparrowmq.protocol.signatures import Credentials
from sparrowmq.serving.access_control import AccessControl
from sparrowmq.serving.access_file import AccessFile, read_credentials
from sparrowmq.serving.remoting_server import bind
from sparrowmq.serving.server_log import log_to_stderr
from sparrowmq.store.commit_log import COMMIT_LOG_DIRECTORY

LOG = logging.getLogger("sparrowmq.hosting")

EXIT_FAILURE = 1
# The time between two looks at the files of access control and certificates. Two looks, and the
# reading, are to take less than 2 s.
LOOK_S = 0.5
EXIT_USAGE = 2
# Python's default is 700.
_NEW_OBJECTS_PER_COLLECTION = 50_000


def run_both(settings: HostSettings, *, on_ready: Callable[[str], None] | None = None) -> int:
    """Run a name server and a broker with their directories in `data`; return the exit code.

    With `brokers` more than 1, each broker has a process of its own.

    Args:
        on_ready: called with the name server's address once both serve.
    """
    if settings.brokers > 1:
        return _run_several(settings, on_ready)

    async def serve(stop: asyncio.Event) -> None:
        _name_missing_extension()
        async with serving_both(settings, loading=partial(stopping_at_signals, stop)) as both:
            grpc = f" grpc={both.grpc}" if both.grpc else ""
            _print_ready(f"nameserver={both.name_server} broker={both.broker}{grpc}{both.health}")
            if on_ready is not None:
                on_ready(both.name_server)
            await stop.wait()

    return _run(serve, settings)


class Serving(NamedTuple):
    """A running name server and broker.

    `grpc` is the address of the gRPC service, "" without one. `health` is the health port's part of
    the ready line, "" without a health port.
    """

    name_server: str
    broker: str
    grpc: str
    health: str
    server: BrokerServer


@asynccontextmanager
async def serving_both(
    settings: HostSettings,
    *,
    wall_clock: Callable[[], int] = clock.timestamp_ms,
    loading: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> AsyncGenerator[Serving]:
    """Run a name server and a broker in `data` on this event loop.

    Args:
        wall_clock: the broker's clock for messages and delays, in milliseconds since 1970.
        loading: makes the context in which the broker loads its store.

    Raises: ConfigError for wrong settings; OSError or StoreError if the servers cannot start.
    """
    ip = _check_host(settings)
    data = settings.data
    # The broker signs its requests to the name server.
    own = Credentials(access_key=secrets.token_hex(16), secret_key=secrets.token_hex(32))
    certificate = GrpcCertificate(settings)
    tls = _server_tls(settings)
    async with (
        _access(settings, own=own) as access,
        _name_server(ip, settings, data / "nameserver", access=access) as port,
        _broker(
            ip,
            settings,
            data / "store",
            name_servers=[join_address(_reachable(ip), port)],
            name_server_tls=_own_tls(settings),
            access=access,
            credentials=own if settings.acl else None,
            wall_clock=wall_clock,
            loading=loading,
        ) as (broker_address, server),
        serving_grpc(
            ip,
            settings,
            server,
            access=access,
            certificate=certificate if tls else None,
            timestamp_ms=wall_clock,
        ) as grpc_port,
        _following((tls if grpc_port is not None else None, certificate.renew)),
        _health(ip, settings, server) as health,
    ):
        shown = _advertised(ip, settings.advertise)
        grpc = "" if grpc_port is None else join_address(shown, grpc_port)
        yield Serving(join_address(shown, port), broker_address, grpc, health, server)


def _run_several(settings: HostSettings, on_ready: Callable[[str], None] | None) -> int:
    """Run a name server, and brokers in processes of their own."""

    async def serve(stop: asyncio.Event) -> None:
        _name_missing_extension()
        ip = _check_host(settings)
        data = settings.data
        own = Credentials(access_key=secrets.token_hex(16), secret_key=secrets.token_hex(32))
        places = [
            nth(number, name=settings.broker.broker_name, port=settings.broker_port)
            for number in range(1, settings.brokers + 1)
        ]
        _check_places(settings, places)
        if settings.grpc_port is not None and settings.grpc_port >= 0:
            raise ConfigError(
                f"--grpc-port {settings.grpc_port}: the gRPC service needs a broker in the same "
                f"process; leave out --brokers {settings.brokers}, or the port"
            )
        if settings.grpc_port is None and is_grpc_installed():
            LOG.warning(
                "no gRPC service: it needs a broker in the same process; leave out --brokers %d "
                "to serve clients of RocketMQ 5",
                settings.brokers,
            )
        async with (
            _access(settings, own=own) as access,
            _name_server(ip, settings, data / "nameserver", access=access) as port,
        ):

            def make_order(place: Place) -> bytes:
                ordered = replace(
                    settings,
                    broker=replace(settings.broker, broker_name=place.name),
                    broker_port=place.port,
                    data=data / place.directory,
                    health_port=None,
                    stop_with_stdin=True,
                )
                return _ENCODER.encode(
                    BrokerOrder(ordered, join_address(_reachable(ip), port), own)
                )

            async with (
                serve_brokers(places, make_order, stop=stop) as brokers,
                _health(ip, settings, brokers) as health,
            ):
                shown = join_address(_advertised(ip, settings.advertise), port)
                addresses = " ".join(f"broker={address}" for address in brokers.addresses)
                _print_ready(f"nameserver={shown} {addresses}{health}")
                if on_ready is not None:
                    on_ready(shown)
                await stop.wait()

    return _run(serve, settings)


def _check_places(settings: HostSettings, places: Sequence[Place]) -> None:
    if places[-1].port > PORT_MAX:
        raise ConfigError(
            f"--broker-port {settings.broker_port} leaves no port for {places[-1].name}, which "
            f"would have {places[-1].port}; choose a lower one"
        )
    served = {place.directory for place in places}
    for path in sorted(settings.data.glob("store-*")):
        if path.name not in served and path.is_dir():
            LOG.warning("%s has messages that no broker serves; --brokers gives more brokers", path)


def _name_missing_extension() -> None:
    if speedups.obstacle:
        LOG.info(
            "the extension in C %s: this broker lays out batches and indexes keys in Python, which "
            "takes several times as long; pip install ./speedups in a checkout brings it",
            speedups.obstacle,
        )


@dataclass(frozen=True, slots=True)
class BrokerOrder:
    """The order of a broker's process of `--brokers`.

    Args:
        settings: the settings of this broker; `data` is its store root.
        name_server: the address of the name server to register at.
        own: the credentials for requests to the name server, if there is access control.
    """

    settings: HostSettings
    name_server: str
    own: Credentials


_ENCODER = msgspec.json.Encoder(enc_hook=str)


def read_order(line: str) -> BrokerOrder:
    """Return the order from the parent's line."""
    return msgspec.json.decode(line, type=BrokerOrder, dec_hook=lambda _, text: Path(text))


def run_ordered(order: BrokerOrder) -> int:
    """Run one broker of several, and report its condition; return the exit code."""
    settings = order.settings

    async def serve(stop: asyncio.Event) -> None:
        ip = _check_host(settings)
        async with (
            _access(settings) as access,
            _broker(
                ip,
                settings,
                settings.data,
                name_servers=[order.name_server],
                name_server_tls=_own_tls(settings),
                access=access,
                credentials=order.own if settings.acl else None,
                loading=partial(stopping_at_signals, stop),
            ) as (address, server),
        ):
            _print_ready(f"broker={address}")
            last = BrokerCondition()

            async def print_change() -> None:
                nonlocal last
                now = BrokerCondition(server.failures(), server.obstacles())
                if now != last:
                    last = now
                    print(_ENCODER.encode(now).decode(), flush=True)

            async with _looking(print_change):
                await stop.wait()

    return _run(serve, settings, label=f" {settings.broker.broker_name}")


def run_name_server(settings: HostSettings) -> int:
    """Run a name server in `data`; return the exit code."""

    async def serve(stop: asyncio.Event) -> None:
        ip = _check_host(settings)
        async with (
            _access(settings) as access,
            _name_server(ip, settings, settings.data, access=access, port_option="--port") as port,
            _health(ip, settings) as health,
        ):
            _print_ready(f"nameserver={join_address(_advertised(ip, ''), port)}{health}")
            await stop.wait()

    return _run(serve, settings)


def run_broker(settings: HostSettings) -> int:
    """Run a broker in `data`, registered at the given name servers; return the exit code."""

    async def serve(stop: asyncio.Event) -> None:
        _name_missing_extension()
        ip = _check_host(settings)
        credentials = None
        if settings.acl_credentials:
            credentials = read_credentials(Path(settings.acl_credentials))
        async with (
            _access(settings) as access,
            _broker(
                ip,
                settings,
                settings.data,
                name_servers=list(parse_name_servers(settings.nameserver)),
                name_server_tls=_client_tls(settings),
                access=access,
                credentials=credentials,
                port_option="--port",
                loading=partial(stopping_at_signals, stop),
            ) as (address, server),
            _health(ip, settings, server) as health,
        ):
            _print_ready(f"broker={address}{health}")
            await stop.wait()

    return _run(serve, settings)


@asynccontextmanager
async def _access(
    settings: HostSettings, *, own: Credentials | None = None
) -> AsyncGenerator[AccessControl | None]:
    """Yield the rules of access control, which follow their file; None without a file."""
    if not settings.acl:
        yield None
        return
    file = AccessFile(Path(settings.acl), own=own)
    async with _looking(file.look):
        yield file.control


@asynccontextmanager
async def _looking(*looks: Callable[[], Awaitable[None]]) -> AsyncGenerator[None]:
    """Look at files every `LOOK_S`."""
    followers = [
        asyncio.create_task(repeat(look, name="a look at files", pause_s=lambda: LOOK_S))
        for look in looks
    ]
    try:
        yield
    finally:
        for follower in followers:
            follower.cancel()
        await asyncio.gather(*followers, return_exceptions=True)


@asynccontextmanager
async def _health(
    ip: str, settings: HostSettings, broker: BrokerServer | BrokerProcesses | None = None
) -> AsyncGenerator[str]:
    """Serve the health port; yield its part of the ready line."""
    if settings.health_port is None:
        yield ""
        return
    listening = bind(ip, settings.health_port, "the health page", "--health-port")
    with contextlib.closing(listening):
        async with serve_health(
            listening,
            health=broker.failures if broker else list,
            ready=broker.obstacles if broker else list,
        ):
            yield f" health={join_address(ip, listening.getsockname()[1])}"


@asynccontextmanager
async def _name_server(
    ip: str,
    settings: HostSettings,
    root: Path,
    *,
    access: AccessControl | None,
    port_option: str = "--nameserver-port",
) -> AsyncGenerator[int]:
    """Run a name server; yield its port."""
    tls = _server_tls(settings)
    listening = bind(ip, settings.nameserver_port, "the name server", port_option)
    with contextlib.closing(listening):
        server = NameServerServer(
            root,
            tls=tls.context if tls else None,
            takes_plain=settings.tls_mode is TlsMode.PERMISSIVE,
            access=access,
        )
        try:
            bound_port: int = listening.getsockname()[1]
            await server.start(listening)
            async with _following((tls, server.use_tls)):
                yield bound_port
        finally:
            await server.stop()


def _count_names(directory: Path) -> int:
    return len(list(directory.iterdir())) if directory.is_dir() else 0


@asynccontextmanager
async def _following(
    *followers: tuple[CertificateFiles | None, Callable[[ssl.SSLContext], None]],
) -> AsyncGenerator[None]:
    """Let servers and clients use the contexts of files, and renewed contexts later."""
    looks = [partial(files.look, use) for files, use in followers if files is not None]
    async with _looking(*looks):
        yield


@asynccontextmanager
async def _broker(
    ip: str,
    settings: HostSettings,
    root: Path,
    *,
    name_servers: list[str],
    name_server_tls: CertificateFiles | None,
    access: AccessControl | None,
    credentials: Credentials | None,
    port_option: str = "--broker-port",
    wall_clock: Callable[[], int] = clock.timestamp_ms,
    loading: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> AsyncGenerator[tuple[str, BrokerServer]]:
    """Run a broker; yield its address for clients, and the server."""
    ensure_descriptors(log_files=_count_names(root / COMMIT_LOG_DIRECTORY))
    tls = _server_tls(settings)
    listening = bind(ip, settings.broker_port, "the broker", port_option)
    with contextlib.closing(listening):
        address = join_address(_advertised(ip, settings.advertise), listening.getsockname()[1])
        config = replace(settings.broker, address=address, retention=settings.retention)
        with loading():
            server = BrokerServer(
                root,
                config,
                name_servers=name_servers,
                tls=tls.context if tls else None,
                takes_plain=settings.tls_mode is TlsMode.PERMISSIVE,
                name_server_tls=name_server_tls.context if name_server_tls else None,
                salvage=settings.salvage,
                log_file_size=settings.log_file_mib << 20,
                access=access,
                credentials=credentials,
                wall_clock=wall_clock,
            )
        try:
            await server.start(listening)
            async with _following(
                (tls, server.use_tls), (name_server_tls, server.use_name_server_tls)
            ):
                yield address, server
        finally:
            await server.stop()


def _run(
    serve: Callable[[asyncio.Event], Awaitable[None]], settings: HostSettings, *, label: str = ""
) -> int:
    _fill_closed_streams()
    log_to_stderr(logging.DEBUG if settings.verbose else logging.INFO, label=label)

    async def run() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, stop.set)
        if settings.stop_with_stdin:
            # When the parent at the other end of the pipe ends in any way, this process stops.
            loop.add_reader(sys.stdin.fileno(), stop.set)
        # The objects of the start live as long as the process: the collector need not scan them.
        gc.collect()
        gc.freeze()
        # Reference counts free the objects of requests. With the default of 700 new objects, the
        # collector would scan a turn's requests repeatedly, for a sixth of a send's cost.
        gc.set_threshold(_NEW_OBJECTS_PER_COLLECTION)
        await serve(stop)

    try:
        ensure_descriptors()
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(run())
    except ConfigError as error:
        return _fail(str(error), EXIT_USAGE)
    except OSError as error:
        return _fail(_describe(error), EXIT_FAILURE)
    except SparrowError as error:
        return _fail(str(error), EXIT_FAILURE)
    except StoppedAtStart:
        LOG.info("stopped before the store was loaded; the next start recovers it")
    return 0


def _fill_closed_streams() -> None:
    """Keep the places of closed standard streams from files and sockets.

    What a library in C writes to stderr would come into them, and uvloop ends a process that closes
    one of these places.
    """
    for place in range(3):
        try:
            os.fstat(place)
        except OSError:
            # The lower places are taken: this is the place that the system gives.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def _fail(text: str, code: int) -> int:
    """Print why the servers did not start, and return the exit code."""
    print(f"sparrowmq: {text}", file=sys.stderr)
    return code


def _describe(error: OSError) -> str:
    """Return an error's text, with the file's name if there is one."""
    if error.filename is None:
        return error.strerror or str(error)
    advice = (
        "see to its disk" if error.errno == errno.EIO else "choose a --data that can be written to"
    )
    return f"{error.filename}: {error.strerror}; {advice}"


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def _print_ready(what: str) -> None:
    print(f"ready {what}", flush=True)


def _speaks_tls(settings: HostSettings) -> bool:
    return bool(settings.tls_cert) and settings.tls_mode is not TlsMode.DISABLED


def _server_tls(settings: HostSettings) -> CertificateFiles | None:
    """Return the TLS context of the servers. Raises: ConfigError."""
    cert, key, client_ca = settings.tls_cert, settings.tls_key, settings.tls_client_ca
    if _speaks_tls(settings):
        make = partial(server_context, cert, key or None, client_ca_file=client_ca or None)
        return CertificateFiles(make, (cert, key, client_ca))
    if not cert and (key or client_ca):
        raise ConfigError("--tls-key and --tls-client-ca need --tls-cert; give it, or none of them")
    return None


def _own_tls(settings: HostSettings) -> CertificateFiles | None:
    """Return the context of a client for servers with our certificate. Raises: ConfigError."""
    if not _speaks_tls(settings):
        return None
    cert, key = settings.tls_cert, settings.tls_key
    return CertificateFiles(partial(own_server_context, cert, key or None), (cert, key))


def _client_tls(settings: HostSettings) -> CertificateFiles | None:
    """Return the context of a client for other machines' name servers. Raises: ConfigError."""
    ca, cert, key = settings.tls_ca, settings.tls_cert, settings.tls_key
    if not ca:
        return None
    make = partial(client_context, ca_file=ca, certificate_file=cert or None, key_file=key or None)
    return CertificateFiles(make, (ca, cert, key))


def _check_host(settings: HostSettings) -> str:
    """Return the host as an IP address.

    Raises: ConfigError if the host is not an address, or if other machines could reach it and
        `insecure` does not allow that.
    """
    host = settings.host
    try:
        ip = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]
    except (OSError, UnicodeError):
        try:
            ip = str(ipaddress.ip_address(host))
        except ValueError:
            raise ConfigError(f"--host {host!r} is not an address of this machine") from None
    has_certificates = bool(settings.tls_client_ca) and settings.tls_mode is TlsMode.ENFORCING
    is_guarded = settings.insecure or has_certificates or bool(settings.acl)
    if not ipaddress.ip_address(ip).is_loopback and not is_guarded:
        raise ConfigError(
            f"--host {host} can be reached from other machines, and nothing checks who "
            "connects; use 127.0.0.1, let only clients with a key (--acl) or a certificate "
            "(--tls-client-ca) connect, or add --insecure if the network is trusted"
        )
    return str(ip)


def _advertised(ip: str, advertise: str) -> str:
    """Return the address by which clients connect."""
    if advertise:
        try:
            return str(ipaddress.ip_address(advertise))
        except ValueError:
            raise ConfigError(f"--advertise {advertise!r} is not an IP address") from None
    return _own_address() if ipaddress.ip_address(ip).is_unspecified else ip


def _own_address() -> str:
    """Return an address of this machine, if possible one that other machines reach.

    A Debian machine's own name often leads to 127.0.1.1.
    """
    # Only here: the module takes a tenth of the time of a start to load.
    from sparrowmq.client.identity import find_local_address

    try:
        named = socket.gethostbyname(socket.gethostname())
    except (OSError, UnicodeError):
        named = ""
    found = find_local_address()
    addresses = [each for each in (named, found) if each and ":" not in each]
    reached = [each for each in addresses if not ipaddress.ip_address(each).is_loopback]
    if not addresses:
        raise ConfigError("this machine's address is unknown; give it by --advertise")
    return (reached or addresses)[0]


def _reachable(ip: str) -> str:
    """Return the address by which this process reaches a server that listens on `ip`."""
    return "127.0.0.1" if ipaddress.ip_address(ip).is_unspecified else ip

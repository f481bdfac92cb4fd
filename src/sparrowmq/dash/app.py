"""Serves the page: `sparrowmq dash`, and `sparrowmq up --dashboard` in a process of its own.

The server prints one line to stdout once it serves: `ready dash=http://HOST:PORT/`. Then it prints
the password to stderr, once. SIGTERM and SIGINT end it with exit code 0. Exit code 1 is a port in
use, 2 a wrong setting. Tests: test_command.py.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import signal
import socket
import ssl
import sys
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from sparrowmq.calling.sockets import join_address
from sparrowmq.calling.tls import server_context
from sparrowmq.client.assembly import make_publisher
from sparrowmq.client.faces.task_host import open_driver
from sparrowmq.dash.change_forms import FORMS, show_accounts, show_form
from sparrowmq.dash.cluster_pages import (
    show_broker,
    show_brokers,
    show_doctor,
    show_topic,
    show_topics,
)
from sparrowmq.dash.group_page import show_group
from sparrowmq.dash.history import FILE_NAME, History
from sparrowmq.dash.lab import Lab, show_lab, start_drill
from sparrowmq.dash.login import Access, Guard, check_host_name, make_password
from sparrowmq.dash.message_pages import (
    show_dead_letters,
    show_message,
    show_messages,
)
from sparrowmq.dash.overview_page import show_clusters, show_overview
from sparrowmq.dash.page_protocol import CONNECTIONS_MAX, bounded_protocol
from sparrowmq.dash.reset_page import reset, show_reset
from sparrowmq.dash.send_form import SEND_FORMS
from sparrowmq.dash.simulator_page import show_simulator
from sparrowmq.dash.watcher import Watcher
from sparrowmq.dash.web import HERE, ShownCluster, Site, View, Visit
from sparrowmq.errors import ConfigError
from sparrowmq.model.names import COMMAND_PRODUCER_GROUP
from sparrowmq.serving.acceptor import Acceptor
from sparrowmq.serving.open_connections import OpenConnections
from sparrowmq.serving.remoting_server import bind

LOG = logging.getLogger("sparrowmq.dash")
# The time after which a shutdown cuts off open streams.
_SHUTDOWN_S = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DashSettings:
    """The settings of the page's server.

    Args:
        clusters: the clusters; several have names, and pages below `/clusters/NAME`.
        host, port: the address to listen on; port 0 takes any free port.
        data: the directory of the history; None keeps the history in memory.
        allow_writes: whether the administrator's pages may change the cluster; a second password
            is then for those who may only read.
        allowed_hosts: allowed names in the Host header, besides addresses and `localhost`.
        tls_cert, tls_key: PEM files of HTTPS; None serves HTTP.
        insecure: whether other machines may reach the page without HTTPS.
        stop_with_stdin: whether the server ends when standard input closes.
    """

    clusters: Sequence[ShownCluster]
    host: str = "127.0.0.1"
    port: int = 8181
    data: Path | None = Path("sparrowmq-data")
    allow_writes: bool = False
    allowed_hosts: tuple[str, ...] = ()
    tls_cert: str = ""
    tls_key: str = ""
    insecure: bool = False
    stop_with_stdin: bool = False


async def serve(settings: DashSettings) -> None:
    """Serve until a signal. Raises: ConfigError for a wrong setting; OSError, SparrowError."""
    tls = _server_tls(settings)
    ip = _check_host(settings, has_tls=tls is not None)
    listening = bind(
        ip, settings.port, "the live page", "--port (--dashboard-port of `sparrowmq up`)"
    )
    with closing(listening):
        port: int = listening.getsockname()[1]
        password = make_password()
        reader_password = make_password() if settings.allow_writes else None
        access = Access(
            password,
            port=port,
            allowed_hosts=[check_host_name(n) for n in settings.allowed_hosts],
            reader_password=reader_password,
        )
        async with AsyncExitStack() as held:
            sites = [
                await held.enter_async_context(open_site(each, access, settings))
                for each in settings.clusters
            ]
            server = make_server(make_app(sites, access), OpenConnections(CONNECTIONS_MAX), tls)
            scheme = "http" if tls is None else "https"
            shown = join_address("127.0.0.1" if ip == "0.0.0.0" else ip, port)
            # Whoever reads the next line may connect before the server's loop has begun.
            listening.listen()
            print(f"ready dash={scheme}://{shown}/", flush=True)
            print(f"sparrowmq: password of the live page: {password}", file=sys.stderr, flush=True)
            if reader_password is not None:
                say = f"sparrowmq: password to read only: {reader_password}"
                print(say, file=sys.stderr, flush=True)
            await _run_until_stopped(server, listening, settings, [s.watcher for s, _ in sites])


async def _run_until_stopped(
    server: uvicorn.Server,
    listening: socket.socket,
    settings: DashSettings,
    watchers: Sequence[Watcher],
) -> None:
    loop = asyncio.get_running_loop()
    ending: list[asyncio.Task[None]] = []

    def stop() -> None:
        server.should_exit = True
        # A watcher wakes its open streams so that they end before the shutdown cuts them off.
        ending.extend(loop.create_task(watcher.end()) for watcher in watchers)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    if settings.stop_with_stdin:
        loop.add_reader(sys.stdin.fileno(), stop)
    try:
        await server.serve(sockets=[listening])
    finally:
        if settings.stop_with_stdin:
            loop.remove_reader(sys.stdin.fileno())


def make_server(
    app: ASGIApp, opened: OpenConnections, tls: ssl.SSLContext | None = None
) -> uvicorn.Server:
    """Return a server of an application, whose connections `opened` bounds."""
    config = uvicorn.Config(
        app,
        # Its warnings and errors are of requests that peers have broken: anybody can cause any
        # number. `Guard` logs the faults of pages.
        log_level="critical",
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=_SHUTDOWN_S,
        http=bounded_protocol(opened),
        # No decision depends on the address of a proxy's client.
        proxy_headers=False,
        ssl_context_factory=None if tls is None else (lambda *_: tls),
    )
    return _Server(config)


class _Server(uvicorn.Server):
    """uvicorn's server with an `Acceptor`.

    It has none of uvicorn's signal handlers, which raise each caught signal again.
    """

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections on the sockets."""
        # uvicorn's own servers are none.
        await super().startup(sockets=[])
        make_protocol = partial(  # type: ignore[call-arg]
            self.config.http_protocol_class,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        tls = self.config.ssl
        self._acceptors = [Acceptor(each, make_protocol, tls=tls) for each in sockets or ()]

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more connections, and close the open ones."""
        for acceptor in self._acceptors:
            acceptor.close()
        await super().shutdown(sockets=sockets)

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Install no signal handler."""
        yield


@asynccontextmanager
async def open_site(
    cluster: ShownCluster, access: Access, settings: DashSettings
) -> AsyncGenerator[tuple[Site, Lab]]:
    """Watch a cluster for its pages while the block runs. Raises: ConfigError."""
    path = None if settings.data is None else settings.data / FILE_NAME
    publisher = make_publisher(COMMAND_PRODUCER_GROUP, name_server=cluster.name_server)
    clusters = settings.clusters if len(settings.clusters) > 1 else ()
    with closing(History(path, cluster.name_server)) as history:
        async with open_driver(cluster.directory.client) as driver:
            watcher = Watcher(cluster.directory, driver, history)
            lab = Lab(watcher)
            task = asyncio.create_task(watcher.run(), name="dash watcher")
            try:
                yield (
                    Site(watcher, access, cluster=cluster, clusters=clusters, publisher=publisher),
                    lab,
                )
            finally:
                await lab.stop()
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


def make_app(sites: Sequence[tuple[Site, Lab]], access: Access) -> ASGIApp:
    """Make the application of all pages of all clusters."""
    routes: list[BaseRoute] = [Mount("/static", StaticFiles(directory=HERE / "static"))]
    if len(sites) == 1:
        routes += _make_routes(*sites[0])
    else:
        first = sites[0][0]
        every = Site(
            first.watcher,
            access,
            cluster=replace(first.cluster, name=""),
            clusters=[site.cluster for site, _ in sites],
            publisher=first.publisher,
        )
        show = partial(show_clusters, [site for site, _ in sites])
        routes += [Mount(site.cluster.root, routes=_make_routes(site, lab)) for site, lab in sites]
        routes += [Route("/", every.page(show)), *_make_common_routes(every)]
    return Guard(Starlette(routes=routes), access)


def _make_routes(site: Site, lab: Lab) -> list[BaseRoute]:
    watcher = site.watcher
    return [
        Route("/", site.page(partial(show_overview, watcher))),
        Route("/groups/{group}", site.page(partial(show_group, watcher))),
        Route("/groups/{group}/reset", site.page(partial(show_reset, watcher))),
        Route("/groups/{group}/reset", site.page(partial(reset, site)), methods=["POST"]),
        Route("/topics", site.page(partial(show_topics, watcher))),
        Route("/topics/{topic}", site.page(partial(show_topic, watcher))),
        Route("/messages", site.page(partial(show_messages, watcher))),
        Route(
            "/messages/{topic}/{broker}/{queue}/{offset}",
            site.page(partial(show_message, watcher)),
        ),
        Route("/dead-letters", site.page(partial(show_dead_letters, site))),
        Route("/brokers", site.page(partial(show_brokers, watcher))),
        Route("/brokers/{broker}", site.page(partial(show_broker, watcher))),
        Route("/doctor", site.page(partial(show_doctor, watcher))),
        Route("/simulator", site.page(show_simulator)),
        Route("/lab", site.page(partial(show_lab, lab))),
        Route("/lab", site.page(partial(start_drill, lab)), methods=["POST"]),
        Route("/accounts", site.page(partial(show_accounts, site))),
        *(
            Route(path, site.page(partial(show_form, form, site)), methods=["GET", "POST"])
            for path, form in {**FORMS, **SEND_FORMS}.items()
        ),
        *_make_common_routes(site),
    ]


def _make_common_routes(site: Site) -> list[BaseRoute]:
    return [
        Route("/events", site.page(site.stream)),
        Route("/login", site.log_in, methods=["GET", "POST"]),
        Route("/logout", site.page(site.log_out), methods=["POST"]),
        Route("/{path:path}", site.page(_show_missing)),
    ]


async def _show_missing(visit: Visit) -> View:
    problem = f"there is no page {visit.request.url.path}"
    return View(
        template="error.html",
        title="This cannot be shown",
        context={"problem": problem},
        status=404,
        news=None,
    )


def _server_tls(settings: DashSettings) -> ssl.SSLContext | None:
    if settings.tls_cert:
        return server_context(settings.tls_cert, settings.tls_key or None)
    if settings.tls_key:
        raise ConfigError("--tls-key needs --tls-cert; give it, or neither of them")
    return None


def _check_host(settings: DashSettings, *, has_tls: bool) -> str:
    """Return the host as an IP address.

    Raises: ConfigError if the host has no address, or if the password would cross a network
        unencrypted.
    """
    try:
        found = socket.getaddrinfo(settings.host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise ConfigError(f"--host {settings.host!r} is not an address of this machine") from None
    ip = str(found[0][4][0])
    if not ipaddress.ip_address(ip).is_loopback and not has_tls and not settings.insecure:
        raise ConfigError(
            f"--host {settings.host} can be reached from other machines, and the password would "
            "pass in the open; serve by HTTPS (--tls-cert), use 127.0.0.1, or add --insecure if "
            "the network is trusted"
        )
    return ip

"""Serves the series of a cluster by HTTP: `sparrowmq metrics`.

The server prints one line to stdout once it serves: `ready metrics=http://HOST:PORT/metrics`.
SIGTERM and SIGINT end it with exit code 0. Exit code 1 is a port in use, 2 a wrong setting.
Tests: test_command.py.
"""

from __future__ import annotations

import asyncio
import ipaddress
import signal
import socket
import sys
from dataclasses import dataclass
from threading import Thread
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

from sparrowmq.client.directory import Directory
from sparrowmq.client.faces.task_host import open_driver
from sparrowmq.errors import ConfigError
from sparrowmq.exporter.watch import ClusterWatch

# The server answers one scrape after the other; this is the longest time for one.
_REQUEST_TIMEOUT_S = 5
# The HTTP server checks so often whether it should end.
_POLL_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterSettings:
    """The settings of the exporter.

    Args:
        directory: the cluster's addresses, and the settings of connections to it.
        host, port: the address to listen on; port 0 takes any free port.
        interval_s: the time between two looks at the cluster.
        insecure: whether other machines may reach the exporter.
        stop_with_stdin: whether the exporter ends when standard input closes.
    """

    directory: Directory
    host: str = "127.0.0.1"
    port: int = 9557
    interval_s: float = 15.0
    insecure: bool = False
    stop_with_stdin: bool = False


async def serve(settings: ExporterSettings) -> None:
    """Serve until a signal. Raises: ConfigError for a wrong setting; OSError, SparrowError."""
    ip = _check_host(settings)
    async with open_driver(settings.directory.client) as driver:
        watch = ClusterWatch(settings.directory, driver, interval_s=settings.interval_s)
        registry = CollectorRegistry()
        registry.register(watch)
        with _make_server(ip, settings.port) as server:
            server.set_app(make_wsgi_app(registry))
            thread = Thread(target=server.serve_forever, args=(_POLL_S,), name="sparrowmq-metrics")
            looking = asyncio.create_task(watch.run(), name="exporter")
            thread.start()
            try:
                shown = f"[{ip}]" if ":" in ip else ip
                print(f"ready metrics=http://{shown}:{server.server_port}/metrics", flush=True)
                await _wait_until_stopped(looking, stop_with_stdin=settings.stop_with_stdin)
            finally:
                server.shutdown()
                thread.join()
                looking.cancel()
                await asyncio.gather(looking, return_exceptions=True)


async def _wait_until_stopped(looking: asyncio.Task[None], *, stop_with_stdin: bool) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    if stop_with_stdin:
        loop.add_reader(sys.stdin.fileno(), stop.set)
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({stopped, looking}, return_when=asyncio.FIRST_COMPLETED)
        if looking.done():
            # The task ended by an error of the exporter itself, which is raised here.
            looking.result()
    finally:
        stopped.cancel()
        if stop_with_stdin:
            loop.remove_reader(sys.stdin.fileno())


def _check_host(settings: ExporterSettings) -> str:
    """Return the address to listen on. Raises: ConfigError."""
    host = "127.0.0.1" if settings.host == "localhost" else settings.host
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise ConfigError(
            f"--host is {settings.host!r}; give the address of one of this machine's interfaces, "
            f"such as 127.0.0.1"
        ) from None
    if not address.is_loopback and not settings.insecure:
        raise ConfigError(
            f"--host {settings.host} lets other machines read the names of topics, groups and "
            f"clients, without a password; add --insecure if they may"
        )
    return str(address)


class _ScrapedServer(WSGIServer):
    def server_bind(self) -> None:
        # HTTPServer's own method looks up the host's name, which may take long.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_name, self.server_port = self.socket.getsockname()[:2]
        self.server_address = self.socket.getsockname()
        self.setup_environ()


class _ScrapedServer6(_ScrapedServer):
    address_family = socket.AF_INET6


class _ScrapeHandler(WSGIRequestHandler):
    timeout = _REQUEST_TIMEOUT_S

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing for a scrape."""


def _make_server(ip: str, port: int) -> WSGIServer:
    kind = _ScrapedServer6 if ":" in ip else _ScrapedServer
    try:
        return kind((ip, port), _ScrapeHandler)
    except OSError as error:
        raise OSError(
            f"cannot listen on {ip} port {port}: {error.strerror}; choose another --port"
        ) from error

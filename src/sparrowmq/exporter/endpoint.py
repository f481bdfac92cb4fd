"""Serves the series of a cluster by HTTP: `sparrowmq metrics`.

The server prints one line to stdout once it serves: `ready metrics=http://HOST:PORT/metrics`.
SIGTERM and SIGINT end it with exit code 0. Exit code 1 is a port in use, 2 a wrong setting.
Tests: test_command.py.
"""

from __future__ import annotations

import asyncio
import ipaddress
import signal
import sys
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from sparrowmq.calling.sockets import join_address
from sparrowmq.client.directory import Directory
from sparrowmq.client.faces.task_host import open_driver
from sparrowmq.errors import ConfigError
from sparrowmq.exporter.watch import ClusterWatch
from sparrowmq.serving.http_pages import Head, Page, serve_pages
from sparrowmq.serving.remoting_server import bind


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
        page = partial(_make_page, registry)
        option = "--port (--metrics-port of `sparrowmq up`)"
        with closing(bind(ip, settings.port, "the metrics page", option)) as listening:
            async with serve_pages(listening, {"/metrics": page, "/": page}):
                looking = asyncio.create_task(watch.run(), name="exporter")
                try:
                    address = join_address(ip, listening.getsockname()[1])
                    print(f"ready metrics=http://{address}/metrics", flush=True)
                    await _wait_until_stopped(looking, stop_with_stdin=settings.stop_with_stdin)
                finally:
                    looking.cancel()
                    await asyncio.gather(looking, return_exceptions=True)


async def _make_page(registry: CollectorRegistry, head: Head) -> Page:
    """Write all series in the form that the scrape accepts."""
    encode, content_type = choose_encoder(head.fields.get("accept", ""))
    # Thousands of queues take a while.
    return Page(await asyncio.to_thread(encode, registry), content_type)


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

"""Fill servers with connections that do nothing good: `python -m gate.connections --count 10000`.

Connections that are idle, have sent half a frame, send a byte now and then, begin a TLS handshake
and leave it, or hold pulls. Beside each kind a healthy client sends messages and reads them: the
figures say how long it waits. At the end memory and descriptors must be what they were.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from gate import wire
from gate.frames import DESCRIPTORS_MAX, GROWTH_MB_MAX, wait_for_descriptors
from gate.server import Server

TOPIC, QUEUES = "gate_connections", 8
ASKED = 1_000
P99_MS_MAX = 20
# Held pulls come many on a connection, as a consumer's do: one for each queue.
PULLS_PER_CONNECTION = 5_000
PULLS_PER_COUNT = 5
# What a frame of 100 bytes begins with, and a TLS handshake.
HALF_FRAME = b"\0\0\0\x64\0\0\0\x40{"
HELLO = bytes.fromhex("160301020001000001fc0303")


def idle(_: socket.socket) -> None:
    """Send nothing."""


def half_framed(connection: socket.socket) -> None:
    connection.send(HALF_FRAME)


def half_shaken(connection: socket.socket) -> None:
    connection.send(HELLO)


# How a connection begins, and whether it goes on by a byte at a time.
KINDS: dict[str, tuple[Callable[[socket.socket], None], bool]] = {
    "idle": (idle, False),
    "half-framed": (half_framed, False),
    "dripping": (half_framed, True),
    "half-shaken": (half_shaken, False),
}


@contextlib.contextmanager
def connected(ports: tuple[int, ...], count: int) -> Generator[list[socket.socket]]:
    """Connect so many times, to the ports in turn; close all at the end."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), 30))
            for port in islice(cycle(ports), count)
        ]


@contextlib.contextmanager
def held_pulls(port: int, count: int) -> Generator[None]:
    """Have a broker hold so many pulls of empty queues."""
    connections = -(-count // PULLS_PER_CONNECTION)
    with connected((port,), connections) as sockets:
        for number in range(count):
            fields = wire.pull_fields(TOPIC, 1 + number % (QUEUES - 1), 0, wait_ms=30_000)
            frame = wire.request(wire.PULL_MESSAGE, fields, opaque=number)
            sockets[number % connections].sendall(frame)
        for each in sockets:
            # The answer to a request behind the pulls: the broker has read them all.
            each.sendall(wire.request(wire.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": 0}))
            assert each.recv(4)
        yield


def ask(port: int, others: list[socket.socket]) -> list[float]:
    """Send and read messages as one client; return how long each took, in ms.

    Args:
        others: connections of which some send a byte between two requests.
    """
    taken_ms: list[float] = []
    healthy = wire.Connection(port)
    dripping = cycle(others)
    try:
        offset = wire.max_offset(healthy, TOPIC, 0)
        for number in range(ASKED):
            for other in islice(dripping, 10 if others else 0):
                # The server ends a connection whose frame takes too long.
                with contextlib.suppress(OSError):
                    other.send(b" ")
            body = str(number).encode()
            begun_s = time.perf_counter()
            fields = wire.send_fields(TOPIC, 0, {})
            assert healthy.call(wire.SEND_MESSAGE_V2, fields, body).code == 0
            (record,) = wire.read_queue(healthy, TOPIC, 0, offset + number, offset + number + 1)
            taken_ms.append((time.perf_counter() - begun_s) * 1_000)
            assert record.body == body
    finally:
        healthy.close()
    return sorted(taken_ms)


def fill(server: Server, count: int) -> tuple[dict[str, float], float]:
    """Show a server each kind; return the 99th percentile in ms for each, and the most memory."""
    ports = server.broker_port, server.name_server_port
    p99_ms: dict[str, float] = {}
    peak_mb = 0.0
    for kind, (begin, drips) in KINDS.items():
        with connected(ports, count) as sockets:
            for each in sockets:
                begin(each)
            p99_ms[kind] = _p99(ask(server.broker_port, sockets if drips else []))
            peak_mb = max(peak_mb, server.memory_mb())
    with held_pulls(server.broker_port, count * PULLS_PER_COUNT):
        p99_ms["pulls"] = _p99(ask(server.broker_port, []))
        peak_mb = max(peak_mb, server.memory_mb())
    print(f"{count:,} connections of each kind, p99 {p99_ms} ms", flush=True)
    return p99_ms, peak_mb


def run(count: int, *, data: Path) -> dict[str, Any]:
    """Show a server each kind of connections; return the figures."""
    server = Server(data, "--flush", "async")
    server.start()
    p99_ms: dict[str, float] = {}
    try:
        port = server.broker_port
        setup = wire.Connection(port)
        wire.create_topic(setup, TOPIC, QUEUES)
        setup.close()
        p99_ms["none"] = _p99(ask(port, []))
        at_start_mb = server.memory_mb()
        fill(server, count)
        # What a process once used for 50,000 pulls it keeps for the next: only the second round
        # shows whether something is left of each.
        before = server.memory_mb(), server.descriptor_count()
        filled_ms, peak_mb = fill(server, count)
        p99_ms |= filled_ms
        left = wait_for_descriptors(server, before[1])
        growth_mb = server.memory_mb() - before[0]
    finally:
        server.kill()
    return {
        "connections": count,
        "pulls": count * PULLS_PER_COUNT,
        "p99_ms": p99_ms,
        "peak_mb": round(peak_mb - at_start_mb, 1),
        "growth_mb": round(growth_mb, 1),
        "descriptors_left": left,
    }


def _p99(taken_ms: list[float]) -> float:
    return round(taken_ms[len(taken_ms) * 99 // 100], 1)


def main() -> int:
    """Run, print the figures as JSON, and return 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m gate.connections", description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    options = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < options.count + 100:
        parser.error(f"{options.count} connections need as many descriptors; the limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, options.count + 100), hard))
    with tempfile.TemporaryDirectory(prefix="gate-connections-") as directory:
        figures = run(options.count, data=Path(directory) / "data")
    print(json.dumps(figures))
    within = figures["descriptors_left"] <= DESCRIPTORS_MAX and (
        figures["growth_mb"] <= GROWTH_MB_MAX
    )
    return 0 if within and max(figures["p99_ms"].values()) <= P99_MS_MAX else 1


if __name__ == "__main__":
    sys.exit(main())

"""Send servers frames that nobody should send: `python -m gate.frames --count 1000000`.

All six ports are flooded at once, each with its own kind (`floods`): remoting frames of every code
at the broker and the name server, HTTP/2 at gRPC, HTTP/1 at health, the live page and the exporter.
Between them a healthy client asks each port: it must be answered. So must every whole request that
asks for an answer, or its connection must end. At the end memory and descriptors of all processes
must be what they were.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gate import grpc_wire, wire
from gate.floods import Flood, Sent, flood_grpc, flood_http, flood_remoting
from gate.server import MORE_PORTS, Server

GROWTH_MB_MAX = 64
DESCRIPTORS_MAX = 16
TOPIC = "gate_frames"
# A port that says nothing so often is given up.
FAILED_MAX = 5
PATIENCE_S = 10.0


@dataclass(frozen=True, slots=True)
class Port:
    """How a port is flooded.

    Args:
        percent: its part of the frames. A page's part takes a connection for each request.
        health_every: after how many frames a healthy client asks.
    """

    flood: Flood
    percent: int
    health_every: int


PORTS = {
    "broker": Port(flood_remoting, 35, 1_000),
    "name server": Port(flood_remoting, 35, 1_000),
    "gRPC": Port(flood_grpc, 23, 1_000),
    "health": Port(flood_http, 3, 100),
    "page": Port(flood_http, 1, 100),
    "exporter": Port(flood_http, 3, 100),
}
PAGES = {"health": "/health", "page": "/login", "exporter": "/metrics"}


@dataclass(slots=True)
class Outcome:
    """What became of a port's frames, and of the healthy requests between them."""

    sent: Sent = field(default_factory=Sent)
    healthy: int = 0
    unanswered: int = 0
    slowest_s: float = 0.0

    def ask(self, is_healthy: Callable[[], bool]) -> None:
        """Ask as a healthy client does."""
        begun_s = time.monotonic()
        if is_healthy():
            self.healthy += 1
        else:
            self.unanswered += 1
        self.slowest_s = max(self.slowest_s, time.monotonic() - begun_s)


def flood(
    port: int, by: Port, count: int, *, choice: random.Random, is_healthy: Callable[[], bool]
) -> Outcome:
    """Have a port read so many frames, and ask it in between and at the end."""
    found, next_health = Outcome(), 0
    while found.sent.frames < count and found.sent.silent + found.unanswered < FAILED_MAX:
        try:
            found.sent.add(by.flood(port, choice))
        except OSError:
            # Whoever accepts no connection serves nobody.
            found.unanswered += 1
        if found.sent.frames >= next_health:
            next_health += by.health_every
            found.ask(is_healthy)
    found.ask(is_healthy)
    return found


def run(count: int, *, seed: int, data: Path) -> dict[str, Any]:
    """Send so many frames to all ports of a server; return the figures."""
    server = Server(data, more=tuple(MORE_PORTS))
    server.start()
    try:
        checks: dict[str, Callable[[], bool]] = {
            "broker": lambda: is_broker_healthy(server.broker_port),
            "name server": lambda: is_name_server_healthy(server.name_server_port),
            "gRPC": lambda: is_grpc_healthy(server.ports["gRPC"]),
            **{name: _page_check(server.ports[name], path) for name, path in PAGES.items()},
        }
        # Whatever is loaded by the first request of a kind is no growth.
        unhealthy = [name for name, is_healthy in checks.items() if not is_healthy()]
        if unhealthy:
            raise RuntimeError(f"before any flood, no answer of {unhealthy}")
        before = server.memory_mb(), server.descriptor_count()
        with ThreadPoolExecutor(len(PORTS)) as pool:
            running = {
                name: pool.submit(
                    flood,
                    server.ports[name],
                    by,
                    max(1, count * by.percent // 100),
                    choice=random.Random(f"{seed} {name}"),
                    is_healthy=checks[name],
                )
                for name, by in PORTS.items()
            }
            found = {name: each.result() for name, each in running.items()}
        descriptors = wait_for_descriptors(server, before[1])
        growth_mb = round(server.memory_mb() - before[0], 1)
        processes = len(server.pids())
    finally:
        server.kill()
    return _figures(found) | {
        "growth_mb": growth_mb,
        "descriptors_left": descriptors,
        "processes": processes,
    }


def _figures(found: Mapping[str, Outcome]) -> dict[str, Any]:
    return {
        "frames": sum(each.sent.frames for each in found.values()),
        "ports": {name: each.sent.frames for name, each in found.items()},
        "whole": sum(each.sent.whole for each in found.values()),
        "answered": sum(each.sent.answered for each in found.values()),
        "silent": sum(each.sent.silent for each in found.values()),
        "healthy": sum(each.healthy for each in found.values()),
        "unanswered": sum(each.unanswered for each in found.values()),
        "slowest_answer_s": round(max(each.slowest_s for each in found.values()), 2),
    }


def is_broker_healthy(port: int) -> bool:
    """Send a message and read it."""
    body = str(time.monotonic_ns()).encode()
    try:
        connection = wire.Connection(port, timeout_s=PATIENCE_S)
        try:
            sent = connection.call(wire.SEND_MESSAGE_V2, wire.send_fields(TOPIC, 0, {}), body)
            if sent.code:
                return False
            offset = int(sent.fields["queueOffset"])
            (record,) = wire.read_queue(connection, TOPIC, 0, offset, offset + 1)
        finally:
            connection.close()
    except (OSError, RuntimeError):
        return False
    return record.body == body


def is_name_server_healthy(port: int) -> bool:
    """Ask for a topic's route."""
    try:
        connection = wire.Connection(port, timeout_s=PATIENCE_S)
        try:
            return connection.call(105, {"topic": "TBW102"}).code == 0
        finally:
            connection.close()
    except OSError:
        return False


def is_grpc_healthy(port: int) -> bool:
    """Ask for a topic's route, on a connection of its own."""
    caller = grpc_wire.Caller(port, timeout_s=PATIENCE_S)
    asked = grpc_wire.message((1, grpc_wire.resource(TOPIC)), (2, grpc_wire.endpoints(port)))
    metadata = tuple(grpc_wire.identity("healthy@1").items())
    try:
        return caller.call("QueryRoute", asked, metadata).code == grpc_wire.OK
    finally:
        caller.close()


def _page_check(port: int, path: str) -> Callable[[], bool]:
    """Return a function that asks for a page."""

    def is_healthy() -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status == 200 and bool(answer.read())
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    return is_healthy


def wait_for_descriptors(server: Server, before: int) -> int:
    """Return how many descriptors more there are once the flood's connections have ended."""
    deadline_s = time.monotonic() + 30
    while (left := server.descriptor_count() - before) > DESCRIPTORS_MAX:
        if time.monotonic() > deadline_s:
            break
        time.sleep(0.1)
    return left


def is_kept(figures: Mapping[str, Any]) -> bool:
    """Return whether the figures keep the promise."""
    return (
        figures["growth_mb"] <= GROWTH_MB_MAX
        and figures["descriptors_left"] <= DESCRIPTORS_MAX
        and not figures["unanswered"]
        and not figures["silent"]
        # The servers, the page and the exporter.
        and figures["processes"] == 3
    )


def main() -> int:
    """Run, print the figures as JSON, and return 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m gate.frames", description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gate-frames-") as directory:
        figures = run(options.count, seed=options.seed, data=Path(directory) / "data")
    print(json.dumps(figures))
    return 0 if is_kept(figures) else 1


if __name__ == "__main__":
    sys.exit(main())

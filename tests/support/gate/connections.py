"""Fill servers with connections that do nothing good: `python -m gate.connections --count 10000`.

Connections that are idle, have sent half a frame, send a byte now and then, begin a TLS handshake
and leave it, or hold pulls. Beside each kind a healthy client sends messages and reads them: the
figures say how long it waits. A server ends such connections after a time, so they are made again
while the client asks: the server has to have nearly all of them open at every count. No held pull
may be answered meanwhile. At the end memory and descriptors must be what they were.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import select
import socket
import ssl
import sys
import tempfile
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from certificates import Certificates
from gate import wire
from gate.frames import DESCRIPTORS_MAX, GROWTH_MB_MAX, wait_for_descriptors
from gate.server import Server

TOPIC, QUEUES = "gate_connections", 8
ASKED = 1_000
# How often a client asks between two counts of the open connections.
ASKED_PER_COUNT = 50
P99_MS_MAX = 20
# Some are about to be ended, and made again, at any moment.
OPEN_PERCENT_MIN = 95
FILL_S_MAX = 20.0
# Held pulls come many on a connection, as a consumer's do: one for each queue.
PULLS_PER_CONNECTION = 5_000
PULLS_PER_COUNT = 5
PULL_MS = 30_000
# What a frame of 100 bytes begins with.
HALF_FRAME = b"\0\0\0\x64\0\0\0\x40{"


def client_hello() -> bytes:
    """Return the first bytes of a TLS handshake, all of them valid."""
    context, sent = ssl.create_default_context(), ssl.MemoryBIO()
    handshake = context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        handshake.do_handshake()
    return sent.read()


HELLO = client_hello()


class Kind(NamedTuple):
    """A kind of connections.

    Args:
        begins: what each sends at first, in turn.
        drips: whether some send a byte between two requests of the client.
        over_tls: whether the server speaks TLS.
    """

    begins: tuple[bytes, ...] = (b"",)
    drips: bool = False
    over_tls: bool = False


KINDS = {
    "idle": Kind(),
    "half-framed": Kind((HALF_FRAME,)),
    "dripping": Kind((HALF_FRAME,), drips=True),
    # Half of the client's part, or all of it and no answer to the server's.
    "half-shaken": Kind((HELLO[: len(HELLO) // 2], HELLO), over_tls=True),
}


class Others(Protocol):
    """What is beside a healthy client."""

    def attend(self) -> None:
        """Count, and make again what has ended."""
        ...

    def drip(self) -> None:
        """Send a byte on some connections."""
        ...


class Nobody:
    """No other connections."""

    def attend(self) -> None: ...

    def drip(self) -> None: ...


@dataclass(slots=True)
class Crowd:
    """So many connections of a kind to a server's ports.

    Args:
        open_min: the fewest that the server had open at a count.
        ended: how many the server has ended.
        descriptors: how many the server has open without any.
    """

    server: Server
    kind: Kind
    count: int
    descriptors: int
    open_min: int = sys.maxsize
    ended: int = 0
    _sockets: dict[int, socket.socket] = field(default_factory=dict)
    _poll: select.poll = field(default_factory=select.poll)
    _made: int = 0
    _dripping: int = 0

    def fill(self) -> None:
        """Connect until there are enough."""
        ports = self.server.broker_port, self.server.name_server_port
        while len(self._sockets) < self.count:
            begin = self.kind.begins[self._made // 2 % len(self.kind.begins)]
            connection = socket.create_connection(("127.0.0.1", ports[self._made % 2]), 30)
            self._made += 1
            connection.send(begin) if begin else None
            self._sockets[connection.fileno()] = connection
            self._poll.register(connection, select.POLLRDHUP)

    def attend(self) -> None:
        """Make ended connections again, and count those that the server has open."""
        deadline_s = time.monotonic() + FILL_S_MAX
        # The server accepts them in turns of its loop, and ends the first meanwhile if it is slow.
        while True:
            for number, _ in self._poll.poll(0):
                self._poll.unregister(number)
                self._sockets.pop(number).close()
                self.ended += 1
            self.fill()
            found = self.server.descriptor_count() - self.descriptors
            if found * 100 >= self.count * OPEN_PERCENT_MIN or time.monotonic() > deadline_s:
                break
            time.sleep(0.01)
        self.open_min = min(self.open_min, found)

    def drip(self) -> None:
        if self.kind.drips:
            numbers = list(islice(cycle(self._sockets), self._dripping, self._dripping + 10))
            self._dripping = (self._dripping + 10) % self.count
            for number in numbers:
                # The server ends a connection whose frame takes too long.
                with contextlib.suppress(OSError):
                    self._sockets[number].send(b" ")

    def __enter__(self) -> Crowd:
        self.fill()
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._sockets.values():
            each.close()


@dataclass(slots=True)
class Pulls:
    """Pulls of empty queues that a broker holds.

    Args:
        answered: how many the broker has answered, which it should not.
    """

    sockets: list[socket.socket]
    answered: int = 0

    def attend(self) -> None:
        """Count what has come since the pulls were read."""
        for each in self.sockets:
            with contextlib.suppress(BlockingIOError):
                data = each.recv(1 << 20)
                # Whatever came, or the end of the connection, ends pulls.
                self.answered += max(1, data.count(b'"opaque"'))

    def drip(self) -> None: ...


@contextlib.contextmanager
def held_pulls(port: int, count: int, *, wait_ms: int = PULL_MS) -> Generator[Pulls]:
    """Have a broker hold so many pulls of empty queues."""
    connections = -(-count // PULLS_PER_CONNECTION)
    with contextlib.ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), 30))
            for _ in range(connections)
        ]
        for number in range(count):
            queue = 1 + number % (QUEUES - 1)
            fields = wire.pull_fields(TOPIC, queue, 0, wait_ms=wait_ms)
            frame = wire.request(wire.PULL_MESSAGE, fields, opaque=number)
            sockets[number % connections].sendall(frame)
        pulls = Pulls(sockets)
        for each in sockets:
            # The answer to a request behind the pulls: the broker has read them all.
            each.sendall(wire.request(wire.GET_MAX_OFFSET, _FIRST_QUEUE, opaque=count))
            while (opaque := _read_opaque(each)) != count:
                pulls.answered += 1
                assert opaque is not None
            each.setblocking(False)
        yield pulls


_FIRST_QUEUE = {"topic": TOPIC, "queueId": 0}


def _read_opaque(connection: socket.socket) -> int | None:
    """Return whose answer the next frame is; None if the connection has ended."""
    head = connection.recv(4, socket.MSG_WAITALL)
    if len(head) < 4:
        return None
    frame = connection.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL)
    header = frame[4 : 4 + int.from_bytes(frame[1:4], "big")]
    return int(json.loads(header)["opaque"])


def ask(
    port: int, others: Others, *, tls: ssl.SSLContext | None = None, asked: int = ASKED
) -> list[float]:
    """Send and read messages as one client; return how long each took, in ms."""
    taken_ms: list[float] = []
    healthy = wire.Connection(port, tls=tls)
    try:
        offset = wire.max_offset(healthy, TOPIC, 0)
        for number in range(asked):
            if number % ASKED_PER_COUNT == 0:
                others.attend()
            others.drip()
            body = str(number).encode()
            begun_s = time.perf_counter()
            fields = wire.send_fields(TOPIC, 0, {})
            assert healthy.call(wire.SEND_MESSAGE_V2, fields, body).code == 0
            (record,) = wire.read_queue(healthy, TOPIC, 0, offset + number, offset + number + 1)
            taken_ms.append((time.perf_counter() - begun_s) * 1_000)
            assert record.body == body
        others.attend()
    finally:
        healthy.close()
    return sorted(taken_ms)


@dataclass(slots=True)
class Found:
    """What was measured.

    Args:
        p99_ms: the 99th percentile of the client's waits, by kind.
        open_min: the fewest open connections at a count, by kind.
        pulls_answered: how many held pulls were answered.
        peak_mb: how much more memory than at the start a server took, at the most.
    """

    p99_ms: dict[str, float] = field(default_factory=dict)
    open_min: dict[str, int] = field(default_factory=dict)
    pulls_answered: int = 0
    peak_mb: float = 0.0


@dataclass(slots=True)
class Filled:
    """A server that is filled, and how it speaks.

    Args:
        tls: what its clients trust; None for plain text.
    """

    server: Server
    tls: ssl.SSLContext | None
    at_start_mb: float = 0.0
    descriptors: int = 0

    def begin(self, found: Found) -> None:
        """Start, and ask beside nobody."""
        self.server.start()
        port = self.server.broker_port
        setup = wire.Connection(port, tls=self.tls)
        wire.create_topic(setup, TOPIC, QUEUES)
        setup.close()
        name = "none" if self.tls is None else "none, by TLS"
        found.p99_ms[name] = _p99(ask(port, Nobody(), tls=self.tls))
        self.at_start_mb = self.server.memory_mb()
        self.descriptors = self.server.descriptor_count()

    def fill(self, count: int, found: Found, *, pull_ms: int = PULL_MS) -> None:
        """Show the server each kind that is for it."""
        port = self.server.broker_port
        for name, kind in KINDS.items():
            if kind.over_tls != (self.tls is not None):
                continue
            with Crowd(self.server, kind, count, self.descriptors) as crowd:
                found.p99_ms[name] = _p99(ask(port, crowd, tls=self.tls))
                found.open_min[name] = min(crowd.open_min, found.open_min.get(name, count))
                self._measure(found)
            wait_for_descriptors(self.server, self.descriptors)
        if self.tls is None:
            with held_pulls(port, count * PULLS_PER_COUNT, wait_ms=pull_ms) as pulls:
                # As many as last while the pulls are held, on a busy machine too.
                found.p99_ms["pulls"] = _p99(ask(port, pulls, asked=ASKED // 2))
                found.pulls_answered += pulls.answered
                self._measure(found)

    def _measure(self, found: Found) -> None:
        found.peak_mb = max(found.peak_mb, self.server.memory_mb() - self.at_start_mb)


def run(count: int, *, data: Path, pull_ms: int = PULL_MS) -> dict[str, Any]:
    """Show servers each kind of connections; return the figures."""
    certificates = Certificates(data.parent)
    made = certificates.server
    tls = ("--tls-cert", str(made.path), "--tls-key", str(made.key))
    servers = (
        Filled(Server(data, "--flush", "async"), None),
        Filled(
            Server(data.with_name("tls"), "--flush", "async", *tls),
            ssl.create_default_context(cafile=str(certificates.ca.path)),
        ),
    )
    found = Found()
    growths_mb, left = list[float](), 0
    for each in servers:
        try:
            each.begin(found)
            # What a process once used for 50,000 pulls or 10,000 handshakes it keeps for the next,
            # and handshakes leave gaps that only a second round fills: the last round shows
            # whether something is left of each.
            for _ in range(1 if each.tls is None else 2):
                each.fill(count, found, pull_ms=pull_ms)
            before = each.server.memory_mb(), each.server.descriptor_count()
            each.fill(count, found, pull_ms=pull_ms)
            left = max(left, wait_for_descriptors(each.server, before[1]))
            growths_mb.append(round(each.server.memory_mb() - before[0], 1))
        finally:
            each.server.kill()
        print(f"{count:,} connections of each kind, {found}, {growths_mb} MB", flush=True)
    return {
        "connections": count,
        "open": min(found.open_min.values()),
        "pulls": count * PULLS_PER_COUNT,
        "pulls_answered": found.pulls_answered,
        "p99_ms": found.p99_ms,
        "peak_mb": round(found.peak_mb, 1),
        "growth_mb": max(growths_mb),
        "descriptors_left": left,
    }


def is_kept(figures: dict[str, Any]) -> bool:
    """Return whether the figures keep the promise."""
    return (
        figures["descriptors_left"] <= DESCRIPTORS_MAX
        and figures["growth_mb"] <= GROWTH_MB_MAX
        and figures["open"] * 100 >= figures["connections"] * OPEN_PERCENT_MIN
        and not figures["pulls_answered"]
        and max(figures["p99_ms"].values()) <= P99_MS_MAX
    )


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
    return 0 if is_kept(figures) else 1


if __name__ == "__main__":
    sys.exit(main())

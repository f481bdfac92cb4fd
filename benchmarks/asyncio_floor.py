"""What an awaited request costs in asyncio alone: `python benchmarks/asyncio_floor.py`.

    python benchmarks/asyncio_floor.py [--seconds S] [--width N]

So many tasks each write a request, await its future, and begin again, as the senders of
`against_apache.py` (async, awaited) do. The requests and answers are as long as those of sends of
128 bytes and have no content; a second process answers them. There is no message, no header, no
table of requests and no time-out: the answers come in the order of the requests. The requests of a
turn of the loop go out by one call of the kernel, as SparrowMQ's.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import sys
import time
from collections import deque
from multiprocessing import Process

REQUEST_BYTES, ANSWER_BYTES = 490, 260
SETTLE_S = 1


def answer_all(listener: socket.socket) -> None:
    """Answer each request of one connection."""
    connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    rest = 0
    while data := connection.recv(1 << 17):
        count, rest = divmod(rest + len(data), REQUEST_BYTES)
        connection.sendall(bytes(count * ANSWER_BYTES))


class Requests(asyncio.Protocol):
    """The requests under way on one connection."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._unsent: list[bytes] = []
        self._received = 0
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def ask(self) -> asyncio.Future[None]:
        """Send a request; the future ends with its answer."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(future)
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(bytes(REQUEST_BYTES))
        return future

    def _flush(self) -> None:
        assert self._transport is not None
        unsent, self._unsent = self._unsent, []
        self._transport.write(b"".join(unsent))

    def data_received(self, data: bytes) -> None:
        count, self._received = divmod(self._received + len(data), ANSWER_BYTES)
        for _ in range(count):
            self._waiting.popleft().set_result(None)


async def measure(port: int, *, width: int, seconds: float) -> tuple[float, float]:
    """Return microseconds of the processor for a request, and requests a second."""
    loop = asyncio.get_running_loop()
    transport, requests = await loop.create_connection(Requests, "127.0.0.1", port)
    deadline = time.perf_counter() + SETTLE_S + seconds
    done = 0

    async def sender() -> None:
        nonlocal done
        while time.perf_counter() < deadline:
            await requests.ask()
            done += 1

    senders = asyncio.gather(*(sender() for _ in range(width)))
    await asyncio.sleep(SETTLE_S)
    begin = done, time.process_time(), time.perf_counter()
    await asyncio.sleep(seconds)
    count, cpu, wall = done - begin[0], time.process_time(), time.perf_counter()
    await senders
    transport.close()
    return (cpu - begin[1]) / count * 1e6, count / (wall - begin[2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--width", type=int, default=1_000)
    arguments = parser.parse_args()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Process(target=answer_all, args=(listener,), daemon=True)
        server.start()
        port = listener.getsockname()[1]
        cpu_us, rate = asyncio.run(measure(port, width=arguments.width, seconds=arguments.seconds))
    server.join()
    print(f"Python {sys.version.split()[0]}: {cpu_us:.2f} µs a request, {rate:,.0f} a second")


if __name__ == "__main__":
    main()

"""The cost that a driver adds to a round trip on loopback, beside bare sockets in the same run.

    python benchmarks/drivers.py [--rounds N]

A child process sends every request frame back as its own answer, at the least cost in Python. The
baseline is a blocking socket that sends one ready-made frame and receives as many bytes. Each
figure is the best of several short runs; the runs take turns, and noise meets all alike. If the
platform allows it, both processes share one processor. A round trip is then the sum of both ends'
work, without the time in which another processor wakes up, which varies most. The overhead is
processor time of the client's process, which other load on the machine disturbs least.

The claim: one `Invoke`, with encoding and decoding, costs at most 60 microseconds of processor time
more than the bare round trip.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import socket
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import NamedTuple

import uvloop

from sparrowmq.calling.async_driver import AsyncDriver
from sparrowmq.calling.blocking_driver import BlockingDriver
from sparrowmq.calling.effects import Operation, invoke, join, spawn
from sparrowmq.protocol.codes import SerializeType
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.framing import encode_frame
from sparrowmq.protocol.session import RemotingSession

OVERHEAD_US_MAX = 60
REPEATS = 5
CONCURRENT = 64
EXT_FIELDS = {
    "a": "GID_benchmark",
    "b": "flights",
    "c": "TBW102",
    "d": "4",
    "e": "3",
    "f": "0",
    "g": "1700000000000",
    "h": "0",
    "i": "KEYS\x01UA1545\x02TAGS\x01UA\x02",
    "j": "0",
    "k": "false",
    "m": "false",
}
BODY = b"x" * 200


class Cost(NamedTuple):
    """Seconds of wall-clock time and of processor time."""

    wall: float
    processor: float


class Watch:
    """Measures both times from its creation on."""

    def __init__(self) -> None:
        self._wall, self._processor = time.perf_counter(), time.process_time()

    def read(self) -> Cost:
        return Cost(time.perf_counter() - self._wall, time.process_time() - self._processor)


def make_request(serialize_type: SerializeType = SerializeType.JSON) -> RemotingCommand:
    return RemotingCommand(
        code=310, ext_fields=EXT_FIELDS, body=BODY, serialize_type=serialize_type
    )


def serve(ready: Connection) -> None:
    """Send all bytes back with the flag of an answer, for one connection after another."""
    listening = socket.create_server(("127.0.0.1", 0))
    ready.send(listening.getsockname()[1])
    while True:
        sock, _ = listening.accept()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with sock:
            rest = b""
            while data := sock.recv(262_144):
                data = rest + data
                # A request that is cut within its flag would be missed: keep its possible start.
                end = len(data)
                if data.endswith((b'"flag', b'"flag"', b'"flag":', b'"', b'"f', b'"fl', b'"fla')):
                    end = data.rindex(b'"')
                rest = data[end:]
                sock.sendall(data[:end].replace(b'"flag":0', b'"flag":1'))


def measure_bare(port: int, rounds: int) -> Cost:
    frame = encode_frame(make_request())
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        watch = Watch()
        for _ in range(rounds):
            sock.sendall(frame)
            missing = len(frame)
            while missing:
                missing -= len(sock.recv(65_536))
        return watch.read()


def invoke_once(address: str) -> Operation[None]:
    yield from invoke(address, make_request(), timeout_ms=3_000)


def invoke_again(address: str, rounds: int) -> Operation[None]:
    for _ in range(rounds):
        yield from invoke(address, make_request(), timeout_ms=3_000)


def invoke_together(address: str, rounds: int) -> Operation[None]:
    tasks = []
    for _ in range(CONCURRENT):
        task = yield from spawn(invoke_again(address, rounds // CONCURRENT), name="invokes")
        tasks.append(task)
    for task in tasks:
        yield from join(task)


def measure_blocking_runs(port: int, rounds: int) -> Cost:
    address = f"127.0.0.1:{port}"
    with BlockingDriver() as driver:
        driver.run(invoke_once(address))
        watch = Watch()
        for _ in range(rounds):
            driver.run(invoke_once(address))
        return watch.read()


def measure_blocking(
    operation: Callable[[str, int], Operation[None]], port: int, rounds: int
) -> Cost:
    address = f"127.0.0.1:{port}"
    with BlockingDriver() as driver:
        driver.run(invoke_once(address))
        watch = Watch()
        driver.run(operation(address, rounds))
        return watch.read()


async def measure_async_runs(port: int, rounds: int) -> Cost:
    address = f"127.0.0.1:{port}"
    async with AsyncDriver() as driver:
        await driver.run(invoke_once(address))
        watch = Watch()
        for _ in range(rounds):
            await driver.run(invoke_once(address))
        return watch.read()


async def measure_async(
    operation: Callable[[str, int], Operation[None]], port: int, rounds: int
) -> Cost:
    address = f"127.0.0.1:{port}"
    async with AsyncDriver() as driver:
        await driver.run(invoke_once(address))
        watch = Watch()
        await driver.run(operation(address, rounds))
        return watch.read()


def measure_codec(_port: int, rounds: int) -> Cost:
    """Measure encoding and decoding alone, which every driver needs."""
    session = RemotingSession()
    watch = Watch()
    for token in range(rounds):
        frame = session.start_request(make_request(), token)
        session.receive_data(frame.replace(b'"flag":0', b'"flag":1'))
    return watch.read()


MEASUREMENTS: dict[str, Callable[[int, int], Cost]] = {
    "bare sockets": measure_bare,
    "codec alone, no socket": measure_codec,
    "blocking, run per invoke": measure_blocking_runs,
    "blocking, one operation": lambda port, n: measure_blocking(invoke_again, port, n),
    f"blocking, {CONCURRENT} tasks": lambda port, n: measure_blocking(invoke_together, port, n),
    "asyncio, run per invoke": lambda port, n: asyncio.run(measure_async_runs(port, n)),
    "asyncio, one operation": lambda port, n: asyncio.run(measure_async(invoke_again, port, n)),
    f"asyncio, {CONCURRENT} tasks": lambda port, n: asyncio.run(
        measure_async(invoke_together, port, n)
    ),
    "uvloop, run per invoke": lambda port, n: uvloop.run(measure_async_runs(port, n)),
    "uvloop, one operation": lambda port, n: uvloop.run(measure_async(invoke_again, port, n)),
    f"uvloop, {CONCURRENT} tasks": lambda port, n: uvloop.run(
        measure_async(invoke_together, port, n)
    ),
}


def share_one_processor() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def main() -> None:
    """Print one line for each way to invoke."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2_048)
    rounds: int = parser.parse_args().rounds
    share_one_processor()
    context = multiprocessing.get_context("spawn")
    ready, child_end = context.Pipe()
    server = context.Process(target=serve, args=(child_end,), daemon=True)
    server.start()
    port: int = ready.recv()
    best: dict[str, Cost] = dict.fromkeys(MEASUREMENTS, Cost(float("inf"), float("inf")))
    for _ in range(REPEATS):
        for name, measure in MEASUREMENTS.items():
            cost = measure(port, rounds)
            best[name] = Cost(*map(min, best[name], (value / rounds for value in cost)))
    server.terminate()
    server.join()
    bare = best["bare sockets"]
    print(f"{'':28}{'trips/s':>9}{'ratio':>8}{'us of processor':>17}{'over bare':>11}")
    for name, cost in best.items():
        print(
            f"{name:28}{1 / cost.wall:9.0f}{cost.wall / bare.wall:8.2f}"
            f"{cost.processor * 1e6:17.1f}{(cost.processor - bare.processor) * 1e6:11.1f}"
        )
    single = [cost for name, cost in best.items() if "invoke" in name or "operation" in name]
    worst = max(cost.processor for cost in single) - bare.processor
    print(f"worst overhead {worst * 1e6:.1f} us, claimed at most {OVERHEAD_US_MAX} us")


if __name__ == "__main__":
    main()

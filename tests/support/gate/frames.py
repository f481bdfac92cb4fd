"""Send servers frames that nobody should send: `python -m gate.frames --count 1000000`.

Each is a valid request that was changed, cut, mixed with another, or made up; every code of the
protocol is among them. They go to the name server and the broker in turn. Between them a healthy
client asks: it must be answered. At the end memory and descriptors must be what they were.
"""

from __future__ import annotations

import argparse
import json
import random
import select
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gate import wire
from gate.server import Server

# Frames of one connection, at most; a server ends the connection of some.
PER_CONNECTION = 50
HEALTH_EVERY = 1_000
GROWTH_MB_MAX = 64
DESCRIPTORS_MAX = 16
CODES = (*range(1, 60), *range(200, 360), 400, 401, 402, *range(2_000, 2_020), 200_050, 200_051)
NAMES = (
    *("topic", "consumerGroup", "producerGroup", "queueId", "queueOffset", "maxMsgNums", "group"),
    *("brokerName", "clientID", "subscription", "sysFlag", "offset", "commitOffset", "b", "i"),
)
VALUES = ("", "0", "-1", "9223372036854775807", "99999999999999999999", "T", "%RETRY%", "a\0b", "é")


def frames(choice: random.Random) -> Iterator[bytes]:
    """Yield frames for ever."""
    former = wire.request(wire.GET_ALL_TOPICS, {})
    while True:
        fields = {name: choice.choice(VALUES) for name in choice.sample(NAMES, choice.randrange(8))}
        body = choice.randbytes(choice.choice((0, 0, 1, 30, 300)))
        valid = wire.request(choice.choice(CODES), fields, body)
        match choice.randrange(6):
            case 0:
                frame = valid
            case 1:
                frame = flipped(valid, choice)
            case 2:
                frame = valid[: choice.randrange(len(valid))]
            case 3:
                cut = choice.randrange(min(len(valid), len(former)))
                frame = former[:cut] + valid[cut:]
            case 4:
                size = choice.choice((0, 3, 4, 100, 1 << 20, (1 << 31) - 1, (1 << 32) - 1))
                frame = struct.pack(">I", size) + valid[4:]
            case _:
                frame = choice.randbytes(choice.randrange(1, 200))
        yield frame
        former = valid


def flipped(frame: bytes, choice: random.Random) -> bytes:
    """Return a frame of which some bytes are others."""
    data = bytearray(frame)
    for _ in range(choice.choice((1, 1, 2, 8))):
        data[choice.randrange(len(data))] = choice.randrange(256)
    return bytes(data)


def flood(port: int, some: Iterator[bytes], number: int) -> int:
    """Send so many frames on one connection, and return how many went before it was ended."""
    with socket.create_connection(("127.0.0.1", port), 30) as connection:
        for sent in range(number):
            try:
                connection.sendall(next(some))
                # An answer that nobody reads would stop the server's reading.
                has_ended = is_readable(connection) and not connection.recv(1 << 20)
            except ConnectionError:
                has_ended = True
            if has_ended:
                return sent + 1
        return number


def is_readable(connection: socket.socket) -> bool:
    return bool(select.select([connection], [], [], 0)[0])


def run(count: int, *, seed: int, data: Path) -> dict[str, Any]:
    """Send so many frames to a server; return the figures."""
    choice, server = random.Random(seed), Server(data)
    some = frames(choice)
    sent, failed, slowest_s, told_s = 0, 0, 0.0, time.monotonic()
    server.start()
    try:
        ports = (server.name_server_port, server.broker_port)
        before = server.memory_mb(), server.descriptor_count()
        next_health = 0
        while sent < count:
            sent += flood(choice.choice(ports), some, min(PER_CONNECTION, count - sent))
            if next_health <= sent < count:
                next_health = sent + HEALTH_EVERY
                for port in ports:
                    begun_s = time.monotonic()
                    failed += not is_healthy(port)
                    slowest_s = max(slowest_s, time.monotonic() - begun_s)
            if time.monotonic() - told_s > 60 or sent >= count:
                told_s = time.monotonic()
                print(f"{sent:,} of {count:,} frames, {failed} times no answer", flush=True)
        failed += not all(is_healthy(port) for port in ports)
        descriptors = wait_for_descriptors(server, before[1])
        growth_mb = round(server.memory_mb() - before[0], 1)
    finally:
        server.kill()
    return {
        "frames": sent,
        "unanswered": failed,
        "slowest_answer_s": round(slowest_s, 2),
        "growth_mb": growth_mb,
        "descriptors_left": descriptors,
    }


def is_healthy(port: int) -> bool:
    """Ask what each server can answer: any code but none of theirs is refused with an answer."""
    try:
        connection = wire.Connection(port, timeout_s=10)
        try:
            return connection.call(105, {"topic": "TBW102"}).code in {0, 3, 17}
        finally:
            connection.close()
    except OSError:
        return False


def wait_for_descriptors(server: Server, before: int) -> int:
    """Return how many descriptors more there are once the flood's connections have ended."""
    deadline_s = time.monotonic() + 30
    while (left := server.descriptor_count() - before) > DESCRIPTORS_MAX:
        if time.monotonic() > deadline_s:
            break
        time.sleep(0.1)
    return left


def main() -> int:
    """Run, print the figures as JSON, and return 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m gate.frames", description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gate-frames-") as directory:
        figures = run(options.count, seed=options.seed, data=Path(directory) / "data")
    print(json.dumps(figures))
    within = figures["growth_mb"] <= GROWTH_MB_MAX and (
        figures["descriptors_left"] <= DESCRIPTORS_MAX
    )
    return 0 if within and not figures["unanswered"] else 1


if __name__ == "__main__":
    sys.exit(main())

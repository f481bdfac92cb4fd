"""Ports that are free, and stay free while a server on one of them is away."""

from __future__ import annotations

import random
import socket


def free_port(*neighbours: int) -> int:
    """Return a port of the loopback that is free now, as are its neighbours at these distances.

    It lies below those that systems give to connections: one that asks for the port of a server
    that is not up, or was killed, may else get this port itself, and keeps it.
    """
    dice = random.SystemRandom()
    for _ in range(100):
        port = dice.randrange(20_000, 32_000)
        try:
            for distance in (0, *neighbours):
                with socket.create_server(("127.0.0.1", port + distance)):
                    pass
        except OSError:
            continue
        return port
    raise AssertionError("no free port with free neighbours")


def free_ports(count: int) -> list[int]:
    """Return as many ports, each as of `free_port`."""
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port())
    return list(ports)

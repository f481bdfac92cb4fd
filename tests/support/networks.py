"""Hosts that are network namespaces, and the ways between them, carried by a thread.

Each host has one interface, a TUN device that this process holds, so every packet between two hosts
passes here. A way is one direction between two hosts: it may be cut, slow or lossy while packets
pass. No side is told of it: an interface stays up whatever its ways do, and what is lost is lost
without an answer.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import os
import random
import selectors
import struct
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, permutations

# linux/if_tun.h: TUNSETIFF; IFF_TUN | IFF_NO_PI, which is IP packets without a header before them.
_TUNSETIFF = 0x400454CA
_TUN_FLAGS = 0x1001
_PACKET_BYTES_MAX = 65_535
# Packets under way; further ones are dropped, as a router with full queues does.
_UNDER_WAY_MAX = 4_096
# How soon the thread finds that it shall end.
_LOOK_S = 0.05


@dataclass(slots=True)
class Way:
    """One direction between two hosts.

    Args:
        delay_ms: the mean; jitter is around it, so that packets may overtake each other.
        loss: the share of packets that do not arrive.
    """

    is_cut: bool = False
    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    loss: float = 0.0


class Network:
    """Hosts by name, each with an address of its own, and the ways between all of them."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self.addresses = {host: f"10.231.0.{number}" for number, host in enumerate(hosts, 1)}
        self.ways = {pair: Way() for pair in permutations(hosts, 2)}
        # How many packets did not arrive because of a cut or a loss.
        self.lost_count = 0
        self._spaces = {host: f"sparrow-{os.getpid()}-{host}" for host in hosts}
        self._hosts = {bytes(map(int, at.split("."))): host for host, at in self.addresses.items()}
        self._devices: dict[str, int] = {}
        self._selector = selectors.DefaultSelector()
        # Held while packets are read and written, so that no device is closed meanwhile.
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._carrier = threading.Thread(target=self._carry)

    def build(self) -> None:
        """Make the hosts and carry their packets.

        Raises: OSError or subprocess.CalledProcessError without the right to make namespaces.
        """
        for host in self.addresses:
            self.add(host)
        self._carrier.start()

    def add(self, host: str) -> None:
        """Make a host, with nothing running on it."""
        space = self._spaces[host]
        _ip("netns", "add", space)
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        with self._lock:
            self._devices[host] = device
        asked = struct.pack("16sH22x", b"sparrow%d", _TUN_FLAGS)
        name = fcntl.ioctl(device, _TUNSETIFF, asked)[:16].rstrip(b"\0").decode()
        _ip("link", "set", name, "netns", space, "name", "eth0")
        _ip("-n", space, "addr", "add", f"{self.addresses[host]}/24", "dev", "eth0")
        for link in ("lo", "eth0"):
            _ip("-n", space, "link", "set", link, "up")
        self._selector.register(device, selectors.EVENT_READ, host)

    def drop(self, host: str) -> None:
        """Take a host away at once, with all its connections; its processes must have ended."""
        with self._lock:
            device = self._devices.pop(host, None)
            if device is not None:
                with contextlib.suppress(KeyError):
                    self._selector.unregister(device)
                os.close(device)
        subprocess.run(["ip", "netns", "del", self._spaces[host]], capture_output=True, check=False)

    def cut(self, sender: str, receiver: str) -> None:
        self.ways[sender, receiver].is_cut = True

    def unplug(self, host: str, *others: str) -> None:
        """Cut both ways between a host and others, or all others."""
        for pair, way in self.ways.items():
            if host in pair and (not others or set(pair) & set(others)):
                way.is_cut = True

    def heal(self) -> None:
        """Let everything pass at once on every way."""
        for pair in self.ways:
            self.ways[pair] = Way()

    def inside(self, host: str) -> tuple[str, ...]:
        """Return what to write before a command to run it on a host."""
        return ("ip", "netns", "exec", self._spaces[host])

    def remove(self) -> None:
        self._is_over.set()
        if self._carrier.is_alive():
            self._carrier.join()
        for host in self.addresses:
            self.drop(host)
        self._selector.close()

    def _carry(self) -> None:
        """Carry packets until the network is removed."""
        choice, numbers = random.Random(0), count()
        under_way: list[tuple[float, int, str, bytes]] = []
        while not self._is_over.is_set():
            wait_s = under_way[0][0] - time.monotonic() if under_way else _LOOK_S
            ready = self._selector.select(min(max(wait_s, 0.0), _LOOK_S))
            with self._lock:
                for key, _ in ready:
                    sender, packet = key.data, self._read(key.data)
                    receiver = self._hosts.get(packet[16:20])
                    way = self.ways.get((sender, receiver or ""))
                    if receiver is None or way is None or len(under_way) >= _UNDER_WAY_MAX:
                        continue
                    if way.is_cut or choice.random() < way.loss:
                        self.lost_count += 1
                        continue
                    late_ms = way.delay_ms + choice.uniform(-way.jitter_ms, way.jitter_ms)
                    due_s = time.monotonic() + late_ms / 1000
                    heapq.heappush(under_way, (due_s, next(numbers), receiver, packet))
                while under_way and under_way[0][0] <= time.monotonic():
                    *_, receiver, packet = heapq.heappop(under_way)
                    if receiver in self._devices:
                        with contextlib.suppress(OSError):
                            os.write(self._devices[receiver], packet)

    def _read(self, host: str) -> bytes:
        """Return a packet of a host, "" without one."""
        try:
            return os.read(self._devices[host], _PACKET_BYTES_MAX)
        except (KeyError, OSError):
            return b""


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], capture_output=True, text=True, check=True)

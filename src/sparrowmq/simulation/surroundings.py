"""What every host of a simulated cluster has around it. Tests: test_runs.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from sparrowmq.client.name_servers import NameServers
from sparrowmq.simulation.checkers import Checkers
from sparrowmq.simulation.dice import Dice
from sparrowmq.simulation.event_log import Trace
from sparrowmq.simulation.network import Network
from sparrowmq.simulation.process import Process
from sparrowmq.simulation.virtual_time import START_MS, START_TIMESTAMP_MS, Timeline

WALL_MS = START_TIMESTAMP_MS - START_MS


class _CountedNameServers(NameServers):
    """A client's list of name servers that counts how often the client goes to another one."""

    __slots__ = ("_counts",)

    def __init__(self, addresses: Sequence[str], *, start: int, counts: Counter[str]) -> None:
        super().__init__(addresses, start=start)
        self._counts = counts

    def mark_answered(self, address: str) -> None:
        self._counts["name servers changed"] += address != self.in_order()[0]
        super().mark_answered(address)


class Surroundings(NamedTuple):
    """The time, the network and the checks of one world, and the addresses of its name servers.

    Args:
        dice: chooses the name server at which each client begins, as faces do.
    """

    timeline: Timeline
    network: Network
    checkers: Checkers
    trace: Trace
    name_servers: Sequence[str]
    dice: Dice

    def make_name_servers(self) -> NameServers:
        """Return the list of name servers of a client."""
        start = self.dice.randrange(0, len(self.name_servers))
        counts = self.checkers.notices
        return _CountedNameServers(self.name_servers, start=start, counts=counts)

    def start_process(self, name: str, host: str, *, wall_ms: int = WALL_MS) -> Process:
        """Return a running process; `wall_ms` is its host's wall clock at the timeline's zero."""
        return Process(name, host, self.timeline, timestamp_ms=wall_ms)

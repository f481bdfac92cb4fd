"""What every host of a simulated cluster has around it. Tests: test_runs.py."""

from __future__ import annotations

from typing import NamedTuple

from sparrowmq.simulation.checkers import Checkers
from sparrowmq.simulation.event_log import Trace
from sparrowmq.simulation.network import Network
from sparrowmq.simulation.process import Process
from sparrowmq.simulation.virtual_time import START_MS, START_TIMESTAMP_MS, Timeline

WALL_MS = START_TIMESTAMP_MS - START_MS


class Surroundings(NamedTuple):
    """The time, the network and the checks of one world, and its name server's address."""

    timeline: Timeline
    network: Network
    checkers: Checkers
    trace: Trace
    name_server: str

    def start_process(self, name: str, host: str, *, wall_ms: int = WALL_MS) -> Process:
        """Return a running process; `wall_ms` is its host's wall clock at the timeline's zero."""
        return Process(name, host, self.timeline, timestamp_ms=wall_ms)

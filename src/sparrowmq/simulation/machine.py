"""The server of a name server's or a broker's machine on the simulated network.

The server is the real one (`serving/remoting_server.py`, `serving/link.py`). Its loop and clocks,
which are the process's, and the transports of its connections are simulated. Tests: test_runs.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.serving.connections import Connection, Output, Reply, Written
from sparrowmq.serving.remoting_server import Machine, RemotingServer
from sparrowmq.serving.world import Result
from sparrowmq.simulation.network import End, Network
from sparrowmq.simulation.process import Process
from sparrowmq.simulation.virtual_time import Timer

_FIRST_PORT = 40_000


class SimulatedServer(RemotingServer):
    """One machine on one address.

    Args:
        network: the world's network.
        machine: handles every command.
        on_failure: called with a violation.
        on_turn: called at the end of every turn, before the answers are written.
        awaits_turn: returns whether the handled commands need `on_turn`.
        on_request: called with every command before the machine handles it.
        on_reply: called with every reply when it is written.
        on_closed: called with every connection that has closed.
    """

    def __init__(
        self,
        process: Process,
        network: Network,
        machine: Machine,
        *,
        on_failure: Callable[[str, Exception], None],
        on_turn: Callable[[], None] | None = None,
        awaits_turn: Callable[[], bool] | None = None,
        on_request: Callable[[Connection, RemotingCommand], None] | None = None,
        on_reply: Callable[[Connection, RemotingCommand], None] | None = None,
        on_closed: Callable[[Connection], None] = lambda _: None,
    ) -> None:
        super().__init__(
            machine if on_request is None else _Watched(machine, on_request, on_closed),
            world=_ProcessWorld(process),
            on_turn=on_turn,
            awaits_turn=awaits_turn,
            on_failure=on_failure,
        )
        self._process = process
        self._network = network
        self._on_reply = on_reply
        self._port = _FIRST_PORT

    def listen(self, address: str) -> None:
        """Begin to serve."""
        self._network.listen(address, self._process, self._accept)
        self.begin_sweeps()

    def perform(self, outputs: Sequence[Output], *, peer: Connection | None = None) -> None:
        """Carry out the machine's outputs."""
        if self._on_reply is not None:
            for output in outputs:
                if isinstance(output, Reply | Written):
                    self._on_reply(output.connection, output.command)
        super().perform(outputs, peer=peer)

    def _accept(self, end: End) -> None:
        self._port += 1
        link = self.make_link()
        link.connection_made(_EndTransport(end, link, port=self._port))


@dataclass(slots=True, eq=False)
class _Watched:
    """A machine with an observer that gets every command first, and every close."""

    machine: Machine
    on_request: Callable[[Connection, RemotingCommand], None]
    on_closed: Callable[[Connection], None]

    def connection_closed(
        self, connection: Connection, *, now_ms: int, timestamp_ms: int
    ) -> Sequence[Output]:
        self.on_closed(connection)
        return self.machine.connection_closed(connection, now_ms=now_ms, timestamp_ms=timestamp_ms)

    def handle(
        self, command: RemotingCommand, connection: Connection, *, now_ms: int, timestamp_ms: int
    ) -> Sequence[Output]:
        self.on_request(connection, command)
        return self.machine.handle(command, connection, now_ms=now_ms, timestamp_ms=timestamp_ms)


class _ProcessWorld:
    """A process's clocks, and virtual time for a loop."""

    def __init__(self, process: Process) -> None:
        self.monotonic_ms = process.monotonic_ms
        self.timestamp_ms = process.timestamp_ms
        self.call_soon: Callable[[Callable[[], None]], Timer] = partial(process.call_in, 0)
        self.call_later = process.call_in

    def call_aside(self, function: Callable[[], Result], done: Callable[[Result], None]) -> Timer:
        """Call a function at once, and then `done` at the loop's next step."""
        return self.call_soon(partial(done, function()))


class _Descriptor:
    """A socket that takes none of the process's descriptors."""

    def fileno(self) -> int:
        return 0


class _EndTransport(asyncio.Transport):
    """The transport of a connection's end. The simulated kernel accepts every write."""

    def __init__(self, end: End, protocol: asyncio.Protocol, *, port: int) -> None:
        super().__init__({"peername": (end.peer.process.host, port), "socket": _Descriptor()})
        self._end = end
        self._protocol = protocol
        self._is_reading = True
        self._unread: list[bytes] = []
        end.on_data = self._received
        end.on_closed = self._lost

    def write(self, data: Any) -> None:
        self._end.send(bytes(data))

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return self._end.is_closed

    def close(self) -> None:
        if not self._end.is_closed:
            self._end.close()
            self._end.process.call_in(0, partial(self._protocol.connection_lost, None))

    def abort(self) -> None:
        self.close()

    def is_reading(self) -> bool:
        return self._is_reading

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        self._end.process.call_in(0, self._read_unread)

    def _received(self, data: bytes) -> None:
        self._unread.append(data)
        self._read_unread()

    def _read_unread(self) -> None:
        while self._unread and self._is_reading:
            self._protocol.data_received(self._unread.pop(0))

    def _lost(self, _: str) -> None:
        self._unread.clear()
        self._protocol.connection_lost(None)

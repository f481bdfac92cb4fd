"""Serves a name server's or a broker's machine on the simulated network.

What `serving/remoting_server.py` does on sockets: frames in, outputs carried out, and at the end of
each turn what belongs to all its requests together. Silent connections are closed after the same
time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from sparrowmq.errors import ProtocolError
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.framing import FrameDecoder, decode_request, encode_frame
from sparrowmq.protocol.record import encode_host
from sparrowmq.serving.connections import (
    Close,
    Connection,
    Fact,
    Output,
    PauseReading,
    Produce,
    Push,
    Reply,
    Written,
)
from sparrowmq.serving.limits import ServerLimits
from sparrowmq.serving.remoting_server import Machine
from sparrowmq.simulation.network import End, Network
from sparrowmq.simulation.process import Process

IDLE_MS = ServerLimits().idle_ms
IDLE_CHECK_MS = 5_000
_FIRST_PORT = 40_000


class _Link:
    """One accepted connection."""

    def __init__(self, end: End, connection: Connection, now_ms: int) -> None:
        self.end = end
        self.connection = connection
        self.decoder = FrameDecoder(decode=decode_request)
        self.unwritten: list[bytes] = []
        self.unread: list[bytes] = []
        self.pause_count = 0
        self.active_ms = now_ms


class SimulatedServer:
    """One machine on one address.

    Args:
        process: the server's.
        network: the world's.
        machine: gets every command.
        on_turn: called at the end of every turn, before answers are written.
        on_request: told of every command before the machine gets it.
        on_reply: told of every reply when it is written.
        on_failure: told of what must not happen.
    """

    def __init__(
        self,
        process: Process,
        network: Network,
        machine: Machine,
        *,
        on_turn: Callable[[], None],
        on_failure: Callable[[str, BaseException], None],
        on_request: Callable[[Connection, RemotingCommand], None] | None = None,
        on_reply: Callable[[Connection, RemotingCommand], None] | None = None,
    ) -> None:
        self._process = process
        self._network = network
        self._machine = machine
        self._on_turn = on_turn
        self._on_failure = on_failure
        self._on_request = on_request
        self._on_reply = on_reply
        self._links: dict[Connection, _Link] = {}
        self._unwritten: dict[_Link, None] = {}
        self._accepted = 0

    def listen(self, address: str) -> None:
        """Begin to serve."""
        self._network.listen(address, self._process, self._accept)
        self._process.call_in(IDLE_CHECK_MS, self._check_idle)

    def perform(self, outputs: Sequence[Output]) -> None:
        """Carry out what the machine said; `end_turn` writes."""
        for output in outputs:
            if isinstance(output, Fact):
                continue
            link = self._links.get(output.connection)
            if link is None:
                continue
            if isinstance(output, Reply | Written | Push):
                if not isinstance(output, Push) and self._on_reply is not None:
                    self._on_reply(output.connection, output.command)
                if isinstance(output, Written):
                    link.unwritten.append(output.head + (output.body or b""))
                else:
                    link.unwritten.append(encode_frame(output.command))
                self._unwritten[link] = None
            elif isinstance(output, Close):
                self._write_out()
                link.end.close()
                self._lost(link)
            elif isinstance(output, Produce):
                self.perform(output.make())
            elif isinstance(output, PauseReading):
                link.pause_count += 1
            else:
                self._resume(link)

    def end_turn(self) -> None:
        """Do what belongs to the whole turn and write the answers."""
        self._on_turn()
        self._write_out()

    def _write_out(self) -> None:
        now_ms = self._process.monotonic_ms()
        while self._unwritten:
            link, _ = self._unwritten.popitem()
            data, link.unwritten = b"".join(link.unwritten), []
            link.active_ms = now_ms
            link.end.send(data)

    def _accept(self, end: End) -> None:
        self._accepted += 1
        address = f"{end.peer.process.host}:{_FIRST_PORT + self._accepted}"
        connection = Connection(self._accepted, address, encode_host(address))
        link = _Link(end, connection, self._process.monotonic_ms())
        self._links[connection] = link
        end.on_data = partial(self._received, link)
        end.on_closed = partial(self._closed, link)

    def _received(self, link: _Link, data: bytes) -> None:
        link.active_ms = self._process.monotonic_ms()
        if link.pause_count:
            link.unread.append(data)
            return
        try:
            commands = link.decoder.receive_data(data)
        except ProtocolError as error:
            self._on_failure(f"bytes of {link.connection.address}", error)
            return
        for command in commands:
            self._handle(link, command)
        self.end_turn()

    def _handle(self, link: _Link, command: RemotingCommand) -> None:
        process = self._process
        if self._on_request is not None:
            self._on_request(link.connection, command)
        try:
            outputs = self._machine.handle(
                command,
                link.connection,
                now_ms=process.monotonic_ms(),
                timestamp_ms=process.timestamp_ms(),
            )
        except Exception as error:
            self._on_failure(f"request {command.code} of {link.connection.address}", error)
            return
        self.perform(outputs)

    def _resume(self, link: _Link) -> None:
        link.pause_count -= 1
        if link.pause_count:
            return
        unread, link.unread = link.unread, []
        for data in unread:
            self._received(link, data)

    def _closed(self, link: _Link, _: str) -> None:
        self._lost(link)
        self.end_turn()

    def _lost(self, link: _Link) -> None:
        self._unwritten.pop(link, None)
        if self._links.pop(link.connection, None) is None:
            return
        process = self._process
        self.perform(
            self._machine.connection_closed(
                link.connection, now_ms=process.monotonic_ms(), timestamp_ms=process.timestamp_ms()
            )
        )

    def _check_idle(self) -> None:
        now_ms = self._process.monotonic_ms()
        for link in list(self._links.values()):
            if now_ms - link.active_ms > IDLE_MS:
                link.end.close()
                self._lost(link)
        self.end_turn()
        self._process.call_in(IDLE_CHECK_MS, self._check_idle)

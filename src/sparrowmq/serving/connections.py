"""Connections and outputs of a serving machine: values without sockets. Pure.

A name server or broker is a machine: it takes a command that came on a `Connection` and returns
outputs. A server (`serving/remoting_server.py`, or the simulation's) carries out the outputs.
Tests: test_refusals.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import msgspec

from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.framing import FrameDecoder


@dataclass(frozen=True, slots=True, eq=False)
class Connection:
    """One accepted connection; equal only to itself, and cheap as a key.

    Args:
        number: the connection's number at its server; logs distinguish equal addresses by it.
        address: the peer's address as `ip:port`.
        host: the peer's address as in records: 4 or 16 address bytes and 4 port bytes.
    """

    number: int
    address: str
    host: bytes


class Reply(NamedTuple):
    """Write the answer to a request."""

    connection: Connection
    command: RemotingCommand


class Written(msgspec.Struct, frozen=True):
    """Write the answer to a request, already encoded as a frame; `head` ends before the body.

    A struct costs a third of a named tuple (benchmarks/broker.py).
    """

    connection: Connection
    head: bytes
    body: bytes | None = None

    @property
    def command(self) -> RemotingCommand:
        """The decoded frame."""
        (command,) = FrameDecoder().receive_data(self.head + (self.body or b""))
        return command


class Push(NamedTuple):
    """Write a one-way request of this server to a client."""

    connection: Connection
    command: RemotingCommand


class Produce(NamedTuple):
    """Make outputs once the peer has taken enough earlier ones; never, if the connection closes.

    Every large answer that does not directly follow its request is made this way.
    """

    connection: Connection
    make: Callable[[], Sequence[Output]]


class Aside(NamedTuple):
    """Serve a request in a thread, which may wait for a disk; carry out the outputs on the loop.

    No further request of the connection is served meanwhile.
    """

    connection: Connection
    command: RemotingCommand
    serve: Callable[[], Sequence[Output]]


class Close(NamedTuple):
    """Close a connection after writing its earlier outputs."""

    connection: Connection
    reason: str


class PauseReading(NamedTuple):
    """Serve no further request of a connection, and read none, until `ResumeReading`.

    Each pause needs its own resume; reading goes on once all pauses are resumed.
    """

    connection: Connection


class ResumeReading(NamedTuple):
    """Undo one `PauseReading`."""

    connection: Connection


class Fact(NamedTuple):
    """A fact for the operator, which the server logs.

    Args:
        warning: whether the operator may have to act.
        error: whether the operator must act.
    """

    text: str
    warning: bool = False
    error: bool = False

    @property
    def level(self) -> int:
        """The level of Python's `logging`."""
        return 40 if self.error else 30 if self.warning else 20


Output: TypeAlias = (
    Reply | Written | Push | Produce | Aside | Close | PauseReading | ResumeReading | Fact
)

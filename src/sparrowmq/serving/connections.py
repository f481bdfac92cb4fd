"""What a serving machine says of its connections: values, no sockets. Pure.

A name server or broker is a machine: it takes a command that came on a `Connection` and returns
outputs. A server (`serving/remoting_server.py`, or a simulation) carries them out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.framing import FrameDecoder


@dataclass(frozen=True, slots=True, eq=False)
class Connection:
    """One accepted connection; equal only to itself, and cheap as a key.

    Args:
        number: counts a server's connections, so that logs can distinguish two of one address.
        address: the peer as `ip:port`.
        host: the peer as records carry it: 4 or 16 address bytes and 4 port bytes.
    """

    number: int
    address: str
    host: bytes


class Reply(NamedTuple):
    """Write the answer to a request."""

    connection: Connection
    command: RemotingCommand


class Written(NamedTuple):
    """Write the answer to a request, which is a frame already: `head` up to its body."""

    connection: Connection
    head: bytes
    body: bytes | None = None

    @property
    def command(self) -> RemotingCommand:
        """What the frame says."""
        (command,) = FrameDecoder().receive_data(self.head + (self.body or b""))
        return command


class Push(NamedTuple):
    """Write a one-way request of our own to a client."""

    connection: Connection
    command: RemotingCommand


class Produce(NamedTuple):
    """Make outputs once the connection has taken enough of those before; never, if it closes first.

    Whatever is large and not made by a request that has just come is made this way.
    """

    connection: Connection
    make: Callable[[], Sequence[Output]]


class Close(NamedTuple):
    """Close a connection, after writing what was already given to it."""

    connection: Connection
    reason: str


class PauseReading(NamedTuple):
    """Serve no further request of a connection, and read none, until `ResumeReading`.

    Who pauses a connection resumes it; it is read again once all have.
    """

    connection: Connection


class ResumeReading(NamedTuple):
    """Take back one `PauseReading`."""

    connection: Connection


class Fact(NamedTuple):
    """Something an operator may want to know.

    Args:
        warning: whether they may have to act.
        error: whether they must.
    """

    text: str
    warning: bool = False
    error: bool = False

    @property
    def level(self) -> int:
        """The level of Python's `logging`."""
        return 40 if self.error else 30 if self.warning else 20


Output: TypeAlias = Reply | Written | Push | Produce | Close | PauseReading | ResumeReading | Fact

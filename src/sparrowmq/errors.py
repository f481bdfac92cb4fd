"""Every error SparrowMQ raises, as one tree.

```
SparrowError                      retriable = outcome_unknown = refresh_route = False
├── ConfigError                   a setting is wrong
├── UsageError                    called in the wrong state or with the wrong argument
├── ProtocolError
│   ├── LocalProtocolError        we were asked to write what the protocol cannot carry
│   └── RemoteProtocolError       the peer wrote what the protocol does not allow
│       └── UnreadableMessage     a message stands in its queue, but its body cannot be read
├── TransportError                (retriable)
│   ├── ConnectFailed             nothing was sent
│   ├── ConnectionLost            (outcome_unknown)
│   ├── InvokeTimeout             (outcome_unknown)
│   └── TooManyInFlight           nothing was sent
├── RouteError                    (refresh_route)
│   ├── TopicRouteNotFound        (retriable)
│   └── NoWritableQueue
├── BrokerError(code, remark)     an answer whose code is not SUCCESS
├── SendFailed                    every attempt failed (outcome_unknown if one of them is)
├── BufferFull                    too much waits to be sent (retriable)
└── StoreError
    └── CorruptRecord(position)
```

Retry loops read the three class flags and never a list of classes:
`retriable` (the same call may succeed later), `outcome_unknown` (the peer may have acted),
`refresh_route` (ask the name server before trying again).
"""

from __future__ import annotations

from typing import Any


class SparrowError(Exception):
    """Any error that SparrowMQ raises on purpose."""

    retriable: bool = False
    outcome_unknown: bool = False
    refresh_route: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        # What an error is made of is not what its constructor takes, which pickles and copies
        # would call: Spark and multiprocessing send errors from process to process.
        return _restore, (type(self), self.args, self.__dict__)


def _restore(
    kind: type[SparrowError], arguments: tuple[Any, ...], state: dict[str, Any]
) -> SparrowError:
    error = kind.__new__(kind, *arguments)
    error.__dict__.update(state)
    return error


class ConfigError(SparrowError, ValueError):
    """A setting is wrong; the message names it, its value and what is allowed."""


class UsageError(SparrowError):
    """A method was called in the wrong state or with the wrong argument."""


class BufferFull(SparrowError):
    """Too many bytes of messages wait to be sent; the message was not taken."""

    retriable = True


class ProtocolError(SparrowError):
    """Bytes and the RocketMQ remoting protocol do not agree."""


class LocalProtocolError(ProtocolError):
    """We were asked to write something that the protocol cannot carry."""


class RemoteProtocolError(ProtocolError):
    """The peer sent bytes that the protocol does not allow.

    Args:
        message: what is wrong.
        position: byte position of the offending bytes within the input, or None.
    """

    def __init__(self, message: str, *, position: int | None = None) -> None:
        super().__init__(message if position is None else f"{message} at byte {position}")
        self.position = position


class UnreadableMessage(RemoteProtocolError):
    """A message cannot be read; the text names the message, the reason and what to try."""


class TransportError(SparrowError):
    """A request did not get its answer; names the peer's address."""

    retriable = True

    def __init__(self, message: str, *, address: str = "") -> None:
        super().__init__(message)
        self.address = address


class ConnectFailed(TransportError):
    """No connection could be made; nothing was sent."""


class ConnectionLost(TransportError):
    """The connection closed before the answer came; the peer may have acted."""

    outcome_unknown = True


class InvokeTimeout(TransportError):
    """No answer came in time; the peer may have acted."""

    outcome_unknown = True


class TooManyInFlight(TransportError):
    """Too many requests wait for an answer on this connection; nothing was sent."""


class RouteError(SparrowError):
    """No usable route to a topic."""

    refresh_route = True


class TopicRouteNotFound(RouteError):
    """The name server knows no broker that serves the topic."""

    retriable = True


class NoWritableQueue(RouteError):
    """The topic has a route, but no queue that takes writes."""


class BrokerError(SparrowError):
    """A broker or name server answered with a code other than SUCCESS.

    Args:
        code: the response code as it came (`protocol.codes.ResponseCode` where known).
        remark: the peer's own words, "" when it gave none.
        address: the peer.
        subject: what was asked for, such as a message to a topic, if the caller cannot know.
        hint: what to try.
    """

    def __init__(
        self, code: int, remark: str, *, address: str = "", subject: str = "", hint: str = ""
    ) -> None:
        what = f"{subject}: " if subject else ""
        where = f" from {address}" if address else ""
        advice = f"; {hint}" if hint else ""
        super().__init__(f"{what}answer code {code}{where}: {remark or 'no remark'}{advice}")
        self.code = code
        self.remark = remark
        self.address = address

    @property
    def is_denial(self) -> bool:
        """Whether access control refuses who asks, which no further attempt changes.

        Apache's brokers of 4.x answer SYSTEM_ERROR then, and name the exception.
        """
        return "AclException" in self.remark


class SendFailed(SparrowError):
    """Every attempt to send a message failed; the last error is the cause.

    Args:
        message: what happened, with the brokers tried.
        brokers_tried: broker names in the order of the attempts.
        outcome_unknown: whether a broker may have stored the message all the same.
    """

    def __init__(
        self,
        message: str,
        *,
        brokers_tried: tuple[str, ...] = (),
        outcome_unknown: bool = False,
    ) -> None:
        super().__init__(message)
        self.brokers_tried = brokers_tried
        self.outcome_unknown = outcome_unknown


class StoreError(SparrowError):
    """The message store cannot do what was asked."""


class CorruptRecord(StoreError):
    """A record in the commit log is damaged and valid records follow it."""

    def __init__(self, message: str, *, position: int) -> None:
        super().__init__(message)
        self.position = position

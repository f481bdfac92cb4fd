"""All errors of SparrowMQ, as one tree.

```
SparrowError                      retriable = outcome_unknown = refresh_route = False
├── ConfigError                   a setting is wrong
├── UsageError                    called in the wrong state or with the wrong argument
├── ProtocolError
│   ├── LocalProtocolError        the protocol cannot carry a value of ours
│   └── RemoteProtocolError       the protocol does not allow the bytes of the peer
│       └── UnreadableMessage     a message is in its queue, but its body cannot be read
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
├── BufferFull                    too many bytes wait to be sent (retriable)
└── StoreError
    └── CorruptRecord(position)
```

Retry loops read the three class flags and never a list of classes: `retriable` (the same call may
succeed later), `outcome_unknown` (the peer may have acted), `refresh_route` (ask the name server
before another attempt).

Tests: client/test_errors.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

# The causes of an error whose tracebacks are cut.
CAUSES_MAX = 8


class SparrowError(Exception):
    """Any error that SparrowMQ raises on purpose."""

    retriable: bool = False
    outcome_unknown: bool = False
    refresh_route: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        # By default, pickle and copy would call the constructor with `args`, which are not its
        # arguments. Spark and multiprocessing send errors from process to process.
        return _restore, (type(self), self.args, self.__dict__)


def _restore(
    kind: type[SparrowError], arguments: tuple[Any, ...], state: dict[str, Any]
) -> SparrowError:
    error = kind.__new__(kind, *arguments)
    error.__dict__.update(state)
    return error


class ConfigError(SparrowError, ValueError):
    """A setting is wrong; the message names the setting, its value and the allowed values."""


class UsageError(SparrowError):
    """A method was called in the wrong state or with the wrong argument."""


class BufferFull(SparrowError):
    """Too many bytes of messages wait to be sent; this message was not accepted."""

    retriable = True


class ProtocolError(SparrowError):
    """Bytes contradict the RocketMQ remoting protocol."""


class LocalProtocolError(ProtocolError):
    """The protocol cannot carry a value that SparrowMQ was given to write."""


class RemoteProtocolError(ProtocolError):
    """The peer sent bytes that the protocol does not allow.

    Args:
        message: the fault.
        position: the byte position of the offending bytes within the input, or None.
    """

    def __init__(self, message: str, *, position: int | None = None) -> None:
        super().__init__(message if position is None else f"{message} at byte {position}")
        self.position = position


class UnreadableMessage(RemoteProtocolError):
    """A message cannot be read; the text names the message, the reason and the cure."""


class TransportError(SparrowError):
    """A request got no answer; `address` is the peer's."""

    retriable = True

    def __init__(self, message: str, *, address: str = "") -> None:
        super().__init__(message)
        self.address = address


class ConnectFailed(TransportError):
    """The connection failed; nothing was sent."""


class ConnectionLost(TransportError):
    """The connection closed before the answer came; the peer may have acted."""

    outcome_unknown = True


class InvokeTimeout(TransportError):
    """No answer came in time; the peer may have acted."""

    outcome_unknown = True


class TooManyInFlight(TransportError):
    """Too many requests wait for answers on this connection; nothing was sent."""


class RouteError(SparrowError):
    """A topic has no usable route."""

    refresh_route = True


class TopicRouteNotFound(RouteError):
    """The name server knows no broker that serves the topic."""

    retriable = True


class NoWritableQueue(RouteError):
    """The topic has a route, but no writable queue."""


class BrokerError(SparrowError):
    """A broker or name server answered with a code other than SUCCESS.

    Args:
        code: the response code of the answer (a `protocol.codes.ResponseCode` if known).
        remark: the peer's own words, "" for none.
        address: the peer's address.
        subject: the object of the request, such as a message to a topic, if the caller cannot know.
        hint: the suggested cure.
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
        """Whether access control denied the request; further attempts are denied as well.

        Apache's brokers of 4.x then answer SYSTEM_ERROR, and the remark names the exception.
        """
        return "AclException" in self.remark


class SendFailed(SparrowError):
    """Every attempt to send a message failed; the last error is the cause.

    Args:
        message: the failure, with the brokers tried.
        brokers_tried: broker names in the order of the attempts.
        outcome_unknown: whether a broker may have stored the message nevertheless, or has stored
            some of several.
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
    """The message store failed."""


class CorruptRecord(StoreError):
    """A damaged record of the commit log stands before valid records."""

    def __init__(self, message: str, *, position: int) -> None:
        super().__init__(message)
        self.position = position


def drop_own_frames(error: BaseException) -> None:
    """Cut the tracebacks of one of our errors, and of its causes, to what users can act on.

    Our errors say what happened, and where. The frames of this package up to the first of other
    code are dropped; the frames of the callers are added as the error goes on.
    """
    each: BaseException | None = error
    for _ in range(CAUSES_MAX):
        if each is None:
            return
        trace = each.__traceback__
        while trace is not None and _is_own(trace.tb_frame.f_globals.get("__name__", "")):
            trace = trace.tb_next
        each.__traceback__ = trace
        each = each.__cause__ or each.__context__


def _is_own(module: str) -> bool:
    return module.partition(".")[0] == "sparrowmq"


def install_command(extras: str) -> str:
    """Return how to install extras. From a checkout: no package index has SparrowMQ yet."""
    return f"pip install '.[{extras}]' in a checkout"


def did_you_mean(name: str, known: Iterable[str], then: str = "", *, cutoff: float = 0.5) -> str:
    """Return the end of an error about a mistyped name: the nearest name, if one is near.

    Args:
        known: the names that exist; the case of letters does not matter.
        then: what else the user should read.
        cutoff: how similar the names must be, from 0 to 1.
    """
    by_folded = {each.casefold(): each for each in sorted(known)}
    found = get_close_matches(name.casefold(), by_folded, n=1, cutoff=cutoff)
    if not found:
        return then and f"; {then}"
    return f"; did you mean {by_folded[found[0]]}?" + (then and f" {then[0].upper()}{then[1:]}")

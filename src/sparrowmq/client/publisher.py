"""The state of a producer between two sends: routes, the next queue, ids.

The operations of `operations/send.py` work on it; one driver owns it.
Tests: test_outgoing.py, test_notices.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple, Protocol, TypeAlias

from sparrowmq.calling.effects import Task
from sparrowmq.client.batcher import Batcher
from sparrowmq.client.config import ProducerConfig
from sparrowmq.client.name_servers import NameServers
from sparrowmq.client.queue_selector import QueueSelector
from sparrowmq.client.route_cache import RouteCache
from sparrowmq.model import Message, SendResult
from sparrowmq.protocol.message_id import UniqIdGenerator
from sparrowmq.protocol.send_request import SendTemplate

# Called once at the end of a send, with the result, or with the error of a failed send.
Ended: TypeAlias = Callable[[SendResult | None, BaseException | None], None]


class DelayRounded(NamedTuple):
    """Messages of a topic are delayed by a level longer than the time asked for."""

    topic: str
    delay: timedelta
    level: timedelta
    # The broker that has only levels.
    address: str


class SendsUnread(NamedTuple):
    """Messages of `send_nowait` were not stored, and nobody has asked their futures."""

    message_count: int
    # The last one's error.
    error: BaseException


class SendsDropped(NamedTuple):
    """The producer ended, or nobody holds it any more, while messages of `send_nowait` waited."""

    message_count: int


class ObserverFailed(NamedTuple):
    """An observer raised at `what`, which goes on as if there were none."""

    what: str
    error: Exception


# What a producer reports to its log.
ProducerNotice: TypeAlias = DelayRounded | SendsUnread | SendsDropped | ObserverFailed


class SendObserver(Protocol):
    """Observes each send: its begin, in the caller's thread and context, and its end."""

    def begin(
        self, messages: Sequence[Message], *, is_half: bool
    ) -> tuple[Sequence[Message], Ended]:
        """Return the messages to send instead of these, and the function to call at the end.

        Args:
            messages: of one topic, at least one.
            is_half: whether the message waits for the end of its transaction.
        """
        ...


@dataclass(slots=True, kw_only=True, weakref_slot=True)
class Publisher:
    """A producer's state.

    Args:
        config: the producer's configuration.
        name_servers: the source of routes.
        ids: makes the ids of messages.
        selector: chooses the next queue.
        routes: the known routes.
        lookups: the route look-ups under way, by topic.
        heartbeat_due_ms: the time of the next heartbeat; None before the first.
        topics: by valid name of a topic, its name on the wire.
        templates: the shared part of sends, by request code and topic; two for each of `topics`.
        observers: observe each send.
        batcher: the messages of `send_nowait`; None before the first.
        versions: the version in each broker's answer to a heartbeat, by address; 0 before the
            first.
        known_until_ms: by the address of a broker that was sent a heartbeat over its connection,
            when to send another for a request: never, or soon if it could not be reached.
        report: called with each notice.
        rounded: topics and levels already reported.
        untraced: the names of brokers whose operators have switched trace off (`traceOn=false`).
    """

    config: ProducerConfig
    name_servers: NameServers
    ids: UniqIdGenerator
    selector: QueueSelector
    routes: RouteCache = field(default_factory=RouteCache)
    lookups: dict[str, Task] = field(default_factory=dict)
    heartbeat_due_ms: int | None = None
    topics: dict[str, str] = field(default_factory=dict)
    templates: dict[tuple[int, str], SendTemplate] = field(default_factory=dict)
    observers: tuple[SendObserver, ...] = ()
    batcher: Batcher | None = None
    versions: Mapping[str, int] = field(default_factory=dict)
    known_until_ms: dict[str, float] = field(default_factory=dict)
    report: Callable[[ProducerNotice], None] | None = None
    rounded: set[tuple[str, int]] = field(default_factory=set)
    untraced: set[str] = field(default_factory=set)

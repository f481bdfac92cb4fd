"""What a producer knows between two sends: routes, whose turn it is, ids.

The operations of `operations/send.py` work on it; one driver owns it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sparrowmq.calling.effects import Task
from sparrowmq.client.config import ProducerConfig
from sparrowmq.client.name_servers import NameServers
from sparrowmq.client.queue_selector import QueueSelector
from sparrowmq.client.route_cache import RouteCache
from sparrowmq.protocol.message_id import UniqIdGenerator

if TYPE_CHECKING:
    from sparrowmq.client.tracer import Tracer


@dataclass(slots=True, kw_only=True)
class Publisher:
    """A producer's state.

    Args:
        config: see there.
        name_servers: where routes come from.
        ids: makes the ids of messages.
        selector: whose turn it is.
        routes: the routes known.
        lookups: the look-up that is under way of a topic's route, by topic.
        heartbeat_due_ms: when brokers must hear of this producer again; None before the first.
        checked_topics: topics whose names were found good.
        tracer: what is told of its messages, if it is.
    """

    config: ProducerConfig
    name_servers: NameServers
    ids: UniqIdGenerator
    selector: QueueSelector
    routes: RouteCache = field(default_factory=RouteCache)
    lookups: dict[str, Task] = field(default_factory=dict)
    heartbeat_due_ms: int | None = None
    checked_topics: set[str] = field(default_factory=set)
    tracer: Tracer | None = None

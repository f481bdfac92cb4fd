"""The addresses of a cluster, which an administrator's operations share. Tests: test_admin.py."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from sparrowmq.client.config import ClientConfig
from sparrowmq.client.name_servers import NameServers
from sparrowmq.client.route_cache import RouteCache
from sparrowmq.model import MessageQueue
from sparrowmq.model.namespace import NO_NAMESPACE, Namespace


@dataclass(slots=True, kw_only=True)
class Directory:
    """The name servers, the routes asked for so far, and how long to wait for one answer."""

    name_servers: NameServers
    routes: RouteCache = field(default_factory=RouteCache)
    timeout_ms: int = 3_000
    # The namespace of the topics and groups that users name.
    namespace: Namespace = NO_NAMESPACE
    client: ClientConfig = field(default_factory=ClientConfig)


class QueueLag(NamedTuple):
    """The offsets and lag of a group in one queue.

    `committed_offset` is None if the group has committed nothing; `lag` then counts every message
    of the queue.
    """

    queue: MessageQueue
    max_offset: int
    committed_offset: int | None
    lag: int

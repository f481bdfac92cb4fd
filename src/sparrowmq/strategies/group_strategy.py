"""What a strategy may see beyond one topic: every topic of the group, and who owns what.

`allocate` sees one topic at a time and no past, as RocketMQ's does. A strategy that also has
`allocate_group` is asked once for all topics instead. Every member of its group must run
SparrowMQ, since Java's members cannot run it (`requires_sparrow`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeGuard

from sparrowmq.model import MessageQueue
from sparrowmq.model.names import RETRY_GROUP_TOPIC_PREFIX
from sparrowmq.model.queue import java_order
from sparrowmq.strategies.strategy import AllocateMessageQueueStrategy

# Queue -> client id of the member that holds it; a queue that nobody holds is not in it.
Owners = Mapping[MessageQueue, str]
NO_OWNERS: Owners = {}


class TopicView(NamedTuple):
    """One topic as a member sees it: its queues, and who subscribes it, both in Java's order."""

    topic: str
    mq_all: Sequence[MessageQueue]
    cid_all: Sequence[str]


class GroupStrategy(AllocateMessageQueueStrategy, Protocol):
    """Divides the queues of all topics of a group at once."""

    requires_sparrow: bool

    def allocate_group(
        self,
        consumer_group: str,
        current_cid: str,
        topics: Sequence[TopicView],
        owners: Owners = NO_OWNERS,
    ) -> list[MessageQueue]:
        """Return this member's share of the queues of all topics.

        Args:
            consumer_group: the group's name.
            current_cid: the client id of the member that asks.
            topics: every topic with a route, none of them with an empty list.
            owners: who holds which queue now, as every member can see it; empty if unknown.
        """
        ...


def is_group_strategy(strategy: AllocateMessageQueueStrategy) -> TypeGuard[GroupStrategy]:
    """Return whether a strategy wants to see all topics at once."""
    # Every rebalance asks; `isinstance` of a Protocol takes 100 µs.
    return hasattr(strategy, "allocate_group")


def in_order(topics: Iterable[TopicView]) -> list[TopicView]:
    """Return topics in Java's order, retry topics last.

    A group's retry topic is made by its first heartbeat, so members see it appear at different
    times; what comes before it must not depend on it.
    """
    return sorted(
        topics,
        key=lambda view: (view.topic.startswith(RETRY_GROUP_TOPIC_PREFIX), java_order(view.topic)),
    )


def unique(cid_all: Iterable[str]) -> list[str]:
    """Return client ids without repetitions: an id that is listed twice is given one share.

    Differs from RocketMQ: there the share of the second place is consumed by nobody.
    """
    return list(dict.fromkeys(cid_all))

"""Group strategies, which see every topic of a group and the present owners of its queues.

`allocate` sees one topic at a time and no owners, as in RocketMQ. If a strategy also has
`allocate_group`, members call that once for all topics instead. Every member of the group must run
SparrowMQ, because Java's members cannot run such a strategy (`requires_sparrow`).
Tests: test_sparrow_strategies.py.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeGuard

from sparrowmq.model import MessageQueue
from sparrowmq.model.names import RETRY_GROUP_TOPIC_PREFIX
from sparrowmq.model.queue import java_order
from sparrowmq.strategies.strategy import AllocateMessageQueueStrategy, TopicStrategy

# The client id of the member that holds each queue; queues that no member holds are missing.
Owners = Mapping[MessageQueue, str]
NO_OWNERS: Owners = {}


class TopicView(NamedTuple):
    """One topic as a member sees it: its queues and its subscribers, both in Java's order."""

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
            current_cid: this member's client id.
            topics: every topic with a route; no topic has an empty list.
            owners: the present owners, as every member sees them; empty if unknown.
        """
        ...


class WholeGroupStrategy(TopicStrategy):
    """A group strategy, for which a topic alone is a group with one topic and unknown owners."""

    requires_sparrow = True

    def share(
        self, current_cid: str, queues: Sequence[MessageQueue], cids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return this member's share of a group's only topic."""
        return self.allocate_group("", current_cid, [TopicView(queues[0].topic, queues, cids)])

    def allocate_group(
        self,
        consumer_group: str,
        current_cid: str,
        topics: Sequence[TopicView],
        owners: Owners = NO_OWNERS,
    ) -> list[MessageQueue]:
        """Return this member's share of all topics, as `GroupStrategy` describes."""
        now = self.divide_group(topics, owners)
        return [queue for queue, owner in now.items() if owner == current_cid]

    @abstractmethod
    def divide_group(
        self, topics: Sequence[TopicView], owners: Owners = NO_OWNERS
    ) -> dict[MessageQueue, str]:
        """Return the owner of every queue of all topics, as each member computes it."""


def is_group_strategy(strategy: AllocateMessageQueueStrategy) -> TypeGuard[GroupStrategy]:
    """Return whether a strategy divides all topics at once."""
    # Every rebalance calls this function, and `isinstance` with a Protocol takes 100 µs.
    return hasattr(strategy, "allocate_group")


def in_order(topics: Iterable[TopicView]) -> list[TopicView]:
    """Return topics in Java's order, retry topics last.

    A group's first heartbeat creates its retry topic, so members see the topic at different times.
    The division of other topics must not depend on it.
    """
    return sorted(
        topics,
        key=lambda view: (view.topic.startswith(RETRY_GROUP_TOPIC_PREFIX), java_order(view.topic)),
    )


def unique(cid_all: Iterable[str]) -> list[str]:
    """Return client ids without repetitions: an id that is listed twice gets one share.

    Differs from RocketMQ: there nobody consumes the share of the second place.
    """
    return list(dict.fromkeys(cid_all))

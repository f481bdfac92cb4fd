"""AVG_ACROSS_TOPICS: deals the queues of all topics to the members with the fewest.

RocketMQ divides each topic separately: of three topics with one queue each, the first member in
order gets all three queues. Here a member's load counts its queues of all topics.
Tests: test_sparrow_strategies.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparrowmq.model import MessageQueue
from sparrowmq.strategies.group_strategy import NO_OWNERS, Owners, TopicView, in_order, unique
from sparrowmq.strategies.strategy import check_arguments


class AllocateMessageQueueAcrossTopics:
    """Divides all topics together; loads differ by at most one if all subscribe the same topics.

    If members subscribe different topics, topics with few subscribers are dealt first; later topics
    then even out the loads.
    """

    name = "AVG_ACROSS_TOPICS"
    requires_sparrow = True

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def allocate(
        self,
        consumer_group: str,
        current_cid: str | None,
        mq_all: Sequence[MessageQueue] | None,
        cid_all: Sequence[str] | None,
    ) -> list[MessageQueue]:
        """Return this member's share of a group's only topic.

        Raises: ValueError if an argument is empty.
        """
        current, queues, cids = check_arguments(current_cid, mq_all, cid_all)
        view = TopicView(queues[0].topic, queues, cids)
        return self.allocate_group(consumer_group, current, [view])

    def allocate_group(
        self,
        consumer_group: str,
        current_cid: str,
        topics: Sequence[TopicView],
        owners: Owners = NO_OWNERS,
    ) -> list[MessageQueue]:
        """Return this member's share of all topics, as `GroupStrategy` describes."""
        owners_now = divide_topics(topics)
        return [queue for queue, owner in owners_now.items() if owner == current_cid]


def divide_topics(topics: Sequence[TopicView]) -> dict[MessageQueue, str]:
    """Return the owner of every queue of all topics, in the order of dealing."""
    loads = {cid: 0 for view in topics for cid in view.cid_all}
    owners: dict[MessageQueue, str] = {}
    # Sorting is stable: topics with equally many subscribers keep their order.
    for view in sorted(in_order(topics), key=lambda view: len(unique(view.cid_all))):
        subscribers = unique(view.cid_all)
        for queue in view.mq_all:
            owner = min(subscribers, key=lambda cid: loads[cid])
            loads[owner] += 1
            owners[queue] = owner
    return owners
